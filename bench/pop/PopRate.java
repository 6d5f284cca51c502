import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * How fast the stock client (5.x) gets a backlog by pulls, and by pops with acknowledgements, one thread a queue, 32 messages a request.
 *
 * <p>java -cp 'JARS/*' bench/pop/PopRate.java NAME_SERVER BROKER BROKER_NAME MESSAGES BYTES [rounds]
 */
public class PopRate {
    private static final int QUEUES = 8;
    private static final int OPEN_ACKS = 1024;

    public static void main(String[] args) throws Exception {
        String nameServer = args[0];
        String broker = args[1];
        String brokerName = args[2];
        int messages = Integer.parseInt(args[3]);
        int bytes = Integer.parseInt(args[4]);
        int rounds = args.length > 5 ? Integer.parseInt(args[5]) : 3;
        String topic = "PopRate" + System.currentTimeMillis();
        var producer = new DefaultMQProducer("PopRate");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        producer.createTopic("TBW102", topic, QUEUES, null);
        Thread.sleep(2_000);
        byte[] body = new byte[bytes];
        for (int sent = 0; sent < messages; ) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                batch.add(new Message(topic, body));
            }
            producer.send(batch, new MessageQueue(topic, brokerName, sent / 100 % QUEUES), 20_000);
            sent += 100;
        }
        System.out.println(messages + " messages of " + bytes + " bytes in " + QUEUES + " queues");
        var consumer = new DefaultMQPullConsumer("PopRate");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        for (int queue = 0; queue < QUEUES; queue++) {
            consumer.pull(new MessageQueue(topic, brokerName, queue), "*", 0, 1);
        }
        var api = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQClientAPIImpl();
        for (int round = 0; round < rounds; round++) {
            double pulls = rate(queue -> pull(consumer, new MessageQueue(topic, brokerName, queue)));
            System.out.printf("pull %.0f/s", pulls);
            for (boolean isBatch : new boolean[] {true, false}) {
                String group = "PopRate" + round + isBatch + System.currentTimeMillis();
                double pops = rate(queue -> pop(api, broker, brokerName, topic, group, queue, isBatch));
                System.out.printf(", pop and %s %.0f/s (%.0f %%)", isBatch ? "ack by batch" : "ack each", pops, 100 * pops / pulls);
            }
            System.out.println();
        }
        System.exit(0);
    }

    interface Work {
        long run(int queue) throws Exception;
    }

    private static double rate(Work work) throws Exception {
        var got = new AtomicLong();
        var threads = new ArrayList<Thread>();
        long start = System.nanoTime();
        for (int i = 0; i < QUEUES; i++) {
            int queue = i;
            var thread = new Thread(() -> {
                try {
                    got.addAndGet(work.run(queue));
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (var thread : threads) {
            thread.join();
        }
        return got.get() * 1e9 / (System.nanoTime() - start);
    }

    private static long pull(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long next = 0;
        while (true) {
            var page = consumer.pull(queue, "*", next, 32);
            if (page.getMsgFoundList() == null || page.getMsgFoundList().isEmpty()) {
                return next;
            }
            next = page.getNextBeginOffset();
        }
    }

    private static long pop(MQClientAPIImpl api, String broker, String brokerName, String topic, String group, int queue,
        boolean isBatch) throws Exception {
        var open = new Semaphore(OPEN_ACKS);
        long got = 0;
        while (true) {
            var header = new PopMessageRequestHeader();
            header.setTopic(topic);
            header.setConsumerGroup(group);
            header.setQueueId(queue);
            header.setMaxMsgNums(32);
            header.setInvisibleTime(60_000);
            header.setPollTime(0);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(0);
            header.setExpType("TAG");
            header.setExp("*");
            header.setOrder(false);
            var answer = new CompletableFuture<PopResult>();
            api.popMessageAsync(brokerName, broker, header, 10_000, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable e) {
                    answer.completeExceptionally(e);
                }
            });
            var result = answer.get(20, TimeUnit.SECONDS);
            if (result.getPopStatus() != PopStatus.FOUND) {
                open.acquire(OPEN_ACKS);
                return got;
            }
            got += result.getMsgFoundList().size();
            if (isBatch) {
                open.acquire();
                var handles = result.getMsgFoundList().stream().map(message -> message.getProperty("POP_CK")).toList();
                api.batchAckMessageAsync(broker, 10_000, new Done(open), topic, group, handles);
                continue;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                var ack = new AckMessageRequestHeader();
                ack.setTopic(topic);
                ack.setConsumerGroup(group);
                ack.setQueueId(queue);
                ack.setOffset(message.getQueueOffset());
                ack.setExtraInfo(message.getProperty("POP_CK"));
                open.acquire();
                api.ackMessageAsync(broker, 10_000, new Done(open), ack);
            }
        }
    }

    private record Done(Semaphore open) implements AckCallback {
        @Override
        public void onSuccess(AckResult ignored) {
            open.release();
        }

        @Override
        public void onException(Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
    }
}
