package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;

/** What the differential test asks, a method a family. Names are fixed: each server is fresh. */
final class Questions {
    private static final long BORN = 1_700_000_000_000L;
    private final Conversation ask;

    Questions(Conversation ask) {
        this.ask = ask;
    }

    void all() throws Exception {
        topics();
        groups();
        nameServer();
        sends();
        pulls();
        offsets();
        lookups();
        members();
        sendBacks();
        transactions();
        operators();
        missingFields();
    }

    static Map<String, String> fields(String... pairs) {
        var fields = new LinkedHashMap<String, String>();
        for (int i = 0; i < pairs.length; i += 2) {
            fields.put(pairs[i], pairs[i + 1]);
        }
        return fields;
    }

    static Map<String, String> with(Map<String, String> fields, String... pairs) {
        var changed = new LinkedHashMap<>(fields);
        changed.putAll(fields(pairs));
        return changed;
    }

    static Map<String, String> without(Map<String, String> fields, String key) {
        var changed = new LinkedHashMap<>(fields);
        changed.remove(key);
        return changed;
    }

    static Map<String, String> topic(String name, String reads, String writes, String perm) {
        return fields("topic", name, "defaultTopic", "TBW102", "readQueueNums", reads, "writeQueueNums", writes, "perm", perm,
            "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false");
    }

    static Map<String, String> send(String topic, String queue, String properties) {
        return fields("a", "producers", "b", topic, "c", "TBW102", "d", "4", "e", queue, "f", "0", "g", String.valueOf(BORN), "h", "0",
            "i", properties, "j", "0", "k", "false", "m", "false");
    }

    private static Map<String, String> pull(String topic, String queue, String offset, String subscription) {
        return fields("consumerGroup", "readers", "topic", topic, "queueId", queue, "queueOffset", offset, "maxMsgNums", "32", "sysFlag", "4",
            "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", subscription, "subVersion", "0", "expressionType", "TAG");
    }

