package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * The same questions to one server, in order, and what it answered: each answer as texts by path (code, remark, fields, body),
 * so that two servers can be compared leaf by leaf. Ports are written as names; what differs between any two runs, by kind.
 */
final class Conversation implements AutoCloseable {
    /** Times, and what follows from them. They have to be there and to be numbers. */
    private static final Pattern VARIES = Pattern.compile(
        "(?i).*(timestamp|storetime|borntime|poptime|dataversion.*|counter|version|tps|avgpt|sum|delaytime|lasttime|createtime|boottime|time)$");

    final Server server;
    private Wire broker;
    private Wire names;
    private Wire controller;
    /** Addresses of this conversation alone, and what they are called in answers. */
    private final Map<String, String> addresses = new LinkedHashMap<>();
    private final Map<String, Map<String, String>> answers = new LinkedHashMap<>();

    Conversation(Server server) {
        this.server = server;
    }

    /** Connects with the first question: a server may close a connection that says nothing, and the other server is asked first. */
    private Wire broker() throws IOException {
        if (broker == null) {
            broker = new Wire(server.brokerPort);
        }
        return broker;
    }

    private Wire names() throws IOException {
        if (names == null) {
            names = new Wire(server.namesrvPort);
        }
        return names;
    }

    private Wire controller() throws IOException {
        if (controller == null) {
            controller = new Wire(server.controllerPort);
        }
        return controller;
    }

    void call(String address, String name) {
        addresses.put(address, name);
    }

    RemotingCommand broker(String label, int code, Map<String, String> fields) throws Exception {
        return broker(label, code, fields, (byte[]) null);
    }

    RemotingCommand broker(String label, int code, Map<String, String> fields, String body) throws Exception {
        return broker(label, code, fields, body.getBytes(UTF_8));
    }

    RemotingCommand broker(String label, int code, Map<String, String> fields, byte[] body) throws Exception {
        return note(label, broker().call(code, fields, body));
    }

    RemotingCommand names(String label, int code, Map<String, String> fields) throws Exception {
        return note(label, names().call(code, fields, null));
    }

    RemotingCommand controller(String label, int code, Map<String, String> fields) throws Exception {
        return note(label, controller().call(code, fields, null));
    }

    RemotingCommand controller(String label, int code, Map<String, String> fields, String body) throws Exception {
        return note(label, controller().call(code, fields, body.getBytes(UTF_8)));
    }

    RemotingCommand controllerUntil(String label, int code, Map<String, String> fields, Predicate<RemotingCommand> wanted) throws IOException {
        return note(label, until(label, controller(), code, fields, wanted));
    }

    /** Asks until the answer is as wanted; only the last one counts. */
    RemotingCommand brokerUntil(String label, int code, Map<String, String> fields, Predicate<RemotingCommand> wanted) throws IOException {
        return note(label, until(label, broker(), code, fields, wanted));
    }

    /** The same of an answer whose body is numbers of eight bytes, here by their names. */
    RemotingCommand numbersUntil(String label, int code, List<String> numbers, Predicate<ByteBuffer> wanted) throws IOException {
        var answer = until(label, broker(), code, Map.of(), last -> last.getBody() != null && wanted.test(ByteBuffer.wrap(last.getBody())));
        var body = ByteBuffer.wrap(answer.getBody());
        var text = new StringBuilder("{\"bytes\":").append(body.remaining());
        numbers.forEach(number -> text.append(",\"").append(number).append("\":").append(body.getLong()));
        answer.setBody(text.append('}').toString().getBytes(UTF_8));
        return note(label, answer);
    }

    RemotingCommand namesUntil(String label, int code, Map<String, String> fields, Predicate<RemotingCommand> wanted) throws IOException {
        return note(label, until(label, names(), code, fields, wanted));
    }

    private static RemotingCommand until(String label, Wire wire, int code, Map<String, String> fields, Predicate<RemotingCommand> wanted) {
        var last = new AtomicReference<RemotingCommand>();
        Await.until(label, Duration.ofSeconds(30), () -> {
            last.set(wire.call(code, fields, null));
            return wanted.test(last.get());
        }, () -> String.valueOf(last.get()));
        return last.get();
    }

