package gantry;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;

/** Waits for a condition with a deadline; nothing in these suites waits for an amount of time to pass. */
final class Await {
    private Await() {}

    static void until(String what, Callable<Boolean> condition) {
        until(what, Duration.ofSeconds(30), condition, () -> "");
    }

    /** Waits until the condition holds; an exception counts as "not yet" and is shown if the deadline passes. */
    static void until(String what, Duration patience, Callable<Boolean> condition, Supplier<String> seen) {
        long deadline = System.nanoTime() + patience.toNanos();
        Exception last = null;
        do {
            try {
                last = null;
                if (condition.call()) {
                    return;
                }
            } catch (Exception notYet) {
                last = notYet;
            }
            if (Thread.currentThread().isInterrupted()) {
                throw new AssertionError("interrupted while waiting until " + what + " " + seen.get(), last);
            }
            LockSupport.parkNanos(Duration.ofMillis(10).toNanos());
        } while (System.nanoTime() < deadline);
        throw new AssertionError("not within " + patience.toSeconds() + " s: " + what + " " + seen.get(), last);
    }
}
