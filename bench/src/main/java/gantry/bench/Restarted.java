package gantry.bench;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Starts after a kill -9 under full load, on a store of many GB and queues, with several limits of memory: how much of the log is read again, and when
 * the first message is stored.
 */
public final class Restarted {
    private static final double GB = 1e9;
    /** The aim: so many seconds for a log of so many GB. */
    private static final double AIM_SECONDS = 3;
    private static final double AIM_GB = 20;
    private static final long PATIENCE_NANOS = 300_000_000_000L;
    private static final Pattern OPENED = Pattern.compile("store opened .*end=(\\d+) .*records_read=(\\d+)");
    private static final Pattern READY = Pattern.compile(" ready took_ms=(\\d+)");

    /** A start: what there was, and what it took. */
    private record Start(String limit, double logGb, long recordsRead, double readySeconds, double storedSeconds) {
    }

    private final Map<String, String> args;
    private final Path work;
    private final List<Start> starts = new ArrayList<>();

    private Restarted(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("gb", "20", "queues", "10000", "limits", "default,4G,1G,256M", "tries", "3", "secs", "5"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        System.exit(new Restarted(args).run() ? 0 : 1);
    }

    private boolean run() throws Exception {
        Map<String, String> conf = new TreeMap<>(Map.of("diskMaxUsedSpaceRatio", "95"));
        conf.putAll(Compare.settings(args));
        try (Peer.Gantry peer = (Peer.Gantry) Peer.of("gantry", args, work.resolve("restarted"), conf)) {
            // The load finds the server that is started again where the first one was.
            peer.namesrvPort = port();
            peer.brokerPort = port();
            peer.launch();
            peer.awaitReady();
            Topic first = new Topic(peer, "first");
            store(peer, first, System.nanoTime());
            try (Load load = new Load(peer)) {
                load.fill(Double.parseDouble(args.get("gb")) * GB);
                System.out.println("| memoryLimit | log GB | records read again | ready after, s | first message stored after, s |\n| --- | --- | --- | --- | --- |");
                for (String limit : args.get("limits").split(",")) {
                    for (int tries = Integer.parseInt(args.get("tries")); tries > 0; tries--) {
                        load.forSeconds(Double.parseDouble(args.get("secs")));
                        Start start = again(peer, first, load, limit);
                        starts.add(start);
                        System.out.printf("| %s | %.1f | %,d | %.2f | %.2f |%n", start.limit, start.logGb, start.recordsRead, start.readySeconds, start.storedSeconds);
                    }
                }
            }
        }
        keep();
        return holds();
    }

    /** The load stands still meanwhile: it would have the processor that the start needs. */
    private Start again(Peer.Gantry peer, Topic topic, Load load, String limit) throws Exception {
        load.signal("-STOP");
        peer.kill();
        if (limit.equals("default")) {
            peer.conf.remove("memoryLimit");
        } else {
            peer.conf.put("memoryLimit", limit);
        }
        long began = System.nanoTime();
        peer.launch();
        double stored = store(peer, topic, began);
        peer.awaitReady();
        load.signal("-CONT");
        String log = Files.readString(peer.log());
        Matcher opened = found(OPENED, log);
        return new Start(limit, Long.parseLong(opened.group(1)) / GB, Long.parseLong(opened.group(2)), Long.parseLong(found(READY, log).group(1)) / 1e3, stored);
    }

    private static Matcher found(Pattern pattern, String log) throws IOException {
        Matcher matcher = pattern.matcher(log);
        if (!matcher.find()) {
            throw new IOException("the log does not say " + pattern + ": " + log);
        }
        return matcher;
    }

    /** Seconds until a message is stored, which is tried all the time. */
    private static double store(Peer peer, Topic topic, long began) throws Exception {
        DefaultMQProducer producer = topic.producer();
        producer.setSendMsgTimeout(1_000);
        try {
            while (true) {
                try {
                    producer.send(topic.message(1024, 0));
                    return (System.nanoTime() - began) / 1e9;
                } catch (Exception notYet) {
                    if (!peer.processes.get(0).isAlive() || System.nanoTime() - began > PATIENCE_NANOS) {
                        throw new IOException("the server does not serve: " + Peer.lastWords(peer.log()), notYet);
                    }
                    Thread.sleep(2);
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    /** Below the range from which outgoing connections have theirs, and with room beside it. */
    private static int port() {
        while (true) {
            int port = 28_000 + 8 * ThreadLocalRandom.current().nextInt(400);
            try (ServerSocket socket = new ServerSocket()) {
                socket.setReuseAddress(true);
                socket.bind(new InetSocketAddress("127.0.0.1", port));
                return port;
            } catch (IOException taken) {
                // another one
            }
        }
    }

    private boolean holds() {
        boolean holds = true;
        for (String limit : args.get("limits").split(",")) {
            List<Start> those = starts.stream().filter(start -> start.limit.equals(limit)).toList();
            double median = Compare.median(those, Start::storedSeconds);
            double most = args.containsKey("most") ? Double.parseDouble(args.get("most"))
                : AIM_SECONDS * Math.max(1, Compare.median(those, Start::logGb) / AIM_GB);
            if (median > most) {
                System.out.printf("PROBLEM memoryLimit %s: the first message is stored after %.2f s by the median, which may be %.2f%n", limit, median, most);
                holds = false;
            }
        }
        return holds;
    }

    private void keep() throws IOException {
        JSONArray rows = new JSONArray();
        starts.forEach(start -> rows.add(JSONObject.of("memoryLimit", start.limit, "logGb", start.logGb, "recordsReadAgain", start.recordsRead,
            "readySeconds", start.readySeconds, "storedSeconds", start.storedSeconds)));
        Kept.write(args, "restart", JSONObject.of("format", "gantry-restart/1", "starts", rows));
    }

    /** Producers that go on and on, if nobody stops them, and find the server again. */
    private final class Load implements AutoCloseable {
        private final Peer peer;
        private final Process process;

        Load(Peer peer) throws IOException {
            this.peer = peer;
            process = new ProcessBuilder(args.get("gantry"), "bench", "run", "--preset", "auto-batch-10000", "-n", peer.namesrv, "--set",
                "subscriptionsPerTopic=0", "--set", "partitionsPerTopic=" + args.get("queues"), "--warmup", "0", "--seconds", "86400", "--keep-topics", "--quiet")
                .redirectErrorStream(true).redirectOutput(work.resolve("restart.log").toFile()).start();
        }

        void fill(double bytes) throws Exception {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
            admin.setNamesrvAddr(peer.namesrv);
            admin.setInstanceName("fill" + System.nanoTime());
            admin.start();
            String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
            while (Double.parseDouble(admin.fetchBrokerRuntimeStats(broker).getTable().get("commitLogMaxOffset")) < bytes) {
                forSeconds(0.5);
            }
            admin.shutdown();
        }

        void forSeconds(double seconds) throws Exception {
            if (process.waitFor((long) (seconds * 1e3), TimeUnit.MILLISECONDS)) {
                throw new IOException("the load ended: " + Files.readString(work.resolve("restart.log")));
            }
        }

        void signal(String signal) throws Exception {
            new ProcessBuilder("kill", signal, "" + process.pid()).inheritIO().start().waitFor();
        }

        @Override
        public void close() throws Exception {
            process.destroyForcibly().waitFor();
        }
    }
}
