package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Messages that are delivered at a time that their producer names, and those that he takes back. */
@Tag("clients")
class TimerTest {
    private static Message at(String topic, String property, long value, String body) {
        var message = new Message(topic, "tag", "key-" + body, body.getBytes(UTF_8));
        // The setters of 5.x put these; 4.9 has none.
        MessageAccessor.putProperty(message, property, String.valueOf(value));
        return message;
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    private static List<MessageExt> delivered(Stock stock, String topic, int count) throws Exception {
        Await.until(count + " are delivered", Duration.ofSeconds(60), () -> stock.maxOffset(topic, 0) >= count, () -> "");
        return stock.read(topic, 0);
    }

    @Test
    void each_way_to_name_a_time_delivers_then_and_not_before() throws Exception {
        try (var server = new Server("timers").start(); var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            producer.send(at(topic, "TIMER_DELIVER_MS", System.currentTimeMillis() - 1, "past"));
            long begin = System.currentTimeMillis();
            long due = begin + 3_000;
            producer.send(at(topic, "TIMER_DELIVER_MS", begin + 9_000, "last"));
            producer.send(at(topic, "TIMER_DELAY_SEC", 6, "seconds"));
            var result = producer.send(at(topic, "TIMER_DELAY_MS", 4_500, "milliseconds"));
            producer.send(at(topic, "TIMER_DELIVER_MS", due, "time"));
            long sent = System.currentTimeMillis();
            assertEquals(topic, result.getMessageQueue().getTopic());
            var found = delivered(stock, topic, 5);
            assertEquals(List.of("past", "time", "milliseconds", "seconds", "last"), bodies(found));
            long[] after = {-60_000, 3_000, 4_500, 6_000, 9_000};
            for (int i = 0; i < after.length; i++) {
                var message = found.get(i);
                String body = new String(message.getBody(), UTF_8);
                assertTrue(message.getStoreTimestamp() >= begin + after[i], body + " is early");
                assertTrue(message.getStoreTimestamp() < sent + Math.max(after[i], 0) + 20_000, body + " is late");
                assertEquals("tag", message.getTags());
                assertEquals("key-" + body, message.getKeys());
                assertTrue(message.getBornTimestamp() <= sent, body + " keeps the time of its birth");
                if (i > 0) {
                    assertNotNull(message.getProperty("TIMER_OUT_MS"));
                    assertNotNull(message.getProperty("TIMER_ENQUEUE_MS"));
                    assertNotNull(message.getProperty("TIMER_DEQUEUE_MS"));
                    assertEquals("0", message.getProperty("REAL_QID"));
                }
            }
        }
    }

    @Test
    void the_setters_of_the_client_name_the_same_times() throws Exception {
        assumeTrue(System.getProperty("gantry.client").startsWith("5"));
        try (var server = new Server("setters").start(); var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            long begin = System.currentTimeMillis();
            for (var row : Map.of("setDelayTimeSec", 3L, "setDelayTimeMs", 2_000L, "setDeliverTimeMs", begin + 5_000).entrySet()) {
                var message = new Message(topic, row.getKey().getBytes(UTF_8));
                Message.class.getMethod(row.getKey(), long.class).invoke(message, row.getValue());
                producer.send(message);
            }
            assertEquals(List.of("setDelayTimeMs", "setDelayTimeSec", "setDeliverTimeMs"), bodies(delivered(stock, topic, 3)));
        }
    }

    @Test
    void what_the_producer_takes_back_is_not_delivered() throws Exception {
        assumeTrue(System.getProperty("gantry.client").startsWith("5"));
        try (var server = new Server("recall").with("recallMessageEnable", "true").start(); var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            long due = System.currentTimeMillis() + 6_000;
            var handles = new ArrayList<String>();
            for (int i = 0; i < 20; i++) {
                var result = producer.send(at(topic, "TIMER_DELIVER_MS", due + i, "message " + i));
                handles.add((String) SendResult.class.getMethod("getRecallHandle").invoke(result));
            }
            var recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
            for (int i = 0; i < 20; i += 2) {
                assertNotNull(recall.invoke(producer, topic, handles.get(i)));
            }
            producer.send(at(topic, "TIMER_DELIVER_MS", due + 3_000, "behind"));
            var found = new TreeSet<>(bodies(delivered(stock, topic, 11)));
            var expected = new TreeSet<>(IntStream.range(0, 20).filter(i -> i % 2 == 1).mapToObj(i -> "message " + i).toList());
            expected.add("behind");
            assertEquals(expected, found);
        }
    }

    @Test
    void each_message_is_delivered_once_over_kills() throws Exception {
        // Apache delivers some of them twice.
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY);
        try (var server = new Server("timer-kills").start(); var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            long begin = System.currentTimeMillis();
            var expected = new TreeSet<String>();
            for (int i = 0; i < 600; i++) {
                String body = String.valueOf(i);
                producer.send(at(topic, "TIMER_DELIVER_MS", begin + 4_000 + i * 25L, body));
                expected.add(body);
            }
            for (int kill = 0; kill < 4; kill++) {
                int more = 60 + kill * 120;
                Await.until("some are delivered", Duration.ofSeconds(60), () -> stock.maxOffset(topic, 0) >= more, () -> "");
                server.kill();
                server.start();
            }
            var found = delivered(stock, topic, 600);
            assertEquals(600, found.size());
            assertEquals(expected, new TreeSet<>(bodies(found)));
            for (var message : found) {
                int number = Integer.parseInt(new String(message.getBody(), UTF_8));
                assertTrue(message.getStoreTimestamp() >= begin + 4_000 + number * 25L, number + " is early");
            }
        }
    }
}
