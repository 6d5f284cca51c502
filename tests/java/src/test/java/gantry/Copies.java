package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.Message;

/** A master, its slave and their name server, each in a process of its own, and what is asked of all of them. */
final class Copies {
    static final int FILE_BYTES = 1 << 20;
    static final int QUEUES = 4;
    static final Duration PATIENCE = Duration.ofSeconds(90);

    static Server names(Server.Kind kind) {
        var names = new Server("names");
        names.runsBroker = false;
        names.start(kind);
        return names;
    }

    static Server broker(String name, Server names) {
        var broker = new Server(name).with("mappedFileSizeCommitLog", String.valueOf(FILE_BYTES));
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    /** Batches of messages of a kilobyte, in all queues. */
    static void send(Stock stock, String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        for (int first = from; first < to; first += 50) {
            var batch = new ArrayList<Message>();
            for (int i = first; i < Math.min(to, first + 50); i++) {
                batch.add(new Message(topic, "tag", "key" + i, (i + " " + "x".repeat(1_000)).getBytes(UTF_8)));
            }
            producer.send(batch, Stock.queue(topic, first / 50 % QUEUES));
        }
    }

    /** A figure of the broker at this moment; -1 if it does not say it yet. */
    static long figure(Server server, String name) throws Exception {
        String body = new String(Wire.call(server.brokerPort, 28, Map.of()).getBody(), UTF_8);
        var found = Pattern.compile("\"" + name + "\":\"(-?\\d+)\"").matcher(body);
        return found.find() ? Long.parseLong(found.group(1)) : -1;
    }

    static long end(Server server) throws Exception {
        return figure(server, "commitLogMaxOffset");
    }

    static void awaitTables(Contents contents, Server slave) {
        Await.until("topics, groups and offsets have come over", PATIENCE, () -> {
            try {
                contents.checkTables(slave);
                return true;
            } catch (AssertionError notYet) {
                throw new IllegalStateException(notYet);
            }
        }, slave::output);
    }

    static List<Path> files(Server server) throws Exception {
        try (Stream<Path> files = Files.list(server.store().resolve("commitlog"))) {
            return files.filter(file -> file.getFileName().toString().matches("\\d{20}")).sorted().toList();
        }
    }

    /** Whatever both have of the log, from {@code from} on, is the same. */
    static void sameBytes(Server master, Server slave, long from, long end) throws Exception {
        assertTrue(end - from > 3L * FILE_BYTES, "several files: " + from + " to " + end);
        for (Path file : files(master)) {
            long base = Long.parseLong(file.getFileName().toString());
            long bytes = Math.min(end - base, FILE_BYTES);
            if (base < from || bytes <= 0) {
                continue;
            }
            Path copy = slave.store().resolve("commitlog").resolve(file.getFileName());
            assertEquals(-1, mismatch(file, copy, (int) bytes), copy + " differs");
        }
        assertEquals(from, Long.parseLong(files(slave).get(0).getFileName().toString()));
    }

    static int mismatch(Path one, Path other, int bytes) throws Exception {
        return java.util.Arrays.mismatch(head(one, bytes), head(other, bytes));
    }

    static byte[] head(Path path, int bytes) throws Exception {
        var head = new byte[bytes];
        try (var file = new RandomAccessFile(path.toFile(), "r")) {
            file.readFully(head);
        }
        return head;
    }

    /** What a stock consumer of a new group gets. */
    static Set<Integer> consumed(Stock stock, String topic, String group, int count) throws Exception {
        Set<Integer> seen = ConcurrentHashMap.newKeySet();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Integer.parseInt(new String(message.getBody(), UTF_8).split(" ")[0])));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Await.until("all are consumed", PATIENCE, () -> seen.size() >= count, () -> seen.size() + " of " + count + stock.server.output());
        return seen;
    }

    /** What the published tool prints for one command line. */
    static String mqadmin(Server server, String... command) throws Exception {
        var line = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx200m",
            "-XX:TieredStopAtLevel=1", "-Duser.home=" + server.root, "-Drocketmq.home.dir=" + server.root,
            "-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
            "org.apache.rocketmq.tools.command.MQAdminStartup"));
        line.addAll(List.of(command));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String said = new String(process.getInputStream().readAllBytes(), UTF_8);
        assertTrue(process.waitFor(60, TimeUnit.SECONDS), said);
        return said;
    }

    private Copies() {}
}
