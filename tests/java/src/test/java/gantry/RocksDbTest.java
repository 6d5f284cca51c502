package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Brokers of Apache's that keep queues, tables or pops in RocksDB: refused as they are, taken over by the commands of docs/migrate.md. */
@Tag("interop")
class RocksDbTest {
    private static final Duration LONG = Duration.ofSeconds(60);

    private static void commit(Server server, String group, String topic, int queue, long offset) throws Exception {
        var answer = Wire.call(server.brokerPort, 15, Map.of("consumerGroup", group, "topic", topic, "queueId", String.valueOf(queue),
            "commitOffset", String.valueOf(offset)));
        assertEquals(0, answer.getCode(), answer::toString);
    }

    private static void group(Server server, String name) throws Exception {
        var made = Wire.call(server.brokerPort, 200, Map.of(), ("{\"groupName\":\"" + name + "\"}").getBytes(UTF_8));
        assertEquals(0, made.getCode(), made::toString);
    }

    /** Bodies of up to {@code count} messages that nobody else gets for a while. */
    private static List<String> pop(Server server, String group, String topic, int count, Duration invisible) throws Exception {
        var fields = new java.util.HashMap<String, String>(Map.of("consumerGroup", group, "topic", topic, "queueId", "-1",
            "maxMsgNums", String.valueOf(count), "invisibleTime", String.valueOf(invisible.toMillis()), "pollTime", "0",
            "bornTime", String.valueOf(System.currentTimeMillis()), "initMode", "0", "expType", "TAG", "exp", "*"));
        fields.put("order", "false");
        var answer = Wire.call(server.brokerPort, 200050, fields);
        if (answer.getCode() != 0) {
            return List.of();
        }
        return MessageDecoder.decodes(ByteBuffer.wrap(answer.getBody())).stream().map(one -> new String(one.getBody(), UTF_8)).toList();
    }

