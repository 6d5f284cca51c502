package gantry;

import static gantry.Questions.fields;
import static gantry.Questions.with;
import static gantry.Questions.without;

import java.util.Map;

/** What brokers and operators ask a controller, a method a family. The set {@code alpha} goes through all of a life. */
final class ControllerQuestions implements AutoCloseable {
    private final Conversation ask;
    private final FakeBroker one;
    private final FakeBroker two;
    private final FakeBroker three;

    ControllerQuestions(Conversation ask) {
        this.ask = ask;
        one = broker("alpha", 1);
        two = broker("alpha", 2);
        three = broker("alpha", 3);
    }

    /** A controller alone, which soon sees that somebody is silent. */
    static Server configure(Server server) {
        server.withController();
        server.runsNameServer = false;
        server.runsBroker = false;
        server.controllerSettings.put("scanNotActiveBrokerInterval", "300");
        return server;
    }

    private FakeBroker broker(String name, long id) {
        var broker = new FakeBroker(ask.server, name, id);
        ask.call(broker.address(), "BROKER_" + id + "_OF_" + name);
        return broker;
    }

    void all() throws Exception {
        unknown();
        ids();
        registration();
        firstElection();
        syncStateSet();
        elections();
        deaths();
        losses();
        firstElectionOfOthers();
        sees();
        choices();
        silence();
        settings();
        cleaning();
        cleaningOfOthers();
        unclean();
        missingFields();
        otherCodes();
    }

    private static Map<String, String> set(String... more) {
        return with(fields("clusterName", Server.CLUSTER, "brokerName", "alpha"), more);
    }

    private static Map<String, String> elect(String id, String designate) {
        return set("brokerId", id, "designateElect", designate, "invokeTime", "1700000000000");
    }

    private static Map<String, String> apply(FakeBroker broker) {
        return fields("clusterName", Server.CLUSTER, "brokerName", broker.name, "appliedBrokerId", String.valueOf(broker.id), "registerCheckCode", broker.checkCode());
    }

    private static Map<String, String> register(FakeBroker broker) {
        return fields("clusterName", Server.CLUSTER, "brokerName", broker.name, "brokerId", String.valueOf(broker.id), "brokerAddress", broker.address(),
            "invokeTime", "1700000000000");
    }

    private static Map<String, String> alter(int master, int epoch) {
        return fields("brokerName", "alpha", "masterBrokerId", String.valueOf(master), "masterEpoch", String.valueOf(epoch), "invokeTime", "1700000000000");
    }

    private static String members(int epoch, String ids) {
        return "{\"syncStateSet\":[" + ids + "],\"syncStateSetEpoch\":" + epoch + "}";
    }

    private static Map<String, String> clean(String... fields) {
        return with(fields("brokerName", "alpha", "isCleanLivingBroker", "false", "invokeTime", "1700000000000"), fields);
    }

    /** On a connection of its own: a controller ends the connection of a broker whose heartbeats stay away. */
    private void heartbeat(String label, Map<String, String> fields) throws Exception {
        ask.note(label, Wire.call(ask.server.controllerPort, 904, fields));
    }

    private void see(String when) throws Exception {
        ask.controller("see: master " + when, 1004, fields("brokerName", "alpha"));
        ask.controller("see: replicas " + when, 1006, fields(), "[\"alpha\"]");
    }

