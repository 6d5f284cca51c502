package gantry;

import static gantry.Questions.fields;
import static gantry.Questions.properties;
import static gantry.Questions.send;
import static gantry.Questions.topic;
import static gantry.Questions.with;
import static gantry.Questions.without;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** What the differential test asks about what came with later versions: light queues, topics of batches, timers and pops. Each server is fresh. */
final class LaterQuestions {
    private final Conversation ask;

    LaterQuestions(Conversation ask) {
        this.ask = ask;
    }

    static Server configure(Server server) {
        return server.with("enableLmq", "true").with("enableMultiDispatch", "true").with("recallMessageEnable", "true");
    }

    /** What stores records of its own kind comes last: places in the log are compared before. */
    void all() throws Exception {
        ask.broker("topic", 17, topic("orders", "2", "2", "6"));
        ask.broker("group", 200, fields(), "{\"groupName\":\"readers\",\"consumeEnable\":true,\"retryMaxTimes\":3,\"retryQueueNums\":1}");
        ask.broker("group: closed", 200, fields(), "{\"groupName\":\"closed\",\"consumeEnable\":false}");
        lightQueues();
        batches();
        timers();
        pops();
    }

    private static String key(int number) {
        return String.format("7F00000100002A9F00000000000001%02d", number);
    }

    private void lightQueues() throws Exception {
        var pull = fields("consumerGroup", "readers", "topic", "%LMQ%light", "queueId", "0", "queueOffset", "0", "maxMsgNums", "32", "sysFlag", "4",
            "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0", "expressionType", "TAG");
        ask.broker("light: of nobody, end", 30, fields("topic", "%LMQ%nobody", "queueId", "0"));
        ask.broker("light: of nobody, start", 31, fields("topic", "%LMQ%nobody", "queueId", "0"));
        ask.broker("light: sent", 310, send("orders", "0", properties("UNIQ_KEY", key(1), "INNER_MULTI_DISPATCH", "%LMQ%light,%LMQ%other")), "one");
        ask.broker("light: sent again", 310, send("orders", "0", properties("UNIQ_KEY", key(2), "TAGS", "red", "INNER_MULTI_DISPATCH", "%LMQ%light")), "two");
        ask.broker("light: sent to none", 310, send("orders", "0", properties("UNIQ_KEY", key(3), "INNER_MULTI_DISPATCH", "")), "three");
        ask.brokerUntil("light: end", 30, fields("topic", "%LMQ%light", "queueId", "0"), answer -> "2".equals(answer.getExtFields().get("offset")));
        ask.broker("light: start", 31, fields("topic", "%LMQ%light", "queueId", "0"));
        ask.broker("light: end of another queue", 30, fields("topic", "%LMQ%light", "queueId", "1"));
        ask.broker("light: pulled", 11, pull);
        ask.broker("light: pulled by tag", 11, with(pull, "subscription", "red"));
        ask.broker("light: pulled at the end", 11, with(pull, "queueOffset", "2"));
        ask.broker("light: pulled beyond", 11, with(pull, "queueOffset", "9"));
        ask.broker("light: pulled from another queue", 11, with(pull, "queueId", "1"));
        ask.broker("light: pulled by nobody's group", 11, with(pull, "consumerGroup", "closed"));
        ask.broker("light: committed", 15, fields("consumerGroup", "readers", "topic", "%LMQ%light", "queueId", "0", "commitOffset", "1"));
        ask.broker("light: asked", 14, fields("consumerGroup", "readers", "topic", "%LMQ%light", "queueId", "0"));
        ask.broker("light: committed by a light group", 15, fields("consumerGroup", "%LMQ%light", "topic", "%LMQ%light", "queueId", "0", "commitOffset", "2"));
        ask.broker("light: asked by a light group", 14, fields("consumerGroup", "%LMQ%light", "topic", "%LMQ%light", "queueId", "0"));
        ask.broker("light: asked by a light group that has none", 14, fields("consumerGroup", "%LMQ%none", "topic", "%LMQ%light", "queueId", "0"));
        ask.broker("light: by time", 29, fields("topic", "%LMQ%light", "queueId", "0", "timestamp", "1"));
        ask.broker("light: topic", 351, fields("topic", "%LMQ%light"));
        ask.broker("light: figures", 202, fields("topic", "%LMQ%light"));
        ask.broker("light: sent to itself", 310, send("%LMQ%light", "0", properties("UNIQ_KEY", key(4))), "four");
    }

