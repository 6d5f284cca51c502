//! Keys of RocketMQ's `NamesrvConfig`.

use super::kinds::{BOOL, INT, SPAN, TEXT};
use super::reasons::*;
use super::table::table;
use crate::key::{Key, Kind, Section};

/// A route of a topic takes some 200 bytes of the name server.
const ROUTES: Kind = Kind::Number { min: 1, max: 100_000_000, scaled: false };
const BROKERS: Kind = Kind::Number { min: 1, max: 1_000_000, scaled: false };
/// As many as a broker of ours makes at most, by default.
const TOPIC_QUEUES: Kind = Kind::Number { min: 1, max: i32::MAX as i64, scaled: false };
/// Less would refuse names that brokers have by default.
const NAME: Kind = Kind::Number { min: 64, max: 65_536, scaled: false };
const ENTRIES: Kind = Kind::Number { min: 0, max: 10_000_000, scaled: false };
/// The answer to request 219 and to each registration has to fit into a frame of 16 MiB.
const KV_BYTES: Kind = Kind::Number { min: 0, max: 12 << 20, scaled: false };

table! {
    /// The name server.
    NAMES: Section::Names;

    accepted(HOME)      "rocketmqHome"                         TEXT ~ "$ROCKETMQ_HOME" "installation dir (env ROCKETMQ_HOME)";
    used                "kvConfigPath"                         TEXT ~ "~/namesrv/kvConfig.json; ./data/namesrv/kvConfig.json for `gantry server`" "KV store file";
    used                "configStorePath"                      TEXT ~ "~/namesrv/namesrv.properties; ./data/namesrv/namesrv.properties for `gantry server`" "namesrv config file";
    accepted(LABEL)     "productEnvName"                       TEXT = "center" "environment label";
    off(CLUSTER_TEST)   "clusterTest"                          BOOL = "false"  "test mode: unknown topics resolved by address server";
    live                "orderMessageEnable"                   BOOL = "false"  "attach orderTopicConf";
    live                "returnOrderTopicConfigToBroker"       BOOL = "true"   "send order KV to brokers";
    not_needed(POOLS)   "clientRequestThreadPoolNums"          INT  = "8"      "route query threads";
    not_needed(POOLS)   "defaultThreadPoolNums"                INT  = "16"     "other request threads";
    not_needed(QUEUES)  "clientRequestThreadPoolQueueCapacity" INT  = "50000"  "route queue";
    not_needed(QUEUES)  "defaultThreadPoolQueueCapacity"       INT  = "10000"  "other queue";
    live                "scanNotActiveBrokerInterval"          SPAN = "5000"   "expiry scan ms";
    not_needed(QUEUES)  "unRegisterBrokerQueueCapacity"        INT  = "3000"   "unregister batch queue";
    live                "supportActingMaster"                  BOOL = "false"  "publish min-id slave as 0";
    live                "enableAllTopicList"                   BOOL = "true"   "answer topic list 206";
    live                "enableTopicList"                      BOOL = "true"   "answer topics by cluster/unit lists";
    live                "notifyMinBrokerIdChanged"             BOOL = "false"  "push 905";
    used                "enableControllerInNamesrv"            BOOL = "false"  "run a controller in this process";
    live                "needWaitForService"                   BOOL = "false"  "delay route answers after start";
    live                "waitSecondsForService"                SPAN = "45"     "that delay";
    live                "deleteTopicWithBrokerRegistration"    BOOL = "false"  "remove topics missing in registration";
    live                "brokersMax"                           BROKERS = "10000"    "ours: brokers that may be registered, by address and by name; more are refused";
    live                "topicsMax"                            ROUTES  = "1000000"  "ours: names of topics that may be registered; more are left out of the routes, with a WARN";
    live                "topicRoutesMax"                       ROUTES  = "2000000"  "ours: the same, each topic counted once for each broker name that serves it; one takes some 200 bytes";
    live                "topicQueuesMax"                       TOPIC_QUEUES = "65536"   "ours: readQueueNums and writeQueueNums of a topic at one broker; a topic with more is left out";
    live                "nameBytesMax"                         NAME    = "512"      "ours: bytes of a name (cluster, broker, topic, namespace, key) or an address";
    live                "kvEntriesMax"                         ENTRIES = "100000"   "ours: key-value settings; more are refused";
    live                "kvValueBytesMax"                      KV_BYTES = "131072"  "ours: bytes of the value of one key-value setting";
    live                "kvBytesMax"                           KV_BYTES = "8388608" "ours: bytes of all key-value settings with their namespaces and keys; the file is written anew with each change";
    used                "configBlackList"                      TEXT = "configBlackList;configStorePath;kvConfigPath" "keys not updatable remotely, ';'";
}