    /** Keeps an answer, or what a server said unasked. */
    RemotingCommand note(String label, RemotingCommand answer) {
        var leaves = new TreeMap<String, String>();
        leaves.put("code", String.valueOf(answer.getCode()));
        leaves.put("remark", String.valueOf(answer.getRemark()));
        if (answer.getExtFields() != null) {
            answer.getExtFields().forEach((key, value) -> {
                var inner = value == null ? null : LooseJson.leaves(value);
                if (inner == null) {
                    leaves.put("field " + key, String.valueOf(value));
                } else {
                    inner.forEach((path, leaf) -> leaves.put("field " + key + path, leaf));
                }
            });
        }
        if (answer.getBody() != null) {
            body(answer.getBody(), leaves);
        }
        var shown = new TreeMap<String, String>();
        leaves.forEach((path, value) -> shown.put(named(path), VARIES.matcher(path).matches() && value.matches("-?\\d+(\\.\\d+)?") ? "a number" : named(value)));
        if (answers.put(label, shown) != null) {
            throw new IllegalArgumentException("two questions are called " + label);
        }
        return answer;
    }

    private void body(byte[] body, Map<String, String> leaves) {
        boolean isRecords = body.length > 8 && body[4] == (byte) 0xDA && body[5] == (byte) 0xA3 && body[6] == 0x20;
        if (isRecords) {
            var messages = MessageDecoder.decodes(ByteBuffer.wrap(body));
            for (int i = 0; i < messages.size(); i++) {
                var message = messages.get(i);
                String path = "message " + i + " ";
                message.getProperties().forEach((key, value) -> leaves.put(path + "property " + key, value));
                leaves.put(path + "topic", message.getTopic());
                leaves.put(path + "body", new String(message.getBody(), UTF_8));
                leaves.put(path + "queue", message.getQueueId() + " at " + message.getQueueOffset());
                leaves.put(path + "log offset", String.valueOf(message.getCommitLogOffset()));
                leaves.put(path + "flags", message.getFlag() + " " + message.getSysFlag() + " " + message.getReconsumeTimes());
                leaves.put(path + "prepared", String.valueOf(message.getPreparedTransactionOffset()));
                leaves.put(path + "bytes", String.valueOf(message.getStoreSize()));
            }
            return;
        }
        // Named before it is read: members of an array are sorted by what they say.
        String text = named(new String(body, UTF_8));
        var inner = LooseJson.leaves(text);
        if (inner != null) {
            inner.forEach((path, leaf) -> leaves.put("body" + path, leaf));
        } else {
            // Properties, one a line.
            for (String line : text.split("\n")) {
                int equals = line.indexOf('=');
                leaves.put("body " + (equals < 0 ? line : line.substring(0, equals)), equals < 0 ? "" : line.substring(equals + 1));
            }
        }
    }

    private String named(String text) {
        String ours = broker == null ? text : text.replace("127.0.0.1:" + broker.socket.getLocalPort(), "CLIENT");
        for (var address : addresses.entrySet()) {
            ours = ours.replace(address.getKey(), address.getValue());
        }
        return ours.replace("127.0.0.1:" + server.controllerPort, "CONTROLLER").replace("127.0.0.1:" + server.namesrvPort, "NAMESERVER").replace("127.0.0.1:" + server.brokerPort, "BROKER")
            .replace("127.0.0.1:" + (server.brokerPort + 1), "HA").replace(String.format("7F000001%08X", server.brokerPort), "BROKER")
            .replace(server.root.toString(), "ROOT");
    }

    /** What was answered differently: to which question, where in the answer, and both answers. */
    record Difference(String question, String path, String apache, String gantry) {}

    static List<Difference> differences(Conversation left, Conversation right) {
        var found = new ArrayList<Difference>();
        left.answers.forEach((label, answer) -> {
            var other = right.answers.get(label);
            if (other == null) {
                found.add(new Difference(label, "", "asked", "not asked"));
                return;
            }
            var paths = new TreeMap<>(answer);
            paths.putAll(other);
            for (String path : paths.keySet()) {
                String one = answer.getOrDefault(path, "(absent)");
                String two = other.getOrDefault(path, "(absent)");
                if (!one.equals(two)) {
                    found.add(new Difference(label, path, one, two));
                }
            }
        });
        return found;
    }

    @Override
    public void close() throws Exception {
        for (Wire wire : new Wire[] {broker, names, controller}) {
            if (wire != null) {
                wire.close();
            }
        }
    }
}
