package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Consumers that filter by conditions on properties. What each condition means is proved against Apache's own classes in crates/filter. */
@Tag("clients")
class SqlTest {
    private final Server server = new Server("sql").with("enablePropertyFilter", "true").with("filterSupportRetry", "true").start();
    private final Stock stock = new Stock(server);

    @AfterEach
    void close() {
        stock.close();
        server.close();
    }

    private static void send(DefaultMQProducer producer, String topic, int number) throws Exception {
        var message = new Message(topic, "tag" + number % 2, String.valueOf(number).getBytes(UTF_8));
        message.putUserProperty("number", String.valueOf(number));
        if (number % 3 == 0) {
            message.putUserProperty("colour", "blue'ish");
        }
        producer.send(message, Stock.queue(topic, 0));
    }

    private static List<String> numbers(java.util.function.IntPredicate wanted) {
        return IntStream.range(0, 100).filter(wanted).mapToObj(String::valueOf).toList();
    }

    @Test
    void a_push_consumer_gets_what_its_condition_wants_in_order_and_nothing_else() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        for (int i = 0; i < 50; i++) {
            send(producer, topic, i);
        }
        var got = new CopyOnWriteArrayList<String>();
        var consumer = stock.push(Stock.name("sql"));
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(topic, MessageSelector.bySql("colour = 'blue''ish' AND number BETWEEN 10 AND 90 AND TAGS IN ('tag0')"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(new String(message.getBody(), UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // Half of them come while the consumer waits: those it does not want must not end its wait for good.
        for (int i = 50; i < 100; i++) {
            send(producer, topic, i);
        }
        var wanted = numbers(i -> i % 3 == 0 && i % 2 == 0 && i >= 10 && i <= 90);
        Await.until("all that is wanted is there", java.time.Duration.ofSeconds(60), () -> got.size() >= wanted.size(), got::toString);
        assertEquals(wanted, got);
    }

    @Test
    void a_pull_with_its_own_condition_passes_over_the_rest() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        for (int i = 0; i < 100; i++) {
            send(producer, topic, i);
        }
        var consumer = stock.pull(Stock.name("sql"));
        // A client asks for conditions only when a heartbeat has told it how old the broker is.
        Await.until("the client knows the broker's version", () -> {
            consumer.pull(Stock.queue(topic, 0), MessageSelector.bySql("number = 0"), 0, 1, 20_000);
            return true;
        });
        var found = consumer.pull(Stock.queue(topic, 0), MessageSelector.bySql("number >= 95"), 0, 32, 20_000);
        assertEquals(PullStatus.FOUND, found.getPullStatus());
        assertEquals(numbers(i -> i >= 95), found.getMsgFoundList().stream().map(m -> new String(m.getBody(), UTF_8)).toList());
        assertEquals(100, found.getNextBeginOffset());
        var none = consumer.pull(Stock.queue(topic, 0), MessageSelector.bySql("nothing IS NOT NULL"), 0, 32, 20_000);
        assertEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus());
        assertEquals(100, none.getNextBeginOffset());
    }

    @Test
    void a_condition_that_cannot_be_read_is_refused_with_its_place() throws Exception {
        String topic = stock.topic(1);
        var consumer = stock.push(Stock.name("sql"));
        consumer.subscribe(topic, MessageSelector.bySql("number > 5 AND AND"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        var refused = assertThrows(MQClientException.class, consumer::start);
        assertTrue(refused.toString().contains("line 1, column 16"), refused.toString());
        var deep = "(".repeat(5000) + "a = 1" + ")".repeat(5000);
        var pull = Wire.call(server.brokerPort, 11, Map.ofEntries(Map.entry("consumerGroup", Stock.name("sql")), Map.entry("topic", topic),
            Map.entry("queueId", "0"), Map.entry("queueOffset", "0"), Map.entry("maxMsgNums", "32"), Map.entry("sysFlag", "4"),
            Map.entry("commitOffset", "0"), Map.entry("suspendTimeoutMillis", "0"), Map.entry("subVersion", "0"),
            Map.entry("subscription", deep), Map.entry("expressionType", "SQL92")));
        assertEquals(23, pull.getCode(), pull.toString());
    }

    @Test
    void a_retry_passes_the_condition_too() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("sql");
        var got = new CopyOnWriteArrayList<String>();
        var consumer = stock.push(group);
        consumer.subscribe(topic, MessageSelector.bySql("number < 2"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            var message = messages.get(0);
            got.add(new String(message.getBody(), UTF_8) + " " + message.getReconsumeTimes());
            return message.getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        var producer = stock.producer();
        for (int i = 0; i < 4; i++) {
            send(producer, topic, i);
        }
        Await.until("both came twice", java.time.Duration.ofSeconds(60), () -> got.size() >= 4, got::toString);
        assertEquals(List.of("0 0", "0 1", "1 0", "1 1"), got.stream().sorted().toList());
    }
}
