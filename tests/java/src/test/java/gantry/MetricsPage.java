package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** What a broker shows Prometheus, as far as dashboards and alerts name it: metrics, their types, and the labels of each. */
final class MetricsPage {
    /** A metric: {@code counter}, {@code gauge} or {@code histogram}, and every label that one of its values has. */
    record Metric(String type, Set<String> labels) {}

    private static final Pattern TYPE = Pattern.compile("# TYPE (\\S+) (\\S+)");
    private static final Pattern VALUE = Pattern.compile("([a-zA-Z0-9_]+)(?:\\{(.*)})? \\S+");
    private static final Pattern LABEL = Pattern.compile("([a-zA-Z0-9_]+)=\"(?:[^\"\\\\]|\\\\.)*\"");

    /** Metrics of Apache's that Gantry has no such thing for, and why. */
    private static final Map<Pattern, String> APACHE_ONLY = reasons(
        "(topic|consumer_group)_create_execution_time_milliseconds", "nothing is counted of how long they take to make",
        "delay_message_latency_seconds", "how far ahead timer messages are sent is not counted",
        "timer_message_snapshot", "nor how many are due within which time",
        "processor_watermark", "there are no pools before which requests wait",
        "pop_(buffer_scan_time_consume_milliseconds|checkpoint_buffer_size|offset_buffer_size)", "leases are in the journal, not in a buffer",
        "pop_revive_.*", "nor in a revive topic");

    /** Labels that only one of the two has, and why. */
    private static final Map<String, Set<String>> OTHER_LABELS = Map.of(
        // Open half messages are counted for all topics together.
        "rocketmq_half_messages", Set.of("topic"),
        // What a group gets from its retry topic is told apart here, as both do it in lags.
        "rocketmq_messages_out_total", Set.of("is_retry"),
        "rocketmq_throughput_out_total", Set.of("is_retry"),
        "rocketmq_send_to_dlq_messages_total", Set.of("is_retry"));

    private MetricsPage() {}

    static Server with(Server server) {
        return server.with("metricsExporterType", "PROM").with("metricsPromExporterHost", "127.0.0.1")
            .with("metricsPromExporterPort", String.valueOf(Server.freePort()));
    }

    static Map<String, Metric> of(Server server) throws Exception {
        var uri = URI.create("http://127.0.0.1:" + server.settings.get("metricsPromExporterPort") + "/metrics");
        var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
        assertEquals(200, answer.statusCode());
        java.nio.file.Files.writeString(server.root.resolve("metrics.txt"), answer.body());
        return read(answer.body());
    }

    static Map<String, Metric> read(String page) {
        var metrics = new TreeMap<String, Metric>();
        for (String line : page.lines().toList()) {
            Matcher type = TYPE.matcher(line);
            if (type.matches()) {
                metrics.put(type.group(1), new Metric(type.group(2), new TreeSet<>()));
                continue;
            }
            Matcher value = VALUE.matcher(line);
            if (line.startsWith("#") || !value.matches()) {
                continue;
            }
            Metric metric = metrics.get(value.group(1));
            for (String end : List.of("_bucket", "_sum", "_count")) {
                if (metric == null && value.group(1).endsWith(end)) {
                    metric = metrics.get(value.group(1).substring(0, value.group(1).length() - end.length()));
                }
            }
            if (metric != null && value.group(2) != null) {
                Matcher label = LABEL.matcher(value.group(2));
                while (label.find()) {
                    metric.labels().add(label.group(1));
                }
            }
        }
        return metrics;
    }

    private static Map<Pattern, String> reasons(String... pairs) {
        var reasons = new LinkedHashMap<Pattern, String>();
        for (int at = 0; at < pairs.length; at += 2) {
            reasons.put(Pattern.compile("rocketmq_" + pairs[at]), pairs[at + 1]);
        }
        return reasons;
    }

    /**
     * What a dashboard would show something of: transactions that end in either way, a timer message whose time comes, a message that is
     * given up, and clients that are connected, as long as what is returned is open.
     */
    static Stock use(Server server) throws Exception {
        var stock = new Stock(server);
        String topic = stock.topic("measured", 1);
        var transactions = new TransactionMQProducer("measured_transactions");
        transactions.setNamesrvAddr(server.nameServer());
        transactions.setInstanceName(Stock.name("instance"));
        transactions.setSendMsgTimeout(20_000);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object end) {
                return (LocalTransactionState) end;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        stock.atEnd(transactions::shutdown);
        transactions.start();
        var got = ConcurrentHashMap.<String>newKeySet();
        var consumer = stock.push("measured_readers");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            // Given up at once.
            context.setDelayLevelWhenNextConsume(-1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        var timed = new Message(topic, "timed".getBytes(StandardCharsets.UTF_8));
        // A client of 4.x has no setter for it.
        MessageAccessor.putProperty(timed, "TIMER_DELAY_MS", "1000");
        transactions.send(timed);
        for (var end : List.of(LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW)) {
            transactions.sendMessageInTransaction(new Message(topic, end.name().getBytes(StandardCharsets.UTF_8)), end);
        }
        Await.until("a committed message and one whose time has come are there", Duration.ofSeconds(60),
            () -> got.containsAll(List.of("timed", "COMMIT_MESSAGE")), got::toString);
        Await.until("both are given up", () -> stock.maxOffset("%DLQ%measured_readers", 0) == 2);
        return stock;
    }

    /** Fails unless both show the same metrics of RocketMQ's, of the same types and with the same labels. */
    static void compare(Server apache, Server gantry) throws Exception {
        Map<String, Metric> theirs;
        Map<String, Metric> ours;
        try (var ofTheirs = use(apache); var ofOurs = use(gantry)) {
            theirs = of(apache);
            ours = of(gantry);
        }
        var wrong = new ArrayList<String>();
        theirs.forEach((name, metric) -> {
            boolean isOfTheLibrary = name.equals("target_info");
            if (!ours.containsKey(name) && !isOfTheLibrary && APACHE_ONLY.keySet().stream().noneMatch(only -> only.matcher(name).matches())) {
                wrong.add("Gantry lacks " + name + " " + metric);
            }
        });
        ours.forEach((name, metric) -> {
            if (!name.startsWith("rocketmq_")) {
                return;
            }
            Metric its = theirs.get(name);
            if (its == null) {
                wrong.add("Apache lacks " + name + " " + metric);
                return;
            }
            // The name of the library's instrument, on every value.
            its.labels().remove("otel_scope_name");
            for (String label : OTHER_LABELS.getOrDefault(name, Set.of())) {
                if (its.labels().remove(label) == metric.labels().remove(label)) {
                    wrong.add(name + ": " + label + " is no difference any more");
                }
            }
            if (!its.equals(metric)) {
                wrong.add(name + ": Apache has " + its + ", Gantry " + metric);
            }
        });
        APACHE_ONLY.keySet().forEach(only -> {
            if (ours.keySet().stream().anyMatch(name -> only.matcher(name).matches())) {
                wrong.add("Gantry has " + only);
            }
        });
        assertEquals(List.of(), wrong, () -> String.join("\n", wrong));
    }
}
