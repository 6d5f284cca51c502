import java.nio.file.Files;
import java.nio.file.Path;
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
 * How fast the stock client (5.x) gets a backlog by pulls, and by pops with acknowledgements, one thread a queue, 32 messages a request;
 * and what processor time that takes in the broker and in the client.
 *
 * <p>java -cp 'JARS/*' bench/pop/PopRate.java NAME_SERVER BROKER BROKER_NAME BROKER_PID MESSAGES BYTES [rounds]
 */
public class PopRate {
    private static final int QUEUES = 8;
    private static final int OPEN_ACKS = 1024;

    public static void main(String[] args) throws Exception {
        String nameServer = args[0];
        String broker = args[1];
        String brokerName = args[2];
        long brokerPid = Long.parseLong(args[3]);
        int messages = Integer.parseInt(args[4]);
        int bytes = Integer.parseInt(args[5]);
        int rounds = args.length > 6 ? Integer.parseInt(args[6]) : 3;
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
            double pulls = measure("pull", brokerPid, queue -> pull(consumer, new MessageQueue(topic, brokerName, queue)), 0);
            for (boolean isBatch : new boolean[] {true, false}) {
                String group = "PopRate" + round + isBatch + System.currentTimeMillis();
                measure(isBatch ? "pop, ack by batch" : "pop, ack each", brokerPid,
                    queue -> pop(api, broker, brokerName, topic, group, queue, isBatch), pulls);
            }
        }
        System.exit(0);
    }

    interface Work {
        long run(int queue) throws Exception;
    }

    /** Runs the work for all queues at once and prints a line: messages a second, processor seconds per million messages. */
    private static double measure(String name, long brokerPid, Work work, double pulls) throws Exception {
        var got = new AtomicLong();
        var threads = new ArrayList<Thread>();
        double broker = processorSeconds(brokerPid);
        double client = processorSeconds(ProcessHandle.current().pid());
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
        double rate = got.get() * 1e9 / (System.nanoTime() - start);
        double millions = got.get() / 1e6;
        System.out.printf("%-18s %8.0f/s %s, processor seconds per million: broker %.2f, client %.2f%n", name, rate,
            pulls == 0 ? "     " : String.format("(%2.0f %%)", 100 * rate / pulls),
            (processorSeconds(brokerPid) - broker) / millions,
            (processorSeconds(ProcessHandle.current().pid()) - client) / millions);
        return rate;
    }

    /** utime and stime of /proc/PID/stat, in ticks of a hundredth of a second. */
    private static double processorSeconds(long pid) throws Exception {
        String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
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
