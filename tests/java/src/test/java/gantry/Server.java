package gantry;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A name server, a broker and a controller in a folder of their own: Gantry, or the real Apache ones. Ports and folder belong to the object, the
 * processes come and go: it can be stopped, killed and started again in place, by one kind after the other on the same store.
 */
final class Server implements AutoCloseable {
    /** Which software runs. Every test passes with {@code APACHE_5} too, unless our design promises more than Apache does. */
    enum Kind { GANTRY, APACHE_4, APACHE_5 }

    static final Kind DEFAULT = Kind.valueOf(System.getProperty("gantry.server", "GANTRY"));
    /** Short enough for a test, and growing from level 3 on, where retries begin. */
    static final String DELAY_LEVELS = "1s 2s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s";
    static final String BROKER_NAME = "broker-a";
    static final String CLUSTER = "DefaultCluster";

    private static final ConcurrentLinkedQueue<Process> STARTED = new ConcurrentLinkedQueue<>();
    private static final AtomicInteger FOLDERS = new AtomicInteger();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> STARTED.forEach(Process::destroyForcibly)));
    }

    final int namesrvPort;
    final int brokerPort;
    final Path root;
    /** Where the broker registers; its own name server unless a test says otherwise. */
    int registersAt;
    boolean runsNameServer = true;
    boolean runsBroker = true;
    /** 0 without a controller. With a name server it runs in the process of that, else in one of its own. */
    int controllerPort;
    /** Of the controller, beside its name, place and folder. */
    final Map<String, String> controllerSettings = new LinkedHashMap<>();
    final Map<String, String> settings = new LinkedHashMap<>();
    private final List<Process> processes = new ArrayList<>();

    Server(String name) {
        root = Path.of(System.getProperty("gantry.work")).resolve(
            name + "-" + ProcessHandle.current().pid() + "-" + FOLDERS.incrementAndGet());
        namesrvPort = freePort();
        brokerPort = freePort();
        registersAt = namesrvPort;
        settings.put("messageDelayLevel", DELAY_LEVELS);
        settings.put("mappedFileSizeCommitLog", String.valueOf(64 << 20));
    }

    Server with(String key, String value) {
        settings.put(key, value);
        return this;
    }

    Server withController() {
        controllerPort = freePort();
        return this;
    }

    Server start() {
        return start(DEFAULT);
    }

    Server start(Kind kind) {
        if (!processes.isEmpty()) {
            throw new IllegalStateException("already running");
        }
        try {
            Files.createDirectories(store());
            switch (kind) {
                case GANTRY -> startGantry();
                case APACHE_4 -> startApache("4");
                case APACHE_5 -> startApache("5");
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        if (runsBroker) {
            Await.until("the broker is registered", Duration.ofSeconds(60), () -> {
                processes.forEach(this::mustLive);
                var info = Wire.call(registersAt, 106, Map.of());
                return new String(info.getBody()).contains("127.0.0.1:" + brokerPort)
                    && Wire.call(brokerPort, 28, Map.of()).getCode() == 0;
            }, this::output);
        } else if (runsNameServer) {
            awaitNameServer();
        }
        if (controllerPort > 0) {
            Await.until("the controllers have a leader", Duration.ofSeconds(60), () -> {
                processes.forEach(this::mustLive);
                var group = Wire.call(controllerPort, 1005, Map.of()).getExtFields();
                // That of Apache says that it leads some time before it does.
                return group.containsKey("controllerLeaderAddress") && (!"true".equals(group.get("isLeader"))
                    || Wire.call(controllerPort, 1004, Map.of("brokerName", "none")).getCode() != 2007);
            }, this::output);
        }
        return this;
    }

    private void awaitNameServer() {
        Await.until("the name server answers", Duration.ofSeconds(60), () -> {
            processes.forEach(this::mustLive);
            return Wire.call(namesrvPort, 106, Map.of()).getCode() == 0;
        }, this::output);
    }

    /** Ends it as an operator would and waits for the end. */
    void stop() {
        end(Process::destroy);
    }

    /** kill −9. */
    void kill() {
        end(Process::destroyForcibly);
    }

    private void end(java.util.function.Consumer<Process> how) {
        // The broker first, so that it can sign off at its name server.
        for (int i = processes.size() - 1; i >= 0; i--) {
            Process process = processes.get(i);
            how.accept(process);
            try {
                if (!process.waitFor(60, TimeUnit.SECONDS)) {
                    process.destroyForcibly();
                    throw new AssertionError("did not end within 60 s " + output());
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                process.destroyForcibly();
            }
            STARTED.remove(process);
        }
        processes.clear();
    }

    @Override
    public void close() {
        kill();
        try (var files = Files.walk(store())) {
            files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    String nameServer() {
        return "127.0.0.1:" + namesrvPort;
    }

    String broker() {
        return "127.0.0.1:" + brokerPort;
    }

    String controller() {
        return "127.0.0.1:" + controllerPort;
    }

    Path store() {
        return root.resolve("store");
    }

    /** The process that holds the messages, for a look at its memory. */
    Process process() {
        return processes.get(processes.size() - 1);
    }

    /** What spares a busy machine, for Apache's broker alone; the settings of a test go before. */
    private static final Map<String, String> FOR_APACHE = Map.of(
        // Apache drops sends that queued for 200 ms, which on a busy machine would say nothing about the test.
        "waitTimeMillsInSendQueue", "20000",
        // Until the first such interval is over, 10 s by default, a thread of Apache 5.x turns without a pause.
        "transactionMetricFlushInterval", "200");

    private Path configuration() throws IOException {
        return configuration(Map.of());
    }

    private Path configuration(Map<String, String> defaults) throws IOException {
        var all = new LinkedHashMap<>(defaults);
        all.put("brokerClusterName", CLUSTER);
        all.put("brokerName", BROKER_NAME);
        all.put("brokerId", "0");
        all.put("brokerIP1", "127.0.0.1");
        all.put("listenPort", String.valueOf(brokerPort));
        all.put("namesrvAddr", "127.0.0.1:" + registersAt);
        all.put("storePathRootDir", store().toString());
        all.put("storePathCommitLog", store().resolve("commitlog").toString());
        all.put("brokerRole", "ASYNC_MASTER");
        all.put("flushDiskType", "ASYNC_FLUSH");
        all.put("autoCreateTopicEnable", "true");
        all.put("deleteWhen", "04");
        all.put("fileReservedTime", "48");
        all.putAll(settings);
        Path file = root.resolve("broker.conf");
        var lines = all.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).toList();
        Files.write(file, lines);
        return file;
    }

    private void startGantry() throws IOException {
        String binary = System.getProperty("gantry.binary");
        if (binary == null) {
            throw new IllegalStateException("-Dgantry.binary=PATH says which binary to test");
        }
        if (controllerPort > 0 && !runsNameServer) {
            launch("controller", binary, "controller", "-c", controllerConfiguration().toString());
        }
        String configuration = configuration().toString();
        if (runsNameServer && runsBroker && registersAt == namesrvPort) {
            launch("gantry", binary, "server", "--data", store().toString(), "--namesrv-port", String.valueOf(namesrvPort),
                "--broker-port", String.valueOf(brokerPort), "-c", configuration);
            return;
        }
        if (runsNameServer) {
            launch("namesrv", binary, "namesrv", "-c", nameServerConfiguration().toString());
        }
        if (runsBroker) {
            launch("broker", binary, "broker", "-c", configuration, "-n", "127.0.0.1:" + registersAt);
        }
    }

    /** What `gantry store` says of the store, which no broker has open; fails unless it ends with 0. */
    String look(String... command) throws Exception {
        var line = new java.util.ArrayList<>(java.util.List.of(System.getProperty("gantry.binary"), "store"));
        line.addAll(java.util.List.of(command));
        line.addAll(java.util.List.of("-c", root.resolve("broker.conf").toString()));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
        if (process.waitFor() != 0) {
            throw new AssertionError(String.join(" ", line) + ": " + said);
        }
        return said;
    }

    /** What Gantry says of the store and this configuration, with which it does not start. */
    String refused() throws Exception {
        Process process = new ProcessBuilder(System.getProperty("gantry.binary"), "broker", "-c", configuration().toString())
            .redirectErrorStream(true).start();
        STARTED.add(process);
        process.getOutputStream().close();
        if (!process.waitFor(30, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new AssertionError("it starts");
        }
        String said = new String(process.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
        if (process.exitValue() == 0) {
            throw new AssertionError("it ended well: " + said);
        }
        return said;
    }

    private Path nameServerConfiguration() throws IOException {
        String controller = controllerPort == 0 ? "" : "enableControllerInNamesrv=true\n" + controllerLines();
        return Files.writeString(root.resolve("namesrv.conf"),
            "listenPort=" + namesrvPort + "\nbindAddress=127.0.0.1\nkvConfigPath=" + root.resolve("kvConfig.json") + "\n" + controller);
    }

    private Path controllerConfiguration() throws IOException {
        return Files.writeString(root.resolve("controller.conf"), controllerLines());
    }

    private String controllerLines() {
        var all = new LinkedHashMap<String, String>();
        all.put("controllerDLegerGroup", "controllers");
        all.put("controllerDLegerPeers", "n0-127.0.0.1:" + controllerPort);
        all.put("controllerDLegerSelfId", "n0");
        all.put("controllerStorePath", store().resolve("controller").toString());
        all.putAll(controllerSettings);
        var lines = new StringBuilder();
        all.forEach((key, value) -> lines.append(key).append('=').append(value).append('\n'));
        return lines.toString();
    }

    private void startApache(String line) throws IOException {
        Path home = Files.createDirectories(root.resolve("home"));
        Path logging = Files.createDirectories(home.resolve("conf"));
        // 4.x refuses to start without its logging files.
        for (String name : List.of("logback_broker.xml", "logback_namesrv.xml", "rmq.namesrv.logback.xml", "rmq.broker.logback.xml")) {
            Files.writeString(logging.resolve(name), "<configuration><root level=\"OFF\"/></configuration>");
        }
        Path jars = Path.of(System.getProperty("gantry.apache")).resolve(line);
        // Without the mode of TLS a start makes itself RSA keys, which takes longer than all the rest of it.
        List<String> java = new ArrayList<>(List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xms512m", "-Xmx512m", "-XX:TieredStopAtLevel=1",
            "-XX:MaxDirectMemorySize=1g", "-Dtls.server.mode=disabled", "-Duser.home=" + home, "-Drocketmq.home.dir=" + home,
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98"));
        for (String open : List.of("java.nio", "jdk.internal.ref", "sun.nio.ch", "java.lang", "java.util")) {
            java.add("--add-opens=java.base/" + open + "=ALL-UNNAMED");
            java.add("--add-exports=java.base/" + open + "=ALL-UNNAMED");
        }
        java.addAll(List.of("-cp", jars + "/*"));
        if (controllerPort > 0 && !runsNameServer) {
            launch("controller", java, "org.apache.rocketmq.controller.ControllerStartup", "-c", controllerConfiguration().toString());
        }
        if (runsNameServer) {
            launch("namesrv", java, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", nameServerConfiguration().toString());
            awaitNameServer();
        }
        if (runsBroker) {
            launch("broker", java, "org.apache.rocketmq.broker.BrokerStartup", "-c", configuration(FOR_APACHE).toString());
        }
    }

    private void launch(String name, List<String> command, String... arguments) throws IOException {
        var all = new ArrayList<>(command);
        all.addAll(List.of(arguments));
        launch(name, all.toArray(String[]::new));
    }

    private void launch(String name, String... command) throws IOException {
        Path log = root.resolve(name + ".out");
        Process process = new ProcessBuilder(command).directory(root.toFile()).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile())).start();
        process.getOutputStream().close();
        STARTED.add(process);
        processes.add(process);
    }

    private void mustLive(Process process) {
        if (!process.isAlive()) {
            throw new AssertionError("ended by itself with " + process.exitValue() + output());
        }
    }

    /** The last words of its processes, for the message of a failed test. */
    String output() {
        var words = new StringBuilder();
        for (String name : List.of("gantry.out", "namesrv.out", "controller.out", "broker.out")) {
            try {
                var lines = Files.readAllLines(root.resolve(name));
                lines.subList(Math.max(0, lines.size() - 8), lines.size()).forEach(line -> words.append("\n  ").append(line));
            } catch (IOException absent) {
                // That process was never started.
            }
        }
        return words.toString();
    }

    /** A port that is free, with the two below it (VIP) and the one above (HA), outside the range of outgoing connections. */
    static int freePort() {
        for (int attempt = 0; attempt < 1000; attempt++) {
            int port = ThreadLocalRandom.current().nextInt(28_000, 32_000) / 8 * 8 + 4;
            if (TAKEN.add(port) && isFree(port - 2) && isFree(port) && isFree(port + 1)) {
                return port;
            }
        }
        throw new IllegalStateException("no free port");
    }

    private static final java.util.Set<Integer> TAKEN = java.util.concurrent.ConcurrentHashMap.newKeySet();

    private static boolean isFree(int port) {
        try (var socket = new ServerSocket()) {
            socket.setReuseAddress(true);
            socket.bind(new InetSocketAddress("0.0.0.0", port));
            return true;
        } catch (IOException taken) {
            return false;
        }
    }
}
