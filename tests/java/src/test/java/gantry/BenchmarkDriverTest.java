package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.CommandUtil;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What RocketMQ's driver of the OpenMessaging benchmark does, with {@code batchCQ} and {@code autoBatch}. Older clients have neither. */
class BenchmarkDriverTest {
    private static final int MESSAGES = 1000;
    private static final int QUEUES = 4;

    @Test
    @Tag("clients")
    void its_topics_keep_batches_as_records_and_its_consumers_get_each_message_once() throws Exception {
        assertTrue(records(true) < MESSAGES, "every message is a record of its own");
    }

    @Test
    @Tag("clients")
    void batches_of_its_producers_to_an_ordinary_topic_become_messages() throws Exception {
        assertEquals(MESSAGES, records(false));
    }

    /** Sends and consumes, and counts the records that the messages are stored in. */
    private static int records(boolean batchCQ) throws Exception {
        try (var server = new Server("driver").start(); var stock = new Stock(server)) {
            String topic = topic(server, stock, batchCQ);
            var inbox = new Inbox();
            var consumer = stock.push(Stock.name("driver"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(inbox.listener());
            consumer.start();
            var producer = stock.unstartedProducer();
            producer.setAutoBatch(true);
            producer.start();
            var stored = new AtomicInteger();
            var failed = new ConcurrentLinkedQueue<Throwable>();
            for (int i = 0; i < MESSAGES; i++) {
                producer.send(new Message(topic, body(i).getBytes(UTF_8)), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        stored.incrementAndGet();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.add(error);
                    }
                });
            }
            Await.until("each send is answered", () -> stored.get() + failed.size() == MESSAGES);
            assertEquals(List.of(), List.copyOf(failed));
            inbox.await(MESSAGES);
            assertEquals(IntStream.range(0, MESSAGES).mapToObj(BenchmarkDriverTest::body).sorted().toList(), inbox.bodies().stream().sorted().toList());
            var records = new HashSet<Long>();
            for (int queue = 0; queue < QUEUES; queue++) {
                stock.read(topic, queue).stream().map(MessageExt::getCommitLogOffset).forEach(records::add);
            }
            return records.size();
        }
    }

    private static String body(int number) {
        return "message " + number;
    }

    /** By the published admin class, on every broker of the cluster. */
    private static String topic(Server server, Stock stock, boolean batchCQ) throws Exception {
        String topic = Stock.name("driver");
        var admin = stock.admin();
        var config = new TopicConfig(topic);
        config.setOrder(false);
        config.setPerm(6);
        config.setReadQueueNums(QUEUES);
        config.setWriteQueueNums(QUEUES);
        if (batchCQ) {
            config.getAttributes().put("+queue.type", "BatchCQ");
        }
        var brokers = CommandUtil.fetchMasterAddrByClusterName(admin, Server.CLUSTER);
        assertEquals(Set.of(server.broker()), brokers);
        for (String broker : brokers) {
            admin.createAndUpdateTopicConfig(broker, config);
        }
        assertEquals(batchCQ ? "BatchCQ" : null, admin.examineTopicConfig(server.broker(), topic).getAttributes().get("queue.type"));
        Await.until("the name server knows " + topic, () -> Wire.call(server.registersAt, 105, java.util.Map.of("topic", topic)).getCode() == 0);
        return topic;
    }
}
