//! Upkeep of a broker: 354, 355, 902, 903, 906, 908, 1008, 2004, 5001, and our own 30002, 30004 to
//! 30006.

use super::field::headers;

/// Stands in the answer to 30006 of a broker that is no master. It has done nothing.
pub const NOT_MASTER: &str = "notMaster";

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

    /// 30006, our own: a slave asks its master in the name of a client. The body is the client's
    /// request as a frame, as the client wrote it. The answer is that to the client's request;
    /// [`NOT_MASTER`] stands in it if this broker is no master, and nothing was done then.
    /// `client`: where the client is, as `IP:PORT`.
    AskForClient<'a> {
        client: &'a str = "client",
    }

    /// 908: what a slave believes that its master has flushed.
    ResetMasterFlushOffset {
        master_flush_offset: i64 = "masterFlushOffset",
    }

    /// 30002, our own: a slave asks its master for a piece of the journal, which has what is not in the log. The answer's body are changes as
    /// `journal::read_changes` reads them.
    ///
    /// `from`: the slave has all changes up to this position of the master's run `life`, as an answer told it; 0 and `0`: it begins anew. `piece`:
    /// how many pieces it has had since, of a bundle or a snapshot that has more. It waits `waitMillis` ms for a change at most. `written`: up to this
    /// position of that run all changes are in force at the slave and written into its own journal; none while it gathers all rows.
    CopyJournal<'a> {
        broker_name: &'a str = "brokerName",
        broker_cluster_name: &'a str = "brokerClusterName",
        broker_id: i64 = "brokerId",
        life: &'a str = "life",
        from: i64 = "from",
        piece: i64 = "piece" or 0,
        wait_millis: i32 = "waitMillis" or 0,
        max_bytes: i32 = "maxBytes",
        written: Option<i64> = "written",
    }

    /// The answer to 30002: the piece `piece` behind `from`, which is the first behind 0 if the master's run `life` is another one than was asked for.
    ///
    /// The slave is at `position` when it has this piece; with `hasMore`, when it has all pieces of the same bundle or snapshot. A snapshot takes
    /// the place of all that the slave had before `beginsSnapshot`; it may lack what was put together with a change that it has, so the tables are
    /// those of the master from `wholeFrom` on. `journalEnd`, `logEnd`: where the master's journal and log ended then. All that the changes speak
    /// of lies before that end of the log.
    CopyJournalReply<'a> {
        life: &'a str = "life",
        from: i64 = "from",
        piece: i64 = "piece",
        position: i64 = "position",
        has_more: bool = "hasMore" or false,
        begins_snapshot: bool = "beginsSnapshot" or false,
        whole_from: i64 = "wholeFrom" or 0,
        journal_end: i64 = "journalEnd",
        log_end: i64 = "logEnd",
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
