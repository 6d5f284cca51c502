package gantry.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The load of a case on Kafka, made by its own performance tools: one producer, one consumer. */
final class KafkaLoad {
    /** The last line of each tool, with the number of records and of records a second; of the consumer without the time that it waited for its queues. */
    private static final Pattern SENT = Pattern.compile("(\\d+) records sent, ([0-9.]+) records/sec .* 99\\.9th\\.");
    private static final Pattern READ = Pattern.compile("\\d{4}-[^,]+, [^,]+, [^,]+, [^,]+, (\\d+), [^,]+, [^,]+, [^,]+, [^,]+, ([0-9.]+)");
    private static final Pattern BATCH = Pattern.compile("producer-metrics:batch-size-avg:.* : ([0-9.]+)");
    private final Kafka kafka;
    private final String classes;

    KafkaLoad(Kafka kafka, String classes) {
        this.kafka = kafka;
        this.classes = classes;
    }

    /** Sends some records to a topic of their own, and then those that are measured; reads both in the same order. */
    List<CompareKafka.Figures> run(CompareKafka.Case load, long warm, long records) throws Exception {
        kafka.createTopic("warm", load.queues());
        kafka.createTopic("load", load.queues());
        return List.of(
            measure("org.apache.kafka.tools.ProducerPerformance", produce("warm", load, warm), produce("load", load, records), records, SENT),
            measure("org.apache.kafka.tools.ConsumerPerformance", consume("warm", warm), consume("load", records), records, READ));
    }

    private List<String> produce(String topic, CompareKafka.Case load, long records) {
        return List.of("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--num-records", "" + records, "--record-size", "" + load.bytes(),
            "--throughput", "-1", "--print-metrics", "--command-property", "acks=1", "linger.ms=" + CompareKafka.LINGER_MS, "batch.size=" + CompareKafka.BATCH_BYTES,
            "buffer.memory=" + CompareKafka.BUFFER_BYTES);
    }

    private List<String> consume(String topic, long records) {
        return List.of("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--num-records", "" + records, "--timeout", "60000", "--hide-header");
    }

    private CompareKafka.Figures measure(String tool, List<String> warm, List<String> measured, long records, Pattern result) throws Exception {
        List<String> arguments = new ArrayList<>(List.of(tool, KafkaTool.RUN));
        arguments.addAll(warm);
        arguments.add(KafkaTool.RUN);
        arguments.addAll(measured);
        Path errors = kafka.folder.resolve("tool.log");
        Process process = kafka.tool(classes, arguments).redirectError(errors.toFile()).start();
        try (BufferedReader lines = process.inputReader(); Writer words = process.outputWriter()) {
            untilReady(lines, errors);
            goOn(words);
            untilReady(lines, errors);
            double broker = kafka.cpuSeconds();
            double loader = Peer.cpuSeconds(process);
            goOn(words);
            List<String> said = untilReady(lines, errors);
            broker = kafka.cpuSeconds() - broker;
            loader = Peer.cpuSeconds(process) - loader;
            goOn(words);
            return new CompareKafka.Figures(rate(said, result, records), records / broker, loader * 1e6 / records, kafka.residentMib(), batch(said));
        } finally {
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        }
    }

    private static void goOn(Writer words) throws IOException {
        words.write("\n");
        words.flush();
    }

    /** What the tool says until it waits for us. */
    private static List<String> untilReady(BufferedReader lines, Path errors) throws IOException {
        List<String> said = new ArrayList<>();
        for (String line = lines.readLine(); !KafkaTool.READY.equals(line); line = lines.readLine()) {
            if (line == null) {
                throw new IOException("a tool of Kafka ended: " + said + Files.readString(errors));
            }
            said.add(line);
        }
        return said;
    }

    private static double rate(List<String> said, Pattern result, long records) throws IOException {
        for (String line : said) {
            Matcher found = result.matcher(line.trim());
            if (found.matches() && Long.parseLong(found.group(1)) == records) {
                return Double.parseDouble(found.group(2));
            }
        }
        throw new IOException("a tool of Kafka did not say that it was done with " + records + " records: " + said);
    }

    private static double batch(List<String> said) {
        for (String line : said) {
            Matcher found = BATCH.matcher(line.trim());
            if (found.matches()) {
                return Double.parseDouble(found.group(1));
            }
        }
        return 0;
    }
}
