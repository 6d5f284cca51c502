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

/** What the limit of memory costs when memory is plentiful: the same load with and without it, in turn. */
public final class Governed {
    /** Two runs beside each other, so that what the machine does meanwhile concerns both. */
    private record Pair(PresetLoad.Figures with, PresetLoad.Figures without) {
        double ratio(ToDoubleFunction<PresetLoad.Figures> figure) {
            return figure.applyAsDouble(with) / figure.applyAsDouble(without);
        }
    }

    private final Map<String, String> args;
    private final Path work;

    private Governed(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("cases", "auto-batch-16,connections-64", "rounds", "5", "warm", "3", "secs", "12", "least", "0.97"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        System.exit(new Governed(args).run() ? 0 : 1);
    }

    private boolean run() throws Exception {
        boolean holds = true;
        JSONArray kept = new JSONArray();
        System.out.println("| preset | messages/s with, without | ratio (least, most) | CPU-s per million with, without | ratio (least, most) | lost, failed or twice |");
        System.out.println("| --- | --- | --- | --- | --- | --- |");
        for (String preset : args.get("cases").split(",")) {
            List<Pair> pairs = new ArrayList<>();
            for (int round = 0; round < Integer.parseInt(args.get("rounds")); round++) {
                boolean withFirst = round % 2 == 0;
                PresetLoad.Figures first = measure(preset, withFirst);
                PresetLoad.Figures second = measure(preset, !withFirst);
                Pair pair = withFirst ? new Pair(first, second) : new Pair(second, first);
                pairs.add(pair);
                kept.add(JSONObject.of("preset", preset, "round", round, "with", figures(pair.with), "without", figures(pair.without)));
            }
            long bad = pairs.stream().mapToLong(pair -> pair.with.bad() + pair.without.bad()).sum();
            double rate = Compare.median(pairs, pair -> pair.ratio(PresetLoad.Figures::perSecond));
            System.out.printf("| %s | %s | %s | %s | %s | %d |%n", preset, medians(pairs, PresetLoad.Figures::perSecond, "%,.0f"),
                ratios(pairs, PresetLoad.Figures::perSecond), medians(pairs, PresetLoad.Figures::cpuPerMillion, "%.2f"),
                ratios(pairs, PresetLoad.Figures::cpuPerMillion), bad);
            if (!(rate >= Double.parseDouble(args.get("least"))) || bad > 0) {
                System.out.printf("PROBLEM %s: %.3f of the messages a second, of which %s are the least; %d lost, failed or twice%n", preset, rate, args.get("least"), bad);
                holds = false;
            }
        }
        Kept.write(args, "governor", JSONObject.of("format", "gantry-governor/1", "rounds", kept));
        return holds;
    }

    private PresetLoad.Figures measure(String preset, boolean isGoverned) throws Exception {
        Map<String, String> conf = new TreeMap<>(Compare.settings(args));
        conf.put("cacheReclaimEnable", "" + isGoverned);
        Memory.prepare(args, work);
        try (Peer peer = Peer.of("gantry", args, work.resolve("governed"), conf)) {
            peer.launch();
            peer.awaitReady();
            PresetLoad.Figures figures = new PresetLoad(peer, args).run(preset);
            System.err.println((isGoverned ? "with " : "without ") + preset + " " + figures);
            return figures;
        }
    }

    private static String medians(List<Pair> pairs, ToDoubleFunction<PresetLoad.Figures> figure, String format) {
        return String.format(format + ", " + format, Compare.median(pairs, pair -> figure.applyAsDouble(pair.with)),
            Compare.median(pairs, pair -> figure.applyAsDouble(pair.without)));
    }

    private static String ratios(List<Pair> pairs, ToDoubleFunction<PresetLoad.Figures> figure) {
        double[] ratios = pairs.stream().mapToDouble(pair -> pair.ratio(figure)).sorted().toArray();
        return String.format("%.3f (%.2f, %.2f)", Compare.median(pairs, pair -> pair.ratio(figure)), ratios[0], ratios[ratios.length - 1]);
    }

    private static JSONObject figures(PresetLoad.Figures figures) {
        return JSONObject.of("messagesPerSecond", figures.perSecond(), "cpuSecondsPerMillion", figures.cpuPerMillion(), "residentMib", figures.residentMib(),
            "bad", figures.bad());
    }
}
