package gantry;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A controller, and what is under it: real Apache 5.5.0 brokers, the published mqadmin, and brokers of this test's own making. */
@Tag("interop")
class ControllerTest {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int QUEUES = 4;

    /** Alone, or in a name server. */
    private static Server controller(boolean inNameServer) {
        var controller = new Server("controller").withController();
        controller.runsNameServer = inNameServer;
        controller.runsBroker = false;
        return controller;
    }

    /** A member of the set, by Apache's rule that loses nothing: all of the set have what is acknowledged. */
    private static Server broker(Server names, Server controller) {
        var broker = new Server("broker").with("enableControllerMode", "true").with("controllerAddr", controller.controller())
            .with("allAckInSyncStateSet", "true").with("mappedFileSizeCommitLog", String.valueOf(8 << 20));
        broker.runsNameServer = false;
        broker.registersAt = names.namesrvPort;
        return broker;
    }

    private static String master(Server controller) throws Exception {
        var fields = Wire.call(controller.controllerPort, 1004, Map.of("brokerName", Server.BROKER_NAME)).getExtFields();
        return fields == null ? null : fields.get("masterAddress");
    }

    private static TreeMap<String, String> replicas(Server controller, String name) throws Exception {
        var answer = Wire.call(controller.controllerPort, 1006, Map.of(), ("[\"" + name + "\"]").getBytes(UTF_8));
        return new TreeMap<>(LooseJson.leaves(new String(answer.getBody(), UTF_8)));
    }

    private static void awaitBothInSync(Server controller, Server... brokers) {
        Await.until("both are in sync", PATIENCE, () -> {
            var answer = Wire.call(controller.controllerPort, 1004, Map.of("brokerName", Server.BROKER_NAME));
            return new String(answer.getBody(), UTF_8).contains("[1,2]");
        }, () -> brokers[0].output() + brokers[1].output());
    }

    /** Sends that go on through everything, and which of them were acknowledged. */
    private static final class Load {
        final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        final ConcurrentLinkedQueue<String> others = new ConcurrentLinkedQueue<>();
        private final AtomicBoolean stops = new AtomicBoolean();
        private final Thread thread;

        Load(Stock stock, String topic) throws Exception {
            var producer = stock.unstartedProducer();
            // As an application sets it that does not want to wait for half a minute after a failover.
            producer.setPollNameServerInterval(500);
            producer.setSendMsgTimeout(1_000);
            producer.start();
            thread = new Thread(() -> {
                for (int number = 0; !stops.get(); number++) {
                    String body = String.valueOf(number);
                    try {
                        var sent = producer.send(new Message(topic, body.getBytes(UTF_8)), Stock.queue(topic, number % QUEUES));
                        if (sent.getSendStatus() == SendStatus.SEND_OK) {
                            acknowledged.add(body);
                        } else {
                            others.add(sent.getSendStatus().toString());
                        }
                    } catch (Exception e) {
                        others.add(e.toString());
                    }
                }
            });
            thread.start();
        }

        void goesOn(Server... brokers) {
            int before = acknowledged.size();
            Await.until("100 more are acknowledged", PATIENCE, () -> acknowledged.size() >= before + 100,
                () -> others.stream().distinct().toList() + brokers[0].output() + brokers[1].output());
        }

        void end() throws Exception {
            stops.set(true);
            thread.join();
        }
    }

    private static void nothingIsLost(Stock stock, String topic, Load load) throws Exception {
        var found = new HashSet<String>();
        for (int queue = 0; queue < QUEUES; queue++) {
            stock.read(topic, queue).forEach(message -> found.add(new String(message.getBody(), UTF_8)));
        }
        var lost = new HashSet<>(load.acknowledged);
        lost.removeAll(found);
        assertEquals(Set.of(), lost, "acknowledged and lost");
    }

    /** Kills the master; says when the next message was acknowledged, which is by the other one. */
    private static Duration kill(Server master, Server other, Server controller, Load load) {
        long begins = System.nanoTime();
        master.kill();
        int before = load.acknowledged.size();
        Await.until("the other is master", PATIENCE, () -> other.broker().equals(master(controller)), other::output);
        var elected = Duration.ofNanos(System.nanoTime() - begins);
        Await.until("it acknowledges", PATIENCE, () -> load.acknowledged.size() > before, other::output);
        var acknowledged = Duration.ofNanos(System.nanoTime() - begins);
        System.out.println("kill -9 of the master: another one after " + elected.toMillis() + " ms, and a message acknowledged after "
            + acknowledged.toMillis() + " ms");
        return acknowledged;
    }

