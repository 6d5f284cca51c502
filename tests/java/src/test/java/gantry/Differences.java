package gantry;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.regex.Pattern;

/** Where Gantry answers otherwise than Apache on purpose, and why. An entry that covers nothing any more fails the test, unless it is about
 * what differs by chance. */
final class Differences {
    private Differences() {}

    /** Covers differences whose question, path and pair of answers ({@code apache | gantry}) match. */
    record Reason(Pattern question, Pattern path, Pattern answers, String because, boolean isChance) {
        boolean covers(Conversation.Difference difference) {
            return question.matcher(difference.question()).matches() && path.matcher(difference.path()).matches()
                && answers.matcher(difference.apache() + " | " + difference.gantry()).matches();
        }
    }

    private static Reason at(String question, String path, String answers, String because) {
        return new Reason(Pattern.compile(question, Pattern.DOTALL), Pattern.compile(path, Pattern.DOTALL), Pattern.compile(answers, Pattern.DOTALL), because, false);
    }

    /** Of what is measured, counted over time or drawn by lot: the two may also agree. */
    private static Reason sometimes(String question, String path, String answers, String because) {
        var always = at(question, path, answers, because);
        return new Reason(always.question, always.path, always.answers, because, true);
    }

    private static Reason at(String question, String path, String because) {
        return at(question, path, ".*", because);
    }

    /** Fails for a difference without a reason, and for a reason without a difference. */
    static void check(List<Conversation.Difference> differences, List<Reason> reasons) {
        var used = new HashSet<Reason>();
        var unexplained = new ArrayList<String>();
        for (var difference : differences) {
            var covering = reasons.stream().filter(reason -> reason.covers(difference)).toList();
            used.addAll(covering);
            if (covering.isEmpty()) {
                unexplained.add(difference.toString());
            }
        }
        assertTrue(unexplained.isEmpty(), () -> unexplained.size() + " differences:\n" + String.join("\n", unexplained));
        var unused = reasons.stream().filter(reason -> !reason.isChance && !used.contains(reason)).map(Reason::toString).toList();
        assertTrue(unused.isEmpty(), () -> "nothing differs here any more:\n" + String.join("\n", unused));
    }

    /** Of lines that mqadmin prints. */
    static final List<Reason> MQADMIN = List.of(
        at("topicList.*|statsAll|(add|wipe)WritePerm .*", ".*", ".*(RMQ_SYS_ROCKSDB_TRANS_|WritePerm|write perm).*", "Gantry has no RocksDB that would need topics of its own"),
        sometimes("consumerProgress|producer -b .*", ".*", ".*(TOOLS_CONSUMER|CLIENT_INNER_PRODUCER).*", "the tool's own clients of the command before may still be connected"),
        sometimes("statsAll.*", ".*", ".*(orders readers|broker-a 0).*", "messages of the last day: Apache looks at its counters every hour, and has not yet"),
        sometimes("getBrokerLiteInfo .*", ".*", ".*default 20000 0 0 0 [78] 1 0.*", "one topic more has consume queues"),
        sometimes("checkMsgSendRT .*", ".*", ".*", "how long a send takes is measured"),
        sometimes("sendMessage -t no_such_topic_either .*", ".*", ".*SEND_OK.*", "the client chooses the queue"),
        sometimes("clusterList.*", ".*", ".*", "another version, and its own messages of the day counted"),
        sometimes("brokerStatus .*", ".*", ".*", "measured, of pools that Gantry does not have, or figures of its own limits"),
        at("getBrokerConfig .*", ".*", "keys without effect, each named at start when somebody sets it; and keys of its own"),
        at("getNamesrvConfig", ".*", "likewise"),
        at("getColdDataFlowCtrInfo .*", ".*", "the same members in another order"),
        at("(create|update|delete|get|list|copy)(User|Acl) .*", ".*", ".*(system error occurred|is not configured|keeps no users and no rules).*", "names the settings that are off")
    );

