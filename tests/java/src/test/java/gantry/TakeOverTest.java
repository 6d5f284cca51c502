package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** One store, several brokers in turn: Gantry and real Apache ones read and continue what the other wrote. */
@Tag("interop")
class TakeOverTest {
    private static void inTurn(Server.Kind... kinds) throws Exception {
        var contents = new Contents();
        try (var server = new Server("take-over")) {
            boolean written = false;
            for (var kind : kinds) {
                server.start(kind);
                if (written) {
                    contents.check(server);
                }
                contents.extend(server);
                contents.check(server);
                written = true;
                server.stop();
            }
        }
    }

    @Test
    void apache_5_reads_what_gantry_wrote_and_both_go_on_in_turn() throws Exception {
        inTurn(Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5);
    }

    @Test
    void gantry_goes_on_where_apache_4_was_and_back() throws Exception {
        inTurn(Server.Kind.APACHE_4, Server.DEFAULT, Server.Kind.APACHE_4);
    }

    @Test
    void gantry_goes_on_where_apache_5_was_and_delivers_what_was_delayed() throws Exception {
        var contents = new Contents();
        try (var server = new Server("delayed").start(Server.Kind.APACHE_5)) {
            contents.extend(server);
            String topic;
            try (var stock = new Stock(server)) {
                topic = stock.topic(1);
                var message = new Message(topic, "tag", "key", "promised".getBytes(UTF_8));
                message.setDelayTimeLevel(12);
                stock.producer().send(message);
            }
            server.stop();
            server.start();
            contents.check(server);
            contents.extend(server);
            contents.check(server);
            try (var stock = new Stock(server)) {
                Await.until("it is delivered", () -> stock.maxOffset(topic, 0) == 1);
                var delivered = stock.read(topic, 0).get(0);
                assertEquals("promised", new String(delivered.getBody(), UTF_8));
                assertEquals("tag", delivered.getTags());
                assertEquals("key", delivered.getKeys());
            }
        }
    }

    @Test
    void each_finds_messages_by_the_keys_that_the_other_has_indexed() throws Exception {
        try (var server = new Server("keys")) {
            String topic = null;
            int sent = 0;
            for (var kind : new Server.Kind[] {Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT}) {
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? stock.topic(2) : topic;
                    var producer = stock.producer();
                    for (int end = sent + 100; sent < end; sent++) {
                        producer.send(new Message(topic, "tag", "one" + sent + " every" + sent % 7, ("body " + sent).getBytes(UTF_8)));
                    }
                    var admin = stock.admin();
                    for (int i = 0; i < sent; i += 9) {
                        int number = i;
                        String asked = topic;
                        Await.until(kind + " finds one" + number, () -> {
                            var found = admin.queryMessage(asked, "one" + number, 32, 0, Long.MAX_VALUE).getMessageList();
                            return found.size() == 1 && new String(found.get(0).getBody(), UTF_8).equals("body " + number);
                        });
                    }
                    var found = admin.queryMessage(topic, "every3", 64, 0, Long.MAX_VALUE).getMessageList();
                    int all = sent;
                    assertEquals(IntStream.range(0, all).filter(i -> i % 7 == 3).count(), found.size());
                }
                server.stop();
            }
        }
    }

    @Test
    void an_apache_broker_registers_with_gantrys_name_server() throws Exception {
        together(Server.DEFAULT, Server.Kind.APACHE_5);
    }

    @Test
    void an_older_apache_broker_registers_with_gantrys_name_server() throws Exception {
        together(Server.DEFAULT, Server.Kind.APACHE_4);
    }

    @Test
    void a_gantry_broker_registers_with_apaches_name_server() throws Exception {
        together(Server.Kind.APACHE_5, Server.DEFAULT);
    }

    private static void together(Server.Kind names, Server.Kind holds) throws Exception {
        try (var nameServer = new Server("names"); var broker = new Server("broker")) {
            nameServer.runsBroker = false;
            nameServer.start(names);
            broker.runsNameServer = false;
            broker.registersAt = nameServer.namesrvPort;
            broker.start(holds);
            try (var stock = new Stock(broker)) {
                String topic = stock.topic(2);
                var producer = stock.producer();
                for (int i = 0; i < 50; i++) {
                    producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)));
                }
                var inbox = new Inbox();
                var consumer = stock.push(Stock.name("guests"));
                consumer.subscribe(topic, "*");
                consumer.registerMessageListener(inbox.listener());
                consumer.start();
                inbox.await(50);
                assertEquals(new TreeSet<>(IntStream.range(0, 50).mapToObj(String::valueOf).toList()), inbox.distinct());
            }
            broker.stop();
            Await.until("the broker has signed off", () -> !new String(Wire.call(nameServer.namesrvPort, 106, Map.of()).getBody(), UTF_8)
                .contains("127.0.0.1:" + broker.brokerPort));
        }
    }
}
