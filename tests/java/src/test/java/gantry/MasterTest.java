package gantry;

import static gantry.Copies.*;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A master of ours and its slaves, of Apache 5.5.0, of 4.9.7, and of ours: the same log byte for byte, its tables, reads, and who goes on after it. */
@Tag("interop")
class MasterTest {
    private static Server master(Server names) {
        return broker("master", names).with("brokerRole", "ASYNC_MASTER");
    }

    private static Server slave(Server names) {
        return broker("slave", names).with("brokerRole", "SLAVE").with("brokerId", "1").with("slaveReadEnable", "true");
    }

    private static String status(Server master) throws Exception {
        return new String(Wire.call(master.brokerPort, 907, Map.of()).getBody(), UTF_8);
    }

    /** The master has sent all that it has, and the slave has it. */
    private static void awaitInSync(Server master, Server slave) throws Exception {
        Await.until("the master says that its slave is in sync", PATIENCE, () -> {
            String status = status(master);
            return status.contains("\"inSyncSlaveNums\":1") && status.contains("\"diff\":0") && end(master) > 0 && end(master) == end(slave);
        }, () -> master.output() + slave.output());
    }

    private static void awaitRouteWithout(Server gone, String topic, Server other) {
        Await.until("it has left the route", PATIENCE, () -> {
            String route = new String(Wire.call(gone.registersAt, 105, Map.of("topic", topic)).getBody(), UTF_8);
            return !route.contains("127.0.0.1:" + gone.brokerPort) && route.contains("127.0.0.1:" + other.brokerPort);
        }, other::output);
    }

    /** A message of the first delay level, which is delivered, and a timer message, which waits. */
    private static void delayed(Stock stock, Server master) throws Exception {
        String topic = stock.topic(1);
        var first = new Message(topic, "level 1".getBytes(UTF_8));
        first.setDelayTimeLevel(1);
        stock.producer().send(first);
        var second = new Message(topic, "timer".getBytes(UTF_8));
        MessageAccessor.putProperty(second, "TIMER_DELAY_SEC", "1");
        stock.producer().send(second);
        Await.until("both are delivered", PATIENCE, () -> stock.maxOffset(topic, 0) == 2, master::output);
    }

    private static void mastersProgress(Server slave, boolean hasTimers) {
        Await.until("the slave knows what its master has delivered", PATIENCE, () -> {
            String delays = new String(Wire.call(slave.brokerPort, 45, Map.of()).getBody(), UTF_8).replace("\"", "");
            return delays.contains("1:1") && (!hasTimers || ByteBuffer.wrap(Wire.call(slave.brokerPort, 60, Map.of()).getBody()).getLong(3 * 8) == 1);
        }, slave::output);
    }

    /** {@code kind}: of the slave, which becomes the master in the end. */
    private static void isFollowed(Server.Kind kind, Server.Kind ofNames) throws Exception {
        try (var names = names(ofNames); var master = master(names); var slave = slave(names)) {
            master.start(Server.Kind.GANTRY);
            var contents = new Contents();
            contents.extend(master);
            String topic;
            try (var stock = new Stock(master)) {
                topic = stock.topic(QUEUES);
                send(stock, topic, 0, 3_000);
                delayed(stock, master);
            }
            // All of a log of several files, though a master of Apache would give the last one.
            slave.start(kind);
            awaitInSync(master, slave);
            sameBytes(master, slave, 0, end(master));
            String end = String.valueOf(end(slave));
            String told = mqadmin(master, "haStatus", "-b", master.broker(), "-n", "127.0.0.1:" + names.namesrvPort);
            assertTrue(told.lines().anyMatch(line -> line.startsWith("127.0.0.1:") && line.contains(end) && line.contains("OK")), told);

            // Each side is killed once, while messages come.
            try (var stock = new Stock(master)) {
                var sending = new Thread(() -> {
                    try {
                        send(stock, topic, 3_000, 5_000);
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                });
                sending.start();
                slave.kill();
                slave.start(kind);
                sending.join();
            }
            master.kill();
            master.start(Server.Kind.GANTRY);
            contents.extend(master);
            awaitInSync(master, slave);
            sameBytes(master, slave, 0, end(master));
            // Whatever the slave asks for has come: topics and groups (21, 201), offsets (43), progress of delays and timers (45, 60).
            awaitTables(contents, slave);
            mastersProgress(slave, kind == Server.Kind.APACHE_5);

            master.kill();
            awaitRouteWithout(master, topic, slave);
            String readers = Stock.name("readers_of_the_slave");
            try (var stock = new Stock(slave)) {
                assertEquals(5_000, consumed(stock, topic, readers, 5_000).size());
            }
            long stops = System.nanoTime();
            slave.stop();
            slave.with("brokerRole", "ASYNC_MASTER").with("brokerId", "0").start(kind);
            var restart = Duration.ofNanos(System.nanoTime() - stops);
            contents.extend(slave);
            contents.checkTables(slave);
            try (var stock = new Stock(slave)) {
                contents.checkMessages(stock);
                send(stock, topic, 5_000, 5_200);
                assertEquals(5_200, consumed(stock, topic, Stock.name("readers"), 5_200).size());
            }
            slave.stop();
            slave.look("verify");
            if (kind != Server.Kind.GANTRY) {
                boolean is5 = kind == Server.Kind.APACHE_5;
                HaRow.ran(is5 ? "M2" : "M2b", "Gantry killed, its slave of Apache " + (is5 ? "5.5.0" : "4.9.7") + " takes over", 5_200, "restart",
                    restart);
            }
        }
    }

    @Test
    void a_slave_of_apache_5_follows_and_goes_on_as_the_master() throws Exception {
        isFollowed(Server.Kind.APACHE_5, Server.Kind.APACHE_5);
    }

    @Test
    void a_slave_of_apache_4_follows_and_goes_on_as_the_master() throws Exception {
        isFollowed(Server.Kind.APACHE_4, Server.DEFAULT);
    }

    @Test
    void a_slave_of_ours_follows_and_goes_on_as_the_master() throws Exception {
        isFollowed(Server.Kind.GANTRY, Server.DEFAULT);
    }
}
