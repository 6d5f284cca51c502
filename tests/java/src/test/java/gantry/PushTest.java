package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A push consumer gets each message once, filtered as it asked, from where it asked, and goes on where it stopped. */
@Tag("clients")
class PushTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    private static void send(DefaultMQProducer producer, String topic, String tag, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producer.send(new Message(topic, tag, (tag + i).getBytes(UTF_8)));
        }
    }

    private static TreeSet<String> expected(String tag, int from, int to) {
        return new TreeSet<>(IntStream.range(from, to).mapToObj(i -> tag + i).toList());
    }

    @Test
    void each_message_arrives_once_and_a_restarted_consumer_goes_on() throws Exception {
        String topic = stock.topic(4);
        String group = Stock.name("push");
        var producer = stock.producer();
        send(producer, topic, "a", 0, 400);
        var first = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(first.listener());
        consumer.start();
        send(producer, topic, "a", 400, 600);
        first.await(600);
        assertEquals(expected("a", 0, 600), first.distinct());
        assertEquals(600, first.size());
        for (var message : first.all()) {
            assertEquals(topic, message.getTopic());
            assertEquals(0, message.getReconsumeTimes());
        }
        stock.awaitCommitted(group, topic, 4);
        consumer.shutdown();

        send(producer, topic, "a", 600, 700);
        var second = new Inbox();
        var successor = stock.push(group);
        successor.subscribe(topic, "*");
        successor.registerMessageListener(second.listener());
        successor.start();
        second.await(100);
        assertEquals(expected("a", 600, 700), second.distinct());
        assertEquals(100, second.size());
    }

    @Test
    void a_waiting_consumer_hears_of_a_message_at_once() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("waiting"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        producer.send(new Message(topic, "warm".getBytes(UTF_8)));
        inbox.await(1);
        var waits = new TreeSet<Long>();
        for (int i = 0; i < 20; i++) {
            int before = inbox.size();
            long start = System.nanoTime();
            producer.send(new Message(topic, ("now " + i).getBytes(UTF_8)));
            inbox.await(before + 1);
            waits.add((System.nanoTime() - start) / 1_000_000);
        }
        assertTrue(waits.first() < 500, "milliseconds from send to arrival: " + waits);
    }

    @Test
    void only_messages_with_the_wanted_tags_arrive() throws Exception {
        String topic = stock.topic(2);
        var producer = stock.producer();
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("tags"));
        consumer.subscribe(topic, "red || blue");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        for (int i = 0; i < 50; i++) {
            for (String tag : new String[] {"red", "green", "blue"}) {
                send(producer, topic, tag, i, i + 1);
            }
            producer.send(new Message(topic, ("untagged" + i).getBytes(UTF_8)));
        }
        inbox.await(100);
        var wanted = expected("red", 0, 50);
        wanted.addAll(expected("blue", 0, 50));
        assertEquals(wanted, inbox.distinct());
        assertEquals(100, inbox.size());
    }

    @Test
    void tags_with_equal_hashes_are_kept_apart() throws Exception {
        String topic = stock.topic(1);
        // The broker filters by hash, on which "AaAa" and "BBBB" agree; the client compares the words.
        var producer = stock.producer();
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("hash"));
        consumer.subscribe(topic, "AaAa");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        send(producer, topic, "BBBB", 0, 10);
        send(producer, topic, "AaAa", 0, 10);
        inbox.await(10);
        assertEquals(expected("AaAa", 0, 10), inbox.distinct());
    }

    @Test
    void broadcast_reaches_every_member() throws Exception {
        String topic = stock.topic(4);
        String group = Stock.name("broadcast");
        var inboxes = new Inbox[] {new Inbox(), new Inbox(), new Inbox()};
        for (var inbox : inboxes) {
            var consumer = stock.push(group);
            // The enum's package differs between 4.x and 5.x; its values do not.
            consumer.setMessageModel(consumer.getMessageModel().valueOf("BROADCASTING"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(inbox.listener());
            consumer.start();
        }
        send(stock.producer(), topic, "all", 0, 100);
        for (var inbox : inboxes) {
            inbox.await(100);
            assertEquals(expected("all", 0, 100), inbox.distinct());
            assertEquals(100, inbox.size());
        }
    }

    @Test
    void a_new_group_starts_at_the_first_message_when_it_asks_so() throws Exception {
        String topic = stock.topic(2);
        send(stock.producer(), topic, "old", 0, 50);
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("first"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(50);
        assertEquals(expected("old", 0, 50), inbox.distinct());
    }

    @Test
    void a_new_group_starts_at_its_timestamp() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        send(producer, topic, "old", 0, 20);
        long newest = stock.read(topic, 0).get(19).getStoreTimestamp();
        // Time stamps of a consumer are whole seconds.
        long cut = (newest / 1000 + 1) * 1000;
        Await.until("the next second has come", () -> System.currentTimeMillis() > cut);
        send(producer, topic, "new", 0, 20);
        // As the client does: a queue that was never consumed starts where the search by time says.
        assertEquals(20, producer.searchOffset(Stock.queue(topic, 0), cut));
        assertEquals(0, producer.searchOffset(Stock.queue(topic, 0), 0));
        assertEquals(40, producer.searchOffset(Stock.queue(topic, 0), System.currentTimeMillis() + 60_000));

        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("timestamp"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        var format = new java.text.SimpleDateFormat("yyyyMMddHHmmss");
        consumer.setConsumeTimestamp(format.format(new java.util.Date(cut)));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        // A young topic is consumed from its beginning whatever was asked; see the next test.
        Await.until("the new ones arrive", () -> inbox.distinct().containsAll(expected("new", 0, 20)));
    }

    @Test
    void a_new_group_starts_at_the_end_when_it_asks_so_and_gets_all_that_follows() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        send(producer, topic, "old", 0, 20);
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("last"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        Await.until("the consumer has a place in the queue", () -> {
            var table = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            return table.containsKey(Stock.queue(topic, 0));
        });
        send(producer, topic, "new", 0, 20);
        Await.until("the new ones arrive", () -> inbox.distinct().containsAll(expected("new", 0, 20)));
        // A young topic, whose first message is still in memory, is consumed from its beginning by Apache's broker, so that
        // no message is lost between a topic's creation and the first start of its consumers.
        var all = expected("old", 0, 20);
        all.addAll(expected("new", 0, 20));
        assertTrue(all.containsAll(inbox.distinct()), inbox.distinct().toString());
    }
}
