package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** A listener that keeps what arrives. */
final class Inbox {
    private final ConcurrentLinkedQueue<MessageExt> arrived = new ConcurrentLinkedQueue<>();

    MessageListenerConcurrently listener() {
        return (messages, context) -> {
            arrived.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    void add(MessageExt message) {
        arrived.add(message);
    }

    List<MessageExt> all() {
        return List.copyOf(arrived);
    }

    int size() {
        return arrived.size();
    }

    List<String> bodies() {
        return arrived.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
    }

    TreeSet<String> distinct() {
        return new TreeSet<>(bodies());
    }

    void await(int count) {
        Await.until(count + " messages arrive", java.time.Duration.ofSeconds(60), () -> size() >= count, () -> "got " + size());
    }

    void awaitDistinct(int count) {
        Await.until(count + " different messages arrive", java.time.Duration.ofSeconds(60), () -> distinct().size() >= count,
            () -> "got " + distinct().size() + " of " + size());
    }
}
