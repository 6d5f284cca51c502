package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Topics with {@code queue.type=BatchCQ}: clients from 5 on store and read a batch as one record, older ones are served as ever. */
class BatchQueueTest {
    /** Older producers give a batch no key of its own, and Apache takes such a batch apart. */
    private static final boolean IS_5 = MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION).startsWith("V5");

    private static String topic(Stock stock, Server server) throws Exception {
        String name = Stock.name("batches");
        var answer = Wire.call(server.brokerPort, 17, Map.of("topic", name, "defaultTopic", "TBW102", "readQueueNums", "1",
            "writeQueueNums", "1", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false",
            "attributes", "+queue.type=BatchCQ"));
        assertEquals(0, answer.getCode(), answer.getRemark());
        Await.until("the name server knows " + name,
            () -> Wire.call(server.registersAt, 105, Map.of("topic", name)).getCode() == 0);
        return name;
    }

    private static String body(int number) {
        return "message " + number;
    }

    /** Batches of 1, 2, 3, 4, 1 … messages, and between them messages alone. */
    private static List<SendResult> send(Stock stock, String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        var results = new ArrayList<SendResult>();
        for (int next = from, round = 0; next < to; round++) {
            var batch = new ArrayList<Message>();
            for (int last = Math.min(to, next + round % 4 + 1); next < last; next++) {
                batch.add(new Message(topic, "", "k" + next, body(next).getBytes(UTF_8)));
            }
            results.add(round % 3 == 2 ? producer.send(batch.remove(0), Stock.queue(topic, 0)) : producer.send(batch, Stock.queue(topic, 0)));
            if (round % 3 == 2 && !batch.isEmpty()) {
                producer.send(batch, Stock.queue(topic, 0));
            }
        }
        return results;
    }

    /** Every message once, in order, under dense offsets. */
    private static void check(Stock stock, String topic, int count) throws Exception {
        Await.until("all are there", () -> stock.maxOffset(topic, 0) == count);
        List<MessageExt> found = stock.read(topic, 0);
        assertEquals(count, found.size());
        for (int i = 0; i < count; i++) {
            assertEquals(body(i), new String(found.get(i).getBody(), UTF_8));
            assertEquals("k" + i, found.get(i).getKeys());
            assertEquals(i, found.get(i).getQueueOffset());
        }
    }

    @Test
    @Tag("clients")
    void every_kind_of_consumer_gets_each_message_of_a_batch_once_under_its_own_offset() throws Exception {
        try (var server = new Server("batch-queues").start(); var stock = new Stock(server)) {
            String topic = topic(stock, server);
            var batches = send(stock, topic, 0, 200);
            assertEquals(LongStream.of(0, 1, 3, 6).boxed().toList(), batches.stream().limit(4).map(SendResult::getQueueOffset).toList());
            check(stock, topic, 200);
            Await.until("its units are written", () -> Files.exists(server.store().resolve("batchconsumequeue").resolve(topic)));

            var pushed = new ConcurrentLinkedQueue<Long>();
            var push = stock.push(Stock.name("push"));
            push.subscribe(topic, "*");
            push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> pushed.add(message.getQueueOffset()));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            push.start();
            var lite = stock.lite(Stock.name("lite"));
            lite.subscribe(topic, "*");
            lite.start();
            var polled = new ArrayList<Long>();
            Await.until("the lite consumer has all", () -> {
                lite.poll(1000).forEach(message -> polled.add(message.getQueueOffset()));
                return polled.size() >= 200;
            });
            // Some come while the consumer waits.
            send(stock, topic, 200, 240);
            Await.until("all are pushed", () -> pushed.size() >= 240);
            assertEquals(LongStream.range(0, 240).boxed().toList(), pushed.stream().sorted().toList());
            assertEquals(LongStream.range(0, 200).boxed().toList(), polled.stream().limit(200).toList());
        }
    }

    @Test
    @Tag("clients")
    void a_batch_is_answered_as_one_message_where_it_is_one() throws Exception {
        try (var server = new Server("batch-answers").start(); var stock = new Stock(server)) {
            String topic = topic(stock, server);
            var batch = new ArrayList<Message>();
            IntStream.range(0, 3).forEach(i -> batch.add(new Message(topic, "", "k" + i, body(i).getBytes(UTF_8))));
            var result = stock.producer().send(batch, Stock.queue(topic, 0));
            assertEquals(IS_5 ? 1 : 3, result.getOffsetMsgId().split(",").length);
            assertEquals(IS_5 ? 1 : 3, result.getMsgId().split(",").length);
            check(stock, topic, 3);
        }
    }

    @Test
    @Tag("clients")
    void a_message_of_a_batch_is_found_by_its_own_key_and_id() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY, "Apache knows the keys of the batch only");
        try (var server = new Server("batch-keys").start(); var stock = new Stock(server)) {
            String topic = topic(stock, server);
            send(stock, topic, 0, 40);
            var second = stock.read(topic, 0).get(17);
            var byKey = stock.admin().queryMessage(topic, "k17", 32, 0, Long.MAX_VALUE).getMessageList();
            assertEquals(1, byKey.size());
            for (var found : List.of(byKey.get(0), stock.admin().viewMessage(topic, second.getProperty("UNIQ_KEY")))) {
                assertEquals(body(17), new String(found.getBody(), UTF_8));
                assertEquals(17, found.getQueueOffset());
                assertEquals("k17", found.getKeys());
            }
        }
    }

    @Test
    @Tag("crash")
    void batches_survive_kill_9() throws Exception {
        try (var server = new Server("batch-kill").start()) {
            String topic;
            try (var stock = new Stock(server)) {
                topic = topic(stock, server);
                send(stock, topic, 0, 500);
            }
            for (int count = 500; count < 1100; count += 300) {
                server.kill();
                server.start();
                try (var stock = new Stock(server)) {
                    check(stock, topic, count);
                    send(stock, topic, count, count + 300);
                    check(stock, topic, count + 300);
                }
            }
        }
    }

    @Test
    @Tag("interop")
    void apache_reads_our_batches_and_we_read_apaches() throws Exception {
        try (var server = new Server("batch-take-over")) {
            String topic = null;
            int count = 0;
            for (var kind : new Server.Kind[] {Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5}) {
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? topic(stock, server) : topic;
                    check(stock, topic, count);
                    send(stock, topic, count, count + 100);
                    count += 100;
                    check(stock, topic, count);
                }
                server.stop();
            }
        }
    }

    @Test
    @Tag("interop")
    void we_go_on_where_an_apache_broker_was_killed() throws Exception {
        try (var server = new Server("batch-killed").start(Server.Kind.APACHE_5)) {
            String topic;
            try (var stock = new Stock(server)) {
                topic = topic(stock, server);
                send(stock, topic, 0, 300);
                check(stock, topic, 300);
            }
            server.kill();
            server.start();
            try (var stock = new Stock(server)) {
                check(stock, topic, 300);
                send(stock, topic, 300, 400);
                check(stock, topic, 400);
            }
        }
    }
}
