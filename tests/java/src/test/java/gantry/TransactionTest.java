package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Half messages: invisible until they are committed, never seen when rolled back, asked about while nobody knows. */
@Tag("clients")
class TransactionTest {
    private static final String HALF = "RMQ_SYS_TRANS_HALF_TOPIC";
    private static final String OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    private static final String GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC";

    /** After so long a producer is asked. On a busy machine an end can come later than that. */
    private static final int TIMEOUT_MS = 300;

    private final Server server = new Server("transactions").with("transactionTimeOut", String.valueOf(TIMEOUT_MS))
        .with("transactionCheckInterval", "300").with("transactionCheckMax", "3").start();
    private final Stock stock = new Stock(server);

    @AfterEach
    void close() {
        stock.close();
        server.close();
    }

    /** A producer whose transactions end as the message's body says, and that remembers what it is asked. */
    private final class Producer implements TransactionListener {
        final TransactionMQProducer client;
        final List<MessageExt> asked = new CopyOnWriteArrayList<>();
        final Function<MessageExt, LocalTransactionState> answer;

        Producer(String group, Function<MessageExt, LocalTransactionState> answer) throws Exception {
            this.answer = answer;
            client = new TransactionMQProducer(group);
            client.setNamesrvAddr("127.0.0.1:" + server.registersAt);
            client.setInstanceName(Stock.name("instance"));
            client.setSendMsgTimeout(20_000);
            client.setTransactionListener(this);
            client.start();
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return (LocalTransactionState) argument;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            asked.add(message);
            return answer.apply(message);
        }

        TransactionSendResult send(String topic, String body, LocalTransactionState end) throws Exception {
            return client.sendMessageInTransaction(message(topic, body), end);
        }

        /** Nobody is asked about this one, however late its end comes. */
        void commit(String topic, String body) throws Exception {
            var message = message(topic, body);
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "120");
            client.sendMessageInTransaction(message, LocalTransactionState.COMMIT_MESSAGE);
        }

