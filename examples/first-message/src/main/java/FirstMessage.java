import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends one message and receives it. The argument, or NAMESRV_ADDR, names another name server than the one of this machine. */
public class FirstMessage {
    private static final String TOPIC = "first-topic";
    private static final long PATIENCE_SECONDS = 30;

    public static void main(String[] args) {
        String address = args.length > 0 ? args[0] : System.getenv().getOrDefault("NAMESRV_ADDR", "127.0.0.1:9876");
        int exitCode = 0;
        try {
            SendResult sent = send(address);
            System.out.println(sent);
            receive(address, sent.getMsgId());
        } catch (Exception failure) {
            System.err.println("no message went through the name server " + address + ": " + firstLine(failure)
                + "\nStart one (make run), or name another: mvn -q -f examples/first-message compile exec:java -Dexec.args=HOST:9876");
            exitCode = 1;
        }
        // Threads of the client may still run.
        System.exit(exitCode);
    }

    private static SendResult send(String address) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("first-producers");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        try {
            return producer.send(new Message(TOPIC, "Hello, Gantry".getBytes(StandardCharsets.UTF_8)));
        } finally {
            producer.shutdown();
        }
    }

    private static void receive(String address, String messageId) throws Exception {
        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("first-consumers");
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // The end waits until listeners have returned. An offset is committed after that, and without it the message comes again.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                System.out.println("received: " + new String(message.getBody(), StandardCharsets.UTF_8));
                if (message.getMsgId().equals(messageId)) {
                    received.countDown();
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!received.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the message was sent, and was not received within " + PATIENCE_SECONDS + " s");
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static String firstLine(Exception failure) {
        return String.valueOf(failure.getMessage()).lines().findFirst().orElse(failure.toString());
    }
}