    @Test
    void of_two_brokers_of_apache_one_goes_on_when_the_other_is_killed_and_nothing_is_lost() throws Exception {
        try (var names = Copies.names(Server.DEFAULT); var controller = controller(false).start(); var first = broker(names, controller);
            var second = broker(names, controller)) {
            first.start(Server.Kind.APACHE_5);
            second.start(Server.Kind.APACHE_5);
            awaitBothInSync(controller, first, second);
            assertEquals(first.broker(), master(controller));
            try (var stock = new Stock(first)) {
                String topic = stock.topic(QUEUES);
                Await.until("the slave knows the topic", PATIENCE, () -> new String(Wire.call(second.brokerPort, 21, Map.of()).getBody(), UTF_8).contains(topic),
                    second::output);
                var load = new Load(stock, topic);
                load.goesOn(first, second);
                var once = kill(first, second, controller, load);
                load.goesOn(first, second);

                first.start(Server.Kind.APACHE_5);
                awaitBothInSync(controller, first, second);
                assertEquals(second.broker(), master(controller));
                load.goesOn(first, second);

                if (Server.DEFAULT == Server.Kind.GANTRY) {
                    // That of Apache may depose a master whose first heartbeat comes after the other's: by chance it would go on otherwise.
                    controller.kill();
                    load.goesOn(first, second);
                    controller.start();
                    Await.until("both live", PATIENCE, () -> replicas(controller, Server.BROKER_NAME).values().stream().filter("true"::equals).count() == 2,
                        () -> first.output() + second.output());
                    awaitBothInSync(controller, first, second);
                    assertEquals(second.broker(), master(controller));
                }
                var twice = kill(second, first, controller, load);
                load.goesOn(first, second);
                load.end();
                String epochs = Copies.mqadmin(first, "getBrokerEpoch", "-n", "127.0.0.1:" + names.namesrvPort, "-b", Server.BROKER_NAME);
                assertTrue(epochs.contains("#brokerAddr\t" + first.broker()), epochs);
                assertEquals(List.of(1, 2, 3), epochs.lines().filter(line -> line.startsWith("#Epoch:"))
                    .map(line -> Integer.parseInt(line.replaceAll(".*epoch=(\\d+),.*", "$1"))).toList(), epochs);
                nothingIsLost(stock, topic, load);
                if (Server.DEFAULT == Server.Kind.GANTRY) {
                    HaRow.ran("M4", "two brokers of Apache 5.5.0, our controller", load.acknowledged.size(), "RTO", once.compareTo(twice) > 0 ? once : twice);
                }
            }
        }
    }

    private static FakeBroker join(Server controller, String name, long id) throws Exception {
        var broker = new FakeBroker(controller, name, id);
        call(controller, 1013, Map.of("clusterName", Server.CLUSTER, "brokerName", name, "appliedBrokerId", String.valueOf(id),
            "registerCheckCode", broker.checkCode()));
        broker.ask(1003, Map.of("clusterName", Server.CLUSTER, "brokerName", name, "brokerId", String.valueOf(id), "brokerAddress", broker.address()));
        broker.live(0, 0);
        return broker;
    }

    private static RemotingCommand call(Server controller, int code, Map<String, String> fields) throws Exception {
        var answer = Wire.call(controller.controllerPort, code, fields);
        assertEquals(0, answer.getCode(), answer::getRemark);
        return answer;
    }

    private static RemotingCommand elect(Server controller, String name, long id, boolean isDesignated) throws Exception {
        return call(controller, 1002, Map.of("clusterName", Server.CLUSTER, "brokerName", name, "brokerId", String.valueOf(id),
            "designateElect", String.valueOf(isDesignated)));
    }

    private static RemotingCommand alter(Server controller, String name, long master, int epoch, String set) throws Exception {
        var answer = Wire.call(controller.controllerPort, 1001, Map.of("brokerName", name, "masterBrokerId", String.valueOf(master), "masterEpoch",
            String.valueOf(epoch)), set.getBytes(UTF_8));
        assertEquals(0, answer.getCode(), answer::getRemark);
        return answer;
    }

