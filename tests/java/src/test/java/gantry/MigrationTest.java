package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A master is replaced by its slave of another kind while stock clients go on, with the commands of docs/replication.md. */
@Tag("interop")
class MigrationTest {
    private static final Duration PATIENCE = Duration.ofSeconds(90);

    @Test
    void clients_go_on_when_gantry_replaces_a_master_of_apache_5_that_is_killed_and_when_apache_does_so_in_turn() throws Exception {
        migrate(Server::kill, Server.Kind.APACHE_5, Server.Kind.GANTRY, Server.Kind.APACHE_5);
    }

    @Test
    void clients_go_on_when_gantry_replaces_a_master_of_apache_4_that_is_stopped() throws Exception {
        migrate(Server::stop, Server.Kind.APACHE_4, Server.Kind.GANTRY);
    }

    private static Server broker(Server names) {
        // Apache asks again until it has written that a message is ended: that has to come sooner than its next look.
        var broker = new Server("broker").with("transactionTimeOut", "1000").with("transactionCheckInterval", "2000")
            .with("transactionCheckMax", "10000").with("transactionOpBatchInterval", "100");
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    /** One kind after the other is the master, each of them as a slave first. */
    private static void migrate(Consumer<Server> ends, Server.Kind first, Server.Kind... next) throws Exception {
        var all = new ArrayDeque<Server>();
        try {
            var names = new Server("names");
            all.push(names);
            names.runsBroker = false;
            names.start(first);
            var master = broker(names);
            all.push(master);
            master.start(first);
            boolean hasTimers = first != Server.Kind.APACHE_4;
            try (var traffic = new Traffic(master, hasTimers)) {
                traffic.goesOn(master);
                for (var kind : next) {
                    var slave = broker(names);
                    all.push(slave);
                    try (var there = new Stock(master); var here = new Stock(slave)) {
                        traffic.visit(there, false);
                        traffic.openTransactions();
                        replace(traffic, master, ends, slave, kind, hasTimers);
                        traffic.goesOn(slave);
                        traffic.visit(here, true);
                        traffic.endTransactions(here);
                        if (kind == Server.Kind.GANTRY) {
                            Await.until("none is open", PATIENCE, () -> "0".equals(figure(slave, "openHalfMessages")), slave::output);
                        }
                    }
                    master = slave;
                }
                try (var here = new Stock(master)) {
                    traffic.check(here);
                }
                boolean is5 = first == Server.Kind.APACHE_5;
                HaRow.ran(is5 ? "M1" : "M1b", is5 ? "Apache 5.5.0 killed, Gantry takes over, and back" : "Apache 4.9.7 stopped, Gantry takes over",
                    traffic.sent(), "pause", traffic.pause());
            }
            master.stop();
            master.look("verify");
        } finally {
            all.forEach(Server::close);
        }
    }

    /** Starts {@code slave} beside {@code master}, which {@code ends} ends then, and puts it in its place. */
    private static void replace(Traffic traffic, Server master, Consumer<Server> ends, Server slave, Server.Kind kind,
        boolean hasTimers) throws Exception {
        slave.with("brokerRole", "SLAVE").with("brokerId", "1").start(kind);
        // Under load the master's end is ahead of what the slave can have at any moment.
        long end = Long.parseLong(figure(master, "commitLogMaxOffset"));
        Await.until("the slave has the log", PATIENCE, () -> Long.parseLong(figure(slave, "commitLogMaxOffset")) >= end, slave::output);
        if (kind == Server.Kind.GANTRY) {
            assertEquals("true", figure(slave, "masterConnected"));
        }
        // What is acknowledged from here on, the slave has. When its role changes, Apache takes timer messages of the last second in again.
        set(master, "inSyncReplicas", "2");
        set(master, "brokerRole", "SYNC_MASTER");
        traffic.goesOn(master);

        var groups = new TreeMap<String, List<Long>>();
        for (String group : List.of(traffic.orderly, traffic.concurrent, traffic.absent)) {
            groups.put(group, traffic.committed(master, group));
        }
        Set<String> delivered;
        try (var there = new Stock(master)) {
            delivered = traffic.delivered(there);
            long timers = hasTimers ? there.maxOffset("rmq_sys_wheel_timer", 0) : 0;
            var levels = levels(master);
            long now = System.currentTimeMillis();
            Await.until("the slave knows what groups have committed and what is delivered", PATIENCE, () -> {
                var knows = levels(slave);
                return knowsOffsets(traffic, slave, groups)
                    && levels.entrySet().stream().allMatch(level -> knows.getOrDefault(level.getKey(), 0L) >= level.getValue())
                    && (!hasTimers || knowsTimers(slave, timers, now));
            }, slave::output);
        }
        ends.accept(master);
        try (var here = new Stock(slave)) {
            traffic.mark(groups, delivered, here);
        }
        slave.stop();
        slave.with("brokerRole", "ASYNC_MASTER").with("brokerId", "0").start(kind);
    }

    /** A figure of {@code brokerStatus}. */
    private static String figure(Server server, String name) throws Exception {
        var line = Pattern.compile("^" + name + "\\s*:?\\s+(\\S+)$", Pattern.MULTILINE).matcher(admin("brokerStatus", "-b", server.broker()));
        return line.find() ? line.group(1) : "-1";
    }

    private static void set(Server server, String key, String value) throws Exception {
        admin("updateBrokerConfig", "-b", server.broker(), "-k", key, "-v", value);
    }

    /** What {@code gantry admin} says, which has to end well. */
    private static String admin(String... arguments) throws Exception {
        var line = new ArrayList<>(List.of(System.getProperty("gantry.binary"), "admin"));
        line.addAll(List.of(arguments));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String said = new String(process.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), () -> String.join(" ", line) + ": " + said);
        return said;
    }

    private static boolean knowsOffsets(Traffic traffic, Server server, Map<String, List<Long>> groups) throws Exception {
        for (var group : groups.entrySet()) {
            var has = traffic.committed(server, group.getKey());
            for (int queue = 0; queue < Traffic.QUEUES; queue++) {
                if (has.get(queue) < group.getValue().get(queue)) {
                    return false;
                }
            }
        }
        return true;
    }

    /** How far each delay level is delivered. */
    private static Map<String, Long> levels(Server server) throws Exception {
        String body = new String(Wire.call(server.brokerPort, 45, Map.of()).getBody(), java.nio.charset.StandardCharsets.UTF_8);
        var levels = new TreeMap<String, Long>();
        var table = Pattern.compile("offsetTable:\\{([^}]*)}").matcher(body.replace("\"", ""));
        if (table.find()) {
            var level = Pattern.compile("(\\d+):(\\d+)").matcher(table.group(1));
            while (level.find()) {
                levels.put(level.group(1), Long.parseLong(level.group(2)));
            }
        }
        return levels;
    }

    /**
     * Whether it knows of so many timer messages, and that those that were delivered at {@code now} are. Of one that was due soon it is
     * sure 5 s later, since such a one may have come too late for its time.
     */
    private static boolean knowsTimers(Server server, long count, long now) throws Exception {
        var progress = ByteBuffer.wrap(Wire.call(server.brokerPort, 60, Map.of()).getBody());
        return progress.getLong(3 * 8) >= count && progress.getLong(0) > now + 7_000;
    }
}
