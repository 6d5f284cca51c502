package gantry.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A topic of a broker under load, made when this is made: who sends to it, who consumes it, and what is stored in it. */
final class Topic {
    /** What a push consumer calls, with the time in ns at which it was called. */
    interface Listener {
        void on(List<MessageExt> messages, long now);
    }

    private static final int QUEUES = 16;
    /** A backlog is a multiple of it. */
    static final int FILLED_AT_ONCE = 500;
    final String name;
    private final Peer peer;

    Topic(Peer peer, String name) throws Exception {
        this.peer = peer;
        this.name = name;
        create();
    }

    private void create() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(peer.namesrv);
        admin.setInstanceName("admin" + System.nanoTime());
        admin.start();
        long deadline = System.nanoTime() + 60_000_000_000L;
        for (boolean ready = false; !ready; ) {
            try {
                for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
                    admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), new TopicConfig(name, QUEUES, QUEUES));
                }
                ready = admin.examineTopicRouteInfo(name).getQueueDatas().size() == 1;
            } catch (Exception notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(50);
            }
        }
        admin.shutdown();
    }

    DefaultMQProducer producer() throws Exception {
        return producer(peer.namesrv, name);
    }

    /** One that has started, that sends each message once and as it is. */
    static DefaultMQProducer producer(String namesrv, String instance) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(instance + System.nanoTime());
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        return producer;
    }

    /** One more of the topic's only group, with the defaults of the client but for its listener's 32 messages a call. Not started. */
    DefaultMQPushConsumer consumer(Listener listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_push_" + name);
        consumer.setNamesrvAddr(peer.namesrv);
        consumer.setInstanceName(name + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(name, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            listener.on(messages, System.nanoTime());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    /** A body of so many bytes, of which the first eight are the stamp. */
    Message message(int size, long stamp) {
        byte[] body = new byte[size];
        ByteBuffer.wrap(body).putLong(stamp);
        return new Message(name, body);
    }

    List<Message> batch(int messages, int size, long stamp) {
        List<Message> batch = new ArrayList<>(messages);
        for (int i = 0; i < messages; i++) {
            batch.add(message(size, stamp));
        }
        return batch;
    }

    /** Makes a backlog and returns when all of it can be consumed, or after a minute. */
    void fill(long messages, int size) throws Exception {
        DefaultMQProducer producer = producer();
        for (long sent = 0; sent < messages; sent += FILLED_AT_ONCE) {
            producer.send(batch(FILLED_AT_ONCE, size, System.nanoTime()));
        }
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (stored(producer) < messages && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        producer.shutdown();
    }

    /** What is stored once nothing more comes: replies may still be under way, and dispatch may trail behind them. */
    long settled(DefaultMQProducer producer) throws Exception {
        long seen = -1;
        for (long now = stored(producer); now != seen; now = stored(producer)) {
            seen = now;
            Thread.sleep(1_000);
        }
        return seen;
    }

    /** The sum of its queues' ends. */
    long stored(DefaultMQProducer producer) throws Exception {
        long total = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(name)) {
            total += producer.maxOffset(queue);
        }
        return total;
    }
}
