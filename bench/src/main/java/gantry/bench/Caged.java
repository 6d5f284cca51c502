package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
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
    /** What memoryLimit may be exceeded by. */
    private static final double MARGIN = 1.05;
    /** Of a rate that is asked for this has to be sent and received. */
    private static final double KEPT = 0.99;
    /** A reader far behind may not slow sends down to this, by p99. */
    private static final double SLOWER = 2;
    private static final long MIB = 1 << 20;

    private final Map<String, String> args;
    private final Path work;
    /** What Gantry promises and did not keep. */
    private final List<String> broken = new ArrayList<>();
    private final List<Row> rows = new ArrayList<>();
    private final List<String> files = new ArrayList<>();

    /** A load as <code>gantry bench</code> saw it, and what the cage held meanwhile. */
    private record Part(JSONObject summary, JSONObject machine, List<CageChart.Second> seconds) {
        double publish(String name) {
            JSONObject publish = summary.getJSONObject("publish");
            return publish == null ? Double.NaN : publish.getDoubleValue(name);
        }

        String rates() {
            return String.format("%,.0f, %,.0f", summary.getDoubleValue("produceRate"), summary.getDoubleValue("consumeRate"));
        }

        String latency() {
            return String.format("%.2f / %.2f / %.1f / %.0f", publish("p50"), publish("p99"), publish("p999"), publish("max"));
        }

        long acknowledged() {
            return summary.getJSONObject("messages").getLongValue("acknowledged");
        }

        /** When the last message was answered. */
        double lastedSeconds() {
            return seconds.stream().filter(second -> second.sent() > 0).mapToDouble(second -> second.at() + 1).max().orElse(0);
        }

        /** Stretches of ten seconds below 90 % of their median, of sending and of receiving; negative if it was too short to tell. */
        int drops() {
            int drops = 0;
            for (String name : List.of("produceSteadiness", "consumeSteadiness")) {
                JSONObject steadiness = summary.getJSONObject(name);
                if (steadiness == null) {
                    return -1;
                }
                drops += steadiness.getJSONArray("drops").size();
            }
            return drops;
        }
    }

    /** One broker under one load in one cage. What is missing is null, and the outcome says why. */
    private static final class Row {
        final int mib;
        final String[] load;
        final String broker;
        Part alone;
        Part beside;
        double coldPerSecond;
        String outcome = "";
        long mostMib;
        long failures;
        long kills;

        Row(int mib, String load, String broker) {
            this.mib = mib;
            this.load = load.split("@");
            this.broker = broker;
        }

        String label() {
            return mib + "-" + load[0] + "-" + load[1] + "-" + broker;
        }

        double asked() {
            return Double.parseDouble(load[1]);
        }

        double slower() {
            return beside.publish("p99") / alone.publish("p99");
        }

        String bad() {
            long[] sums = new long[3];
            for (Part part : List.of(alone, beside)) {
                JSONObject messages = part.summary.getJSONObject("messages");
                sums[0] += messages.getLongValue("failed");
                sums[1] += messages.getLongValue("lost");
                sums[2] += messages.getLongValue("duplicates");
            }
            return sums[0] + ", " + sums[1] + ", " + sums[2];
        }

        @Override
        public String toString() {
            List<String> cells = new ArrayList<>(List.of("" + mib, load[0] + " @ " + load[1], broker));
            if (alone != null) {
                cells.addAll(List.of(alone.rates(), alone.latency()));
            }
            if (outcome.isEmpty()) {
                cells.addAll(List.of(beside.rates(), beside.latency(), String.format("%.2f", slower()), String.format("%,.0f", coldPerSecond),
                    (drops(alone) + ", " + drops(beside)), bad()));
            } else {
                cells.add(outcome.replace("|", "\\|"));
                while (cells.size() < 11) {
                    cells.add("–");
                }
            }
            cells.addAll(List.of("" + mostMib, "" + failures, "" + kills));
            return "| " + String.join(" | ", cells) + " |";
        }

        private static String drops(Part part) {
            return part.drops() < 0 ? "–" : "" + part.drops();
        }
    }

    private Caged(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("mib", "128,256", "cases", "1024@10000,4096@7000,1024@0", "peers", "gantry,apache", "warm", "5",
            "secs", "120", "backlog", "20", "tries", "3"));
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
        for (String mib : args.get("mib").split(",")) {
            for (String load : args.get("cases").split(",")) {
                for (String peer : args.get("peers").split(",")) {
                    tryUntilKept(Integer.parseInt(mib), load, peer);
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
        if (args.containsKey("keep")) {
            keep(Files.createDirectories(Path.of(args.get("keep"))));
        }
    }

    /** What other guests of the machine may have spoilt is tried again; what is a matter of right and wrong has one try. */
    private void tryUntilKept(int mib, String load, String name) throws Exception {
        for (int left = Integer.parseInt(args.get("tries")) - 1; ; left--) {
            Row row = measure(new Row(mib, load, name));
            rows.add(row);
            System.out.println(row);
            if (!name.equals("gantry")) {
                return;
            }
            List<String> wrong = wrong(row);
            List<String> slow = wrong.isEmpty() ? slow(row) : List.of();
            if (slow.isEmpty() || left <= 0 || !wrong.isEmpty()) {
                wrong.forEach(what -> broken.add("PROBLEM " + row.label() + ": " + what));
                slow.forEach(what -> broken.add("PROBLEM " + row.label() + ", in each of " + args.get("tries") + " tries, in the last: " + what));
                return;
            }
            System.err.println(row.label() + " is tried again: " + String.join("; ", slow));
        }
    }

    /** Nobody is killed or waits for memory, the limit is kept, every message arrives once. */
    private List<String> wrong(Row row) {
        List<String> found = new ArrayList<>();
        check(found, row.outcome.isEmpty(), row.outcome);
        check(found, row.kills == 0 && row.failures == 0, "the cage killed " + row.kills + ", and did not give memory at once " + row.failures + " times");
        check(found, !row.outcome.isEmpty() || row.coldPerSecond > 0, "the reader far behind read nothing");
        check(found, args.containsKey("set") || row.mostMib <= row.mib / 2 * MARGIN, row.mostMib + " MiB of memoryLimit=" + row.mib / 2 + "M were occupied");
        check(found, !row.outcome.isEmpty() || row.bad().equals("0, 0, 0"), "messages failed, were lost or came twice: " + (row.outcome.isEmpty() ? row.bad() : ""));
        return found;
    }

    /** A rate that is asked for is sent and received, in every ten seconds, and the reader far behind disturbs nobody. */
    private List<String> slow(Row row) {
        List<String> found = new ArrayList<>();
        for (Part part : row.asked() > 0 ? List.of(row.alone, row.beside) : List.<Part>of()) {
            String when = part == row.beside ? " beside the reader" : "";
            for (String way : List.of("produceRate", "consumeRate")) {
                double rate = part.summary.getDoubleValue(way);
                check(found, rate >= KEPT * row.asked(), String.format("%,.0f of %,.0f messages a second were %s", rate, row.asked(),
                    way.equals("produceRate") ? "sent" : "received") + when);
            }
            check(found, part.drops() <= 0, part.drops() + " stretches of ten seconds below nine tenths of the median" + when);
        }
        // Also if there is none.
        check(found, row.slower() < SLOWER, String.format("p99 of sends is %.2f times as long beside the reader", row.slower()));
        return found;
    }

    private static void check(List<String> found, boolean holds, String otherwise) {
        if (!holds) {
            found.add(otherwise);
        }
    }

    private Row measure(Row row) throws Exception {
        Map<String, String> conf = new LinkedHashMap<>();
        if (row.broker.equals("gantry")) {
            conf.put("memoryLimit", row.mib / 2 + "M");
        }
        conf.putAll(Compare.settings(args));
        try (Cage cage = new Cage(row.mib); Peer peer = Peer.of(row.broker, args, work.resolve("caged-" + row.broker), conf)) {
            peer.prefix = cage.prefix();
            if (peer instanceof Peer.Apache apache) {
                apache.small(Integer.parseInt(args.getOrDefault("heap", "" + row.mib * 3 / 8)));
            }
            load(row, cage, peer);
            row.mostMib = cage.mostMib();
            row.failures = cage.failures();
            row.kills = cage.kills();
        }
        return row;
    }

    private void load(Row row, Cage cage, Peer peer) throws Exception {
        peer.launch();
        Process broker = peer.processes.get(peer.processes.size() - 1);
        Life life = new Life(broker, cage, peer);
        try {
            peer.awaitReady();
        } catch (IOException notStarted) {
            row.outcome = "does not start: " + life.end();
            return;
        }
        row.alone = hot(row, row.label(), peer, broker, cage);
        if (!broker.isAlive() || row.alone == null) {
            row.outcome = life.end() + came(row.alone);
            return;
        }
        try (ColdReader cold = new ColdReader(new Topic(peer, "cold"), broker)) {
            if (!cold.fill((long) (Double.parseDouble(args.get("backlog")) * row.mib * MIB), Integer.parseInt(row.load[0]))) {
                row.outcome = life.end() + ", while the backlog was sent";
                return;
            }
            cold.start();
            row.beside = hot(row, row.label() + "-cold", peer, broker, cage);
            row.coldPerSecond = cold.perSecond();
        }
        if (!broker.isAlive() || row.beside == null) {
            row.outcome = life.end() + came(row.beside) + " beside the reader";
        }
    }

    /** How long a broker lives, and what it dies of. */
    private static final class Life {
        private final Process broker;
        private final Cage cage;
        private final Peer peer;
        private final long began = System.nanoTime();
        private volatile long ended;

        Life(Process broker, Cage cage, Peer peer) {
            this.broker = broker;
            this.cage = cage;
            this.peer = peer;
            broker.onExit().thenRun(() -> ended = System.nanoTime());
        }

        /** Its end in words; whoever is being killed has some time for it. */
        String end() throws Exception {
            if (!broker.waitFor(5, TimeUnit.SECONDS)) {
                return "lives and does not serve";
            }
            broker.onExit().join();
            String words = Peer.lastWords(peer.log());
            return String.format("%s %.1f s after its start", cage.kills() > 0 ? "killed for want of memory" : "ended with code " + broker.exitValue(),
                ((ended == 0 ? System.nanoTime() : ended) - began) / 1e9) + (words.isEmpty() ? "" : " (`" + words.substring(0, Math.min(100, words.length())) + "`)");
        }
    }

    private static String came(Part part) {
        return part == null ? ", before a load was taken" : String.format(", after %.0f s of the load and %,d messages", part.lastedSeconds(), part.acknowledged());
    }

    /** The load; none if there is no result. */
    private Part hot(Row row, String label, Peer peer, Process broker, Cage cage) throws Exception {
        Path file = work.resolve("caged-" + label + ".json");
        Path said = work.resolve("caged-" + label + ".log");
        Files.deleteIfExists(file);
        List<String> command = List.of(args.get("gantry"), "bench", "run", "--preset", "queues-16", "-n", peer.namesrv, "--server-pid", "" + broker.pid(),
            "--json", file.toString(), "--warmup", args.get("warm"), "--seconds", args.get("secs"), "--set", "messageSize=" + row.load[0], "--set",
            "producerRate=" + row.load[1], "--set", "name=" + label);
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            long began = System.nanoTime();
            int code = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile()).start().waitFor();
            if (Files.exists(file) && Files.size(file) > 0) {
                files.remove(file.toString());
                files.add(file.toString());
                JSONObject result = JSON.parseArray(Files.readString(file)).getJSONObject(0);
                return new Part(result.getJSONObject("summary"), result.getJSONObject("machine"), seconds(result.getJSONArray("windows"), cage, began));
            }
            // Apache's broker serves some time before its name server hears of it.
            if (code == 0 || !Files.readString(said).contains("knows no broker") || System.nanoTime() > deadline || !broker.isAlive()) {
                return null;
            }
            Thread.sleep(200);
        }
    }

    private static List<CageChart.Second> seconds(JSONArray windows, Cage cage, long began) {
        List<CageChart.Second> seconds = new ArrayList<>();
        for (int i = 0; i < windows.size(); i++) {
            JSONObject window = windows.getJSONObject(i);
            double at = window.getDoubleValue("atSeconds");
            double length = window.getDoubleValue("seconds");
            JSONObject publish = window.getJSONObject("publish");
            // What is left of a second says little about a rate, and afterwards nothing is sent.
            if (length > 0.5 && !window.getString("phase").equals("drain")) {
                seconds.add(new CageChart.Second(at, window.getLongValue("sent") / length, window.getLongValue("received") / length,
                    publish == null ? -1 : publish.getDoubleValue("p99"), cage.mostMib(began + (long) (at * 1e9), began + (long) ((at + length) * 1e9))));
            }
        }
        return seconds;
    }

    /** All rows as one file, and a picture of each load with the brokers beside each other. */
    private void keep(Path folder) throws IOException {
        String name = LocalDate.now() + "-cage";
        Map<String, List<CageChart.Run>> charts = new LinkedHashMap<>();
        JSONArray kept = new JSONArray();
        JSONObject all = JSONObject.of("format", "gantry-cage/1", "arguments", shown(), "units", "rates in messages a second, latencies in ms, times in s, memory in MiB");
        for (Row row : rows) {
            JSONObject one = JSONObject.of("cageMib", row.mib, "bytes", Integer.parseInt(row.load[0]), "asked", row.asked(), "broker", row.broker);
            one.fluentPut("outcome", row.outcome).fluentPut("mostMib", row.mostMib).fluentPut("notGivenAtOnce", row.failures).fluentPut("killed", row.kills)
                .fluentPut("coldMessagesPerSecond", row.coldPerSecond).fluentPut("alone", kept(row.alone)).fluentPut("besideAColdReader", kept(row.beside));
            kept.add(one);
            if (row.alone != null) {
                all.putIfAbsent("machine", row.alone.machine);
            }
            // Of several tries the last.
            List<CageChart.Run> runs = charts.computeIfAbsent(row.mib + "-" + row.load[0] + "-" + row.load[1], key -> new ArrayList<>());
            runs.removeIf(run -> run.broker().equals(row.broker));
            runs.add(new CageChart.Run(row.broker, seconds(row.alone), seconds(row.beside), row.outcome));
        }
        all.put("rows", kept);
        Files.writeString(folder.resolve(name + ".json"), JSON.toJSONString(all) + "\n");
        for (Map.Entry<String, List<CageChart.Run>> chart : charts.entrySet()) {
            String[] load = chart.getKey().split("-");
            String title = "A cage of " + load[0] + " MiB, " + load[1] + " bytes a message, " + (load[2].equals("0") ? "as many as go" : load[2] + " a second");
            Files.writeString(folder.resolve(name + "-" + chart.getKey() + ".svg"), new CageChart(title, chart.getValue()).svg());
        }
        System.out.println("kept: " + folder.resolve(name + ".json") + " and " + charts.size() + " charts beside it");
    }

    /** Without what names folders of this machine. */
    private Map<String, String> shown() {
        Map<String, String> shown = new LinkedHashMap<>(args);
        List.of("gantry", "lib", "work", "keep").forEach(shown::remove);
        return shown;
    }

    private static List<CageChart.Second> seconds(Part part) {
        return part == null ? List.of() : part.seconds;
    }

    private static JSONObject kept(Part part) {
        if (part == null) {
            return null;
        }
        JSONArray seconds = new JSONArray();
        part.seconds.forEach(second -> seconds.add(List.of(rounded(second.at()), rounded(second.sent()), rounded(second.received()), rounded(second.p99()), second.mib())));
        return JSONObject.of("summary", part.summary, "columns", List.of("at", "sent", "received", "publishP99", "cageMib"), "seconds", seconds);
    }

    private static double rounded(double value) {
        return Math.round(value * 100) / 100.0;
    }
}
