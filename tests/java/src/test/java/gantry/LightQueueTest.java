package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Light queues, as an MQTT gateway uses them: messages name them in a property, and consumers pull from them by name. */
class LightQueueTest {
    private static Server server(String name) {
        return new Server(name).with("enableLmq", "true").with("enableMultiDispatch", "true");
    }

    private static Message message(String topic, String body, String... queues) {
        var message = new Message(topic, "tag", body.getBytes(UTF_8));
        if (queues.length > 0) {
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", String.join(",", queues));
        }
        return message;
    }

    private static MessageQueue queue(String name) {
        return new MessageQueue(name, Server.BROKER_NAME, 0);
    }

    /** A consumer that knows the broker, which it finds by an ordinary topic: light queues are at no name server. */
    private static DefaultMQPullConsumer consumer(Stock stock, String group, String topic) throws Exception {
        var consumer = stock.pull(group);
        consumer.maxOffset(Stock.queue(topic, 0));
        return consumer;
    }

    private static List<MessageExt> all(DefaultMQPullConsumer consumer, String name) throws Exception {
        var found = new ArrayList<MessageExt>();
        long next = 0;
        for (;;) {
            var result = consumer.pull(queue(name), "*", next, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                return found;
            }
            found.addAll(result.getMsgFoundList());
            next = result.getNextBeginOffset();
        }
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    @Test
    @Tag("clients")
    void a_message_is_pulled_from_the_light_queues_that_it_names_and_each_group_keeps_its_offsets() throws Exception {
        try (var server = server("light").start(); var stock = new Stock(server)) {
            String topic = stock.topic(2);
            var producer = stock.producer();
            for (int i = 0; i < 60; i++) {
                producer.send(message(topic, "m" + i, "%LMQ%all", "%LMQ%third" + i % 3));
            }
            producer.send(message(topic, "in none"));
            String group = Stock.name("light");
            var consumer = consumer(stock, group, topic);
            Await.until("all is dispatched", () -> consumer.maxOffset(queue("%LMQ%all")) == 60);
            assertEquals(IntStream.range(0, 60).mapToObj(i -> "m" + i).toList(), bodies(all(consumer, "%LMQ%all")));
            var third = all(consumer, "%LMQ%third1");
            assertEquals(IntStream.range(0, 20).mapToObj(i -> "m" + (i * 3 + 1)).toList(), bodies(third));
            // Where a message stands is in the message.
            assertEquals("25,8", third.get(8).getProperty("INNER_MULTI_QUEUE_OFFSET"));
            assertEquals(topic, third.get(8).getTopic());
            assertEquals(0, consumer.minOffset(queue("%LMQ%all")));

            consumer.updateConsumeOffset(queue("%LMQ%all"), 37);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue("%LMQ%all"), 37, false);
            Await.until("the offset is there", () -> {
                var answer = Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", "%LMQ%all", "queueId", "0"));
                return answer.getCode() == 0 && "37".equals(answer.getExtFields().get("offset"));
            });

            var waits = CompletableFuture.supplyAsync(() -> {
                try {
                    return consumer.pullBlockIfNotFound(queue("%LMQ%all"), "*", 60, 32);
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
            });
            producer.send(message(topic, "late", "%LMQ%all"));
            assertEquals(List.of("late"), bodies(waits.get(15, TimeUnit.SECONDS).getMsgFoundList()));

            var topics = stock.admin().fetchAllTopicList().getTopicList();
            assertTrue(topics.contains(topic));
            assertFalse(topics.stream().anyMatch(name -> name.startsWith("%LMQ%")), topics::toString);
        }
    }

    @Test
    @Tag("clients")
    void light_queues_survive_a_kill() throws Exception {
        try (var server = server("light-kill").start()) {
            String topic;
            try (var stock = new Stock(server)) {
                topic = stock.topic(1);
                var producer = stock.producer();
                for (int i = 0; i < 200; i++) {
                    producer.send(message(topic, "m" + i, "%LMQ%all", "%LMQ%part" + i % 7));
                }
            }
            server.kill();
            server.start();
            try (var stock = new Stock(server)) {
                var consumer = consumer(stock, Stock.name("light"), topic);
                stock.producer().send(message(topic, "m200", "%LMQ%all", "%LMQ%part4"));
                Await.until("all is dispatched", () -> consumer.maxOffset(queue("%LMQ%all")) == 201);
                assertEquals(IntStream.range(0, 201).mapToObj(i -> "m" + i).toList(), bodies(all(consumer, "%LMQ%all")));
                assertEquals(IntStream.range(0, 201).filter(i -> i % 7 == 4).mapToObj(i -> "m" + i).toList(), bodies(all(consumer, "%LMQ%part4")));
            }
        }
    }

    /** Apache stores these, and its thread that fills queues stumbles over the second for good. */
    @Test
    @Tag("clients")
    @Tag("ours")
    void a_name_that_is_no_light_queue_is_refused() throws Exception {
        try (var server = server("light-bad").with("maxLmqConsumeQueueNum", "2").start(); var stock = new Stock(server)) {
            String topic = stock.topic(1);
            var producer = stock.producer();
            var refused = assertThrows(MQBrokerException.class, () -> producer.send(message(topic, "x", "orders", "%LMQ%a")));
            assertTrue(refused.getErrorMessage().contains("\"orders\""), refused.getErrorMessage());
            producer.send(message(topic, "x", "%LMQ%a", "%LMQ%b"));
            // The client tries it three times, as it does with every code 1.
            var full = assertThrows(MQClientException.class, () -> producer.send(message(topic, "x", "%LMQ%c")));
            assertEquals(1, full.getResponseCode());
            var remark = full.getCause().getMessage();
            assertTrue(remark.contains("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded"), remark);
        }
    }

    @Test
    @Tag("interop")
    void gantry_and_apache_5_continue_each_others_light_queues_after_a_stop_and_after_a_kill() throws Exception {
        inTurn(Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT);
    }

    private static void inTurn(Server.Kind... kinds) throws Exception {
        var expected = new TreeMap<String, List<String>>();
        int sent = 0;
        int turn = 0;
        String topic = null;
        try (var server = server("light-turns")) {
            for (var kind : kinds) {
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? stock.topic(2) : topic;
                    var consumer = consumer(stock, "light_readers", topic);
                    check(kind, consumer, expected);
                    // Who was killed has left the file with offsets as it was when it was last written.
                    if (turn > 0 && turn != 3) {
                        var committed = Wire.call(server.brokerPort, 14, Map.of("consumerGroup", "light_readers", "topic", "%LMQ%all", "queueId", "0"));
                        assertEquals(String.valueOf(turn), committed.getExtFields().get("offset"), kind + " keeps offsets of light queues");
                    }
                    var producer = stock.producer();
                    for (int end = sent + 50; sent < end; sent++) {
                        String[] names = sent % 5 == 0 ? new String[] {"%LMQ%all"} : new String[] {"%LMQ%part" + sent % 3, "%LMQ%all"};
                        producer.send(message(topic, "m" + sent, names));
                        for (String name : names) {
                            expected.computeIfAbsent(name, key -> new ArrayList<>()).add("m" + sent);
                        }
                    }
                    check(kind, consumer, expected);
                    turn++;
                    var answer = Wire.call(server.brokerPort, 15, Map.of("consumerGroup", "light_readers", "topic", "%LMQ%all", "queueId", "0",
                        "commitOffset", String.valueOf(turn)));
                    assertEquals(0, answer.getCode());
                }
                if (turn == 3) {
                    server.kill();
                } else {
                    server.stop();
                }
            }
        }
    }

    private static void check(Server.Kind kind, DefaultMQPullConsumer consumer, Map<String, List<String>> expected) throws Exception {
        for (var queue : expected.entrySet()) {
            Await.until(kind + " has dispatched " + queue.getKey(), () -> consumer.maxOffset(queue(queue.getKey())) == queue.getValue().size());
            assertEquals(queue.getValue(), bodies(all(consumer, queue.getKey())), kind + " reads " + queue.getKey());
        }
    }
}
