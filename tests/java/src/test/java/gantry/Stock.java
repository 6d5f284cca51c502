package gantry;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The stock clients of one test, each with connections of its own, and the topics it uses. Nothing is set that an application
 * would not set, except names.
 */
final class Stock implements AutoCloseable {
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static Server shared;
    private static boolean sharedIsUp;

    final Server server;
    private final Deque<Runnable> shutdowns = new ArrayDeque<>();
    private DefaultMQPullConsumer reader;

    /** Uses the server that all tests of this run share; it ends with the run. */
    Stock() {
        this(shared());
    }

    Stock(Server server) {
        this.server = server;
    }

    private static synchronized Server shared() {
        if (shared == null) {
            shared = new Server("shared");
            shared.start();
            sharedIsUp = true;
        }
        if (!sharedIsUp) {
            throw new AssertionError("the shared server did not start" + shared.output());
        }
        return shared;
    }

    static String name(String prefix) {
        return prefix + "_" + ProcessHandle.current().pid() + "_" + NUMBERS.incrementAndGet();
    }

    /** Makes a topic and waits until clients can see it. */
    String topic(int queues) throws Exception {
        return topic(name("topic"), queues);
    }

    String topic(String name, int queues) throws Exception {
        var answer = Wire.call(server.brokerPort, 17, Map.of("topic", name, "defaultTopic", "TBW102",
            "readQueueNums", String.valueOf(queues), "writeQueueNums", String.valueOf(queues), "perm", "6",
            "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"));
        if (answer.getCode() != 0) {
            throw new AssertionError("topic " + name + ": " + answer);
        }
        Await.until("the name server knows " + name,
            () -> Wire.call(server.registersAt, 105, Map.of("topic", name)).getCode() == 0);
        return name;
    }

    /** Ends something else with the clients. */
    void atEnd(Runnable shutdown) {
        shutdowns.push(shutdown);
    }

    DefaultMQProducer unstartedProducer() {
        var producer = new DefaultMQProducer(name("producers"));
        producer.setNamesrvAddr("127.0.0.1:" + server.registersAt);
        producer.setInstanceName(name("instance"));
        // The machine runs everything at once; a slow answer is not what these tests are about.
        producer.setSendMsgTimeout(20_000);
        shutdowns.push(producer::shutdown);
        return producer;
    }

    DefaultMQProducer producer() throws Exception {
        var producer = unstartedProducer();
        producer.start();
        return producer;
    }

    /** A push consumer that starts at the beginning; the test subscribes, registers its listener and starts it. */
    DefaultMQPushConsumer push(String group) {
        var consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr("127.0.0.1:" + server.registersAt);
        consumer.setInstanceName(name("instance"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer lite(String group) {
        var consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr("127.0.0.1:" + server.registersAt);
        consumer.setInstanceName(name("instance"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    DefaultMQPullConsumer pull(String group) throws Exception {
        var consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr("127.0.0.1:" + server.registersAt);
        consumer.setInstanceName(name("instance"));
        shutdowns.push(consumer::shutdown);
        consumer.start();
        return consumer;
    }

    DefaultMQAdminExt admin() throws Exception {
        var admin = new DefaultMQAdminExt(20_000);
        admin.setNamesrvAddr("127.0.0.1:" + server.registersAt);
        admin.setInstanceName(name("instance"));
        admin.setAdminExtGroup(name("admins"));
        shutdowns.push(admin::shutdown);
        admin.start();
        return admin;
    }

    static MessageQueue queue(String topic, int id) {
        return new MessageQueue(topic, Server.BROKER_NAME, id);
    }

    long maxOffset(String topic, int queue) throws Exception {
        return offset(30, topic, queue);
    }

    long minOffset(String topic, int queue) throws Exception {
        return offset(31, topic, queue);
    }

    private long offset(int code, String topic, int queue) throws Exception {
        var answer = Wire.call(server.brokerPort, code, Map.of("topic", topic, "queueId", String.valueOf(queue)));
        if (answer.getCode() != 0) {
            throw new AssertionError(topic + " " + queue + ": " + answer);
        }
        return Long.parseLong(answer.getExtFields().get("offset"));
    }

    /**
     * Waits until a group has committed everything in these queues. A listener has messages before its client counts them as consumed,
     * and a client that is shut down commits only what it has counted; its last commits are one-way besides.
     */
    void awaitCommitted(String group, String topic, int queues) {
        for (int queue = 0; queue < queues; queue++) {
            int each = queue;
            Await.until(group + " has committed all of queue " + queue,
                () -> String.valueOf(maxOffset(topic, each)).equals(committed(group, topic, each)));
        }
    }

    String committed(String group, String topic, int queue) throws Exception {
        return Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic, "queueId", String.valueOf(queue)))
            .getExtFields().get("offset");
    }

    /** Everything that a queue holds, in order, read with the pull client; offsets must be dense. */
    List<MessageExt> read(String topic, int queue) throws Exception {
        if (reader == null) {
            reader = pull(name("readers"));
        }
        long min = minOffset(topic, queue);
        long max = maxOffset(topic, queue);
        var found = new java.util.ArrayList<MessageExt>();
        long next = min;
        while (next < max) {
            var page = reader.pull(queue(topic, queue), "*", next, 256, 20_000);
            if (page.getPullStatus() != PullStatus.FOUND) {
                throw new AssertionError(topic + " " + queue + " at " + next + " of [" + min + ", " + max + "): " + page);
            }
            for (var message : page.getMsgFoundList()) {
                if (message.getQueueOffset() != min + found.size()) {
                    throw new AssertionError("expected offset " + (min + found.size()) + ", got " + message);
                }
                found.add(message);
            }
            next = page.getNextBeginOffset();
        }
        return found;
    }

    @Override
    public void close() {
        shutdowns.forEach(Runnable::run);
    }
}
