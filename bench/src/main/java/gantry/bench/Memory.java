package gantry.bench;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Fills the page cache before a broker starts, for <code>memory=used</code>: a broker that has run for a while takes its pages from a cache that is
 * full. On a virtual machine whose host takes unused memory back the first use of a page costs ten times as much, and that is what is measured otherwise.
 */
final class Memory {
    /** What stays free: the kernel keeps some of it, and the rest is taken before it looks for pages to reuse. */
    private static final long LEFT_BYTES = 600L << 20;
    private static final int READ_BYTES = 4 << 20;

    static void prepare(Map<String, String> args, Path work) throws IOException {
        String wanted = args.getOrDefault("memory", "free");
        if (wanted.equals("used")) {
            fill(work.resolve("fill"));
        } else if (!wanted.equals("free")) {
            throw new IllegalArgumentException("memory=" + wanted + ": used and free are known");
        }
    }

    /** Reads a file of holes, which takes a page for each four KiB of it and no disk. */
    private static void fill(Path file) throws IOException {
        try (RandomAccessFile holes = new RandomAccessFile(file.toFile(), "rw")) {
            holes.setLength(2 * bytes("MemTotal"));
            byte[] read = new byte[READ_BYTES];
            while (bytes("MemFree") > LEFT_BYTES && holes.read(read) > 0) {
                // another piece
            }
        }
    }

    private static long bytes(String field) throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/meminfo"))) {
            if (line.startsWith(field + ":")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
            }
        }
        throw new IOException("/proc/meminfo has no " + field);
    }
}
