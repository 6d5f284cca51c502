package gantry.bench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** All ways in which the stock client sends and consumes, on each broker in turn: how fast, at what cost, and how much of it arrived. */
public final class Modes {
    private final Map<String, String> args;
    private final Path work;
    private final List<ModeLoad.Outcome> outcomes = new ArrayList<>();

    private Modes(Map<String, String> args) {
        this.args = args;
        this.work = Path.of(args.get("work"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> args = new LinkedHashMap<>(Map.of("scale", "0.2", "peers", "gantry,apache", "modes", "batch,callback,sync,oneway,push,memory"));
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            args.put(argument.substring(0, at), argument.substring(at + 1));
        }
        new Modes(args).run();
        System.exit(0);
    }

    private void run() throws Exception {
        Map<String, List<Mode>> groups = new LinkedHashMap<>();
        for (Mode mode : Mode.ALL) {
            if (List.of(args.get("modes").split(",")).stream().anyMatch(mode.name()::startsWith)) {
                groups.computeIfAbsent(mode.group(), key -> new ArrayList<>()).add(mode.scaled(Double.parseDouble(args.get("scale"))));
            }
        }
        if (groups.isEmpty()) {
            throw new IllegalArgumentException("modes=" + args.get("modes") + ": known are those that begin with " + Mode.ALL.stream().map(Mode::name).toList());
        }
        for (List<Mode> group : groups.values()) {
            for (String name : args.get("peers").split(",")) {
                runGroup(name, group);
            }
        }
        System.out.printf("scale %s of the counts%n%n", args.get("scale"));
        printOutcomes();
        printFailures();
    }

    private void runGroup(String name, List<Mode> group) throws Exception {
        String memory = group.get(0).memory();
        boolean isGantry = name.equals("gantry");
        Map<String, String> conf = Compare.settings(args, isGantry ? "set" : "other");
        if (isGantry && !memory.isEmpty()) {
            conf.put("memoryLimit", memory);
        }
        if (args.containsKey("slave")) {
            conf.putAll(Peer.master(args.get("slave")));
        }
        Memory.prepare(args, work);
        try (Peer peer = Peer.of(name, args, work.resolve("modes-" + name), conf)) {
            if (peer instanceof Peer.Apache apache && !memory.isEmpty()) {
                apache.heap(memory);
            }
            peer.launch();
            peer.awaitReady();
            peer.followed(args);
            for (Mode mode : group) {
                String topic = "modes_" + mode.name();
                new ModeLoad(peer, mode.warmUp(), topic + "_warm").run();
                ModeLoad.Outcome outcome = new ModeLoad(peer, mode, topic).run();
                outcomes.add(outcome);
                System.err.println(outcome);
                Files.writeString(work.resolve("modes.txt"), outcome + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            }
        }
    }

    private void printOutcomes() {
        System.out.println("| mode | shows | broker | messages asked | messages/s | broker CPU % of a core | CPU-s per million | VmRSS MiB | succeeded by the client "
            + "| reached the socket | stored, or received | of those asked | of those that reached the socket |");
        System.out.println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for (ModeLoad.Outcome row : inOrder()) {
            boolean sends = row.reached() >= 0;
            boolean hasRate = 2 * row.kept() >= row.asked(); // of a client that stood still a rate says nothing
            System.out.printf("| %s | %s | %s | %,d | %s | %.0f | %s | %.0f | %,d | %s | %,d | %s | %s |%n", row.mode().name(), row.mode().requirements(),
                row.broker(), row.asked(), hasRate ? String.format("%,.0f", row.kept() / row.seconds()) : "–", 100 * row.cpuSeconds() / row.seconds(),
                hasRate ? String.format("%.2f", 1e6 * row.cpuSeconds() / row.kept()) : "–", row.residentMib(),
                row.succeeded(), sends ? String.format("%,d", row.reached()) : "–", row.kept(), share(row.kept(), row.asked()), sends ? share(row.kept(), row.reached()) : "–");
        }
    }

    /** Brokers beside each other, by modes. */
    private List<ModeLoad.Outcome> inOrder() {
        List<ModeLoad.Outcome> rows = new ArrayList<>();
        Mode.ALL.forEach(mode -> outcomes.stream().filter(row -> row.mode().name().equals(mode.name())).forEach(rows::add));
        return rows;
    }

    /** Cut and not rounded, so that 100 says all. */
    private static String share(long part, long whole) {
        return whole == 0 ? "–" : String.format("%.2f %%", Math.floor(10_000.0 * part / whole) / 100);
    }

    private void printFailures() {
        System.out.println("\n| mode | broker | what the client was told, N for numbers | times |\n| --- | --- | --- | --- |");
        boolean isClean = true;
        for (ModeLoad.Outcome row : inOrder()) {
            row.failures().forEach((text, count) ->
                System.out.printf("| %s | %s | `%s` | %,d |%n", row.mode().name(), row.broker(), text.replace("|", "\\|"), count));
            isClean &= row.failures().isEmpty();
        }
        if (isClean) {
            System.out.println("| all | all | nothing failed | 0 |");
        }
    }
}
