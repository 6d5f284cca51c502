import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import com.alibaba.fastjson2.JSONWriter.Feature;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageVersion;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.remoting.protocol.body.ResetOffsetBody;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigAndMappingSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.header.namesrv.GetRouteInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.namesrv.RegisterBrokerRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.*;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Writes golden bytes with the published classes. Every value is fixed, so that a second run writes the same. */
public class Recorder {
    static Path folder;

    public static void main(String[] args) throws Exception {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, "479");
        folder = Path.of(args[0]);
        Files.createDirectories(folder);
        frames();
        records();
        bodies();
        small();
    }

    static void write(String name, byte[] bytes) throws Exception {
        Files.write(folder.resolve(name), bytes);
    }

    static void frame(String name, int code, CommandCustomHeader header, byte[] body) throws Exception {
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
            put(name, command, type, body);
        }
    }

    static void put(String name, RemotingCommand command, SerializeType type, byte[] body) throws Exception {
        command.setOpaque(7);
        command.setLanguage(LanguageCode.JAVA);
        command.setSerializeTypeCurrentRPC(type);
        command.setBody(body);
        ByteBuffer buffer = command.encode();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        write("frame-" + name + (type == SerializeType.JSON ? "-json.bin" : "-binary.bin"), bytes);
    }

    static void response(String name, int code, String remark, CommandCustomHeader header, byte[] body) throws Exception {
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createResponseCommandWithHeader(code, header);
            command.setRemark(remark);
            put(name, command, type, body);
        }
    }

    static SendMessageRequestHeader send() {
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("PG");
        header.setTopic("T");
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(1);
        header.setSysFlag(0);
        header.setBornTimestamp(1700000000000L);
        header.setFlag(0);
        header.setProperties("KEYS\u0001k 1\u0002TAGS\u0001\u00fc\"\\\ud83d\ude00\u0002");
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(false);
        header.setBrokerName("bk");
        return header;
    }

    static void frames() throws Exception {
        byte[] hello = "hello".getBytes(StandardCharsets.UTF_8);
        frame("send-v1", 10, send(), hello);
        frame("send-v2", 310, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send()), hello);

        PullMessageRequestHeader pull = new PullMessageRequestHeader();
        pull.setConsumerGroup("CG");
        pull.setTopic("T");
        pull.setQueueId(3);
        pull.setQueueOffset(100L);
        pull.setMaxMsgNums(32);
        pull.setSysFlag(6);
        pull.setCommitOffset(90L);
        pull.setSuspendTimeoutMillis(15000L);
        pull.setSubscription("TagA || TagB");
        pull.setSubVersion(1700000000000L);
        pull.setExpressionType("TAG");
        pull.setBrokerName("bk");
        frame("pull", 11, pull, null);

        QueryConsumerOffsetRequestHeader query = new QueryConsumerOffsetRequestHeader();
        query.setConsumerGroup("CG");
        query.setTopic("T");
        query.setQueueId(3);
        query.setSetZeroIfNotFound(false);
        frame("query-offset", 14, query, null);

        UpdateConsumerOffsetRequestHeader update = new UpdateConsumerOffsetRequestHeader();
        update.setConsumerGroup("CG");
        update.setTopic("T");
        update.setQueueId(3);
        update.setCommitOffset(Long.MAX_VALUE);
        frame("update-offset", 15, update, null);

        CreateTopicRequestHeader create = new CreateTopicRequestHeader();
        create.setTopic("T");
        create.setDefaultTopic("TBW102");
        create.setReadQueueNums(8);
        create.setWriteQueueNums(4);
        create.setPerm(6);
        create.setTopicFilterType("SINGLE_TAG");
        create.setTopicSysFlag(0);
        create.setOrder(false);
        create.setAttributes("+message.type=FIFO");
        frame("create-topic", 17, create, null);

        SearchOffsetRequestHeader search = new SearchOffsetRequestHeader();
        search.setTopic("T");
        search.setQueueId(0);
        search.setTimestamp(1700000000000L);
        frame("search-offset", 29, search, null);

        GetMaxOffsetRequestHeader max = new GetMaxOffsetRequestHeader();
        max.setTopic("T");
        max.setQueueId(0);
        frame("max-offset", 30, max, null);

        frame("heartbeat", 34, null, heartbeat().encode());

        UnregisterClientRequestHeader unregister = new UnregisterClientRequestHeader();
        unregister.setClientID("1.1.1.1@1");
        unregister.setConsumerGroup("CG");
        frame("unregister-client", 35, unregister, null);

        ConsumerSendMsgBackRequestHeader back = new ConsumerSendMsgBackRequestHeader();
        back.setOffset(4711L);
        back.setGroup("CG");
        back.setDelayLevel(3);
        back.setOriginMsgId("AA");
        back.setOriginTopic("T");
        back.setMaxReconsumeTimes(16);
        frame("send-back", 36, back, null);

        GetRouteInfoRequestHeader route = new GetRouteInfoRequestHeader();
        route.setTopic("T");
        route.setAcceptStandardJsonOnly(true);
        frame("route", 105, route, null);

        RegisterBrokerRequestHeader register = new RegisterBrokerRequestHeader();
        register.setBrokerName("bk");
        register.setBrokerAddr("10.0.0.1:10911");
        register.setClusterName("C");
        register.setHaServerAddr("10.0.0.1:10912");
        register.setBrokerId(0L);
        register.setCompressed(false);
        register.setBodyCrc32(1234);
        frame("register-broker", 103, register, null);

        SendMessageResponseHeader sent = new SendMessageResponseHeader();
        sent.setMsgId("7F00000100002A9F0000000000000064");
        sent.setQueueId(1);
        sent.setQueueOffset(5L);
        sent.setTransactionId("tx");
        response("send-reply", 0, null, sent, null);

        PullMessageResponseHeader pulled = new PullMessageResponseHeader();
        pulled.setSuggestWhichBrokerId(0L);
        pulled.setNextBeginOffset(132L);
        pulled.setMinOffset(0L);
        pulled.setMaxOffset(200L);
        pulled.setTopicSysFlag(0);
        pulled.setGroupSysFlag(0);
        response("pull-reply", 19, "no new message", pulled, null);
        response("refusal", 17, "topic[\u00fc] not exist", null, null);
    }

    static MessageExtBrokerInner message(String topic, MessageVersion version, String born, String store) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setVersion(version);
        message.setBody("hello \u00fc".getBytes(StandardCharsets.UTF_8));
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        message.setQueueId(3);
        message.setFlag(42);
        message.setBornTimestamp(1700000000000L);
        message.setReconsumeTimes(2);
        message.setPreparedTransactionOffset(77);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(born), 5555));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName(store), 10911));
        message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG);
        if (born.contains(":")) {
            message.setBornHostV6Flag();
        }
        if (store.contains(":")) {
            message.setStoreHostAddressV6Flag();
        }
        message.setPropertiesString("KEYS\u0001k\u0002TAGS\u0001TagA\u0002");
        return message;
    }

    static void record(String name, MessageExtBrokerInner message) throws Exception {
        MessageExtEncoder encoder = new MessageExtEncoder(4 << 20, new MessageStoreConfig());
        if (encoder.encode(message) != null) {
            throw new IllegalStateException(name);
        }
        ByteBuffer buffer = encoder.getEncoderBuffer();
        byte[] bytes = new byte[buffer.getInt(0)];
        buffer.get(bytes);
        write("record-" + name + ".bin", bytes);
    }

    static void records() throws Exception {
        record("v1", message("TopicTest", MessageVersion.MESSAGE_VERSION_V1, "10.0.0.9", "127.0.0.1"));
        record("v2", message("%RETRY%" + "g".repeat(130), MessageVersion.MESSAGE_VERSION_V2, "10.0.0.9", "127.0.0.1"));
        record("born-v6", message("TopicTest", MessageVersion.MESSAGE_VERSION_V1, "2001:db8::1", "127.0.0.1"));
        record("both-v6", message("TopicTest", MessageVersion.MESSAGE_VERSION_V1, "2001:db8::1", "2001:db8::2"));

        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("T", ("body " + i).getBytes(StandardCharsets.UTF_8));
            message.setFlag(i);
            message.getProperties().clear();
            message.setTags("Tag" + i);
            batch.add(message);
        }
        write("batch.bin", MessageDecoder.encodeMessages(batch));
    }

    static HeartbeatData heartbeat() {
        SubscriptionData subscription = new SubscriptionData();
        subscription.setTopic("T");
        subscription.setSubString("TagA || TagB");
        subscription.setSubVersion(1);
        subscription.setTagsSet(new TreeSet<>(Set.of("TagA", "TagB")));
        subscription.setCodeSet(new TreeSet<>(Set.of("TagA".hashCode(), "TagB".hashCode())));
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("CG");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.getSubscriptionDataSet().add(subscription);
        ProducerData producer = new ProducerData();
        producer.setGroupName("PG");
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("1.1.1.1@1");
        heartbeat.getConsumerDataSet().add(consumer);
        heartbeat.getProducerDataSet().add(producer);
        return heartbeat;
    }

    static DataVersion version() {
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        version.setCounter(new java.util.concurrent.atomic.AtomicLong(9));
        version.setStateVersion(3);
        return version;
    }

    static void bodies() throws Exception {
        write("body-heartbeat.json", heartbeat().encode());

        HashMap<Long, String> addrs = new HashMap<>();
        addrs.put(0L, "10.0.0.1:10911");
        addrs.put(1L, "10.0.0.2:10911");
        BrokerData broker = new BrokerData("C", "bk", addrs);
        QueueData queues = new QueueData();
        queues.setBrokerName("bk");
        queues.setReadQueueNums(4);
        queues.setWriteQueueNums(4);
        queues.setPerm(6);
        TopicRouteData route = new TopicRouteData();
        route.setBrokerDatas(List.of(broker));
        route.setQueueDatas(List.of(queues));
        route.setFilterServerTable(new HashMap<>());
        write("body-route.json", route.encode());
        write("body-route-standard.json", route.encode(Feature.BrowserCompatible, Feature.MapSortField));

        ClusterInfo cluster = new ClusterInfo();
        cluster.setBrokerAddrTable(new HashMap<>(Map.of("bk", broker)));
        cluster.setClusterAddrTable(new HashMap<>(Map.of("C", Set.of("bk"))));
        write("body-cluster.json", cluster.encode());

        MessageQueue queue = new MessageQueue("T", "bk", 0);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setClientId("c");
        lock.setConsumerGroup("CG");
        lock.getMqSet().add(queue);
        write("body-lock.json", lock.encode());

        ResetOffsetBody reset = new ResetOffsetBody();
        reset.setOffsetTable(new HashMap<>(Map.of(queue, 9L)));
        write("body-reset.json", reset.encode());

        TopicOffset offset = new TopicOffset();
        offset.setMaxOffset(3);
        offset.setLastUpdateTimestamp(1700000000000L);
        TopicStatsTable topicStats = new TopicStatsTable();
        topicStats.getOffsetTable().put(queue, offset);
        write("body-topic-stats.json", topicStats.encode());

        OffsetWrapper wrapper = new OffsetWrapper();
        wrapper.setBrokerOffset(10);
        wrapper.setConsumerOffset(4);
        ConsumeStats consumeStats = new ConsumeStats();
        consumeStats.getOffsetTable().put(queue, wrapper);
        consumeStats.setConsumeTps(1.5);
        write("body-consume-stats.json", consumeStats.encode());

        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("G");
        write("body-group.json", RemotingSerializable.encode(group));

        TopicConfig topic = new TopicConfig("T", 8, 4, 6);
        topic.setAttributes(new HashMap<>(Map.of("message.type", "FIFO")));
        write("body-topic.json", RemotingSerializable.encode(topic));

        TopicConfigAndMappingSerializeWrapper wrapperBody = new TopicConfigAndMappingSerializeWrapper();
        wrapperBody.setDataVersion(version());
        wrapperBody.setMappingDataVersion(version());
        wrapperBody.getTopicConfigTable().put("T", topic);
        wrapperBody.getTopicConfigTable().put("U", new TopicConfig("U", 4, 4, 6));
        RegisterBrokerBody register = new RegisterBrokerBody();
        register.setTopicConfigSerializeWrapper(wrapperBody);
        register.setFilterServerList(new ArrayList<>());
        write("body-register.json", register.encode(false));
        write("body-register-compressed.bin", register.encode(true));
    }

    static void small() throws Exception {
        StringBuilder hashes = new StringBuilder();
        for (String tag : List.of("TagA", "TagB", "*", "order-4711", "\u00fc\u4e2d\u6587", "\ud83d\ude00", "a".repeat(300))) {
            hashes.append(tag).append('\t').append((long) tag.hashCode()).append('\n');
        }
        write("tag-hashes.txt", hashes.toString().getBytes(StandardCharsets.UTF_8));

        StringBuilder ids = new StringBuilder();
        for (String host : List.of("127.0.0.1", "10.20.30.40", "2001:db8::1")) {
            InetSocketAddress address = new InetSocketAddress(InetAddress.getByName(host), 10911);
            ids.append(host).append('\t').append(MessageDecoder.createMessageId(address, 123456789012L)).append('\n');
        }
        write("message-ids.txt", ids.toString().getBytes(StandardCharsets.UTF_8));

        byte[] body = "the same words again and again ".repeat(40).getBytes(StandardCharsets.UTF_8);
        write("compressed-plain.txt", body);
        for (CompressionType type : CompressionType.values()) {
            byte[] compressed = CompressorFactory.getCompressor(type).compress(body, 5);
            write("compressed-" + type.name().toLowerCase() + ".bin", compressed);
        }
    }
}