    @Test
    void ids_epochs_and_sets_are_as_before_when_a_controller_was_killed() throws Exception {
        try (var controller = controller(true).start()) {
            try (var one = join(controller, "alpha", 1); var two = join(controller, "alpha", 2); var alone = join(controller, "beta", 1)) {
                elect(controller, "alpha", 1, false);
                elect(controller, "beta", 1, false);
                alter(controller, "alpha", 1, 1, "{\"syncStateSet\":[1,2],\"syncStateSetEpoch\":1}");
                elect(controller, "alpha", 2, true);
                alter(controller, "alpha", 2, 2, "{\"syncStateSet\":[1,2],\"syncStateSetEpoch\":3}");
                try (var three = join(controller, "alpha", 3)) {
                    var alpha = replicas(controller, "alpha");
                    var beta = replicas(controller, "beta");
                    controller.kill();
                    controller.start();
                    // The master first, as nobody else is to be elected.
                    for (var broker : List.of(two, one, three, alone)) {
                        broker.disconnect();
                        broker.live(2, 100);
                    }
                    assertEquals(alpha, replicas(controller, "alpha"));
                    assertEquals(beta, replicas(controller, "beta"));
                    assertEquals("4", call(controller, 1012, Map.of("clusterName", Server.CLUSTER, "brokerName", "alpha")).getExtFields().get("nextBrokerId"));
                    // An id is whose it was.
                    var id = Map.of("clusterName", Server.CLUSTER, "brokerName", "alpha", "appliedBrokerId", "3", "registerCheckCode", three.checkCode());
                    call(controller, 1013, id);
                    assertEquals(2014, Wire.call(controller.controllerPort, 1013, Questions.with(id, "registerCheckCode", one.checkCode())).getCode());
                    alter(controller, "alpha", 2, 2, "{\"syncStateSet\":[1,2,3],\"syncStateSetEpoch\":4}");
                    assertEquals("3", elect(controller, "alpha", 3, true).getExtFields().get("masterEpoch"));
                }
            }
        }
    }

    /** A port may outlive the connections of its process: whoever finds it open once knows nothing. */
    @Test
    void a_master_whose_port_closes_after_its_connection_is_followed() throws Exception {
        try (var controller = controller(false).start(); var one = join(controller, Server.BROKER_NAME, 1); var two = join(controller, Server.BROKER_NAME, 2)) {
            elect(controller, Server.BROKER_NAME, 1, false);
            alter(controller, Server.BROKER_NAME, 1, 1, "{\"syncStateSet\":[1,2],\"syncStateSetEpoch\":1}");
            one.dieByAndBy();
            // Its silence would be counted ten minutes from now.
            Await.until("the other is master", PATIENCE, () -> two.address().equals(master(controller)), controller::output);
        }
    }

    private static final String ELECT = "electMaster -a CONTROLLER -c DefaultCluster -bn alpha -b 2";

