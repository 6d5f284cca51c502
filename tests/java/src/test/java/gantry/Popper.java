package gantry;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** One group's way to the broker, by the calls that the client's own consumers make. */
final class Popper {
    private static final Duration LONG = Duration.ofSeconds(90);
    final String topic;
    final String group;
    private final Stock stock;
    private final MQClientAPIImpl api;

    Popper(Stock stock, String topic, String group) throws Exception {
        this.stock = stock;
        this.topic = topic;
        this.group = group;
        api = stock.pull(Stock.name("poppers")).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .getMQClientAPIImpl();
    }

    PopResult pop(int count, long invisible, long wait, boolean order, String attempt) throws Exception {
        var header = new PopMessageRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(group);
        header.setQueueId(order ? 0 : -1);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(invisible);
        header.setPollTime(wait);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(order);
        header.setAttemptId(attempt);
        var answer = new CompletableFuture<PopResult>();
        api.popMessageAsync(Server.BROKER_NAME, stock.server.broker(), header, wait + 10_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable e) {
                answer.completeExceptionally(e);
            }
        });
        return answer.get(wait + 15_000, TimeUnit.MILLISECONDS);
    }

    List<MessageExt> pop(int count, long invisible, long wait) throws Exception {
        return found(pop(count, invisible, wait, false, null));
    }

    private String realTopic(MessageExt message) {
        return ExtraInfoUtil.getRealTopic(ExtraInfoUtil.split(message.getProperty("POP_CK")), topic, group);
    }

    AckStatus ack(MessageExt message) throws Exception {
        var parts = ExtraInfoUtil.split(message.getProperty("POP_CK"));
        var header = new AckMessageRequestHeader();
        header.setTopic(realTopic(message));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(message.getProperty("POP_CK"));
        var answer = new Answer();
        api.ackMessageAsync(stock.server.broker(), 10_000, answer, header);
        return answer.result.get(15, TimeUnit.SECONDS).getStatus();
    }

    AckResult change(MessageExt message, long invisible) throws Exception {
        var parts = ExtraInfoUtil.split(message.getProperty("POP_CK"));
        var header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(realTopic(message));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(message.getProperty("POP_CK"));
        header.setInvisibleTime(invisible);
        var answer = new Answer();
        api.changeInvisibleTimeAsync(Server.BROKER_NAME, stock.server.broker(), header, 10_000, answer);
        return answer.result.get(15, TimeUnit.SECONDS);
    }

    /** Pops until so many messages are there. */
    List<MessageExt> popAll(int count, long invisible) throws Exception {
        var all = new ArrayList<MessageExt>();
        long end = System.nanoTime() + LONG.toNanos();
        while (all.size() < count) {
            assertTrue(System.nanoTime() < end, "only " + all.size() + " of " + count);
            all.addAll(pop(32, invisible, 2_000));
        }
        return all;
    }

    /** When the broker gave it. */
    static long popTime(MessageExt message) {
        return ExtraInfoUtil.getPopTime(ExtraInfoUtil.split(message.getProperty("POP_CK")));
    }

    static List<MessageExt> found(PopResult result) {
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
}
