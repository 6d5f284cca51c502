package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The example of the README, as a newcomer runs it: its source, with a stock client. */
@Tag("clients")
class FirstMessageTest {
    private record Ended(int code, String output) {
        long received() {
            return output.lines().filter(line -> line.startsWith("received: ")).count();
        }
    }

    @Test
    void each_run_receives_the_message_that_it_sent_and_none_of_a_run_before() throws Exception {
        try (var server = new Server("first").start()) {
            for (int run = 0; run < 2; run++) {
                Ended ended = run("127.0.0.1:" + server.namesrvPort);
                assertEquals(0, ended.code, ended.output);
                assertEquals(1, ended.received(), ended.output);
            }
        }
    }

    @Test
    void without_a_server_it_ends_and_names_the_address() throws Exception {
        String nobody = "127.0.0.1:1";
        Ended ended = run(nobody);
        assertEquals(1, ended.code, ended.output);
        assertTrue(ended.output.contains("no message went through the name server " + nobody), ended.output);
    }

    private static Ended run(String address) throws Exception {
        Path source = Path.of(System.getProperty("gantry.sources")).resolve("../../../../../../examples/first-message/src/main/java/FirstMessage.java");
        Path work = Files.createDirectories(Path.of(System.getProperty("gantry.work")));
        Path output = Files.createTempFile(work, "first-message", ".log");
        // Surefire may hide the class path of the tests behind a jar of its own.
        String classPath = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process process = new ProcessBuilder(List.of(java, "-Duser.home=" + work, "-cp", classPath + File.pathSeparator, source.toString(), address))
            .redirectErrorStream(true).redirectOutput(output.toFile()).start();
        try {
            assertTrue(process.waitFor(90, TimeUnit.SECONDS), () -> "it does not end");
            return new Ended(process.exitValue(), Files.readString(output, UTF_8));
        } finally {
            process.destroyForcibly();
            Files.deleteIfExists(output);
        }
    }
}
