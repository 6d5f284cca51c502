package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** A whole client process: sends one by one and in a batch, plain and compressed, and consumes all of it. */
final class RoundTrip {
    private RoundTrip() {}

    public static void main(String[] arguments) {
        int code = 0;
        try {
            run(arguments[0], arguments[1]);
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        // The client's own threads would keep a failed process alive.
        System.exit(code);
    }

    private static void run(String nameServer, String topic) throws Exception {
        var producer = new DefaultMQProducer("round_trip_producers");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        var sent = new TreeSet<String>();
        for (int i = 0; i < 20; i++) {
            // Every other body is long enough to be compressed.
            String body = "round trip " + i + (i % 2 == 0 ? "" : " and on".repeat(2_000));
            sent.add(body);
            var message = new Message(topic, "tag", "ключ" + i, body.getBytes(UTF_8));
            message.putUserProperty("имя", "值" + i);
            producer.send(message);
        }
        var batch = new ArrayList<Message>();
        for (int i = 0; i < 10; i++) {
            sent.add("batched " + i);
            batch.add(new Message(topic, "tag", ("batched " + i).getBytes(UTF_8)));
        }
        producer.send(batch);

        var arrived = new ConcurrentLinkedQueue<String>();
        var consumer = new DefaultMQPushConsumer("round_trip_" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.add(new String(message.getBody(), UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Await.until("all " + sent.size() + " come back", () -> new TreeSet<>(arrived).equals(sent) && arrived.size() == sent.size());
        consumer.shutdown();
        producer.shutdown();
    }
}
