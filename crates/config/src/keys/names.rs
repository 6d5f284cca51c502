//! Keys of RocketMQ's `NamesrvConfig`.

use super::kinds::{BOOL, INT, SPAN, TEXT};
use super::reasons::*;
use super::table;
use crate::key::{Key, Section};

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
    refused(CONTROLLER) "enableControllerInNamesrv"            BOOL = "false"  "embed controller";
    live                "needWaitForService"                   BOOL = "false"  "delay route answers after start";
    live                "waitSecondsForService"                SPAN = "45"     "that delay";
    live                "deleteTopicWithBrokerRegistration"    BOOL = "false"  "remove topics missing in registration";
    used                "configBlackList"                      TEXT = "configBlackList;configStorePath;kvConfigPath" "keys not updatable remotely, ';'";
}
