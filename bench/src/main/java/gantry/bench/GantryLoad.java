package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** The same load on Gantry, made by <code>gantry bench</code> with batches that our client makes, in BatchCQ topics: one producer, one consumer. */
final class GantryLoad {
    /** A unit of a queue of batches: where its record is (8 bytes), how long that is (4), and more. */
    private static final int UNIT_BYTES = 46;
    private final Peer gantry;
    private final String binary;
    private final String more;

    /** With more keys of <code>gantry bench</code>, separated by commas; none: null. */
    GantryLoad(Peer gantry, String binary, String more) {
        this.gantry = gantry;
        this.binary = binary;
        this.more = more;
    }

    /** Sends and reads a smaller backlog first, and then the one that is measured. */
    List<CompareKafka.Figures> run(CompareKafka.Case load, long warm, long records) throws Exception {
        bench(load, warm);
        JSONObject result = bench(load, records);
        JSONObject messages = result.getJSONObject("summary").getJSONObject("messages");
        for (String count : List.of("acknowledged", "received")) {
            if (messages.getLongValue(count) != records) {
                throw new IOException(count + " are not the " + records + " messages: " + messages);
            }
        }
        return List.of(phase(result, "fill", "sent", records, batchBytes()), phase(result, "measure", "received", records, 0));
    }

    private JSONObject bench(CompareKafka.Case load, long records) throws Exception {
        Path file = gantry.folder.resolve("result.json");
        Path said = gantry.folder.resolve("bench.log");
        // A power of two divides without a rest, so this is the number of records to the last one.
        double backlog = (double) records * load.bytes() / (1 << 30);
        List<String> command = new ArrayList<>(List.of(binary, "bench", "run", "--preset", "batch-cq-" + load.size() + "-" + load.queues(),
            "-n", gantry.namesrv, "--server-pid", "" + gantry.processes.get(0).pid(), "--quiet", "--keep-topics", "--warmup", "0", "--seconds", "3600",
            "--json", file.toString(), "--set", "consumerBacklogSizeGB=" + backlog, "--set", "producersPerTopic=1",
            "--set", "consumerPerSubscription=1", "--set", "backpressureConcurrency=" + load.inFlight(),
            "--set", "batchMaxBytes=" + CompareKafka.BATCH_BYTES, "--set", "batchMaxDelayMs=" + CompareKafka.LINGER_MS,
            "--set", "totalBatchMaxBytes=" + CompareKafka.BUFFER_BYTES));
        for (String pair : more == null ? new String[0] : more.split(",")) {
            command.addAll(List.of("--set", pair));
        }
        int status = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile()).start().waitFor();
        if (status != 0) {
            throw new IOException("gantry bench failed: " + Files.readString(said));
        }
        return JSON.parseArray(Files.readString(file)).getJSONObject(0);
    }

    /** The figures of a part of the run, from its rows: one a second. */
    private CompareKafka.Figures phase(JSONObject result, String phase, String count, long records, double batchBytes) throws IOException {
        double seconds = 0;
        double broker = 0;
        double loader = 0;
        long counted = 0;
        for (Object each : result.getJSONArray("windows")) {
            JSONObject row = (JSONObject) each;
            if (row.getString("phase").equals(phase)) {
                double length = row.getDoubleValue("seconds");
                seconds += length;
                broker += length * row.getDoubleValue("serverCpuCores");
                loader += length * row.getDoubleValue("loaderCpuCores");
                counted += row.getLongValue(count);
            }
        }
        if (counted != records) {
            throw new IOException(counted + " of " + records + " messages were " + count + " in the phase " + phase);
        }
        return new CompareKafka.Figures(records / seconds, records / broker, loader * 1e6 / records, gantry.residentMib(), batchBytes);
    }

    /** The mean length of a batch's record, of all that the queues say so far; what is written a moment later changes little. */
    private double batchBytes() throws IOException {
        long batches = 0;
        long bytes = 0;
        try (Stream<Path> paths = Files.walk(gantry.folder.resolve("data/store/batchconsumequeue"))) {
            for (Path path : paths.filter(Files::isRegularFile).toList()) {
                try (InputStream file = new BufferedInputStream(Files.newInputStream(path))) {
                    for (byte[] unit = file.readNBytes(UNIT_BYTES); unit.length == UNIT_BYTES; unit = file.readNBytes(UNIT_BYTES)) {
                        int length = ByteBuffer.wrap(unit).getInt(8);
                        if (length == 0) {
                            break; // room for more
                        }
                        batches++;
                        bytes += length;
                    }
                }
            }
        }
        return batches == 0 ? 0 : (double) bytes / batches;
    }
}
