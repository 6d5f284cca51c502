//! The table of commands: RocketMQ's name, the file and struct that holds its options and does it, and what it does.

use anyhow::Result;
use clap::Subcommand;

use super::session::Session;
use super::*;

macro_rules! commands {
    ($($title:literal { $($name:literal $family:ident::$command:ident $about:literal)* })*) => {
        /// Every command of `mqadmin`.
        #[derive(Debug, Subcommand)]
        pub enum AdminCommand {
            $($(
                #[doc = $about]
                #[command(name = $name)]
                $command(Box<$family::$command>),
            )*)*
        }

        /// The families in which the help lists them: a title, and each command with what it does.
        const FAMILIES: &[(&str, &[(&str, &str)])] = &[$( ($title, &[$( ($name, $about) ),*]) ),*];

        impl AdminCommand {
            /// Does it.
            pub(super) async fn run(self, session: &Session) -> Result<()> {
                match self {
                    $($( AdminCommand::$command(command) => command.run(session).await, )*)*
                }
            }
        }
    };
}

commands! {
    "Topics" {
        "updateTopic" topic::UpdateTopic "Make or change a topic"
        "updateTopicList" topic::UpdateTopicList "Make or change the topics of a JSON file"
        "deleteTopic" topic::DeleteTopicCommand "Delete a topic from the brokers of a cluster and from the name servers"
        "updateTopicPerm" topic::UpdateTopicPerm "Change who may read and write a topic"
        "topicRoute" topic::TopicRoute "Show where a topic is"
        "topicStatus" topic::TopicStatus "Show the offsets of a topic's queues"
        "topicClusterList" topic::TopicClusterList "Show which clusters hold a topic"
        "topicList" topic::TopicList "List the topics that the name servers know"
        "updateOrderConf" order::UpdateOrderConf "Set, show or delete which queues an ordered topic has"
        "allocateMQ" order::AllocateMQ "Show how consumers would share a topic's queues"
        "updateStaticTopic" static_topic::UpdateStaticTopic "Make or change a topic with a fixed number of queues over all brokers"
        "remappingStaticTopic" static_topic::RemappingStaticTopic "Move the queues of a static topic to other brokers"
        "statsAll" stats::StatsAll "Show rates and backlog of topics and groups"
    }
    "Groups and offsets" {
        "updateSubGroup" group::UpdateSubGroup "Make or change a subscription group"
        "updateSubGroupList" group::UpdateSubGroupList "Make or change the subscription groups of a JSON file"
        "deleteSubGroup" group::DeleteSubGroup "Delete a subscription group"
        "setConsumeMode" group::SetConsumeMode "Set whether a group pulls or pops a topic"
        "getConsumerConfig" group::GetConsumerConfig "Show a subscription group on every broker"
        "consumerProgress" progress::ConsumerProgress "Show how far groups are behind"
        "consumerStatus" consumer::ConsumerStatus "Ask the consumers of a group what they are doing"
        "consumerConnection" connection::ConsumerConnection "Show who consumes in a group"
        "producerConnection" connection::ProducerConnection "Show who produces in a group"
        "producer" connection::Producer "Show all producers of a broker"
        "cloneGroupOffset" offset::CloneGroupOffset "Copy the offsets of a group to another one"
        "resetOffsetByTime" offset::ResetOffsetByTime "Set the offsets of a group to a time"
        "resetOffsetByTimeOld" offset::ResetOffsetByTimeOld "Set the offsets of a group without asking its consumers"
        "skipAccumulatedMessage" offset::SkipAccumulatedMessage "Let a group skip all that it has not consumed"
        "startMonitoring" monitor::StartMonitoring "Watch all groups and tell which fall behind"
    }
    "Brokers" {
        "brokerStatus" broker::BrokerStatus "Show a broker's figures"
        "brokerConsumeStats" broker::BrokerConsumeStats "Show how far all groups of a broker are behind"
        "getBrokerConfig" configuration::GetBrokerConfig "Show a broker's configuration"
        "updateBrokerConfig" configuration::UpdateBrokerConfig "Change a broker's configuration while it runs"
        "cleanExpiredCQ" broker::CleanExpiredCQ "Remove consume queue files that no message needs"
        "cleanUnusedTopic" broker::CleanUnusedTopic "Remove consume queues of topics that are gone"
        "deleteExpiredCommitLog" broker::DeleteExpiredCommitLog "Remove commit log files that are past their time"
        "resetMasterFlushOffset" broker::ResetMasterFlushOffset "Tell a slave how far its master has flushed"
        "switchTimerEngine" broker::SwitchTimerEngine "Switch the engine of timed messages"
        "getColdDataFlowCtrInfo" cold_data::GetColdDataFlowCtrInfo "Show which groups read old data, and how much they may"
        "updateColdDataFlowCtrGroupConfig" cold_data::UpdateColdDataFlowCtrGroupConfig "Set how much old data a group may read"
        "removeColdDataFlowCtrGroupConfig" cold_data::RemoveColdDataFlowCtrGroupConfig "Let a group read old data as all others"
        "setCommitLogReadAheadMode" cold_data::SetCommitLogReadAheadMode "Set how the commit log is read ahead"
    }
    "Messages and queues" {
        "queryMsgById" message::QueryMsgById "Show messages by offset id"
        "queryMsgByKey" message::QueryMsgByKey "Find messages by key"
        "queryMsgByUniqueKey" message::QueryMsgByUniqueKey "Find messages by the id that their producer gave them"
        "queryMsgByOffset" message::QueryMsgByOffset "Show the message at a place of a queue"
        "queryMsgTraceById" trace::QueryMsgTraceById "Show what happened to a message"
        "printMsg" print::PrintMsg "Print the messages of a topic"
        "printMsgByQueue" print::PrintMsgByQueue "Print or count the messages of a queue"
        "consumeMessage" consume::ConsumeMessage "Read messages without committing anything"
        "dumpCompactionLog" consume::DumpCompactionLog "Print the messages in a file of compacted records"
        "sendMessage" send::SendMessage "Send a message"
        "sendMsgStatus" check::SendMsgStatus "Send messages to a broker and show how each fared"
        "checkMsgSendRT" check::CheckMsgSendRT "Measure how long sends to a topic take"
        "clusterRT" check::ClusterRT "Measure how long sends to every broker take, again and again"
        "queryCq" queue::QueryCq "Show the units of a consume queue"
        "checkRocksdbCqWriteProgress" rocksdb::CheckRocksdbCqWriteProgress "Compare consume queues in RocksDB with those in files"
    }
    "Clusters and name servers" {
        "clusterList" cluster::ClusterList "Show the clusters and their brokers"
        "updateKvConfig" namesrv::UpdateKvConfig "Set a key of the name servers"
        "deleteKvConfig" namesrv::DeleteKvConfig "Delete a key of the name servers"
        "getNamesrvConfig" configuration::GetNamesrvConfig "Show the configuration of the name servers"
        "updateNamesrvConfig" configuration::UpdateNamesrvConfig "Change the configuration of the name servers"
        "wipeWritePerm" namesrv::WipeWritePerm "Take a broker out of writing, in all name servers"
        "addWritePerm" namesrv::AddWritePerm "Put a broker back into writing, in all name servers"
    }
    "Exports" {
        "exportMetadata" export::ExportMetadata "Write topics and groups into a file"
        "exportConfigs" configuration::ExportConfigs "Write the brokers' main settings into a file"
        "exportMetrics" export::ExportMetrics "Write a report on load and versions into a file"
        "exportPopRecord" export::ExportPopRecord "Let brokers write their records of popped messages into the log"
        "exportMetadataInRocksDB" rocksdb::ExportMetadataInRocksDb "Print what a RocksDB of a broker holds"
        "rocksDBConfigToJson" rocksdb::RocksDbConfigToJson "Let brokers write what RocksDB holds into JSON files"
    }
    "Replication, controllers and containers" {
        "haStatus" ha::HaStatus "Show how replication goes"
        "switchMaster" switch::SwitchMaster "Make another broker of a set the master, by hand"
        "getSyncStateSet" ha::GetSyncStateSet "Show which replicas keep up, as a controller knows it"
        "getBrokerEpoch" ha::GetBrokerEpoch "Show the epochs of brokers' logs"
        "getControllerMetaData" controller::GetControllerMetaData "Show who leads the controllers"
        "getControllerConfig" configuration::GetControllerConfig "Show the configuration of controllers"
        "updateControllerConfig" configuration::UpdateControllerConfig "Change the configuration of controllers"
        "electMaster" controller::ElectMaster "Make a broker the master"
        "cleanBrokerMetadata" controller::CleanBrokerMetadata "Let the controllers forget brokers"
        "addBroker" container::AddBroker "Start a broker in a container"
        "removeBroker" container::RemoveBroker "Stop a broker in a container"
    }
    "Users and access" {
        "createUser" user::CreateUser "Make a user"
        "updateUser" user::UpdateUser "Change a user"
        "deleteUser" user::DeleteUser "Delete a user"
        "getUser" user::GetUser "Show a user"
        "listUser" user::ListUser "List users"
        "copyUser" user::CopyUser "Copy users from a broker to another one"
        "createAcl" acl::CreateAcl "Make rules of what a subject may do"
        "updateAcl" acl::UpdateAcl "Change rules of what a subject may do"
        "deleteAcl" acl::DeleteAcl "Delete rules of what a subject may do"
        "getAcl" acl::GetAcl "Show the rules of a subject"
        "listAcl" acl::ListAcl "List rules"
        "copyAcl" acl::CopyAcl "Copy rules from a broker to another one"
    }
    "Lite topics" {
        "getBrokerLiteInfo" lite::GetBrokerLiteInfo "Show a broker's figures of lite topics"
        "getParentTopicInfo" lite::GetParentTopicInfo "Show a topic that holds lite topics"
        "getLiteTopicInfo" lite::GetLiteTopicInfo "Show a lite topic"
        "getLiteClientInfo" lite::GetLiteClientInfo "Show which lite topics a client subscribes to"
        "getLiteGroupInfo" lite::GetLiteGroupInfo "Show how far a group is behind in its lite topics"
        "triggerLiteDispatch" lite::TriggerLiteDispatch "Let brokers tell clients once more which lite topics have messages"
    }
}

/// The list of commands that the help shows, by family.
pub(super) fn families() -> String {
    let width = FAMILIES.iter().flat_map(|(_, commands)| *commands).map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (title, commands) in FAMILIES {
        text += &format!("{title}:\n");
        for (name, about) in *commands {
            text += &format!("  {name:width$}  {about}\n");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}
