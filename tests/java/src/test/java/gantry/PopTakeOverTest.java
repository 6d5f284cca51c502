package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What is popped and not acknowledged when a broker ends, a real Apache one or Gantry: it comes again from the other, and nothing else does. */
@Tag("interop")
class PopTakeOverTest {
    private static final Duration LONG = Duration.ofSeconds(90);
    /** Longer than a stop and a start of Gantry, so that it is the other broker that waits for its end. */
    private static final long INVISIBLE = 12_000;

    private static void send(Stock stock, String topic, int from, int to) throws Exception {
        var producer = stock.producer();
        for (int i = from; i < to; i++) {
            producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)));
        }
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), UTF_8);
    }

    private static TreeSet<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(String::valueOf).collect(Collectors.toCollection(TreeSet::new));
    }

    @Test
    void what_is_not_acknowledged_comes_again_from_the_next_broker_when_its_time_is_over() throws Exception {
        try (var server = new Server("pop-take-over")) {
            String topic = null;
            String group = Stock.name("pop");
            int sent = 0;
            // When it was popped, of what nobody has acknowledged.
            Map<String, Long> open = Map.of();
            for (var kind : new Server.Kind[] {Server.Kind.APACHE_5, Server.DEFAULT, Server.Kind.APACHE_5}) {
                server.start(kind);
                try (var stock = new Stock(server)) {
                    topic = topic == null ? stock.topic(1) : topic;
                    open = turn(stock, topic, group, sent, open);
                    sent += 20;
                }
                server.stop();
            }
        }
    }

    /** Takes what is open from the broker before, and twenty new messages, of which some stay open. */
    private static Map<String, Long> turn(Stock stock, String topic, String group, int sent, Map<String, Long> open) throws Exception {
        var popper = new Popper(stock, topic, group);
        // Ten are popped and acknowledged when those of the broker before are still invisible, or come between them.
        send(stock, topic, sent, sent + 10);
        var wanted = numbers(sent, sent + 10);
        wanted.addAll(open.keySet());
        var seen = new TreeMap<String, Integer>();
        for (var message : popper.popAll(wanted.size(), 60_000)) {
            seen.merge(body(message), 1, Integer::sum);
            Long before = open.get(body(message));
            assertEquals(before == null ? 0 : 1, message.getReconsumeTimes(), body(message));
            assertTrue(before == null || Popper.popTime(message) >= before + INVISIBLE, () -> body(message) + " comes early");
            assertEquals(AckStatus.OK, popper.ack(message));
        }
        assertEquals(wanted, seen.keySet());
        assertEquals(wanted.size(), seen.values().stream().mapToInt(Integer::intValue).sum(), seen::toString);
        assertEquals(List.of(), popper.pop(32, 1_000, 3_000));
        Await.until("the group's offset goes on", () -> stock.committed(group, topic, 0).equals(String.valueOf(stock.maxOffset(topic, 0))));

        send(stock, topic, sent + 10, sent + 20);
        var stay = new HashMap<String, Long>();
        for (var message : popper.popAll(10, INVISIBLE)) {
            if (Integer.parseInt(body(message)) % 5 < 3) {
                assertEquals(AckStatus.OK, popper.ack(message));
            } else {
                stay.put(body(message), Popper.popTime(message));
            }
        }
        assertEquals(4, stay.size());
        return stay;
    }

    @Test
    void check_points_that_a_killed_apache_broker_has_let_go_count_in_gantry() throws Exception {
        // Its timer lets check-points go, and its revive service does not look at them before the end.
        try (var server = new Server("pop").with("reviveInterval", "600000").start(Server.Kind.APACHE_5)) {
            String topic;
            String group = Stock.name("pop");
            var left = new TreeSet<String>();
            try (var stock = new Stock(server)) {
                topic = stock.topic(1);
                send(stock, topic, 0, 10);
                var byApache = new Popper(stock, topic, group);
                for (var message : byApache.popAll(10, 5_000)) {
                    if (Integer.parseInt(body(message)) < 6) {
                        assertEquals(AckStatus.OK, byApache.ack(message));
                    } else {
                        left.add(body(message));
                    }
                }
                String revive = "rmq_sys_REVIVE_LOG_" + Server.CLUSTER;
                Await.until("check-points and acknowledgements are in the revive topic", LONG, () -> {
                    long records = 0;
                    for (int queue = 0; queue < 8; queue++) {
                        records += stock.maxOffset(revive, queue);
                    }
                    var offsets = Files.readString(server.store().resolve("config/consumerOffset.json"));
                    return records >= 7 && offsets.replaceAll("\\s", "").contains(topic + "@" + group + "\":{0:10");
                }, () -> "");
            }
            // Its stop would wait for the revive service.
            server.kill();

            server.start();
            try (var stock = new Stock(server)) {
                var byGantry = new Popper(stock, topic, group);
                var again = byGantry.popAll(4, 20_000);
                assertEquals(left, again.stream().map(PopTakeOverTest::body).collect(Collectors.toCollection(TreeSet::new)));
                for (var message : again) {
                    assertEquals(AckStatus.OK, byGantry.ack(message));
                }
                assertEquals(List.of(), byGantry.pop(32, 1_000, 3_000));
            }
        }
    }
}
