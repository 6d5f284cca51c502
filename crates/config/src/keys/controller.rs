//! Keys of RocketMQ's `ControllerConfig` and `JraftConfig`.

use super::kinds::{BOOL, CONTROLLER_TYPE, INT, LONG, SPAN, TEXT};
use super::reasons::*;
use super::table::table;
use crate::key::{Key, Section};

table! {
    /// The controller, alone or inside a name server.
    CONTROLLER: Section::Controller;

    used                     "controllerType"                           CONTROLLER_TYPE = "DLedger" "which of the keys below name the controllers: those with DLeger, or those of jRaft";
    used                     "controllerDLegerGroup"                    TEXT = "controllers" "name of the group of controllers";
    used                     "controllerDLegerPeers"                    TEXT ~ "this machine, port 9878" "the controllers of the group, `n0-HOST:PORT;n1-HOST:PORT`: where each listens and is reached by brokers and by the others";
    used                     "controllerDLegerSelfId"                   TEXT = "n0"     "which of them this one is";
    used                     "controllerStorePath"                      TEXT ~ "~/DledgerController; ./data/controller for `gantry server`" "folder of the controller; not to be shared with one of RocketMQ";
    used                     "enableElectUncleanMaster"                 BOOL = "false"  "elect a broker that is not in sync where none that is lives: what it lacks is lost; live, by updateControllerConfig";
    used                     "notifyBrokerRoleChanged"                  BOOL = "true"   "tell brokers of elections (1008); live, by updateControllerConfig";
    used                     "configBlackList"                          TEXT = "configBlackList;configStorePath" "keys not updatable remotely, ';'";
    used                     "jRaftGroupId"                             TEXT = "jRaft-Controller" "with controllerType=jRaft: the name of the group";
    used                     "jRaftServerId"                            TEXT = "localhost:9880" "with jRaft: this controller in jRaftInitConf";
    used                     "jRaftInitConf"                            TEXT = "localhost:9880,localhost:9881,localhost:9882" "with jRaft: the controllers, in the order of jRaftControllerRPCAddr";
    used                     "jRaftControllerRPCAddr"                   TEXT = "localhost:9770,localhost:9771,localhost:9772" "with jRaft: where they listen and are reached";
    accepted(HOME)           "rocketmqHome"                             TEXT ~ "$ROCKETMQ_HOME" "";
    accepted(CONTROLLER_SETTINGS) "configStorePath"                     TEXT ~ "~/namesrv/namesrv.properties; ./data/namesrv/namesrv.properties for `gantry server`" "";
    accepted(JRAFT_OBJECT)   "jraftConfig"                              TEXT = ""       "";
    not_needed(LOOKS)        "scanNotActiveBrokerInterval"              SPAN = "5000"   "";
    not_needed(LOOKS)        "scanInactiveMasterInterval"               LONG = "5000"   "";
    not_needed(LOOKS)        "electMasterMaxRetryCount"                 INT  = "3"      "";
    not_needed(POOLS)        "controllerThreadPoolNums"                 INT  = "16"     "";
    not_needed(QUEUES)       "controllerRequestThreadPoolQueueCapacity" INT  = "50000"  "";
    not_needed(RAFT_LOG)     "mappedFileSize"                           INT  = "1073741824" "";
    not_needed(LEADER_READS) "isProcessReadEvent"                       BOOL = "false"  "";
    not_needed(LEADER_READS) "processReadEvent"                         BOOL = "false"  "";
    not_needed(RAFT_TIMES)   "jRaftElectionTimeoutMs"                   INT  = "1000"   "";
    not_needed(RAFT_TIMES)   "jRaftScanWaitTimeoutMs"                   INT  = "1000"   "";
    not_needed(RAFT_TIMES)   "jRaftSnapshotIntervalSecs"                INT  = "3600"   "";
    off(CONTROLLER_METRICS)  "metricsExporterType"                      TEXT = "DISABLE" "";
    off(CONTROLLER_METRICS)  "metricsGrpcExporterTarget"                TEXT = ""       "";
    off(CONTROLLER_METRICS)  "metricsGrpcExporterHeader"                TEXT = ""       "";
    off(CONTROLLER_METRICS)  "metricGrpcExporterTimeOutInMills"         LONG = "3000"   "";
    off(CONTROLLER_METRICS)  "metricGrpcExporterIntervalInMills"        LONG = "60000"  "";
    off(CONTROLLER_METRICS)  "metricLoggingExporterIntervalInMills"     LONG = "10000"  "";
    off(CONTROLLER_METRICS)  "metricsPromExporterPort"                  INT  = "5557"   "";
    off(CONTROLLER_METRICS)  "metricsPromExporterHost"                  TEXT = ""       "";
    off(CONTROLLER_METRICS)  "metricsLabel"                             TEXT = ""       "";
    off(CONTROLLER_METRICS)  "metricsInDelta"                           BOOL = "false"  "";
}
