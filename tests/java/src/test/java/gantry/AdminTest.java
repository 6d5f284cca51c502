package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What operators ask with Apache's own tools library. */
@Tag("clients")
class AdminTest {
    private final Stock stock = new Stock();

    @AfterEach
    void close() {
        stock.close();
    }

    @Test
    void the_cluster_and_its_broker_are_described() throws Exception {
        var admin = stock.admin();
        var cluster = admin.examineBrokerClusterInfo();
        assertEquals(java.util.Set.of(Server.BROKER_NAME), cluster.getClusterAddrTable().get(Server.CLUSTER));
        var broker = cluster.getBrokerAddrTable().get(Server.BROKER_NAME);
        assertEquals(stock.server.broker(), broker.getBrokerAddrs().get(0L));
        assertEquals(stock.server.broker(), broker.selectBrokerAddr());
        var runtime = admin.fetchBrokerRuntimeStats(stock.server.broker()).getTable();
        assertTrue(runtime.containsKey("bootTimestamp") && runtime.containsKey("commitLogMaxOffset"), runtime.toString());
        var settings = admin.getBrokerConfig(stock.server.broker());
        assertEquals(Server.BROKER_NAME, settings.getProperty("brokerName"));
        assertEquals(Server.DELAY_LEVELS, settings.getProperty("messageDelayLevel"));
    }

    @Test
    void a_topic_is_created_changed_routed_listed_and_deleted() throws Exception {
        var admin = stock.admin();
        String topic = Stock.name("managed");
        var config = new TopicConfig(topic);
        config.setReadQueueNums(3);
        config.setWriteQueueNums(3);
        admin.createAndUpdateTopicConfig(stock.server.broker(), config);
        Await.until("the route is there", () -> admin.examineTopicRouteInfo(topic) != null);
        var queues = admin.examineTopicRouteInfo(topic).getQueueDatas();
        assertEquals(1, queues.size());
        assertEquals(3, queues.get(0).getReadQueueNums());
        assertEquals(3, queues.get(0).getWriteQueueNums());
        assertEquals(6, queues.get(0).getPerm());
        assertEquals(Server.BROKER_NAME, queues.get(0).getBrokerName());

        config.setReadQueueNums(5);
        config.setWriteQueueNums(4);
        config.setPerm(4);
        admin.createAndUpdateTopicConfig(stock.server.broker(), config);
        Await.until("the route has changed", () -> {
            var changed = admin.examineTopicRouteInfo(topic).getQueueDatas().get(0);
            return changed.getReadQueueNums() == 5 && changed.getWriteQueueNums() == 4 && changed.getPerm() == 4;
        });
        assertTrue(admin.fetchAllTopicList().getTopicList().contains(topic));
        var held = admin.getAllTopicConfig(stock.server.broker(), 10_000).getTopicConfigTable();
        assertEquals(5, held.get(topic).getReadQueueNums());
        assertTrue(held.containsKey("TBW102"));

        admin.deleteTopicInBroker(java.util.Set.of(stock.server.broker()), topic);
        assertEquals(0, Wire.call(stock.server.namesrvPort, 216, Map.of("topic", topic)).getCode());
        var absent = assertThrows(MQClientException.class, () -> admin.examineTopicRouteInfo(topic));
        assertEquals(17, absent.getResponseCode());
    }

    @Test
    void the_message_type_of_a_topic_is_kept() throws Exception {
        String topic = Stock.name("typed");
        var created = Wire.call(stock.server.brokerPort, 17, Map.of("topic", topic, "defaultTopic", "TBW102", "readQueueNums", "2",
            "writeQueueNums", "2", "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false",
            "attributes", "+message.type=FIFO"));
        assertEquals(0, created.getCode(), created::toString);
        var config = Wire.call(stock.server.brokerPort, 351, Map.of("topic", topic));
        assertEquals(0, config.getCode(), config::toString);
        String body = new String(config.getBody(), UTF_8);
        assertTrue(body.contains("\"message.type\":\"FIFO\""), body);
        assertTrue(body.contains("\"writeQueueNums\":2"), body);
    }

    @Test
    void topic_and_consume_stats_count_what_was_sent_and_consumed() throws Exception {
        var admin = stock.admin();
        String topic = stock.topic(2);
        String group = Stock.name("counted");
        var producer = stock.producer();
        for (int i = 0; i < 30; i++) {
            producer.send(new Message(topic, "x".getBytes(UTF_8)), Stock.queue(topic, i % 3 == 0 ? 0 : 1));
        }
        var stats = admin.examineTopicStats(topic).getOffsetTable();
        assertEquals(2, stats.size());
        assertEquals(10, stats.get(Stock.queue(topic, 0)).getMaxOffset());
        assertEquals(20, stats.get(Stock.queue(topic, 1)).getMaxOffset());
        assertEquals(0, stats.get(Stock.queue(topic, 0)).getMinOffset());
        assertTrue(Math.abs(System.currentTimeMillis() - stats.get(Stock.queue(topic, 0)).getLastUpdateTimestamp()) < 60_000);

        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(30);
        var connection = admin.examineConsumerConnectionInfo(group);
        assertEquals(1, connection.getConnectionSet().size());
        assertTrue(connection.getSubscriptionTable().containsKey(topic));
        consumer.shutdown();
        var consumed = admin.examineConsumeStats(group, topic);
        assertEquals(0, consumed.computeTotalDiff());
        assertEquals(10, consumed.getOffsetTable().get(Stock.queue(topic, 0)).getConsumerOffset());
        assertEquals(20, consumed.getOffsetTable().get(Stock.queue(topic, 1)).getBrokerOffset());
        producer.send(new Message(topic, "one behind".getBytes(UTF_8)));
        assertEquals(1, admin.examineConsumeStats(group, topic).computeTotalDiff());
    }

