package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** {@code gantry admin switchMaster}, there and back, under stock producers with their defaults: no send fails, and consumers get all of it. */
@Tag("interop")
class SwitchTest {
    private static final Duration PATIENCE = Duration.ofSeconds(120);
    private static final int QUEUES = 4;
    private static final int ASYNC_AT_ONCE = 64;

    private static Server broker(Server names) {
        var broker = new Server("broker");
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    /** The longest time in which nothing came. */
    private static final class Pause {
        private final AtomicLong last = new AtomicLong();
        private final AtomicLong longest = new AtomicLong();

        /** What was before does not count. */
        void begin() {
            last.set(System.nanoTime());
            longest.set(0);
        }

        void ends() {
            long now = System.nanoTime();
            longest.accumulateAndGet(now - last.getAndSet(now), Math::max);
        }

        Duration longest() {
            return Duration.ofNanos(longest.get());
        }
    }

    /** A producer of its own, with all settings but its name servers as stock has them, and what became of its sends. */
    private abstract static class Load {
        final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        final ConcurrentLinkedQueue<String> failed = new ConcurrentLinkedQueue<>();
        final AtomicBoolean stops = new AtomicBoolean();
        final Pause pause = new Pause();
        private Thread thread;

        abstract void send(int number) throws Exception;

        void begin() {
            thread = new Thread(() -> {
                for (int number = 0; !stops.get(); number++) {
                    try {
                        send(number);
                    } catch (Exception e) {
                        failed.add(e.toString());
                    }
                }
            });
            pause.begin();
            thread.start();
        }

        void end() throws Exception {
            stops.set(true);
            thread.join();
        }

        void heard(String body, SendResult sent) {
            if (sent.getSendStatus() != SendStatus.SEND_OK) {
                failed.add(sent.getSendStatus().toString());
                return;
            }
            acknowledged.add(body);
            pause.ends();
        }

        void goesOn(int count) {
            int before = acknowledged.size();
            Await.until(count + " more are acknowledged", PATIENCE, () -> acknowledged.size() >= before + count, failed::toString);
        }
    }

    /** As an application makes it: sends end after three seconds. */
    private static DefaultMQProducer unconfigured(Stock stock) throws Exception {
        var producer = stock.unstartedProducer();
        producer.setSendMsgTimeout(new DefaultMQProducer(Stock.name("defaults")).getSendMsgTimeout());
        producer.start();
        return producer;
    }

    private static String admin(String... arguments) throws Exception {
        var line = new ArrayList<>(List.of(System.getProperty("gantry.binary"), "admin"));
        line.addAll(List.of(arguments));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes(), UTF_8);
        assertEquals(0, process.waitFor(), said);
        return said;
    }

    private static boolean follows(Server slave) throws Exception {
        return new String(Wire.call(slave.brokerPort, 28, Map.of()).getBody(), UTF_8).contains("\"masterJournalFollowed\":\"true\"");
    }

    @Test
    void no_send_of_a_stock_producer_fails_when_masters_switch_and_switch_back() throws Exception {
        var names = new Server("names");
        names.runsBroker = false;
        try (names; var first = broker(names); var second = broker(names).with("brokerRole", "SLAVE").with("brokerId", "1")) {
            names.start(Server.Kind.GANTRY);
            first.start(Server.Kind.GANTRY);
            second.start(Server.Kind.GANTRY);
            Await.until("the slave follows", PATIENCE, () -> follows(second), second::output);
            try (var stock = new Stock(first)) {
                String topic = stock.topic(QUEUES);
                // Consumers look at their route every 30 s, and go on before.
                var pushed = new Pause();
                var concurrently = ConcurrentHashMap.<String>newKeySet();
                var push = stock.push(Stock.name("push"));
                push.subscribe(topic, "*");
                push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    messages.forEach(message -> concurrently.add(body(message)));
                    pushed.ends();
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                push.start();
                var ordered = new Pause();
                var inOrder = ConcurrentHashMap.<String>newKeySet();
                var orderly = stock.push(Stock.name("orderly"));
                orderly.subscribe(topic, "*");
                orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    messages.forEach(message -> inOrder.add(body(message)));
                    ordered.ends();
                    return ConsumeOrderlyStatus.SUCCESS;
                });
                orderly.start();

                var waiting = unconfigured(stock);
                var sync = new Load() {
                    @Override
                    void send(int number) throws Exception {
                        String body = "sync-" + number;
                        heard(body, waiting.send(new Message(topic, body.getBytes(UTF_8))));
                    }
                };
                var calling = unconfigured(stock);
                var places = new Semaphore(ASYNC_AT_ONCE);
                var async = new Load() {
                    @Override
                    void send(int number) throws Exception {
                        String body = "async-" + number;
                        places.acquire();
                        calling.send(new Message(topic, body.getBytes(UTF_8)), new SendCallback() {
                            @Override
                            public void onSuccess(SendResult sent) {
                                heard(body, sent);
                                places.release();
                            }

                            @Override
                            public void onException(Throwable e) {
                                failed.add(e.toString());
                                places.release();
                            }
                        });
                        // Steady, and not as much as the machine can do.
                        Thread.sleep(1);
                    }
                };
                sync.begin();
                async.begin();
                sync.goesOn(500);
                for (var got : List.of(concurrently, inOrder)) {
                    Await.until("messages are consumed", PATIENCE, () -> got.size() >= 500, got::toString);
                }
                pushed.begin();
                ordered.begin();
                for (var master : List.of(second, first)) {
                    sync.goesOn(500);
                    async.goesOn(500);
                    var slave = master == first ? second : first;
                    String said = admin("switchMaster", "-n", names.nameServer(), "-b", Server.BROKER_NAME, "--to", "1");
                    assertTrue(said.contains(master.broker()), said);
                    Await.until("the old master follows", PATIENCE, () -> follows(slave), slave::output);
                }
                sync.goesOn(500);
                async.goesOn(500);
                sync.end();
                async.end();
                places.acquire(ASYNC_AT_ONCE);
                System.out.println("SwitchTest: " + sync.acknowledged.size() + " sync sends, none acknowledged for " + sync.pause.longest().toMillis()
                    + " ms at most; " + async.acknowledged.size() + " async sends, " + async.pause.longest().toMillis() + " ms; none consumed for "
                    + pushed.longest().toMillis() + " ms at most, in order for " + ordered.longest().toMillis() + " ms");
                assertEquals(List.of(), List.copyOf(sync.failed), () -> first.output() + second.output());
                assertEquals(List.of(), List.copyOf(async.failed), () -> first.output() + second.output());
                var all = new HashSet<>(sync.acknowledged);
                all.addAll(async.acknowledged);
                for (var got : List.of(concurrently, inOrder)) {
                    Await.until("all are consumed", PATIENCE, () -> got.containsAll(all), () -> missing(all, got));
                }
            }
        }
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), UTF_8);
    }

    private static String missing(Set<String> all, Set<String> got) {
        var missing = new HashSet<>(all);
        missing.removeAll(got);
        return missing.size() + " are missing";
    }
}
