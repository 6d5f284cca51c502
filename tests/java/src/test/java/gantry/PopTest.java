package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Pop consumption by the stock client of 5.x: its own calls, and its push consumer when the broker says POP. */
@Tag("clients")
class PopTest {
    private static final Duration LONG = Duration.ofSeconds(90);
    private final Server server = new Server("pop");
    private Stock stock;

    private void start() {
        server.start();
        stock = new Stock(server);
    }

    @AfterEach
    void close() {
        if (stock != null) {
            stock.close();
            server.close();
        }
    }

    private void send(String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        for (int i = from; i < to; i++) {
            producer.send(new Message(topic, "tag", String.valueOf(i).getBytes(UTF_8)));
        }
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), UTF_8);
    }

    private static Set<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(PopTest::body).collect(Collectors.toCollection(TreeSet::new));
    }

    private static Set<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(String::valueOf).collect(Collectors.toCollection(TreeSet::new));
    }

    @Test
    void what_is_not_acknowledged_comes_again_and_nothing_else() throws Exception {
        start();
        String topic = stock.topic(4);
        send(topic, 0, 100);
        var popper = new Popper(stock, topic, Stock.name("pop"));
        var all = popper.popAll(100, 8_000);
        assertEquals(numbers(0, 100), bodies(all));
        var kept = new TreeSet<String>();
        for (var message : all) {
            assertEquals(0, message.getReconsumeTimes());
            if (body(message).endsWith("7")) {
                kept.add(body(message));
            } else {
                assertEquals(AckStatus.OK, popper.ack(message));
            }
        }
        var again = popper.popAll(kept.size(), 60_000);
        assertEquals(kept, bodies(again));
        for (var message : again) {
            assertEquals(1, message.getReconsumeTimes());
            assertEquals(topic, message.getTopic());
            assertTrue(message.getProperty("1ST_POP_TIME") != null);
            assertEquals(AckStatus.OK, popper.ack(message));
        }
        assertEquals(List.of(), popper.pop(32, 1_000, 3_000));
    }

    @Test
    void a_message_that_is_put_off_comes_when_its_time_is_over() throws Exception {
        start();
        String topic = stock.topic(1);
        send(topic, 0, 2);
        var popper = new Popper(stock, topic, Stock.name("pop"));
        var all = popper.popAll(2, 60_000);
        var put = popper.change(all.get(0), 3_000);
        assertEquals(AckStatus.OK, put.getStatus());
        assertTrue(put.getExtraInfo().split(" ").length == 8, put.getExtraInfo());
        var again = popper.popAll(1, 60_000);
        assertEquals(body(all.get(0)), body(again.get(0)));
        assertEquals(AckStatus.OK, popper.ack(again.get(0)));
        assertEquals(AckStatus.OK, popper.ack(all.get(1)));
    }

    @Test
    void a_queue_that_is_popped_in_order_waits_for_its_batch() throws Exception {
        start();
        String topic = stock.topic(1);
        send(topic, 0, 4);
        var popper = new Popper(stock, topic, Stock.name("pop"));
        var first = Popper.found(popper.pop(2, 5_000, 0, true, "one"));
        assertEquals(List.of("0", "1"), first.stream().map(PopTest::body).toList());
        assertEquals(List.of(), Popper.found(popper.pop(2, 5_000, 0, true, "two")));
        var same = Popper.found(popper.pop(2, 5_000, 0, true, "one"));
        assertEquals(List.of("0", "1"), same.stream().map(PopTest::body).toList());
        assertEquals(AckStatus.OK, popper.ack(same.get(0)));
        Await.until("the second message comes again", LONG, () -> {
            var again = Popper.found(popper.pop(1, 60_000, 1_000, true, "three"));
            if (again.isEmpty()) {
                return false;
            }
            assertEquals("1", body(again.get(0)));
            assertEquals(1, again.get(0).getReconsumeTimes());
            assertEquals(AckStatus.OK, popper.ack(again.get(0)));
            return true;
        }, () -> "");
        var rest = Popper.found(popper.pop(2, 60_000, 5_000, true, "four"));
        assertEquals(List.of("2", "3"), rest.stream().map(PopTest::body).toList());
    }

    @Test
    void a_push_consumer_pops_when_the_broker_says_so_and_gets_again_what_it_failed() throws Exception {
        start();
        String topic = stock.topic(4);
        String group = Stock.name("pop");
        var admin = stock.admin();
        Wire.call(server.brokerPort, 200, Map.of(), ("{\"groupName\":\"" + group + "\"}").getBytes(UTF_8));
        admin.setMessageRequestMode(server.broker(), topic, group, MessageRequestMode.POP, 8, 10_000);
        var times = new ConcurrentHashMap<String, AtomicInteger>();
        var reconsumed = new ConcurrentSkipListSet<Integer>();
        for (int i = 0; i < 2; i++) {
            var consumer = stock.push(group);
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(10_000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (var message : messages) {
                    int seen = times.computeIfAbsent(body(message), body -> new AtomicInteger()).incrementAndGet();
                    if (body(message).equals("13") && seen == 1) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    if (body(message).equals("13")) {
                        reconsumed.add(message.getReconsumeTimes());
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        send(topic, 0, 200);
        Await.until("everything is there, and 13 twice", LONG,
            () -> times.size() == 200 && times.get("13").get() == 2 && !reconsumed.isEmpty(), () -> times.size() + " " + times.get("13"));
        assertEquals(Set.of(1), Set.copyOf(reconsumed));
        times.remove("13");
        times.forEach((body, seen) -> assertEquals(1, seen.get(), body));
        // Apache tells its name server of a retry topic with its next registration only.
        Await.until("the group is not behind", LONG, () -> {
            try {
                var offsets = admin.examineConsumeStats(group).getOffsetTable().entrySet();
                return offsets.stream().filter(entry -> entry.getKey().getTopic().equals(topic))
                    .allMatch(entry -> entry.getValue().getBrokerOffset() == entry.getValue().getConsumerOffset());
            } catch (MQClientException e) {
                return false;
            }
        }, () -> "");
    }

    private long leases() throws Exception {
        return Long.parseLong(stock.admin().fetchBrokerRuntimeStats(server.broker()).getTable().get("popLeases"));
    }

    @Test
    void a_kill_loses_nothing_and_brings_nothing_again_that_was_acknowledged() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY, "Apache promises less");
        start();
        String topic = stock.topic(4);
        send(topic, 0, 1_000);
        // When the broker has said so, in milliseconds.
        var acknowledged = new ConcurrentHashMap<String, Long>();
        var seen = ConcurrentHashMap.<String>newKeySet();
        var twice = ConcurrentHashMap.<String>newKeySet();
        var asked = ConcurrentHashMap.<String>newKeySet();
        String group = Stock.name("pop");
        for (int round = 0; round < 3; round++) {
            var isOver = new AtomicBoolean();
            var threads = new ArrayList<Thread>();
            int wanted = round == 2 ? 1_000 : 300 * (round + 1);
            for (int i = 0; i < 3; i++) {
                var popper = new Popper(stock, topic, group);
                var thread = new Thread(() -> {
                    while (!isOver.get()) {
                        try {
                            for (var message : popper.pop(8, 3_000, 500)) {
                                seen.add(body(message));
                                Long at = acknowledged.get(body(message));
                                // A client that was slow may only now look at what it got before, and lost to another one.
                                if (at != null && Popper.popTime(message) > at) {
                                    twice.add(body(message));
                                }
                                // Stored or not: the broker may be killed before it answers.
                                asked.add(body(message));
                                if (popper.ack(message) == AckStatus.OK) {
                                    acknowledged.put(body(message), System.currentTimeMillis());
                                }
                            }
                        } catch (Exception e) {
                            // The broker was killed: what it did not answer is open.
                        }
                    }
                });
                thread.start();
                threads.add(thread);
            }
            Await.until("enough is acknowledged", LONG, () -> acknowledged.size() >= wanted || asked.size() >= wanted && leases() == 0,
                () -> acknowledged.size() + " of " + wanted + ", asked for " + asked.size());
            if (round < 2) {
                server.kill();
            }
            isOver.set(true);
            for (var thread : threads) {
                thread.join();
            }
            if (round < 2) {
                server.start();
            }
        }
        assertEquals(numbers(0, 1_000), new TreeSet<>(seen));
        assertEquals(Set.of(), twice);
    }
}
