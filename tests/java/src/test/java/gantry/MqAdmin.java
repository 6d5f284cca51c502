package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The published mqadmin against one server, in a process of its own, since the tool prints to the process's output and keeps its
 * name server in a property of the process. What it prints is kept, a list of lines a command. Ports, times and what is
 * measured are replaced by words.
 */
final class MqAdmin {
    private static final Pattern TIME = Pattern.compile("\\d{4}-\\d\\d-\\d\\d[ ,#T]?\\d\\d:\\d\\d:\\d\\d([,.:#]\\d+)?|\\b20\\d{12,15}\\b|\\b1[6-9]\\d{11}\\b");
    private static final Pattern FRACTION = Pattern.compile("-?\\d+\\.\\d+(E-?\\d+)?(?![.\\d])");
    private static final Pattern DURATION = Pattern.compile("\\b\\d+ ?ms\\b");
    private static final Pattern UNIQUE_ID = Pattern.compile("\\b[0-9A-F]{32,56}\\b");
    private static final String COMMAND = "$ ";

    final int namesrvPort;
    final int brokerPort;
    final int controllerPort;
    final Path root;
    private final Map<String, List<String>> printed = new LinkedHashMap<>();

    private MqAdmin(int namesrvPort, int brokerPort, int controllerPort, Path root) {
        this.namesrvPort = namesrvPort;
        this.brokerPort = brokerPort;
        this.controllerPort = controllerPort;
        this.root = root;
    }

    /** In a process of its own: runs all commands and writes down what they printed. */
    public static void main(String[] arguments) throws Exception {
        var tool = new MqAdmin(Integer.parseInt(arguments[0]), Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]), Path.of(arguments[3]));
        switch (arguments[4]) {
            case "slave" -> MqAdminCommands.ofSlave(tool);
            case "controller" -> MqAdminCommands.ofController(tool);
            default -> MqAdminCommands.all(tool);
        }
        var lines = new ArrayList<String>();
        tool.printed.forEach((command, answer) -> {
            lines.add(COMMAND + command);
            lines.addAll(answer);
        });
        Files.write(tool.root.resolve("mqadmin.lines"), lines);
        System.exit(0);
    }

    /** Starts the process; the result says what each command printed. */
    static Process start(Server server) throws IOException {
        return start(server, "all");
    }

    /** The same with what operators ask about a slave. */
    static Process ofSlave(Server slave) throws IOException {
        return start(slave, "slave");
    }

    /** The same with what operators ask a controller. */
    static Process ofController(Server controller) throws IOException {
        return start(controller, "controller");
    }

    private static Process start(Server server, String which) throws IOException {
        var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        var line = new ArrayList<>(List.of(java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-Duser.home=" + server.root, "-Drocketmq.client.logUseSlf4j=false",
            "-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")), MqAdmin.class.getName(),
            String.valueOf(server.registersAt), String.valueOf(server.brokerPort), String.valueOf(server.controllerPort), server.root.toString(), which));
        return new ProcessBuilder(line).redirectErrorStream(true).redirectOutput(server.root.resolve("mqadmin.out").toFile()).start();
    }

    static Map<String, List<String>> printed(Process process, Server server) throws Exception {
        boolean ended = process.waitFor(8, TimeUnit.MINUTES);
        process.destroyForcibly();
        if (!ended || process.exitValue() != 0) {
            throw new AssertionError((ended ? "mqadmin ends with " + process.exitValue() : "mqadmin does not end") + "\n"
                + Files.readString(server.root.resolve("mqadmin.out")));
        }
        var printed = new LinkedHashMap<String, List<String>>();
        List<String> lines = null;
        for (String line : Files.readAllLines(server.root.resolve("mqadmin.lines"))) {
            if (line.startsWith(COMMAND)) {
                lines = new ArrayList<>();
                printed.put(line.substring(COMMAND.length()), lines);
            } else {
                lines.add(line);
            }
        }
        return printed;
    }

    /** Runs a command line. {@code BROKER}, {@code CONTROLLER} and {@code ROOT} in it are this server's. Returns what it printed, as it was. */
    String run(String command) {
        var arguments = new ArrayList<>(words(command));
        arguments.replaceAll(word -> word.replace("BROKER", "127.0.0.1:" + brokerPort)
            .replace("CONTROLLER", "127.0.0.1:" + controllerPort).replace("ROOT", root.toString()));
        if (!arguments.contains("-n")) {
            arguments.addAll(List.of("-n", "127.0.0.1:" + namesrvPort));
        }
        var bytes = new ByteArrayOutputStream();
        var kept = new PrintStream(bytes, true, UTF_8);
        PrintStream out = System.out;
        PrintStream err = System.err;
        // If the tool ends the process, this says where.
        out.println(COMMAND + command);
        System.setOut(kept);
        System.setErr(kept);
        try {
            // Commands remember producers that they have shut down.
            table().clear();
            MQAdminStartup.main0(arguments.toArray(String[]::new), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        String text = bytes.toString(UTF_8);
        // Ids differ from run to run.
        if (printed.put(UNIQUE_ID.matcher(command).replaceAll("ID"), text.lines().map(this::named).filter(MqAdmin::isTold).toList()) != null) {
            throw new IllegalArgumentException("ran twice: " + command);
        }
        return text;
    }

    /** A word may be quoted, since bodies and names hold blanks. */
    static List<String> words(String line) {
        Matcher words = Pattern.compile("'([^']*)'|(\\S+)").matcher(line);
        return words.results().map(word -> word.group(1) != null ? word.group(1) : word.group(2)).toList();
    }

    /** The tool's table of commands, which it fills at each start. */
    static List<?> table() {
        try {
            var commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
            commands.setAccessible(true);
            return (List<?>) commands.get(null);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static boolean isTold(String line) {
        return !line.isEmpty() && !line.startsWith("at ") && !line.matches("\\.\\.\\. \\d+ more") && !line.startsWith("SLF4J");
    }

    private String named(String line) {
        String named = line.replace("127.0.0.1:" + namesrvPort, "NAMESERVER").replace("127.0.0.1:" + brokerPort, "BROKER")
            .replace("127.0.0.1:" + controllerPort, "CONTROLLER").replace("127.0.0.1:" + (brokerPort + 1), "HA").replace(String.format("7F000001%08X", brokerPort), "BROKER_ID_")
            .replace(root.toString(), "ROOT").replaceAll("127\\.0\\.0\\.1:\\d+", "CLIENT").replaceAll("127\\.0\\.0\\.1@\\d+(#\\d+)?", "CLIENT_ID");
        named = TIME.matcher(named).replaceAll("TIME");
        named = DURATION.matcher(named).replaceAll("DURATION");
        named = FRACTION.matcher(named).replaceAll("FRACTION");
        named = UNIQUE_ID.matcher(named).replaceAll("ID");
        return named.replaceAll("\\s+", " ").strip();
    }

    /** What was printed about one and not about the other, a line each. */
    static List<Conversation.Difference> differences(Map<String, List<String>> apache, Map<String, List<String>> gantry) {
        var found = new ArrayList<Conversation.Difference>();
        apache.forEach((command, lines) -> {
            var ours = gantry.getOrDefault(command, List.of());
            lines.stream().filter(line -> !ours.contains(line)).distinct()
                .forEach(line -> found.add(new Conversation.Difference(command, "about Apache", line, "")));
            ours.stream().filter(line -> !lines.contains(line)).distinct()
                .forEach(line -> found.add(new Conversation.Difference(command, "about Gantry", "", line)));
        });
        return found;
    }
}
