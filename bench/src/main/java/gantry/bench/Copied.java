package gantry.bench;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.ToDoubleFunction;

/** What a copy costs: the same load on a master with its slave that answers at once, and on one that waits for the slave, in turn. */
public final class Copied {
    /** Whose brokers, and whether an answer waits for the slave. */
    private enum Set {
        ASYNC("gantry", "ASYNC_MASTER"),
        SYNC("gantry", "SYNC_MASTER"),
        APACHE_ASYNC("apache", "ASYNC_MASTER"),
        APACHE_SYNC("apache", "SYNC_MASTER");

        final String peer;
        final String role;

        Set(String peer, String role) {
            this.peer = peer;
            this.role = role;
        }

        String words() {
            return peer + " " + role;
        }
    }

    /** A load, and the processor seconds of both brokers from before it until the slave had all of it. */
    private record Run(PresetLoad.Figures load, double masterSeconds, double slaveSeconds) {
        double slaveShare() {
            return slaveSeconds / masterSeconds;
        }
    }

    private final Map<String, String> args;
    private final Path work;
    private final JSONArray kept = new JSONArray();

    private Copied(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("cases", "batch-16,connections-64,produce-16", "rounds", "3", "warm", "3", "secs", "8",
            "sets", "async,sync,apache_async,apache_sync", "open", "0.7"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        new Copied(args).run();
        System.exit(0);
    }

    private void run() throws Exception {
        List<Set> sets = new ArrayList<>();
        for (String name : args.get("sets").split(",")) {
            sets.add(Set.valueOf(name.toUpperCase()));
        }
        head();
        for (String preset : args.get("cases").split(",")) {
            Map<Set, List<Run>> closed = rounds(preset, sets, args);
            print(preset, "full speed", closed);
            double share = Double.parseDouble(args.get("open"));
            // Batches have no rate to be set: they are as many as were asked for.
            if (share > 0 && preset.startsWith("produce-")) {
                double slowest = closed.entrySet().stream().filter(entry -> entry.getKey().peer.equals("gantry"))
                    .mapToDouble(entry -> rate(entry.getValue())).min().orElseThrow();
                Map<String, String> open = new LinkedHashMap<>(args);
                String asked = "producerRate=" + (long) (share * slowest);
                open.merge("bench", asked, (given, more) -> given + "," + more);
                List<Set> ours = sets.stream().filter(set -> set.peer.equals("gantry")).toList();
                print(preset, asked, rounds(preset, ours, open));
            }
        }
        Kept.write(args, "copies", JSONObject.of("format", "gantry-copies/1", "rounds", kept));
    }

    private Map<Set, List<Run>> rounds(String preset, List<Set> sets, Map<String, String> args) throws Exception {
        Map<Set, List<Run>> all = new LinkedHashMap<>();
        sets.forEach(set -> all.put(set, new ArrayList<>()));
        for (int round = 0; round < Integer.parseInt(args.get("rounds")); round++) {
            // The order turns round from round to round, so that no set is always the first.
            List<Set> order = new ArrayList<>(sets);
            if (round % 2 == 1) {
                java.util.Collections.reverse(order);
            }
            for (Set set : order) {
                Run run = measure(set, preset, args);
                all.get(set).add(run);
                System.err.println(set.words() + " " + preset + " " + run);
                kept.add(JSONObject.of("set", set.words(), "preset", preset, "load", args.getOrDefault("bench", ""), "messagesPerSecond", run.load.perSecond(),
                    "publishMs", run.load.publish(), "masterCpuSecondsPerMillion", run.load.cpuPerMillion(), "slaveShare", run.slaveShare(), "bad", run.load.bad()));
            }
        }
        return all;
    }

    private Run measure(Set set, String preset, Map<String, String> args) throws Exception {
        Map<String, String> conf = new TreeMap<>(Peer.master(set.role));
        conf.putAll(Compare.settings(args, set.peer.equals("gantry") ? "set" : "other"));
        Memory.prepare(args, work);
        try (Peer peer = Peer.of(set.peer, args, work.resolve("copies"), conf)) {
            peer.launch();
            peer.awaitReady();
            peer.follow();
            peer.awaitLevel(args.get("gantry"));
            Process master = peer.processes.get(peer.processes.size() - 1);
            double masterBefore = Peer.cpuSeconds(master);
            double slaveBefore = Peer.cpuSeconds(peer.copy);
            PresetLoad.Figures load = new PresetLoad(peer, args).run(preset);
            peer.awaitLevel(args.get("gantry"));
            return new Run(load, Peer.cpuSeconds(master) - masterBefore, Peer.cpuSeconds(peer.copy) - slaveBefore);
        }
    }

    private static double rate(List<Run> runs) {
        return Compare.median(runs, run -> run.load.perSecond());
    }

    private static void head() {
        System.out.println("| load | set | messages/s | p50 / p99 / p99.9 / max ms | master's CPU-s per million | slave's CPU, of its master's | messages/s, of gantry "
            + "ASYNC_MASTER's (least, most) | CPU, of it | lost, failed or twice |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    }

    private static void print(String preset, String load, Map<Set, List<Run>> all) {
        List<Run> base = all.get(Set.ASYNC);
        all.forEach((set, runs) -> System.out.printf("| %s, %s | %s | %,.0f | %s | %.2f | %.2f | %s | %s | %d |%n", preset, load, set.words(), rate(runs),
            PresetLoad.words(runs.stream().map(Run::load).toList()), Compare.median(runs, run -> run.load.cpuPerMillion()), Compare.median(runs, Run::slaveShare),
            ratios(runs, base, run -> run.load.perSecond()), ratios(runs, base, run -> run.load.cpuPerMillion()),
            runs.stream().mapToLong(run -> run.load.bad()).sum()));
    }

    /** The median of the ratios, each of two runs of one round. */
    private static String ratios(List<Run> runs, List<Run> base, ToDoubleFunction<Run> figure) {
        if (base == null || base == runs) {
            return "–";
        }
        List<Double> each = new ArrayList<>();
        for (int i = 0; i < runs.size(); i++) {
            each.add(figure.applyAsDouble(runs.get(i)) / figure.applyAsDouble(base.get(i)));
        }
        double[] sorted = each.stream().mapToDouble(ratio -> ratio).sorted().toArray();
        return String.format("%.2f (%.2f, %.2f)", Compare.median(each, ratio -> ratio), sorted[0], sorted[sorted.length - 1]);
    }
}
