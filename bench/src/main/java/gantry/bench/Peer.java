package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker under load: its processes, its address, and what the kernel says that it used. */
abstract class Peer implements AutoCloseable {
    final String name;
    final Path folder;
    final Map<String, String> conf;
    final List<Process> processes = new ArrayList<>();
    /** What the broker's command begins with. */
    List<String> prefix = List.of();
    String namesrv;
    /** Where the broker listens. */
    String address;
    /** The broker's copy, if {@link #follow} started one. */
    Process copy;

    Peer(String name, Path folder, Map<String, String> conf) {
        this.name = name;
        this.folder = folder;
        this.conf = conf;
    }

    /** Launches the processes and returns; {@link #awaitReady} waits until they serve. */
    abstract void launch() throws Exception;

    abstract void awaitReady() throws Exception;

    /** Starts a slave of the broker, which has to be ready and of the name that {@link #SET} gives. */
    void follow() throws Exception {
        throw new UnsupportedOperationException(name + " is measured without copies");
    }

    /** Starts a slave and waits until it is level, for <code>slave=ROLE</code>, which says what role its master has. */
    void followed(Map<String, String> args) throws Exception {
        if (args.containsKey("slave")) {
            follow();
            awaitLevel(args.get("gantry"));
        }
    }

    /** Until the master has one slave, in sync, that has all of its log; the binary asks. */
    void awaitLevel(String gantry) throws Exception {
        long deadline = System.nanoTime() + 120_000_000_000L;
        String said = "";
        while (System.nanoTime() < deadline) {
            Process asked = new ProcessBuilder(gantry, "admin", "haStatus", "--json", "-n", namesrv, "-b", address).start();
            said = new String(asked.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (asked.waitFor() == 0 && isLevel(said)) {
                return;
            }
            Thread.sleep(100);
        }
        throw new IOException("the slave is not level with its master: " + said);
    }

    private static boolean isLevel(String said) {
        for (Object broker : JSON.parseObject(said).getJSONObject("brokers").values()) {
            JSONArray slaves = ((JSONObject) broker).getJSONArray("haConnectionInfo");
            if (slaves.size() != 1 || !slaves.getJSONObject(0).getBooleanValue("inSync") || slaves.getJSONObject(0).getLongValue("diff") != 0) {
                return false;
            }
        }
        return true;
    }

    /** What a broker and its slave have in common. */
    static final Map<String, String> SET = Map.of("brokerClusterName", "C", "brokerName", "b", "brokerIP1", "127.0.0.1", "brokerIP2", "127.0.0.1",
        "bindAddress", "127.0.0.1");

    /** What makes a broker a master of this role that may have a slave. Waiting for one slave takes Apache's broker a line that ours does without. */
    static Map<String, String> master(String role) throws IOException {
        Map<String, String> all = new TreeMap<>(SET);
        all.putAll(Map.of("brokerRole", role, "haListenPort", "" + freePort(), "inSyncReplicas", role.equals("SYNC_MASTER") ? "2" : "1"));
        return all;
    }

    /** What makes another broker a slave of this one. */
    Map<String, String> slave() throws IOException {
        Map<String, String> all = new TreeMap<>(SET);
        all.putAll(conf);
        all.keySet().removeIf(key -> key.startsWith("metrics")); // the master has that port
        all.putAll(Map.of("brokerRole", "SLAVE", "brokerId", "1", "namesrvAddr", namesrv, "listenPort", "" + freePort(), "haListenPort", "" + freePort()));
        return all;
    }

    /** What its broker says. */
    abstract Path log();

    static Peer of(String name, Map<String, String> args, Path folder, Map<String, String> conf) throws IOException {
        fresh(folder);
        return name.equals("apache") ? new Apache(args.get("lib"), folder, conf) : new Gantry(name, args.get(name), folder, conf);
    }

    /** CPU seconds that the peer's processes used so far. A tick is a hundredth of a second on Linux. */
    double cpuSeconds() throws IOException {
        double seconds = 0;
        for (Process process : processes) {
            seconds += cpuSeconds(process);
        }
        return seconds;
    }

    static double cpuSeconds(Process process) throws IOException {
        String stat = Files.readString(Path.of("/proc/" + process.pid() + "/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    }

    /** Resident memory of the processes in MiB, mapped pages included. */
    double residentMib() throws IOException {
        double kib = 0;
        for (Process process : processes) {
            for (String line : Files.readAllLines(Path.of("/proc/" + process.pid() + "/status"))) {
                if (line.startsWith("VmRSS:")) {
                    kib += Long.parseLong(line.replaceAll("[^0-9]", ""));
                }
            }
        }
        return kib / 1024;
    }

    /** Ends the processes as a kill -9 does; {@link #launch} starts others on what is left. */
    void kill() throws InterruptedException {
        for (Process process : processes) {
            process.destroyForcibly().waitFor();
        }
        processes.clear();
    }

    @Override
    public void close() throws Exception {
        if (copy != null) {
            processes.add(copy);
        }
        for (int i = processes.size() - 1; i >= 0; i--) {
            Process process = processes.get(i);
            process.destroy();
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        }
        wipe(folder);
    }

    static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    /** Waits until it listens, its process ends, or a minute is over. */
    static void awaitPort(int port, Process process) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (System.nanoTime() < deadline && process.isAlive()) {
            try (Socket socket = new Socket()) {
                socket.connect(new InetSocketAddress("127.0.0.1", port), 200);
                return;
            } catch (IOException notYet) {
                Thread.sleep(2);
            }
        }
        throw new IOException("nothing listens on port " + port);
    }

    /** What the broker's process said last, without the places in its code, for whoever asks why it ended. */
    static String lastWords(Path log) throws IOException {
        List<String> lines = Files.readAllLines(log).stream().filter(line -> !line.isBlank() && !line.startsWith("\t")).toList();
        return lines.isEmpty() ? "" : lines.get(lines.size() - 1);
    }

    /** An empty folder. */
    static Path fresh(Path folder) throws IOException {
        wipe(folder);
        return Files.createDirectories(folder);
    }

    static void wipe(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return;
        }
        try (var paths = Files.walk(folder)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    static void write(Path file, Map<String, String> properties) throws IOException {
        StringBuilder text = new StringBuilder();
        properties.forEach((key, value) -> text.append(key).append('=').append(value).append('\n'));
        Files.writeString(file, text);
    }

    /** The binary, with name server and broker in one process. */
    static final class Gantry extends Peer {
        private static final Pattern READY = Pattern.compile("gantry: ready namesrv=(\\S+) broker=(\\S+)");
        private final String binary;
        /** 0 for any that is free. */
        int namesrvPort;
        int brokerPort;

        Gantry(String name, String binary, Path folder, Map<String, String> conf) {
            super(name, folder, conf);
            this.binary = binary;
        }

        @Override
        void launch() throws Exception {
            Map<String, String> all = new TreeMap<>(Map.of("brokerIP1", "127.0.0.1", "bindAddress", "127.0.0.1"));
            all.putAll(conf);
            Path file = folder.resolve("broker.conf");
            write(file, all);
            List<String> command = new ArrayList<>(prefix);
            command.addAll(List.of(binary, "server", "--data", folder.resolve("data").toString(), "--namesrv-port", "" + namesrvPort, "--broker-port",
                "" + brokerPort, "-c", file.toString()));
            processes.add(new ProcessBuilder(command).redirectError(log().toFile()).start());
        }

        @Override
        Path log() {
            return folder.resolve("err.log");
        }

        @Override
        void awaitReady() throws Exception {
            BufferedReader lines = new BufferedReader(new InputStreamReader(processes.get(0).getInputStream()));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Matcher ready = READY.matcher(line);
                if (ready.find()) {
                    namesrv = ready.group(1);
                    address = ready.group(2);
                    return;
                }
            }
            throw new IOException("gantry did not start: " + Files.readString(log()));
        }

        @Override
        void follow() throws Exception {
            Map<String, String> all = slave();
            all.put("storePathRootDir", folder.resolve("slave").toString());
            Path file = folder.resolve("slave.conf");
            write(file, all);
            copy = new ProcessBuilder(binary, "broker", "-c", file.toString()).redirectErrorStream(true)
                .redirectOutput(folder.resolve("slave.log").toFile()).start();
        }
    }

    /** Apache's name server and broker, with the flags of its own start script but a heap of 2 GiB, unless another is asked for. */
    static final class Apache extends Peer {
        private static final String[] LARGE = ("-Xms2g -Xmx2g -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25 "
            + "-XX:InitiatingHeapOccupancyPercent=30 -XX:MaxDirectMemorySize=4g").split(" ");
        private static final String[] FLAGS = ("-server -XX:SoftRefLRUPolicyMSPerMB=0 -XX:-OmitStackTraceInFastThrow "
            + "--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/jdk.internal.ref=ALL-UNNAMED "
            + "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-exports=java.base/sun.nio.ch=ALL-UNNAMED "
            + "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED "
            + "--add-opens=java.base/java.util=ALL-UNNAMED -Drocketmq.broker.diskSpaceWarningLevelRatio=0.95").split(" ");
        private static final String BROKER = "org.apache.rocketmq.broker.BrokerStartup";
        private final String lib;
        /** Flags of the broker's memory. */
        String[] memory = LARGE;
        private int brokerPort;

        Apache(String lib, Path folder, Map<String, String> conf) {
            super("apache", folder, conf);
            this.lib = lib;
        }

        @Override
        void launch() throws Exception {
            int namesrvPort = freePort();
            brokerPort = freePort();
            namesrv = "127.0.0.1:" + namesrvPort;
            write(folder.resolve("namesrv.conf"), Map.of("listenPort", "" + namesrvPort, "bindAddress", "127.0.0.1"));
            String[] little = {"-Xms256m", "-Xmx256m"};
            processes.add(java(List.of(), little, "org.apache.rocketmq.namesrv.NamesrvStartup", folder.resolve("namesrv.conf"), folder));
            awaitPort(namesrvPort, processes.get(0));
            address = "127.0.0.1:" + brokerPort;
            Map<String, String> all = new TreeMap<>(SET);
            all.putAll(Map.of("namesrvAddr", namesrv, "listenPort", "" + brokerPort, "haListenPort", "" + freePort()));
            all.putAll(conf);
            stored(all, "store");
            write(folder.resolve("broker.conf"), all);
            processes.add(java(prefix, memory, BROKER, folder.resolve("broker.conf"), folder));
        }

        private void stored(Map<String, String> all, String store) {
            all.putIfAbsent("storePathRootDir", folder.resolve(store).toString());
            all.putIfAbsent("storePathCommitLog", folder.resolve(store).resolve("commitlog").toString());
        }

        @Override
        void follow() throws Exception {
            Map<String, String> all = slave();
            stored(all, "slave");
            Path home = fresh(folder.resolve("slave-home"));
            write(home.resolve("broker.conf"), all);
            copy = java(List.of(), memory, BROKER, home.resolve("broker.conf"), home);
        }

        private Process java(List<String> prefix, String[] memory, String main, Path conf, Path home) throws IOException {
            List<String> command = new ArrayList<>(prefix);
            command.add("java");
            command.addAll(List.of(memory));
            command.addAll(List.of(FLAGS));
            command.addAll(List.of("-Duser.home=" + home, "-Drocketmq.home.dir=" + home, "-cp", lib + "/*", main, "-c", conf.toString()));
            ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(home.resolve(main + ".log").toFile());
            builder.environment().put("ROCKETMQ_HOME", home.toString());
            return builder.start();
        }

        @Override
        Path log() {
            return folder.resolve(BROKER + ".log");
        }

        @Override
        void awaitReady() throws Exception {
            awaitPort(brokerPort, processes.get(1));
        }

        /** Another heap, as <code>-Xmx</code> takes it; the rest of the memory flags stay. */
        void heap(String size) {
            memory = LARGE.clone();
            memory[0] = "-Xms" + size;
            memory[1] = "-Xmx" + size;
        }

        /** For a broker that has so little: the collector that needs least. Of the buffers outside of the heap what is used counts. */
        void small(int heapMib) {
            memory = new String[] {"-Xms" + heapMib + "m", "-Xmx" + heapMib + "m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=1g"};
        }
    }
}
