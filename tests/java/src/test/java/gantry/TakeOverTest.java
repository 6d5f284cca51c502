package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
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
                server.look("verify");
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
    void queues_and_index_that_are_built_again_serve_apache_5_as_its_own_did() throws Exception {
        var contents = new Contents();
        try (var server = new Server("repaired")) {
            for (int turn = 0; turn < 2; turn++) {
                server.start(Server.Kind.APACHE_5);
                if (turn > 0) {
                    contents.check(server);
                }
                contents.extend(server);
                server.stop();
                server.look("repair", "--queues", "--index");
                server.look("verify");
            }
            server.start();
            contents.check(server);
        }
    }

    @Test
    void gantry_goes_on_where_apache_5_was_and_delivers_what_was_delayed() throws Exception {
        delayed(Server.Kind.APACHE_5, Server.DEFAULT);
    }

    @Test
    void apache_5_goes_on_where_gantry_was_and_delivers_what_was_delayed() throws Exception {
        delayed(Server.DEFAULT, Server.Kind.APACHE_5);
    }

    @Test
    void gantry_goes_on_where_apache_4_was_and_delivers_what_was_delayed() throws Exception {
        delayed(Server.Kind.APACHE_4, Server.DEFAULT);
    }

    @Test
    void apache_4_goes_on_where_gantry_was_and_delivers_what_was_delayed() throws Exception {
        delayed(Server.DEFAULT, Server.Kind.APACHE_4);
    }

    /** Messages of levels that end before, while and after one broker stops and the other starts: each is delivered once, none early. */
    private static void delayed(Server.Kind first, Server.Kind second) throws Exception {
        var contents = new Contents();
        try (var server = new Server("delayed").start(first)) {
            contents.extend(server);
            String topic;
            var dues = new HashMap<String, Long>();
            try (var stock = new Stock(server)) {
                topic = stock.topic(1);
                var producer = stock.producer();
                var seconds = Server.DELAY_LEVELS.replace("s", "").split(" ");
                for (int level : new int[] {1, 2, 7, 12, 15, 18}) {
                    String body = "promised at level " + level;
                    var message = new Message(topic, "tag", "key", body.getBytes(UTF_8));
                    message.setDelayTimeLevel(level);
                    dues.put(body, System.currentTimeMillis() + Long.parseLong(seconds[level - 1]) * 1000);
                    producer.send(message);
                }
                Await.until("some are delivered", () -> stock.maxOffset(topic, 0) >= 2);
            }
            server.stop();
            server.look("verify");
            server.start(second);
            contents.check(server);
            contents.extend(server);
            contents.check(server);
            try (var stock = new Stock(server)) {
                delivered(stock, topic, dues);
            }
        }
    }

    /** Waits until all messages of these bodies are delivered: each once, none before it is due, and with its tag and key. */
    private static void delivered(Stock stock, String topic, Map<String, Long> dues) throws Exception {
        Await.until("all are delivered", Duration.ofSeconds(90), () -> stock.maxOffset(topic, 0) >= dues.size(), () -> "");
        var found = stock.read(topic, 0);
        var bodies = found.stream().map(message -> new String(message.getBody(), UTF_8)).toList();
        assertEquals(dues.keySet(), new HashSet<>(bodies));
        assertEquals(dues.size(), bodies.size());
        for (var message : found) {
            long due = dues.get(new String(message.getBody(), UTF_8));
            assertTrue(message.getStoreTimestamp() >= due, message + " is early");
            assertEquals("tag", message.getTags());
            assertEquals("key", message.getKeys());
        }
    }

    @Test
    void what_apache_5_has_changed_and_deleted_of_topics_and_groups_is_so_in_gantry() throws Exception {
        changed(Server.Kind.APACHE_5);
    }

    @Test
    void what_apache_4_has_changed_and_deleted_of_topics_and_groups_is_so_in_gantry() throws Exception {
        changed(Server.Kind.APACHE_4);
    }

    /** Gantry makes topics and groups, {@code other} changes one of each and deletes one of each, Gantry goes on. */
    private static void changed(Server.Kind other) throws Exception {
        String changed = Stock.name("changed");
        String gone = Stock.name("gone");
        String changedGroup = Stock.name("changed_group");
        String goneGroup = Stock.name("gone_group");
        try (var server = new Server("changed").start()) {
            try (var stock = new Stock(server)) {
                for (String topic : new String[] {changed, gone}) {
                    stock.topic(topic, 2);
                    stock.producer().send(new Message(topic, "of gantry".getBytes(UTF_8)), Stock.queue(topic, 1));
                }
                group(server, changedGroup, 11);
                group(server, goneGroup, 11);
                commit(server, goneGroup, changed, 1);
                commit(server, changedGroup, changed, 0);
            }
            server.stop();
            server.start(other);
            try (var stock = new Stock(server)) {
                stock.topic(changed, 4);
                group(server, changedGroup, 3);
                commit(server, changedGroup, changed, 1);
                stock.producer().send(new Message(changed, "of apache".getBytes(UTF_8)), Stock.queue(changed, 3));
                ok(Wire.call(server.brokerPort, 215, Map.of("topic", gone)));
                ok(Wire.call(server.brokerPort, 207, Map.of("groupName", goneGroup, "removeOffset", "true", "cleanOffset", "true")));
            }
            server.stop();
            server.look("verify");
            server.start();
            try (var stock = new Stock(server)) {
                Await.until("the topic is routed", () -> Wire.call(server.registersAt, 105, Map.of("topic", changed)).getCode() == 0);
                var queues = stock.admin().examineTopicRouteInfo(changed).getQueueDatas().get(0);
                assertEquals(4, queues.getReadQueueNums());
                assertEquals(4, queues.getWriteQueueNums());
                assertEquals("of gantry", new String(stock.read(changed, 1).get(0).getBody(), UTF_8));
                assertEquals("of apache", new String(stock.read(changed, 3).get(0).getBody(), UTF_8));
                assertEquals("1", stock.committed(changedGroup, changed, 1));
                assertEquals(3, stock.admin().examineSubscriptionGroupConfig(server.broker(), changedGroup).getRetryMaxTimes());
                // Those that are gone stay so.
                assertEquals(17, Wire.call(server.registersAt, 105, Map.of("topic", gone)).getCode());
                String groups = new String(Wire.call(server.brokerPort, 201, Map.of()).getBody(), UTF_8);
                assertTrue(groups.contains(changedGroup) && !groups.contains(goneGroup), groups);
                var offset = Wire.call(server.brokerPort, 14,
                    Map.of("consumerGroup", goneGroup, "topic", changed, "queueId", "1", "setZeroIfNotFound", "false"));
                assertEquals(22, offset.getCode(), offset::toString);
            }
        }
    }

    private static void group(Server server, String name, int retries) throws Exception {
        ok(Wire.call(server.brokerPort, 200, Map.of(),
            ("{\"groupName\":\"" + name + "\",\"retryMaxTimes\":" + retries + "}").getBytes(UTF_8)));
    }

    private static void commit(Server server, String group, String topic, int offset) throws Exception {
        ok(Wire.call(server.brokerPort, 15,
            Map.of("consumerGroup", group, "topic", topic, "queueId", "1", "commitOffset", String.valueOf(offset))));
    }

    private static void ok(RemotingCommand answer) {
        assertEquals(0, answer.getCode(), answer::toString);
    }

    @Test
    void gantry_delivers_at_their_time_what_apache_5_has_stored() throws Exception {
        timers(new Server("timer-take-over"), Server.Kind.APACHE_5, Server.DEFAULT);
    }

    /** Apache's broker writes its wheel from time to time, and not when it stops; here at no time. */
    @Test
    void gantry_delivers_at_their_time_what_apache_5_had_not_brought_to_its_wheel() throws Exception {
        timers(new Server("timer-unflushed").with("timerFlushIntervalMs", "3600000"), Server.Kind.APACHE_5, Server.DEFAULT);
    }

    @Test
    void apache_5_delivers_at_their_time_what_gantry_has_stored() throws Exception {
        timers(new Server("timer-take-over"), Server.DEFAULT, Server.Kind.APACHE_5);
    }

    /** Messages that are due before, while and after one broker stops and the other starts: each is delivered once, none early. */
    private static void timers(Server broker, Server.Kind first, Server.Kind second) throws Exception {
        try (var server = broker.start(first)) {
            String topic;
            long begin = System.currentTimeMillis();
            var dues = new HashMap<String, Long>();
            try (var stock = new Stock(server)) {
                topic = stock.topic(1);
                var producer = stock.producer();
                // Later ones first, so that what is not delivered yet lies before what is.
                for (int i = 39; i >= 0; i--) {
                    String body = String.valueOf(i);
                    long due = begin + 4_000 + i * 500L;
                    var message = new Message(topic, "tag", "key", body.getBytes(UTF_8));
                    MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(due));
                    producer.send(message);
                    dues.put(body, due);
                }
                Await.until("some are delivered", () -> stock.maxOffset(topic, 0) >= 5);
            }
            server.stop();
            server.start(second);
            try (var stock = new Stock(server)) {
                delivered(stock, topic, dues);
            }
        }
    }

    /** Units of queues have an address in an extension file instead of a tag's hash, or the time of a delayed message. */
    @Test
    void tags_and_delays_are_kept_where_apache_5_has_extensions_of_its_queues() throws Exception {
        var broker = new Server("extended").with("enableConsumeQueueExt", "true").with("mappedFileSizeCommitLog", "1048576");
        try (var server = broker.start(Server.Kind.APACHE_5)) {
            String tagged;
            String delayed;
            var dues = new HashMap<String, Long>();
            var red = new TreeSet<String>();
            try (var stock = new Stock(server)) {
                tagged = stock.topic(1);
                delayed = stock.topic(1);
                var producer = stock.producer();
                for (int i = 0; i < 40; i++) {
                    producer.send(new Message(tagged, i % 2 == 0 ? "red" : "blue", ("number " + i).getBytes(UTF_8)));
                    if (i % 2 == 0) {
                        red.add("number " + i);
                    }
                }
                var seconds = Server.DELAY_LEVELS.replace("s", "").split(" ");
                for (int level : new int[] {12, 15, 18}) {
                    String body = "promised at level " + level;
                    var message = new Message(delayed, "tag", "key", body.getBytes(UTF_8));
                    message.setDelayTimeLevel(level);
                    dues.put(body, System.currentTimeMillis() + Long.parseLong(seconds[level - 1]) * 1000);
                    producer.send(message);
                }
                // A start reads the newest files of the log again, and makes their units itself.
                String others = stock.topic(1);
                var body = new byte[100_000];
                new Random(1).nextBytes(body);
                for (int i = 0; i < 40; i++) {
                    producer.send(new Message(others, body));
                }
            }
            server.stop();
            assertTrue(Files.isDirectory(server.store().resolve("consumequeue_ext").resolve(tagged)));
            server.start();
            try (var stock = new Stock(server)) {
                var inbox = new Inbox();
                var consumer = stock.push(Stock.name("of_one_tag"));
                consumer.subscribe(tagged, "red");
                consumer.registerMessageListener(inbox.listener());
                consumer.start();
                inbox.await(red.size());
                assertEquals(red, inbox.distinct());
                assertEquals(red.size(), inbox.size());
                delivered(stock, delayed, dues);
            }
        }
    }

    @Test
    void each_finds_messages_by_the_keys_that_the_other_has_indexed() throws Exception {
        keys(Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT);
    }

    @Test
    void apache_4_and_gantry_find_messages_by_the_keys_that_the_other_has_indexed() throws Exception {
        keys(Server.Kind.APACHE_4, Server.DEFAULT, Server.Kind.APACHE_4);
    }

    private static void keys(Server.Kind... kinds) throws Exception {
        try (var server = new Server("keys")) {
            String topic = null;
            int sent = 0;
            for (var kind : kinds) {
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
    void each_counts_on_the_timer_messages_that_the_other_has_counted() throws Exception {
        try (var server = new Server("timer-counts")) {
            String topic = null;
            int sent = 0;
            for (var kind : new Server.Kind[] {Server.DEFAULT, Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5}) {
                if (sent > 0) {
                    server.stop();
                }
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? stock.topic(1) : topic;
                    String due = String.valueOf(System.currentTimeMillis() + 3_600_000);
                    var producer = stock.producer();
                    for (int end = sent + 5; sent < end; sent++) {
                        var message = new Message(topic, String.valueOf(sent).getBytes(UTF_8));
                        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", due);
                        producer.send(message);
                    }
                    String counted = "." + topic + ".count";
                    String all = String.valueOf(sent);
                    Await.until(kind + " counts " + all, Duration.ofSeconds(30), () -> all.equals(timers(server).get(counted)),
                        () -> leaves(server));
                }
            }
        }
    }

    private static Map<String, String> timers(Server server) throws Exception {
        var leaves = LooseJson.leaves(new String(Wire.call(server.brokerPort, 61, Map.of()).getBody(), UTF_8));
        var counts = new TreeMap<String, String>();
        leaves.forEach((path, leaf) -> counts.put(path.replaceFirst("^\\.?timingCount", ""), leaf));
        return counts;
    }

    private static String leaves(Server server) {
        try {
            return timers(server).toString();
        } catch (Exception e) {
            return e.toString();
        }
    }

    @Test
    void each_goes_on_with_the_conditions_that_the_other_knows() throws Exception {
        try (var server = new Server("conditions").with("enablePropertyFilter", "true")) {
            String topic = null;
            String group = Stock.name("by_condition");
            String bornAtFirst = null;
            for (var kind : new Server.Kind[] {Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5}) {
                if (bornAtFirst != null) {
                    server.stop();
                }
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? stock.topic(1) : topic;
                    var message = new Message(topic, "body".getBytes(UTF_8));
                    message.putUserProperty("number", "1");
                    stock.producer().send(message);
                    var inbox = new Inbox();
                    var consumer = stock.push(group);
                    consumer.subscribe(topic, MessageSelector.bySql("number > 0"));
                    consumer.registerMessageListener(inbox.listener());
                    consumer.start();
                    inbox.await(1);
                    var row = LooseJson.leaves(stock.admin().queryConsumeQueue(server.broker(), topic, 0, 0, 1, group).getFilterData());
                    var known = new TreeMap<String, String>();
                    row.forEach((path, leaf) -> known.put(path.replaceFirst("^\\.", ""), leaf));
                    assertEquals("number > 0", known.get("expression"));
                    assertEquals("false", known.get("dead"), known.toString());
                    bornAtFirst = bornAtFirst == null ? known.get("bornTime") : bornAtFirst;
                    assertEquals(bornAtFirst, known.get("bornTime"), kind + " takes it for another condition");
                }
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