    @Test
    void a_group_is_created_kept_and_deleted() throws Exception {
        var admin = stock.admin();
        String group = Stock.name("managed");
        // The class of a group's settings moved between 4.x and 5.x; as a body it did not change.
        var created = Wire.call(stock.server.brokerPort, 200, Map.of(),
            ("{\"groupName\":\"" + group + "\",\"retryMaxTimes\":5,\"retryQueueNums\":2,\"consumeEnable\":true}").getBytes(UTF_8));
        assertEquals(0, created.getCode(), created::toString);
        var config = admin.examineSubscriptionGroupConfig(stock.server.broker(), group);
        assertEquals(5, config.getRetryMaxTimes());
        assertEquals(2, config.getRetryQueueNums());
        config.setRetryMaxTimes(7);
        admin.createAndUpdateSubscriptionGroupConfig(stock.server.broker(), config);
        assertEquals(7, admin.examineSubscriptionGroupConfig(stock.server.broker(), group).getRetryMaxTimes());
        assertTrue(admin.getAllSubscriptionGroup(stock.server.broker(), 10_000).getSubscriptionGroupTable().containsKey(group));
        admin.deleteSubscriptionGroup(stock.server.broker(), group, true);
        // A broker that makes groups by itself may have made it anew since, but with the settings of a new one.
        var fresh = Wire.call(stock.server.brokerPort, 352, Map.of("group", group));
        assertTrue(fresh.getBody() == null || !new String(fresh.getBody(), UTF_8).contains("\"retryMaxTimes\":7"), fresh::toString);
    }

    @Test
    void an_offset_reset_by_time_makes_a_running_consumer_read_again() throws Exception {
        var admin = stock.admin();
        String topic = stock.topic(2);
        String group = Stock.name("reset");
        var producer = stock.producer();
        for (int i = 0; i < 40; i++) {
            producer.send(new Message(topic, String.valueOf(i).getBytes(UTF_8)), Stock.queue(topic, i % 2));
        }
        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(40);
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Await.until("the commit is known", () -> admin.examineConsumeStats(group, topic).computeTotalDiff() == 0);
        admin.resetOffsetByTimestamp(topic, group, 0, true);
        inbox.await(80);
        assertEquals(40, inbox.distinct().size());
    }

    @Test
    void a_producer_of_an_unknown_group_is_not_found() throws Exception {
        var admin = stock.admin();
        assertThrows(MQBrokerException.class, () -> admin.examineProducerConnectionInfo("nobody_here", stock.topic(1)));
    }

    @Test
    void key_values_are_put_read_and_deleted_at_the_name_server() throws Exception {
        var admin = stock.admin();
        String key = Stock.name("key");
        admin.createAndUpdateKvConfig("TEST_SPACE", key, "värde");
        assertEquals("värde", admin.getKVConfig("TEST_SPACE", key));
        assertEquals("värde", admin.getKVListByNamespace("TEST_SPACE").getTable().get(key));
        admin.deleteKvConfig("TEST_SPACE", key);
        assertThrows(MQClientException.class, () -> admin.getKVConfig("TEST_SPACE", key));
    }

    @Test
    void units_of_a_consume_queue_are_shown_with_the_subscription_of_a_connected_group() throws Exception {
        var admin = stock.admin();
        String topic = stock.topic(1);
        var producer = stock.producer();
        producer.send(new Message(topic, "TagA", "a".getBytes(UTF_8)), Stock.queue(topic, 0));
        producer.send(new Message(topic, "b".getBytes(UTF_8)), Stock.queue(topic, 0));
        // Apache's broker makes its units in a thread of its own.
        Await.until("both units are there", () -> stock.maxOffset(topic, 0) == 2);
        var whole = admin.queryConsumeQueue(stock.server.broker(), topic, 0, 0, 10, "nobody");
        assertEquals(0, whole.getMinQueueIndex());
        assertEquals(2, whole.getMaxQueueIndex());
        assertEquals("nobody@" + topic + " is not online!", whole.getFilterData());
        assertEquals(2, whole.getQueueData().size());
        var first = whole.getQueueData().get(0);
        var second = whole.getQueueData().get(1);
        assertEquals("TagA".hashCode(), first.getTagsCode());
        assertEquals(first.getPhysicOffset() + first.getPhysicSize() <= second.getPhysicOffset(), true);
        var one = admin.queryConsumeQueue(stock.server.broker(), topic, 0, 1, 1, "nobody").getQueueData();
        assertEquals(1, one.size());
        assertEquals(second.getPhysicOffset(), one.get(0).getPhysicOffset());

        String group = Stock.name("units");
        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "TagA || TagB");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        inbox.await(1);
        var seen = admin.queryConsumeQueue(stock.server.broker(), topic, 0, 0, 1, group);
        assertEquals("TagA || TagB", seen.getSubscriptionData().getSubString());
        assertEquals("null", seen.getFilterData());
    }

    @Test
    void a_message_is_given_to_a_member_that_is_named() throws Exception {
        var admin = stock.admin();
        String topic = stock.topic(1);
        String group = Stock.name("directly");
        var inbox = new Inbox();
        var consumer = stock.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.listener());
        consumer.start();
        var sent = stock.producer().send(new Message(topic, "again".getBytes(UTF_8)));
        inbox.await(1);
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        var result = admin.consumeMessageDirectly(group, client, topic, sent.getOffsetMsgId());
        assertEquals("CR_SUCCESS", result.getConsumeResult().name());
        inbox.await(2);
        assertEquals(1, inbox.distinct().size());
    }
}
