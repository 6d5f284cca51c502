package gantry.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/** One mode on one broker with the stock client: a number of messages, sent as fast as calls return, and what became of them. */
final class ModeLoad {
    /**
     * Messages, not requests: asked for by calls that were made; of which the client reported no failure (oneway: the call returned); whose request the
     * kernel took; in the topic at the end, or received by consumers. From the first call to the last message stored. Failures by their texts.
     */
    record Outcome(Mode mode, String broker, long asked, long succeeded, long reached, long kept, double seconds, double cpuSeconds, double residentMib,
        Map<String, Long> failures) { }

    /** Calls that the client may have in hand: several times its own 65,535 permits, and still some hundreds of MiB. */
    private static final long AHEAD_MAX = 300_000;
    /** The stock client gives up a send after three seconds; whoever gets nothing done for so long will not any more. */
    private static final long STUCK_NANOS = 10_000_000_000L;
    private static final int SYNC_EVERY = 50;
    private static final int PULL_TUNED = 1024;
    private final Peer peer;
    private final Mode mode;
    private final Topic topic;
    private final LongAdder asked = new LongAdder();
    private final LongAdder succeeded = new LongAdder();
    private final Failures failures = new Failures();
    private final AtomicBoolean stuck = new AtomicBoolean();
    /** What had reached the socket when a caller looked last, and when that had changed. Callers overwrite each other, which costs a little precision. */
    private volatile long seenReached;
    private volatile long seenAt;

    ModeLoad(Peer peer, Mode mode, String topic) throws Exception {
        this.peer = peer;
        this.mode = mode;
        this.topic = new Topic(peer, topic);
    }

    Outcome run() throws Exception {
        return mode.consumes() ? consume() : produce();
    }

    private Outcome produce() throws Exception {
        DefaultMQProducer counting = topic.producer();
        DefaultMQProducer producer = topic.producer();
        if (mode.kind() == Mode.Kind.CALLBACK_TAMED) {
            producer.setEnableBackpressureForAsyncMode(true);
        }
        Reached reached = new Reached(producer);
        if (mode.kind() == Mode.Kind.ONEWAY_CONNECTED) {
            producer.send(topic.message(Mode.BODY_BYTES, 0));
        }
        long storedBefore = topic.stored(counting);
        long reachedBefore = reached.requests();
        double cpuBefore = peer.cpuSeconds();
        long from = System.nanoTime();
        callAll(producer, reached);
        awaitAnswers();
        long end = System.nanoTime();
        double cpu = peer.cpuSeconds() - cpuBefore;
        long stored = topic.stored(counting) - storedBefore;
        // One-way messages, and those whose answer came too late, may still be on their way.
        for (long grown = System.nanoTime(); stored < asked.sum() && System.nanoTime() - grown < STUCK_NANOS / 2; Thread.sleep(50)) {
            long now = topic.stored(counting) - storedBefore;
            if (now > stored) {
                stored = now;
                grown = end = System.nanoTime();
                cpu = peer.cpuSeconds() - cpuBefore;
            }
        }
        Outcome outcome = new Outcome(mode, peer.name, asked.sum(), succeeded.sum(),
            (reached.requests() - reachedBefore) * mode.messagesPerRequest(), stored, (end - from) / 1e9, cpu, peer.residentMib(), failures.counted());
        reached.release();
        producer.shutdown();
        topic.settled(counting);
        counting.shutdown();
        return outcome;
    }

