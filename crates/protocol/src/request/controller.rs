//! What operators ask a controller: 1002, 1005, 1011. (1006, 1009 and 1010 have no fields.)

use super::field::headers;

headers! {
    /// 1002: elect a master.
    ElectMaster<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
        broker_id: i64 = "brokerId",
        designate_elect: bool = "designateElect" or false,
        invoke_time: Option<i64> = "invokeTime",
    }

    /// The answer to 1002.
    ElectMasterReply<'a> {
        master_broker_id: Option<i64> = "masterBrokerId",
        master_address: Option<&'a str> = "masterAddress",
        master_epoch: Option<i32> = "masterEpoch",
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
    }

    /// The answer to 1005: who leads the controllers.
    GetControllerMetadataReply<'a> {
        group: Option<&'a str> = "group",
        controller_leader_id: Option<&'a str> = "controllerLeaderId",
        controller_leader_address: Option<&'a str> = "controllerLeaderAddress",
        is_leader: Option<bool> = "isLeader",
        peers: Option<&'a str> = "peers",
    }

    /// 1011: forget brokers that are gone.
    CleanBrokerData<'a> {
        cluster_name: Option<&'a str> = "clusterName",
        broker_name: &'a str = "brokerName",
        broker_controller_ids_to_clean: Option<&'a str> = "brokerControllerIdsToClean",
        is_clean_living_broker: bool = "isCleanLivingBroker" or false,
        invoke_time: Option<i64> = "invokeTime",
    }
}
