package gantry.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PullMessageResponseHeader;

/**
 * Somebody far behind: a backlog, and a reader of it who begins anew when he is through, for as long as others are to be disturbed by him. He looks at
 * no message, so that he takes little of the machine himself.
 */
final class ColdReader implements AutoCloseable {
    private static final int THREADS = 4;
    /** Of a batch, as a backlog comes about. */
    private static final int BATCH_BYTES = 100_000;
    private static final int SUBSCRIPTION = 4;
    private static final long TIMEOUT_MS = 10_000;
    private static final long PATIENCE_NANOS = 60_000_000_000L;
    private final Topic topic;
    private final Process broker;
    private final NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
    private final List<Thread> threads = new ArrayList<>();
    private final LongAdder messages = new LongAdder();
    /** Known when the backlog is there. */
    private List<MessageQueue> queues;
    private String address;
    private volatile boolean isOver;
    private long began;

    ColdReader(Topic topic, Process broker) {
        this.topic = topic;
        this.broker = broker;
        client.start();
    }

    /** Returns when so many bytes of messages are there, the broker has ended, or nothing goes for a minute: whether they are. */
    boolean fill(long bytes, int size) throws Exception {
        DefaultMQProducer producer = topic.producer();
        int batch = Math.max(1, BATCH_BYTES / size);
        AtomicLong left = new AtomicLong(bytes / size / batch);
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            senders.add(new Thread(() -> send(producer, batch, size, left), "backlog"));
        }
        senders.forEach(Thread::start);
        for (Thread sender : senders) {
            sender.join();
        }
        if (left.get() > 0) {
            producer.shutdown();
            return false;
        }
        queues = producer.fetchPublishMessageQueues(topic.name);
        address = producer.getDefaultMQProducerImpl().getMqClientFactory().findBrokerAddressInPublish(queues.get(0).getBrokerName());
        producer.shutdown();
        return true;
    }

    private void send(DefaultMQProducer producer, int batch, int size, AtomicLong left) {
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        while (left.getAndDecrement() > 0) {
            try {
                producer.send(topic.batch(batch, size, 0));
                deadline = System.nanoTime() + PATIENCE_NANOS;
            } catch (Exception refused) {
                left.incrementAndGet();
                if (!broker.isAlive() || System.nanoTime() > deadline) {
                    return;
                }
            }
        }
    }

    /** Reads until {@link #close}. */
    void start() {
        began = System.nanoTime();
        for (int i = 0; i < THREADS; i++) {
            int first = i;
            threads.add(new Thread(() -> read(first), "cold"));
        }
        threads.forEach(Thread::start);
    }

    private void read(int first) {
        long[] offsets = new long[queues.size()];
        while (!isOver) {
            for (int i = first; i < offsets.length && !isOver; i += THREADS) {
                try {
                    offsets[i] = pull(queues.get(i).getQueueId(), offsets[i]);
                } catch (Exception notNow) {
                    pause();
                }
            }
        }
    }

    /** Where to go on. */
    private long pull(int queue, long offset) throws Exception {
        PullMessageRequestHeader header = new PullMessageRequestHeader();
        header.setConsumerGroup("bench_cold");
        header.setTopic(topic.name);
        header.setQueueId(queue);
        header.setQueueOffset(offset);
        header.setMaxMsgNums(1024);
        header.setSysFlag(SUBSCRIPTION);
        header.setCommitOffset(0L);
        header.setSuspendTimeoutMillis(0L);
        header.setSubscription("*");
        header.setSubVersion(0L);
        header.setExpressionType("TAG");
        RemotingCommand answer = client.invokeSync(address, RemotingCommand.createRequestCommand(RequestCode.PULL_MESSAGE, header), TIMEOUT_MS);
        if (answer.getCode() == ResponseCode.PULL_NOT_FOUND) {
            return 0;
        }
        if (answer.getCode() != ResponseCode.SUCCESS) {
            pause();
            return offset;
        }
        long next = ((PullMessageResponseHeader) answer.decodeCommandCustomHeader(PullMessageResponseHeader.class)).getNextBeginOffset();
        messages.add(next - offset);
        return next;
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** Messages a second that he has read so far. */
    double perSecond() {
        return messages.sum() * 1e9 / (System.nanoTime() - began);
    }

    @Override
    public void close() throws InterruptedException {
        isOver = true;
        for (Thread thread : threads) {
            thread.join();
        }
        client.shutdown();
    }
}
