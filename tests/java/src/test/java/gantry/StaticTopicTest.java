package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Static topics over two brokers: logical queues with offsets of their own, which move while clients work with them. */
@Tag("clients")
class StaticTopicTest {
    private static final String LOGICAL = "__syslo__global__";
    private static final String OTHER = "broker-b";

    /** Who changes the topic. */
    private enum Tool { MQADMIN, GANTRY }

    /** A name server and two brokers, perhaps of different kinds. */
    private static final class Cluster implements AutoCloseable {
        final Server names = new Server("static-names");
        final Server a = new Server("static-a");
        final Server b = new Server("static-b").with("brokerName", OTHER);
        final Stock stock = new Stock(a);
        final String topic = Stock.name("static");
        final Tool tool;

        Cluster(Server.Kind kindOfNames, Server.Kind kindOfA, Server.Kind kindOfB, Tool tool) {
            this.tool = tool;
            names.runsBroker = false;
            names.start(kindOfNames);
            for (var broker : List.of(a, b)) {
                broker.runsNameServer = false;
                broker.registersAt = names.namesrvPort;
            }
            a.start(kindOfA);
            b.start(kindOfB);
        }

        Cluster() {
            this(Server.DEFAULT, Server.DEFAULT, Server.DEFAULT, Tool.MQADMIN);
        }

        String admin(String... words) throws Exception {
            var command = new ArrayList<String>();
            if (tool == Tool.MQADMIN) {
                var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
                command.addAll(List.of(java, "-Xmx200m", "-XX:TieredStopAtLevel=1", "-Duser.home=" + a.root, "-Djava.io.tmpdir=" + a.root,
                    "-Drocketmq.client.logUseSlf4j=false", "-cp",
                    System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                    "org.apache.rocketmq.tools.command.MQAdminStartup"));
                command.addAll(List.of(words));
                command.addAll(List.of("-n", names.nameServer()));
            } else {
                command.addAll(List.of(System.getProperty("gantry.binary"), "admin", "-n", names.nameServer()));
                command.addAll(List.of(words));
            }
            var out = Files.createTempFile(a.root, "tool", ".out");
            var process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(out.toFile()).start();
            assertTrue(process.waitFor(2, TimeUnit.MINUTES), () -> "does not end: " + command);
            String said = Files.readString(out);
            // mqadmin ends with 0 whatever happened.
            if (process.exitValue() != 0 || said.contains("Exception")) {
                throw new AssertionError(String.join(" ", words) + "\n" + said);
            }
            return said;
        }

        void make(String brokers, int queues) throws Exception {
            admin("updateStaticTopic", "-b", brokers, "-t", topic, "-qn", String.valueOf(queues));
            // An Apache broker whose registration took too long tries again after 30 s.
            Await.until("all queues have a leader", Duration.ofSeconds(90), () -> leaders().size() == queues, () -> "");
        }

        void move(String brokers) throws Exception {
            admin("remappingStaticTopic", "-b", brokers, "-t", topic);
        }

        /** Which broker the name server says has each logical queue, by the newest mapping. */
        Map<Integer, String> leaders() throws Exception {
            var route = RemotingSerializable.decode(Wire.call(names.namesrvPort, 105,
                Map.of("topic", topic, "acceptStandardJsonOnly", "true")).getBody(), TopicRouteData.class);
            var leaders = new TreeMap<Integer, String>();
            var epochs = new TreeMap<Integer, Long>();
            route.getTopicQueueMappingByBroker().forEach((broker, mapping) -> mapping.getCurrIdMap().keySet().forEach(queue -> {
                if (epochs.getOrDefault(queue, -1L) <= mapping.getEpoch()) {
                    epochs.put(queue, mapping.getEpoch());
                    leaders.put(queue, broker);
                }
            }));
            return leaders;
        }

        DefaultMQProducer producer() throws Exception {
            var producer = stock.unstartedProducer();
            producer.setPollNameServerInterval(500);
            producer.start();
            return producer;
        }

        DefaultMQPushConsumer consumer(String group, Seen seen, boolean isOrderly) throws Exception {
            var consumer = stock.push(group);
            consumer.setPollNameServerInterval(500);
            consumer.setHeartbeatBrokerInterval(1000);
            consumer.setPersistConsumerOffsetInterval(500);
            consumer.subscribe(topic, "*");
            if (isOrderly) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    messages.forEach(seen::add);
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    messages.forEach(seen::add);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
            }
            consumer.start();
            return consumer;
        }

