package gantry.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.HdrHistogram.ConcurrentHistogram;
import org.HdrHistogram.Histogram;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** One case of load on one broker, made with the stock client: warm up, then measure for a while. */
final class Load {
    /** What a window measured. Latencies in milliseconds; -1 where the case has none. */
    record Figures(double perSecond, double p50, double p99, double p999, double max, double cpuSecondsPerMillion, double residentMib,
                   long failed, long acknowledged, long stored, Map<String, Long> failures) { }

    private final Peer peer;
    private final int warmSeconds;
    private final int seconds;
    private final Topic topic;
    private final ConcurrentHistogram latencies = new ConcurrentHistogram(60_000_000_000L, 3);
    private final LongAdder done = new LongAdder();
    private final LongAdder acknowledged = new LongAdder();
    private final Failures failures = new Failures();
    private volatile boolean measuring;
    private volatile boolean stopped;

    Load(Peer peer, String topic, int warmSeconds, int seconds) throws Exception {
        this.peer = peer;
        this.topic = new Topic(peer, topic);
        this.warmSeconds = warmSeconds;
        this.seconds = seconds;
    }

    Figures sync(int threads, int size) throws Exception {
        DefaultMQProducer producer = topic.producer();
        return produce(threads, producer, () -> {
            long from = System.nanoTime();
            producer.send(topic.message(size, from));
            finished(from, 1);
        });
    }

