package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.net.InetAddress;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Every way in: TLS, the VIP port, binary headers, a proxy in front. */
@Tag("clients")
class ConnectionTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    @Test
    void clients_speak_tls_on_the_same_port() throws Exception {
        String topic = stock.topic(2);
        var producer = stock.unstartedProducer();
        producer.setUseTLS(true);
        producer.start();
        var inbox = new Inbox();
        var consumer = stock.push(Stock.name("tls"));
        consumer.setUseTLS(true);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        for (int i = 0; i < 50; i++) {
            producer.send(new Message(topic, ("secret " + i).getBytes(UTF_8)));
        }
        // A record of TLS holds 16 KiB; this needs many of them.
        producer.send(new Message(topic, new byte[1 << 20]));
        inbox.await(51);
        assertEquals(51, inbox.distinct().size());
    }

    @Test
    void producers_may_use_the_vip_port() throws Exception {
        String topic = stock.topic(1);
        var producer = stock.unstartedProducer();
        producer.setVipChannelEnabled(true);
        producer.start();
        assertEquals(0, producer.send(new Message(topic, "very important".getBytes(UTF_8))).getQueueOffset());
        var answer = Wire.call(stock.server.brokerPort - 2, 28, Map.of());
        assertEquals(0, answer.getCode());
        assertEquals("very important", new String(stock.read(topic, 0).get(0).getBody(), UTF_8));
    }

    @Test
    void binary_headers_and_other_compressions_work_for_everything_a_client_does() throws Exception {
        // The serialisation is a choice of the whole client process, so this client is a process of its own.
        for (String compression : List.of("LZ4", "ZSTD", "ZLIB")) {
            String topic = stock.topic(2);
            var command = List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx256m",
                "-XX:TieredStopAtLevel=1", "-Duser.home=" + System.getProperty("user.home"),
                "-Drocketmq.serialize.type=ROCKETMQ", "-Drocketmq.message.compressType=" + compression,
                "-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")), RoundTrip.class.getName(),
                stock.server.nameServer(), topic);
            var child = new ProcessBuilder(command).redirectErrorStream(true).start();
            var said = new ByteArrayOutputStream();
            child.getInputStream().transferTo(said);
            assertTrue(child.waitFor(60, TimeUnit.SECONDS));
            assertEquals(0, child.exitValue(), said.toString(UTF_8));
            if (System.getProperty("gantry.client").startsWith("4")) {
                break; // Client 4.x knows zlib alone.
            }
        }
    }

    @Test
    void the_born_host_is_the_one_a_proxy_names() throws Exception {
        String topic = stock.topic(1);
        var v2 = new ByteArrayOutputStream();
        v2.write(new byte[] {0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A, 0x21, 0x11, 0, 12});
        v2.write(new byte[] {10, 1, 2, 4, 127, 0, 0, 1, (byte) 0xB2, 0x6E, 0x27, 0x0F});
        for (byte[] preamble : List.of("PROXY TCP4 10.1.2.3 127.0.0.1 45678 9999\r\n".getBytes(UTF_8), v2.toByteArray())) {
            try (var wire = new Wire(stock.server.brokerPort)) {
                wire.write(preamble);
                var fields = new java.util.HashMap<>(Map.of("a", "p", "b", topic, "c", "TBW102", "d", "4", "e", "0", "f", "0", "g",
                    "1700000000000", "h", "0", "i", "", "j", "0"));
                fields.put("m", "false");
                assertEquals(0, wire.call(310, fields, "through a proxy".getBytes(UTF_8)).getCode());
            }
        }
        assertEquals(2, stock.read(topic, 0).size());
        if (Server.DEFAULT == Server.Kind.GANTRY) {
            // Apache logs the address that the proxy names, but stores the proxy's own.
            var hosts = stock.read(topic, 0).stream().map(m -> ((java.net.InetSocketAddress) m.getBornHost()).getAddress()).toList();
            assertEquals(List.of(InetAddress.getByName("10.1.2.3"), InetAddress.getByName("10.1.2.4")), hosts);
        }
    }
}
