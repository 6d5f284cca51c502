package gantry.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs a tool of Kafka's several times in one process, so that it is compiled when it is measured. Arguments: its class, and its arguments
 * for each run, each run's behind a {@link #RUN}. Before each run and after the last one it says {@link #READY} and waits for a line on
 * standard input: whoever started it looks at clocks then.
 */
final class KafkaTool {
    static final String RUN = "--run";
    static final String READY = "kafka tool: ready";

    public static void main(String[] arguments) throws Exception {
        Method tool = Class.forName(arguments[0]).getMethod("main", String[].class);
        List<List<String>> runs = new ArrayList<>();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            if (argument.equals(RUN)) {
                runs.add(new ArrayList<>());
            } else {
                runs.get(runs.size() - 1).add(argument);
            }
        }
        BufferedReader words = new BufferedReader(new InputStreamReader(System.in));
        for (List<String> run : runs) {
            await(words);
            tool.invoke(null, (Object) run.toArray(String[]::new));
        }
        await(words);
        System.exit(0);
    }

    private static void await(BufferedReader words) throws Exception {
        System.out.println(READY);
        if (words.readLine() == null) {
            System.exit(1); // whoever started us is gone
        }
    }
}
