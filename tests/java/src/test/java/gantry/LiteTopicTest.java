package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Lite topics as 5.5.0 has them. The remoting clients do not know them: a producer sets the property, and requests are as the proxy sends them. */
@Tag("clients")
class LiteTopicTest {
    private final Server server = new Server("lite").with("enableLmq", "true").with("enableMultiDispatch", "true").start();
    private final Stock stock = new Stock(server);
    private final Lite lite = new Lite(server);

    @AfterEach
    void close() {
        stock.close();
        server.close();
    }

    private String ask(int code, Map<String, String> fields) throws Exception {
        var answer = Wire.call(server.brokerPort, code, fields);
        assertEquals(0, answer.getCode(), answer.getRemark());
        return new String(answer.getBody(), UTF_8);
    }

    private static void says(String text, String... parts) {
        for (String part : parts) {
            assertTrue(text.contains(part), part + " is not in " + text);
        }
    }

    @Test
    void a_lite_message_is_found_in_its_lite_topic_and_who_subscribes_is_shown() throws Exception {
        String topic = lite.parent();
        String group = Stock.name("chatters");
        lite.group(group, "\"+lite.bind.topic\":\"" + topic + "\"");
        var producer = stock.producer();
        for (String room : List.of("room-1", "room-2", "room-1")) {
            var message = new Message(topic, room.getBytes(UTF_8));
            MessageAccessor.putProperty(message, "__LITE_TOPIC", room);
            producer.send(message);
        }
        String name = "%LMQ%$" + topic + "$room-1";
        Await.until("it is dispatched", () -> stock.maxOffset(name, 0) == 2);
        var consumer = stock.pull(Stock.name("readers"));
        consumer.maxOffset(Stock.queue(topic, 0));
        var pulled = consumer.pull(new MessageQueue(name, Server.BROKER_NAME, 0), "*", 0, 32);
        assertEquals(PullStatus.FOUND, pulled.getPullStatus());
        assertEquals(2, pulled.getMsgFoundList().size());
        assertEquals(name, pulled.getMsgFoundList().get(1).getProperty("INNER_MULTI_DISPATCH"));
        assertEquals("1", pulled.getMsgFoundList().get(1).getProperty("INNER_MULTI_QUEUE_OFFSET"));

        assertEquals(0, lite.subscribe("PARTIAL_ADD", "c1", group, topic, "\"room-1\",\"room-2\""));
        assertEquals(0, lite.subscribe("COMPLETE_ADD", "c2", group, topic, "\"room-1\""));
        says(ask(200076, Map.of("parentTopic", topic, "liteTopic", "room-1")), "\"maxOffset\":2", "\"minOffset\":0", "\"clientId\":\"c1\"", "\"clientId\":\"c2\"",
            "\"shardingToBroker\":true", "\"liteTopic\":\"room-1\"");
        says(ask(200075, Map.of("topic", topic)), "\"ttl\":60", "\"liteTopicCount\":2", "\"groups\":[\"" + group + "\"]");
        says(ask(200077, Map.of("parentTopic", topic, "group", group, "clientId", "c1", "maxCount", "10")), "\"liteTopicCount\":2");
        says(ask(200077, Map.of("parentTopic", topic, "group", group, "clientId", "nobody", "maxCount", "10")), "\"liteTopicCount\":-1");
        says(ask(200074, Map.of()), "\"liteSubscriptionCount\":3", "\"currentLmqNum\":2", "\"" + topic + "\":60");
        assertEquals(0, lite.subscribe("PARTIAL_REMOVE", "c1", group, topic, "\"room-1\""));
        assertEquals(0, lite.subscribe("COMPLETE_REMOVE", "c2", group, topic, ""));
        says(ask(200074, Map.of()), "\"liteSubscriptionCount\":1");

        var committed = Wire.call(server.brokerPort, 15, Map.of("consumerGroup", group, "topic", name, "queueId", "0", "commitOffset", "1"));
        assertEquals(0, committed.getCode(), committed.getRemark());
        says(ask(200078, Map.of("group", group, "liteTopic", "room-1", "topK", "10")), "\"totalLagCount\":1", "\"brokerOffset\":2", "\"consumerOffset\":1");
        says(ask(200078, Map.of("group", group, "liteTopic", "room-3", "topK", "10")), "\"totalLagCount\":-1");
    }

    @Test
    void what_cannot_be_is_refused_with_apaches_codes() throws Exception {
        String topic = lite.parent();
        String group = Stock.name("all");
        lite.group(group, "\"+lite.bind.topic\":\"" + topic + "\",\"+lite.sub.wildcard\":\"true\"");
        assertEquals(604, lite.subscribe("PARTIAL_ADD", "c1", group, topic, "\"a\""));
        assertEquals(604, Wire.call(server.brokerPort, 200071, Map.of(), "{}".getBytes(UTF_8)).getCode());
        assertEquals(0, lite.subscribe("COMPLETE_ADD", "c1", group, topic, ""));
        says(ask(200076, Map.of("parentTopic", topic, "liteTopic", "any")), "\"clientId\":\"*\"");
        assertEquals(17, Wire.call(server.brokerPort, 200075, Map.of("topic", "nowhere")).getCode());
        assertEquals(29, Wire.call(server.brokerPort, 200075, Map.of("topic", "BenchmarkTest")).getCode());
        assertEquals(29, Wire.call(server.brokerPort, 200078, Map.of("group", "TOOLS_CONSUMER", "topK", "1")).getCode());
        assertEquals(29, Wire.call(server.brokerPort, 200077, Map.of("parentTopic", topic, "group", "TOOLS_CONSUMER", "clientId", "c")).getCode());
    }

    @Test
    void a_subscription_too_many_is_refused() throws Exception {
        server.stop();
        server.with("maxLiteSubscriptionCount", "1").start();
        String topic = lite.parent();
        String group = Stock.name("few");
        lite.group(group, "\"+lite.bind.topic\":\"" + topic + "\"");
        assertEquals(0, lite.subscribe("PARTIAL_ADD", "c1", group, topic, "\"a\""));
        assertEquals(2018, lite.subscribe("PARTIAL_ADD", "c2", group, topic, "\"a\""));
    }
}