    Figures async(int threads, int size, int inFlight) throws Exception {
        DefaultMQProducer producer = topic.producer();
        Semaphore room = new Semaphore(inFlight);
        return produce(threads, producer, () -> {
            room.acquire();
            long from = System.nanoTime();
            producer.send(topic.message(size, from), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    room.release();
                    finished(from, 1);
                }

                @Override
                public void onException(Throwable cause) {
                    room.release();
                    failures.add(cause);
                }
            });
        });
    }

    Figures batch(int threads, int messages, int size) throws Exception {
        DefaultMQProducer producer = topic.producer();
        return produce(threads, producer, () -> {
            long from = System.nanoTime();
            producer.send(topic.batch(messages, size, from));
            finished(from, messages);
        });
    }

    /** One-way sends at a fixed rate: only the count of what is stored is honest here. */
    Figures oneway(int threads, int size, int perSecond) throws Exception {
        DefaultMQProducer producer = topic.producer();
        long start = System.nanoTime();
        AtomicLong ticket = new AtomicLong();
        return produce(threads, producer, () -> {
            long due = start + ticket.getAndIncrement() * 1_000_000_000L / perSecond;
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                java.util.concurrent.locks.LockSupport.parkNanos(wait);
            }
            producer.sendOneway(topic.message(size, due));
            finished(due, 1);
        });
    }

    /** Produces asynchronously while one push consumer follows; the latency is from send to listener. */
    Figures both(int threads, int size, int inFlight) throws Exception {
        DefaultMQPushConsumer consumer = topic.consumer((messages, now) -> {
            if (measuring) {
                for (MessageExt message : messages) {
                    latencies.recordValue(Math.max(0, now - ByteBuffer.wrap(message.getBody()).getLong()));
                }
                done.add(messages.size());
            }
        });
        consumer.start();
        DefaultMQProducer producer = topic.producer();
        Semaphore room = new Semaphore(inFlight);
        try {
            return produce(threads, producer, () -> {
                room.acquire();
                producer.send(topic.message(size, System.nanoTime()), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        room.release();
                        acknowledged.increment();
                    }

                    @Override
                    public void onException(Throwable cause) {
                        room.release();
                        failures.add(cause);
                    }
                });
            });
        } finally {
            consumer.shutdown();
        }
    }

    /** Drains a backlog with one push consumer at its default settings. */
    Figures push(long backlog, int size) throws Exception {
        topic.fill(backlog, size);
        LongAdder seen = new LongAdder();
        double cpu = peer.cpuSeconds();
        long[] first = {0};
        DefaultMQPushConsumer consumer = topic.consumer((messages, now) -> {
            if (first[0] == 0) {
                first[0] = now;
            }
            seen.add(messages.size());
        });
        consumer.start();
        long last = awaitDrained(seen, backlog);
        Figures figures = drained(backlog, (last - first[0]) / 1e9, peer.cpuSeconds() - cpu, seen.sum());
        consumer.shutdown();
        return figures;
    }

    /** Drains a backlog with four pulling threads, 32 messages a pull. */
    Figures pull(long backlog, int size) throws Exception {
        topic.fill(backlog, size);
        @SuppressWarnings("deprecation") DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench_pull_" + topic.name);
        consumer.setNamesrvAddr(peer.namesrv);
        consumer.setInstanceName(topic.name);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic.name));
        LongAdder seen = new LongAdder();
        double cpu = peer.cpuSeconds();
        long from = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            int share = t;
            Thread thread = new Thread(() -> {
                for (int q = share; q < queues.size(); q += 4) {
                    drain(consumer, queues.get(q), seen);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Figures figures = drained(backlog, (System.nanoTime() - from) / 1e9, peer.cpuSeconds() - cpu, seen.sum());
        consumer.shutdown();
        return figures;
    }

    @SuppressWarnings("deprecation")
    private void drain(DefaultMQPullConsumer consumer, MessageQueue queue, LongAdder seen) {
        try {
            long end = consumer.maxOffset(queue);
            for (long at = 0; at < end; ) {
                PullResult result = consumer.pull(queue, "*", at, 32);
                if (result.getMsgFoundList() != null) {
                    seen.add(result.getMsgFoundList().size());
                }
                at = result.getNextBeginOffset();
            }
        } catch (Exception cause) {
            throw new IllegalStateException(cause);
        }
    }

    private interface Send {
        void run() throws Exception;
    }

    private Figures produce(int threads, DefaultMQProducer producer, Send send) throws Exception {
        long before = topic.stored(producer);
        List<Thread> senders = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            Thread thread = new Thread(() -> {
                while (!stopped) {
                    try {
                        send.run();
                    } catch (InterruptedException stop) {
                        return;
                    } catch (Exception refused) {
                        failures.add(refused);
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
            senders.add(thread);
        }
        Thread.sleep(warmSeconds * 1000L);
        double cpu = peer.cpuSeconds();
        long from = System.nanoTime();
        measuring = true;
        Thread.sleep(seconds * 1000L);
        measuring = false;
        double elapsed = (System.nanoTime() - from) / 1e9;
        cpu = peer.cpuSeconds() - cpu;
        double resident = peer.residentMib();
        long count = done.sum();
        stopped = true;
        for (Thread thread : senders) {
            thread.join(5_000);
        }
        long stored = topic.settled(producer) - before;
        Histogram all = latencies.copy();
        producer.shutdown();
        return new Figures(count / elapsed, ms(all, 50), ms(all, 99), ms(all, 99.9), all.getMaxValue() / 1e6, cpu / (count / 1e6), resident,
            failures.sum(), acknowledged.sum(), stored, failures.counted());
    }

    private void finished(long from, int messages) {
        acknowledged.add(messages);
        if (measuring) {
            latencies.recordValue(System.nanoTime() - from);
            done.add(messages);
        }
    }

    private Figures drained(long backlog, double elapsed, double cpu, long seen) throws Exception {
        return new Figures(seen / elapsed, -1, -1, -1, -1, cpu / (seen / 1e6), peer.residentMib(), 0, backlog, seen, Map.of());
    }

    static long awaitDrained(LongAdder seen, long backlog) throws Exception {
        long deadline = System.nanoTime() + 120_000_000_000L;
        while (seen.sum() < backlog) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("only " + seen.sum() + " of " + backlog + " messages came in two minutes");
            }
            Thread.sleep(2);
        }
        return System.nanoTime();
    }

    private static double ms(Histogram histogram, double percentile) {
        return histogram.getTotalCount() == 0 ? -1 : histogram.getValueAtPercentile(percentile) / 1e6;
    }
}
