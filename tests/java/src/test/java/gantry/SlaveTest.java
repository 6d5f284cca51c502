package gantry;

import static gantry.Copies.*;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A slave of a master of Apache 5.5.0: the same log byte for byte, its tables, and reads when the master is gone. */
@Tag("interop")
class SlaveTest {
    private static Server master(Server names) {
        return broker("master", names).with("slaveReadEnable", "true");
    }

    private static Server slave(Server names) {
        return broker("slave", names).with("brokerRole", "SLAVE").with("brokerId", "1").with("slaveReadEnable", "true");
    }

    /** A topic of batches whose first message, which is none, comes before the slave has heard of the topic; then a batch of six. */
    private static String ofBatches(Stock stock, Server master) throws Exception {
        String name = Stock.name("batches");
        var made = Wire.call(master.brokerPort, 17, Map.of("topic", name, "defaultTopic", "TBW102", "readQueueNums", "1",
            "writeQueueNums", "1", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false",
            "attributes", "+queue.type=BatchCQ"));
        assertEquals(0, made.getCode(), made::toString);
        Await.until("the topic is routed", () -> Wire.call(master.registersAt, 105, Map.of("topic", name)).getCode() == 0);
        stock.producer().send(new Message(name, "0 alone".getBytes(UTF_8)));
        var batch = new ArrayList<Message>();
        for (int i = 1; i < 7; i++) {
            batch.add(new Message(name, (i + " of a batch").getBytes(UTF_8)));
        }
        stock.producer().send(batch);
        return name;
    }

    /** The master says so itself, and the slave has all of its log. */
    private static void awaitInSync(Server master, Server slave) throws Exception {
        Await.until("the master says that its slave is in sync", PATIENCE, () -> {
            String status = new String(Wire.call(master.brokerPort, 907, Map.of()).getBody(), UTF_8);
            return status.contains("\"inSync\":true") && status.contains("\"inSyncSlaveNums\":1") && status.contains("\"diff\":0")
                && end(master) > 0 && end(master) == end(slave);
        }, slave::output);
        String own = new String(Wire.call(slave.brokerPort, 907, Map.of()).getBody(), UTF_8);
        assertTrue(own.contains("\"activated\":true") && own.contains("\"master\":false"), own);
        Await.until("the slave knows how far it is behind", PATIENCE, () -> figure(slave, "masterBehindBytes") == 0, slave::output);
    }

    private static String remark(Server server, int code, Map<String, String> fields, int answer) throws Exception {
        var said = Wire.call(server.brokerPort, code, fields);
        assertEquals(answer, said.getCode(), said::toString);
        return said.getRemark();
    }