    static String properties(String... pairs) {
        var text = new StringBuilder();
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(pairs[i]).append('\u0001').append(pairs[i + 1]).append('\u0002');
        }
        return text.toString();
    }

    private void topics() throws Exception {
        ask.broker("topic: made", 17, topic("orders", "4", "4", "6"));
        ask.broker("topic: made again", 17, topic("orders", "4", "4", "6"));
        ask.broker("topic: grown", 17, topic("grown", "2", "2", "6"));
        ask.broker("topic: grown once more", 17, topic("grown", "5", "3", "6"));
        ask.broker("topic: read only", 17, topic("read_only", "1", "1", "4"));
        ask.broker("topic: write only", 17, topic("write_only", "1", "1", "2"));
        ask.broker("topic: empty name", 17, topic("", "4", "4", "6"));
        ask.broker("topic: blank in name", 17, topic("with space", "4", "4", "6"));
        ask.broker("topic: long name", 17, topic("t".repeat(128), "4", "4", "6"));
        ask.broker("topic: longest name", 17, topic("t".repeat(127), "1", "1", "6"));
        ask.broker("topic: system name", 17, topic("SCHEDULE_TOPIC_XXXX", "4", "4", "6"));
        ask.broker("topic: template", 17, topic("TBW102", "4", "4", "6"));
        ask.broker("topic: unknown attribute", 17, with(topic("attributed", "1", "1", "6"), "attributes", "+no.such=1"));
        ask.broker("topic: attribute without sign", 17, with(topic("attributed", "1", "1", "6"), "attributes", "message.type=FIFO"));
        ask.broker("topic: attribute", 17, with(topic("attributed", "1", "1", "6"), "attributes", "+message.type=FIFO"));
        ask.broker("topic: wrong message type", 17, with(topic("attributed", "1", "1", "6"), "attributes", "+message.type=WRONG"));
        ask.broker("topic: mixed message type", 17, with(topic("mixed", "1", "1", "6"), "attributes", "+message.type=MIXED"));
        ask.broker("topic: one", 351, fields("topic", "attributed"));
        ask.broker("topic: grown, as kept", 351, fields("topic", "grown"));
        ask.broker("topic: none", 351, fields("topic", "no_such_topic"));
        ask.broker("topic: figures", 202, fields("topic", "orders"));
        ask.broker("topic: figures of none", 202, fields("topic", "no_such_topic"));
        ask.broker("topic: system ones", 305, fields());
        ask.broker("topic: deleted, never there", 215, fields("topic", "never_there"));
        ask.broker("topic: deleted, system", 215, fields("topic", "SCHEDULE_TOPIC_XXXX"));
        ask.broker("topic: deleted, empty", 215, fields("topic", ""));
        ask.broker("topic: several", 18, fields(), "{\"topicConfigList\":[{\"topicName\":\"several_a\",\"readQueueNums\":1,\"writeQueueNums\":1,\"perm\":6},"
            + "{\"topicName\":\"several_b\",\"readQueueNums\":2,\"writeQueueNums\":2,\"perm\":6}]}");
        ask.broker("topic: several, one bad", 18, fields(), "{\"topicConfigList\":[{\"topicName\":\"several_c\",\"readQueueNums\":1,\"writeQueueNums\":1,\"perm\":6},"
            + "{\"topicName\":\"bad name\",\"readQueueNums\":2,\"writeQueueNums\":2,\"perm\":6}]}");
        ask.broker("topic: several, none", 18, fields(), "{\"topicConfigList\":[]}");
    }

    private void groups() throws Exception {
        ask.broker("group: made", 200, fields(), "{\"groupName\":\"readers\",\"consumeEnable\":true,\"retryMaxTimes\":3,\"retryQueueNums\":1}");
        ask.broker("group: blank in name", 200, fields(), "{\"groupName\":\"with space\"}");
        ask.broker("group: long name", 200, fields(), "{\"groupName\":\"" + "g".repeat(256) + "\"}");
        ask.broker("group: no name", 200, fields(), "{}");
        ask.broker("group: closed", 200, fields(), "{\"groupName\":\"closed\",\"consumeEnable\":false}");
        ask.broker("group: one", 352, fields("group", "readers"));
        ask.broker("group: made by being asked for", 352, fields("group", "asked_for"));
        ask.broker("group: topics", 343, fields("group", "readers"));
        ask.broker("group: subscription", 345, fields("group", "readers", "topic", "orders"));
        ask.broker("group: of a topic", 300, fields("topic", "orders"));
        ask.broker("group: forbid", 353, fields("group", "readers", "topic", "grown", "readable", "false"));
        ask.broker("group: forbidden", 353, fields("group", "readers", "topic", "grown"));
        ask.broker("group: allow again", 353, fields("group", "readers", "topic", "grown", "readable", "true"));
        ask.broker("group: forbid, no topic", 353, fields("group", "readers", "topic", "no_such_topic", "readable", "false"));
        ask.broker("group: deleted, never there", 207, fields("groupName", "never_there", "cleanOffset", "true"));
        ask.broker("group: several", 225, fields(), "{\"groupConfigList\":[{\"groupName\":\"several_1\"},{\"groupName\":\"several_2\"}]}");
    }

    private void nameServer() throws Exception {
        ask.names("names: put", 100, fields("namespace", "space", "key", "a", "value", "1"));
        ask.names("names: put empty", 100, fields("namespace", "space", "key", "b", "value", ""));
        ask.names("names: got", 101, fields("namespace", "space", "key", "a"));
        ask.names("names: got none", 101, fields("namespace", "space", "key", "none"));
        ask.names("names: listed", 219, fields("namespace", "space"));
        ask.names("names: listed none", 219, fields("namespace", "none"));
        ask.names("names: deleted", 102, fields("namespace", "space", "key", "a"));
        ask.names("names: deleted none", 102, fields("namespace", "none", "key", "none"));
        ask.namesUntil("names: route", 105, fields("topic", "orders"), answer -> answer.getCode() == 0);
        ask.names("names: route in plain JSON", 105, fields("topic", "orders", "acceptStandardJsonOnly", "true"));
        ask.names("names: no route", 105, fields("topic", "no_such_topic"));
        ask.names("names: cluster", 106, fields());
        ask.names("names: topics of a cluster", 224, fields("cluster", Server.CLUSTER));
        ask.names("names: topics of no cluster", 224, fields("cluster", "none"));
        ask.names("names: all topics", 206, fields());
        ask.names("names: system topics", 304, fields());
        ask.names("names: unit topics", 311, fields());
        ask.names("names: topics with unit subscriptions", 312, fields());
        ask.names("names: other topics with unit subscriptions", 313, fields());
        ask.names("names: members", 901, fields("clusterName", Server.CLUSTER, "brokerName", Server.BROKER_NAME));
        ask.names("names: members of none", 901, fields("clusterName", "none", "brokerName", "none"));
        ask.names("names: version of an unknown broker", 322, fields("brokerName", "none", "brokerAddr", "1.2.3.4:5", "clusterName", "none", "brokerId", "0"));
        ask.names("names: write permission of an unknown broker", 205, fields("brokerName", "none"));
        ask.names("names: write permission given to an unknown broker", 327, fields("brokerName", "none"));
        ask.names("names: delete an unknown topic", 216, fields("topic", "no_such_topic"));
        ask.names("names: unknown broker leaves", 104, fields("brokerName", "none", "brokerAddr", "1.2.3.4:5", "clusterName", "none", "brokerId", "0"));
        ask.names("names: unknown code", 9999, fields());
        ask.names("names: settings, unknown key", 318, fields());
    }

    private void sends() throws Exception {
        ask.broker("send", 310, send("orders", "1", properties("KEYS", "k1", "TAGS", "red", "UNIQ_KEY", "7F00000100002A9F0000000000000001")), "one");
        ask.broker("send: second", 310, send("orders", "1", properties("KEYS", "k2 k3", "TAGS", "blue", "UNIQ_KEY", "7F00000100002A9F0000000000000002")), "two");
        ask.broker("send: long form", 10, fields("producerGroup", "producers", "topic", "orders", "defaultTopic", "TBW102", "defaultTopicQueueNums", "4", "queueId", "1",
            "sysFlag", "0", "bornTimestamp", String.valueOf(BORN), "flag", "7", "properties", properties("UNIQ_KEY", "7F00000100002A9F0000000000000003"), "reconsumeTimes", "0",
            "unitMode", "false", "batch", "false"), "three");
        ask.broker("send: empty body", 310, send("orders", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000004")), "");
        ask.broker("send: no queue of that number", 310, send("orders", "4", properties("UNIQ_KEY", "7F00000100002A9F0000000000000031")), "x");
        ask.broker("send: huge queue", 310, send("orders", "2147483647", properties("UNIQ_KEY", "7F00000100002A9F0000000000000032")), "x");
        ask.broker("send: no topic, no template", 310, with(send("no_such_topic", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000033")), "c", "no_template"), "x");
        ask.broker("send: bad name", 310, send("with space", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000034")), "x");
        ask.broker("send: long name", 310, send("t".repeat(128), "0", ""), "x");
        ask.broker("send: system topic", 310, send("SCHEDULE_TOPIC_XXXX", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000035")), "x");
        ask.broker("send: to the template", 310, send("TBW102", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000036")), "x");
        ask.broker("send: read only", 310, send("read_only", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000037")), "x");
        ask.broker("send: body too large", 310, send("orders", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000038")), new byte[(4 << 20) + 1]);
        ask.broker("send: properties too long", 310, send("orders", "0", properties("p", "v".repeat(32_768))), "x");
        ask.broker("send: topic by template", 310, send("by_template", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000005")), "x");
        ask.broker("send: topic by template, as kept", 351, fields("topic", "by_template"));
        ask.broker("send: delayed beyond the last level", 310, send("orders", "2", properties("DELAY", "99", "UNIQ_KEY", "7F00000100002A9F0000000000000006")), "late");
        ask.broker("send: retry topic of no group", 310, with(send("%RETRY%nobody", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000039")), "c", "none"), "x");
        ask.broker("send: batch", 320, with(send("grown", "1", properties("WAIT", "true")), "m", "true"), batch("tag", "b1", "b2", "b3"));
        ask.broker("send: batch of garbage", 320, with(send("grown", "1", ""), "m", "true"), "garbage");
        ask.broker("send: empty batch", 320, with(send("grown", "1", ""), "m", "true"), "");
        ask.broker("send: batch to a retry topic", 320, with(send("%RETRY%readers", "0", ""), "m", "true"), batch("tag", "b1"));
    }

    static byte[] batch(String tag, String... bodies) throws Exception {
        var all = new ByteArrayOutputStream();
        for (int i = 0; i < bodies.length; i++) {
            byte[] body = bodies[i].getBytes(UTF_8);
            byte[] inner = properties("TAGS", tag, "KEYS", "batched" + i, "UNIQ_KEY", "7F00000100002A9F00000000000001" + (10 + i)).getBytes(UTF_8);
            int size = 4 + 4 + 4 + 4 + 4 + body.length + 2 + inner.length;
            all.write(ByteBuffer.allocate(size).putInt(size).putInt(0).putInt(0).putInt(0).putInt(body.length).put(body).putShort((short) inner.length).put(inner).array());
        }
        return all.toByteArray();
    }

    private void pulls() throws Exception {
        ask.brokerUntil("pull: all", 11, pull("orders", "1", "0", "*"), answer -> answer.getCode() == 0 && "3".equals(answer.getExtFields().get("nextBeginOffset")));
        ask.broker("pull: by tag", 11, pull("orders", "1", "0", "red"));
        ask.broker("pull: by two tags", 11, pull("orders", "1", "0", "red||blue"));
        ask.broker("pull: by a tag that nobody has", 11, pull("orders", "1", "0", "green"));
        ask.broker("pull: two", 11, with(pull("orders", "1", "0", "*"), "maxMsgNums", "2"));
        ask.broker("pull: of zero", 11, with(pull("orders", "1", "0", "*"), "maxMsgNums", "0"));
        ask.broker("pull: at the end", 11, pull("orders", "1", "3", "*"));
        ask.broker("pull: one beyond the end", 11, pull("orders", "1", "4", "*"));
        ask.broker("pull: far beyond the end", 11, pull("orders", "1", "5000", "*"));
        ask.broker("pull: below the start", 11, pull("orders", "1", "-1", "*"));
        ask.broker("pull: empty queue", 11, pull("orders", "3", "0", "*"));
        ask.broker("pull: empty queue, further on", 11, pull("orders", "3", "7", "*"));
        ask.broker("pull: no queue of that number", 11, pull("orders", "4", "0", "*"));
        ask.broker("pull: negative queue", 11, pull("orders", "-1", "0", "*"));
        ask.broker("pull: no topic", 11, pull("no_such_topic", "0", "0", "*"));
        ask.broker("pull: write only", 11, pull("write_only", "0", "0", "*"));
        ask.broker("pull: closed group", 11, with(pull("orders", "1", "0", "*"), "consumerGroup", "closed"));
        ask.broker("pull: group that nobody made", 11, with(pull("orders", "1", "0", "*"), "consumerGroup", "unmade"));
        ask.broker("pull: subscription by heartbeat, none there", 11, with(pull("orders", "1", "0", "*"), "sysFlag", "0"));
        ask.broker("pull: condition while switched off", 11, with(pull("orders", "1", "0", "a > 1"), "expressionType", "SQL92"));
        ask.broker("pull: unknown kind of condition", 11, with(pull("orders", "1", "0", "a > 1"), "expressionType", "XPATH"));
        ask.brokerUntil("pull: batch", 11, pull("grown", "1", "0", "*"), answer -> answer.getCode() == 0 && "3".equals(answer.getExtFields().get("nextBeginOffset")));
        ask.broker("pull: within the batch", 11, pull("grown", "1", "1", "*"));
        ask.broker("pull: lite", 361, pull("orders", "1", "0", "*"));
    }

    private void offsets() throws Exception {
        Map<String, String> place = fields("consumerGroup", "readers", "topic", "orders", "queueId", "1");
        ask.broker("offset: none yet", 14, with(place, "consumerGroup", "fresh"));
        ask.broker("offset: none, zero not wanted", 14, with(place, "consumerGroup", "fresh", "setZeroIfNotFound", "false"));
        ask.broker("offset: none, no queue", 14, with(place, "queueId", "9"));
        ask.broker("offset: set", 15, with(place, "commitOffset", "2"));
        ask.broker("offset: asked", 14, place);
        ask.broker("offset: set back", 15, with(place, "commitOffset", "1"));
        ask.broker("offset: asked again", 14, place);
        ask.broker("offset: set beyond the end", 15, with(place, "commitOffset", "99"));
        ask.broker("offset: asked beyond the end", 14, place);
        ask.broker("offset: set below zero", 15, with(place, "commitOffset", "-5"));
        ask.broker("offset: asked below zero", 14, place);
        ask.broker("offset: set for no topic", 15, with(place, "topic", "no_such_topic", "commitOffset", "2"));
        ask.broker("offset: set for no group", 15, with(place, "consumerGroup", "mistyped", "commitOffset", "2"));
        ask.broker("offset: set for no queue", 15, with(place, "queueId", "77", "commitOffset", "2"));
        ask.broker("offset: set again", 15, with(place, "commitOffset", "2"));
        ask.broker("offset: all", 43, fields());
        ask.broker("offset: of delays", 45, fields());
        for (String topic : new String[] {"orders", "no_such_topic"}) {
            for (String queue : new String[] {"1", "3", "9", "-1"}) {
                Map<String, String> of = fields("topic", topic, "queueId", queue);
                ask.broker("offset: max of " + topic + " " + queue, 30, of);
                ask.broker("offset: min of " + topic + " " + queue, 31, of);
                ask.broker("offset: earliest of " + topic + " " + queue, 32, of);
                ask.broker("offset: by time of " + topic + " " + queue, 29, with(of, "timestamp", "1"));
                ask.broker("offset: by time to come of " + topic + " " + queue, 29, with(of, "timestamp", "9999999999999"));
                ask.broker("offset: by time to come, upper, of " + topic + " " + queue, 29, with(of, "timestamp", "9999999999999", "boundaryType", "UPPER"));
            }
        }
        ask.broker("offset: by time, wrong boundary", 29, fields("topic", "orders", "queueId", "1", "timestamp", "1", "boundaryType", "MIDDLE"));
        ask.broker("offset: copied", 314, fields("srcGroup", "readers", "destGroup", "copies", "topic", "orders", "offline", "true"));
        ask.broker("offset: as copied", 14, with(place, "consumerGroup", "copies"));
        ask.broker("offset: copied from nobody", 314, fields("srcGroup", "nobody", "destGroup", "copies", "topic", "orders", "offline", "false"));
        ask.broker("offset: reset, nobody is there", 222, fields("topic", "orders", "group", "readers", "timestamp", "0", "isForce", "true"));
        ask.broker("offset: pulled after the reset", 11, pull("orders", "1", "2", "*"));
        ask.broker("offset: pulled after that", 11, pull("orders", "1", "2", "*"));
        ask.broker("offset: reset of no group", 222, fields("topic", "orders", "group", "mistyped", "timestamp", "0", "isForce", "true"));
        ask.broker("offset: reset of no topic", 222, fields("topic", "no_such_topic", "group", "readers", "timestamp", "0", "isForce", "true"));
        ask.broker("progress: of a group", 208, fields("consumerGroup", "readers"));
        ask.broker("progress: of a group on a topic", 208, fields("consumerGroup", "readers", "topic", "orders"));
        ask.broker("progress: of nobody", 208, fields("consumerGroup", "nobody"));
        ask.broker("progress: of all", 317, fields("isOrder", "false"));
        ask.broker("progress: times", 303, fields("topic", "orders", "group", "readers"));
        ask.broker("progress: times of no topic", 303, fields("topic", "no_such_topic", "group", "readers"));
    }

    private void lookups() throws Exception {
        Map<String, String> query = fields("topic", "orders", "key", "k1", "maxNum", "32", "beginTimestamp", "0", "endTimestamp", "9999999999999");
        ask.brokerUntil("query: by key", 12, query, answer -> answer.getCode() == 0);
        ask.brokerUntil("query: by the second key", 12, with(query, "key", "k3"), answer -> answer.getCode() == 0);
        ask.brokerUntil("query: by unique key", 12, with(query, "key", "7F00000100002A9F0000000000000002", "_UNIQUE_KEY_QUERY", "true"), answer -> answer.getCode() == 0);
        ask.broker("query: no such key", 12, with(query, "key", "none"));
        ask.broker("query: another topic", 12, with(query, "topic", "grown"));
        ask.broker("query: before", 12, with(query, "endTimestamp", "5"));
        ask.brokerUntil("query: in a batch", 12, with(query, "topic", "grown", "key", "batched1"), answer -> answer.getCode() == 0);
        ask.broker("view: nothing there", 33, fields("offset", "999999999"));
        ask.broker("view: below zero", 33, fields("offset", "-1"));
        ask.broker("view: first", 33, fields("offset", "0"));
    }

    private void members() throws Exception {
        ask.broker("members: of nobody", 38, fields("consumerGroup", "nobody"));
        ask.broker("members: connections of nobody", 203, fields("consumerGroup", "nobody"));
        ask.broker("members: producers of nobody", 204, fields("producerGroup", "nobody"));
        ask.broker("members: heartbeat", 34, fields(), "{\"clientID\":\"client@1\",\"consumerDataSet\":[{\"consumeFromWhere\":\"CONSUME_FROM_LAST_OFFSET\",\"consumeType\":\"CONSUME_PASSIVELY\","
            + "\"groupName\":\"readers\",\"messageModel\":\"CLUSTERING\",\"subscriptionDataSet\":[{\"classFilterMode\":false,\"codeSet\":[],\"expressionType\":\"TAG\",\"subString\":\"*\","
            + "\"subVersion\":1,\"tagsSet\":[],\"topic\":\"orders\"}],\"unitMode\":false}],\"heartbeatFingerprint\":0,\"producerDataSet\":[{\"groupName\":\"producers\"}],\"withoutSub\":false}");
        ask.broker("members: after the heartbeat", 38, fields("consumerGroup", "readers"));
        ask.broker("members: connections", 203, fields("consumerGroup", "readers"));
        ask.broker("members: producers", 204, fields("producerGroup", "producers"));
        ask.broker("members: all producers", 328, fields());
        ask.broker("members: topics of the group", 343, fields("group", "readers"));
        ask.broker("members: subscription of the group", 345, fields("group", "readers", "topic", "orders"));
        ask.broker("members: subscription to another topic", 345, fields("group", "readers", "topic", "grown"));
        ask.broker("members: groups of the topic", 300, fields("topic", "orders"));
        ask.broker("members: running info of nobody", 307, fields("consumerGroup", "readers", "clientId", "nobody", "jstackEnable", "false"));
        ask.broker("members: status of nobody", 223, fields("topic", "orders", "group", "nobody"));
        ask.broker("members: garbage for a heartbeat", 34, fields(), "garbage");
        String queues = "{\"clientId\":\"client@1\",\"consumerGroup\":\"readers\",\"mqSet\":[{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"orders\"},"
            + "{\"brokerName\":\"broker-a\",\"queueId\":1,\"topic\":\"orders\"}]}";
        ask.broker("lock: two queues", 41, fields(), queues);
        ask.broker("lock: by another one", 41, fields(), queues.replace("client@1", "client@2"));
        ask.broker("lock: let go", 42, fields(), queues);
        ask.broker("lock: by another one now", 41, fields(), queues.replace("client@1", "client@2"));
        ask.broker("assignment", 400, fields(), "{\"clientId\":\"client@1\",\"consumerGroup\":\"readers\",\"messageModel\":\"CLUSTERING\",\"strategyName\":\"AVG\",\"topic\":\"orders\"}");
        ask.broker("assignment: unknown strategy", 400, fields(), "{\"clientId\":\"client@1\",\"consumerGroup\":\"readers\",\"messageModel\":\"CLUSTERING\",\"strategyName\":\"NONE\",\"topic\":\"orders\"}");
        ask.broker("config check: tags", 46, fields(), "{\"clientId\":\"client@1\",\"group\":\"readers\",\"subscriptionData\":{\"expressionType\":\"TAG\",\"subString\":\"*\",\"topic\":\"orders\"}}");
        ask.broker("config check: condition while switched off", 46, fields(), "{\"clientId\":\"client@1\",\"group\":\"readers\",\"subscriptionData\":{\"expressionType\":\"SQL92\",\"subString\":\"a > 1\",\"topic\":\"orders\"}}");
        ask.broker("members: leaves", 35, fields("clientID", "client@1", "producerGroup", "producers", "consumerGroup", "readers"));
        ask.broker("members: after leaving", 38, fields("consumerGroup", "readers"));
        ask.broker("members: nobody leaves", 35, fields("clientID", "nobody", "producerGroup", "none", "consumerGroup", "none"));
    }

    private void sendBacks() throws Exception {
        Map<String, String> back = fields("offset", "0", "group", "readers", "delayLevel", "3", "originMsgId", "x", "originTopic", "orders", "unitMode", "false", "maxReconsumeTimes", "16");
        ask.broker("back: nothing there", 36, with(back, "offset", "999999999"));
        ask.broker("back: a group that nobody made", 36, with(back, "group", "unmade_either"));
        ask.broker("back: no retries wanted", 36, with(back, "delayLevel", "-1"));
        ask.brokerUntil("back: in the dead letter queue", 30, fields("topic", "%DLQ%readers", "queueId", "0"), answer -> "1".equals(answer.getExtFields().get("offset")));
        ask.broker("back: topic of dead letters", 351, fields("topic", "%DLQ%readers"));
        ask.broker("back: pulled", 11, pull("%DLQ%readers", "0", "0", "*"));
    }

    private void transactions() throws Exception {
        ask.broker("half", 310, with(send("orders", "2", properties("TRAN_MSG", "true", "PGROUP", "producers", "UNIQ_KEY", "7F00000100002A9F0000000000000020")), "f", "4"), "half");
        ask.broker("half: end of none", 37, fields("topic", "orders", "producerGroup", "producers", "tranStateTableOffset", "99", "commitLogOffset", "999999999", "commitOrRollback", "8",
            "fromTransactionCheck", "false", "msgId", "x"));
        ask.broker("half: resumed, bad id", 323, fields("topic", "orders", "msgId", "x"));
        ask.broker("half: not seen", 30, fields("topic", "orders", "queueId", "2"));
    }

    private void operators() throws Exception {
        ask.broker("operator: all settings", 26, fields());
        ask.broker("operator: runtime", 28, fields());
        ask.broker("operator: unknown setting", 25, fields(), "noSuchSetting=1\n");
        ask.broker("operator: forbidden setting", 25, fields(), "brokerConfigPath=/tmp/x\n");
        ask.broker("operator: a setting", 25, fields(), "maxTransferCountOnMessageInMemory=33\n");
        ask.broker("operator: figures of none", 315, fields("statsName", "NO_SUCH", "statsKey", "orders"));
        ask.broker("operator: figures of no key", 315, fields("statsName", "TOPIC_PUT_NUMS", "statsKey", "never_there"));
        ask.broker("operator: figures", 315, fields("statsName", "TOPIC_PUT_NUMS", "statsKey", "orders"));
        ask.broker("operator: replicas", 907, fields());
        ask.broker("operator: clean queues", 306, fields());
        ask.broker("operator: clean topics", 316, fields());
        ask.broker("operator: delete old files", 329, fields());
        ask.broker("operator: unknown code", 9999, fields());
        ask.broker("operator: epochs", 1007, fields());
        ask.broker("operator: users", 3005, fields());
        ask.broker("operator: user", 3004, fields("username", "none"));
        ask.broker("operator: rules", 3010, fields());
        ask.broker("operator: cold reads", 2003, fields());
        ask.broker("operator: cold reads, set", 2001, fields(), "readers=1000\n");
        ask.broker("operator: cold reads, removed", 2002, fields(), "readers");
        ask.broker("operator: reading ahead", 2004, fields("READ_AHEAD_MODE", "0"));
        ask.broker("operator: reading ahead, wrong", 2004, fields("READ_AHEAD_MODE", "7"));
        ask.broker("operator: units", 321, fields("topic", "orders", "queueId", "1", "index", "0", "count", "10", "consumerGroup", "readers"));
        ask.broker("operator: units of no topic", 321, fields("topic", "no_such_topic", "queueId", "1", "index", "0", "count", "10"));
        ask.broker("operator: corrected offsets", 308, fields("topic", "orders", "compareGroup", "readers", "filterGroups", ""));
        ask.broker("operator: all groups", 201, fields("groupSeq", "0", "maxGroupNum", "1000"));
        ask.broker("operator: all topics", 21, fields("topicSeq", "0", "maxTopicNum", "1000"));
        ask.broker("operator: modes", 402, fields());
        ask.broker("operator: mode of a retry topic", 401, fields(), "{\"consumerGroup\":\"readers\",\"mode\":\"PULL\",\"popShareQueueNum\":0,\"topic\":\"%RETRY%readers\"}");
        ask.broker("operator: mode", 401, fields(), "{\"consumerGroup\":\"readers\",\"mode\":\"PULL\",\"popShareQueueNum\":0,\"topic\":\"orders\"}");
    }

    /** Each request with one required field less. */
    private void missingFields() throws Exception {
        without(11, pull("orders", "1", "0", "*"), "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion");
        without(310, send("orders", "0", properties("UNIQ_KEY", "7F00000100002A9F0000000000000050")), "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m");
        without(14, fields("consumerGroup", "readers", "topic", "orders", "queueId", "1"), "consumerGroup", "topic", "queueId");
        without(15, fields("consumerGroup", "readers", "topic", "orders", "queueId", "1", "commitOffset", "2"), "consumerGroup", "topic", "queueId", "commitOffset");
        without(29, fields("topic", "orders", "queueId", "1", "timestamp", "1"), "topic", "queueId", "timestamp");
        without(12, fields("topic", "orders", "key", "k1", "maxNum", "32", "beginTimestamp", "0", "endTimestamp", "9"), "topic", "key", "maxNum", "beginTimestamp", "endTimestamp");
        without(17, topic("incomplete", "1", "1", "6"), "topic", "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order");
        for (int code : new int[] {30, 31, 32, 33, 35, 38, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, 307, 314, 315, 343, 345, 351, 352, 353}) {
            ask.broker("missing: all fields of " + code, code, fields());
        }
        for (int code : new int[] {100, 101, 102, 105, 205, 216, 219, 224}) {
            ask.names("missing: all fields of " + code, code, fields());
        }
        ask.broker("wrong: queue is no number", 11, pull("orders", "one", "0", "*"));
        ask.broker("wrong: offset is no number", 11, pull("orders", "1", "9223372036854775808", "*"));
        ask.broker("wrong: flag is no truth value", 314, fields("srcGroup", "a", "destGroup", "b", "topic", "orders", "offline", "perhaps"));
    }

    private void without(int code, Map<String, String> fields, String... required) throws Exception {
        for (String key : required) {
            // The body of a send is sent along: what is missing is the field.
            if (code == 310) {
                ask.broker("missing: " + key + " of " + code, code, without(fields, key), "x");
            } else {
                ask.broker("missing: " + key + " of " + code, code, without(fields, key));
            }
        }
    }
}
