package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A producer asks, a consumer answers: request() of the stock clients. */
@Tag("clients")
class RequestReplyTest {
    private static final long TIMEOUT_MS = 20_000;

    private final Server server = new Server("replies").start();
    private final Stock stock = new Stock(server);

    @AfterEach
    void close() {
        stock.close();
        server.close();
    }

    private static String text(Message message) {
        return new String(message.getBody(), UTF_8);
    }

    /** Answers each request with its text and "!". */
    private void answer(String topic) throws Exception {
        var replier = stock.producer();
        var consumer = stock.push(Stock.name("answers"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (var message : messages) {
                try {
                    replier.send(MessageUtil.createReplyMessage(message, (text(message) + "!").getBytes(UTF_8)));
                } catch (Exception failure) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private List<MessageExt> storedReplies() throws Exception {
        return stock.read(Server.CLUSTER + "_REPLY_TOPIC", 0);
    }

    @Test
    void a_request_is_answered_by_whoever_consumes_it() throws Exception {
        String topic = stock.topic(1);
        answer(topic);
        var asker = stock.producer();
        for (int i = 0; i < 5; i++) {
            var reply = asker.request(new Message(topic, "tag", ("question " + i).getBytes(UTF_8)), TIMEOUT_MS);
            assertEquals("question " + i + "!", text(reply));
        }
        Await.until("all replies are stored", () -> storedReplies().size() == 5);
        assertEquals("question 0!", text(storedReplies().get(0)));
    }

    @Test
    void many_requests_wait_at_once_and_each_gets_its_own_reply() throws Exception {
        String topic = stock.topic(4);
        answer(topic);
        var asker = stock.producer();
        var replies = new CopyOnWriteArrayList<CompletableFuture<String>>();
        for (int i = 0; i < 200; i++) {
            var reply = new CompletableFuture<String>();
            replies.add(reply);
            asker.request(new Message(topic, ("question " + i).getBytes(UTF_8)), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    reply.complete(text(message));
                }

                @Override
                public void onException(Throwable failure) {
                    reply.completeExceptionally(failure);
                }
            }, TIMEOUT_MS);
        }
        for (int i = 0; i < replies.size(); i++) {
            assertEquals("question " + i + "!", replies.get(i).get(TIMEOUT_MS, TimeUnit.MILLISECONDS));
        }
    }

    @Test
    void a_request_that_nobody_consumes_times_out() throws Exception {
        String topic = stock.topic(1);
        var asker = stock.producer();
        assertThrows(RequestTimeoutException.class, () -> asker.request(new Message(topic, "?".getBytes(UTF_8)), 1_000));
    }

    @Test
    void who_replies_to_a_client_that_is_gone_is_told() throws Exception {
        String topic = stock.topic(1);
        DefaultMQProducer asker = stock.producer();
        assertThrows(RequestTimeoutException.class, () -> asker.request(new Message(topic, "?".getBytes(UTF_8)), 1_000));
        var request = stock.read(topic, 0).get(0);
        String client = request.getProperty("REPLY_TO_CLIENT");
        asker.shutdown();
        var replier = stock.producer();
        var reply = MessageUtil.createReplyMessage(request, "too late".getBytes(UTF_8));
        Await.until("the broker knows that the client is gone", () -> {
            try {
                replier.send(reply);
                return false;
            } catch (MQClientException refusal) {
                // Clients send again after this code, and give up with the last refusal.
                assertEquals(1, refusal.getResponseCode());
                assertTrue(refusal.getCause().getMessage().contains("push reply message fail, channel of <" + client
                    + "> not found."), refusal.getCause().getMessage());
                return true;
            }
        });
        var stored = storedReplies();
        assertEquals("too late", text(stored.get(stored.size() - 1)));
    }
}
