package gantry.bench;

import java.util.ArrayList;
import java.util.List;

/**
 * A row of the table: how messages of 100 bytes are sent or consumed, by how many, and how many of them.
 *
 * @param name what it is called in <code>modes=</code> and in the table
 * @param group modes of one group share a broker
 * @param requirements which requirements it shows
 * @param threads threads that send, or consumers
 * @param messages of the load test whose figures are compared with, before they are scaled
 * @param memory what the broker may use, as its setting says it; empty for its default
 */
record Mode(String name, String group, String requirements, Kind kind, int threads, long messages, String memory) {
    /** Tamed: with the settings, or the way of calling, under which the stock client loses nothing of its own. */
    enum Kind { BATCH, SYNC, CALLBACK, CALLBACK_TAMED, ONEWAY, ONEWAY_CONNECTED, ONEWAY_TAMED, PUSH, PUSH_TUNED }

    static final int BATCH_MESSAGES = 1000;
    static final int BODY_BYTES = 100;
    /** Counts up to this are short bursts, and are never scaled. */
    private static final long BURST_MAX = 100_000;
    private static final long WARM_UP_MIN = 20_000;
    private static final long BACKLOG = 10_000_000;
    private static final long MILLION = 1_000_000;

    static final List<Mode> ALL = all();

    private static List<Mode> all() {
        List<Mode> all = new ArrayList<>(List.of(
            new Mode("batch-16", "batch", "R1.5, R1.6", Kind.BATCH, 16, 60 * MILLION, ""),
            new Mode("batch-32", "batch", "R1.7, R1.8", Kind.BATCH, 32, 60 * MILLION, ""),
            new Mode("callback-16", "callback", "R1.9", Kind.CALLBACK, 16, MILLION, ""),
            new Mode("callback-16-tamed", "callback", "R1.9, R1.22", Kind.CALLBACK_TAMED, 16, MILLION, ""),
            new Mode("callback-64", "callback", "R1.10", Kind.CALLBACK, 64, 30_000, ""),
            new Mode("callback-64-tamed", "callback", "R1.10, R1.22", Kind.CALLBACK_TAMED, 64, 30_000, ""),
            new Mode("sync-16", "sync", "R1.11", Kind.SYNC, 16, MILLION, ""),
            new Mode("sync-64", "sync", "R1.12", Kind.SYNC, 64, MILLION, ""),
            new Mode("oneway-16", "oneway", "R1.13", Kind.ONEWAY, 16, MILLION, ""),
            new Mode("oneway-16-connected", "oneway", "R1.13", Kind.ONEWAY_CONNECTED, 16, MILLION, ""),
            new Mode("oneway-16-tamed", "oneway", "R1.13, R1.24", Kind.ONEWAY_TAMED, 16, MILLION, ""),
            new Mode("oneway-64", "oneway", "R1.14", Kind.ONEWAY, 64, 2 * MILLION, ""),
            new Mode("oneway-64-tamed", "oneway", "R1.14, R1.24", Kind.ONEWAY_TAMED, 64, 2 * MILLION, ""),
            new Mode("oneway-64-long", "oneway", "R1.15", Kind.ONEWAY, 64, 3 * MILLION, ""),
            new Mode("oneway-64-long-tamed", "oneway", "R1.15, R1.24", Kind.ONEWAY_TAMED, 64, 3 * MILLION, ""),
            new Mode("oneway-64-burst", "oneway", "R1.16", Kind.ONEWAY, 64, 80_000, ""),
            new Mode("oneway-64-burst-tamed", "oneway", "R1.16, R1.24", Kind.ONEWAY_TAMED, 64, 80_000, ""),
            new Mode("push-1", "push", "R1.17", Kind.PUSH, 1, BACKLOG, ""),
            new Mode("push-1-tuned", "push", "R1.17, R1.19", Kind.PUSH_TUNED, 1, BACKLOG, ""),
            new Mode("push-2", "push", "R1.18", Kind.PUSH, 2, BACKLOG, ""),
            new Mode("push-2-tuned", "push", "R1.18, R1.19", Kind.PUSH_TUNED, 2, BACKLOG, "")));
        for (String memory : List.of("256M", "1G", "4G")) {
            all.add(new Mode("memory-" + memory + "-batch-16", "memory-" + memory, "R1.4", Kind.BATCH, 16, 60 * MILLION, memory));
            all.add(new Mode("memory-" + memory + "-push-1", "memory-" + memory, "R1.4", Kind.PUSH, 1, BACKLOG, memory));
        }
        return all;
    }

    boolean consumes() {
        return kind == Kind.PUSH || kind == Kind.PUSH_TUNED;
    }

    int messagesPerRequest() {
        return kind == Kind.BATCH ? BATCH_MESSAGES : 1;
    }

    /** As many messages as the scale says, in whole requests. */
    Mode scaled(double scale) {
        return with(kind, messages <= BURST_MAX ? messages : (long) (messages * scale));
    }

    /**
     * What goes before it and does not count, so that broker and client have compiled what they need: a tenth, and nothing that a client would still
     * have in hand afterwards.
     */
    Mode warmUp() {
        Kind calm = switch (kind) {
            case CALLBACK -> Kind.CALLBACK_TAMED;
            case ONEWAY, ONEWAY_CONNECTED -> Kind.ONEWAY_TAMED;
            case BATCH, SYNC, CALLBACK_TAMED, ONEWAY_TAMED, PUSH, PUSH_TUNED -> kind;
        };
        return with(calm, Math.max(messages / 10, WARM_UP_MIN));
    }

    /** How many requests one of its threads sends. */
    long requestsOf(int thread) {
        long requests = messages / messagesPerRequest();
        return requests / threads + (thread < requests % threads ? 1 : 0);
    }

    private Mode with(Kind kind, long messages) {
        int whole = kind == Kind.BATCH ? BATCH_MESSAGES : consumes() ? Topic.FILLED_AT_ONCE : 1;
        return new Mode(name, group, requirements, kind, threads, Math.max(1, messages / whole) * whole, memory);
    }
}
