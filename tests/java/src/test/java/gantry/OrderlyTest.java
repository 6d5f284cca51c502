package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Orderly consumers see each queue in order, one at a time, under the queue locks of the broker. */
@Tag("clients")
class OrderlyTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    @Test
    void queues_are_seen_in_order_though_a_message_fails_on_its_first_try() throws Exception {
        String topic = stock.topic(4);
        var producer = stock.producer();
        for (int i = 0; i < 200; i++) {
            producer.send(new Message(topic, (i + "").getBytes(UTF_8)), Stock.queue(topic, i % 4));
        }
        Map<Integer, List<Long>> seen = new ConcurrentHashMap<>();
        Map<Integer, AtomicInteger> failures = new ConcurrentHashMap<>();
        var consumer = stock.push(Stock.name("orderly"));
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (var message : messages) {
                if (message.getQueueOffset() == 10
                    && failures.computeIfAbsent(message.getQueueId(), q -> new AtomicInteger()).incrementAndGet() <= 2) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                seen.computeIfAbsent(message.getQueueId(), q -> new CopyOnWriteArrayList<>()).add(message.getQueueOffset());
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Await.until("200 were seen", () -> seen.values().stream().mapToInt(List::size).sum() >= 200);
        for (int queue = 0; queue < 4; queue++) {
            assertEquals(java.util.stream.LongStream.range(0, 50).boxed().toList(), seen.get(queue));
            assertEquals(3, failures.get(queue).get());
        }
    }

    @Test
    void two_orderly_consumers_never_work_on_one_queue_together() throws Exception {
        String topic = stock.topic(4);
        String group = Stock.name("locks");
        var producer = stock.producer();
        var working = new ConcurrentHashMap<Integer, String>();
        var collisions = new ConcurrentLinkedQueue<String>();
        Map<Integer, List<Long>> seen = new ConcurrentHashMap<>();
        var first = orderly(group, topic, "first", working, collisions, seen);
        first.start();
        for (int i = 0; i < 200; i++) {
            producer.send(new Message(topic, "x".getBytes(UTF_8)), Stock.queue(topic, i % 4));
        }
        Await.until("the first has begun", () -> !seen.isEmpty());
        var second = orderly(group, topic, "second", working, collisions, seen);
        second.start();
        Await.until("each has two queues", java.time.Duration.ofSeconds(60), () -> RebalanceTest.owned(first, topic).size() == 2
            && RebalanceTest.owned(second, topic).size() == 2, () -> "");
        for (int i = 200; i < 400; i++) {
            producer.send(new Message(topic, "x".getBytes(UTF_8)), Stock.queue(topic, i % 4));
        }
        Await.until("all were seen", java.time.Duration.ofSeconds(60),
            () -> seen.values().stream().mapToInt(list -> new java.util.TreeSet<>(list).size()).sum() >= 400, seen::toString);
        assertTrue(collisions.isEmpty(), collisions.toString());
        for (int queue = 0; queue < 4; queue++) {
            // A queue that changed hands may repeat what was not committed, but never skips.
            long expected = 0;
            for (long offset : seen.get(queue)) {
                assertTrue(offset <= expected, "queue " + queue + " skipped from " + expected + " to " + offset);
                expected = Math.max(expected, offset + 1);
            }
            assertEquals(100, expected);
        }
    }

    private DefaultMQPushConsumer orderly(String group, String topic, String name, Map<Integer, String> working,
        ConcurrentLinkedQueue<String> collisions, Map<Integer, List<Long>> seen) throws Exception {
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (var message : messages) {
                String other = working.putIfAbsent(message.getQueueId(), name);
                if (other != null) {
                    collisions.add(name + " met " + other + " at queue " + message.getQueueId());
                }
                seen.computeIfAbsent(message.getQueueId(), q -> new CopyOnWriteArrayList<>()).add(message.getQueueOffset());
                working.remove(message.getQueueId(), name);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return consumer;
    }
}