    static final List<Reason> ON_PURPOSE = List.of(
        // What says nothing.
        at(".*", "remark", "not set any response code \\| null", "Apache leaves its own default in the remark of a success"),
        at("(group|offset): .*", "remark", " \\| null", "Apache says an empty remark"),
        at("progress: times", "body\\.consumeTimeSpanSet.*Str", "getters for people, which its JSON library takes for fields"),
        at("offset: all", "body\\.(groupTopicMap|pullOffsetTable).*", "likewise; Gantry keeps pulled offsets in memory and says them with 208"),
        at("operator: replicas", "body\\.haClientRuntimeInfo\\.activated", "its library leaves out what is false"),
        // RocksDB.
        at(".*", ".*RMQ_SYS_ROCKSDB_TRANS_.*", "Gantry has no RocksDB that would need topics of its own"),
        at("operator: all topics", "field totalTopicNum", "the two topics for RocksDB"),
        // Java exceptions.
        at(".*", "remark", ".*(Exception|Cannot invoke|Offset is null|QueueId is null|is not exist!).* \\| .*", "a sentence that names the field instead of a Java exception"),
        at("(missing|wrong): .*", "(code|remark|body.*|field .*)", ".* \\| (1|29|field .*|\\(absent\\))", "a required field that is missing is named, whether or not Apache gets by without it"),
        at("missing: [befgh] of 310", "field (MSG_REGION|TRACE_ON)", "answers to sends carry them, also refusals"),
        at("missing: .* of 310", "field msgId", "the dead letter before it is larger"),
        at("missing: i of 310", "field transactionId", "a unique key made by the broker"),
        at("missing: topicFilterType of 17", "code|remark", "not needed to make a topic"),
        at("send: (empty body|empty batch|batch of garbage)", "code|field .*|remark", "illegal messages are answered as illegal messages"),
        at("members: garbage for a heartbeat", "code|remark", "the body is a parameter"),
        // Remarks that say more.
        at("topic: wrong message type", "remark", "names the attribute"),
        at("send: (no queue of that number|huge queue)", "remark", "without Java's way of printing a topic"),
        at("send: (body|properties) too .*", "remark", "also says how large they are"),
        at("(pull|config check): .*", "remark", "The broker does not support.*", "also says why"),
        at("pull: .*queue.*", "remark", ".*consumer:\\[/CLIENT\\] \\| .*consumer:\\[CLIENT\\]", "an address without Java's slash"),
        at("half: resumed, bad id", "remark", "says what is wrong with the id"),
        at("operator: (users?|rules)", "remark", "names the settings that are off"),
        at("operator: (cold reads, set|reading ahead, wrong)", "remark", "says what has no effect, and what is known"),
        // What is kept.
        at("offset: asked below zero", "field offset", "an offset below zero is not kept"),
        at("offset: set for no queue", "code|remark", "no rows for queues that do not exist"),
        at("offset: all|operator: corrected offsets", ".*77", "the row that was refused"),
        sometimes("offset: of delays|operator: runtime", "body\\.(offsetTable|table\\.scheduleMessageOffset).*", ".*", "levels appear when they have delivered something"),
        sometimes("progress: of all", "body\\.totalInflightDiff", ".*", "counts what was pulled and not yet committed; Apache says 0"),
        at("progress: .*", "body.*\\.pullOffset", "a reset forgets how far the group had pulled before it"),
        at("members: subscription to another topic|operator: units", "body\\.(subscriptionData|filterData).*", "a subscription is what a member has said, not what a pull has asked for"),
        at("operator: all groups", "body\\.subscriptionGroupTable\\.none.*|field totalGroupNum", "leaving does not make a group"),
        at("assignment: unknown strategy", "code|body|remark", "an empty assignment would stop the consumer without a word"),
        at("query: (no such key|another topic|before)", "field indexLastUpdate.*", "fields of a success"),
        // Dead letters say where they come from.
        at("back: pulled", "message 0 (bytes|property DLQ_ORIGIN.*)", "a name for each that its common library declares and its broker never writes"),
        at("half", "field msgId", "the dead letter before it is larger"),
        sometimes("operator: (replicas|runtime)", "body\\.(masterCommitLogMaxOffset|table\\.commitLogMaxOffset)", ".*", "likewise"),
        // Settings.
        at("operator: all settings", "body .*", "\\(absent\\) \\| .*", "keys of Gantry, of its name server, and JVM properties"),
        at("operator: all settings", "body .*", ".* \\| \\(absent\\)", "keys that have no effect on Gantry; each is named at start when somebody sets it"),
        at("operator: all settings", "body (listenPort|haListenPort|brokerIP2|metricsPromExporterPort)", "each has its own"),
        at("operator: all settings", "body inSyncReplicas", "1 \\| 2", "a SYNC_MASTER without the line waits for one slave, as 4.x does"),
        at("operator: all settings", "body slaveTimeout", "3000 \\| 2500", "the answer comes before the client gives up"),
        at("operator: all settings", "body maxTransferCountOnMessageInMemory", "32 \\| 1024", "who asks for more than 32 gets them"),
        at("operator: all settings", "body maxTransferCountOnMessageInDisk", "8 \\| 1024", "messages far behind the end are read together"),
        at("operator: unknown setting", "code|remark", "a key that does not exist is refused"),
        // Runtime.
        sometimes("operator: runtime", "body\\.table\\..*", "\\(absent\\) \\| .*", "figures of Gantry's own limits"),
        sometimes("operator: runtime", "body\\.table\\..*(Capacity|Ratio.*|Tps|runtime|dispatchBehindBytes|timer(Read|Offset)Behind|remainHow.*|putLatency.*|.*TimeMax|.*Time|.*Times|.*Nums|.*Now|.*Total|.*Size|brokerVersionDesc)", ".*", "measured, or of pools that Gantry does not have")
    );

