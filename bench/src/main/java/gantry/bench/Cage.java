package gantry.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.NavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;

/** A memory cgroup below the one that we are in: what is in it gets so much memory, page cache included, and no more. Needs root. */
final class Cage implements AutoCloseable {
    private static final long TENTH_NANOS = 100_000_000;
    private final Path folder;
    private final boolean isSecond;
    private final Thread watch;
    private volatile boolean isOver;
    private volatile long most;
    /** The most that it held, by tenths of seconds of the clock that never goes back. */
    private final NavigableMap<Long, Long> held = new ConcurrentSkipListMap<>();

    Cage(int mib) throws IOException {
        Path found = null;
        boolean second = false;
        for (String line : Files.readAllLines(Path.of("/proc/self/cgroup"))) {
            String[] parts = line.split(":", 3);
            boolean isMemory = List.of(parts[1].split(",")).contains("memory");
            if (isMemory || parts[1].isEmpty() && found == null) {
                second = !isMemory;
                found = Path.of("/sys/fs/cgroup", second ? "" : "memory", parts[2]);
            }
        }
        if (found == null) {
            throw new IOException("/proc/self/cgroup names no cgroup for memory");
        }
        isSecond = second;
        folder = Files.createDirectory(found.resolve("gantry-cage-" + ProcessHandle.current().pid()));
        Files.writeString(folder.resolve(isSecond ? "memory.max" : "memory.limit_in_bytes"), "" + ((long) mib << 20));
        watch = new Thread(this::look, "cage");
        watch.setDaemon(true);
        watch.start();
    }

    /** How readily the kernel swaps what is inside; of version 2, where groups have no word of their own in it, on the whole machine. */
    void swappiness(String value) throws IOException {
        Files.writeString(isSecond ? Path.of("/proc/sys/vm/swappiness") : folder.resolve("memory.swappiness"), value);
    }

    /** What a command begins with whose process is to be inside. */
    List<String> prefix() {
        return List.of("sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", folder.resolve("cgroup.procs").toString());
    }

    private void look() {
        try {
            while (!isOver) {
                long now = Long.parseLong(Files.readString(folder.resolve(isSecond ? "memory.current" : "memory.usage_in_bytes")).trim());
                most = Math.max(most, now);
                held.merge(System.nanoTime() / TENTH_NANOS, now, Math::max);
                Thread.sleep(20);
            }
        } catch (IOException | InterruptedException gone) {
            // the cage is taken away
        }
    }

    /** The most that it held. */
    long mostMib() {
        return most >> 20;
    }

    /** The most that it held between two times, of {@link System#nanoTime}. */
    long mostMib(long from, long to) {
        return held.subMap(from / TENTH_NANOS, true, to / TENTH_NANOS, true).values().stream().mapToLong(Long::longValue).max().orElse(0) >> 20;
    }

    /** How often somebody in it did not get memory at once. */
    long failures() throws IOException {
        return isSecond ? counted("memory.events", "max") : Long.parseLong(Files.readString(folder.resolve("memory.failcnt")).trim());
    }

    /** How many processes the kernel killed in it for want of memory. */
    long kills() throws IOException {
        return counted(isSecond ? "memory.events" : "memory.oom_control", "oom_kill");
    }

    private long counted(String file, String name) throws IOException {
        for (String line : Files.readAllLines(folder.resolve(file))) {
            String[] words = line.split(" ");
            if (words[0].equals(name)) {
                return Long.parseLong(words[1]);
            }
        }
        return 0;
    }

    @Override
    public void close() throws Exception {
        isOver = true;
        watch.join();
        for (int tries = 0; ; tries++) {
            try {
                Files.delete(folder);
                return;
            } catch (IOException busy) { // its processes are on their way out
                if (tries == 100) {
                    throw busy;
                }
                Thread.sleep(100);
            }
        }
    }
}
