package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.TestFactory;

/**
 * What a kill or a loss of power leaves of a store of ours, as the simulator makes it: a real Apache broker opens it and has what was
 * promised, takes more, and gives it back to Gantry. {@code -Dgantry.images=N} takes N seeds instead of one, from
 * {@code -Dgantry.images.from=N} on.
 */
@Tag("interop")
class CrashImageTest {
    private static final int SEEDS = Integer.getInteger("gantry.images", 1);
    private static final long FROM = Long.getLong("gantry.images.from", 1004);
    private static final String[] TOPICS = {"orders", "payments", "parcels"};
    private static final int QUEUES = 2;

    /** Where a message lies. */
    private record Place(String topic, int queue, long offset) {}

    /** What has to be in an image, and what may be, as {@code Left::write} of the simulator says it: CRC-32 by place. */
    private record Promise(Map<String, String> settings, Map<Place, Long> sent, Set<Place> promised) {
        static Promise of(Path file) throws IOException {
            var promise = new Promise(new TreeMap<>(), new HashMap<>(), new HashSet<>());
            for (String line : Files.readAllLines(file)) {
                if (line.startsWith("#")) {
                    continue;
                }
                String[] words = line.split(" ");
                if (words.length == 1) {
                    String[] setting = line.split("=");
                    promise.settings.put(setting[0], setting[1]);
                    continue;
                }
                var place = new Place(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                promise.sent.put(place, Long.parseLong(words[4], 16));
                if (words[0].equals("must")) {
                    promise.promised.add(place);
                }
            }
            return promise;
        }
    }

    @TestFactory
    List<DynamicTest> apache_5_opens_what_a_crash_left() throws Exception {
        Path images = Path.of(System.getProperty("gantry.work")).resolve("images-" + ProcessHandle.current().pid());
        var process = new ProcessBuilder(System.getProperty("gantry.sim"), "--seeds", String.valueOf(SEEDS), "--from", String.valueOf(FROM),
            "--for-apache", "--images", images.toString()).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes());
        assertEquals(0, process.waitFor(), said);
        try (var files = Files.list(images)) {
            return files.filter(Files::isDirectory).sorted().map(image -> DynamicTest.dynamicTest(image.getFileName().toString(),
                () -> opens(image))).toList();
        }
    }

    private static void opens(Path image) throws Exception {
        var promise = Promise.of(image.resolveSibling(image.getFileName() + ".says"));
        try (var server = new Server("image")) {
            Files.createDirectories(server.root);
            Files.move(image, server.store());
            promise.settings.forEach(server::with);
            server.start(Server.Kind.APACHE_5);
            check(server, promise);
            server.stop();
            server.start();
            check(server, promise);
        }
    }

    /** All that was promised is there, nothing is that was not sent, and each queue takes one more. */
    private static void check(Server server, Promise promise) throws Exception {
        try (var stock = new Stock(server)) {
            for (String topic : TOPICS) {
                stock.topic(topic, QUEUES);
                for (int queue = 0; queue < QUEUES; queue++) {
                    var missing = new HashSet<>(promise.promised);
                    int each = queue;
                    missing.removeIf(place -> !place.topic.equals(topic) || place.queue != each);
                    // Fails by itself if an offset is missing.
                    for (var message : stock.read(topic, queue)) {
                        var place = new Place(topic, queue, message.getQueueOffset());
                        Long sent = promise.sent.get(place);
                        assertNotNull(sent, place + " was never sent");
                        assertEquals(sent, sum(message.getBody()), () -> place + " has another body");
                        missing.remove(place);
                    }
                    assertEquals(Set.of(), missing, "promised, and not there");
                    byte[] body = ("one more of " + topic + queue + " at " + stock.maxOffset(topic, queue)).getBytes();
                    var target = Stock.queue(topic, queue);
                    long offset = stock.producer().send(new Message(topic, body), target).getQueueOffset();
                    var place = new Place(topic, queue, offset);
                    assertFalse(promise.promised.contains(place), place + " is given twice");
                    promise.sent.put(place, sum(body));
                    promise.promised.add(place);
                }
            }
        }
    }

    private static long sum(byte[] body) {
        var crc = new CRC32();
        crc.update(body);
        return crc.getValue();
    }
}