    /** What the tool prints, command after command; all addresses of brokers are {@code CLIENT}. */
    private static final String ABOUT_ALPHA = """
        $ getControllerMetaData -a CONTROLLER
        #ControllerGroup controllers
        #ControllerLeaderId n0
        #ControllerLeaderAddress CONTROLLER
        #Peer: n0:CONTROLLER
        $ getSyncStateSet -a CONTROLLER -b alpha
        #brokerName alpha
        #MasterBrokerId 1
        #MasterAddr CLIENT
        #MasterEpoch 1
        #SyncStateSetEpoch 2
        #SyncStateSetNums 2
        InSyncReplica: ReplicaIdentity{brokerName='alpha', brokerId=1, brokerAddress='CLIENT', alive=true}
        InSyncReplica: ReplicaIdentity{brokerName='alpha', brokerId=2, brokerAddress='CLIENT', alive=true}
        NotInSyncReplica: ReplicaIdentity{brokerName='alpha', brokerId=3, brokerAddress='CLIENT', alive=false}
        $ updateControllerConfig -a CONTROLLER -k enableElectUncleanMaster -v false
        update controller config success![CONTROLLER]
        enableElectUncleanMaster : false
        $ updateControllerConfig -a CONTROLLER -k configStorePath -v elsewhere
        org.apache.rocketmq.tools.command.SubCommandException: UpdateControllerConfigSubCommand command failed
        Caused by: org.apache.rocketmq.client.exception.MQClientException: CODE: 16 DESC: Can not update config in black list.
        For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ
        $ electMaster -a CONTROLLER -c DefaultCluster -bn alpha -b 3
        org.apache.rocketmq.tools.command.SubCommandException: ReElectMasterSubCommand command failed
        Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2012 DESC: Failed to elect a new master
        For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ
        $ electMaster -a CONTROLLER -c DefaultCluster -bn alpha -b 2
        #ClusterName DefaultCluster
        #BrokerName alpha
        #BrokerMasterAddr CLIENT
        #MasterEpoch 2
        #SyncStateSetEpoch 3
        #Broker 1 CLIENT
        #Broker 2 CLIENT
        #Broker 3 CLIENT
        $ cleanBrokerMetadata -a CONTROLLER -bn alpha
        java.lang.IllegalArgumentException: cleanLivingBroker option is false, clusterName option can not be empty.
        $ cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster
        org.apache.rocketmq.tools.command.SubCommandException: CleanControllerBrokerMetaSubCommand command failed
        Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2009 DESC: Broker alpha is still alive, clean up failure
        For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ
        $ cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster -b 2
        org.apache.rocketmq.tools.command.SubCommandException: CleanControllerBrokerMetaSubCommand command failed
        Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2009 DESC: Broker [alpha, 2] is still alive, clean up failure
        For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ
        $ cleanBrokerMetadata -a CONTROLLER -bn alpha -c DefaultCluster -b 3
        clear broker alpha metadata from controller success!
        $ getSyncStateSet -a CONTROLLER -b alpha -c DefaultCluster
        #brokerName alpha
        #MasterBrokerId 2
        #MasterAddr CLIENT
        #MasterEpoch 2
        #SyncStateSetEpoch 3
        #SyncStateSetNums 1
        InSyncReplica: ReplicaIdentity{brokerName='alpha', brokerId=2, brokerAddress='CLIENT', alive=true}
        NotInSyncReplica: ReplicaIdentity{brokerName='alpha', brokerId=1, brokerAddress='CLIENT', alive=true}
        $ cleanBrokerMetadata -a CONTROLLER -bn alpha -l
        clear broker alpha metadata from controller success!
        """;

    @Test
    void the_published_mqadmin_shows_and_changes_what_a_controller_knows() throws Exception {
        try (var controller = controller(true).start()) {
            try (var one = join(controller, "alpha", 1); var two = join(controller, "alpha", 2)) {
                join(controller, "alpha", 3).close();
                elect(controller, "alpha", 1, false);
                alter(controller, "alpha", 1, 1, "{\"syncStateSet\":[1,2],\"syncStateSetEpoch\":1}");
                var printed = MqAdmin.printed(MqAdmin.ofController(controller), controller);
                // Dozens of keys, each with its own value.
                var settings = printed.remove("getControllerConfig -a CONTROLLER");
                assertTrue(settings.contains("============CONTROLLER============"), settings::toString);
                assertTrue(settings.containsAll(List.of("controllerDLegerGroup = controllers", "controllerDLegerPeers = n0-CONTROLLER",
                    "controllerDLegerSelfId = n0", "enableElectUncleanMaster = false", "notifyBrokerRoleChanged = true")), settings::toString);
                if (Server.DEFAULT == Server.Kind.APACHE_5) {
                    // It does what it is told, and 5.5.0 of the tool cannot read what it answers.
                    var elected = printed.put(ELECT, told(ELECT));
                    assertTrue(elected.toString().contains("not support unquoted name"), elected::toString);
                }
                assertEquals(ABOUT_ALPHA, text(printed));
            }
        }
    }

    /** The lines below that command. */
    private static List<String> told(String command) {
        return ABOUT_ALPHA.lines().dropWhile(line -> !line.equals("$ " + command)).skip(1).takeWhile(line -> !line.startsWith("$ ")).toList();
    }

    private static String text(Map<String, List<String>> printed) {
        var text = new StringBuilder();
        printed.forEach((command, lines) -> {
            text.append("$ ").append(command).append('\n');
            lines.forEach(line -> text.append(line).append('\n'));
        });
        return text.toString();
    }
}