    private void callAll(DefaultMQProducer producer, Reached reached) throws InterruptedException {
        seenAt = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < mode.threads(); t++) {
            long each = mode.requestsOf(t);
            Thread thread = new Thread(() -> {
                for (long call = 1; call <= each && !stuck.get(); call++) {
                    try {
                        awaitRoom(reached);
                        asked.add(mode.messagesPerRequest());
                        call(producer, call, each);
                    } catch (InterruptedException stop) {
                        return;
                    } catch (Exception refused) {
                        failures.add(refused);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void call(DefaultMQProducer producer, long call, long each) throws Exception {
        switch (mode.kind()) {
            case BATCH -> acknowledged(producer.send(topic.batch(Mode.BATCH_MESSAGES, Mode.BODY_BYTES, call)));
            case SYNC -> acknowledged(producer.send(topic.message(Mode.BODY_BYTES, call)));
            case CALLBACK, CALLBACK_TAMED -> producer.send(topic.message(Mode.BODY_BYTES, call), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    acknowledged(result);
                }

                @Override
                public void onException(Throwable cause) {
                    failures.add(cause);
                }
            });
            case ONEWAY, ONEWAY_CONNECTED -> {
                producer.sendOneway(topic.message(Mode.BODY_BYTES, call));
                succeeded.increment();
            }
            case ONEWAY_TAMED -> {
                if (call % SYNC_EVERY == 0 || call == each) {
                    acknowledged(producer.send(topic.message(Mode.BODY_BYTES, call)));
                } else {
                    producer.sendOneway(topic.message(Mode.BODY_BYTES, call));
                    succeeded.increment();
                }
            }
            case PUSH, PUSH_TUNED -> throw new IllegalStateException("consumers do not send");
        }
    }

    private void acknowledged(SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            succeeded.add(mode.messagesPerRequest());
        } else {
            failures.add(result.getSendStatus().toString());
        }
    }

    /** Waits while the client has very much in hand, and gives up when nothing of it reaches the socket. */
    private void awaitRoom(Reached reached) throws InterruptedException {
        look(reached);
        for (; inHand(reached) > AHEAD_MAX && !stuck.get(); look(reached)) {
            Thread.sleep(1);
        }
    }

    private void look(Reached reached) {
        long now = reached.requests();
        if (now != seenReached) {
            seenReached = now;
            seenAt = System.nanoTime();
        } else if (System.nanoTime() - seenAt > STUCK_NANOS) {
            stuck.set(true);
        }
    }

    private long inHand(Reached reached) {
        return asked.sum() - (reached.requests() + failures.sum()) * mode.messagesPerRequest();
    }

    /** Until each call has its answer; what has none long after the client's time-out counts as a failure of its own kind. */
    private void awaitAnswers() throws InterruptedException {
        boolean isAnswered = mode.kind() == Mode.Kind.CALLBACK || mode.kind() == Mode.Kind.CALLBACK_TAMED;
        long before = -1;
        for (long since = System.nanoTime(); isAnswered && succeeded.sum() + failures.sum() < asked.sum(); Thread.sleep(5)) {
            long answered = succeeded.sum() + failures.sum();
            if (answered != before) {
                before = answered;
                since = System.nanoTime();
            } else if (System.nanoTime() - since > STUCK_NANOS) {
                failures.unanswered(asked.sum() - answered);
                return;
            }
        }
    }

    private Outcome consume() throws Exception {
        topic.fill(mode.messages(), Mode.BODY_BYTES);
        LongAdder seen = new LongAdder();
        AtomicLong first = new AtomicLong();
        double cpu = peer.cpuSeconds();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < mode.threads(); i++) {
            DefaultMQPushConsumer consumer = topic.consumer((messages, now) -> {
                first.compareAndSet(0, now);
                seen.add(messages.size());
            });
            if (mode.kind() == Mode.Kind.PUSH_TUNED) {
                consumer.setPullBatchSize(PULL_TUNED);
                consumer.setConsumeMessageBatchMaxSize(PULL_TUNED);
            }
            consumer.start();
            consumers.add(consumer);
        }
        long last = Load.awaitDrained(seen, mode.messages());
        cpu = peer.cpuSeconds() - cpu;
        double resident = peer.residentMib();
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        return new Outcome(mode, peer.name, mode.messages(), seen.sum(), -1, seen.sum(), (last - first.get()) / 1e9, cpu, resident, failures.counted());
    }
}
