package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Brokers in a cage of memory: messages are sent and consumed at a rate, first by themselves and then while somebody reads a backlog of many times
 * the cage, and the table says what became of them, of the latencies, and of the cage.
 */
public final class Caged {
    private static final String ENDED = "the server's process ended";

    /** What memoryLimit may be exceeded by. */
    private static final double MARGIN = 1.05;

    private final Map<String, String> args;
    private final Path work;
    /** What Gantry promises and did not keep. */
    private final List<String> broken = new ArrayList<>();

    private Caged(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("mib", "128,256", "cases", "1024@10000,4096@7000,1024@0", "peers", "gantry,apache", "warm", "5",
            "secs", "30", "backlog", "20"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        Caged caged = new Caged(args);
        caged.run();
        caged.broken.forEach(System.out::println);
        System.exit(caged.broken.isEmpty() ? 0 : 1);
    }

    private void run() throws Exception {
        System.out.println("| cage MiB | bytes @ asked/s | broker | sent/s, received/s | publish p50 / p99 / p99.9 / max ms | with a cold reader: sent/s, received/s "
            + "| publish | ratio p99 | cold messages/s | drops | failed, lost, twice | most in the cage MiB | not given at once | killed |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        List<String> files = new ArrayList<>();
        for (String mib : args.get("mib").split(",")) {
            for (String load : args.get("cases").split(",")) {
                for (String peer : args.get("peers").split(",")) {
                    System.out.println(row(Integer.parseInt(mib), load, peer, files));
                }
            }
        }
        if (!files.isEmpty()) {
            List<String> report = new ArrayList<>(List.of(args.get("gantry"), "bench", "report"));
            report.addAll(files);
            report.addAll(List.of("--html", work.resolve("cage.html").toString()));
            new ProcessBuilder(report).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor();
            System.out.println("\ncharts: " + work.resolve("cage.html"));
        }
    }

    private String row(int mib, String load, String name, List<String> files) throws Exception {
        String[] parts = load.split("@");
        Map<String, String> conf = new LinkedHashMap<>();
        if (name.equals("gantry")) {
            conf.put("memoryLimit", mib / 2 + "M");
        }
        conf.putAll(Compare.settings(args));
        String label = mib + "-" + parts[0] + "-" + parts[1] + "-" + name;
        try (Cage cage = new Cage(mib); Peer peer = Peer.of(name, args, work.resolve("caged-" + name), conf)) {
            peer.prefix = cage.prefix();
            if (peer instanceof Peer.Apache apache) {
                apache.small(Integer.parseInt(args.getOrDefault("heap", "" + mib * 3 / 8)));
            }
            String begins = String.format("| %d | %s @ %s | %s | ", mib, parts[0], parts[1], name);
            Process broker;
            try {
                peer.launch();
                broker = peer.processes.get(peer.processes.size() - 1);
                peer.awaitReady();
            } catch (IOException notStarted) {
                System.err.println(label + ": " + notStarted.getMessage());
                return begins + "does not start" + " | – ".repeat(8) + ends(cage);
            }
            JSONObject alone = hot(peer, broker, parts, label, files);
            if (alone == null || !broker.isAlive()) {
                check(!name.equals("gantry"), label + ": " + ENDED);
                return begins + ENDED + " | – ".repeat(8) + ends(cage);
            }
            // By batches of some 100 KiB, as a backlog comes about.
            Path said = work.resolve("cold-" + label + ".log");
            Path coldFile = work.resolve("cold-" + label + ".json");
            Process cold = start(peer, broker, said, coldFile, "consume-1", "messageSize=" + parts[0], "batchSize=" + Math.max(1, 100_000 / Integer.parseInt(parts[0])),
                "consumerBacklogSizeGB=" + Double.parseDouble(args.get("backlog")) * mib / 1024, "testDurationMinutes=3");
            while (cold.isAlive() && !Files.readString(said).contains("measure")) {
                Thread.sleep(100);
            }
            JSONObject beside = hot(peer, broker, parts, label + "-cold", files);
            if (!cold.waitFor(5, TimeUnit.MINUTES)) {
                cold.destroy();
                cold.waitFor();
            }
            if (beside == null || !broker.isAlive()) {
                check(!name.equals("gantry"), label + ": " + ENDED);
                return begins + rates(alone) + " | " + latency(alone) + " | " + ENDED + " | – ".repeat(6) + ends(cage);
            }
            if (name.equals("gantry")) {
                hold(label, mib, parts[1].equals("0"), cage, alone, beside);
            }
            return begins + rates(alone) + " | " + latency(alone) + " | " + rates(beside) + " | " + latency(beside) + " | "
                + String.format("%.2f", publish(beside, "p99") / publish(alone, "p99")) + " | " + coldRate(coldFile) + " | "
                + drops(alone) + ", " + drops(beside) + " | " + bad(alone, beside) + ends(cage);
        }
    }

    /** Nobody is killed or waits for memory, the limit is kept, every message arrives once; at a rate that is asked for nothing falls behind. */
    private void hold(String label, int mib, boolean isFull, Cage cage, JSONObject alone, JSONObject beside) throws IOException {
        check(cage.kills() == 0 && cage.failures() == 0, label + ": the cage killed " + cage.kills() + ", and did not give memory at once " + cage.failures() + " times");
        check(args.containsKey("set") || cage.mostMib() <= mib / 2 * MARGIN, label + ": " + cage.mostMib() + " MiB of memoryLimit=" + mib / 2 + "M were occupied");
        check(bad(alone, beside).equals("0, 0, 0"), label + ": messages failed, were lost or came twice: " + bad(alone, beside));
        check(isFull || drops(alone) + drops(beside) == 0, label + ": stretches of ten seconds below nine tenths of the median: " + drops(alone) + ", " + drops(beside));
    }

    private void check(boolean holds, String otherwise) {
        if (!holds) {
            broken.add("PROBLEM " + otherwise);
        }
    }

    /** The summary; none if there is none. */
    private JSONObject hot(Peer peer, Process broker, String[] load, String label, List<String> files) throws Exception {
        Path file = work.resolve("caged-" + label + ".json");
        Files.deleteIfExists(file);
        List<String> sets = new ArrayList<>(List.of("messageSize=" + load[0], "producerRate=" + load[1], "name=" + label));
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            Path said = work.resolve("caged-" + label + ".log");
            int code = start(peer, broker, said, file, "queues-16", sets.toArray(new String[0])).waitFor();
            // Apache's broker serves some time before its name server hears of it.
            if (code == 0 || !Files.readString(said).contains("knows no broker") || System.nanoTime() > deadline || !broker.isAlive()) {
                break;
            }
            Thread.sleep(200);
        }
        if (!Files.exists(file) || Files.size(file) == 0) {
            return null;
        }
        files.add(file.toString());
        return summary(file);
    }

    private Process start(Peer peer, Process broker, Path said, Path file, String preset, String... sets) throws IOException {
        List<String> command = new ArrayList<>(List.of(args.get("gantry"), "bench", "run", "--preset", preset, "-n", peer.namesrv, "--server-pid",
            "" + broker.pid(), "--json", file.toString()));
        if (!preset.startsWith("consume-")) { // a backlog has its own end
            command.addAll(List.of("--warmup", args.get("warm"), "--seconds", args.get("secs")));
        }
        for (String set : sets) {
            command.addAll(List.of("--set", set));
        }
        return new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile()).start();
    }