    @Test
    void a_slave_of_apache_5_has_its_log_and_serves_it_when_the_master_is_gone() throws Exception {
        try (var names = names(Server.Kind.APACHE_5); var master = master(names); var slave = slave(names)) {
            master.start(Server.Kind.APACHE_5);
            var contents = new Contents();
            contents.extend(master);
            String topic;
            String readers = Stock.name("readers_of_the_slave");
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                send(stock, topic, 0, 3_000);
            }
            // A whole copy, though Apache's master would give the last of its files.
            slave.start(Server.Kind.GANTRY);
            awaitInSync(master, slave);
            sameBytes(master, slave, 0, end(master));

            contents.extend(master);
            String batches;
            try (var stock = new Stock(master)) {
                batches = ofBatches(stock, master);
            }
            var stops = new AtomicBoolean();
            try (var stock = new Stock(master)) {
                var sending = new Thread(() -> {
                    try {
                        send(stock, topic, 3_000, 6_000);
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    } finally {
                        stops.set(true);
                    }
                });
                sending.start();
                while (!stops.get()) {
                    slave.kill();
                    slave.start(Server.Kind.GANTRY);
                }
                sending.join();
                var late = new Message(stock.topic(1), "late".getBytes(UTF_8));
                late.setDelayTimeLevel(1);
                stock.producer().send(late);
                Await.until("it is delivered", () -> stock.maxOffset(late.getTopic(), 0) == 1);
            }
            awaitInSync(master, slave);
            sameBytes(master, slave, 0, end(master));
            // Tables, as the master has them: what is read here comes from the master, the rest from the slave.
            awaitTables(contents, slave);
            contents.check(master);

            assertTrue(remark(slave, 17, Map.of("topic", "new", "defaultTopic", "TBW102", "readQueueNums", "1", "writeQueueNums", "1",
                "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"), 1).startsWith("Can't modify topic"));
            assertTrue(remark(slave, 310, Map.of("a", "p", "b", topic, "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0",
                "i", ""), 2).startsWith("[REJECTREQUEST]"));

            long end = end(master);
            master.stop();
            Await.until("the master has left the route", PATIENCE, () -> {
                var route = Wire.call(names.namesrvPort, 105, Map.of("topic", topic));
                return !new String(route.getBody(), UTF_8).contains("127.0.0.1:" + master.brokerPort);
            }, slave::output);
            try (var stock = new Stock(slave)) {
                assertEquals(6_000, consumed(stock, topic, readers, 6_000).size());
                for (int queue = 0; queue < QUEUES; queue++) {
                    stock.read(topic, queue);
                }
                contents.checkMessages(stock);
                assertEquals(7, stock.maxOffset(batches, 0));
                assertEquals(7, consumed(stock, batches, Stock.name("readers"), 7).size());
                stock.awaitCommitted(readers, topic, QUEUES);
            }
            // Without its master, and with what was committed there.
            slave.stop();
            slave.look("verify");
            slave.start(Server.Kind.GANTRY);
            assertEquals(end, end(slave));
            // Apache's name server tells clients nothing of the topics of a slave that comes alone, so it is asked itself.
            try (var stock = new Stock(slave)) {
                stock.awaitCommitted(readers, topic, QUEUES);
                for (int queue = 0; queue < QUEUES; queue++) {
                    remark(slave, 11, Map.of("consumerGroup", readers, "topic", topic, "queueId", String.valueOf(queue), "queueOffset", "0",
                        "maxMsgNums", "32", "sysFlag", "4", "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*",
                        "subVersion", "0"), 0);
                }
            }

            master.start(Server.Kind.APACHE_5);
            contents.extend(master);
            awaitInSync(master, slave);
            sameBytes(master, slave, 0, end(master));
            slave.stop();
            slave.look("verify");
        }
    }

    @Test
    void a_slave_of_apache_4_has_its_log_and_tables_and_serves_it_when_the_master_is_gone() throws Exception {
        try (var names = names(Server.DEFAULT); var master = master(names); var slave = slave(names)) {
            master.start(Server.Kind.APACHE_4);
            var contents = new Contents();
            contents.extend(master);
            String topic;
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                send(stock, topic, 0, 4_000);
            }
            slave.start(Server.Kind.GANTRY);
            contents.extend(master);
            // A master of 4.9 does not say how far its slaves are.
            Await.until("the slave has the log", PATIENCE, () -> end(master) > 0 && end(master) == end(slave), slave::output);
            sameBytes(master, slave, 0, end(master));
            awaitTables(contents, slave);
            master.stop();
            Await.until("the master has left the route", PATIENCE, () -> {
                var route = Wire.call(names.namesrvPort, 105, Map.of("topic", topic));
                return !new String(route.getBody(), UTF_8).contains("127.0.0.1:" + master.brokerPort);
            }, slave::output);
            try (var stock = new Stock(slave)) {
                assertEquals(4_000, consumed(stock, topic, Stock.name("readers"), 4_000).size());
                contents.checkMessages(stock);
            }
            slave.stop();
            slave.look("verify");
        }
    }

    @Test
    void a_slave_begins_where_the_log_of_apache_5_begins() throws Exception {
        try (var names = names(Server.DEFAULT); var master = master(names); var slave = slave(names)) {
            master.start(Server.Kind.APACHE_5);
            String topic;
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                send(stock, topic, 0, 5_000);
            }
            master.stop();
            // As if they had expired.
            for (int i = 0; i < 2; i++) {
                Files.delete(files(master).get(0));
            }
            master.start(Server.Kind.APACHE_5);
            slave.with("flushDiskType", "SYNC_FLUSH").start(Server.Kind.GANTRY);
            awaitInSync(master, slave);
            sameBytes(master, slave, 2L * FILE_BYTES, end(master));
            try (var stock = new Stock(master)) {
                send(stock, topic, 5_000, 6_000);
            }
            slave.kill();
            slave.start(Server.Kind.GANTRY);
            awaitInSync(master, slave);
            sameBytes(master, slave, 2L * FILE_BYTES, end(master));
            var ends = new HashSet<Long>();
            try (var of = new Stock(master); var here = new Stock(slave)) {
                for (int queue = 0; queue < QUEUES; queue++) {
                    assertEquals(of.maxOffset(topic, queue), here.maxOffset(topic, queue));
                    ends.add(here.minOffset(topic, queue));
                }
            }
            assertFalse(ends.contains(0L), ends::toString);
            slave.stop();
            slave.look("verify");
        }
    }

    @Test
    void a_slave_that_becomes_the_master_goes_on_with_what_waits() throws Exception {
        try (var names = names(Server.Kind.APACHE_5); var master = master(names); var slave = slave(names)) {
            master.start(Server.Kind.APACHE_5);
            slave.start(Server.Kind.GANTRY);
            String topic;
            String group = Stock.name("readers");
            var dues = new HashMap<String, Long>();
            try (var stock = new Stock(master)) {
                topic = stock.topic(1);
                assertEquals(0, Wire.call(master.brokerPort, 200, Map.of(), ("{\"groupName\":\"" + group + "\"}").getBytes(UTF_8)).getCode());
                var seconds = Server.DELAY_LEVELS.replace("s", "").split(" ");
                for (int level : new int[] {1, 2, 15, 18}) {
                    var message = new Message(topic, ("level " + level).getBytes(UTF_8));
                    message.setDelayTimeLevel(level);
                    dues.put("level " + level, System.currentTimeMillis() + Long.parseLong(seconds[level - 1]) * 1000);
                    stock.producer().send(message);
                }
                for (int wait : new int[] {1, 2, 30, 45}) {
                    var message = new Message(topic, ("timer " + wait).getBytes(UTF_8));
                    MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", String.valueOf(wait));
                    dues.put("timer " + wait, System.currentTimeMillis() + wait * 1000L);
                    stock.producer().send(message);
                }
                Await.until("the first are delivered", PATIENCE, () -> stock.maxOffset(topic, 0) >= 4, master::output);
                assertEquals(0, Wire.call(master.brokerPort, 15, Map.of("consumerGroup", group, "topic", topic, "queueId", "0",
                    "commitOffset", "3")).getCode());
            }
            awaitInSync(master, slave);
            Await.until("the slave knows what its master has delivered", PATIENCE, () -> {
                String delays = new String(Wire.call(slave.brokerPort, 45, Map.of()).getBody(), UTF_8);
                var marks = java.nio.ByteBuffer.wrap(Wire.call(slave.brokerPort, 60, Map.of()).getBody());
                boolean timers = marks.getLong(3 * 8) == 4 && marks.getLong(0) > dues.get("timer 2") + 1_000;
                String committed = Wire.call(slave.brokerPort, 14, Map.of("consumerGroup", group, "topic", topic, "queueId", "0"))
                    .getExtFields().get("offset");
                return delays.replace("\"", "").contains("2:1") && timers && "3".equals(committed);
            }, slave::output);
            master.stop();
            slave.stop();
            slave.look("verify");
            slave.with("brokerRole", "ASYNC_MASTER").with("brokerId", "0").start(Server.Kind.GANTRY);
            try (var stock = new Stock(slave)) {
                var seen = new HashMap<String, Integer>();
                Await.until("all are delivered", PATIENCE, () -> {
                    seen.clear();
                    for (var message : stock.read(topic, 0)) {
                        String body = new String(message.getBody(), UTF_8);
                        assertTrue(message.getStoreTimestamp() >= dues.get(body), message + " is early");
                        seen.merge(body, 1, Integer::sum);
                    }
                    return seen.keySet().equals(dues.keySet());
                }, () -> seen + slave.output());
                for (String first : List.of("level 1", "level 2", "timer 1", "timer 2")) {
                    assertEquals(1, seen.get(first), first + ": the slave knew that it was delivered");
                }
                assertEquals("3", stock.committed(group, topic, 0));
                send(stock, stock.topic(QUEUES), 0, 100);
            }
            slave.stop();
            slave.look("verify");
        }
    }
}