        private static Message message(String topic, String body) {
            var message = new Message(topic, "tag", "key-" + body, body.getBytes(UTF_8));
            message.putUserProperty("colour", "blue");
            return message;
        }
    }

    private static LocalTransactionState unknown(MessageExt message) {
        return LocalTransactionState.UNKNOW;
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    @Test
    void a_message_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back() throws Exception {
        String topic = stock.topic(1);
        var producer = new Producer(Stock.name("group"), TransactionTest::unknown);
        try {
            long begun = System.nanoTime();
            producer.send(topic, "no", LocalTransactionState.ROLLBACK_MESSAGE);
            assertEquals(0, stock.maxOffset(topic, 0));
            var sent = producer.send(topic, "yes", LocalTransactionState.COMMIT_MESSAGE);
            Await.until("the committed message is there", () -> stock.maxOffset(topic, 0) == 1);
            Await.until("both are ended", () -> stock.maxOffset(OP, 0) == 2);
            boolean isInTime = System.nanoTime() - begun < TIMEOUT_MS * 1_000_000L;
            assertEquals(1, stock.maxOffset(topic, 0));
            var message = stock.read(topic, 0).get(0);
            assertEquals("yes", new String(message.getBody(), UTF_8));
            assertEquals(List.of("tag", "key-yes", "blue"),
                List.of(message.getTags(), message.getKeys(), message.getUserProperty("colour")));
            assertEquals(sent.getTransactionId(), message.getProperty("UNIQ_KEY"));
            // 8: committed. Where its half message lies stands in it too.
            assertEquals(8, message.getSysFlag() & 12);
            assertTrue(message.getPreparedTransactionOffset() < message.getCommitLogOffset());
            // Halves lie in Apache's form, for an Apache broker that takes over.
            var halves = stock.read(HALF, 0);
            assertEquals(List.of("no", "yes"), bodies(halves));
            for (int i = 0; i < 2; i++) {
                assertEquals(List.of(topic, "0", "true"), List.of(halves.get(i).getProperty("REAL_TOPIC"),
                    halves.get(i).getProperty("REAL_QID"), halves.get(i).getProperty("TRAN_MSG")));
                assertEquals(halves.get(i).getProperty("UNIQ_KEY"), halves.get(i).getProperty("__transactionId__"));
            }
            var ends = stock.read(OP, 0);
            assertEquals(List.of("0", "1"), bodies(ends));
            assertEquals(List.of("d", "d"), ends.stream().map(Message::getTags).toList());
            assertTrue(!isInTime || producer.asked.isEmpty(), "nobody is asked about what has ended");
        } finally {
            producer.client.shutdown();
        }
    }

    @Test
    void a_producer_that_did_not_know_is_asked_until_it_does() throws Exception {
        String topic = stock.topic(1);
        var answers = new ArrayList<>(List.of(LocalTransactionState.UNKNOW, LocalTransactionState.COMMIT_MESSAGE));
        var producer = new Producer(Stock.name("group"), message -> {
            synchronized (answers) {
                return answers.remove(0);
            }
        });
        try {
            var sent = producer.send(topic, "maybe", LocalTransactionState.UNKNOW);
            Await.until("the message is committed", () -> stock.maxOffset(topic, 0) == 1);
            assertEquals(2, producer.asked.size());
            for (var asked : producer.asked) {
                assertEquals(List.of(topic, "maybe", "tag", "blue", sent.getTransactionId()),
                    List.of(asked.getTopic(), new String(asked.getBody(), UTF_8), asked.getTags(),
                        asked.getUserProperty("colour"), asked.getTransactionId()));
            }
            assertEquals(List.of("maybe"), bodies(stock.read(topic, 0)));
        } finally {
            producer.client.shutdown();
        }
    }

    @Test
    void another_producer_of_the_group_answers_for_one_that_is_gone() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("group");
        var first = new Producer(group, TransactionTest::unknown);
        first.send(topic, "orphan", LocalTransactionState.UNKNOW);
        first.client.shutdown();
        var second = new Producer(group, message -> LocalTransactionState.COMMIT_MESSAGE);
        try {
            // Its first message makes it known to the broker; until then nobody is there to be asked, and nothing is given up.
            second.commit(topic, "own");
            Await.until("both are committed", () -> stock.maxOffset(topic, 0) == 2);
            assertEquals(List.of("orphan", "own"), bodies(stock.read(topic, 0)).stream().sorted().toList());
            assertEquals(List.of("orphan"), bodies(second.asked));
        } finally {
            second.client.shutdown();
        }
    }

    @Test
    void a_message_about_which_nobody_ever_knows_is_given_up_and_can_be_brought_back() throws Exception {
        String topic = stock.topic(1);
        var state = new java.util.concurrent.atomic.AtomicReference<>(LocalTransactionState.UNKNOW);
        var producer = new Producer(Stock.name("group"), message -> state.get());
        try {
            producer.send(topic, "lost", LocalTransactionState.UNKNOW);
            Await.until("the message is given up", () -> stock.maxOffset(GIVEN_UP, 0) == 1);
            assertEquals(3, producer.asked.size());
            assertEquals(0, stock.maxOffset(topic, 0));
            Await.until("the route of " + GIVEN_UP,
                () -> Wire.call(server.namesrvPort, 105, Map.of("topic", GIVEN_UP)).getCode() == 0);
            var givenUp = stock.read(GIVEN_UP, 0).get(0);
            assertEquals("lost", new String(givenUp.getBody(), UTF_8));
            state.set(LocalTransactionState.COMMIT_MESSAGE);
            var answer = Wire.call(server.brokerPort, 323, Map.of("msgId", idOf(givenUp)));
            assertEquals(0, answer.getCode(), answer.toString());
            Await.until("the message is committed", () -> stock.maxOffset(topic, 0) == 1);
            assertEquals(List.of("lost"), bodies(stock.read(topic, 0)));
        } finally {
            producer.client.shutdown();
        }
    }

    private static String idOf(MessageExt message) {
        return message instanceof org.apache.rocketmq.common.message.MessageClientExt client ? client.getOffsetMsgId()
            : message.getMsgId();
    }

    @Test
    void a_crash_loses_no_commit_repeats_none_and_forgets_no_open_message() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("group");
        var producer = new Producer(group, message -> LocalTransactionState.ROLLBACK_MESSAGE);
        var committed = new TreeSet<String>();
        for (int i = 0; i < 200; i++) {
            String body = String.format("%03d", i);
            var end = switch (i % 4) {
                case 0 -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.COMMIT_MESSAGE;
            };
            producer.send(topic, body, end);
            if (end == LocalTransactionState.COMMIT_MESSAGE) {
                committed.add(body);
            }
        }
        producer.client.shutdown();
        Await.until("all are ended", () -> stock.maxOffset(OP, 0) == 200);
        // Open, and not yet asked about: the one who would know is gone.
        var waiting = new Producer(group + "_w", TransactionTest::unknown);
        waiting.send(topic, "open", LocalTransactionState.UNKNOW);
        waiting.client.shutdown();
        server.kill();
        server.start();
        assertEquals(150, stock.maxOffset(topic, 0));
        var asked = new CopyOnWriteArrayList<String>();
        var later = new Producer(group + "_w", message -> {
            asked.add(new String(message.getBody(), UTF_8));
            return LocalTransactionState.COMMIT_MESSAGE;
        });
        try {
            later.commit(topic, "after");
            Await.until("the open message is committed", () -> stock.maxOffset(topic, 0) == 152);
            committed.add("open");
            committed.add("after");
            var seen = bodies(stock.read(topic, 0));
            assertEquals(new ArrayList<>(committed), seen.stream().sorted().toList());
            assertEquals(List.of("open"), asked, "only the open one is asked about");
        } finally {
            later.client.shutdown();
        }
    }

    @Test
    void what_cannot_be_a_half_message_or_an_end_is_refused() throws Exception {
        String topic = stock.topic(1);
        var producer = new Producer(Stock.name("group"), TransactionTest::unknown);
        try {
            producer.send(topic, "open", LocalTransactionState.UNKNOW);
            long at = stock.read(HALF, 0).get(0).getCommitLogOffset();
            var group = producer.client.getProducerGroup();
            assertRefused("The producer group wrong", end("someone_else", 0, at, "8"));
            assertRefused("The transaction state table offset wrong", end(group, 7, at, "8"));
            assertRefused("Find prepared transaction message failed", end(group, 0, at + 1, "8"));
            assertRefused("Find prepared transaction message failed", end(group, 0, -1, "8"));
            assertRefused("commitOrRollback: 3", end(group, 0, at, "3"));
            assertEquals(0, stock.maxOffset(topic, 0));
            assertEquals(0, end(group, 0, at, "8").getCode());
            assertRefused("ended before", end(group, 0, at, "8"));
            assertRefused("ended before", end(group, 0, at, "12"));
            assertEquals(List.of("open"), bodies(stock.read(topic, 0)));
        } finally {
            producer.client.shutdown();
        }
    }

    private org.apache.rocketmq.remoting.protocol.RemotingCommand end(String group, long half, long at, String how) throws Exception {
        return Wire.call(server.brokerPort, 37, Map.of("producerGroup", group, "tranStateTableOffset", String.valueOf(half),
            "commitLogOffset", String.valueOf(at), "commitOrRollback", how, "fromTransactionCheck", "false", "msgId", "x"));
    }

    private static void assertRefused(String remark, org.apache.rocketmq.remoting.protocol.RemotingCommand answer) {
        assertEquals(1, answer.getCode(), answer.toString());
        assertTrue(answer.getRemark().contains(remark), answer.getRemark());
    }
}
