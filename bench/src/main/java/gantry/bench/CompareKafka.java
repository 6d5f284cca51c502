package gantry.bench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.ToDoubleFunction;
import java.util.stream.Stream;

/** Runs the chosen cases on Kafka and on Gantry in turn, round by round, and prints the medians beside each other; ratios are to Kafka. */
public final class CompareKafka {
    /** What producers of both sides are told: how long a message waits for others, how large a batch is, and what waits in all. */
    static final int LINGER_MS = 10;
    static final int BATCH_BYTES = 128 << 10;
    static final int BUFFER_BYTES = 32 << 20;

    private static final String ALL = "1kb-16,1kb-100,100b-16,100b-100";

    /** What the script tells us, and then what a user may. */
    private static final Set<String> KEYS = Set.of("gantry", "classes", "kafka-lib", "work", "rounds", "records", "warm", "cases", "set", "bench", "memory");

    /** What is sent: a size with its word, over so many queues, and how many messages our producer has on their way. */
    record Case(String size, int bytes, int queues, int inFlight) {
        /** As many messages of 100 B as make the case last about as long as one with 1 KB. */
        long records(long ofOneKilobyte) {
            return bytes == 1024 ? ofOneKilobyte : 5 * ofOneKilobyte;
        }

        static Case of(String name) {
            return switch (name) {
                case "1kb-16" -> new Case("1kb", 1024, 16, 16_384);
                case "1kb-100" -> new Case("1kb", 1024, 100, 16_384);
                case "100b-16" -> new Case("100b", 100, 16, 60_000);
                case "100b-100" -> new Case("100b", 100, 100, 60_000);
                default -> throw new IllegalArgumentException("no such case: " + name + "; there are " + ALL);
            };
        }
    }

    /** What was measured; the loader's processor time is in seconds for a million messages. Batches have a mean size if they were sent, else 0. */
    record Figures(double perSecond, double perCpuSecond, double loaderPerMillion, double residentMib, double batchBytes) { }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("rounds", "3", "records", "10000000", "warm", "3000000", "cases", ALL));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            if (!KEYS.contains(argument.substring(0, at))) {
                throw new IllegalArgumentException("nothing is known of " + argument);
            }
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        List<Case> cases = Stream.of(args.get("cases").split(",")).map(Case::of).toList();
        // Whoever ends this early wants no server left behind.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> ProcessHandle.current().descendants().forEach(ProcessHandle::destroy)));
        Path work = Path.of(args.get("work"));
        Map<String, Map<String, List<Figures>>> results = new LinkedHashMap<>();
        for (int round = 0; round < Integer.parseInt(args.get("rounds")); round++) {
            for (Case load : cases) {
                for (String peer : List.of("kafka", "gantry")) {
                    List<Figures> figures = run(peer, load, args, work.resolve("run-" + peer));
                    for (int part = 0; part < figures.size(); part++) {
                        String what = (part == 0 ? "produce " : "consume ") + load.size() + "-" + load.queues();
                        record(work, peer + " " + what + " " + figures.get(part));
                        results.computeIfAbsent(what, key -> new LinkedHashMap<>()).computeIfAbsent(peer, key -> new ArrayList<>()).add(figures.get(part));
                    }
                }
            }
        }
        print(args, results);
    }

    /** A case on a new server: what is measured comes after a load of the same kind that warms up server and loader. */
    private static List<Figures> run(String peer, Case load, Map<String, String> args, Path folder) throws Exception {
        long warm = load.records(Long.parseLong(args.get("warm")));
        long records = load.records(Long.parseLong(args.get("records")));
        Peer.fresh(folder);
        Memory.prepare(args, folder.getParent());
        if (peer.equals("kafka")) {
            try (Kafka kafka = new Kafka(args.get("kafka-lib"), folder)) {
                kafka.launch();
                kafka.awaitReady();
                return new KafkaLoad(kafka, args.get("classes")).run(load, warm, records);
            }
        }
        try (Peer gantry = Peer.of("gantry", args, folder, Compare.settings(args))) {
            gantry.launch();
            gantry.awaitReady();
            return new GantryLoad(gantry, args.get("gantry"), args.get("bench")).run(load, warm, records);
        }
    }

    private static void record(Path work, String line) throws Exception {
        System.err.println(line);
        Files.writeString(work.resolve("results.txt"), line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void print(Map<String, String> args, Map<String, Map<String, List<Figures>>> results) {
        System.out.printf("rounds %s, medians; %s messages of 1 KB, %d of 100 B; before them %s and %d to warm up%n%n", args.get("rounds"),
            args.get("records"), 5 * Long.parseLong(args.get("records")), args.get("warm"), 5 * Long.parseLong(args.get("warm")));
        System.out.println("| case | broker | msg/s | spread | msg per broker CPU-s | ratio msg/s | ratio per CPU-s | loader CPU-s per million | VmRSS MiB | batch KiB |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        results.forEach((what, byPeer) -> byPeer.forEach((peer, runs) -> {
            List<Figures> base = byPeer.get("kafka");
            System.out.printf("| %s | %s | %,.0f | %s | %,.0f | %s | %s | %.2f | %.0f | %s |%n", what, peer, Compare.median(runs, Figures::perSecond),
                spread(runs, Figures::perSecond), Compare.median(runs, Figures::perCpuSecond), Compare.ratio(runs, base, Figures::perSecond),
                Compare.ratio(runs, base, Figures::perCpuSecond), Compare.median(runs, Figures::loaderPerMillion),
                Compare.median(runs, Figures::residentMib), batch(Compare.median(runs, Figures::batchBytes)));
        }));
    }

    private static String batch(double bytes) {
        return bytes == 0 ? "–" : String.format("%.0f", bytes / 1024);
    }

    /** The lowest and the highest, in parts of the median. */
    private static String spread(List<Figures> runs, ToDoubleFunction<Figures> figure) {
        double median = Compare.median(runs, figure);
        var all = runs.stream().mapToDouble(figure).summaryStatistics();
        return String.format("%.2f–%.2f", all.getMin() / median, all.getMax() / median);
    }
}
