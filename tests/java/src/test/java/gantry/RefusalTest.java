package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What is refused is refused with Apache's code, and leaves nothing behind. */
@Tag("clients")
class RefusalTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    private static Map<String, String> send(String topic, String queue) {
        var fields = new HashMap<String, String>();
        fields.putAll(Map.of("a", "producers", "b", topic, "c", "TBW102", "d", "4", "e", queue, "f", "0", "g", "1700000000000"));
        fields.putAll(Map.of("h", "0", "i", "", "j", "0", "k", "false", "m", "false"));
        return fields;
    }

    private static Map<String, String> pull(String group, String topic, String queue, String offset) {
        var fields = new HashMap<String, String>();
        fields.putAll(Map.of("consumerGroup", group, "topic", topic, "queueId", queue, "queueOffset", offset, "maxMsgNums", "32"));
        fields.putAll(Map.of("sysFlag", "4", "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0",
            "expressionType", "TAG"));
        return fields;
    }

    private RemotingCommand broker(int code, Map<String, String> fields, String body) throws Exception {
        return Wire.call(stock.server.brokerPort, code, fields, body == null ? null : body.getBytes(UTF_8));
    }

    private void refused(int expected, RemotingCommand answer) {
        assertEquals(expected, answer.getCode(), answer::toString);
        assertTrue(answer.getRemark() != null && !answer.getRemark().isBlank(), "a refusal says why");
    }

    @Test
    void an_unknown_code_is_not_supported() throws Exception {
        var answer = broker(9999, Map.of(), null);
        refused(3, answer);
        assertEquals(" request type 9999 not supported", answer.getRemark());
        refused(3, Wire.call(stock.server.namesrvPort, 9999, Map.of()));
    }

    @Test
    void sends_are_refused_for_illegal_names_and_queues() throws Exception {
        refused(29, broker(310, send("with space", "0"), "x"));
        refused(29, broker(310, send("t".repeat(128), "0"), "x"));
        refused(16, broker(310, send("SCHEDULE_TOPIC_XXXX", "0"), "x"));
        refused(16, broker(310, send("RMQ_SYS_TRANS_HALF_TOPIC", "0"), "x"));
        String topic = stock.topic(2);
        refused(29, broker(310, send(topic, "2"), "x"));
        assertEquals(0, broker(310, send(topic, "-1"), "any queue").getCode());
        assertEquals(1, stock.maxOffset(topic, 0) + stock.maxOffset(topic, 1));
    }

    @Test
    void a_send_to_an_absent_topic_without_its_template_is_refused() throws Exception {
        var fields = send(Stock.name("absent"), "0");
        fields.put("c", "no_such_template");
        refused(17, broker(310, fields, "x"));
    }

    @Test
    void bodies_and_properties_over_the_limit_are_refused() throws Exception {
        String topic = stock.topic(1);
        var large = Wire.call(stock.server.brokerPort, 310, send(topic, "0"), new byte[(4 << 20) + 1]);
        refused(13, large);
        var fields = send(topic, "0");
        fields.put("i", "name\u0001" + "v".repeat(32_768) + "\u0002");
        refused(13, broker(310, fields, "x"));
        assertEquals(0, stock.maxOffset(topic, 0));

        var producer = stock.producer();
        producer.setMaxMessageSize(16 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        var refusal = assertThrows(MQBrokerException.class, () -> producer.send(new Message(topic, new byte[(4 << 20) + 1])));
        assertEquals(13, refusal.getResponseCode());
    }

    @Test
    void topics_and_groups_with_illegal_names_are_not_made() throws Exception {
        var topic = new HashMap<>(Map.of("defaultTopic", "TBW102", "readQueueNums", "1", "writeQueueNums", "1", "perm", "6",
            "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"));
        for (String name : new String[] {"", "a b", "ünicode", "x".repeat(128), "TBW102"}) {
            topic.put("topic", name);
            refused(29, broker(17, topic, null));
        }
        refused(29, broker(200, Map.of(), "{\"groupName\":\"a b\"}"));
        refused(29, broker(200, Map.of(), "{\"groupName\":\"" + "g".repeat(121) + "\"}"));
    }

    @Test
    void pulls_are_refused_for_what_does_not_exist() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("refused");
        refused(17, broker(11, pull(group, "no_such_topic_here", "0", "0"), null));
        refused(29, broker(11, pull(group, topic, "1", "0"), null));
        var unsubscribed = pull(group, topic, "0", "0");
        unsubscribed.put("sysFlag", "0");
        refused(24, broker(11, unsubscribed, null));
    }

    @Test
    void a_pull_outside_the_queue_is_told_where_to_go() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("outside");
        var empty = broker(11, pull(group, topic, "0", "5"), null);
        assertEquals(21, empty.getCode(), empty::toString);
        assertEquals("0", empty.getExtFields().get("nextBeginOffset"));
        assertEquals(0, broker(310, send(topic, "0"), "only one").getCode());
        Await.until("it is visible", () -> stock.maxOffset(topic, 0) == 1);
        var beyond = broker(11, pull(group, topic, "0", "100"), null);
        assertEquals(21, beyond.getCode(), beyond::toString);
        assertEquals("1", beyond.getExtFields().get("nextBeginOffset"));
        var below = broker(11, pull(group, topic, "0", "-5"), null);
        assertEquals(21, below.getCode(), below::toString);
        assertEquals("0", below.getExtFields().get("nextBeginOffset"));
        var end = broker(11, pull(group, topic, "0", "1"), null);
        assertEquals(19, end.getCode(), end::toString);
        assertEquals("1", end.getExtFields().get("maxOffset"));
    }

    @Test
    void questions_about_nothing_get_the_known_codes() throws Exception {
        refused(1, broker(38, Map.of("consumerGroup", "nobody_at_all"), null));
        refused(206, broker(203, Map.of("consumerGroup", "nobody_at_all"), null));
        refused(17, broker(202, Map.of("topic", "no_such_topic_here"), null));
        refused(1, broker(33, Map.of("offset", "999999999999"), null));
        refused(22, broker(14, Map.of("consumerGroup", Stock.name("unset"), "topic", stock.topic(1), "queueId", "0",
            "setZeroIfNotFound", "false"), null));
        refused(17, Wire.call(stock.server.namesrvPort, 105, Map.of("topic", "no_such_topic_here")));
        refused(22, Wire.call(stock.server.namesrvPort, 101, Map.of("namespace", "none", "key", "none")));
        refused(26, broker(36, Map.of("group", "a b", "offset", "0", "delayLevel", "1"), null));
    }

    @Test
    void what_we_cannot_do_yet_is_refused_and_never_stored_as_an_ordinary_message() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY, "Apache can do all of it");
        String topic = stock.topic(1);
        var sql = pull(Stock.name("sql"), topic, "0", "0");
        sql.put("expressionType", "SQL92");
        sql.put("subscription", "a > 1");
        assertNotEquals(0, broker(11, sql, null).getCode());
        assertEquals(0, stock.maxOffset(topic, 0));
    }
}
