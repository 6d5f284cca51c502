package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** A preset of <code>gantry bench</code>, with our client, on any of the peers. */
final class PresetLoad {
    /** Presets whose names begin so measure a broker that has flushed what it acknowledges. */
    static final String FLUSHED = "flushed:";
    private static final long REGISTERED_NANOS = 60_000_000_000L;

    /**
     * What was measured: messages a second, milliseconds (negative if nothing was sent or received), the broker's and the loader's processor seconds
     * for a million messages, what the broker had resident at most, and how many messages were lost, failed or came twice.
     */
    record Figures(double sent, double received, List<Double> publish, List<Double> endToEnd, double cpuPerMillion, double cpuCores, double loaderPerMillion,
        double residentMib, long bad) {
        /** What the case is about: what was received where somebody consumes, else what was sent. */
        double perSecond() {
            return received > 0 ? received : sent;
        }

        double endToEnd99() {
            return endToEnd.get(1);
        }
    }

    private final Peer peer;
    private final Map<String, String> args;

    PresetLoad(Peer peer, Map<String, String> args) {
        this.peer = peer;
        this.args = args;
    }

    Figures run(String name) throws Exception {
        Path file = peer.folder.resolve("result.json");
        Path said = peer.folder.resolve("bench.log");
        String preset = name.startsWith(FLUSHED) ? name.substring(FLUSHED.length()) : name;
        Process broker = peer.processes.get(peer.processes.size() - 1);
        List<String> command = new ArrayList<>(List.of(args.get("gantry"), "bench", "run", "--preset", preset, "-n", peer.namesrv,
            "--server-pid", "" + broker.pid(), "--quiet", "--json", file.toString()));
        if (!preset.startsWith("consume-")) { // a backlog has its own end
            command.addAll(List.of("--warmup", args.get("warm"), "--seconds", args.get("secs")));
        }
        for (String pair : args.containsKey("bench") ? args.get("bench").split(",") : new String[0]) {
            command.addAll(List.of("--set", pair));
        }
        long deadline = System.nanoTime() + REGISTERED_NANOS;
        while (new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile()).start().waitFor() != 0) {
            String reason = Files.readString(said);
            // Apache's broker serves some time before its name server hears of it.
            if (!reason.contains("knows no broker") || System.nanoTime() > deadline) {
                throw new IOException("gantry bench failed: " + reason);
            }
            Thread.sleep(200);
        }
        JSONObject summary = JSON.parseArray(Files.readString(file)).getJSONObject(0).getJSONObject("summary");
        JSONObject messages = summary.getJSONObject("messages");
        JSONObject server = summary.getJSONObject("server");
        return new Figures(summary.getDoubleValue("produceRate"), summary.getDoubleValue("consumeRate"), latency(summary, "publish"),
            latency(summary, "endToEnd"), server.getDoubleValue("cpuSecondsPerMillion"), server.getDoubleValue("cpuCores"),
            summary.getDoubleValue("loaderCpuSecondsPerMillion"), server.getDoubleValue("residentBytesMax") / (1 << 20),
            messages.getLongValue("lost") + messages.getLongValue("failed") + messages.getLongValue("duplicates"));
    }

    /** Percentiles as the tables show them: p50, p99, p99.9 and the longest, in milliseconds. */
    static String words(List<Figures> runs) {
        return words(runs, false);
    }

    private static List<Double> latency(JSONObject summary, String name) {
        JSONObject latency = summary.getJSONObject(name);
        if (latency == null) {
            return List.of(-1.0, -1.0, -1.0, -1.0);
        }
        return Stream.of("p50", "p99", "p999", "max").map(latency::getDoubleValue).toList();
    }

    static void print(String first, Map<String, Map<String, List<Figures>>> results) {
        System.out.println("\n| preset | broker | sent/s | received/s | publish p50 / p99 / p99.9 / max ms | end to end | broker CPU-s per million | cores "
            + "| ratio CPU | ratio msg/s | ratio end-to-end p99 | loader CPU-s per million | VmRSS MiB | lost, failed, twice |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        results.forEach((name, byPeer) -> {
            List<Figures> base = byPeer.get(first);
            byPeer.forEach((peer, runs) -> System.out.printf("| %s | %s | %,.0f | %,.0f | %s | %s | %.2f | %.3f | %s | %s | %s | %.2f | %.0f | %d |%n", name, peer,
                Compare.median(runs, Figures::sent), Compare.median(runs, Figures::received), words(runs, false), words(runs, true),
                Compare.median(runs, Figures::cpuPerMillion), Compare.median(runs, Figures::cpuCores), Compare.ratio(runs, base, Figures::cpuPerMillion),
                Compare.ratio(runs, base, Figures::perSecond), Compare.ratio(runs, base, Figures::endToEnd99),
                Compare.median(runs, Figures::loaderPerMillion), Compare.median(runs, Figures::residentMib), runs.stream().mapToLong(Figures::bad).sum()));
        });
    }

    private static String words(List<Figures> runs, boolean endToEnd) {
        double[] all = new double[4];
        for (int i = 0; i < all.length; i++) {
            int at = i;
            all[i] = Compare.median(runs, run -> (endToEnd ? run.endToEnd() : run.publish()).get(at));
        }
        return all[0] < 0 ? "–" : String.format("%.2f / %.2f / %.2f / %.1f", all[0], all[1], all[2], all[3]);
    }
}