    private void batches() throws Exception {
        ask.broker("batches: topic", 17, with(topic("batches", "1", "1", "6"), "attributes", "+queue.type=BatchCQ"));
        ask.broker("batches: topic, wrong type", 17, with(topic("wrong_type", "1", "1", "6"), "attributes", "+queue.type=Other"));
        ask.broker("batches: type changed", 17, with(topic("batches", "1", "1", "6"), "attributes", "+queue.type=SimpleCQ"));
        ask.broker("batches: topic, as kept", 351, fields("topic", "batches"));
        ask.broker("batches: end of none", 30, fields("topic", "batches", "queueId", "0"));
        ask.broker("batches: start of none", 31, fields("topic", "batches", "queueId", "0"));
        ask.broker("batches: sent", 320, with(send("batches", "0", properties("UNIQ_KEY", key(10))), "m", "true"), Questions.batch("red", "a", "b", "c"));
        ask.broker("batches: one sent", 310, send("batches", "0", properties("UNIQ_KEY", key(11), "TAGS", "blue")), "d");
        ask.broker("batches: garbage", 320, with(send("batches", "0", ""), "m", "true"), "garbage");
        ask.brokerUntil("batches: end", 30, fields("topic", "batches", "queueId", "0"), answer -> "4".equals(answer.getExtFields().get("offset")));
        var pull = fields("consumerGroup", "readers", "topic", "batches", "queueId", "0", "queueOffset", "0", "maxMsgNums", "32", "sysFlag", "4",
            "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0", "expressionType", "TAG");
        for (String offset : new String[] {"0", "1", "2", "3", "4", "5", "77"}) {
            ask.broker("batches: pulled from " + offset, 11, with(pull, "queueOffset", offset));
        }
        ask.broker("batches: one pulled", 11, with(pull, "maxMsgNums", "1"));
        ask.broker("batches: by time", 29, fields("topic", "batches", "queueId", "0", "timestamp", "1"));
        ask.broker("batches: figures", 202, fields("topic", "batches"));
    }

    private void timers() throws Exception {
        // The same for both, and no sooner than within days.
        String later = String.valueOf(System.currentTimeMillis() / 86_400_000 * 86_400_000 + 2 * 86_400_000);
        ask.broker("timers: no number", 310, send("orders", "1", properties("UNIQ_KEY", key(20), "TIMER_DELAY_MS", "soon")), "x");
        ask.broker("timers: too late", 310, send("orders", "1", properties("UNIQ_KEY", key(21), "TIMER_DELAY_SEC", "999999999")), "x");
        ask.broker("timers: past", 310, send("orders", "1", properties("UNIQ_KEY", key(22), "TIMER_DELIVER_MS", "1")), "past");
        ask.broker("timers: negative delay", 310, send("orders", "1", properties("UNIQ_KEY", key(23), "TIMER_DELAY_MS", "-5")), "negative");
        RemotingCommand kept = ask.broker("timers: later", 310, send("orders", "1", properties("UNIQ_KEY", key(25), "TIMER_DELIVER_MS", later)), "later");
        var end = ask.broker("timers: end", 30, fields("topic", "rmq_sys_wheel_timer", "queueId", "0"));
        ask.broker("timers: not seen", 30, fields("topic", "orders", "queueId", "1"));
        ask.brokerUntil("timers: figures", 61, fields(), answer -> new String(answer.getBody(), UTF_8).contains("orders"));
        long takenIn = Long.parseLong(end.getExtFields().get("offset"));
        var marks = List.of("lastReadTime", "lastTimerLogFlushPos", "lastTimerQueueOffset", "masterTimerQueueOffset", "stateVersion", "timestamp", "counter");
        ask.numbersUntil("timers: check-point", 60, marks, body -> body.getLong(16) == takenIn && body.getLong(8) > 0);
        var recall = fields("producerGroup", "producers", "topic", "orders", "recallHandle", handle("v1", "orders", Server.BROKER_NAME, later, key(25)));
        ask.broker("recall: no handle", 370, without(recall, "recallHandle"));
        ask.broker("recall: empty handle", 370, with(recall, "recallHandle", ""));
        ask.broker("recall: garbage", 370, with(recall, "recallHandle", "garbage"));
        ask.broker("recall: garbage of base64", 370, with(recall, "recallHandle", "dGVzdA"));
        ask.broker("recall: another version", 370, with(recall, "recallHandle", handle("v9", "orders", Server.BROKER_NAME, later, key(25))));
        ask.broker("recall: another broker", 370, with(recall, "recallHandle", handle("v1", "orders", "other", later, key(25))));
        ask.broker("recall: another topic", 370, with(recall, "topic", "batches"));
        ask.broker("recall: no topic of that name", 370, with(recall, "topic", "no_such_topic"));
        ask.broker("recall: time is no number", 370, with(recall, "recallHandle", handle("v1", "orders", Server.BROKER_NAME, "soon", key(25))));
        ask.broker("recall: past", 370, with(recall, "recallHandle", handle("v1", "orders", Server.BROKER_NAME, "1", key(25))));
        ask.broker("recall: far away", 370, with(recall, "recallHandle", handle("v1", "orders", Server.BROKER_NAME, String.valueOf(Long.MAX_VALUE), key(25))));
        ask.broker("recall: no topic", 370, without(recall, "topic"));
        ask.broker("recall: no producers", 370, without(recall, "producerGroup"));
        ask.broker("recall", 370, with(recall, "recallHandle", String.valueOf(kept.getExtFields().get("recallHandle"))));
        // The timers of Apache come to a stand behind what names no time.
        ask.broker("timers: in a batch", 320, with(send("orders", "1", properties("TIMER_DELAY_SEC", "5")), "m", "true"), Questions.batch("red", "a"));
        ask.broker("timers: directly into their topic", 310, send("rmq_sys_wheel_timer", "0", properties("UNIQ_KEY", key(24))), "x");
    }

