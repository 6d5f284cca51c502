package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Peers that speak nonsense, at the broker and at the name server. They get a code or a closed connection; a stock producer and
 * consumer work beside them all the time and must not notice.
 */
@Tag("input")
class BadInputTest {
    private static final String PLAIN_HEADER =
        "{\"code\":28,\"flag\":0,\"language\":\"JAVA\",\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";

    private final Stock stock = new Stock();
    private final Inbox inbox = new Inbox();
    private final AtomicBoolean flowing = new AtomicBoolean(true);
    private final AtomicInteger sent = new AtomicInteger();
    private final AtomicReference<Exception> disturbed = new AtomicReference<>();
    private Thread bystander;
    private String topic;

    @BeforeEach
    void a_bystander_works() throws Exception {
        topic = stock.topic(1);
        var producer = stock.producer();
        producer.setRetryTimesWhenSendFailed(0);
        var consumer = stock.push(Stock.name("bystander"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        bystander = new Thread(() -> {
            try {
                while (flowing.get()) {
                    producer.send(new Message(topic, String.valueOf(sent.get()).getBytes(UTF_8)));
                    sent.incrementAndGet();
                    java.util.concurrent.locks.LockSupport.parkNanos(1_000_000);
                }
            } catch (Exception e) {
                disturbed.set(e);
            }
        }, "bystander");
        bystander.start();
        Await.until("the bystander sends", () -> sent.get() > 10);
    }

    @AfterEach
    void and_was_not_disturbed() throws Exception {
        int before = sent.get();
        Await.until("the bystander still sends", () -> sent.get() > before + 10 || disturbed.get() != null);
        flowing.set(false);
        bystander.join();
        if (disturbed.get() != null) {
            throw new AssertionError("the bystander was disturbed", disturbed.get());
        }
        inbox.awaitDistinct(sent.get());
        stock.close();
    }

    private List<Integer> ports() {
        return List.of(stock.server.brokerPort, stock.server.namesrvPort);
    }

    private static byte[] frame(int length, int serialization, int headerLength, byte[] rest) throws IOException {
        var bytes = new ByteArrayOutputStream();
        var out = new DataOutputStream(bytes);
        out.writeInt(length);
        out.writeInt(serialization << 24 | headerLength);
        out.write(rest);
        return bytes.toByteArray();
    }

    private static byte[] json(String header) throws IOException {
        byte[] bytes = header.getBytes(UTF_8);
        return frame(4 + bytes.length, 0, bytes.length, bytes);
    }

    /** The connection is closed, and a fresh one is served. */
    private void closed(int port, byte[] bytes) throws Exception {
        try (var wire = new Wire(port)) {
            wire.write(bytes);
            assertTrue(wire.ends(), "the connection should have been closed");
        }
        assertNotEquals(-1, Wire.call(port, 106, Map.of()).getCode());
    }

    @Test
    void a_frame_that_is_too_long_closes_the_connection() throws Exception {
        for (int port : ports()) {
            closed(port, frame(0x10_00_00_00, 0, 100, new byte[200]));
            closed(port, frame((16 << 20) + 1, 0, 100, new byte[200]));
            closed(port, frame(Integer.MAX_VALUE, 0, 100, new byte[200]));
            closed(port, frame(-1, 0, 100, new byte[200]));
        }
    }

    @Test
    void a_header_that_is_longer_than_its_frame_closes_the_connection() throws Exception {
        for (int port : ports()) {
            closed(port, frame(100, 0, 5_000, new byte[200]));
            closed(port, frame(100, 1, 0xFF_FF_FF, new byte[200]));
        }
    }

    @Test
    void an_unknown_serialisation_closes_the_connection() throws Exception {
        for (int port : ports()) {
            byte[] header = PLAIN_HEADER.getBytes(UTF_8);
            closed(port, frame(4 + header.length, 9, header.length, header));
        }
    }

    @Test
    void binary_headers_that_lie_about_their_lengths_close_the_connection() throws Exception {
        for (int port : ports()) {
            for (int[] lengths : new int[][] {{1_000_000, 0}, {-1, 0}, {0, 1_000_000}, {0, -5}}) {
                var bytes = new ByteArrayOutputStream();
                var out = new DataOutputStream(bytes);
                out.writeShort(28);
                out.writeByte(0);
                out.writeShort(479);
                out.writeInt(1);
                out.writeInt(0);
                out.writeInt(lengths[0]);
                out.writeInt(lengths[1]);
                byte[] header = bytes.toByteArray();
                byte[] frame = frame(4 + header.length, 1, header.length, header);
                if (lengths[0] < 0 || lengths[1] < 0) {
                    // Apache reads a negative length as "nothing"; a closed connection is as good.
                    try (var wire = new Wire(port)) {
                        wire.write(frame);
                        wire.socket.shutdownOutput();
                        assertTrue(wire.ends());
                    }
                } else {
                    closed(port, frame);
                }
            }
        }
    }

    @Test
    void headers_that_are_not_json_close_the_connection() throws Exception {
        for (int port : ports()) {
            closed(port, json("this is no header"));
            closed(port, json("{\"code\":28,"));
            closed(port, json("{\"code\":\"twenty-eight\",\"flag\":0,\"opaque\":1}"));
            byte[] broken = PLAIN_HEADER.replace("JAVA", "JA??").getBytes(UTF_8);
            int at = new String(broken, UTF_8).indexOf("??");
            broken[at] = (byte) 0xC3;
            broken[at + 1] = (byte) 0x28;
            answeredOrClosed(port, frame(4 + broken.length, 0, broken.length, broken));
        }
    }

    @Test
    void deeply_nested_and_huge_headers_do_no_harm() throws Exception {
        for (int port : ports()) {
            answeredOrClosed(port, json("{\"code\":28,\"opaque\":1,\"flag\":0,\"x\":" + "[".repeat(100_000) + "]".repeat(100_000) + "}"));
            answeredOrClosed(port, json("{\"code\":28,\"opaque\":1,\"flag\":0,\"extFields\":{\"k\":\"" + "v".repeat(8 << 20) + "\"}}"));
        }
    }

    private void answeredOrClosed(int port, byte[] bytes) throws Exception {
        try (var wire = new Wire(port)) {
            wire.write(bytes);
            wire.socket.shutdownOutput();
            assertTrue(wire.ends());
        }
    }

    @Test
    void garbage_of_every_length_does_no_harm() throws Exception {
        var random = new Random(42);
        for (int port : ports()) {
            for (int length = 1; length < 20_000; length = length * 2 + 1) {
                byte[] garbage = new byte[length];
                random.nextBytes(garbage);
                // Neither the first byte of TLS nor of PROXY, whose handlers would rightly wait for more.
                garbage[0] = 0x7F;
                answeredOrClosed(port, garbage);
            }
            answeredOrClosed(port, "GET / HTTP/1.1\r\nHost: here\r\n\r\n".getBytes(UTF_8));
            answeredOrClosed(port, "PROXY nonsense nobody knows 1 2\r\n".getBytes(UTF_8));
            answeredOrClosed(port, new byte[] {0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9});
        }
    }

    @Test
    void every_prefix_of_a_good_request_may_be_the_last_word() throws Exception {
        byte[] good = Wire.frame(Wire.request(28, Map.of("field", "value"), "body".getBytes(UTF_8)));
        for (int port : ports()) {
            for (int length = 0; length < good.length; length += 7) {
                try (var wire = new Wire(port)) {
                    wire.write(java.util.Arrays.copyOf(good, length));
                }
            }
        }
    }

    @Test
    void requests_cut_at_every_byte_are_put_together() throws Exception {
        byte[] good = Wire.frame(Wire.request(106, Map.of(), null));
        try (var wire = new Wire(stock.server.namesrvPort)) {
            for (byte one : good) {
                wire.write(new byte[] {one});
            }
            assertEquals(0, wire.read().getCode());
            // And many in one piece.
            var many = new ByteArrayOutputStream();
            for (int i = 0; i < 100; i++) {
                many.write(Wire.frame(Wire.request(106, Map.of(), null)));
            }
            wire.write(many.toByteArray());
            for (int i = 0; i < 100; i++) {
                assertEquals(0, wire.read().getCode());
            }
        }
    }

    @Test
    void missing_fields_and_numbers_that_are_none_are_refused() throws Exception {
        // Whatever the request, an answer with a code other than success, on a connection that lives on.
        var bad = new HashMap<Integer, List<Map<String, String>>>();
        bad.put(310, List.of(Map.of(), Map.of("a", "g", "b", topic, "e", "zero"), Map.of("b", topic)));
        bad.put(10, List.of(Map.of(), Map.of("topic", topic, "queueId", "zero")));
        bad.put(11, List.of(Map.of(), Map.of("consumerGroup", "g", "topic", topic, "queueId", "0", "queueOffset", "first")));
        bad.put(15, List.of(Map.of()));
        bad.put(30, List.of(Map.of()));
        bad.put(17, List.of(Map.of()));
        bad.put(41, List.of(Map.of()));
        bad.put(400, List.of(Map.of()));
        try (var wire = new Wire(stock.server.brokerPort)) {
            for (var entry : bad.entrySet()) {
                for (var fields : entry.getValue()) {
                    var answer = wire.call(entry.getKey(), fields, "x".getBytes(UTF_8));
                    assertNotEquals(0, answer.getCode(), () -> entry.getKey() + " " + fields + ": " + answer);
                    assertTrue(answer.getRemark() != null && !answer.getRemark().isBlank(), answer::toString);
                }
            }
            assertEquals(0, wire.call(28, Map.of(), null).getCode());
        }
    }

    @Test
    void bodies_that_are_none_are_refused() throws Exception {
        try (var wire = new Wire(stock.server.brokerPort)) {
            for (int code : new int[] {34, 41, 42, 200}) {
                for (String body : new String[] {"{", "not json", "[1,2", "\u0000\u0001"}) {
                    var answer = wire.call(code, Map.of(), body.getBytes(UTF_8));
                    assertNotEquals(0, answer.getCode(), () -> code + " " + body + ": " + answer);
                }
            }
        }
        var batch = new HashMap<>(Map.of("a", "g", "b", topic, "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "1", "h", "0", "m", "true"));
        batch.put("i", "");
        batch.put("j", "0");
        for (byte[] body : new byte[][] {{1, 2, 3}, {0, 0, 0, 100, 0, 0}, {(byte) 0xFF, (byte) 0xFF, (byte) 0xFF, (byte) 0xFF, 0, 0, 0, 0}}) {
            try (var wire = new Wire(stock.server.brokerPort)) {
                assertNotEquals(0, wire.call(320, batch, body).getCode());
            }
        }
    }

    @Test
    void a_client_that_never_reads_costs_a_bounded_amount_of_memory() throws Exception {
        String large = stock.topic(1);
        var producer = stock.producer();
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        for (int i = 0; i < 4; i++) {
            producer.send(new Message(large, new byte[1 << 20]));
        }
        long before = resident();
        var pull = Map.of("consumerGroup", "deaf", "topic", large, "queueId", "0", "queueOffset", "0", "maxMsgNums", "32", "sysFlag", "4",
            "commitOffset", "0", "suspendTimeoutMillis", "0", "subVersion", "0");
        var fields = new HashMap<>(pull);
        fields.put("subscription", "*");
        byte[] request = Wire.frame(Wire.request(11, fields, null));
        try (var deaf = new Wire(stock.server.brokerPort)) {
            deaf.socket.setSendBufferSize(4096);
            var asking = new Thread(() -> {
                try {
                    for (int i = 0; i < 2_000; i++) {
                        deaf.write(request);
                    }
                } catch (IOException closedByUsOrThem) {
                    // Either way it asks no more.
                }
            }, "deaf");
            asking.start();
            // Two gigabytes were asked for; give the broker the chance to hoard them.
            int served = sent.get();
            Await.until("the bystander goes on", () -> sent.get() > served + 300 || disturbed.get() != null);
            if (Server.DEFAULT == Server.Kind.GANTRY) {
                long grown = resident() - before;
                assertTrue(grown < 128 << 20, "grew by " + (grown >> 20) + " MiB");
            }
            deaf.close();
            asking.join();
        }
    }

    @Test
    void many_connections_that_stop_in_the_middle_of_a_frame_do_no_harm() throws Exception {
        byte[] good = Wire.frame(Wire.request(310, Map.of("b", topic), new byte[1000]));
        var half = new java.util.ArrayList<Wire>();
        try {
            for (int i = 0; i < 200; i++) {
                var wire = new Wire(stock.server.brokerPort);
                half.add(wire);
                wire.write(java.util.Arrays.copyOf(good, good.length / 2));
            }
            assertEquals(0, Wire.call(stock.server.brokerPort, 28, Map.of()).getCode());
        } finally {
            for (var wire : half) {
                wire.close();
            }
        }
    }

    @Test
    void a_frame_that_promises_much_and_brings_nothing_reserves_no_memory() throws Exception {
        assumeTrue(Server.DEFAULT == Server.Kind.GANTRY);
        long before = resident();
        var waiting = new java.util.ArrayList<Wire>();
        try {
            for (int i = 0; i < 100; i++) {
                var wire = new Wire(stock.server.brokerPort);
                waiting.add(wire);
                wire.write(frame(15 << 20, 0, 100, new byte[10]));
            }
            assertEquals(0, Wire.call(stock.server.brokerPort, 28, Map.of()).getCode());
            long grown = resident() - before;
            assertTrue(grown < 128 << 20, "grew by " + (grown >> 20) + " MiB for 100 promises of 15 MiB");
        } finally {
            for (var wire : waiting) {
                wire.close();
            }
        }
    }

    private long resident() throws IOException {
        Path status = Path.of("/proc", String.valueOf(stock.server.process().pid()), "status");
        return Files.readAllLines(status).stream().filter(line -> line.startsWith("VmRSS")).mapToLong(
            line -> Long.parseLong(line.replaceAll("\\D", "")) << 10).findFirst().orElseThrow();
    }
}
