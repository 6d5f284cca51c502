package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What our own client sends in batches by itself, through {@code gantry bench}, is read by stock consumers: each message once. */
@Tag("clients")
class AutoBatchTest {
    private static final int QUEUES = 4;
    private static final int PRODUCERS = 2;
    private static final int MESSAGES = 6000;

    @Test
    void of_ordinary_topics_every_consumer_gets_each_message() throws Exception {
        sendAndRead();
    }

    @Test
    void of_topics_that_keep_batches_whole_consumers_from_5_on_get_each_message() throws Exception {
        assumeTrue(MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION).startsWith("V5"), "older consumers cannot take batches apart");
        sendAndRead("batchCQ=true");
    }

    @Test
    void large_messages_are_compressed_and_opened_again() throws Exception {
        sendAndRead("messageSize=5000", "compressOverBytes=4096");
    }

    @Test
    void batches_that_stay_whole_are_compressed_as_a_whole_and_consumers_from_5_on_open_them() throws Exception {
        assumeTrue(MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION).startsWith("V5"), "older consumers cannot take batches apart");
        int compressed = sendAndRead("batchCQ=true", "compressOverBytes=1000");
        assertTrue(compressed > 0, "no message came in a compressed batch");
    }

    /** Says how many messages came in batches that were compressed as a whole: a consumer that opens one leaves its
     * marks on them, but the one that it is compressed. */
    private static int sendAndRead(String... more) throws Exception {
        String binary = System.getProperty("gantry.binary");
        assumeTrue(binary != null && !binary.isEmpty(), "without our binary there is nobody to send");
        try (var server = new Server("auto-batch").start(); var stock = new Stock(server)) {
            var command = new ArrayList<>(List.of(binary, "bench", "run", "-n", "127.0.0.1:" + server.registersAt, "--keep-topics"));
            var values = new ArrayList<>(List.of("autoBatch=true", "sendMode=async", "partitionsPerTopic=" + QUEUES, "messageSize=100",
                "producersPerTopic=" + PRODUCERS, "messages=" + MESSAGES, "warmupDurationMinutes=0", "testDurationMinutes=2"));
            values.addAll(List.of(more));
            values.forEach(value -> command.addAll(List.of("--set", value)));
            var log = server.root.resolve("bench.log").toFile();
            var bench = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log).start();
            assertTrue(bench.waitFor(120, TimeUnit.SECONDS), "the load does not end, see " + log);
            assertEquals(0, bench.exitValue(), "see " + log);

            var topics = new String(Wire.call(server.registersAt, 206, Map.of()).getBody());
            var name = Pattern.compile("\"(bench-[0-9a-f]{16}-0)\"").matcher(topics);
            assertTrue(name.find(), topics);
            var stamps = new HashSet<String>();
            var ids = new HashSet<String>();
            int compressed = 0;
            for (int queue = 0; queue < QUEUES; queue++) {
                for (var message : stock.read(name.group(1), queue)) {
                    var body = ByteBuffer.wrap(message.getBody());
                    assertTrue(stamps.add(body.getInt(4) + " " + body.getLong(16)), "twice: " + message);
                    assertNotNull(message.getProperty("UNIQ_KEY"));
                    ids.add(message.getProperty("UNIQ_KEY"));
                    int marks = MessageSysFlag.COMPRESSION_ZLIB_TYPE | MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG;
                    compressed += (message.getSysFlag() & marks) == marks ? 1 : 0;
                }
            }
            assertEquals(MESSAGES, stamps.size());
            assertEquals(MESSAGES, ids.size());
            for (int producer = 0; producer < PRODUCERS; producer++) {
                for (long sequence = 0; sequence < MESSAGES / PRODUCERS; sequence++) {
                    assertTrue(stamps.contains(producer + " " + sequence), "lost: " + producer + " " + sequence);
                }
            }
            return compressed;
        }
    }
}
