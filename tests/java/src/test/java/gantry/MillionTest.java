package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.BitSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A million messages of 1 KB, sent and consumed at the same time: each acknowledged, each arrived, none failed. */
@Tag("million")
class MillionTest {
    private static final int COUNT = Integer.getInteger("gantry.million", 1_000_000);

    @Test
    @Timeout(240)
    void a_million_messages_pass_and_none_is_lost() throws Exception {
        var server = new Server("million").with("mappedFileSizeCommitLog", String.valueOf(256 << 20));
        try (server; var stock = new Stock(server.start())) {
            String topic = stock.topic(8);
            var arrived = new BitSet(COUNT);
            var distinct = new AtomicInteger();
            var consumer = stock.push(Stock.name("million"));
            consumer.setPullBatchSize(256);
            consumer.setConsumeMessageBatchMaxSize(256);
            consumer.setPullThresholdForQueue(20_000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                synchronized (arrived) {
                    for (var message : messages) {
                        int number = ByteBuffer.wrap(message.getBody()).getInt();
                        if (!arrived.get(number)) {
                            arrived.set(number);
                            distinct.incrementAndGet();
                        }
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();

            var producer = stock.producer();
            producer.setRetryTimesWhenSendAsyncFailed(0);
            var window = new Semaphore(1024);
            var acknowledged = new AtomicInteger();
            var failures = new ConcurrentLinkedQueue<String>();
            for (int i = 0; i < COUNT && failures.isEmpty(); i++) {
                window.acquire();
                byte[] body = new byte[1024];
                ByteBuffer.wrap(body).putInt(i);
                producer.send(new Message(topic, body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        window.release();
                        if (result.getSendStatus() == SendStatus.SEND_OK) {
                            acknowledged.incrementAndGet();
                        } else {
                            failures.add(result.toString());
                        }
                    }

                    @Override
                    public void onException(Throwable failure) {
                        window.release();
                        failures.add(failure.toString());
                    }
                });
            }
            Await.until("all sends are answered", () -> acknowledged.get() + failures.size() >= COUNT || !failures.isEmpty());
            assertTrue(failures.isEmpty(), () -> failures.size() + " failed, the first: " + failures.peek());
            Await.until("all arrive", Duration.ofSeconds(120), () -> distinct.get() >= COUNT, () -> distinct + " of " + COUNT);
            long stored = 0;
            for (int queue = 0; queue < 8; queue++) {
                stored += stock.maxOffset(topic, queue);
            }
            assertEquals(COUNT, stored);
            assertEquals(COUNT, arrived.cardinality());
        }
    }
}
