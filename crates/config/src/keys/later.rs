//! Keys of processes and features that this version does not have: known, so that a file which holds them is answered by name.

use super::kinds::{BOOL, INT, LONG, TEXT};
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
