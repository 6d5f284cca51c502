package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Messages by their keys and ids, right after the send and after a kill. */
@Tag("clients")
class QueryTest {
    private static Message message(String topic, String body, String keys) {
        var message = new Message(topic, body.getBytes(UTF_8));
        message.setKeys(keys);
        return message;
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).sorted().toList();
    }

    @Test
    void messages_are_found_by_each_key_and_id_also_of_a_batch_and_after_a_kill() throws Exception {
        var server = new Server("queries").start();
        try (server; var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            var single = producer.send(message(topic, "single", "red green"));
            var batch = List.of(message(topic, "first", "green"), message(topic, "second", "Aa"));
            String[] ids = producer.send(batch).getMsgId().split(",");
            for (int life = 0; life < 2; life++) {
                var admin = stock.admin();
                assertEquals(List.of("single"), bodies(admin.queryMessage(topic, "red", 32, 0, Long.MAX_VALUE).getMessageList()));
                assertEquals(List.of("first", "single"),
                    bodies(admin.queryMessage(topic, "green", 32, 0, Long.MAX_VALUE).getMessageList()));
                // It shares its hash with a key that is there.
                assertThrows(MQClientException.class, () -> admin.queryMessage(topic, "BB", 32, 0, Long.MAX_VALUE));
                assertThrows(MQClientException.class, () -> admin.queryMessage(topic, "red", 32, 0, 1));
                assertEquals("single", new String(admin.viewMessage(topic, single.getMsgId()).getBody(), UTF_8));
                assertEquals("single", new String(admin.viewMessage(topic, single.getOffsetMsgId()).getBody(), UTF_8));
                assertEquals("second", new String(admin.viewMessage(topic, ids[1]).getBody(), UTF_8));
                if (life == 0) {
                    server.kill();
                    server.start();
                }
            }
        }
    }
}
