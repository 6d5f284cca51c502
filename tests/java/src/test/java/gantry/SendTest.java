package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Whatever way a message is sent, it lies once, unchanged, where the answer says. */
@Tag("clients")
class SendTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    @Test
    void a_sync_send_says_where_the_message_lies() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        var results = new ArrayList<SendResult>();
        for (int i = 0; i < 20; i++) {
            var message = new Message(topic, "tag" + i, "key" + i, ("body " + i).getBytes(UTF_8));
            message.setFlag(i);
            message.putUserProperty("number", String.valueOf(i));
            results.add(producer.send(message));
        }
        var stored = stock.read(topic, 0);
        assertEquals(20, stored.size());
        for (int i = 0; i < 20; i++) {
            var result = results.get(i);
            var message = stored.get(i);
            assertEquals(SendStatus.SEND_OK, result.getSendStatus());
            assertEquals(i, result.getQueueOffset());
            assertEquals(Stock.queue(topic, 0), result.getMessageQueue());
            assertEquals(result.getMsgId(), message.getMsgId());
            assertEquals(i, message.getFlag());
            assertEquals("tag" + i, message.getTags());
            assertEquals("key" + i, message.getKeys());
            assertEquals(String.valueOf(i), message.getUserProperty("number"));
            assertEquals("body " + i, new String(message.getBody(), UTF_8));
            assertEquals(0, message.getReconsumeTimes());
            assertTrue(message.getStoreTimestamp() >= message.getBornTimestamp() - 1000, "clocks of one machine");
        }
        var found = stock.admin().viewMessage(topic, results.get(7).getOffsetMsgId());
        assertEquals("body 7", new String(found.getBody(), UTF_8));
        assertEquals(7, found.getQueueOffset());
    }

    @Test
    void every_async_send_is_called_back_once_with_an_offset_of_its_own() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        var offsets = new ConcurrentLinkedQueue<Long>();
        var failures = new ConcurrentLinkedQueue<Throwable>();
        for (int i = 0; i < 500; i++) {
            producer.send(new Message(topic, ("async " + i).getBytes(UTF_8)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    offsets.add(result.getQueueOffset());
                }

                @Override
                public void onException(Throwable failure) {
                    failures.add(failure);
                }
            });
        }
        Await.until("500 callbacks came", () -> offsets.size() + failures.size() >= 500);
        assertTrue(failures.isEmpty(), failures.toString());
        assertEquals(new TreeSet<>(IntStream.range(0, 500).mapToObj(Long::valueOf).toList()), new TreeSet<>(offsets));
        var bodies = new TreeSet<>(stock.read(topic, 0).stream().map(m -> new String(m.getBody(), UTF_8)).toList());
        assertEquals(new TreeSet<>(IntStream.range(0, 500).mapToObj(i -> "async " + i).toList()), bodies);
    }

    @Test
    void oneway_sends_are_all_stored() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        for (int i = 0; i < 300; i++) {
            producer.sendOneway(new Message(topic, ("oneway " + i).getBytes(UTF_8)));
        }
        Await.until("300 are stored", () -> stock.maxOffset(topic, 0) == 300);
        var bodies = new TreeSet<>(stock.read(topic, 0).stream().map(m -> new String(m.getBody(), UTF_8)).toList());
        assertEquals(300, bodies.size());
    }

    @Test
    void a_batch_is_stored_as_messages_with_ids_tags_and_keys_of_their_own() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        producer.send(new Message(topic, "first".getBytes(UTF_8)));
        var batch = new ArrayList<Message>();
        for (int i = 0; i < 32; i++) {
            var message = new Message(topic, i % 2 == 0 ? "even" : "odd", "k" + i, ("in batch " + i).getBytes(UTF_8));
            message.putUserProperty("place", String.valueOf(i));
            batch.add(message);
        }
        var result = producer.send(batch);
        assertEquals(SendStatus.SEND_OK, result.getSendStatus());
        assertEquals(1, result.getQueueOffset());
        var ids = List.of(result.getMsgId().split(","));
        var places = List.of(result.getOffsetMsgId().split(","));
        assertEquals(32, ids.size());
        assertEquals(32, new TreeSet<>(places).size());
        var stored = stock.read(topic, 0);
        assertEquals(33, stored.size());
        for (int i = 0; i < 32; i++) {
            MessageExt message = stored.get(i + 1);
            assertEquals(ids.get(i), message.getMsgId());
            assertEquals(i % 2 == 0 ? "even" : "odd", message.getTags());
            assertEquals("k" + i, message.getKeys());
            assertEquals(String.valueOf(i), message.getUserProperty("place"));
            assertEquals("in batch " + i, new String(message.getBody(), UTF_8));
        }
        var third = stock.admin().viewMessage(topic, places.get(3));
        assertEquals("in batch 3", new String(third.getBody(), UTF_8));
        // The tag filter works on each message of the batch.
        var odd = stock.pull(Stock.name("odd")).pull(Stock.queue(topic, 0), "odd", 0, 64, 10_000).getMsgFoundList();
        assertEquals(16, odd.size());
        assertTrue(odd.stream().allMatch(m -> m.getTags().equals("odd")));
    }

    @Test
    void messages_of_one_key_keep_their_order_in_one_queue() throws Exception {
        String topic = stock.topic(4);
        var producer = stock.producer();
        for (int step = 0; step < 10; step++) {
            for (int order = 0; order < 12; order++) {
                var message = new Message(topic, (order + "/" + step).getBytes(UTF_8));
                producer.send(message, new SelectMessageQueueByHash(), order);
            }
        }
        int total = 0;
        var queueOf = new java.util.HashMap<String, Integer>();
        var nextStep = new java.util.HashMap<String, Integer>();
        for (int queue = 0; queue < 4; queue++) {
            for (var message : stock.read(topic, queue)) {
                var words = new String(message.getBody(), UTF_8).split("/");
                assertEquals(queue, queueOf.computeIfAbsent(words[0], first -> message.getQueueId()));
                assertEquals(nextStep.merge(words[0], 1, Integer::sum) - 1, Integer.parseInt(words[1]));
                total++;
            }
        }
        assertEquals(120, total);
    }

    @Test
    void a_message_goes_to_the_queue_that_was_asked_for() throws Exception {
        String topic = stock.topic(6);
        var producer = stock.producer();
        assertEquals(6, producer.fetchPublishMessageQueues(topic).size());
        for (int queue = 0; queue < 6; queue++) {
            var result = producer.send(new Message(topic, ("for " + queue).getBytes(UTF_8)), Stock.queue(topic, queue));
            assertEquals(queue, result.getMessageQueue().getQueueId());
            assertEquals(0, result.getQueueOffset());
            assertEquals("for " + queue, new String(stock.read(topic, queue).get(0).getBody(), UTF_8));
        }
    }

    @Test
    void the_first_send_makes_the_topic() throws Exception {
        String topic = Stock.name("new");
        var producer = stock.producer();
        var queues = new TreeSet<Integer>();
        for (int i = 0; i < 16; i++) {
            queues.add(producer.send(new Message(topic, ("auto " + i).getBytes(UTF_8))).getMessageQueue().getQueueId());
        }
        assertTrue(List.of(0, 1, 2, 3).containsAll(queues), "a client asks for four queues: " + queues);
        var route = Wire.call(stock.server.namesrvPort, 105, java.util.Map.of("topic", topic, "acceptStandardJsonOnly", "true"));
        assertTrue(new String(route.getBody(), UTF_8).contains("\"writeQueueNums\":4"), new String(route.getBody(), UTF_8));
    }

    @Test
    void a_body_of_four_mebibytes_comes_back_unchanged() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        // Random bytes grow when compressed, and would then exceed the limit of the broker.
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        var body = new byte[4 << 20];
        new Random(4).nextBytes(body);
        for (int i = 0; i < 3; i++) {
            assertEquals(i, producer.send(new Message(topic, body)).getQueueOffset());
        }
        for (var message : stock.read(topic, 0)) {
            assertArrayEquals(body, message.getBody());
        }
    }

    @Test
    void a_compressed_body_is_stored_compressed_and_read_plain() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        var body = "the same words again and again ".repeat(5_000).getBytes(UTF_8);
        producer.send(new Message(topic, body));
        var message = stock.read(topic, 0).get(0);
        assertArrayEquals(body, message.getBody());
        assertTrue(message.getStoreSize() < body.length / 10, "stored size " + message.getStoreSize());
    }

    @Test
    void unicode_survives_in_tags_keys_properties_and_body() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        var message = new Message(topic, "标签", "ключ", "тело 本文 🦀".getBytes(UTF_8));
        message.putUserProperty("名前", "значение \" \\ \t \uD83E\uDD80 \u20AC");
        message.putUserProperty("quote", "{\"json\":\"in a header\"}");
        producer.send(message);
        var stored = stock.pull(Stock.name("unicode")).pull(Stock.queue(topic, 0), "标签 || другое", 0, 8, 10_000).getMsgFoundList();
        assertEquals(1, stored.size());
        assertEquals("标签", stored.get(0).getTags());
        assertEquals("ключ", stored.get(0).getKeys());
        assertEquals("значение \" \\ \t \uD83E\uDD80 \u20AC", stored.get(0).getUserProperty("名前"));
        assertEquals("{\"json\":\"in a header\"}", stored.get(0).getUserProperty("quote"));
        assertEquals("тело 本文 🦀", new String(stored.get(0).getBody(), UTF_8));
    }

    @Test
    void a_traced_send_leaves_its_trace() throws Exception {
        String topic = stock.topic(1);
        var producer = new org.apache.rocketmq.client.producer.DefaultMQProducer(Stock.name("traced"), null, true, null);
        producer.setNamesrvAddr(stock.server.nameServer());
        producer.setInstanceName(Stock.name("instance"));
        producer.setSendMsgTimeout(20_000);
        producer.start();
        try {
            var id = producer.send(new Message(topic, "watched".getBytes(UTF_8))).getMsgId();
            Await.until("the trace of " + id + " is stored", () -> {
                var route = new String(Wire.call(stock.server.namesrvPort, 105,
                    java.util.Map.of("topic", "RMQ_SYS_TRACE_TOPIC", "acceptStandardJsonOnly", "true")).getBody(), UTF_8);
                int queues = Integer.parseInt(route.replaceAll("(?s).*\"readQueueNums\":(\\d+).*", "$1"));
                for (int queue = 0; queue < queues; queue++) {
                    for (var trace : stock.read("RMQ_SYS_TRACE_TOPIC", queue)) {
                        if (new String(trace.getBody(), UTF_8).contains(id)) {
                            return true;
                        }
                    }
                }
                return false;
            });
        } finally {
            producer.shutdown();
        }
    }
}
