package gantry.bench;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.stream.IntStream;

/**
 * How steady the machine itself is: a thread a processor copies memory over and over, and what all copied is counted by the second. What falls
 * below nine tenths of the median for ten seconds here does so for reasons that no broker has a part in.
 */
public final class Steady {
    private static final int BYTES = 32 << 20;
    private static final int WINDOW = 10;

    private Steady() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        int seconds = 60;
        for (String argument : arguments) {
            if (!argument.startsWith("secs=")) {
                throw new IllegalArgumentException(argument + " is not secs=N");
            }
            seconds = Integer.parseInt(argument.substring("secs=".length()));
        }
        if (seconds < 2 * WINDOW) {
            throw new IllegalArgumentException("secs=" + seconds + " is less than " + 2 * WINDOW);
        }
        int processors = Runtime.getRuntime().availableProcessors();
        AtomicLongArray copied = new AtomicLongArray(seconds);
        long begin = System.nanoTime();
        Thread[] threads = new Thread[processors];
        for (int i = 0; i < processors; i++) {
            threads[i] = new Thread(() -> copy(copied, begin));
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        // The first second holds the compiler.
        double[] each = IntStream.range(1, seconds).mapToDouble(second -> copied.get(second) * (double) BYTES / (1 << 30)).toArray();
        double[] sorted = each.clone();
        Arrays.sort(sorted);
        double median = sorted[sorted.length / 2];
        double[] windows = IntStream.rangeClosed(0, each.length - WINDOW).mapToDouble(from -> Arrays.stream(each, from, from + WINDOW).sum() / WINDOW).toArray();
        int drops = 0;
        boolean isLow = false;
        for (double window : windows) {
            boolean isLowNow = window < 0.9 * median;
            drops += isLowNow && !isLow ? 1 : 0;
            isLow = isLowNow;
        }
        System.out.printf("%d threads, %d s: %.1f GiB a second copied in the median; slowest second %.2f of it, slowest %d seconds %.2f; stretches of %d seconds below 0.9 of it: %d%n",
            processors, seconds, median, sorted[0] / median, WINDOW, Arrays.stream(windows).min().orElse(0) / median, WINDOW, drops);
    }

    private static void copy(AtomicLongArray copied, long begin) {
        byte[] from = new byte[BYTES];
        byte[] to = new byte[BYTES];
        for (long second = 0; second < copied.length(); second = (System.nanoTime() - begin) / 1_000_000_000L) {
            System.arraycopy(from, 0, to, 0, BYTES);
            copied.incrementAndGet((int) second);
        }
    }
}
