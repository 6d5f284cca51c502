package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A SYNC_MASTER of ours and one slave, asked by stock producers. */
@Tag("interop")
class SyncMasterTest {
    private static final int QUEUES = 4;
    private static final int SENDERS = 4;
    private static final Duration PATIENCE = Duration.ofSeconds(90);
    /** Sends to a slave that stands still: a busy machine may take from one the half second between the limits of broker and client. */
    private static final int PAUSES = 5;

    private static Server broker(String name, Server names) {
        var broker = new Server(name);
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    /** As an application makes it: sends end after three seconds. */
    private static DefaultMQProducer unconfigured(Stock stock) throws Exception {
        return producer(stock, new DefaultMQProducer(Stock.name("defaults")).getSendMsgTimeout());
    }

    private static DefaultMQProducer producer(Stock stock, int timeoutMillis) throws Exception {
        var producer = stock.unstartedProducer();
        producer.setSendMsgTimeout(timeoutMillis);
        producer.start();
        return producer;
    }

    private static SendStatus status(DefaultMQProducer producer, String topic) throws Exception {
        return producer.send(new Message(topic, "x".getBytes(UTF_8))).getSendStatus();
    }

    private static void awaitStatus(SendStatus wanted, DefaultMQProducer producer, String topic, Server... brokers) {
        Await.until("sends are answered with " + wanted, PATIENCE, () -> status(producer, topic) == wanted, () -> {
            var words = new StringBuilder();
            for (Server broker : brokers) {
                words.append(broker.output());
            }
            return words.toString();
        });
    }

    /** What the broker says in its answer to a send, which the stock client does not show. */
    private static String remark(Server master, String topic) throws Exception {
        return Wire.call(master.brokerPort, 10, Map.of("producerGroup", "producers", "topic", topic, "defaultTopic", "TBW102",
            "defaultTopicQueueNums", "4", "queueId", "0", "sysFlag", "0", "bornTimestamp", "1", "flag", "0"), "x".getBytes(UTF_8)).getRemark();
    }

    private static void signal(String signal, Server server) throws Exception {
        assertEquals(0, new ProcessBuilder("kill", "-" + signal, String.valueOf(server.process().pid())).start().waitFor());
    }

    /** A slave that stands still: a producer hears it, and does not give up before. The time limits of both sides are the defaults. */
    private static void lateSlave(Stock stock, String topic, DefaultMQProducer patient, Server master, Server slave) throws Exception {
        var producer = unconfigured(stock);
        var heard = new ArrayList<String>();
        String late = SendStatus.FLUSH_SLAVE_TIMEOUT.toString();
        for (int pause = 0; pause < PAUSES && !heard.contains(late); pause++) {
            // The slave is in sync, and the producer knows the route.
            awaitStatus(SendStatus.SEND_OK, patient, topic, master, slave);
            awaitStatus(SendStatus.SEND_OK, producer, topic, master, slave);
            signal("STOP", slave);
            try {
                String remark = remark(master, topic);
                assertTrue(remark.contains("stored, but not on enough slaves within 2500 ms (slaveTimeout): 1 needed, 1 connected"), remark);
                heard.add(status(producer, topic).toString());
            } catch (Exception e) {
                heard.add(e.toString());
            } finally {
                signal("CONT", slave);
            }
        }
        assertTrue(heard.contains(late), () -> heard + master.output() + slave.output());
    }

    /** Senders that go on until they are told to end, or the broker is gone. */
    private static final class Load {
        final Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
        final ConcurrentLinkedQueue<String> others = new ConcurrentLinkedQueue<>();
        private final AtomicInteger next = new AtomicInteger();
        private final AtomicBoolean stops = new AtomicBoolean();
        private final List<Thread> threads = new ArrayList<>();

        Load(DefaultMQProducer producer, String topic) {
            for (int i = 0; i < SENDERS; i++) {
                var thread = new Thread(() -> {
                    while (!stops.get()) {
                        int number = next.getAndIncrement();
                        try {
                            var sent = producer.send(new Message(topic, String.valueOf(number).getBytes(UTF_8)), Stock.queue(topic, number % QUEUES));
                            if (sent.getSendStatus() == SendStatus.SEND_OK) {
                                acknowledged.add(number);
                            } else {
                                others.add(sent.getSendStatus().toString());
                            }
                        } catch (Exception e) {
                            others.add(e.toString());
                        }
                    }
                });
                threads.add(thread);
                thread.start();
            }
        }

        void until(int count) {
            Await.until(count + " more are acknowledged", PATIENCE, new java.util.concurrent.Callable<Boolean>() {
                private final int before = acknowledged.size();

                @Override
                public Boolean call() {
                    return acknowledged.size() >= before + count;
                }
            }, others::toString);
        }

        void end() throws Exception {
            stops.set(true);
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }

    private static boolean knows(Server broker, String topic) throws Exception {
        return new String(Wire.call(broker.brokerPort, 21, Map.of()).getBody(), UTF_8).contains('"' + topic + '"');
    }

    private static void set(DefaultMQAdminExt admin, Server master, String key, String value) throws Exception {
        var properties = new Properties();
        properties.setProperty(key, value);
        admin.updateBrokerConfig(master.broker(), properties);
    }

    private static void doubleWrite(Server.Kind kind) throws Exception {
        var names = new Server("names");
        names.runsBroker = false;
        try (names; var master = broker("master", names).with("brokerRole", "SYNC_MASTER");
            var slave = broker("slave", names).with("brokerRole", "SLAVE").with("brokerId", "1")) {
            names.start(Server.DEFAULT);
            master.start(Server.Kind.GANTRY);
            Load load;
            String topic;
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                String asked = stock.topic(QUEUES);
                var producer = stock.producer();
                awaitStatus(SendStatus.SLAVE_NOT_AVAILABLE, producer, asked, master);
                String alone = remark(master, asked);
                assertTrue(alone.contains("there are not enough slaves: 1 needed, 0 connected"), alone);
                slave.start(kind);
                lateSlave(stock, asked, producer, master, slave);
                awaitStatus(SendStatus.SEND_OK, producer, asked, master, slave);
                slave.kill();
                awaitStatus(SendStatus.SLAVE_NOT_AVAILABLE, producer, asked, master);
                slave.start(kind);
                awaitStatus(SendStatus.SEND_OK, producer, asked, master, slave);

                if (kind == Server.Kind.GANTRY) {
                    Await.until("the slave knows the topic", PATIENCE, () -> knows(slave, topic), slave::output);
                }

                // The promise changes under load, and no send is refused for it, nor for a slave that a busy machine lets wait.
                var admin = stock.admin();
                set(admin, master, "slaveTimeout", "15000");
                load = new Load(producer, topic);
                load.until(50);
                for (int i = 0; i < 5; i++) {
                    for (String role : List.of("ASYNC_MASTER", "SYNC_MASTER")) {
                        set(admin, master, "brokerRole", role);
                        load.until(20);
                    }
                }
                assertEquals(List.of(), List.copyOf(load.others));
                load.until(200);
                master.kill();
                load.end();
            }
            // Nobody but the slave has them now, and it becomes the master.
            slave.stop();
            slave.with("brokerRole", "ASYNC_MASTER").with("brokerId", "0").start(kind);
            var found = new HashSet<Integer>();
            try (var stock = new Stock(slave)) {
                if (!knows(slave, topic)) {
                    // A slave of Apache 5.5.0 asks for topics a minute after its start. It has the messages, and no route leads to them.
                    stock.topic(topic, QUEUES);
                }
                for (int queue = 0; queue < QUEUES; queue++) {
                    stock.read(topic, queue).forEach(message -> found.add(Integer.parseInt(new String(message.getBody(), UTF_8))));
                }
            }
            var lost = new HashSet<>(load.acknowledged);
            lost.removeAll(found);
            assertEquals(Set.of(), lost, "acknowledged and not on the slave");
            assertTrue(load.acknowledged.size() >= 450, load.acknowledged.size() + " were acknowledged");
        }
    }

    @Test
    void what_is_acknowledged_is_on_a_slave_of_apache_5() throws Exception {
        doubleWrite(Server.Kind.APACHE_5);
    }

    @Test
    void what_is_acknowledged_is_on_a_slave_of_ours() throws Exception {
        doubleWrite(Server.Kind.GANTRY);
    }

    /** To any error a stock consumer sends the retry itself, beside the one that is stored. */
    @Test
    void what_a_consumer_gives_back_comes_again_once_without_a_slave() throws Exception {
        var names = new Server("names");
        names.runsBroker = false;
        try (names; var master = broker("master", names).with("brokerRole", "SYNC_MASTER").with("messageDelayLevel", "1s 1s 1s")) {
            names.start(Server.DEFAULT);
            master.start(Server.Kind.GANTRY);
            try (var stock = new Stock(master)) {
                String topic = stock.topic(QUEUES);
                String group = Stock.name("group");
                var producer = unconfigured(stock);
                awaitStatus(SendStatus.SLAVE_NOT_AVAILABLE, producer, stock.topic(1), master);
                Set<String> again = ConcurrentHashMap.newKeySet();
                var consumer = stock.push(group);
                consumer.subscribe(topic, "*");
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    var message = messages.get(0);
                    if (message.getReconsumeTimes() == 0) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    again.add(new String(message.getBody(), UTF_8));
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                consumer.start();
                var sent = new HashSet<String>();
                for (int i = 0; i < 8; i++) {
                    sent.add("m" + i);
                    producer.send(new Message(topic, ("m" + i).getBytes(UTF_8)));
                }
                Await.until("all come again", PATIENCE, () -> again.equals(sent), () -> again + master.output());
                // What was stored beside them stands before the retry of this one.
                sent.add("last");
                producer.send(new Message(topic, "last".getBytes(UTF_8)));
                Await.until("the last one comes again", PATIENCE, () -> again.equals(sent), () -> again + master.output());
                assertEquals(sent.size(), stock.maxOffset("%RETRY%" + group, 0), master::output);
            }
        }
    }
}
