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
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Runs the chosen cases on both brokers in turn, round by round, and prints the medians beside each other; ratios are to the first. */
public final class Compare {
    private static final String ALL = "start,sync,async,batch,push,pull,both,oneway,flush";
    private static final Set<String> STOCK_CLIENT = Set.of(ALL.split(","));

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("rounds", "2", "warm", "15", "secs", "15", "cases", ALL, "backlog", "2000000"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        Path work = Path.of(args.get("work"));
        Map<String, Map<String, List<Load.Figures>>> results = new LinkedHashMap<>();
        Map<String, Map<String, List<PresetLoad.Figures>>> presets = new LinkedHashMap<>();
        Map<String, List<double[]>> starts = new LinkedHashMap<>();
        List<String> peers = List.of(args.containsKey("before") ? "before" : "apache", "gantry");
        warm(peers.get(0), args, work);
        for (int round = 0; round < Integer.parseInt(args.get("rounds")); round++) {
            for (String name : peers) {
                for (List<String> group : groups(args.get("cases"))) {
                    runGroup(name, group, args, work, "", results, presets, starts);
                }
            }
        }
        print(args, peers.get(0), results, starts);
        if (!presets.isEmpty()) {
            PresetLoad.print(peers.get(0), presets);
        }
        System.exit(0);
    }

    /** One window that does not count: else whoever comes first has a load that is still being compiled. */
    private static void warm(String name, Map<String, String> args, Path work) throws Exception {
        Map<String, String> once = new LinkedHashMap<>(args);
        once.put("backlog", "200000");
        for (List<String> group : groups(args.get("cases"))) {
            if (STOCK_CLIENT.contains(group.get(0)) && !group.contains("start")) {
                runGroup(name, group, once, work, "warm-up ", new LinkedHashMap<>(), new LinkedHashMap<>(), new LinkedHashMap<>());
            }
        }
    }

    /** Cases that share a broker, so that each is as warm as the one before made it; another flush mode needs another broker, and presets have one each. */
    private static List<List<String>> groups(String cases) {
        List<String> plain = new ArrayList<>();
        List<List<String>> groups = new ArrayList<>();
        for (String name : cases.split(",")) {
            if (name.equals("flush") || name.equals("start") || !STOCK_CLIENT.contains(name)) {
                groups.add(List.of(name));
            } else {
                plain.add(name);
            }
        }
        if (!plain.isEmpty()) {
            groups.add(0, plain);
        }
        return groups;
    }

    /** What the Gantry that is built here is given. */
    static Map<String, String> settings(Map<String, String> args) {
        return settings(args, "set");
    }

    static Map<String, String> settings(Map<String, String> args, String key) {
        Map<String, String> settings = new LinkedHashMap<>();
        for (String setting : args.containsKey(key) ? args.get(key).split(",") : new String[0]) {
            int at = setting.indexOf('=');
            settings.put(setting.substring(0, at), setting.substring(at + 1));
        }
        return settings;
    }

    private static void runGroup(String name, List<String> cases, Map<String, String> args, Path work, String label,
        Map<String, Map<String, List<Load.Figures>>> results, Map<String, Map<String, List<PresetLoad.Figures>>> presets,
        Map<String, List<double[]>> starts) throws Exception {
        Map<String, String> conf = settings(args, name.equals("gantry") ? "set" : "other");
        if (cases.contains("flush") || cases.get(0).startsWith(PresetLoad.FLUSHED)) {
            conf.putIfAbsent("flushDiskType", "SYNC_FLUSH");
        }
        Path folder = work.resolve("run-" + name);
        Peer.fresh(folder);
        Memory.prepare(args, work);
        try (Peer peer = Peer.of(name, args, folder, conf)) {
            if (cases.contains("start")) {
                double[] start = start(peer);
                starts.computeIfAbsent(name, key -> new ArrayList<>()).add(start);
                record(work, name, "start", String.format("first acknowledged send %.0f ms, idle %.1f MiB, idle CPU %.2f %%", start[0], start[1], start[2]));
                return;
            }
            peer.launch();
            peer.awaitReady();
            for (String one : cases) {
                if (!STOCK_CLIENT.contains(one)) {
                    PresetLoad.Figures figures = new PresetLoad(peer, args).run(one);
                    record(work, label + name, one, figures.toString());
                    presets.computeIfAbsent(one, key -> new LinkedHashMap<>()).computeIfAbsent(name, key -> new ArrayList<>()).add(figures);
                    continue;
                }
                Load load = new Load(peer, "bench_" + one, Integer.parseInt(args.get("warm")), Integer.parseInt(args.get("secs")));
                long backlog = Long.parseLong(args.get("backlog"));
                Load.Figures figures = switch (one) {
                    case "sync" -> load.sync(64, 1024);
                    case "async" -> load.async(4, 1024, 1000);
                    case "batch" -> load.batch(16, 1000, 100);
                    case "oneway" -> load.oneway(4, 100, 20_000);
                    case "both" -> load.both(4, 1024, 500);
                    case "push" -> load.push(backlog, 100);
                    case "pull" -> load.pull(backlog, 100);
                    case "flush" -> load.sync(64, 100);
                    default -> throw new IllegalArgumentException("no such case: " + one);
                };
                record(work, label + name, one, figures.toString());
                results.computeIfAbsent(one, key -> new LinkedHashMap<>()).computeIfAbsent(name, key -> new ArrayList<>()).add(figures);
            }
        }
    }

