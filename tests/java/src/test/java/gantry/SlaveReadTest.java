package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Stock consumers between a master, of Apache 5.5.0 or of ours, and a slave of ours: there for old messages, there without the master, and back. */
@Tag("interop")
class SlaveReadTest {
    private static final int QUEUES = 4;
    private static final Duration PATIENCE = Duration.ofSeconds(90);

    private static Server broker(String name, Server names) {
        var broker = new Server(name).with("mappedFileSizeCommitLog", String.valueOf(4 << 20)).with("slaveReadEnable", "true");
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    private static void send(Stock stock, String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        for (int first = from; first < to; first += 25) {
            var batch = new ArrayList<Message>();
            for (int i = first; i < Math.min(to, first + 25); i++) {
                batch.add(new Message(topic, String.valueOf(i).getBytes(UTF_8)));
            }
            producer.send(batch, Stock.queue(topic, first / 25 % QUEUES));
        }
    }

    private static String text(Server server, String name) throws Exception {
        String body = new String(Wire.call(server.brokerPort, 28, Map.of()).getBody(), UTF_8);
        var found = Pattern.compile("\"" + name + "\":\"([^\"]*)\"").matcher(body);
        return found.find() ? found.group(1) : "";
    }

    private static long figure(Server server, String name) throws Exception {
        String text = text(server, name);
        return text.isEmpty() ? -1 : Long.parseLong(text);
    }

    private static void awaitFollows(Server master, Server slave) {
        Await.until("the slave has the log", PATIENCE, () -> figure(master, "commitLogMaxOffset") > 0
            && figure(master, "commitLogMaxOffset") == figure(slave, "commitLogMaxOffset")
            && text(slave, "masterConnected").equals("true"), slave::output);
    }

    /** How often each message was consumed, by a consumer that asks for routes each second and consumes as much as it is let. */
    private static final class Reader {
        final Map<Integer, Integer> seen = new ConcurrentHashMap<>();
        final Semaphore may = new Semaphore(0);
        final DefaultMQPushConsumer consumer;

        Reader(Stock stock, String topic, String group) throws Exception {
            consumer = stock.push(group);
            consumer.setPollNameServerInterval(1_000);
            consumer.setPersistConsumerOffsetInterval(1_000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                may.acquireUninterruptibly(messages.size());
                messages.forEach(message -> seen.merge(Integer.parseInt(new String(message.getBody(), UTF_8)), 1, Integer::sum));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        void await(int count, Server server) {
            Await.until("all are consumed", PATIENCE, () -> seen.size() >= count, () -> seen.size() + " of " + count + server.output());
        }

        void once(int from, int to) {
            var others = seen.entrySet().stream().filter(entry -> entry.getValue() != 1 || entry.getKey() < from || entry.getKey() >= to)
                .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
            assertTrue(others.isEmpty() && seen.size() == to - from, seen.size() + ", consumed more than once or not to be: " + others);
        }
    }

    private static void awaitCommitted(Stock stock, String group, String topic, Server shows) {
        Await.until(group + " has committed all there", PATIENCE, () -> {
            for (int queue = 0; queue < QUEUES; queue++) {
                if (!String.valueOf(stock.maxOffset(topic, queue)).equals(stock.committed(group, topic, queue))) {
                    return false;
                }
            }
            return true;
        }, shows::output);
    }

    /** {@code kind}: of the master and of the name server. */
    private static void readsAtBoth(Server.Kind kind) throws Exception {
        var names = new Server("names");
        names.runsBroker = false;
        try (names; var master = broker("master", names); var slave = broker("slave", names)) {
            names.start(kind);
            // Each message is an old one.
            master.with("accessMessageInMemoryMaxRatio", "0").start(kind);
            slave.with("brokerRole", "SLAVE").with("brokerId", "1").with("accessMessageInMemoryMaxRatio", "0").start(Server.Kind.GANTRY);
            String group = Stock.name("readers");
            String topic;
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                send(stock, topic, 0, 2_000);
                awaitFollows(master, slave);
                Await.until("the slave knows the topic", PATIENCE, () -> Wire.call(slave.brokerPort, 30, Map.of("topic", topic,
                    "queueId", "0")).getCode() == 0, slave::output);
                var reader = new Reader(stock, topic, group);
                reader.may.release(1_000_000);
                reader.await(2_000, slave);
                assertTrue(figure(slave, "msgGetTotalTodayNow") > 0, "some were read at the slave" + slave.output());
                // While the master is there, offsets are committed at it.
                awaitCommitted(stock, group, topic, master);
                assertEquals("0", text(slave, "offsetsForMaster"));
                // It waits at the master by now, and hears of these.
                send(stock, topic, 2_000, 2_100);
                reader.await(2_100, slave);

                reader.may.drainPermits();
                reader.may.release(100);
                send(stock, topic, 2_100, 3_000);
                awaitFollows(master, slave);
                reader.await(2_150, slave);
                // Apache's takes some 10 s to end otherwise.
                master.kill();
                reader.may.release(1_000_000);
                reader.await(3_000, slave);
                reader.once(0, 3_000);
                // A consumer that ended before it knew that the master is gone would commit nowhere.
                try (var there = new Stock(slave)) {
                    awaitCommitted(there, group, topic, slave);
                }
                reader.consumer.shutdown();
            }
            assertTrue(figure(slave, "offsetsForMaster") > 0);
            slave.kill();
            slave.start(Server.Kind.GANTRY);
            master.start(kind);
            awaitFollows(master, slave);
            try (var stock = new Stock(master)) {
                awaitCommitted(stock, group, topic, slave);
                Await.until("the slave is done", PATIENCE, () -> figure(slave, "offsetsForMaster") == 0, slave::output);
                var reader = new Reader(stock, topic, group);
                reader.may.release(1_000_000);
                send(stock, topic, 3_000, 3_100);
                reader.await(100, master);
                awaitCommitted(stock, group, topic, master);
                reader.once(3_000, 3_100);
            }
            try (var stock = new Stock(slave)) {
                awaitCommitted(stock, group, topic, slave);
            }
        }
    }

    @Test
    void consumers_read_old_messages_from_the_slave_and_what_they_commit_there_without_the_master_of_apache_comes_to_it() throws Exception {
        readsAtBoth(Server.Kind.APACHE_5);
    }

    @Test
    void consumers_read_old_messages_from_the_slave_and_what_they_commit_there_without_the_master_of_ours_comes_to_it() throws Exception {
        readsAtBoth(Server.Kind.GANTRY);
    }

    private static void shows(Map<String, java.util.List<String>> printed, String command, String pattern) {
        var lines = printed.get(command);
        assertTrue(lines.stream().anyMatch(line -> line.matches(pattern)), command + " shows no line " + pattern + ": " + lines);
    }

    private static void hidden(Map<String, java.util.List<String>> printed, String command, String pattern) {
        var lines = printed.get(command);
        assertTrue(lines.stream().noneMatch(line -> line.matches(pattern)), command + " shows a line " + pattern + ": " + lines);
    }

    @Test
    void the_published_mqadmin_shows_a_master_of_apache_and_its_slave() throws Exception {
        var names = new Server("names");
        names.runsBroker = false;
        try (names; var master = broker("master", names); var slave = broker("slave", names)) {
            names.start(Server.Kind.APACHE_5);
            master.start(Server.Kind.APACHE_5);
            slave.with("brokerRole", "SLAVE").with("brokerId", "1").start(Server.Kind.GANTRY);
            try (var stock = new Stock(master)) {
                stock.topic("orders", QUEUES);
                // mqadmin asks where it is, and says nothing of a group without it.
                stock.topic("%RETRY%readers", 1);
                assertEquals(0, Wire.call(master.brokerPort, 200, Map.of(), "{\"groupName\":\"readers\"}".getBytes(UTF_8)).getCode());
                send(stock, "orders", 0, 100);
                assertEquals(0, Wire.call(master.brokerPort, 15, Map.of("consumerGroup", "readers", "topic", "orders", "queueId", "0",
                    "commitOffset", "3")).getCode());
            }
            awaitFollows(master, slave);
            try (var stock = new Stock(slave)) {
                Await.until("offsets have come over", PATIENCE, () -> "3".equals(stock.committed("readers", "orders", 0)), slave::output);
            }
            var printed = MqAdmin.printed(MqAdmin.ofSlave(slave), slave);
            printed.forEach((command, lines) -> assertTrue(lines.stream().noneMatch(line -> line.contains("Exception")) || command.startsWith("updateTopic"),
                command + ": " + lines));
            shows(printed, "clusterList", "DefaultCluster broker-a 0 CLIENT V5_5_0 .*");
            shows(printed, "clusterList", "DefaultCluster broker-a 1 BROKER V5_.*");
            assertEquals(2, printed.get("clusterList -m").stream().filter(line -> line.startsWith("DefaultCluster broker-a")).count());
            shows(printed, "topicRoute -t orders", "0:\"CLIENT\",");
            shows(printed, "topicRoute -t orders", "1:\"BROKER\"");
            shows(printed, "topicStatus -t orders", "broker-a 0 0 25 .*");
            shows(printed, "consumerProgress -g readers", "orders broker-a 0 25 3 22 0 TIME");
            shows(printed, "brokerStatus -b BROKER", "brokerActive : false");
            shows(printed, "brokerStatus -b BROKER", "brokerRole : SLAVE");
            shows(printed, "brokerStatus -b BROKER", "masterConnected : true");
            hidden(printed, "brokerStatus -b BROKER", "masterFailure.*");
            shows(printed, "brokerStatus -c DefaultCluster", "BROKER brokerRole : SLAVE");
            shows(printed, "getBrokerConfig -b BROKER", "brokerId = 1");
            shows(printed, "getBrokerConfig -c DefaultCluster", "slaveReadEnable = true");
            shows(printed, "haStatus -b BROKER", "#MasterAddr .*:" + (master.brokerPort + 1));
            shows(printed, "haStatus -c DefaultCluster", "#InSyncSlaveNum 1");
            shows(printed, "updateTopic -b BROKER -t never", ".*Can't modify topic or subscription group from slave broker.*");
        }
    }
}
