package gantry;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Derived files that are lost or damaged after a crash are made again from the log; what the log holds is served unchanged. */
@Tag("crash")
class DamageTest {
    private interface Damage {
        void to(Path store) throws IOException;
    }

    private static void mended(String name, Damage damage) throws Exception {
        try (var server = new Server(name).start()) {
            var contents = new Contents();
            contents.extend(server);
            server.stop();
            server.start();
            contents.extend(server);
            contents.check(server);
            if (Server.DEFAULT == Server.Kind.GANTRY) {
                server.kill();
            } else {
                // Apache holds offsets in memory for five seconds; its mark of a crash is set by hand.
                server.stop();
                Files.writeString(server.store().resolve("abort"), "1");
            }
            damage.to(server.store());
            server.start();
            contents.check(server);
            contents.extend(server);
            contents.check(server);
        }
    }

    private static void delete(Path folder) throws IOException {
        try (var files = Files.walk(folder)) {
            for (var file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    @Test
    void all_consume_queues_are_missing() throws Exception {
        mended("queues", store -> delete(store.resolve("consumequeue")));
    }

    @Test
    void the_check_point_is_lost() throws Exception {
        mended("checkpoint", store -> Files.deleteIfExists(store.resolve("checkpoint")));
    }

    @Test
    void garbage_follows_the_tail_of_the_log() throws Exception {
        mended("garbage", store -> {
            try (var files = Files.list(store.resolve("commitlog"))) {
                Path last = files.max(Comparator.naturalOrder()).orElseThrow();
                long end = end(last);
                try (var file = new RandomAccessFile(last.toFile(), "rw")) {
                    byte[] garbage = new byte[4096];
                    new java.util.Random(7).nextBytes(garbage);
                    file.seek(end);
                    file.write(garbage);
                }
            }
        });
    }

    @Test
    void the_last_record_is_torn() throws Exception {
        mended("torn", store -> {
            try (var files = Files.list(store.resolve("commitlog"))) {
                Path last = files.max(Comparator.naturalOrder()).orElseThrow();
                long end = end(last);
                // The head of a record that claims more than was written.
                try (var file = new RandomAccessFile(last.toFile(), "rw")) {
                    file.seek(end);
                    file.writeInt(500);
                    file.writeInt(0xDAA320A7);
                    file.write(new byte[100]);
                }
            }
        });
    }

    /** Where the records of a segment end. */
    private static long end(Path segment) throws IOException {
        try (var file = new RandomAccessFile(segment.toFile(), "r")) {
            long at = 0;
            while (at + 8 <= file.length()) {
                file.seek(at);
                int size = file.readInt();
                int magic = file.readInt();
                if (size <= 0 || magic != 0xDAA320A7 && magic != 0xDAA320AB) {
                    break;
                }
                at += size;
            }
            return at;
        }
    }
}
