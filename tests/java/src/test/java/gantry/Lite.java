package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;

/** What tests of lite topics ask a broker before anything else. */
final class Lite {
    private final Server server;

    Lite(Server server) {
        this.server = server;
    }

    String parent() throws Exception {
        String topic = Stock.name("chat");
        var answer = Wire.call(server.brokerPort, 17, Map.of("topic", topic, "defaultTopic", "TBW102", "readQueueNums", "1",
            "writeQueueNums", "1", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false",
            "attributes", "+message.type=LITE,+lite.topic.expiration=60"));
        assertEquals(0, answer.getCode(), answer.getRemark());
        Await.until("the name server knows " + topic, () -> Wire.call(server.registersAt, 105, Map.of("topic", topic)).getCode() == 0);
        return topic;
    }

    void group(String name, String attributes) throws Exception {
        String body = "{\"groupName\":\"" + name + "\",\"consumeEnable\":true,\"attributes\":{" + attributes + "}}";
        assertEquals(0, Wire.call(server.brokerPort, 200, Map.of(), body.getBytes(UTF_8)).getCode());
    }

    int subscribe(String action, String client, String group, String topic, String lite) throws Exception {
        String body = "{\"subscriptionSet\":[{\"action\":\"" + action + "\",\"clientId\":\"" + client + "\",\"group\":\"" + group
            + "\",\"topic\":\"" + topic + "\",\"liteTopicSet\":[" + lite + "],\"version\":1}]}";
        return Wire.call(server.brokerPort, 200071, Map.of(), body.getBytes(UTF_8)).getCode();
    }
}
