package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.function.Executable;

/**
 * Stock clients that run while the broker below them is replaced, and a ledger of what they were promised: messages with keys, whose
 * order is kept in their queue, delayed and timed messages, and a transaction that stays open.
 */
final class Traffic implements AutoCloseable {
    static final int QUEUES = 4;
    private static final int KEYS = 8;
    /** Delay levels above this one, and timers above so many seconds, would only make a test longer. */
    private static final int DELAYS = 10;
    private static final Duration PATIENCE = Duration.ofSeconds(90);

    final String topic;
    final String delayed;
    final String transactions;
    final String orderly = Stock.name("orderly");
    final String concurrent = Stock.name("concurrent");
    /** A group whose consumer comes and goes. */
    final String absent = Stock.name("absent");

    private final Stock stock;
    private final boolean hasTimers;
    private volatile boolean stops;
    private final List<Thread> threads = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    /** How many messages of each key are acknowledged: 0, 1, 2 and so on. */
    private final int[] acknowledged = new int[KEYS];
    private final AtomicInteger sent = new AtomicInteger();
    /** The longest time from one acknowledgement to the next. */
    private volatile Duration pause = Duration.ZERO;
    /** When each is due, in ms since 1970; those that are acknowledged. */
    private final Map<String, Long> dues = new ConcurrentHashMap<>();
    /** What was sent again because it was not acknowledged; a broker may have stored it each time. */
    private final Set<String> repeated = ConcurrentHashMap.newKeySet();
    private final Set<String> consumed = ConcurrentHashMap.newKeySet();
    /** The next number of each key that the orderly group has not got yet, and what it got out of order. */
    private final int[] nextInOrder = new int[KEYS];
    private final ConcurrentLinkedQueue<String> outOfOrder = new ConcurrentLinkedQueue<>();
    /** What a group got again though it had committed it. */
    private final ConcurrentLinkedQueue<String> again = new ConcurrentLinkedQueue<>();
    private final Map<String, Long> marks = new ConcurrentHashMap<>();
    /** Messages that were delivered, and where their queue ended when the brokers changed: behind it they must not come again. */
    private final Map<String, Long> once = new HashMap<>();
    /** Whether the producer of transactions knows how they end, and which messages it commits. */
    private volatile boolean decides;
    private final List<String> commits = new ArrayList<>();
    private TransactionMQProducer transacting;

    /** Starts all of it at the broker of {@code server}. */
    Traffic(Server server, boolean hasTimers) throws Exception {
        this.hasTimers = hasTimers;
        stock = new Stock(server);
        topic = stock.topic(QUEUES);
        delayed = stock.topic(1);
        transactions = stock.topic(1);
        startConsumers();
        startTransactions();
        start("orders", this::sendInOrder);
        start("delays", this::sendDelayed);
    }

    private void start(String name, Executable work) {
        var thread = new Thread(() -> {
            try {
                work.execute();
            } catch (Throwable e) {
                failure.compareAndSet(null, e);
            }
        }, name);
        thread.start();
        threads.add(thread);
    }

    /** How soon the clients hear of another broker. */
    private static void hear(ClientConfig client) {
        client.setPollNameServerInterval(1_000);
    }

    private DefaultMQProducer producer() throws Exception {
        var producer = stock.unstartedProducer();
        hear(producer);
        producer.setSendMsgTimeout(3_000);
        producer.start();
        return producer;
    }