    private void unknown() throws Exception {
        ask.controller("unknown: metadata", 1005, fields());
        ask.controller("unknown: master", 1004, fields("brokerName", "alpha"));
        ask.controller("unknown: replicas", 1006, fields(), "[\"alpha\",\"beta\"]");
        ask.controller("unknown: register", 1003, register(one));
        ask.controller("unknown: elect", 1002, elect("1", "false"));
        ask.controller("unknown: elect, by nobody", 1002, elect("-1", "false"));
        ask.controller("unknown: elect, designated", 1002, elect("1", "true"));
        ask.controller("unknown: alter", 1001, alter(1, 1), members(1, "1"));
        ask.controller("unknown: clean", 1011, clean("clusterName", Server.CLUSTER));
        ask.controller("unknown: clean, ids", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "1"));
        ask.controller("unknown: clean, ids that are none", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "x"));
        ask.controller("unknown: clean, also living ones", 1011, clean("isCleanLivingBroker", "true"));
        heartbeat("unknown: heartbeat", with(one.heartbeat(0, 0), "brokerName", "nowhere"));
    }

    private void ids() throws Exception {
        ask.controller("ids: first", 1012, set());
        ask.controller("ids: second before first", 1013, apply(two));
        ask.controller("ids: first taken", 1013, apply(one));
        ask.controller("ids: next", 1012, set());
        ask.controller("ids: first taken again", 1013, apply(one));
        ask.controller("ids: next after the same again", 1012, set());
        ask.controller("ids: first for another", 1013, with(apply(one), "registerCheckCode", one.address() + ";1700000000001"));
        ask.controller("ids: first for another address", 1013, with(apply(one), "registerCheckCode", two.checkCode()));
        ask.controller("ids: third before second", 1013, apply(three));
        ask.controller("ids: next after a gap", 1012, set());
        ask.controller("ids: second", 1013, apply(two));
        ask.controller("ids: next after three", 1012, set());
        ask.controller("ids: zero", 1013, with(apply(one), "appliedBrokerId", "0", "brokerName", "zero"));
        ask.controller("ids: negative", 1013, with(apply(one), "appliedBrokerId", "-1", "brokerName", "negative"));
        ask.controller("ids: check code without time", 1013, with(apply(one), "registerCheckCode", "127.0.0.1:1", "brokerName", "timeless"));
        ask.controller("ids: empty check code", 1013, with(apply(one), "registerCheckCode", "", "brokerName", "codeless"));
        ask.controller("ids: check code of a semicolon", 1013, with(apply(one), "registerCheckCode", ";", "brokerName", "semicolon"));
        ask.controller("ids: next of another cluster", 1012, set("clusterName", "another"));
        see("with ids alone");
    }

    private void registration() throws Exception {
        ask.controller("register: not alive", 1003, register(one));
        ask.controller("register: no such id", 1003, with(register(one), "brokerId", "9"));
        ask.controller("register: another address", 1003, with(register(three), "brokerAddress", "127.0.0.1:1"));
        see("after a change of address");
        ask.controller("register: address as before", 1003, register(three));
        ask.controller("register: another cluster", 1003, with(register(one), "clusterName", "another"));
        heartbeat("heartbeat: without id", without(one.heartbeat(0, 0), "brokerId"));
        heartbeat("heartbeat: without optional fields", fields("clusterName", Server.CLUSTER, "brokerName", "nowhere", "brokerAddr", "127.0.0.1:1", "brokerId", "1"));
        ask.note("heartbeat: first", one.live(0, 0));
        ask.note("heartbeat: again", one.live(0, 100));
        ask.note("register: alive, no master yet", one.ask(1003, register(one)));
        see("before the first election");
        ask.controller("alter: before the first election", 1001, alter(1, 0), members(0, "1"));
        ask.controller("elect: nobody lives, by nobody, at first", 1002, set("brokerName", "timeless", "brokerId", "-1", "designateElect", "false"));
    }

    private void firstElection() throws Exception {
        ask.controller("elect: first", 1002, elect("1", "false"));
        ask.note("push: first master", one.pushed());
        see("after the first election");
        ask.controller("elect: first again", 1002, elect("1", "false"));
        ask.controller("elect: another asks", 1002, elect("2", "false"));
        ask.controller("elect: by nobody, master lives", 1002, elect("-1", "false"));
        ask.controller("elect: designated master", 1002, elect("1", "true"));
        ask.controller("elect: designated, dead", 1002, elect("2", "true"));
        ask.controller("elect: designated, unknown id", 1002, elect("9", "true"));
        ask.controller("elect: unknown id asks", 1002, elect("9", "false"));
        ask.controller("elect: another cluster", 1002, with(elect("1", "false"), "clusterName", "another"));
        ask.controller("register: second, of a living master", 1003, register(two));
        ask.controller("register: second, of another cluster", 1003, with(register(two), "clusterName", "another"));
        ask.note("heartbeat: second", two.live(1, 100));
        ask.controller("elect: designated, alive, not in the set", 1002, elect("2", "true"));
    }

    private void syncStateSet() throws Exception {
        ask.controller("alter: equal", 1001, alter(1, 1), members(1, "1"));
        ask.controller("alter: equal, by another master", 1001, alter(2, 1), members(1, "1"));
        ask.controller("alter: by another master", 1001, alter(2, 1), members(1, "1,2"));
        ask.controller("alter: by another master of another epoch", 1001, alter(2, 2), members(2, "1,2"));
        ask.controller("alter: smaller epoch", 1001, alter(1, 0), members(1, "1,2"));
        ask.controller("alter: larger epoch", 1001, alter(1, 2), members(1, "1,2"));
        ask.controller("alter: smaller epoch of the set", 1001, alter(1, 1), members(0, "1,2"));
        ask.controller("alter: larger epoch of the set", 1001, alter(1, 1), members(2, "1,2"));
        ask.controller("alter: no such replica", 1001, alter(1, 1), members(1, "1,9"));
        ask.controller("alter: a dead replica", 1001, alter(1, 1), members(1, "1,3"));
        ask.controller("alter: without the master", 1001, alter(1, 1), members(1, "2"));
        ask.controller("alter: nobody", 1001, alter(1, 1), members(1, ""));
        ask.controller("alter: no body", 1001, alter(1, 1));
        ask.controller("alter: garbage", 1001, alter(1, 1), "garbage");
        ask.controller("alter: no members", 1001, alter(1, 1), "{}");
        ask.controller("alter: no epoch of the set", 1001, alter(1, 1), "{\"syncStateSet\":[1,2]}");
        ask.controller("alter: larger", 1001, alter(1, 1), members(1, "1,2"));
        see("after the set has grown");
        ask.controller("alter: the same again", 1001, alter(1, 1), members(1, "1,2"));
        ask.controller("alter: equal, in another order", 1001, alter(1, 1), members(2, "2,1"));
        ask.controller("alter: a member twice", 1001, alter(1, 1), members(2, "1,1"));
        ask.controller("register: second, in the set", 1003, register(two));
        see("after the set has shrunk");
        ask.controller("alter: larger again", 1001, alter(1, 1), members(3, "1,2"));
    }

    private void elections() throws Exception {
        ask.controller("elect: a member asks, master lives", 1002, elect("2", "false"));
        ask.controller("elect: designated, not alive", 1002, elect("3", "true"));
        ask.controller("elect: designated, a member", 1002, elect("2", "true"));
        ask.note("push: second master, to the old one", one.pushed());
        ask.note("push: second master, to itself", two.pushed());
        see("after a switch");
        ask.controller("alter: the old master", 1001, alter(1, 1), members(4, "1,2"));
        ask.controller("alter: the new master", 1001, alter(2, 2), members(5, "1,2"));
    }

    private void deaths() throws Exception {
        two.die();
        ask.controllerUntil("death: the other is master", 1004, fields("brokerName", "alpha"), answer -> "1".equals(answer.getExtFields().get("masterBrokerId")));
        ask.note("push: third master", one.pushed());
        ask.controller("death: replicas", 1006, fields(), "[\"alpha\"]");
        ask.controller("death: the dead one is designated", 1002, elect("2", "true"));
        ask.note("heartbeat: second again", two.live(2, 200));
        ask.note("death: the dead one is back", two.ask(1003, register(two)));
        see("after one was back");
    }

    /** A set whose only member in sync is dead. Each failed election of Apache's is an epoch. */
    private void losses() throws Exception {
        try (var master = broker("lost", 1); var second = broker("lost", 2)) {
            join(master, 0, 0);
            join(second, 0, 0);
            var name = fields("brokerName", "lost");
            ask.controller("lost: first", 1002, with(elect("1", "false"), "brokerName", "lost"));
            ask.note("lost: first, pushed", second.pushed());
            master.die();
            ask.controllerUntil("lost: no member lives", 1004, name, answer -> answer.getExtFields().get("masterBrokerId") == null);
            ask.controller("lost: replicas", 1006, fields(), "[\"lost\"]");
            ask.note("lost: register", second.ask(1003, register(second)));
            ask.controller("lost: the other asks", 1002, with(elect("2", "false"), "brokerName", "lost"));
            ask.controller("lost: the other is designated", 1002, with(elect("2", "true"), "brokerName", "lost"));
            ask.controller("lost: the other alters", 1001, with(alter(2, 1), "brokerName", "lost"), members(1, "1,2"));
            ask.controller("lost: a living id cleaned", 1011, clean("clusterName", Server.CLUSTER, "brokerName", "lost", "brokerControllerIdsToClean", "2"));
            master.live(1, 300);
            // By itself, or since it asks.
            master.ask(1002, with(elect("1", "false"), "brokerName", "lost"));
            ask.controllerUntil("lost: the member is back", 1004, name, answer -> "1".equals(answer.getExtFields().get("masterBrokerId")));
            ask.note("lost: the member is back, pushed", second.pushed());
        }
    }

    /** Sets in which nobody was ever master. */
    private void firstElectionOfOthers() throws Exception {
        try (var beta = broker("beta", 1); var gamma = broker("gamma", 1)) {
            join(beta, 0, 0);
            join(gamma, 0, 0);
            ask.controller("others: a stranger asks", 1002, with(elect("9", "false"), "brokerName", "beta"));
            ask.controller("others: nobody asks", 1002, with(elect("-1", "false"), "brokerName", "gamma"));
            ask.controller("others: both", 1006, fields(), "[\"beta\",\"none\",\"gamma\"]");
        }
    }

    private void sees() throws Exception {
        ask.controller("see: no body", 1006, fields());
        ask.controller("see: no names", 1006, fields(), "[]");
        ask.controller("see: garbage", 1006, fields(), "garbage");
        ask.controller("see: an object", 1006, fields(), "{}");
        ask.controller("see: numbers", 1006, fields(), "[1]");
    }

    /** Who of several members follows a master that died: the larger epoch, then the longer log, then the smaller priority. */
    private void choices() throws Exception {
        choice("epochs", new int[] {1, 0}, new long[] {100, 200}, new int[] {9, 1});
        choice("logs", new int[] {1, 1}, new long[] {100, 200}, new int[] {1, 9});
        choice("priorities", new int[] {1, 1}, new long[] {200, 200}, new int[] {9, 1});
    }

    private void choice(String name, int[] epochs, long[] ends, int[] priorities) throws Exception {
        try (var master = broker(name, 1); var second = broker(name, 2); var third = broker(name, 3)) {
            join(master, 0, 0);
            join(second, 0, 0);
            join(third, 0, 0);
            ask.controller("choice: first of " + name, 1002, with(elect("1", "false"), "brokerName", name));
            second.ask(904, with(second.heartbeat(epochs[0], ends[0]), "electionPriority", String.valueOf(priorities[0])));
            third.ask(904, with(third.heartbeat(epochs[1], ends[1]), "electionPriority", String.valueOf(priorities[1])));
            ask.controller("choice: all of " + name, 1001, with(alter(1, 1), "brokerName", name), members(1, "1,2,3"));
            master.die();
            ask.controllerUntil("choice: of " + name, 1004, fields("brokerName", name), answer -> !"1".equals(answer.getExtFields().getOrDefault("masterBrokerId", "1")));
            ask.controller("choice: replicas of " + name, 1006, fields(), "[\"" + name + "\"]");
        }
    }

    private void join(FakeBroker broker, int epoch, long end) throws Exception {
        String label = "join: " + broker.name + " " + broker.id;
        ask.controller(label + ", id", 1013, apply(broker));
        ask.note(label + ", register", broker.ask(1003, register(broker)));
        ask.note(label + ", heartbeat", broker.live(epoch, end));
    }

    /** A master whose connection stays, and whose heartbeats do not. */
    private void silence() throws Exception {
        try (var master = broker("silent", 1); var second = broker("silent", 2)) {
            join(master, 0, 0);
            join(second, 0, 0);
            ask.controller("silence: first", 1002, with(elect("1", "false"), "brokerName", "silent"));
            ask.controller("silence: both", 1001, with(alter(1, 1), "brokerName", "silent"), members(1, "1,2"));
            ask.note("silence: last heartbeat", master.ask(904, with(master.heartbeat(1, 0), "heartbeatTimeoutMills", "200")));
            ask.controllerUntil("silence: the other is master", 1004, fields("brokerName", "silent"), answer -> "2".equals(answer.getExtFields().get("masterBrokerId")));
        }
    }

    private void settings() throws Exception {
        ask.controller("settings: all", 1010, fields());
        ask.controller("settings: one", 1009, fields(), "notifyBrokerRoleChanged=true\n");
        ask.controller("settings: of a period", 1009, fields(), "scanInactiveMasterInterval=4000\n");
        ask.controller("settings: unknown one", 1009, fields(), "noSuchSetting=1\n");
        ask.controller("settings: no number", 1009, fields(), "scanInactiveMasterInterval=often\n");
        ask.controller("settings: black list", 1009, fields(), "configStorePath=/tmp/elsewhere\n");
        ask.controller("settings: the black list itself", 1009, fields(), "configBlackList=\n");
        ask.controller("settings: home", 1009, fields(), "rocketmqHome=/tmp\n");
        ask.controller("settings: no body", 1009, fields());
        ask.controller("settings: garbage", 1009, fields(), "garbage");
        ask.controller("settings: afterwards", 1010, fields());
    }

    private void cleaning() throws Exception {
        ask.controller("clean: a living master", 1011, clean("clusterName", Server.CLUSTER));
        ask.controller("clean: a living master, no cluster", 1011, clean());
        ask.controller("clean: ids that are none", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "1;x"));
        ask.controller("clean: empty ids", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", " "));
        ask.controller("clean: a blank between", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "3; 9"));
        ask.controller("clean: a living id", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "3;2"));
        ask.controller("clean: an unknown id", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "9"));
        ask.controller("clean: a dead id", 1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "3"));
        see("after a dead one was cleaned");
        ask.controller("clean: next id", 1012, set());
        ask.controller("clean: the id that was cleaned", 1013, apply(three));
        ask.controller("clean: its place after that", 1003, register(three));
        ask.controller("clean: next id after that", 1012, set());
        ask.controller("clean: a living id without a cluster", 1011, clean("brokerControllerIdsToClean", "2"));
        see("after a living one was cleaned");
        ask.controller("clean: all of it, also living ones", 1011, clean("isCleanLivingBroker", "true"));
        ask.controller("clean: afterwards, master", 1004, fields("brokerName", "alpha"));
        ask.controller("clean: afterwards, register", 1003, register(one));
        ask.controller("clean: afterwards, next id", 1012, set());
        ask.controller("clean: afterwards, id", 1013, apply(one));
        ask.note("clean: afterwards, heartbeat", one.live(0, 0));
        ask.controller("clean: afterwards, elect", 1002, elect("1", "false"));
    }

    private void cleaningOfOthers() throws Exception {
        try (var living = broker("semicolons", 1)) {
            join(living, 0, 0);
            ask.controller("semicolons: first", 1002, with(elect("1", "false"), "brokerName", "semicolons"));
            ask.controller("semicolons: cleaned", 1011, clean("brokerName", "semicolons", "clusterName", Server.CLUSTER, "brokerControllerIdsToClean", ";"));
            ask.controller("semicolons: afterwards", 1004, fields("brokerName", "semicolons"));
        }
        try (var master = broker("spared", 1); var second = broker("spared", 2)) {
            join(master, 0, 0);
            join(second, 0, 0);
            ask.controller("spared: first", 1002, with(elect("1", "false"), "brokerName", "spared"));
            ask.controller("spared: one of two living ones cleaned", 1011, clean("brokerName", "spared", "isCleanLivingBroker", "true", "brokerControllerIdsToClean", "2"));
            ask.controller("spared: replicas", 1006, fields(), "[\"spared\"]");
        }
        try (var master = broker("alone", 1); var second = broker("alone", 2)) {
            join(master, 0, 0);
            join(second, 0, 0);
            ask.controller("alone: first", 1002, with(elect("1", "false"), "brokerName", "alone"));
            master.die();
            ask.controllerUntil("alone: dead", 1004, fields("brokerName", "alone"), answer -> answer.getExtFields().get("masterBrokerId") == null);
            ask.controller("alone: the only member cleaned", 1011, clean("brokerName", "alone", "clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "1"));
            ask.controller("alone: afterwards, master", 1004, fields("brokerName", "alone"));
            ask.controller("alone: afterwards, replicas", 1006, fields(), "[\"alone\"]");
            ask.controller("alone: afterwards, register", 1003, register(second));
            ask.controller("alone: afterwards, next id", 1012, set("brokerName", "alone"));
            ask.controller("alone: afterwards, id again", 1013, apply(second));
            ask.controller("alone: afterwards, register again", 1003, register(second));
            ask.note("alone: afterwards, heartbeat", second.live(1, 0));
            ask.controller("alone: afterwards, elect", 1002, with(elect("2", "false"), "brokerName", "alone"));
        }
        goneAsAWhole();
    }

    private void goneAsAWhole() throws Exception {
        try (var master = broker("gone", 1)) {
            join(master, 0, 0);
            ask.controller("gone: first", 1002, with(elect("1", "false"), "brokerName", "gone"));
            master.die();
            ask.controllerUntil("gone: dead", 1004, fields("brokerName", "gone"), answer -> answer.getExtFields().get("masterBrokerId") == null);
            ask.controller("gone: cleaned as a whole", 1011, clean("brokerName", "gone", "clusterName", Server.CLUSTER));
            ask.controller("gone: afterwards", 1004, fields("brokerName", "gone"));
        }
    }

    private void unclean() throws Exception {
        ask.controller("unclean: allowed", 1009, fields(), "enableElectUncleanMaster=true\n");
        try (var master = broker("unclean", 1); var second = broker("unclean", 2)) {
            join(master, 0, 0);
            join(second, 0, 0);
            ask.controller("unclean: first", 1002, with(elect("1", "false"), "brokerName", "unclean"));
            master.die();
            ask.controllerUntil("unclean: who is not in the set is master", 1004, fields("brokerName", "unclean"), answer -> "2".equals(answer.getExtFields().get("masterBrokerId")));
            ask.controller("unclean: replicas", 1006, fields(), "[\"unclean\"]");
        }
        ask.controller("unclean: no longer", 1009, fields(), "enableElectUncleanMaster=false\n");
    }

    private void missingFields() throws Exception {
        missing(1001, alter(1, 1), "brokerName", "masterBrokerId", "masterEpoch", "invokeTime");
        missing(1002, elect("1", "false"), "clusterName", "brokerName", "brokerId", "designateElect", "invokeTime");
        missing(1003, register(two), "clusterName", "brokerName", "brokerId", "brokerAddress", "invokeTime");
        missing(1004, fields("brokerName", "alpha"), "brokerName");
        missing(1011, clean("clusterName", Server.CLUSTER, "brokerControllerIdsToClean", "9"), "clusterName", "brokerName", "isCleanLivingBroker", "invokeTime");
        missing(1012, set(), "clusterName", "brokerName");
        missing(1013, with(apply(one), "brokerName", "incomplete"), "clusterName", "brokerName", "appliedBrokerId", "registerCheckCode");
        missing(904, one.heartbeat(1, 1), "clusterName", "brokerName", "brokerAddr");
        wrong(1001, alter(1, 1), "masterBrokerId", "masterEpoch");
        wrong(1002, elect("1", "false"), "brokerId", "designateElect");
        wrong(1003, register(two), "brokerId");
        wrong(1013, apply(one), "appliedBrokerId");
        wrong(904, one.heartbeat(1, 1), "brokerId", "epoch");
        // From here on Apache has a set without a name.
        ask.controller("ids: empty name of a set", 1013, with(apply(one), "brokerName", ""));
    }

    private void missing(int code, Map<String, String> fields, String... keys) throws Exception {
        for (String key : keys) {
            String label = "missing: " + key + " of " + code;
            if (code == 904) {
                heartbeat(label, without(fields, key));
            } else if (code == 1001) {
                ask.controller(label, code, without(fields, key), members(1, "1,2"));
            } else {
                ask.controller(label, code, without(fields, key));
            }
        }
    }

    private void wrong(int code, Map<String, String> fields, String... keys) throws Exception {
        for (String key : keys) {
            String label = "wrong: " + key + " of " + code;
            if (code == 904) {
                heartbeat(label, with(fields, key, "x"));
            } else if (code == 1001) {
                ask.controller(label, code, with(fields, key, "x"), members(1, "1,2"));
            } else {
                ask.controller(label, code, with(fields, key, "x"));
            }
        }
    }

    private void otherCodes() throws Exception {
        for (int code : new int[] {10, 28, 105, 106, 1007, 1008, 1014, 1015, 1016, 1017, 1018}) {
            ask.controller("other: " + code, code, fields());
        }
    }

    @Override
    public void close() throws Exception {
        one.close();
        two.close();
        three.close();
    }
}
