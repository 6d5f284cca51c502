package gantry;

import static gantry.Copies.*;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A folder that was copied, started as a master elsewhere: of a slave that was stopped for it, and of a broker that ran. */
@Tag("backup")
class BackupTest {
    private static final int POPPED = 6;

    /** Where a copy is started: with a name server of its own. */
    private static Server restored(String name) {
        return new Server(name).with("mappedFileSizeCommitLog", String.valueOf(FILE_BYTES));
    }

    private static int cp(Path from, Path to) throws Exception {
        if (Files.exists(to)) {
            try (var files = Files.walk(to)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
        Files.createDirectories(to.getParent());
        return new ProcessBuilder("cp", "-a", from.toString(), to.toString()).inheritIO().start().waitFor();
    }

    private static void awaitSameEnd(Server master, Server slave) {
        Await.until("the slave has the log", PATIENCE, () -> end(master) > 0 && end(master) == end(slave), slave::output);
    }

    /** Messages that wait for sixteen seconds, each with the time before which it may not come. */
    private static Map<String, Long> delayed(Stock stock, String topic) throws Exception {
        var dues = new HashMap<String, Long>();
        for (String how : List.of("level", "timer")) {
            var message = new Message(topic, how.getBytes(UTF_8));
            if (how.equals("level")) {
                message.setDelayTimeLevel(18);
            } else {
                MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "16");
            }
            dues.put(how, System.currentTimeMillis() + 16_000);
            stock.producer().send(message);
        }
        return dues;
    }

    private static void popSome(Stock stock, String topic, String group) throws Exception {
        var producer = stock.producer();
        for (int i = 0; i < POPPED; i++) {
            producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)));
        }
        var popper = new Popper(stock, topic, group);
        var popped = new TreeSet<String>();
        // Half of them are acknowledged; the others are on lease when the folder is copied, unless the machine is slow.
        Await.until("all are popped", PATIENCE, () -> {
            for (var message : popper.pop(POPPED, 40_000, 0)) {
                String body = new String(message.getBody(), UTF_8);
                popped.add(body);
                if (Integer.parseInt(body) < POPPED / 2) {
                    popper.ack(message);
                }
            }
            return popped.size() == POPPED;
        }, popped::toString);
    }

    @Test
    void the_folder_of_a_stopped_slave_is_a_master_with_all_that_there_was() throws Exception {
        try (var names = names(Server.DEFAULT); var master = broker("master", names);
            var slave = broker("slave", names).with("brokerRole", "SLAVE").with("brokerId", "1"); var restored = restored("restored")) {
            master.start(Server.Kind.GANTRY);
            slave.start(Server.Kind.GANTRY);
            var before = new Contents();
            String waits;
            String leased = Stock.name("poppers");
            String pops;
            Map<String, Long> dues;
            try (var stock = new Stock(master)) {
                String topic = stock.topic(QUEUES);
                waits = stock.topic(1);
                pops = stock.topic(1);
                send(stock, topic, 0, 4_000);
                before.extend(master);
                popSome(stock, pops, leased);
                awaitTables(before, slave);
                Await.until("the slave knows what is on lease", PATIENCE,
                    () -> String.valueOf(POPPED).equals(committed(slave, leased, pops)), slave::output);
                dues = delayed(stock, waits);
                awaitSameEnd(master, slave);
            }
            slave.stop();
            var after = new Contents();
            assertEquals(0, cp(slave.store(), restored.store()));
            slave.start(Server.Kind.GANTRY);
            after.extend(master);
            awaitSameEnd(master, slave);
            awaitTables(after, slave);

            restored.start(Server.Kind.GANTRY);
            try (var stock = new Stock(restored)) {
                before.checkMessages(stock);
                before.checkTables(restored);
                String known = new String(Wire.call(restored.brokerPort, 21, Map.of()).getBody(), UTF_8);
                assertTrue(!known.contains(after.topic), "what came after the copy");
                var popper = new Popper(stock, pops, leased);
                var again = new TreeSet<String>();
                Await.until("what nobody acknowledged comes again", PATIENCE, () -> {
                    popper.pop(POPPED, 60_000, 0).forEach(message -> again.add(new String(message.getBody(), UTF_8)));
                    return again.containsAll(Set.of("3", "4", "5"));
                }, () -> again + restored.output());
                assertEquals(Set.of("3", "4", "5"), again);
                var seen = new ArrayList<String>();
                Await.until("delayed messages come", PATIENCE, () -> {
                    seen.clear();
                    for (var message : stock.read(waits, 0)) {
                        String body = new String(message.getBody(), UTF_8);
                        assertTrue(message.getStoreTimestamp() >= dues.get(body), message + " is early");
                        seen.add(body);
                    }
                    return seen.size() == 2;
                }, () -> seen + restored.output());
                assertEquals(Set.of("level", "timer"), Set.copyOf(seen));
            }
            before.extend(restored);
            restored.stop();
            assertTrue(!Files.readString(restored.root.resolve("gantry.out")).contains("was copied while"), restored::output);
            restored.look("verify");
        }
    }

    private static String committed(Server server, String group, String topic) throws Exception {
        return Wire.call(server.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic, "queueId", "0")).getExtFields().get("offset");
    }

    /** Nothing may be missing between what is there; what is missing came after the copy was begun. */
    @Test
    void the_folder_of_a_broker_that_runs_says_so_and_ends_somewhere_without_gaps() throws Exception {
        try (var running = restored("running"); var restored = restored("copied")) {
            running.start(Server.Kind.GANTRY);
            var before = new Contents();
            before.extend(running);
            String topic;
            var acknowledged = new AtomicIntegerArray(QUEUES);
            int[] promised = new int[QUEUES];
            try (var stock = new Stock(running)) {
                topic = stock.topic(QUEUES);
                var stops = new AtomicBoolean();
                var failed = new AtomicReference<Exception>();
                var producer = stock.producer();
                var threads = new ArrayList<Thread>();
                for (int queue = 0; queue < QUEUES; queue++) {
                    int each = queue;
                    var thread = new Thread(() -> {
                        try {
                            for (int number = 0; !stops.get(); number++) {
                                var message = new Message(topic, "", "key" + number, (number + " " + "x".repeat(number % 2_000)).getBytes(UTF_8));
                                producer.send(message, Stock.queue(topic, each));
                                acknowledged.set(each, number + 1);
                            }
                        } catch (Exception e) {
                            failed.set(e);
                        }
                    });
                    threads.add(thread);
                    thread.start();
                }
                try {
                    Await.until("several files of the log", PATIENCE, () -> end(running) > 4L * FILE_BYTES, running::output);
                    // A file that goes while cp runs ends it with a status, and the copy counts for nothing.
                    Await.until("a whole copy", PATIENCE, () -> {
                        for (int queue = 0; queue < QUEUES; queue++) {
                            promised[queue] = acknowledged.get(queue);
                        }
                        return cp(running.store(), restored.store()) == 0;
                    }, running::output);
                } finally {
                    stops.set(true);
                }
                for (var thread : threads) {
                    thread.join();
                }
                assertEquals(null, failed.get());
            }
            restored.start(Server.Kind.GANTRY);
            String said = Files.readString(restored.root.resolve("gantry.out"));
            assertTrue(said.contains("was copied while a broker had it open") && said.contains("A copy of a stopped broker has all of it"), said);
            try (var stock = new Stock(restored)) {
                before.checkMessages(stock);
                before.checkTables(restored);
                for (int queue = 0; queue < QUEUES; queue++) {
                    int next = 0;
                    for (var message : stock.read(topic, queue)) {
                        assertEquals(next++, Integer.parseInt(new String(message.getBody(), UTF_8).split(" ")[0]), "queue " + queue);
                    }
                    assertTrue(next >= promised[queue], next + " of queue " + queue + ", " + promised[queue] + " were there before the copy");
                }
            }
            restored.stop();
            restored.look("verify");
        }
    }
}