    private static TreeSet<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(String::valueOf).collect(Collectors.toCollection(TreeSet::new));
    }

    private static void send(Stock stock, String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        for (int i = from; i < to; i++) {
            producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)), Stock.queue(topic, 0));
        }
    }

    /** What a new consumer of the group gets, until it has committed everything. */
    private static Inbox consume(Stock stock, String group, String topic, int count) throws Exception {
        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(count);
        stock.awaitCommitted(group, topic, 1);
        consumer.shutdown();
        return inbox;
    }

    @Test
    void queues_tables_and_pops_in_rocksdb_are_taken_over_and_given_back() throws Exception {
        var contents = new Contents();
        String done = Stock.name("done");
        String reads = Stock.name("reads");
        String pops = Stock.name("pops");
        try (var server = new Server("rocksdb").with("storeType", "defaultRocksDB").with("popConsumerKVServiceInit", "true")
            .with("popConsumerKVServiceEnable", "true").with("mappedFileSizeCommitLog", String.valueOf(1 << 20)).start(Server.Kind.APACHE_5)) {
            String old;
            String read;
            String popped;
            String delayed;
            String ordered = Stock.name("ordered");
            try (var stock = new Stock(server)) {
                old = stock.topic(1);
                send(stock, old, 0, 7);
                group(server, done);
                commit(server, done, old, 0, 7);
                String filler = stock.topic(1);
                var producer = stock.producer();
                // Past the end of the log's first file; not to be compressed.
                var body = new byte[100_000];
                new java.util.Random(7).nextBytes(body);
                for (int i = 0; i < 12; i++) {
                    producer.send(new Message(filler, body));
                }
                contents.extend(server);
                var made = Wire.call(server.brokerPort, 17, Map.of("topic", ordered, "defaultTopic", "TBW102", "readQueueNums", "5",
                    "writeQueueNums", "6", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "true",
                    "attributes", "+message.type=FIFO"));
                assertEquals(0, made.getCode(), made::toString);
                read = stock.topic(1);
                send(stock, read, 0, 30);
                consume(stock, reads, read, 30);
                send(stock, read, 30, 40);
                delayed = stock.topic(1);
                var later = new Message(delayed, "promised".getBytes(UTF_8));
                later.setDelayTimeLevel(12);
                producer.send(later);
                popped = stock.topic(1);
                send(stock, popped, 0, 10);
                group(server, pops);
                assertEquals(numbers(0, 3), new TreeSet<>(pop(server, pops, popped, 3, Duration.ofSeconds(12))));
                // With the second pop, the committed offset is where it begins: nothing but the check-points knows of the first one.
                assertEquals(numbers(3, 6), new TreeSet<>(pop(server, pops, popped, 3, Duration.ofSeconds(12))));
                assertEquals("3", stock.committed(pops, popped, 0));
            }
            String fetched = server.look("fetch", "-b", server.broker(), "--popped");
            assertTrue(fetched.contains("gantry store repair --rocksdb"), fetched);
            server.stop();

            String refused = server.refused();
            assertTrue(refused.contains(server.store().resolve("config/fetched.json").toString())
                && refused.contains("gantry store repair --rocksdb"), refused);
            // As retention does, to which Apache comes a minute after its start.
            Files.delete(server.store().resolve("commitlog/00000000000000000000"));
            String repaired = server.look("repair", "--rocksdb");
            assertTrue(repaired.contains("goes on at its number, since the log has no message of it: 1 queue"), repaired);
            server.look("verify");

            server.start();
            contents.check(server);
            try (var stock = new Stock(server)) {
                assertEquals(7, stock.minOffset(old, 0));
                assertEquals(7, stock.maxOffset(old, 0));
                send(stock, old, 7, 8);
                assertEquals("7", stock.committed(done, old, 0));
                assertEquals(List.of("7"), stock.read(old, 0).stream().map(one -> new String(one.getBody(), UTF_8)).toList());
                assertEquals(numbers(30, 40), new TreeSet<>(consume(stock, reads, read, 10).bodies()));
                var config = stock.admin().examineTopicConfig(server.broker(), ordered);
                assertEquals(List.of(5, 6, true, Map.of("message.type", "FIFO")), List.of(config.getReadQueueNums(),
                    config.getWriteQueueNums(), config.isOrder(), config.getAttributes()));
                Await.until("the delayed message is delivered", () -> stock.maxOffset(delayed, 0) == 1);
                assertEquals("promised", new String(stock.read(delayed, 0).get(0).getBody(), UTF_8));
                var got = new TreeSet<String>();
                Await.until("what was popped and not acknowledged comes again", LONG, () -> {
                    got.addAll(pop(server, pops, popped, 32, Duration.ofSeconds(60)));
                    return got.size() == 10;
                }, got::toString);
            }
            contents.extend(server);
            server.stop();

            server.start(Server.Kind.APACHE_5);
            contents.check(server);
            try (var stock = new Stock(server)) {
                assertEquals(7, stock.minOffset(old, 0));
                assertEquals(8, stock.maxOffset(old, 0));
                assertEquals("7", stock.committed(done, old, 0));
                assertEquals("40", stock.committed(reads, read, 0));
            }
        }
    }

    @Test
    void tables_of_the_second_version_in_rocksdb_are_taken_over_as_they_are_when_the_broker_stops() throws Exception {
        var contents = new Contents();
        try (var server = new Server("rocksdb-v2").with("configManagerVersion", "v2").start(Server.Kind.APACHE_5)) {
            contents.extend(server);
            var fetch = new ProcessBuilder(System.getProperty("gantry.binary"), "store", "fetch", "-b", server.broker(), "--until-stopped",
                "--store", server.store().toString()).redirectErrorStream(true).start();
            try {
                Await.until("it is fetched", () -> Files.exists(server.store().resolve("config/fetched.json")));
                contents.extend(server);
                String key = contents.topic + "@" + contents.group;
                Await.until("the newest offsets are fetched", () -> {
                    var leaves = LooseJson.leaves(Files.readString(server.store().resolve("config/consumerOffset.json")));
                    return leaves.entrySet().stream().filter(leaf -> leaf.getKey().contains(key) && leaf.getValue().equals("14")).count()
                        == Contents.QUEUES;
                });
                server.stop();
                String said = new String(fetch.getInputStream().readAllBytes(), UTF_8);
                assertEquals(0, fetch.waitFor(), said);
                assertTrue(said.contains("answers no more"), said);
            } finally {
                fetch.destroyForcibly();
            }
            String refused = server.refused();
            assertTrue(refused.contains(server.store().resolve("config/fetched.json").toString())
                && refused.contains("gantry store repair --rocksdb"), refused);
            server.look("repair", "--rocksdb");
            server.look("verify");
            server.start();
            contents.check(server);
            contents.extend(server);
            contents.check(server);
        }
    }
}
