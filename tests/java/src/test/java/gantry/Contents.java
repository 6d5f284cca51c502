package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What a store should hold after some rounds of writing, whoever ran the broker, and a check of every message at every offset. */
final class Contents {
    static final int QUEUES = 3;
    /** One line a message: everything a consumer can see of it that must not change. */
    private final Map<Integer, List<String>> lines = new TreeMap<>();
    final String topic = Stock.name("contents");
    final String group = Stock.name("readers");
    private int round;
    private int committed;

    /** Another round: plain, tagged, batched, compressed and large messages into every queue, then some offsets. */
    void extend(Server server) throws Exception {
        round++;
        try (var stock = new Stock(server)) {
            if (round == 1) {
                stock.topic(topic, QUEUES);
                var made = Wire.call(server.brokerPort, 200, Map.of(),
                    ("{\"groupName\":\"" + group + "\",\"retryMaxTimes\":11}").getBytes(UTF_8));
                assertEquals(0, made.getCode(), made::toString);
            }
            var producer = stock.producer();
            for (int i = 0; i < 60; i++) {
                var message = new Message(topic, "tag" + i % 5, "key" + round + "-" + i, body(i));
                message.putUserProperty("round", "раунд " + round);
                message.setFlag(i);
                keep(i % QUEUES, message, producer.send(message, Stock.queue(topic, i % QUEUES)).getQueueOffset());
            }
            for (int queue = 0; queue < QUEUES; queue++) {
                var batch = new ArrayList<Message>();
                for (int i = 0; i < 10; i++) {
                    batch.add(new Message(topic, "batch", "b" + i, ("batch of round " + round + " number " + i).getBytes(UTF_8)));
                }
                long first = producer.send(batch, Stock.queue(topic, queue)).getQueueOffset();
                for (int i = 0; i < 10; i++) {
                    keep(queue, batch.get(i), first + i);
                }
            }
            committed = round * 7;
            for (int queue = 0; queue < QUEUES; queue++) {
                var answer = Wire.call(server.brokerPort, 15, Map.of("consumerGroup", group, "topic", topic,
                    "queueId", String.valueOf(queue), "commitOffset", String.valueOf(committed)));
                assertEquals(0, answer.getCode(), answer::toString);
            }
        }
    }

    private byte[] body(int i) {
        String words = "round " + round + " message " + i + " ";
        return words.repeat(i % 10 == 0 ? 2_000 : i % 7 + 1).getBytes(UTF_8);
    }

    private void keep(int queue, Message message, long offset) {
        var held = lines.computeIfAbsent(queue, q -> new ArrayList<>());
        assertEquals(held.size(), offset, "offsets of a queue are dense");
        held.add(line(message));
    }

    private static String line(Message message) {
        return message.getTags() + "|" + message.getKeys() + "|" + message.getUserProperty("round") + "|" + message.getFlag() + "|"
            + new String(message.getBody(), UTF_8);
    }

    /** Every message is served at its offset, unchanged, by whichever broker the stock client reads from. */
    void checkMessages(Stock stock) throws Exception {
        for (int queue = 0; queue < QUEUES; queue++) {
            assertEquals(lines.get(queue), stock.read(topic, queue).stream().map(Contents::line).toList());
        }
    }

    /** The topic, the group and its offsets are known, as the broker itself says. */
    void checkTables(Server server) throws Exception {
        for (int queue = 0; queue < QUEUES; queue++) {
            var answer = Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic,
                "queueId", String.valueOf(queue)));
            assertEquals(String.valueOf(committed), answer.getExtFields().get("offset"), answer::toString);
        }
        String groups = new String(Wire.call(server.brokerPort, 201, Map.of()).getBody(), UTF_8);
        assertTrue(groups.contains(group), groups);
        // Brokers of 4.9 do not answer for one topic alone (351).
        String known = new String(Wire.call(server.brokerPort, 21, Map.of()).getBody(), UTF_8);
        var queues = Pattern.compile("\"" + topic + "\":\\{.*?\"readQueueNums\":(\\d+)").matcher(known);
        assertTrue(queues.find() && queues.group(1).equals(String.valueOf(QUEUES)), known);
    }

    /** Every message is served at its offset, unchanged, and the topic, the group and its offsets are known. */
    void check(Server server) throws Exception {
        try (var stock = new Stock(server)) {
            Await.until("the topic is routed",
                () -> Wire.call(server.registersAt, 105, Map.of("topic", topic)).getCode() == 0);
            var admin = stock.admin();
            for (int queue = 0; queue < QUEUES; queue++) {
                List<MessageExt> stored = stock.read(topic, queue);
                assertEquals(lines.get(queue), stored.stream().map(Contents::line).toList());
                assertEquals(0, stock.minOffset(topic, queue));
                // Through its place in the commit log, too.
                var probe = stored.get(stored.size() / 2);
                assertEquals(line(probe), line(admin.viewMessage(topic, ((org.apache.rocketmq.common.message.MessageClientExt) probe)
                    .getOffsetMsgId())));
                var answer = Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic,
                    "queueId", String.valueOf(queue)));
                assertEquals(String.valueOf(committed), answer.getExtFields().get("offset"), answer::toString);
            }
            assertEquals(11, admin.examineSubscriptionGroupConfig(server.broker(), group).getRetryMaxTimes());
            assertEquals(QUEUES, admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getReadQueueNums());
        }
    }
}
