package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.apache.rocketmq.client.producer.LocalTransactionState.COMMIT_MESSAGE;
import static org.apache.rocketmq.client.producer.LocalTransactionState.ROLLBACK_MESSAGE;
import static org.apache.rocketmq.client.producer.LocalTransactionState.UNKNOW;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Half messages that are open when a broker stops, real Apache ones and Gantry in turn: the next one asks about them and ends each once. */
@Tag("interop")
class TransactionTakeOverTest {
    private static final String HALF = "RMQ_SYS_TRANS_HALF_TOPIC";
    private static final String OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC";

    /** A producer that leaves open what it does not know the end of, and notes what it is asked. */
    private static final class Producer implements TransactionListener, AutoCloseable {
        final Set<String> asked = ConcurrentHashMap.newKeySet();
        private final Map<String, LocalTransactionState> answers;
        private final TransactionMQProducer client;

        Producer(Server server, String group, Map<String, LocalTransactionState> answers) throws Exception {
            this.answers = answers;
            client = new TransactionMQProducer(group);
            client.setNamesrvAddr("127.0.0.1:" + server.registersAt);
            client.setInstanceName(Stock.name("instance"));
            client.setSendMsgTimeout(20_000);
            // Apache asks whom it knows by a heartbeat.
            client.setHeartbeatBrokerInterval(500);
            client.setTransactionListener(this);
            client.start();
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object end) {
            return (LocalTransactionState) end;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), UTF_8);
            asked.add(body);
            return answers.getOrDefault(body, UNKNOW);
        }

        void send(String topic, String body, LocalTransactionState end) throws Exception {
            client.sendMessageInTransaction(new Message(topic, "tag", "key-" + body, body.getBytes(UTF_8)), end);
        }

        @Override
        public void close() {
            client.shutdown();
        }
    }

    @Test
    void half_messages_go_from_apache_5_to_gantry_and_back() throws Exception {
        inTurn(Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5);
    }

    @Test
    void half_messages_go_from_apache_4_to_gantry_and_back() throws Exception {
        inTurn(Server.Kind.APACHE_4, Server.DEFAULT, Server.Kind.APACHE_4);
    }

    private static void inTurn(Server.Kind... kinds) throws Exception {
        // Apache asks again until it has written that a message is ended: that has to come sooner than its next look.
        try (var server = new Server("half").with("transactionTimeOut", "1000").with("transactionCheckInterval", "2000")
            .with("transactionCheckMax", "10000").with("transactionOpBatchInterval", "100")) {
            String topic = null;
            String group = Stock.name("transactions");
            String readers = Stock.name("readers");
            var committed = new ArrayList<String>();
            var ended = new HashSet<String>();
            for (int i = 0; i < kinds.length; i++) {
                server.start(kinds[i]);
                var answers = new HashMap<String, LocalTransactionState>();
                if (i > 0) {
                    answers.put("yes" + (i - 1), COMMIT_MESSAGE);
                    answers.put("no" + (i - 1), ROLLBACK_MESSAGE);
                }
                if (i == kinds.length - 1) {
                    answers.put("long", COMMIT_MESSAGE);
                }
                try (var stock = new Stock(server); var producer = new Producer(server, group, answers)) {
                    topic = topic == null ? stock.topic(1) : topic;
                    assertEquals(committed.size(), stock.maxOffset(topic, 0), "nothing comes by itself");
                    producer.send(topic, "committed" + i, COMMIT_MESSAGE);
                    producer.send(topic, "rolled back" + i, ROLLBACK_MESSAGE);
                    var open = new TreeSet<>(List.of("long", "yes" + i, "no" + i));
                    if (i > 0) {
                        open.addAll(List.of("yes" + (i - 1), "no" + (i - 1)));
                    } else {
                        producer.send(topic, "long", UNKNOW);
                    }
                    producer.send(topic, "yes" + i, UNKNOW);
                    producer.send(topic, "no" + i, UNKNOW);

                    var comes = new TreeSet<>(Set.of("committed" + i));
                    ended.addAll(List.of("committed" + i, "rolled back" + i));
                    answers.forEach((body, end) -> {
                        ended.add(body);
                        if (end == COMMIT_MESSAGE) {
                            comes.add(body);
                        }
                    });
                    String asks = topic;
                    var kind = kinds[i];
                    Await.until(kinds[i] + " has asked about " + open, () -> producer.asked.containsAll(open));
                    Await.until(kinds[i] + " has ended " + ended, java.time.Duration.ofSeconds(30),
                        () -> kind == Server.Kind.APACHE_4 ? stock.maxOffset(OP, 0) >= ended.size() : ended(stock).equals(ended),
                        () -> seen(stock, asks, producer));
                    // What was ended before is not asked about. Apache may look at what has just been ended before it has written that.
                    var asked = new TreeSet<>(producer.asked);
                    if (kind != Server.DEFAULT) {
                        asked.removeAll(List.of("committed" + i, "rolled back" + i));
                    }
                    assertEquals(open, asked);
                    committed.addAll(comes);
                    assertEquals(new TreeSet<>(committed), new TreeSet<>(bodies(stock.read(topic, 0))));
                    assertEquals(committed.size(), stock.maxOffset(topic, 0), "each came once");
                    assertEquals(List.copyOf(comes), consume(stock, readers, topic, comes.size()));
                }
                server.stop();
                server.look("verify");
            }
        }
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    private static String seen(Stock stock, String topic, Producer producer) {
        try {
            return stock.maxOffset(OP, 0) + " ends, there " + bodies(stock.read(topic, 0)) + ", asked " + producer.asked;
        } catch (Exception e) {
            return e.toString();
        }
    }

    /**
     * Bodies of half messages of which a copy is named as ended. Apache writes a copy each time it asks, and none of those before is
     * named. One of 4.x lets nobody read this, and writes a record for each.
     */
    private static Set<String> ended(Stock stock) throws Exception {
        var named = new HashSet<Long>();
        for (String body : bodies(stock.read(OP, 0))) {
            for (String offset : body.split(",")) {
                named.add(Long.parseLong(offset));
            }
        }
        var ended = new HashSet<String>();
        for (var half : stock.read(HALF, 0)) {
            if (named.contains(half.getQueueOffset())) {
                ended.add(new String(half.getBody(), UTF_8));
            }
        }
        return ended;
    }

    /** What the group gets that it has not got from the brokers before, sorted. */
    private static List<String> consume(Stock stock, String group, String topic, int count) throws Exception {
        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(count);
        stock.awaitCommitted(group, topic, 1);
        consumer.shutdown();
        return inbox.bodies().stream().sorted().toList();
    }
}
