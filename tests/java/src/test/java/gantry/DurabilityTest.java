package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * What an acknowledgement waits for, said by a topic, by a message, and by the broker while it runs. The broker flushes by itself once in ten
 * minutes, so that what is on the device right after an acknowledgement was waited for.
 */
class DurabilityTest {
    private static final String ON_DEVICE = "0 B";

    /** Apache knows the broker's word only, and only after a restart. */
    @Test
    @Tag("clients")
    @Tag("ours")
    void an_acknowledgement_waits_for_the_device_where_topic_message_or_broker_say_so() throws Exception {
        var server = new Server("durability").with("flushIntervalCommitLog", "600000");
        try (server; var stock = new Stock(server.start())) {
            var admin = stock.admin();
            var producer = stock.producer();
            String plain = stock.topic(1);
            String durable = stock.topic(1);
            attribute(server, durable, "+flush.disk.type=SYNC_FLUSH");
            send(producer, new Message(plain, "kernel".getBytes(UTF_8)));
            assertNotEquals(ON_DEVICE, behind(server, admin));

            send(producer, new Message(durable, "device".getBytes(UTF_8)));
            assertEquals(ON_DEVICE, behind(server, admin));
            var hasty = new Message(durable, "kernel".getBytes(UTF_8));
            hasty.setWaitStoreMsgOK(false);
            send(producer, hasty);
            assertNotEquals(ON_DEVICE, behind(server, admin));

            var careful = new Message(plain, "device".getBytes(UTF_8));
            careful.putUserProperty("flush.disk.type", "SYNC_FLUSH");
            send(producer, careful);
            assertEquals(ON_DEVICE, behind(server, admin));

            flushDiskType(server, admin, "SYNC_FLUSH");
            send(producer, new Message(plain, "device".getBytes(UTF_8)));
            assertEquals(ON_DEVICE, behind(server, admin));
            attribute(server, durable, "+flush.disk.type=ASYNC_FLUSH");
            send(producer, new Message(durable, "kernel".getBytes(UTF_8)));
            attribute(server, durable, "-flush.disk.type");
            flushDiskType(server, admin, "ASYNC_FLUSH");
            send(producer, new Message(durable, "kernel".getBytes(UTF_8)));
            assertNotEquals(ON_DEVICE, behind(server, admin));
            assertEquals(3, stock.read(plain, 0).size());
            assertEquals(4, stock.read(durable, 0).size());
        }
    }

    private static void send(DefaultMQProducer producer, Message message) throws Exception {
        assertEquals(SendStatus.SEND_OK, producer.send(message).getSendStatus());
    }

    private static String behind(Server server, DefaultMQAdminExt admin) throws Exception {
        return admin.fetchBrokerRuntimeStats(server.broker()).getTable().get("remainHowManyDataToFlush");
    }

    private static void flushDiskType(Server server, DefaultMQAdminExt admin, String value) throws Exception {
        var change = new Properties();
        change.setProperty("flushDiskType", value);
        admin.updateBrokerConfig(server.broker(), change);
    }

    /** As {@code mqadmin updateTopic -a} asks. */
    private static void attribute(Server server, String topic, String change) throws Exception {
        var answer = Wire.call(server.brokerPort, 17, Map.of("topic", topic, "defaultTopic", "TBW102", "readQueueNums", "1",
            "writeQueueNums", "1", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false",
            "attributes", change));
        assertEquals(0, answer.getCode(), answer.toString());
    }
}