    private static JSONObject summary(Path file) throws IOException {
        JSONArray runs = JSON.parseArray(Files.readString(file));
        return runs.getJSONObject(0).getJSONObject("summary");
    }

    private static String rates(JSONObject summary) {
        return String.format("%,.0f, %,.0f", summary.getDoubleValue("produceRate"), summary.getDoubleValue("consumeRate"));
    }

    private static double publish(JSONObject summary, String name) {
        JSONObject publish = summary.getJSONObject("publish");
        return publish == null ? Double.NaN : publish.getDoubleValue(name);
    }

    private static String latency(JSONObject summary) {
        return String.format("%.2f / %.2f / %.1f / %.0f", publish(summary, "p50"), publish(summary, "p99"), publish(summary, "p999"), publish(summary, "max"));
    }

    private static String coldRate(Path file) throws IOException {
        return Files.exists(file) && Files.size(file) > 0 ? String.format("%,.0f", summary(file).getDoubleValue("consumeRate")) : "not finished";
    }

    /** Stretches of ten seconds below 90 % of their median, of sending and of receiving. */
    private static int drops(JSONObject summary) {
        int drops = 0;
        for (String name : List.of("produceSteadiness", "consumeSteadiness")) {
            JSONObject steadiness = summary.getJSONObject(name);
            drops += steadiness == null ? 0 : steadiness.getJSONArray("drops").size();
        }
        return drops;
    }

    private static String bad(JSONObject... summaries) {
        long[] sums = new long[3];
        for (JSONObject summary : summaries) {
            JSONObject messages = summary.getJSONObject("messages");
            sums[0] += messages.getLongValue("failed");
            sums[1] += messages.getLongValue("lost");
            sums[2] += messages.getLongValue("duplicates");
        }
        return sums[0] + ", " + sums[1] + ", " + sums[2];
    }

    private static String ends(Cage cage) throws IOException {
        return String.format(" | %d | %d | %d |", cage.mostMib(), cage.failures(), cage.kills());
    }
}
