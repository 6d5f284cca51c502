package gantry.bench;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.LongAdder;

/** Sends that failed, by what the client was told. Texts that differ in their numbers only, or in what comes after so many characters, are one. */
final class Failures {
    private static final int TEXT_MAX = 120;
    private final LongAdder sum = new LongAdder();
    private final Map<String, LongAdder> byText = new ConcurrentSkipListMap<>();

    void add(Throwable cause) {
        Throwable root = cause;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        add(root.getClass().getSimpleName() + ": " + root.getMessage());
    }

    void add(String text) {
        sum.increment();
        String line = text.lines().findFirst().orElse("").replaceAll("@[0-9a-f]+", "").replaceAll("[0-9][0-9.:]*", "N");
        count(line.length() > TEXT_MAX ? line.substring(0, TEXT_MAX) + "…" : line, 1);
    }

    /** Not failures that anybody was told of, so {@link #sum} does not have them. */
    void unanswered(long messages) {
        count("neither onSuccess nor onException was called", messages);
    }

    private void count(String text, long times) {
        byText.computeIfAbsent(text, key -> new LongAdder()).add(times);
    }

    long sum() {
        return sum.sum();
    }

    Map<String, Long> counted() {
        Map<String, Long> counts = new TreeMap<>();
        byText.forEach((text, count) -> counts.put(text, count.sum()));
        return counts;
    }
}
