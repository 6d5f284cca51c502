package gantry;

import java.nio.file.Files;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

/** What the test of the published mqadmin types. */
final class MqAdminCommands {
    private MqAdminCommands() {}

    /** End by a signal only. */
    static final Set<String> ENDLESS = Set.of("startMonitoring", "clusterRT");
    /** Read files of their own machine; no broker is asked. */
    static final Set<String> LOCAL = Set.of("exportMetadataInRocksDB", "rocksDBConfigToJson", "dumpCompactionLog");

    /** What operators ask about a slave, {@code BROKER}, and the set that it is in. */
    static void ofSlave(MqAdmin tool) {
        for (String command : List.of("clusterList", "clusterList -m", "topicRoute -t orders", "topicClusterList -t orders", "topicStatus -t orders",
            "consumerProgress", "consumerProgress -g readers", "brokerStatus -b BROKER", "brokerStatus -c DefaultCluster", "getBrokerConfig -b BROKER",
            "getBrokerConfig -c DefaultCluster", "haStatus -b BROKER", "haStatus -c DefaultCluster", "updateTopic -b BROKER -t never")) {
            tool.run(command);
        }
    }

    /**
     * What operators ask a controller that knows the set {@code alpha}: of its replicas 1 is the master, 2 is in sync with it, and 3 is dead.
     */
    static void ofController(MqAdmin tool) {
        tool.run("getControllerMetaData -a CONTROLLER");
        tool.run("getSyncStateSet -a CONTROLLER -b alpha");
        tool.run("getControllerConfig -a CONTROLLER");
        tool.run("updateControllerConfig -a CONTROLLER -k enableElectUncleanMaster -v false");
        tool.run("updateControllerConfig -a CONTROLLER -k configStorePath -v elsewhere");
        tool.run("electMaster -a CONTROLLER -c DefaultCluster -bn alpha -b 3");
        tool.run("electMaster -a CONTROLLER -c DefaultCluster -bn alpha -b 2");
        tool.run("cleanBrokerMetadata -a CONTROLLER -bn alpha");
        tool.run("cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster");
        tool.run("cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster -b 2");
        tool.run("cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster -b 3");
        tool.run("getSyncStateSet -a CONTROLLER -b alpha -c DefaultCluster");
        tool.run("cleanBrokerMetadata -a CONTROLLER -bn alpha -l");
    }

