//! Upkeep of a broker: 354, 355, 902, 903, 906, 908, 1008, 2004, 5001, 30004, 30005.

use super::field::headers;

headers! {
    /// 354: do the consume queues in RocksDB and in files agree?
    CheckRocksdbCqWriteProgress<'a> {
        topic: &'a str = "topic",
        check_store_time: i64 = "checkStoreTime" or 0,
    }

    /// 355: write what RocksDB holds into the JSON files. Types are separated by semicolons.
    ExportRocksdbConfig<'a> {
        config_type: &'a str = "configType",
    }

    /// 902: start a broker in a container.
    AddBroker<'a> {
        config_path: &'a str = "configPath",
    }

    /// 903: stop a broker in a container.
    RemoveBroker<'a> {
        broker_name: &'a str = "brokerName",
        broker_cluster_name: &'a str = "brokerClusterName",
        broker_id: i64 = "brokerId",
    }

    /// 906: a slave that starts asks with nothing; who is told of a master is told all three.
    ExchangeHaInfo<'a> {
        master_ha_address: Option<&'a str> = "masterHaAddress",
        master_flush_offset: Option<i64> = "masterFlushOffset",
        master_address: Option<&'a str> = "masterAddress",
    }

    /// The answer to 906.
    ExchangeHaInfoReply<'a> {
        master_ha_address: Option<&'a str> = "masterHaAddress",
        master_flush_offset: Option<i64> = "masterFlushOffset",
        master_address: Option<&'a str> = "masterAddress",
    }

    /// 1008: a controller says who is master. The body is a [`crate::body::SyncStateSet`].
    NotifyBrokerRoleChanged<'a> {
        master_address: Option<&'a str> = "masterAddress",
        master_epoch: Option<i32> = "masterEpoch",
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
        master_broker_id: Option<i64> = "masterBrokerId",
    }

    /// 30004: a master is to let a slave of its set be the master.
    HandOverMaster<'a> {
        broker_addr: &'a str = "brokerAddr",
        broker_id: i64 = "brokerId",
    }

    /// 30005: a slave is to be the master, in this epoch. `logEnd`: where the log of the master ends that hands over; without it that one is gone.
    /// `brokerRole`: how it acknowledged.
    TakeOverMaster<'a> {
        epoch: i64 = "epoch",
        log_end: Option<i64> = "logEnd",
        broker_role: Option<&'a str> = "brokerRole",
    }

    /// 908: what a slave believes that its master has flushed.
    ResetMasterFlushOffset {
        master_flush_offset: i64 = "masterFlushOffset",
    }

    /// 2004: how the kernel is to read the commit log: 0 ahead, 1 at random.
    SetCommitLogReadMode<'a> {
        read_ahead_mode: &'a str = "READ_AHEAD_MODE",
    }

    /// 5001: `R` for a time line in RocksDB, `F` for the time wheel in files.
    SwitchTimerEngine<'a> {
        engine_type: &'a str = "E_T",
    }
}
