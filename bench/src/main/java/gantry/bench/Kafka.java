package gantry.bench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * Apache Kafka as one node, controller and broker in one process (KRaft), with the flags of its own start script but a heap of 2 GiB.
 * It is left as it comes, so it does not wait for the disk; internal topics have one replica, and consumers of a group need not wait for more.
 */
final class Kafka extends Peer {
    private static final String[] FLAGS = ("-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
        + "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true").split(" ");
    /** 16 bytes in Base64; not by chance, since an id that begins with a dash is an option to Kafka. */
    private static final String CLUSTER = Base64.getUrlEncoder().withoutPadding().encodeToString("gantry-and-kafka".getBytes(StandardCharsets.US_ASCII));
    private final String lib;
    String bootstrap;
    private int port;

    Kafka(String lib, Path folder) {
        super("kafka", folder, Map.of());
        this.lib = lib;
    }

    @Override
    void launch() throws Exception {
        port = freePort();
        bootstrap = "127.0.0.1:" + port;
        String controller = "127.0.0.1:" + freePort();
        Map<String, String> all = new TreeMap<>(Map.of("process.roles", "broker,controller", "node.id", "1",
            "controller.quorum.voters", "1@" + controller, "controller.listener.names", "CONTROLLER",
            "listeners", "PLAINTEXT://" + bootstrap + ",CONTROLLER://" + controller, "advertised.listeners", "PLAINTEXT://" + bootstrap,
            "log.dirs", folder.resolve("store").toString()));
        all.putAll(Map.of("offsets.topic.replication.factor", "1", "transaction.state.log.replication.factor", "1",
            "transaction.state.log.min.isr", "1", "group.initial.rebalance.delay.ms", "0"));
        Path file = folder.resolve("server.properties");
        write(file, all);
        toEnd("format", "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", file.toString());
        List<String> flags = new ArrayList<>(List.of("-Xms2g", "-Xmx2g"));
        flags.addAll(List.of(FLAGS));
        processes.add(java(flags, lib + "/*", "kafka.Kafka", file.toString()).redirectErrorStream(true)
            .redirectOutput(log().toFile()).start());
    }

    @Override
    void awaitReady() throws Exception {
        awaitPort(port, processes.get(0));
    }

    @Override
    Path log() {
        return folder.resolve("server.log");
    }

    void createTopic(String topic, int partitions) throws Exception {
        toEnd("topic", "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap, "--create", "--topic", topic,
            "--partitions", "" + partitions, "--replication-factor", "1");
    }

    /** A command of Kafka's that has to succeed. */
    private void toEnd(String log, String main, String... arguments) throws Exception {
        Path said = folder.resolve(log + ".log");
        Process process = java(List.of("-Xmx256m"), lib + "/*", main, arguments).redirectErrorStream(true).redirectOutput(said.toFile()).start();
        if (!process.waitFor(120, TimeUnit.SECONDS)) {
            process.destroyForcibly().waitFor();
        }
        if (process.exitValue() != 0) {
            throw new IOException(main + " failed: " + Files.readString(said));
        }
    }

    /** A tool of Kafka's in {@link KafkaTool}. */
    ProcessBuilder tool(String classes, List<String> arguments) {
        return java(List.of("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-Duser.language=en", "-Duser.country=US"), classes + ":" + lib + "/*",
            KafkaTool.class.getName(), arguments.toArray(String[]::new));
    }

    private static ProcessBuilder java(List<String> flags, String path, String main, String... arguments) {
        List<String> command = new ArrayList<>(List.of("java"));
        command.addAll(flags);
        command.addAll(List.of("-cp", path, main));
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command);
    }
}
