//! What brokers and operators ask a controller: 1001 to 1005, 1011 to 1013. (1006, 1009 and 1010
//! have no fields.)

use super::field::headers;

headers! {
    /// 1001: the master says which replicas are in sync. The body is a
    /// [`crate::body::SyncStateSet`].
    AlterSyncStateSet<'a> {
        broker_name: &'a str = "brokerName",
        master_broker_id: i64 = "masterBrokerId",
        master_epoch: i32 = "masterEpoch",
        invoke_time: Option<i64> = "invokeTime",
    }

    /// The answer to 1001; its body is the new [`crate::body::SyncStateSet`].
    AlterSyncStateSetReply {
        new_sync_state_set_epoch: i32 = "newSyncStateSetEpoch" or 0,
    }

    /// 1003: a broker that has its id says where it is, and asks who is master.
    RegisterBrokerToController<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
        broker_id: i64 = "brokerId",
        broker_address: &'a str = "brokerAddress",
        invoke_time: Option<i64> = "invokeTime",
    }

    /// The answer to 1003. The master's fields are there if it is alive; the body is the
    /// [`crate::body::SyncStateSet`] then.
    RegisterBrokerToControllerReply<'a> {
        cluster_name: Option<&'a str> = "clusterName",
        broker_name: Option<&'a str> = "brokerName",
        master_broker_id: Option<i64> = "masterBrokerId",
        master_address: Option<&'a str> = "masterAddress",
        master_epoch: Option<i32> = "masterEpoch",
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
    }

    /// 1004: who is the master of this set.
    GetReplicaInfo<'a> {
        broker_name: &'a str = "brokerName",
    }

    /// The answer to 1004; its body is the [`crate::body::SyncStateSet`].
    GetReplicaInfoReply<'a> {
        master_broker_id: Option<i64> = "masterBrokerId",
        master_address: Option<&'a str> = "masterAddress",
        master_epoch: Option<i32> = "masterEpoch",
    }

    /// 1012: which id a new broker of this set would get.
    GetNextBrokerId<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
    }

    /// The answer to 1012.
    GetNextBrokerIdReply<'a> {
        cluster_name: Option<&'a str> = "clusterName",
        broker_name: Option<&'a str> = "brokerName",
        next_broker_id: Option<i64> = "nextBrokerId",
    }

    /// 1013: a broker takes that id. A controller tells the broker by its check code, `ADDRESS;MS`:
    /// the broker's address and the time of its first request, in milliseconds since 1970.
    ApplyBrokerId<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
        applied_broker_id: i64 = "appliedBrokerId",
        register_check_code: &'a str = "registerCheckCode",
    }

    /// The answer to 1013.
    ApplyBrokerIdReply<'a> {
        cluster_name: Option<&'a str> = "clusterName",
        broker_name: Option<&'a str> = "brokerName",
    }

    /// 1002: elect a master. `brokerId` is -1 where no broker asks for itself.
    ElectMaster<'a> {
        cluster_name: &'a str = "clusterName" or "",
        broker_name: &'a str = "brokerName" or "",
        broker_id: i64 = "brokerId" or -1,
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