    /** Of what {@link ControllerQuestions} asks. */
    static final List<Reason> CONTROLLER = List.of(
        at(".*", "body\\.(brokerAddrs.*|brokerName|cluster)", "\\(absent\\) \\| .*", "electMaster of mqadmin reads the answer as the members of a set, and fails with Apache"),
        at(".*", "remark", ".*Exception.* \\| .*", "a sentence that names the field instead of a Java exception"),
        at("(missing|wrong): .*", "(code|remark|body.*|field .*)", ".* \\| (1|field .*|\\(absent\\))", "a required field that is missing or wrong is named, whether or not Apache gets by without it"),
        at("see: (no body|no names|an object|numbers)", "code|remark|body.*", "no names are no sets, and what is no list is named"),
        // Ids.
        at("ids: (empty check code|check code of a semicolon|empty name of a set)", "code|remark|field .*", "what is empty names nobody"),
        at("ids: next after a gap|clean: next id after that", "field nextBrokerId", "the next id is one that nobody has: Apache counts how many were given"),
        at("alter: no members", "code|field .*", "no members are the same as an empty list of them"),
        // Elections.
        at("register: second, of another cluster", "field .*", "\\(absent\\) \\| .*", "a name is a set, whichever cluster asks, and its master lives"),
        at("others: a stranger asks", "code|remark|field .*|body.*", "who is not in the set does not become its master"),
        at("others: both", "body\\.replicasInfoTable\\.beta\\.(master.*|syncStateSetEpoch)", "likewise"),
        at("others: both", "body\\.replicasInfoTable\\.gamma\\.masterEpoch", "1 \\| 0", "nobody was elected: who asks first still becomes master"),
        sometimes("(lost|alone|gone): .*", ".*masterEpoch", ".*", "an epoch for the loss of a master, not one for each try to find another"),
        // Settings.
        at("settings: (of a period|unknown one|no number|garbage)", "code|remark", "what has no effect, and what does not exist, is refused"),
        at("settings: (all|afterwards)", "body .*", "\\(absent\\) \\| .*", "keys of Gantry"),
        at("settings: (all|afterwards)", "body .*", ".* \\| \\(absent\\)", "keys that have no effect on Gantry; each is named at start when somebody sets it"),
        at("settings: (all|afterwards)", "body (listenPort|configStorePath|rocketmqHome|bindAddress|jraftConfig)", "each has its own"),
        at("settings: afterwards", "body scanInactiveMasterInterval", "was refused"),
        // What is forgotten.
        at("clean: a blank between", "code|remark", "2009 \\| 0|.* \\| null", "blanks between ids do no harm"),
        at("semicolons: .*", "code|remark|field .*|body.*", "an empty id is none, and not all of the set, which lives"),
        at("clean: a living id without a cluster", "code|remark", "it lives, whether or not its cluster is named"),
        at("see: replicas after a living one was cleaned", "body.*", "likewise"),
        at("clean: afterwards, elect|(missing|wrong): .*", "field masterEpoch", "1 \\| 5", "no epoch of a set comes again when it was forgotten: its brokers may still run"),
        at("missing: invokeTime of 1001", "code|remark", "2003 \\| 2000|.*", "likewise"),
        at("spared: replicas", "body.*", "those that are named are forgotten, not all of the set"),
        at("alone: (the only member cleaned|afterwards, .*)", "code|remark|field .*|body.*", "the only broker in sync is not forgotten, since nobody could be elected any more; the others stay in the set, with their ids")
    );