    /** Milliseconds from launch to the first acknowledged send on an empty store, then memory and CPU of the idle processes. */
    private static double[] start(Peer peer) throws Exception {
        long from = System.nanoTime();
        peer.launch();
        peer.awaitReady();
        DefaultMQProducer producer = Topic.producer(peer.namesrv, "start");
        producer.setSendMsgTimeout(1_000);
        while (true) {
            try {
                producer.send(new Message("bench_start", new byte[100]));
                break;
            } catch (Exception notYet) {
                Thread.sleep(2);
            }
        }
        double ms = (System.nanoTime() - from) / 1e6;
        producer.shutdown();
        Thread.sleep(10_000); // let it come to rest
        double cpu = peer.cpuSeconds();
        Thread.sleep(10_000);
        return new double[] {ms, peer.residentMib(), (peer.cpuSeconds() - cpu) * 10};
    }

    private static void record(Path work, String peer, String name, String line) throws Exception {
        String text = peer + " " + name + " " + line + "\n";
        System.err.print(text);
        Files.writeString(work.resolve("results.txt"), text, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void print(Map<String, String> args, String first, Map<String, Map<String, List<Load.Figures>>> results, Map<String, List<double[]>> starts) {
        System.out.printf("rounds %s, warm-up %s s, window %s s, medians%n%n", args.get("rounds"), args.get("warm"), args.get("secs"));
        if (!results.isEmpty()) {
            printStockClient(first, results);
        }
        if (!starts.isEmpty()) {
            System.out.println("\n| start | first acknowledged send ms | idle VmRSS MiB | idle CPU % |\n| --- | --- | --- | --- |");
            starts.forEach((peer, runs) -> System.out.printf("| %s | %.0f | %.1f | %.2f |%n", peer, median(runs, run -> run[0]),
                median(runs, run -> run[1]), median(runs, run -> run[2])));
        }
    }

    private static void printStockClient(String first, Map<String, Map<String, List<Load.Figures>>> results) {
        System.out.println("| case | broker | msg/s | p50 / p99 / p99.9 / max ms | broker CPU-s per million | ratio CPU | ratio msg/s | VmRSS MiB | failed | stored of acknowledged |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        results.forEach((name, byPeer) -> {
            List<Load.Figures> base = byPeer.get(first);
            byPeer.forEach((peer, runs) -> System.out.printf("| %s | %s | %,.0f | %s | %.2f | %s | %s | %.0f | %d | %.2f %% |%n", name, peer,
                median(runs, Load.Figures::perSecond),
                median(runs, Load.Figures::p50) < 0 ? "-" : String.format("%.2f / %.2f / %.2f / %.1f", median(runs, Load.Figures::p50),
                    median(runs, Load.Figures::p99), median(runs, Load.Figures::p999), median(runs, Load.Figures::max)),
                median(runs, Load.Figures::cpuSecondsPerMillion),
                ratio(runs, base, Load.Figures::cpuSecondsPerMillion), ratio(runs, base, Load.Figures::perSecond),
                median(runs, Load.Figures::residentMib), runs.stream().mapToLong(Load.Figures::failed).sum(),
                100.0 * runs.stream().mapToLong(Load.Figures::stored).sum() / Math.max(1, runs.stream().mapToLong(Load.Figures::acknowledged).sum())));
        });
    }

    static <T> String ratio(List<T> ours, List<T> theirs, ToDoubleFunction<T> figure) {
        return ours == theirs || theirs == null ? "1" : String.format("%.2f", median(ours, figure) / median(theirs, figure));
    }

    static <T> double median(List<T> runs, ToDoubleFunction<T> figure) {
        double[] sorted = runs.stream().mapToDouble(figure).sorted().toArray();
        int middle = sorted.length / 2;
        return sorted.length % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    }
}
