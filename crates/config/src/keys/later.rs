//! Keys of processes and features that this version does not have: known, so that a file which holds them is answered by name.

use super::kinds::{BOOL, INT, LONG, SPAN, TEXT};
use super::reasons::*;
use super::table::table;
use crate::key::{Key, Section};

table! {
    /// Access control.
    AUTH: Section::Auth;

    off(ACCESS)    "configName"                               TEXT = ""       "";
    off(ACCESS)    "clusterName"                              TEXT = ""       "";
    off(ACCESS)    "authConfigPath"                           TEXT = ""       "";
    refused(GUARD) "authenticationEnabled"                    BOOL = "false"  "";
    off(ACCESS)    "authenticationProvider"                   TEXT = ""       "";
    off(ACCESS)    "authenticationMetadataProvider"           TEXT = ""       "";
    off(ACCESS)    "authenticationStrategy"                   TEXT = ""       "";
    off(ACCESS)    "authenticationWhitelist"                  TEXT = ""       "";
    off(ACCESS)    "initAuthenticationUser"                   TEXT = ""       "";
    off(ACCESS)    "innerClientAuthenticationCredentials"     TEXT = ""       "";
    refused(GUARD) "authorizationEnabled"                     BOOL = "false"  "";
    off(ACCESS)    "authorizationProvider"                    TEXT = ""       "";
    off(ACCESS)    "authorizationMetadataProvider"            TEXT = ""       "";
    off(ACCESS)    "authorizationStrategy"                    TEXT = ""       "";
    off(ACCESS)    "authorizationWhitelist"                   TEXT = ""       "";
    off(ACCESS)    "migrateAuthFromV1Enabled"                 BOOL = "false"  "";
    off(ACCESS)    "userCacheMaxNum"                          INT  = "1000"   "";
    off(ACCESS)    "userCacheExpiredSecond"                   INT  = "600"    "";
    off(ACCESS)    "userCacheRefreshSecond"                   INT  = "60"     "";
    off(ACCESS)    "aclCacheMaxNum"                           INT  = "1000"   "";
    off(ACCESS)    "aclCacheExpiredSecond"                    INT  = "600"    "";
    off(ACCESS)    "aclCacheRefreshSecond"                    INT  = "60"     "";
    off(ACCESS)    "statefulAuthenticationCacheMaxNum"        INT  = "10000"  "";
    off(ACCESS)    "statefulAuthenticationCacheExpiredSecond" INT  = "60"     "";
    off(ACCESS)    "statefulAuthorizationCacheMaxNum"         INT  = "10000"  "";
    off(ACCESS)    "statefulAuthorizationCacheExpiredSecond"  INT  = "60"     "";
}

table! {
    /// The controller, alone or inside a name server, and its JRaft.
    CONTROLLER_KEYS: Section::Controller;

    off(CONTROLLER) "rocketmqHome"                             TEXT ~ "$ROCKETMQ_HOME" "";
    off(CONTROLLER) "configStorePath"                          TEXT ~ "~/namesrv/namesrv.properties; ./data/namesrv/namesrv.properties for `gantry server`" "";
    off(CONTROLLER) "jraftConfig"                              TEXT = ""       "";
    off(CONTROLLER) "controllerType"                           TEXT = "DLEDGER_CONTROLLER" "";
    off(CONTROLLER) "scanNotActiveBrokerInterval"              SPAN = "5000"   "";
    off(CONTROLLER) "controllerThreadPoolNums"                 INT  = "16"     "";
    off(CONTROLLER) "controllerRequestThreadPoolQueueCapacity" INT  = "50000"  "";
    off(CONTROLLER) "controllerDLegerGroup"                    TEXT = ""       "";
    off(CONTROLLER) "controllerDLegerPeers"                    TEXT = ""       "";
    off(CONTROLLER) "controllerDLegerSelfId"                   TEXT = ""       "";
    off(CONTROLLER) "mappedFileSize"                           INT  = "1073741824" "";
    off(CONTROLLER) "controllerStorePath"                      TEXT = ""       "";
    off(CONTROLLER) "electMasterMaxRetryCount"                 INT  = "3"      "";
    off(CONTROLLER) "enableElectUncleanMaster"                 BOOL = "false"  "";
    off(CONTROLLER) "isProcessReadEvent"                       BOOL = "false"  "";
    off(CONTROLLER) "processReadEvent"                         BOOL = "false"  "";
    off(CONTROLLER) "notifyBrokerRoleChanged"                  BOOL = "true"   "";
    off(CONTROLLER) "scanInactiveMasterInterval"               LONG = "5000"   "";
    off(CONTROLLER) "metricsExporterType"                      TEXT = "DISABLE" "";
    off(CONTROLLER) "metricsGrpcExporterTarget"                TEXT = ""       "";
    off(CONTROLLER) "metricsGrpcExporterHeader"                TEXT = ""       "";
    off(CONTROLLER) "metricGrpcExporterTimeOutInMills"         LONG = "3000"   "";
    off(CONTROLLER) "metricGrpcExporterIntervalInMills"        LONG = "60000"  "";
    off(CONTROLLER) "metricLoggingExporterIntervalInMills"     LONG = "10000"  "";
    off(CONTROLLER) "metricsPromExporterPort"                  INT  = "5557"   "";
    off(CONTROLLER) "metricsPromExporterHost"                  TEXT = ""       "";
    off(CONTROLLER) "metricsLabel"                             TEXT = ""       "";
    off(CONTROLLER) "metricsInDelta"                           BOOL = "false"  "";
    off(CONTROLLER) "configBlackList"                          TEXT = "configBlackList;configStorePath" "";
    off(CONTROLLER) "jRaftElectionTimeoutMs"                   INT  = "1000"   "";
    off(CONTROLLER) "jRaftScanWaitTimeoutMs"                   INT  = "1000"   "";
    off(CONTROLLER) "jRaftSnapshotIntervalSecs"                INT  = "3600"   "";
    off(CONTROLLER) "jRaftGroupId"                             TEXT = "jRaft-Controller" "";
    off(CONTROLLER) "jRaftServerId"                            TEXT = "localhost:9880" "";
    off(CONTROLLER) "jRaftInitConf"                            TEXT = "localhost:9880,localhost:9881,localhost:9882" "";
    off(CONTROLLER) "jRaftControllerRPCAddr"                   TEXT = "localhost:9770,localhost:9771,localhost:9772" "";
}

table! {
    /// Several brokers in one process.
    CONTAINER_KEYS: Section::Container;

    off(CONTAINER) "rocketmqHome"                    TEXT ~ "$ROCKETMQ_HOME" "";
    off(CONTAINER) "namesrvAddr"                     TEXT ~ "$NAMESRV_ADDR" "";
    off(CONTAINER) "fetchNameSrvAddrByDnsLookup"     BOOL = "false"  "";
    off(CONTAINER) "fetchNamesrvAddrByAddressServer" BOOL = "false"  "";
    off(CONTAINER) "brokerContainerIP"               TEXT = "first non-loopback address" "";
    off(CONTAINER) "brokerConfigPaths"               TEXT = ""       "";
    off(CONTAINER) "fetchNamesrvAddrInterval"        LONG = "10000"  "";
    off(CONTAINER) "updateNamesrvAddrInterval"       LONG = "120000" "";
    off(CONTAINER) "configBlackList"                 TEXT = "configBlackList;brokerConfigPaths" "";
}
