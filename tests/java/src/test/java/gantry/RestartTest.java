package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Topics, groups, messages and offsets are there again after a stop and after a kill, and running clients just go on. */
@Tag("clients")
class RestartTest {
    @Test
    void a_clean_restart_keeps_messages_topics_groups_and_offsets() throws Exception {
        try (var server = new Server("restart").start(); var stock = new Stock(server)) {
            survives(server, stock, server::stop);
            server.stop();
            assertFalse(Files.exists(server.store().resolve("abort")), "a clean stop takes its mark away");
        }
    }

    @Test
    void a_kill_keeps_messages_topics_groups_and_offsets() throws Exception {
        try (var server = new Server("killed").start(); var stock = new Stock(server)) {
            // Apache writes offsets to disk every five seconds; ours are in the journal.
            server.settings.put("flushConsumerOffsetInterval", "200");
            survives(server, stock, () -> {
                if (Server.DEFAULT != Server.Kind.GANTRY) {
                    server.stop();
                } else {
                    server.kill();
                }
            });
        }
    }

    private static void survives(Server server, Stock stock, Runnable end) throws Exception {
        String topic = stock.topic(3);
        String group = Stock.name("survivor");
        Wire.call(server.brokerPort, 200, Map.of(), ("{\"groupName\":\"" + group + "\",\"retryMaxTimes\":9}").getBytes(UTF_8));
        var producer = stock.producer();
        for (int i = 0; i < 90; i++) {
            producer.send(new Message(topic, "tag" + i % 2, String.valueOf(i).getBytes(UTF_8)), Stock.queue(topic, i % 3));
        }
        var before = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(before.listener());
        consumer.start();
        before.await(90);
        stock.awaitCommitted(group, topic, 3);
        consumer.shutdown();
        // This one is due after the restart.
        var delayed = new Message(topic, "delayed".getBytes(UTF_8));
        delayed.setDelayTimeLevel(8);
        producer.send(delayed, Stock.queue(topic, 0));

        end.run();
        server.start();

        for (int queue = 0; queue < 3; queue++) {
            assertEquals("30", stock.committed(group, topic, queue));
            var stored = stock.read(topic, queue);
            assertTrue(stored.size() >= 30);
            for (int i = 0; i < 30; i++) {
                assertEquals(String.valueOf(i * 3 + queue), new String(stored.get(i).getBody(), UTF_8));
                assertEquals("tag" + (i * 3 + queue) % 2, stored.get(i).getTags());
            }
        }
        var config = new String(Wire.call(server.brokerPort, 352, Map.of("group", group)).getBody(), UTF_8);
        assertTrue(config.contains("\"retryMaxTimes\":9"), config);
        // The producer has lived through it; only the connection was lost.
        for (int i = 90; i < 120; i++) {
            producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)), Stock.queue(topic, i % 3));
        }
        var after = new Inbox();
        var successor = stock.push(group);
        successor.subscribe(topic, "*");
        successor.registerMessageListener(after.listener());
        successor.start();
        after.await(31);
        var expected = new TreeSet<>(IntStream.range(90, 120).mapToObj(String::valueOf).toList());
        expected.add("delayed");
        assertEquals(expected, after.distinct());
        assertEquals(31, after.size());
    }
}