    /** Sends until it is acknowledged or all ends; an application that keeps an order does so. */
    private boolean insist(DefaultMQProducer producer, Message message, int queue) throws InterruptedException {
        while (!stops) {
            try {
                var result = producer.send(message, (queues, ignored, id) -> queues.stream()
                    .filter(one -> id.equals(one.getQueueId())).findFirst().orElseThrow(), queue);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    return true;
                }
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception notYet) {
                LockSupport.parkNanos(20_000_000);
            }
            repeated.add(new String(message.getBody(), UTF_8));
        }
        return false;
    }

    private void sendInOrder() throws Exception {
        var producer = producer();
        long last = System.nanoTime();
        while (!stops) {
            for (int key = 0; key < KEYS; key++) {
                var message = new Message(topic, "tag", "key" + key, (key + " " + acknowledged[key] + " " + "x".repeat(500)).getBytes(UTF_8));
                if (insist(producer, message, key % QUEUES)) {
                    acknowledged[key]++;
                    sent.incrementAndGet();
                    long now = System.nanoTime();
                    if (now - last > pause.toNanos()) {
                        pause = Duration.ofNanos(now - last);
                    }
                    last = now;
                }
            }
            LockSupport.parkNanos(5_000_000);
        }
    }

    private void sendDelayed() throws Exception {
        var producer = producer();
        var seconds = List.of(Server.DELAY_LEVELS.replace("s", "").split(" ")).subList(0, DELAYS);
        for (int i = 0; !stops; i++) {
            boolean isTimer = hasTimers && i % 2 == 1;
            int level = i / 2 % DELAYS + 1;
            int wait = isTimer ? level : Integer.parseInt(seconds.get(level - 1));
            var message = new Message(delayed, ((isTimer ? "timer " : "level ") + i).getBytes(UTF_8));
            if (isTimer) {
                MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", String.valueOf(wait));
            } else {
                message.setDelayTimeLevel(level);
            }
            long due = System.currentTimeMillis() + wait * 1000L;
            if (insist(producer, message, 0)) {
                dues.put(new String(message.getBody(), UTF_8), due);
            }
            LockSupport.parkNanos(250_000_000);
        }
    }

    private void startConsumers() throws Exception {
        var one = stock.push(orderly);
        hear(one);
        one.setPersistConsumerOffsetInterval(1_000);
        one.subscribe(topic, "*");
        one.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(this::takeInOrder);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        one.start();
        var other = stock.push(concurrent);
        hear(other);
        other.setPersistConsumerOffsetInterval(1_000);
        other.subscribe(topic, "*");
        other.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (var message : messages) {
                consumed.add(name(message));
                checkMark(concurrent, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        other.start();
    }

    /** The key and its number. */
    private static String name(Message message) {
        String[] words = new String(message.getBody(), UTF_8).split(" ");
        return words[0] + " " + words[1];
    }

    private void takeInOrder(MessageExt message) {
        String[] words = name(message).split(" ");
        int key = Integer.parseInt(words[0]);
        int number = Integer.parseInt(words[1]);
        // One thread at a time for a queue, and a key has one queue.
        if (number > nextInOrder[key]) {
            outOfOrder.add("key " + key + ": " + number + " before " + nextInOrder[key]);
        } else if (number == nextInOrder[key]) {
            nextInOrder[key]++;
        }
        checkMark(orderly, message);
    }

    private void checkMark(String group, MessageExt message) {
        Long mark = marks.get(group + " " + message.getQueueId());
        if (mark != null && message.getQueueOffset() < mark) {
            again.add(group + " got " + message.getQueueOffset() + " of queue " + message.getQueueId() + " again, and had committed " + mark);
        }
    }

    private void startTransactions() throws Exception {
        transacting = new TransactionMQProducer(Stock.name("transactions"));
        transacting.setNamesrvAddr("127.0.0.1:" + stock.server.registersAt);
        transacting.setInstanceName(Stock.name("instance"));
        hear(transacting);
        // A broker asks whom it knows by a heartbeat.
        transacting.setHeartbeatBrokerInterval(1_000);
        transacting.setSendMsgTimeout(20_000);
        transacting.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object end) {
                return (LocalTransactionState) end;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (!decides) {
                    return LocalTransactionState.UNKNOW;
                }
                return new String(message.getBody(), UTF_8).startsWith("yes") ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        stock.atEnd(transacting::shutdown);
        transacting.start();
    }

    /** Leaves two transactions open. */
    void openTransactions() throws Exception {
        decides = false;
        String name = String.valueOf(commits.size());
        commits.add("yes " + name);
        for (String how : List.of("yes ", "no ")) {
            transacting.sendMessageInTransaction(new Message(transactions, (how + name).getBytes(UTF_8)), LocalTransactionState.UNKNOW);
        }
    }

    /** From here on the producer knows the ends of all. */
    void endTransactions(Stock at) throws Exception {
        decides = true;
        Await.until("the open transactions are committed", PATIENCE, () -> at.maxOffset(transactions, 0) >= commits.size(),
            at.server::output);
    }

    /** The group whose consumer comes and goes gets some. {@code goesOn}: from where it had committed when the brokers changed. */
    void visit(Stock at, boolean goesOn) throws Exception {
        var first = new ConcurrentHashMap<Integer, Long>();
        var consumer = at.push(absent);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> first.merge(message.getQueueId(), message.getQueueOffset(), Math::min));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Await.until("it gets some of each queue", PATIENCE, () -> first.size() == QUEUES, at.server::output);
        Await.until("it commits them", PATIENCE, () -> {
            var committed = committed(at.server, absent);
            return first.entrySet().stream().allMatch(queue -> committed.get(queue.getKey()) > queue.getValue());
        }, at.server::output);
        consumer.shutdown();
        for (int queue = 0; queue < QUEUES && goesOn; queue++) {
            assertEquals(marks.get(absent + " " + queue), first.get(queue), "where the group goes on in queue " + queue);
        }
    }

    /** What a group has committed as this broker says, by queue; -1 where it knows nothing. */
    List<Long> committed(Server server, String group) throws Exception {
        var offsets = new ArrayList<Long>();
        for (int queue = 0; queue < QUEUES; queue++) {
            var answer = Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic, "queueId", String.valueOf(queue)));
            offsets.add(answer.getCode() == 0 ? Long.parseLong(answer.getExtFields().get("offset")) : -1);
        }
        return offsets;
    }

    /** From here on no group may get what it had committed, and the next broker, {@code at}, delivers nothing of {@code delivered}. */
    void mark(Map<String, List<Long>> committed, Set<String> delivered, Stock at) throws Exception {
        long end = at.maxOffset(delayed, 0);
        delivered.forEach(body -> once.put(body, end));
        committed.forEach((group, offsets) -> {
            for (int queue = 0; queue < QUEUES; queue++) {
                marks.put(group + " " + queue, offsets.get(queue));
            }
        });
    }

    /** How long the producer that keeps an order waited for an acknowledgement at most. */
    Duration pause() {
        return pause;
    }

    int sent() {
        return sent.get();
    }

    /** Waits until messages are acknowledged and consumed that were not sent yet. */
    void goesOn(Server server) {
        int before = sent();
        Await.until("messages are acknowledged", PATIENCE, () -> sent() > before + 100, server::output);
        int gets = consumed.size();
        Await.until("messages are consumed", PATIENCE, () -> consumed.size() > gets + 100, server::output);
    }

    /** Which delayed and timed messages this broker has delivered. */
    Set<String> delivered(Stock at) throws Exception {
        var bodies = new HashSet<String>();
        at.read(delayed, 0).forEach(message -> bodies.add(new String(message.getBody(), UTF_8)));
        return bodies;
    }

    /** Ends the producers and holds all that they were promised against the broker and what the consumers got. */
    void check(Stock at) throws Exception {
        stops = true;
        for (var thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
        for (int queue = 0; queue < QUEUES; queue++) {
            var next = new HashMap<String, Integer>();
            for (var message : at.read(topic, queue)) {
                String[] words = name(message).split(" ");
                int number = Integer.parseInt(words[1]);
                int expected = next.getOrDefault(words[0], 0);
                // One that was not acknowledged may be there, and once more.
                assertTrue(number <= expected, "key " + words[0] + " lacks " + expected + " at " + message.getQueueOffset());
                next.put(words[0], Math.max(expected, number + 1));
            }
            for (int key = queue; key < KEYS; key += QUEUES) {
                int stored = next.getOrDefault(String.valueOf(key), 0);
                assertTrue(stored >= acknowledged[key], "key " + key + ": " + acknowledged[key] + " acknowledged, " + stored + " there");
            }
        }
        var all = new TreeSet<String>();
        for (int key = 0; key < KEYS; key++) {
            for (int number = 0; number < acknowledged[key]; number++) {
                all.add(key + " " + number);
            }
        }
        Await.until("all are consumed", PATIENCE, () -> consumed.containsAll(all), () -> consumed.size() + " of " + all.size());
        for (int key = 0; key < KEYS; key++) {
            int each = key;
            Await.until("all of key " + key + " are consumed in order", PATIENCE, () -> nextInOrder[each] >= acknowledged[each],
                () -> nextInOrder[each] + " of " + acknowledged[each] + ", out of order: " + outOfOrder);
        }
        assertEquals(List.of(), List.copyOf(outOfOrder));
        assertEquals(List.of(), List.copyOf(again));
        at.awaitCommitted(orderly, topic, QUEUES);
        at.awaitCommitted(concurrent, topic, QUEUES);

        var ended = new ArrayList<String>();
        at.read(transactions, 0).forEach(message -> ended.add(new String(message.getBody(), UTF_8)));
        assertEquals(commits, ended);

        Await.until("delayed and timed messages are delivered", PATIENCE, () -> delivered(at).containsAll(dues.keySet()),
            () -> missing(at));
        for (var message : at.read(delayed, 0)) {
            String body = new String(message.getBody(), UTF_8);
            assertTrue(message.getStoreTimestamp() >= dues.getOrDefault(body, 0L), message + " is early");
            Long end = once.get(body);
            if (end != null && message.getQueueOffset() >= end && !repeated.contains(body)) {
                again.add(body + " at " + message.getQueueOffset() + ", which had been delivered before " + end);
            }
        }
        assertEquals(List.of(), List.copyOf(again));
    }

    private String missing(Stock at) {
        try {
            var missing = new TreeSet<>(dues.keySet());
            missing.removeAll(delivered(at));
            return missing + at.server.output();
        } catch (Exception e) {
            return e.toString();
        }
    }

    @Override
    public void close() {
        stops = true;
        stock.close();
    }
}