    static void all(MqAdmin tool) throws Exception {
        // Topics.
        tool.run("updateTopic -b BROKER -t orders -r 4 -w 4");
        tool.run("updateTopic -c DefaultCluster -t spread -r 2 -w 2 -o true");
        tool.run("updateTopic -b BROKER -t typed -a +message.type=FIFO");
        tool.run("updateTopic -b BROKER -t 'bad name'");
        Files.writeString(tool.root.resolve("topics.json"),
            "[{\"topicName\":\"listed_a\",\"readQueueNums\":2,\"writeQueueNums\":2,\"perm\":6},{\"topicName\":\"listed_b\",\"readQueueNums\":1,\"writeQueueNums\":1,\"perm\":6}]");
        tool.run("updateTopicList -b BROKER -f ROOT/topics.json");
        tool.run("updateTopicPerm -b BROKER -t typed -p 4");
        tool.run("updateTopicPerm -b BROKER -t no_such_topic -p 4");
        Await.until("routes", () -> Wire.call(tool.namesrvPort, 105, Map.of("topic", "listed_b")).getCode() == 0
            && Wire.call(tool.namesrvPort, 105, Map.of("topic", "orders")).getCode() == 0);
        tool.run("topicRoute -t orders");
        tool.run("topicRoute -t orders -l");
        tool.run("topicRoute -t no_such_topic");
        tool.run("topicClusterList -t orders");
        tool.run("topicList");
        tool.run("topicList -c");
        tool.run("updateOrderConf -t spread -m put -v broker-a:4");
        tool.run("updateOrderConf -t spread -m get");
        tool.run("updateOrderConf -t spread -m delete");
        tool.run("allocateMQ -t orders -i 10.0.0.1,10.0.0.2");
        // Groups.
        tool.run("updateSubGroup -b BROKER -g readers -r 3");
        tool.run("updateSubGroup -c DefaultCluster -g others");
        Files.writeString(tool.root.resolve("groups.json"), "[{\"groupName\":\"listed_1\"},{\"groupName\":\"listed_2\"}]");
        tool.run("updateSubGroupList -b BROKER -f ROOT/groups.json");
        tool.run("getConsumerConfig -g readers");
        tool.run("getConsumerConfig -g none_of_this_name");
        tool.run("deleteSubGroup -b BROKER -g listed_2");
        tool.run("setConsumeMode -b BROKER -t orders -g readers -m PULL");
        // Messages.
        String sent = tool.run("sendMessage -t orders -p 'hello you' -k key1 -c red -b broker-a -i 1");
        String second = tool.run("sendMessage -t orders -p second -k key2 -c blue -b broker-a -i 1");
        tool.run("sendMessage -t no_such_topic_either -p x");
        String id = uniqueId(sent);
        Await.until("key2 is indexed", Duration.ofSeconds(30), () -> Wire.call(tool.brokerPort, 12, Map.of("topic", "orders", "key", "key2", "maxNum", "32",
            "beginTimestamp", "0", "endTimestamp", "9999999999999")).getCode() == 0, () -> second);
        tool.run("topicStatus -t orders");
        tool.run("queryMsgByOffset -t orders -b broker-a -i 1 -o 0");
        tool.run("queryMsgByOffset -t orders -b broker-a -i 1 -o 77");
        tool.run("queryMsgByKey -t orders -k key1");
        tool.run("queryMsgByKey -t orders -k no_such_key");
        tool.run("queryMsgByUniqueKey -t orders -i " + id);
        tool.run("queryMsgById -t orders -i " + firstId(tool));
        tool.run("queryMsgTraceById -i " + id);
        tool.run("printMsg -t orders -d true");
        tool.run("printMsgByQueue -t orders -a broker-a -i 1 -p true -d true");
        tool.run("consumeMessage -t orders -b broker-a -i 1 -o 0 -c 2");
        tool.run("queryCq -t orders -q 1 -i 0 -c 10 -b BROKER");
        tool.run("queryCq -t no_such_topic -q 1 -i 0 -c 10 -b BROKER");
        tool.run("checkMsgSendRT -t orders -a 3 -s 10");
        tool.run("sendMsgStatus -b broker-a -s 10 -c 2");
        // Progress.
        tool.run("resetOffsetByTime -g readers -t orders -s 0 -f true");
        tool.run("resetOffsetByTime -g readers -t orders -s 0 -o 0 -b BROKER -q 1");
        tool.run("consumerProgress");
        tool.run("consumerProgress -g readers");
        tool.run("consumerProgress -g nobody");
        tool.run("cloneGroupOffset -s readers -d copies -t orders -o true");
        tool.run("skipAccumulatedMessage -g readers -t orders -f true");
        tool.run("consumerConnection -g readers");
        tool.run("consumerStatus -g readers");
        tool.run("producerConnection -g nobody -t orders");
        tool.run("producer -b BROKER");
        tool.run("brokerConsumeStats -b BROKER -t 50000 -l 1 -o false");
        tool.run("statsAll");
        tool.run("statsAll -t orders");
        // Brokers and name servers.
        tool.run("clusterList");
        tool.run("clusterList -m");
        tool.run("brokerStatus -b BROKER");
        tool.run("getBrokerConfig -b BROKER");
        tool.run("updateBrokerConfig -b BROKER -k maxTransferCountOnMessageInMemory -v 33");
        tool.run("updateBrokerConfig -b BROKER -k brokerConfigPath -v x");
        tool.run("cleanExpiredCQ -b BROKER");
        tool.run("cleanUnusedTopic -b BROKER");
        tool.run("deleteExpiredCommitLog -b BROKER");
        tool.run("resetMasterFlushOffset -b BROKER -o 0");
        tool.run("haStatus -b BROKER");
        tool.run("switchTimerEngine -b BROKER -e F");
        tool.run("getColdDataFlowCtrInfo -b BROKER");
        tool.run("updateColdDataFlowCtrGroupConfig -b BROKER -g readers -v 1024");
        tool.run("removeColdDataFlowCtrGroupConfig -b BROKER -g readers");
        tool.run("setCommitLogReadAheadMode -b BROKER -m 0");
        tool.run("updateKvConfig -s space -k a -v 1");
        tool.run("deleteKvConfig -s space -k a");
        tool.run("getNamesrvConfig");
        tool.run("updateNamesrvConfig -k needWaitForService -v false");
        tool.run("wipeWritePerm -b broker-a");
        tool.run("addWritePerm -b broker-a");
        tool.run("exportMetadata -c DefaultCluster -f ROOT");
        tool.run("exportConfigs -c DefaultCluster -f ROOT");
        tool.run("exportMetrics -c DefaultCluster -f ROOT");
        tool.run("exportPopRecord -b BROKER");
        tool.run("checkRocksdbCqWriteProgress -c DefaultCluster -t orders");
        // What is switched off here: controllers, containers, access control, lite topics.
        tool.run("getSyncStateSet -a BROKER -b broker-a");
        tool.run("getBrokerEpoch -b broker-a");
        tool.run("getControllerMetaData -a BROKER");
        tool.run("getControllerConfig -a BROKER");
        tool.run("updateControllerConfig -a BROKER -k x -v y");
        tool.run("electMaster -a BROKER -b 0 -bn broker-a -c DefaultCluster");
        tool.run("cleanBrokerMetadata -a BROKER -bn broker-a -c DefaultCluster -b 0");
        tool.run("addBroker -c BROKER -b ROOT/broker.conf");
        tool.run("removeBroker -c BROKER -b DefaultCluster:broker-a:0");
        tool.run("createUser -b BROKER -u someone -p secret -t Normal");
        tool.run("updateUser -b BROKER -u someone -p secret2");
        tool.run("getUser -b BROKER -u someone");
        tool.run("listUser -b BROKER");
        tool.run("copyUser -f BROKER -t BROKER -u someone");
        tool.run("deleteUser -b BROKER -u someone");
        tool.run("createAcl -b BROKER -s User:someone -r Topic:orders -a Pub -d Allow");
        tool.run("updateAcl -b BROKER -s User:someone -r Topic:orders -a Sub -d Allow");
        tool.run("getAcl -b BROKER -s User:someone");
        tool.run("listAcl -b BROKER");
        tool.run("copyAcl -f BROKER -t BROKER -s User:someone");
        tool.run("deleteAcl -b BROKER -s User:someone");
        tool.run("getBrokerLiteInfo -b BROKER");
        tool.run("getParentTopicInfo -p orders");
        tool.run("getLiteTopicInfo -p orders -l lite");
        tool.run("getLiteClientInfo -p orders -g readers -c someone");
        tool.run("getLiteGroupInfo -p orders -g readers");
        tool.run("triggerLiteDispatch -p orders -g readers");
        // Static topics, and the end.
        tool.run("updateStaticTopic -t fixed -qn 4 -c DefaultCluster");
        tool.run("remappingStaticTopic -t fixed -c DefaultCluster");
        tool.run("deleteTopic -c DefaultCluster -t spread");
        tool.run("deleteTopic -c DefaultCluster -t never_there");
    }

    /** The unique id of the message that {@code sendMessage} has printed. */
    private static String uniqueId(String printed) {
        var found = Pattern.compile("\\b[0-9A-F]{32,56}\\b").matcher(printed);
        if (!found.find()) {
            throw new AssertionError(printed);
        }
        return found.group();
    }

    /** Of the log's first record. */
    private static String firstId(MqAdmin tool) {
        return String.format("7F000001%08X%016X", tool.brokerPort, 0);
    }
}
