package gantry.bench;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * The load under which a published test saw its host hang: batches of 1000 messages from 16 threads, on a machine that may swap and has little more
 * memory than the broker was given. The machine is a cage of memory; a neighbour in it, if one is wanted, uses memory of its own all the time.
 */
public final class Swapped {
    private static final double PAGES_PER_MIB = 256;
    private final Map<String, String> args;
    private final Path work;
    private final Map<String, Map<String, Long>> failures = new LinkedHashMap<>();

    private Swapped(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("mib", "1536", "heap", "1024", "neighbours", "0,700", "peers", "apache,gantry", "rounds", "1",
            "warm", "10", "secs", "60"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        new Swapped(args).run();
        System.exit(0);
    }

    private void run() throws Exception {
        System.out.println("| cage MiB | neighbour MiB | broker | messages/s | p50 / p99 / p99.9 / max ms | CPU-s per million | failed | stored of acknowledged "
            + "| most of the broker in swap MiB | swapped in, out MiB | page faults that waited for the disk: broker, its appends | VmRSS MiB | killed |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for (int round = 0; round < Integer.parseInt(args.get("rounds")); round++) {
            for (String neighbour : args.get("neighbours").split(",")) {
                for (String peer : args.get("peers").split(",")) {
                    System.out.println(row(peer, Integer.parseInt(args.get("mib")), Integer.parseInt(neighbour)));
                }
            }
        }
        System.out.println("\n| neighbour MiB, broker | what the client was told, N for numbers | times |\n| --- | --- | --- |");
        failures.forEach((who, texts) -> texts.forEach((text, times) -> System.out.printf("| %s | `%s` | %,d |%n", who, text.replace("|", "\\|"), times)));
    }

    private String row(String name, int mib, int neighbourMib) throws Exception {
        boolean isGantry = name.equals("gantry");
        Map<String, String> conf = new TreeMap<>(Compare.settings(args, isGantry ? "set" : "other"));
        int page = Peer.freePort();
        if (isGantry) {
            conf.putAll(Map.of("metricsExporterType", "PROM", "metricsPromExporterPort", "" + page));
        }
        if (args.containsKey("slave")) {
            conf.putAll(Peer.master(args.get("slave")));
        }
        try (Cage cage = new Cage(mib); Peer peer = Peer.of(name, args, work.resolve("swapped-" + name), conf); Neighbour neighbour = new Neighbour(cage, neighbourMib)) {
            if (args.containsKey("swappiness")) {
                cage.swappiness(args.get("swappiness"));
            }
            peer.prefix = cage.prefix();
            if (peer instanceof Peer.Apache apache) {
                apache.heap(args.get("heap") + "m");
            }
            peer.launch();
            peer.awaitReady();
            peer.followed(args);
            Process broker = peer.processes.get(peer.processes.size() - 1);
            long appendFaults = isGantry ? appendFaults(page) : 0;
            Swap swap = new Swap(broker);
            Load.Figures figures = new Load(peer, "swapped", Integer.parseInt(args.get("warm")), Integer.parseInt(args.get("secs"))).batch(16, 1000, 100);
            swap.end();
            failures.computeIfAbsent(neighbourMib + ", " + name, key -> new TreeMap<>()).putAll(figures.failures());
            return String.format("| %d | %d | %s | %,.0f | %.2f / %.2f / %.1f / %.0f | %.2f | %,d | %.2f %% | %.0f | %.0f, %.0f | %,d, %s | %.0f | %d |", mib, neighbourMib,
                name, figures.perSecond(), figures.p50(), figures.p99(), figures.p999(), figures.max(), figures.cpuSecondsPerMillion(), figures.failed(),
                100.0 * figures.stored() / Math.max(1, figures.acknowledged()), swap.mostMib, swap.inMib(), swap.outMib(), swap.faults(),
                isGantry ? "" + (appendFaults(page) - appendFaults) : "–", figures.residentMib(), cage.kills());
        }
    }

    /** What the broker itself says of the threads that serve connections, which append. */
    private static long appendFaults(int page) throws IOException, InterruptedException {
        HttpRequest ask = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + page + "/metrics")).build();
        String text = HttpClient.newHttpClient().send(ask, HttpResponse.BodyHandlers.ofString()).body();
        return text.lines().filter(line -> line.startsWith("gantry_major_faults_total{") && line.contains("threads=\"network\""))
            .mapToLong(line -> Long.parseLong(line.substring(line.lastIndexOf(' ') + 1))).findFirst().orElseThrow();
    }

    /** What moved between memory and swap, on the whole machine and of one process. */
    private static final class Swap {
        private final Process broker;
        private final long in = counted("pswpin");
        private final long out = counted("pswpout");
        private final long faultsBefore;
        private final Thread watch = new Thread(this::look, "swap");
        private volatile boolean isOver;
        private long inEnd;
        private long outEnd;
        private long faultsEnd;
        private double mostMib;

        Swap(Process broker) throws IOException {
            this.broker = broker;
            faultsBefore = majorFaults();
            watch.start();
        }

        private void look() {
            try {
                while (!isOver) {
                    for (String line : Files.readAllLines(Path.of("/proc/" + broker.pid() + "/status"))) {
                        if (line.startsWith("VmSwap:")) {
                            mostMib = Math.max(mostMib, Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0);
                        }
                    }
                    Thread.sleep(100);
                }
            } catch (IOException | InterruptedException gone) {
                // the broker has ended
            }
        }

        void end() throws Exception {
            isOver = true;
            watch.join();
            inEnd = counted("pswpin");
            outEnd = counted("pswpout");
            faultsEnd = majorFaults();
        }

        double inMib() {
            return (inEnd - in) / PAGES_PER_MIB;
        }

        double outMib() {
            return (outEnd - out) / PAGES_PER_MIB;
        }

        long faults() {
            return faultsEnd - faultsBefore;
        }

        private long majorFaults() throws IOException {
            String stat = Files.readString(Path.of("/proc/" + broker.pid() + "/stat"));
            return Long.parseLong(stat.substring(stat.lastIndexOf(')') + 2).split(" ")[9]);
        }

        private static long counted(String name) throws IOException {
            for (String line : Files.readAllLines(Path.of("/proc/vmstat"))) {
                if (line.startsWith(name + " ")) {
                    return Long.parseLong(line.substring(name.length() + 1));
                }
            }
            throw new IOException("/proc/vmstat has no " + name);
        }
    }

    /** Somebody else in the cage: a process that has so much memory and uses all of it once a second. */
    static final class Neighbour implements AutoCloseable {
        private static final int PAGE = 4096;
        private final Process process;

        Neighbour(Cage cage, int mib) throws IOException {
            if (mib == 0) {
                process = null;
                return;
            }
            List<String> command = new ArrayList<>(cage.prefix());
            command.addAll(List.of("java", "-XX:+UseSerialGC", "-Xms" + (mib + 16) + "m", "-Xmx" + (mib + 16) + "m", "-Xmn4m", "-cp",
                System.getProperty("java.class.path"), Neighbour.class.getName(), "" + mib));
            process = new ProcessBuilder(command).redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        }

        public static void main(String[] mib) throws InterruptedException {
            byte[][] memory = new byte[Integer.parseInt(mib[0])][1 << 20];
            while (true) {
                for (byte[] piece : memory) {
                    for (int at = 0; at < piece.length; at += PAGE) {
                        piece[at]++;
                    }
                }
                Thread.sleep(1000);
            }
        }

        @Override
        public void close() throws InterruptedException {
            if (process != null && !process.destroyForcibly().waitFor(20, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the neighbour does not end");
            }
        }
    }
}
