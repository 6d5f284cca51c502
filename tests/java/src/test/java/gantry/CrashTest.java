package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** kill −9 in the middle of a load, again and again: what was acknowledged lies once where the acknowledgement said. */
@Tag("crash")
class CrashTest {
    private static final int KILLS = Integer.getInteger("gantry.kills", 10);
    private static final int QUEUES = 4;

    /** Where an acknowledgement said that a message lies. */
    private record Place(int queue, long offset) {}

    @Test
    @Timeout(180)
    void every_acknowledged_message_survives_kills_with_async_flush() throws Exception {
        survives("ASYNC_FLUSH");
    }

    @Test
    @Timeout(180)
    void every_acknowledged_message_survives_kills_with_sync_flush() throws Exception {
        survives("SYNC_FLUSH");
    }

    private static void survives(String flush) throws Exception {
        long seed = Long.getLong("gantry.seed", System.nanoTime());
        System.out.println("kill moments of " + flush + " come from -Dgantry.seed=" + seed);
        var random = new Random(seed);
        var acknowledged = new ConcurrentHashMap<Place, String>();
        var collisions = new ConcurrentLinkedQueue<String>();
        // A small segment, so that the kills meet its end, too.
        var server = new Server("crash").with("flushDiskType", flush).with("mappedFileSizeCommitLog", String.valueOf(4 << 20));
        try (server; var stock = new Stock(server.start())) {
            String topic = stock.topic(QUEUES);
            var loading = new AtomicBoolean(true);
            var numbers = new AtomicInteger();
            var threads = new ArrayList<Thread>();
            for (int i = 0; i < 4; i++) {
                boolean batches = i == 3;
                var producer = stock.producer();
                // A retry could store a message twice, which is the sender's doing and would hide ours.
                producer.setRetryTimesWhenSendFailed(0);
                producer.setSendMsgTimeout(3_000);
                int queue = i;
                var thread = new Thread(() -> {
                    while (loading.get()) {
                        var messages = new ArrayList<Message>();
                        for (int n = 0; n < (batches ? 8 : 1); n++) {
                            int number = numbers.incrementAndGet();
                            messages.add(new Message(topic, (number + " " + "x".repeat(number % 3000)).getBytes(UTF_8)));
                        }
                        try {
                            // Each queue is written by two threads, so that batches and single messages meet.
                            var target = Stock.queue(topic, (queue + messages.hashCode() % 2 + QUEUES) % QUEUES);
                            SendResult result = batches ? producer.send(messages, target) : producer.send(messages.get(0), target);
                            if (result.getSendStatus() != SendStatus.SEND_OK) {
                                continue;
                            }
                            for (int n = 0; n < messages.size(); n++) {
                                var place = new Place(target.getQueueId(), result.getQueueOffset() + n);
                                String body = new String(messages.get(n).getBody(), UTF_8);
                                String other = acknowledged.put(place, body);
                                if (other != null) {
                                    collisions.add(place + " was acknowledged to two messages");
                                }
                            }
                        } catch (Exception notAcknowledged) {
                            // The broker is away; nothing is promised for this one.
                            java.util.concurrent.locks.LockSupport.parkNanos(5_000_000);
                        }
                    }
                }, "load-" + i);
                threads.add(thread);
                thread.start();
            }
            for (int kill = 0; kill < KILLS; kill++) {
                int more = acknowledged.size() + 1 + random.nextInt(1500);
                Await.until("the load goes on after kill " + kill, () -> acknowledged.size() >= more);
                server.kill();
                server.start();
            }
            loading.set(false);
            for (var thread : threads) {
                thread.join();
            }
            assertTrue(collisions.isEmpty(), collisions.toString());
            check(stock, topic, acknowledged);
            // And once more from rest, after a clean end.
            server.stop();
            server.start();
            check(stock, topic, acknowledged);
        }
    }

    private static void check(Stock stock, String topic, Map<Place, String> acknowledged) throws Exception {
        var seen = new HashMap<String, Place>();
        int found = 0;
        for (int queue = 0; queue < QUEUES; queue++) {
            // Fails by itself if an offset is missing.
            List<org.apache.rocketmq.common.message.MessageExt> stored = stock.read(topic, queue);
            for (var message : stored) {
                var place = new Place(queue, message.getQueueOffset());
                String body = new String(message.getBody(), UTF_8);
                assertNull(seen.put(body, place), "stored twice, the second time at " + place);
                String promised = acknowledged.get(place);
                if (promised != null) {
                    assertEquals(promised, body, "at " + place);
                    found++;
                }
            }
        }
        assertEquals(acknowledged.size(), found);
    }
}