        @Override
        public void close() {
            stock.close();
            a.close();
            b.close();
            names.close();
        }
    }

    /** What came, by logical queue and offset. */
    private static final class Seen {
        final Map<Integer, ConcurrentSkipListMap<Long, String>> queues = new ConcurrentHashMap<>();
        final java.util.concurrent.atomic.LongAdder deliveries = new java.util.concurrent.atomic.LongAdder();
        final List<String> complaints = java.util.Collections.synchronizedList(new ArrayList<>());

        void add(MessageExt message) {
            deliveries.increment();
            String body = new String(message.getBody(), UTF_8);
            var queue = queues.computeIfAbsent(message.getQueueId(), id -> new ConcurrentSkipListMap<>());
            String other = queue.put(message.getQueueOffset(), body);
            if (other != null && !other.equals(body)) {
                complaints.add(message.getQueueId() + "@" + message.getQueueOffset() + " is " + other + " and " + body);
            }
            if (!message.getBrokerName().equals(LOGICAL)) {
                complaints.add("from " + message.getBrokerName());
            }
        }

        TreeSet<String> bodies() {
            var all = new TreeSet<String>();
            queues.values().forEach(queue -> all.addAll(queue.values()));
            return all;
        }

        void await(TreeSet<String> bodies) {
            Await.until("all messages have come", Duration.ofSeconds(90), () -> bodies().containsAll(bodies), () -> {
                var missing = new TreeSet<>(bodies);
                missing.removeAll(bodies());
                return "missing " + missing.size() + ": " + missing.stream().limit(10).toList() + " " + complaints;
            });
            assertEquals(bodies, bodies());
            assertEquals(List.of(), complaints);
        }
    }

    private static SendResult send(DefaultMQProducer producer, String topic, String body, int queue) throws Exception {
        // A queue that has just moved is refused until the producer hears of it.
        for (long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);;) {
            try {
                return producer.send(new Message(topic, "tag", body.getBytes(UTF_8)), new MessageQueue(topic, LOGICAL, queue));
            } catch (MQBrokerException refused) {
                if (refused.getResponseCode() != 501 || System.nanoTime() > deadline) {
                    throw refused;
                }
                TimeUnit.MILLISECONDS.sleep(50);
            }
        }
    }

    @Test
    void producers_and_consumers_see_logical_queues_with_contiguous_offsets() throws Exception {
        try (var cluster = new Cluster()) {
            cluster.make("broker-a," + OTHER, 4);
            var leaders = cluster.leaders();
            assertEquals(2, new TreeSet<>(leaders.values()).size());
            var producer = cluster.producer();
            var sent = new TreeMap<Integer, List<Long>>();
            var bodies = new TreeSet<String>();
            for (int i = 0; i < 100; i++) {
                bodies.add("m" + i);
                var result = producer.send(new Message(cluster.topic, "tag", ("m" + i).getBytes(UTF_8)));
                assertEquals(leaders.get(result.getMessageQueue().getQueueId()), result.getMessageQueue().getBrokerName());
                sent.computeIfAbsent(result.getMessageQueue().getQueueId(), id -> new ArrayList<>()).add(result.getQueueOffset());
            }
            assertEquals(4, sent.size());
            sent.forEach((id, offsets) -> {
                for (int i = 0; i < offsets.size(); i++) {
                    assertEquals(i, offsets.get(i), "queue " + id + " " + offsets);
                }
            });
            var seen = new Seen();
            cluster.consumer(Stock.name("group"), seen, false);
            seen.await(bodies);
            sent.forEach((id, offsets) -> assertEquals(offsets, List.copyOf(seen.queues.get(id).keySet())));
            for (int id = 0; id < 4; id++) {
                var queue = new MessageQueue(cluster.topic, LOGICAL, id);
                assertEquals(sent.get(id).size(), producer.maxOffset(queue));
                assertEquals(0, producer.minOffset(queue));
                assertEquals(0, producer.searchOffset(queue, 1));
                // Apache's broker looks into the physical queue with the logical one's number.
                if (Server.DEFAULT == Server.Kind.GANTRY) {
                    assertTrue(producer.earliestMsgStoreTime(queue) > 0);
                }
            }
        }
    }

    @Test
    void orderly_consumers_lock_logical_queues_at_their_leaders() throws Exception {
        try (var cluster = new Cluster()) {
            cluster.make("broker-a," + OTHER, 2);
            var producer = cluster.producer();
            var bodies = new TreeSet<String>();
            for (int i = 0; i < 40; i++) {
                bodies.add("m" + i);
                send(producer, cluster.topic, "m" + i, i % 2);
            }
            var seen = new Seen();
            cluster.consumer(Stock.name("group"), seen, true);
            seen.await(bodies);
        }
    }

    @Test
    void a_queue_moves_while_clients_work_and_nothing_is_lost() throws Exception {
        moves(Server.DEFAULT, Server.DEFAULT, Server.DEFAULT, Tool.MQADMIN);
    }

    @Test
    void a_queue_moves_by_our_tool_too() throws Exception {
        moves(Server.DEFAULT, Server.DEFAULT, Server.DEFAULT, Tool.GANTRY);
    }

    @Test
    void a_queue_moves_from_an_apache_broker_to_ours() throws Exception {
        moves(Server.Kind.APACHE_5, Server.Kind.APACHE_5, Server.DEFAULT, Tool.MQADMIN);
    }

    @Test
    void a_queue_moves_from_our_broker_to_an_apache_broker() throws Exception {
        moves(Server.DEFAULT, Server.DEFAULT, Server.Kind.APACHE_5, Tool.GANTRY);
    }

    @Test
    void a_static_topic_goes_over_to_apache_and_back_with_its_store() throws Exception {
        try (var cluster = new Cluster()) {
            cluster.make("broker-a", 2);
            var bodies = new TreeSet<String>();
            var producer = cluster.producer();
            for (var kind : List.of(Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT)) {
                if (!bodies.isEmpty()) {
                    cluster.a.stop();
                    cluster.a.start(kind);
                    Await.until("both queues have a leader", () -> cluster.leaders().equals(Map.of(0, "broker-a", 1, "broker-a")));
                }
                for (int i = 0; i < 10; i++) {
                    String body = "m" + bodies.size();
                    Await.until("a message is taken",
                        () -> send(producer, cluster.topic, body, bodies.size() % 2).getQueueOffset() == bodies.size() / 2);
                    bodies.add(body);
                }
                var seen = new Seen();
                cluster.consumer(Stock.name("group"), seen, false);
                seen.await(bodies);
            }
        }
    }

    private static void moves(Server.Kind names, Server.Kind from, Server.Kind to, Tool tool) throws Exception {
        try (var cluster = new Cluster(names, from, to, tool)) {
            cluster.make("broker-a", 2);
            assertEquals(Map.of(0, "broker-a", 1, "broker-a"), cluster.leaders());
            var producer = cluster.producer();
            var bodies = java.util.Collections.synchronizedSet(new TreeSet<String>());
            for (int i = 0; i < 60; i++) {
                send(producer, cluster.topic, "old" + i, i % 2);
                bodies.add("old" + i);
            }
            var live = new Seen();
            String group = Stock.name("live");
            cluster.consumer(group, live, false);
            var stop = new AtomicBoolean();
            var sentBehind = new AtomicInteger();
            var failure = new ArrayList<Throwable>();
            var offsets = new TreeMap<Integer, List<Long>>(Map.of(0, new ArrayList<>(), 1, new ArrayList<>()));
            var sending = new Thread(() -> {
                try {
                    for (int i = 0; !stop.get(); i++) {
                        var result = send(producer, cluster.topic, "live" + i, i % 2);
                        bodies.add("live" + i);
                        if (result.getQueueOffset() >= 10_000) {
                            sentBehind.incrementAndGet();
                        }
                        // Between the two steps of a move nobody knows the offset.
                        if (result.getQueueOffset() >= 0) {
                            offsets.get(result.getMessageQueue().getQueueId()).add(result.getQueueOffset());
                        }
                        TimeUnit.MILLISECONDS.sleep(5);
                    }
                } catch (Throwable e) {
                    failure.add(e);
                }
            });
            sending.start();
            try {
                cluster.move(OTHER);
                Await.until("the queues have moved", () -> cluster.leaders().equals(Map.of(0, OTHER, 1, OTHER)));
                Await.until("messages go to the new places", Duration.ofSeconds(60),
                    () -> sentBehind.get() > 40 || !failure.isEmpty(), () -> failure.toString());
            } finally {
                stop.set(true);
                sending.join();
            }
            assertEquals(List.of(), failure);
            offsets.forEach((id, of) -> assertEquals(of.stream().sorted().distinct().toList(), of, "queue " + id));
            live.await(new TreeSet<>(bodies));
            // A group that begins now reads the old places at the old broker, through the new one.
            var late = new Seen();
            cluster.consumer(Stock.name("late"), late, false);
            late.await(new TreeSet<>(bodies));
            assertEquals(live.queues, late.queues);
            int stored = late.queues.values().stream().mapToInt(Map::size).sum();
            assertEquals(stored, late.deliveries.sum(), "each message once, where nothing moves");
            for (int id = 0; id < 2; id++) {
                var queue = new MessageQueue(cluster.topic, LOGICAL, id);
                assertEquals(0, producer.minOffset(queue));
                assertEquals(late.queues.get(id).lastKey() + 1, producer.maxOffset(queue));
            }
        }
    }
}
