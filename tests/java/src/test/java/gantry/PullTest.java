package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Pull and lite pull: the application asks, the broker answers with what lies there and says exactly where to go on. */
@Tag("clients")
class PullTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    private String filled(int queues, int perQueue) throws Exception {
        String topic = stock.topic(queues);
        var producer = stock.producer();
        for (int i = 0; i < queues * perQueue; i++) {
            producer.send(new Message(topic, i % 2 == 0 ? "even" : "odd", String.valueOf(i).getBytes(UTF_8)),
                Stock.queue(topic, i % queues));
        }
        return topic;
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    @Test
    void a_pull_names_the_next_offset_and_the_bounds_of_the_queue() throws Exception {
        String topic = filled(1, 50);
        var queue = Stock.queue(topic, 0);
        var consumer = stock.pull(Stock.name("pull"));
        assertEquals(java.util.Set.of(queue), consumer.fetchSubscribeMessageQueues(topic));

        var page = consumer.pull(queue, "*", 10, 16);
        assertEquals(PullStatus.FOUND, page.getPullStatus());
        assertEquals(IntStream.range(10, 26).mapToObj(String::valueOf).toList(), bodies(page.getMsgFoundList()));
        assertEquals(26, page.getNextBeginOffset());
        assertEquals(0, page.getMinOffset());
        assertEquals(50, page.getMaxOffset());

        var end = consumer.pull(queue, "*", 50, 16);
        assertEquals(PullStatus.NO_NEW_MSG, end.getPullStatus());
        assertEquals(50, end.getNextBeginOffset());

        var beyond = consumer.pull(queue, "*", 51, 16);
        assertEquals(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
        assertEquals(50, beyond.getNextBeginOffset());

        var filtered = consumer.pull(queue, "nobody", 0, 16);
        assertEquals(PullStatus.NO_MATCHED_MSG, filtered.getPullStatus());
        assertTrue(filtered.getNextBeginOffset() > 0 && filtered.getNextBeginOffset() <= 50);

        var odd = consumer.pull(queue, "odd", 0, 32);
        assertTrue(bodies(odd.getMsgFoundList()).stream().allMatch(body -> Integer.parseInt(body) % 2 == 1));
    }

    @Test
    void offsets_can_be_asked_for_and_committed() throws Exception {
        String topic = filled(1, 10);
        String group = Stock.name("offsets");
        var queue = Stock.queue(topic, 0);
        var consumer = stock.pull(group);
        assertEquals(0, consumer.minOffset(queue));
        assertEquals(10, consumer.maxOffset(queue));
        long stored = stock.read(topic, 0).get(0).getStoreTimestamp();
        assertEquals(stored, consumer.earliestMsgStoreTime(queue));
        assertEquals(0, consumer.searchOffset(queue, stored));
        // The first pull makes the group; offsets of a group that the broker does not know are refused.
        assertEquals(7, consumer.pull(queue, "*", 0, 7).getNextBeginOffset());
        consumer.updateConsumeOffset(queue, 7);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(new java.util.HashSet<>(java.util.Set.of(queue)));
        Await.until("the broker knows offset 7", () -> "7".equals(Wire.call(stock.server.brokerPort, 14,
            java.util.Map.of("consumerGroup", group, "topic", topic, "queueId", "0")).getExtFields().get("offset")));
        assertEquals(7, stock.pull(group).fetchConsumeOffset(queue, true));
    }

    @Test
    void a_pull_at_the_end_waits_for_the_next_message() throws Exception {
        String topic = filled(1, 1);
        var queue = Stock.queue(topic, 0);
        var consumer = stock.pull(Stock.name("held"));
        var held = CompletableFuture.supplyAsync(() -> {
            try {
                return consumer.pullBlockIfNotFound(queue, "*", 1, 32);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        stock.producer().send(new Message(topic, "awaited".getBytes(UTF_8)));
        var page = held.get(18, TimeUnit.SECONDS);
        assertEquals(PullStatus.FOUND, page.getPullStatus());
        assertEquals(List.of("awaited"), bodies(page.getMsgFoundList()));
        assertEquals(2, page.getNextBeginOffset());
    }

    @Test
    void one_answer_is_bounded_and_all_answers_together_hold_everything() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.producer();
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        for (int i = 0; i < 12; i++) {
            var body = new byte[100_000];
            body[0] = (byte) i;
            producer.send(new Message(topic, body));
        }
        var first = stock.pull(Stock.name("large")).pull(Stock.queue(topic, 0), "*", 0, 32);
        // maxTransferBytesOnMessageInMemory is 256 KiB: two such messages fit.
        assertTrue(first.getMsgFoundList().size() >= 1 && first.getMsgFoundList().size() <= 3,
            first.getMsgFoundList().size() + " messages in one answer");
        var all = stock.read(topic, 0);
        assertEquals(12, all.size());
        for (int i = 0; i < 12; i++) {
            assertEquals(i, all.get(i).getBody()[0]);
        }
    }

    @Test
    void an_assigned_lite_consumer_reads_from_where_it_seeks() throws Exception {
        String topic = filled(2, 30);
        var consumer = stock.lite(Stock.name("assigned"));
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(10);
        consumer.start();
        var zero = Stock.queue(topic, 0);
        assertEquals(2, consumer.fetchMessageQueues(topic).size());
        consumer.assign(List.of(zero));
        consumer.seek(zero, 20);
        // A pull from before the seek may still be under way in the client (4.9.8), and its messages come first.
        var got = poll(consumer, 10, 20);
        assertEquals(IntStream.range(20, 30).mapToObj(i -> String.valueOf(i * 2)).toList(), bodies(got));
        consumer.seekToBegin(zero);
        got = poll(consumer, 30);
        assertEquals(IntStream.range(0, 30).mapToObj(i -> String.valueOf(i * 2)).toList(), bodies(got));
        consumer.commitSync();
        Await.until("the commit is known", () -> consumer.committed(zero) == 30);
        consumer.seekToEnd(zero);
        stock.producer().send(new Message(topic, "fresh".getBytes(UTF_8)), zero);
        assertEquals(List.of("fresh"), bodies(poll(consumer, 1)));
    }

    @Test
    void a_subscribed_lite_consumer_gets_all_queues_and_its_successor_goes_on() throws Exception {
        String topic = filled(4, 25);
        String group = Stock.name("subscribed");
        var consumer = stock.lite(group);
        consumer.subscribe(topic, "*");
        consumer.start();
        var got = poll(consumer, 100);
        assertEquals(new TreeSet<>(IntStream.range(0, 100).mapToObj(String::valueOf).toList()), new TreeSet<>(bodies(got)));
        // A lite consumer counts as consumed what was handed out before the poll that follows.
        consumer.poll(100);
        consumer.commitSync();
        consumer.shutdown();
        for (int queue = 0; queue < 4; queue++) {
            stock.producer().send(new Message(topic, ("next " + queue).getBytes(UTF_8)), new MessageQueue(topic, Server.BROKER_NAME, queue));
        }
        var successor = stock.lite(group);
        successor.subscribe(topic, "*");
        successor.start();
        assertEquals(new TreeSet<>(List.of("next 0", "next 1", "next 2", "next 3")), new TreeSet<>(bodies(poll(successor, 4))));
    }

    private static List<MessageExt> poll(org.apache.rocketmq.client.consumer.DefaultLitePullConsumer consumer, int count) {
        return poll(consumer, count, 0);
    }

    /** Messages from an offset on. */
    private static List<MessageExt> poll(org.apache.rocketmq.client.consumer.DefaultLitePullConsumer consumer, int count, long from) {
        var got = new ArrayList<MessageExt>();
        Await.until(count + " messages are polled", () -> {
            consumer.poll(200).stream().filter(message -> message.getQueueOffset() >= from).forEach(got::add);
            return got.size() >= count;
        });
        return got;
    }
}
