package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
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

    private static long popTime(MessageExt message) {
        return ExtraInfoUtil.getPopTime(ExtraInfoUtil.split(message.getProperty("POP_CK")));
    }

    /** One group's way to the broker, by the calls that the client's own consumers make. */
    private final class Popper {
        final String topic;
        final String group;
        final MQClientAPIImpl api;

        Popper(String topic, String group) throws Exception {
            this.topic = topic;
            this.group = group;
            api = stock.pull(Stock.name("poppers")).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
                .getMQClientAPIImpl();
        }

        PopResult pop(int count, long invisible, long wait, boolean order, String attempt) throws Exception {
            var header = new PopMessageRequestHeader();
            header.setTopic(topic);
            header.setConsumerGroup(group);
            header.setQueueId(order ? 0 : -1);
            header.setMaxMsgNums(count);
            header.setInvisibleTime(invisible);
            header.setPollTime(wait);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(ConsumeInitMode.MIN);
            header.setExpType("TAG");
            header.setExp("*");
            header.setOrder(order);
            header.setAttemptId(attempt);
            var answer = new CompletableFuture<PopResult>();
            api.popMessageAsync(Server.BROKER_NAME, server.broker(), header, wait + 10_000, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable e) {
                    answer.completeExceptionally(e);
                }
            });
            return answer.get(wait + 15_000, TimeUnit.MILLISECONDS);
        }

        List<MessageExt> pop(int count, long invisible, long wait) throws Exception {
            return found(pop(count, invisible, wait, false, null));
        }

        private String realTopic(MessageExt message) {
            return ExtraInfoUtil.getRealTopic(ExtraInfoUtil.split(message.getProperty("POP_CK")), topic, group);
        }

        AckStatus ack(MessageExt message) throws Exception {
            var parts = ExtraInfoUtil.split(message.getProperty("POP_CK"));
            var header = new AckMessageRequestHeader();
            header.setTopic(realTopic(message));
            header.setConsumerGroup(group);
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setExtraInfo(message.getProperty("POP_CK"));
            var answer = new Answer();
            api.ackMessageAsync(server.broker(), 10_000, answer, header);
            return answer.result.get(15, TimeUnit.SECONDS).getStatus();
        }

        AckResult change(MessageExt message, long invisible) throws Exception {
            var parts = ExtraInfoUtil.split(message.getProperty("POP_CK"));
            var header = new ChangeInvisibleTimeRequestHeader();
            header.setTopic(realTopic(message));
            header.setConsumerGroup(group);
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setExtraInfo(message.getProperty("POP_CK"));
            header.setInvisibleTime(invisible);
            var answer = new Answer();
            api.changeInvisibleTimeAsync(Server.BROKER_NAME, server.broker(), header, 10_000, answer);
            return answer.result.get(15, TimeUnit.SECONDS);
        }

        /** Pops until so many messages are there. */
        List<MessageExt> popAll(int count, long invisible) throws Exception {
            var all = new ArrayList<MessageExt>();
            long end = System.nanoTime() + LONG.toNanos();
            while (all.size() < count) {
                assertTrue(System.nanoTime() < end, "only " + all.size() + " of " + count);
                all.addAll(pop(32, invisible, 2_000));
            }
            return all;
        }
    }

    private static List<MessageExt> found(PopResult result) {
        return result.getPopStatus() == PopStatus.FOUND ? result.getMsgFoundList() : List.of();
    }

    private static final class Answer implements AckCallback {
        final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult ack) {
            result.complete(ack);
        }

        @Override
        public void onException(Throwable e) {
            result.completeExceptionally(e);
        }
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
        var popper = new Popper(topic, Stock.name("pop"));
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
        var popper = new Popper(topic, Stock.name("pop"));
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
        var popper = new Popper(topic, Stock.name("pop"));
        var first = found(popper.pop(2, 5_000, 0, true, "one"));
        assertEquals(List.of("0", "1"), first.stream().map(PopTest::body).toList());
        assertEquals(List.of(), found(popper.pop(2, 5_000, 0, true, "two")));
        var same = found(popper.pop(2, 5_000, 0, true, "one"));
        assertEquals(List.of("0", "1"), same.stream().map(PopTest::body).toList());
        assertEquals(AckStatus.OK, popper.ack(same.get(0)));
        Await.until("the second message comes again", LONG, () -> {
            var again = found(popper.pop(1, 60_000, 1_000, true, "three"));
            if (again.isEmpty()) {
                return false;
            }
            assertEquals("1", body(again.get(0)));
            assertEquals(1, again.get(0).getReconsumeTimes());
            assertEquals(AckStatus.OK, popper.ack(again.get(0)));
            return true;
        }, () -> "");
        var rest = found(popper.pop(2, 60_000, 5_000, true, "four"));
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
                var popper = new Popper(topic, group);
                var thread = new Thread(() -> {
                    while (!isOver.get()) {
                        try {
                            for (var message : popper.pop(8, 3_000, 500)) {
                                seen.add(body(message));
                                Long at = acknowledged.get(body(message));
                                // A client that was slow may only now look at what it got before, and lost to another one.
                                if (at != null && popTime(message) > at) {
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

    @Test
    void leases_of_apache_hold_in_gantry() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY, "both run here");
        // Apache's timer lets check-points go, and its revive service does not look at them before the stop.
        server.with("reviveInterval", "600000").start(Server.Kind.APACHE_5);
        stock = new Stock(server);
        String topic = stock.topic(1);
        String group = Stock.name("pop");
        send(topic, 0, 10);
        var byApache = new Popper(topic, group);
        var all = byApache.popAll(10, 5_000);
        var left = new HashMap<String, MessageExt>();
        for (var message : all) {
            if (Integer.parseInt(body(message)) < 6) {
                assertEquals(AckStatus.OK, byApache.ack(message));
            } else {
                left.put(body(message), message);
            }
        }
        String revive = "rmq_sys_REVIVE_LOG_" + Server.CLUSTER;
        Await.until("check-points and acknowledgements are in the revive topic", LONG, () -> {
            long records = 0;
            for (int queue = 0; queue < 8; queue++) {
                records += stock.maxOffset(revive, queue);
            }
            var offsets = Files.readString(server.store().resolve("config/consumerOffset.json"));
            return records >= 7 && offsets.replaceAll("\\s", "").contains(topic + "@" + group + "\":{0:10");
        }, () -> "");
        // Its stop would wait for the revive service.
        server.kill();

        server.start(Server.Kind.GANTRY);
        var byGantry = new Popper(topic, group);
        var again = byGantry.popAll(4, 20_000);
        assertEquals(left.keySet(), bodies(again));
        for (var message : again) {
            assertEquals(AckStatus.OK, byGantry.ack(message));
        }
        assertEquals(List.of(), byGantry.pop(32, 1_000, 3_000));
    }

    @Test
    void leases_of_gantry_hold_in_apache() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY, "both run here");
        start();
        String topic = stock.topic(1);
        String group = Stock.name("pop");
        send(topic, 0, 10);
        var byGantry = new Popper(topic, group);
        for (var message : byGantry.popAll(10, 10_000)) {
            if (!body(message).equals("9")) {
                assertEquals(AckStatus.OK, byGantry.ack(message));
            }
        }
        server.stop();

        server.start(Server.Kind.APACHE_5);
        var back = new Popper(topic, group).popAll(1, 60_000);
        assertEquals(Set.of("9"), bodies(back));
        assertEquals(1, back.get(0).getReconsumeTimes());
        assertEquals(List.of(), new Popper(topic, group).pop(32, 1_000, 3_000));
    }
}
