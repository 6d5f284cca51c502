package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopLiteMessageRequestHeader;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Lite topics popped by the calls of the stock 5.5.0 client, which its proxy makes. */
@Tag("clients")
class LitePopTest {
    private final Server server = new Server("lite-pop").with("enableLmq", "true").with("enableMultiDispatch", "true").start();
    private final Stock stock = new Stock(server);
    private final Lite lite = new Lite(server);
    private final String group = Stock.name("chatters");
    private String topic;
    private MQClientAPIImpl api;

    @AfterEach
    void close() {
        stock.close();
        server.close();
    }

    private void begin(String attributes) throws Exception {
        topic = lite.parent();
        lite.group(group, "\"+lite.bind.topic\":\"" + topic + "\"" + attributes);
        api = stock.pull(Stock.name("poppers")).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .getMQClientAPIImpl();
    }

    private void say(String room, String... texts) throws Exception {
        for (String text : texts) {
            var message = new Message(topic, text.getBytes(UTF_8));
            MessageAccessor.putProperty(message, "__LITE_TOPIC", room);
            stock.producer().send(message);
        }
    }

    private CompletableFuture<PopResult> pop(String client, int count, long invisible, long wait) throws Exception {
        var header = new PopLiteMessageRequestHeader();
        header.setClientId(client);
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setMaxMsgNum(count);
        header.setInvisibleTime(invisible);
        header.setPollTime(wait);
        header.setBornTime(System.currentTimeMillis());
        var answer = new CompletableFuture<PopResult>();
        api.popLiteMessageAsync(Server.BROKER_NAME, server.broker(), header, wait + 10_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable e) {
                answer.completeExceptionally(e);
            }
        });
        return answer;
    }

    private static List<MessageExt> found(CompletableFuture<PopResult> pop) throws Exception {
        var result = pop.get(30, TimeUnit.SECONDS);
        return result.getPopStatus() == PopStatus.FOUND ? result.getMsgFoundList() : List.of();
    }

    private static final class Answer implements AckCallback {
        final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult ack) {
            result.complete(ack);
        }

        @Override
        public void onException(Throwable e) {
            result.completeExceptionally(e);
        }
    }

    private AckStatus ack(MessageExt message) throws Exception {
        String handle = message.getProperty("POP_CK");
        var header = new AckMessageRequestHeader();
        header.setTopic(topic);
        header.setLiteTopic(message.getProperty("__LITE_TOPIC"));
        header.setConsumerGroup(group);
        header.setQueueId(0);
        header.setOffset(ExtraInfoUtil.getQueueOffset(ExtraInfoUtil.split(handle)));
        header.setExtraInfo(handle);
        var answer = new Answer();
        api.ackLiteMessageAsync(server.broker(), 10_000, answer, header);
        return answer.result.get(15, TimeUnit.SECONDS).getStatus();
    }

    private AckStatus change(MessageExt message, long invisible, boolean suspend) throws Exception {
        String handle = message.getProperty("POP_CK");
        var header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(topic);
        header.setLiteTopic(message.getProperty("__LITE_TOPIC"));
        header.setConsumerGroup(group);
        header.setQueueId(0);
        header.setOffset(ExtraInfoUtil.getQueueOffset(ExtraInfoUtil.split(handle)));
        header.setExtraInfo(handle);
        header.setInvisibleTime(invisible);
        header.setSuspend(suspend);
        var answer = new Answer();
        api.changeInvisibleTimeAsync(Server.BROKER_NAME, server.broker(), header, 10_000, answer);
        return answer.result.get(15, TimeUnit.SECONDS).getStatus();
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody(), UTF_8)).collect(Collectors.toList());
    }

    private static List<Integer> tries(List<MessageExt> messages) {
        return messages.stream().map(MessageExt::getReconsumeTimes).collect(Collectors.toList());
    }

    @Test
    void a_client_pops_its_lite_topics_in_order_and_goes_on_when_all_is_acknowledged() throws Exception {
        begin("");
        assertEquals(0, lite.subscribe("PARTIAL_ADD", "c1", group, topic, "\"room-1\",\"room-2\""));
        var waiting = pop("c1", 32, 60_000, 15_000);
        say("room-3", "nobody's");
        say("room-1", "1");
        var first = found(waiting);
        assertEquals(List.of("1"), bodies(first));
        assertEquals(0, first.get(0).getQueueOffset());
        say("room-1", "2", "3");
        assertEquals(List.of(), bodies(found(pop("c1", 32, 60_000, 1_000))), "one batch of a lite topic at a time");
        var next = pop("c1", 32, 60_000, 15_000);
        assertEquals(AckStatus.OK, ack(first.get(0)));
        var second = found(next);
        assertEquals(List.of("2", "3"), bodies(second));
        assertEquals(1, second.get(0).getQueueOffset());
        say("room-2", "other");
        assertEquals(List.of("other"), bodies(found(pop("c1", 32, 60_000, 15_000))));
        for (var message : second) {
            assertEquals(AckStatus.OK, ack(message));
        }
        assertEquals(List.of(), bodies(found(pop("c1", 32, 60_000, 1_000))));
    }

    @Test
    void what_is_not_acknowledged_comes_again_and_a_queue_may_be_put_off() throws Exception {
        begin("");
        assertEquals(0, lite.subscribe("COMPLETE_ADD", "c1", group, topic, "\"room\""));
        say("room", "a", "b");
        var first = found(pop("c1", 32, 2_000, 15_000));
        // The first message alone, if the second one came while it was given out.
        assertTrue(!first.isEmpty());
        var again = found(pop("c1", 32, 60_000, 15_000));
        assertEquals(List.of("a", "b"), bodies(again));
        assertEquals(1, tries(again.subList(0, 1)).get(0));
        assertEquals(AckStatus.OK, change(again.get(0), 500, true));
        var third = found(pop("c1", 32, 60_000, 15_000));
        assertEquals(List.of("a", "b"), bodies(third));
        for (var message : third) {
            assertEquals(AckStatus.OK, ack(message));
        }
        assertEquals(List.of(), bodies(found(pop("c1", 32, 60_000, 1_000))));
    }

    @Test
    void a_lite_topic_of_an_exclusive_group_belongs_to_the_last_who_wants_it() throws Exception {
        begin(",\"+lite.sub.model\":\"Exclusive\"");
        assertEquals(0, lite.subscribe("PARTIAL_ADD", "c1", group, topic, "\"room\""));
        assertEquals(0, lite.subscribe("PARTIAL_ADD", "c2", group, topic, "\"room\""));
        var loser = pop("c1", 32, 60_000, 3_000);
        var winner = pop("c2", 32, 60_000, 15_000);
        say("room", "x");
        assertEquals(List.of("x"), bodies(found(winner)));
        assertEquals(List.of(), bodies(found(loser)));
    }
}
