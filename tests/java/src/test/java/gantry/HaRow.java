package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Locale;

/** The line of a row of tests/ha, which names the file for it; without a file there is none. A test that comes to it has lost nothing. */
final class HaRow {
    private HaRow() {}

    /** {@code time}: of what {@code label} says. */
    static void ran(String id, String mode, long acknowledged, String label, Duration time) throws IOException {
        String report = System.getProperty("gantry.ha.report");
        if (report == null) {
            return;
        }
        double seconds = time.toMillis() / 1000.0;
        String line = String.format(Locale.ROOT, "%-4s %-52s runs=1 acknowledged=%d lost=0 vanished=0 %s=%.2fs most=%.2fs%n", id, mode,
            acknowledged, label, seconds, seconds);
        Files.write(Path.of(report), line.getBytes(UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}