    private static String handle(String... parts) {
        return Base64.getUrlEncoder().encodeToString(String.join(" ", parts).getBytes(UTF_8));
    }

    private static Map<String, String> pop(String topic, String group) {
        return fields("consumerGroup", group, "topic", topic, "queueId", "0", "maxMsgNums", "2", "invisibleTime", "60000", "pollTime", "0",
            "bornTime", String.valueOf(System.currentTimeMillis()), "initMode", "0", "expType", "TAG", "exp", "*", "order", "false");
    }

    private void pops() throws Exception {
        ask.broker("pop: topic", 17, topic("popped", "1", "1", "6"));
        ask.broker("pop: write only topic", 17, topic("write_only", "1", "1", "2"));
        for (int i = 0; i < 6; i++) {
            ask.broker("pop: sent " + i, 310, send("popped", "0", properties("UNIQ_KEY", key(30 + i), "TAGS", i % 2 == 0 ? "red" : "blue")), "m" + i);
        }
        ask.brokerUntil("pop: end", 30, fields("topic", "popped", "queueId", "0"), answer -> "6".equals(answer.getExtFields().get("offset")));
        var peek = fields("topic", "popped", "queueId", "0", "maxMsgNums", "2", "consumerGroup", "readers");
        ask.broker("peek", 200052, peek);
        ask.broker("peek: no such topic", 200052, with(peek, "topic", "no_such_topic"));
        ask.broker("peek: no such group", 200052, with(peek, "consumerGroup", "closed"));
        ask.broker("peek: no queue of that number", 200052, with(peek, "queueId", "9"));
        ask.broker("peek: write only", 200052, with(peek, "topic", "write_only"));
        var question = fields("consumerGroup", "readers", "topic", "popped", "queueId", "0", "pollTime", "0", "bornTime", String.valueOf(System.currentTimeMillis()), "order", "false");
        ask.broker("notification", 200054, question);
        ask.broker("notification: any queue", 200054, with(question, "queueId", "-1"));
        ask.broker("notification: no such topic", 200054, with(question, "topic", "no_such_topic"));
        ask.broker("notification: closed group", 200054, with(question, "consumerGroup", "closed"));
        ask.broker("notification: no queue of that number", 200054, with(question, "queueId", "9"));
        ask.broker("notification: write only", 200054, with(question, "topic", "write_only"));
        ask.broker("polling", 200055, fields("consumerGroup", "readers", "topic", "popped", "queueId", "0"));
        ask.broker("polling: no such topic", 200055, fields("consumerGroup", "readers", "topic", "no_such_topic", "queueId", "0"));
        ask.broker("polling: closed group", 200055, fields("consumerGroup", "closed", "topic", "popped", "queueId", "0"));
        ask.broker("polling: no queue of that number", 200055, fields("consumerGroup", "readers", "topic", "popped", "queueId", "9"));

        // A group for each question: some are answered with messages by one of the two.
        String[][] bad = {{"no such topic", "topic", "no_such_topic"}, {"write only", "topic", "write_only"}, {"no queue of that number", "queueId", "9"},
            {"too many", "maxMsgNums", "33"}, {"none", "maxMsgNums", "0"}, {"too late", "bornTime", "1"}, {"no tag", "exp", "||"},
            {"condition while switched off", "expType", "SQL92", "exp", "a > 1"}, {"another expression", "expType", "XPATH", "exp", "a"},
            {"negative invisible time", "invisibleTime", "-1"}, {"unknown mode", "initMode", "7"}, {"queue is no number", "queueId", "one"}};
        for (int i = 0; i < bad.length; i++) {
            ask.broker("pop: " + bad[i][0], 200050, with(pop("popped", "of_bad_" + i), Arrays.copyOfRange(bad[i], 1, bad[i].length)));
        }
        ask.broker("pop: closed group", 200050, pop("popped", "closed"));
        for (String key : new String[] {"consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "bornTime", "initMode"}) {
            ask.broker("missing: " + key + " of 200050", 200050, without(pop("popped", "without_" + key), key));
        }
        RemotingCommand first = ask.broker("pop", 200050, pop("popped", "readers"));
        ask.broker("pop: by tag", 200050, with(pop("popped", "of_tags"), "exp", "blue", "maxMsgNums", "1"));
        ask.broker("pop: in order", 200050, with(pop("popped", "in_order"), "order", "true", "attemptId", "a"));
        RemotingCommand order = ask.broker("pop: in order, the same again", 200050, with(pop("popped", "in_order"), "order", "true", "attemptId", "a"));
        ask.broker("pop: in order, blocked", 200050, with(pop("popped", "in_order"), "order", "true", "attemptId", "b"));
        acknowledge(first, order);
        putOff();
        priorities();
    }

    /** A batch in order of which the middle message is put off: what comes again, and in which order. */
    private void putOff() throws Exception {
        ask.broker("put off: topic", 17, topic("put_off", "1", "1", "6"));
        for (int i = 0; i < 4; i++) {
            ask.broker("put off: sent " + i, 310, send("put_off", "0", properties("UNIQ_KEY", key(50 + i))), "m" + i);
        }
        ask.brokerUntil("put off: end", 30, fields("topic", "put_off", "queueId", "0"), answer -> "4".equals(answer.getExtFields().get("offset")));
        // Born later than now: it is not too late, however often it is asked.
        var order = with(pop("put_off", "in_order"), "order", "true", "maxMsgNums", "3", "bornTime", String.valueOf(System.currentTimeMillis() + 3_600_000));
        RemotingCommand batch = ask.broker("put off: batch", 200050, order);
        for (int i = 0; i < 3; i += 2) {
            ask.broker("put off: ack " + i, 200051, fields("consumerGroup", "in_order", "topic", "put_off", "queueId", "0", "extraInfo", of(batch, 0, i), "offset", String.valueOf(i)));
        }
        ask.broker("put off: change", 200053, fields("consumerGroup", "in_order", "topic", "put_off", "queueId", "0", "extraInfo", of(batch, 0, 1), "offset", "1", "invisibleTime", "2000"));
        ask.broker("put off: blocked", 200050, order);
        ask.brokerUntil("put off: again", 200050, order, answer -> answer.getCode() == 0);
    }

    private void priorities() throws Exception {
        ask.broker("priorities: topic", 17, with(topic("ranked", "4", "4", "6"), "attributes", "+message.type=PRIORITY"));
        for (int i = 0; i < 8; i++) {
            // The highest is above the last queue.
            String priority = String.valueOf(i * 3 % 5);
            ask.broker("priorities: sent " + i, 310, send("ranked", "0", properties("UNIQ_KEY", key(60 + i), "_SYS_MSG_PRIORITY_", priority)), "priority " + priority);
        }
        List<String> ends = List.of("2", "2", "1", "3");
        for (int i = 0; i < ends.size(); i++) {
            String queue = String.valueOf(i);
            String end = ends.get(i);
            ask.brokerUntil("priorities: end of " + queue, 30, fields("topic", "ranked", "queueId", queue), answer -> end.equals(answer.getExtFields().get("offset")));
        }
        for (int i = 0; i < 4; i++) {
            ask.broker("priorities: pop " + i, 200050, with(pop("ranked", "by_rank"), "queueId", "-1", "maxMsgNums", "2"));
        }
    }

    private void acknowledge(RemotingCommand first, RemotingCommand order) throws Exception {
        String handle = of(first, 0, 0);
        var ack = fields("consumerGroup", "readers", "topic", "popped", "queueId", "0", "extraInfo", handle, "offset", "0");
        var change = with(ack, "invisibleTime", "70000", "offset", "1", "extraInfo", of(first, 0, 1));
        for (var one : Map.of("ack", 200051, "change", 200053).entrySet()) {
            String name = one.getKey();
            int code = one.getValue();
            var good = name.equals("ack") ? ack : change;
            ask.broker(name + ": no such topic", code, with(good, "topic", "no_such_topic"));
            ask.broker(name + ": no queue of that number", code, with(good, "queueId", "9"));
            ask.broker(name + ": negative queue", code, with(good, "queueId", "-1"));
            ask.broker(name + ": empty handle", code, with(good, "extraInfo", ""));
            ask.broker(name + ": short handle", code, with(good, "extraInfo", "1 2"));
            ask.broker(name + ": garbage for a handle", code, with(good, "extraInfo", "a b c d e f g h"));
            ask.broker(name + ": beyond the end", code, with(good, "offset", "99"));
            ask.broker(name + ": below the start", code, with(good, "offset", "-1"));
            for (String key : new String[] {"consumerGroup", "topic", "queueId", "extraInfo", "offset"}) {
                ask.broker("missing: " + key + " of " + code, code, without(good, key));
            }
        }
        ask.broker("missing: invisibleTime of 200053", 200053, without(change, "invisibleTime"));
        ask.broker("ack", 200051, ack);
        ask.broker("ack: once more", 200051, ack);
        RemotingCommand changed = ask.broker("change", 200053, change);
        ask.broker("ack: after the change", 200051, with(ack, "offset", "1", "extraInfo", of(changed, 1, 1)));
        ask.broker("ack: long over", 200051, with(ack, "extraInfo", "0 1000 1000 0 0 " + Server.BROKER_NAME + " 0 0"));
        var ordered = with(ack, "consumerGroup", "in_order", "extraInfo", of(order, 0, 0));
        ask.broker("ack: in order, change", 200053, with(ordered, "invisibleTime", "70000"));
        ask.broker("ack: in order", 200051, ordered);
        ask.broker("ack: in order, once more", 200051, ordered);
        ask.broker("ack: in order, what was not popped", 200051, with(ordered, "offset", "5"));
        ask.broker("ack: in order, the second", 200051, with(ordered, "offset", "1", "extraInfo", of(order, 0, 1)));
        ask.broker("pop: in order, the next", 200050, with(pop("popped", "in_order"), "order", "true", "attemptId", "c"));
        ask.broker("batch ack: nothing", 200151, fields());
        ask.broker("batch ack: garbage", 200151, fields(), "garbage");
        ask.broker("batch ack: empty", 200151, fields(), "{\"brokerName\":\"broker-a\",\"acks\":[]}");
        ask.broker("batch ack: of no topic", 200151, fields(), "{\"brokerName\":\"broker-a\",\"acks\":[{\"c\":\"readers\",\"t\":\"no_such_topic\",\"r\":\"0\",\"so\":0,\"q\":0,\"rq\":0,\"pt\":1,\"it\":1,\"b\":\"AQ==\"}]}");
        ask.broker("notification: nothing left", 200054, fields("consumerGroup", "readers", "topic", "batches", "queueId", "0", "pollTime", "0",
            "bornTime", String.valueOf(System.currentTimeMillis()), "order", "false"));
        ask.broker("pop: mode", 401, fields(), "{\"consumerGroup\":\"readers\",\"mode\":\"POP\",\"popShareQueueNum\":2,\"topic\":\"popped\"}");
        ask.broker("pop: mode of no topic", 401, fields(), "{\"consumerGroup\":\"readers\",\"mode\":\"POP\",\"popShareQueueNum\":2,\"topic\":\"no_such_topic\"}");
        ask.broker("pop: modes", 402, fields());
        ask.broker("pop: assignment", 400, fields(), "{\"clientId\":\"client@1\",\"consumerGroup\":\"readers\",\"messageModel\":\"CLUSTERING\",\"strategyName\":\"AVG\",\"topic\":\"popped\"}");
    }

    /** The handle of a message that was popped from a place on, as the stock client makes it. */
    private static String of(RemotingCommand popped, int start, int offset) {
        var fields = popped.getExtFields();
        return String.join(" ", String.valueOf(start), fields.get("popTime"), fields.get("invisibleTime"), fields.get("reviveQid"), "0", Server.BROKER_NAME, "0",
            String.valueOf(offset));
    }
}