    /** Of what {@link LaterQuestions} asks. */
    static final List<Reason> LATER = List.of(
        at(".*", "remark", "not set any response code \\| null", "Apache leaves its own default in the remark of a success"),
        at("(light|batches): .*", "remark", " \\| null", "Apache says an empty remark"),
        at(".*", "remark", ".*consumer:\\[/CLIENT\\] \\| .*consumer:\\[CLIENT\\]", "an address without Java's slash"),
        at(".*: (no such topic|empty topic)", "remark", ".*please! \n.* \\| .*please!\n.*", "without a blank at the end of a line"),
        at(".*", "remark", ".*(Exception|Cannot invoke).* \\| .*", "a sentence that names the field instead of a Java exception"),
        at("missing: .*|.*: (queue is no number|no handle)", "(code|remark|body.*|field .*|message .*)", ".* \\| (1|field .*|\\(absent\\))", "a required field that is missing or wrong is named, whether or not Apache gets by without it"),
        at("(ack|change): (empty|short) handle|(ack|change): garbage for a handle|batches: garbage", "code|field .*", "what is illegal is answered as illegal"),
        at("batch ack: (nothing|garbage)", "code|remark", "the body is a parameter"),
        at("recall: no topic", "field MSG_REGION", "answers to recalls carry it, also refusals"),
        at("(pop|peek|notification|polling|change): .*", "field .*", ".* \\| \\(absent\\)", "a refusal carries no fields of a success"),
        at("(pop|change|timers|recall|batches|batch ack): .*|ack: in order, what was not popped", "remark", "also says why"),
        // What is stored.
        at(".*", "field msgId|message . (bytes|log offset)", "a property without a value is kept, and room is left for the number of a batch, so places in the log differ"),
        at("batches: .*", "message . property INNER_BASE", "0 \\| 0+", "room for the largest number"),
        at("batches: start of none", "field offset", "-1 \\| 0", "an empty queue begins at 0, as others do"),
        at("light: sent to itself", "field queueOffset", "numbered behind what stands there"),
        at("timers: in a batch", "code|field .*", "a batch that is to wait is refused"),
        at("timers: (directly into their topic|later|end)", "field (queueOffset|offset)", "that batch has a place there"),
        // Pops.
        sometimes(".*", "field reviveQid", ".*", "revive queues take turns, and looks are counted"),
        at("pop: none", "code|remark", "a number of messages that makes no sense is named"),
        at("pop: (condition while switched off|negative invisible time|unknown mode|another expression)", "code|remark|field .*|message .*", "what the broker will not do is refused, not passed over"),
        at("ack: long over", "code|remark", "who comes too late is told, and the message comes again")
    );
}
