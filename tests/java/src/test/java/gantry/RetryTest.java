package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A message that cannot be consumed comes again, later each time, and ends in the dead-letter queue; delays are kept. */
@Tag("clients")
class RetryTest {
    private final Stock stock = new Stock();

    private record Try(long at, int times, String topic, String body) {}

    @AfterEach
    void close() {
        stock.close();
    }

    @Test
    void retries_grow_and_end_in_the_dead_letter_queue() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("retry");
        List<Try> tries = new CopyOnWriteArrayList<>();
        var consumer = stock.push(group);
        consumer.setMaxReconsumeTimes(3);
        consumer.subscribe(topic, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            var message = messages.get(0);
            tries.add(new Try(System.currentTimeMillis(), message.getReconsumeTimes(), message.getTopic(),
                new String(message.getBody(), UTF_8)));
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        // The client looks for the queue of its retry topic, made at its first heartbeat, only every twenty or thirty seconds.
        Await.until("the consumer has its retry queue", java.time.Duration.ofSeconds(60), () -> {
            var table = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            return table.containsKey(Stock.queue("%RETRY%" + group, 0)) && table.containsKey(Stock.queue(topic, 0));
        }, () -> "");
        var sent = stock.producer().send(new Message(topic, "tag", "key", "poison".getBytes(UTF_8)));
        String dead = "%DLQ%" + group;
        Await.until("the message is in " + dead, java.time.Duration.ofSeconds(60), () -> stock.maxOffset(dead, 0) == 1,
            tries::toString);
        assertEquals(4, tries.size(), tries.toString());
        for (int i = 0; i < 4; i++) {
            assertEquals(i, tries.get(i).times());
            assertEquals(topic, tries.get(i).topic());
            assertEquals("poison", tries.get(i).body());
        }
        // Levels 3, 4 and 5 of the table that the server was given: 1 s, 2 s, 3 s.
        for (int i = 1; i < 4; i++) {
            long gap = tries.get(i).at() - tries.get(i - 1).at();
            assertTrue(gap >= i * 1000L - 100 && gap < i * 1000L + 5_000, "gap " + i + " was " + gap + " ms");
        }
        Await.until("the route of " + dead, () -> Wire.call(stock.server.namesrvPort, 105, java.util.Map.of("topic", dead)).getCode() == 0);
        var letter = stock.read(dead, 0).get(0);
        assertEquals("poison", new String(letter.getBody(), UTF_8));
        assertEquals(topic, letter.getProperty("RETRY_TOPIC"));
        assertEquals(sent.getOffsetMsgId(), letter.getProperty("ORIGIN_MESSAGE_ID"));
        assertEquals("tag", letter.getTags());
        assertEquals("key", letter.getKeys());
    }

    @Test
    void a_consumer_may_give_up_at_once_or_name_the_delay() throws Exception {
        String topic = stock.topic(1);
        String group = Stock.name("giveup");
        var producer = stock.producer();
        producer.send(new Message(topic, "hopeless".getBytes(UTF_8)));
        producer.send(new Message(topic, "later".getBytes(UTF_8)));
        List<Try> tries = new CopyOnWriteArrayList<>();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            var message = messages.get(0);
            String body = new String(message.getBody(), UTF_8);
            tries.add(new Try(System.currentTimeMillis(), message.getReconsumeTimes(), message.getTopic(), body));
            if (body.equals("hopeless")) {
                context.setDelayLevelWhenNextConsume(-1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            context.setDelayLevelWhenNextConsume(2);
            return message.getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Await.until("one is dead and one came twice", java.time.Duration.ofSeconds(60),
            () -> tries.size() == 3 && stock.maxOffset("%DLQ%" + group, 0) == 1, tries::toString);
        var later = tries.stream().filter(t -> t.body().equals("later")).toList();
        assertEquals(List.of(0, 1), later.stream().map(Try::times).toList());
        long gap = later.get(1).at() - later.get(0).at();
        assertTrue(gap >= 1900, "level 2 is two seconds, was " + gap + " ms");
    }

    @Test
    void a_delayed_message_appears_after_its_delay_as_it_was_sent() throws Exception {
        String topic = stock.topic(4);
        var producer = stock.producer();
        var inbox = new Inbox();
        var arrivals = new CopyOnWriteArrayList<Long>();
        var consumer = stock.push(Stock.name("delayed"));
        consumer.subscribe(topic, "slow");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(inbox::add);
            messages.forEach(message -> arrivals.add(System.currentTimeMillis() - message.getBornTimestamp()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < 20; i++) {
            var message = new Message(topic, "slow", "key" + i, ("delayed " + i).getBytes(UTF_8));
            message.putUserProperty("place", String.valueOf(i));
            message.setDelayTimeLevel(i % 2 == 0 ? 1 : 5);
            producer.send(message, Stock.queue(topic, i % 4));
        }
        inbox.await(20);
        assertEquals(20, inbox.distinct().size());
        for (int i = 0; i < 20; i++) {
            var message = inbox.all().get(i);
            int place = Integer.parseInt(message.getUserProperty("place"));
            assertEquals("delayed " + place, new String(message.getBody(), UTF_8));
            assertEquals("key" + place, message.getKeys());
            assertEquals(place % 4, message.getQueueId());
            long wanted = place % 2 == 0 ? 1000 : 3000;
            assertTrue(arrivals.get(i) >= wanted - 100, "message " + place + " came after " + arrivals.get(i) + " ms");
        }
    }
}
