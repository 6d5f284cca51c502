//! The table of requests: what is known of each request code, one row a code.
//!
//! Dispatch, the rule of the second port, the choice between network worker and another thread,
//! metrics and docs follow from it. A server matches on [`RequestCode`] without a wildcard, so a
//! new row without an arm in the server that serves it does not compile. On the wire and in headers
//! a code stays an `i32`; [`request`] has the numbers for those that write requests.
//!
//! Rights are those that RocketMQ 5.5.0 asks for; a retry topic stands there for its group. All
//! names are RocketMQ's but those from 30001 to 30006 and from 31001 to 31003, which are our own:
//! `SEND_TOGETHER` ([`crate::together`]), `COPY_JOURNAL`, those of brokers that change their roles,
//! `ASK_FOR_CLIENT`, by which a slave passes on what only its master may do, and what controllers
//! say to each other (`RAFT_…`). Their numbers are far from RocketMQ's and fit into the 16 bits that
//! a binary header has for them.

use self::NamedIn::{Body, Every};

/// Where a server carries out a request.
///
/// A thread that serves connections carries out only what costs at most some 2 ms, however large
/// the tables are: while it computes, it reads no other connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runs {
    /// On the network worker of its connection: neither a table nor the request's length decides
    /// what it costs.
    OnWorker,
    /// On the network worker if the request, and what it is about, are small; otherwise beside.
    BySize,
    /// On a thread that serves no connection: its cost grows with a table, or it waits for the
    /// device.
    Beside,
    /// Nowhere: a server sends it, or refuses it.
    Unserved,
}

/// The program that answers a request; every other one refuses it as unsupported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServedBy {
    /// A broker.
    Broker,
    /// A name server.
    NameServer,
    /// A controller.
    Controller,
    /// A process that holds several brokers.
    Container,
    /// A client: its broker asks it.
    Client,
    /// None: declared in RocketMQ without a handler, gone from it, or not yet in it.
    Nobody,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the rows show what belongs to each")]
pub enum Family {
    Send,
    Reply,
    Pull,
    Pop,
    Lite,
    Query,
    Transaction,
    Timer,
    Offsets,
    Clients,
    Topics,
    Groups,
    Routes,
    Settings,
    Replication,
    Controller,
    Container,
    Admin,
    Auth,
}

/// What a user does to a topic, a group or the cluster, in the words of RocketMQ's access rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum Action {
    Pub,
    Sub,
    Create,
    Update,
    Delete,
    Get,
    List,
}

/// Where a request says which topic or group it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedIn {
    /// It is about none.
    Nothing,
    /// In this field of the header.
    Field(&'static str),
    /// In its body, which may name several.
    Body,
    /// It names none, since it is about all of them.
    Every,
}

/// The topics or the groups of a request, and what it does to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where they are named.
    pub by: NamedIn,
    /// The user needs a right to one of these actions on each; to none if the list is empty.
    pub needs: &'static [Action],
}

/// What a request adds to the sends that a connection gathers, to append them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathers {
    /// One send: a message, or a batch.
    Send,
    /// Several sends.
    Sends,
    /// The mark that takes a message back.
    Recall,
    /// Nothing: it waits until the sends before it are appended, and finds them.
    Nothing,
}

/// What is known of a request code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// The number that stands for it on the wire.
    pub number: i32,
    /// RocketMQ's name.
    pub name: &'static str,
    /// Which program answers it.
    pub served_by: ServedBy,
    /// What it is about.
    pub family: Family,
    /// Where it is carried out.
    pub runs: Runs,
    /// The topics that it names.
    pub topic: Named,
    /// The groups that it names.
    pub group: Named,
    /// The user needs a right to one of these actions on the cluster; to none if the list is empty.
    pub cluster: &'static [Action],
    /// What it adds to the sends of its connection.
    pub gathers: Gathers,
    /// Its answer is large and never waits for the journal.
    pub is_answered_at_once: bool,
    /// Served on the advertised port only: RocketMQ's second (VIP) port is there for sends, not to
    /// be held up by pulls.
    pub is_main_port_only: bool,
    /// Carried out by a master only: a slave refuses it, or passes it on.
    pub is_master_only: bool,
    /// Clients ask it, so that a slave may pass it on to its master. What operators ask is not:
    /// they mean the broker that they name.
    pub is_passed_on: bool,
}

/// The words of the rows. Without any of them a request names nothing, needs no right, waits for
/// gathered sends, and is served on every port, by masters and by slaves.
impl RequestRow {
    const fn new(number: i32, name: &'static str, served_by: ServedBy, family: Family, runs: Runs) -> RequestRow {
        let nothing = Named { by: NamedIn::Nothing, needs: NONE };
        RequestRow {
            number,
            name,
            served_by,
            family,
            runs,
            topic: nothing,
            group: nothing,
            cluster: NONE,
            gathers: Gathers::Nothing,
            is_answered_at_once: false,
            is_main_port_only: false,
            is_master_only: false,
            is_passed_on: false,
        }
    }

    const fn topic(self, field: &'static str, needs: &'static [Action]) -> RequestRow {
        RequestRow { topic: Named { by: NamedIn::Field(field), needs }, ..self }
    }

    const fn topics(self, by: NamedIn, needs: &'static [Action]) -> RequestRow {
        RequestRow { topic: Named { by, needs }, ..self }
    }

    const fn group(self, field: &'static str, needs: &'static [Action]) -> RequestRow {
        RequestRow { group: Named { by: NamedIn::Field(field), needs }, ..self }
    }

    const fn groups(self, by: NamedIn, needs: &'static [Action]) -> RequestRow {
        RequestRow { group: Named { by, needs }, ..self }
    }

    const fn cluster(self, needs: &'static [Action]) -> RequestRow {
        RequestRow { cluster: needs, ..self }
    }

    const fn gathers(self, gathers: Gathers) -> RequestRow {
        RequestRow { gathers, ..self }
    }

    const fn answered_at_once(self) -> RequestRow {
        RequestRow { is_answered_at_once: true, ..self }
    }

    const fn main_port_only(self) -> RequestRow {
        RequestRow { is_main_port_only: true, ..self }
    }

    const fn master_only(self) -> RequestRow {
        RequestRow { is_master_only: true, ..self }
    }

    const fn passed_on(self) -> RequestRow {
        RequestRow { is_master_only: true, is_passed_on: true, ..self }
    }
}

const NONE: &[Action] = &[];
const PUB: &[Action] = &[Action::Pub];
const SUB: &[Action] = &[Action::Sub];
const CREATE: &[Action] = &[Action::Create];
const UPDATE: &[Action] = &[Action::Update];
const DELETE: &[Action] = &[Action::Delete];
const GET: &[Action] = &[Action::Get];
const LIST: &[Action] = &[Action::List];
const SUB_OR_GET: &[Action] = &[Action::Sub, Action::Get];
const SUB_OR_UPDATE: &[Action] = &[Action::Sub, Action::Update];
const PUB_SUB_OR_GET: &[Action] = &[Action::Pub, Action::Sub, Action::Get];

macro_rules! request_codes {
    ($($served_by:ident {
        $($number:literal $name:ident $family:ident $runs:ident $(.$set:ident($($value:expr),*))*)*
    })*) => {
        /// What a request asks for.
        ///
        /// The variants are dense, so a match on them is one jump and the look at a row one index.
        /// On the wire goes [`RequestCode::number`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, non_camel_case_types, reason = "RocketMQ's names")]
        pub enum RequestCode {
            $($($name,)*)*
        }

        impl RequestCode {
            /// The code of a number, if it is one.
            pub const fn from_i32(number: i32) -> Option<RequestCode> {
                match number {
                    $($($number => Some(RequestCode::$name),)*)*
                    _ => None,
                }
            }
        }

        /// The numbers, for those that write requests.
        #[allow(missing_docs, reason = "RocketMQ's names")]
        pub mod request {
            $($(pub const $name: i32 = $number;)*)*
        }

        /// Every request code, by the server that answers it, then in the order of the numbers.
        pub const REQUESTS: &[RequestRow] = &[$($(
            RequestRow::new($number, stringify!($name), ServedBy::$served_by, Family::$family, Runs::$runs)
                $(.$set($($value),*))*,
        )*)*];

        /// A pattern: all codes of one [`ServedBy`](code::ServedBy), for the arm of a server's
        /// match that refuses what other programs answer.
        #[macro_export]
        macro_rules! requests_of {
            $(($served_by) => { $($crate::code::RequestCode::$name)|* };)*
        }
    };
}

impl RequestCode {
    /// What is known of it.
    #[inline]
    pub const fn row(self) -> &'static RequestRow {
        &REQUESTS[self as usize]
    }

    /// The number that stands for it on the wire.
    pub const fn number(self) -> i32 {
        self.row().number
    }

    /// RocketMQ's name, for logs and metrics.
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}

request_codes! {
    Broker {
        10 SEND_MESSAGE Send OnWorker .topic("topic", PUB).group("producerGroup", NONE).gathers(Gathers::Send).passed_on()
        11 PULL_MESSAGE Pull OnWorker .topic("topic", SUB).group("consumerGroup", SUB).answered_at_once().main_port_only()
        12 QUERY_MESSAGE Query Beside .topic("topic", SUB_OR_GET)
        14 QUERY_CONSUMER_OFFSET Offsets OnWorker .topic("topic", SUB_OR_GET).group("consumerGroup", SUB_OR_GET)
        15 UPDATE_CONSUMER_OFFSET Offsets OnWorker .topic("topic", SUB_OR_UPDATE).group("consumerGroup", SUB_OR_UPDATE).master_only()
        17 UPDATE_AND_CREATE_TOPIC Topics OnWorker .topic("topic", CREATE).master_only()
        18 UPDATE_AND_CREATE_TOPIC_LIST Topics Beside .topics(Body, CREATE).master_only()
        21 GET_ALL_TOPIC_CONFIG Topics Beside .topics(Every, LIST)
        25 UPDATE_BROKER_CONFIG Settings BySize
        26 GET_BROKER_CONFIG Settings Beside
        28 GET_BROKER_RUNTIME_INFO Admin Beside
        29 SEARCH_OFFSET_BY_TIMESTAMP Query OnWorker .topic("topic", GET)
        30 GET_MAX_OFFSET Query OnWorker .topic("topic", GET)
        31 GET_MIN_OFFSET Query OnWorker .topic("topic", GET)
        32 GET_EARLIEST_MSG_STORETIME Query OnWorker .topic("topic", GET)
        33 VIEW_MESSAGE_BY_ID Query OnWorker .topic("topic", GET)
        34 HEART_BEAT Clients BySize .topics(Body, SUB).groups(Body, SUB)
        35 UNREGISTER_CLIENT Clients BySize .group("consumerGroup", SUB)
        36 CONSUMER_SEND_MSG_BACK Send OnWorker .topic("originTopic", NONE).group("group", SUB).passed_on()
        37 END_TRANSACTION Transaction OnWorker .topic("topic", PUB).group("producerGroup", NONE).passed_on()
        38 GET_CONSUMER_LIST_BY_GROUP Clients BySize .group("consumerGroup", SUB_OR_GET)
        41 LOCK_BATCH_MQ Clients BySize .topics(Body, SUB).groups(Body, SUB).passed_on()
        42 UNLOCK_BATCH_MQ Clients BySize .topics(Body, SUB).groups(Body, SUB).passed_on()
        43 GET_ALL_CONSUMER_OFFSET Offsets Beside
        45 GET_ALL_DELAY_OFFSET Timer OnWorker
        46 CHECK_CLIENT_CONFIG Clients BySize .topics(Body, NONE).groups(Body, NONE)
        60 GET_TIMER_CHECK_POINT Timer Beside
        61 GET_TIMER_METRICS Timer Beside
        200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP Groups BySize .groups(Body, NONE).master_only()
        201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG Groups Beside .groups(Every, LIST)
        202 GET_TOPIC_STATS_INFO Topics Beside .topic("topic", GET)
        203 GET_CONSUMER_CONNECTION_LIST Clients BySize .group("consumerGroup", GET)
        204 GET_PRODUCER_CONNECTION_LIST Clients BySize .group("producerGroup", NONE).cluster(GET)
        207 DELETE_SUBSCRIPTIONGROUP Groups Beside .group("groupName", DELETE).master_only()
        208 GET_CONSUME_STATS Groups Beside .topic("topic", GET).group("consumerGroup", GET)
        215 DELETE_TOPIC_IN_BROKER Topics Beside .topic("topic", DELETE).master_only()
        222 INVOKE_BROKER_TO_RESET_OFFSET Offsets Beside .topic("topic", UPDATE).group("group", UPDATE).master_only()
        223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS Offsets Beside .topic("topic", GET).group("group", GET)
        225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST Groups Beside .groups(Body, NONE).master_only()
        300 QUERY_TOPIC_CONSUME_BY_WHO Topics Beside .topic("topic", GET)
        303 QUERY_CONSUME_TIME_SPAN Offsets Beside .topic("topic", GET).group("group", GET)
        305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER Topics Beside
        306 CLEAN_EXPIRED_CONSUMEQUEUE Admin OnWorker
        307 GET_CONSUMER_RUNNING_INFO Clients OnWorker .group("consumerGroup", GET)
        308 QUERY_CORRECTION_OFFSET Offsets Beside .topic("topic", GET).group("compareGroup", GET)
        309 CONSUME_MESSAGE_DIRECTLY Clients OnWorker .topic("topic", SUB).group("consumerGroup", SUB)
        310 SEND_MESSAGE_V2 Send OnWorker .topic("b", PUB).group("a", NONE).gathers(Gathers::Send).passed_on()
        314 CLONE_GROUP_OFFSET Offsets Beside .topic("topic", UPDATE).group("destGroup", UPDATE).master_only()
        315 VIEW_BROKER_STATS_DATA Admin OnWorker .cluster(GET)
        316 CLEAN_UNUSED_TOPIC Admin Beside .master_only()
        317 GET_BROKER_CONSUME_STATS Groups Beside .cluster(GET)
        320 SEND_BATCH_MESSAGE Send OnWorker .topic("b", PUB).group("a", NONE).gathers(Gathers::Send).passed_on()
        321 QUERY_CONSUME_QUEUE Query Beside .topic("topic", GET).group("consumerGroup", GET)
        323 RESUME_CHECK_HALF_MESSAGE Transaction OnWorker .topic("topic", UPDATE).master_only()
        324 SEND_REPLY_MESSAGE Reply OnWorker .topic("topic", NONE).group("producerGroup", NONE).passed_on()
        325 SEND_REPLY_MESSAGE_V2 Reply OnWorker .topic("b", NONE).group("a", NONE).passed_on()
        328 GET_ALL_PRODUCER_INFO Clients Beside .cluster(GET)
        329 DELETE_EXPIRED_COMMITLOG Admin OnWorker
        343 QUERY_TOPICS_BY_CONSUMER Groups Beside .group("group", GET)
        345 QUERY_SUBSCRIPTION_BY_CONSUMER Groups OnWorker .topic("topic", GET).group("group", GET)
        351 GET_TOPIC_CONFIG Topics OnWorker .topic("topic", GET)
        352 GET_SUBSCRIPTIONGROUP_CONFIG Groups OnWorker .group("group", GET)
        353 UPDATE_AND_GET_GROUP_FORBIDDEN Groups BySize .topic("topic", UPDATE).group("group", UPDATE).master_only()
        354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS Admin OnWorker .topic("topic", GET)
        355 EXPORT_ROCKSDB_CONFIG_TO_JSON Admin OnWorker .cluster(GET)
        361 LITE_PULL_MESSAGE Pull OnWorker .topic("topic", NONE).group("consumerGroup", NONE).answered_at_once().main_port_only()
        370 RECALL_MESSAGE Timer OnWorker .topic("topic", PUB).group("producerGroup", NONE).gathers(Gathers::Recall).passed_on()
        400 QUERY_ASSIGNMENT Clients BySize .topics(Body, NONE).groups(Body, NONE)
        401 SET_MESSAGE_REQUEST_MODE Pop BySize .topics(Body, NONE).groups(Body, NONE).master_only()
        402 GET_ALL_MESSAGE_REQUEST_MODE Pop Beside
        513 UPDATE_AND_CREATE_STATIC_TOPIC Topics Beside .topic("topic", NONE).master_only()
        905 NOTIFY_MIN_BROKER_ID_CHANGE Replication OnWorker .cluster(UPDATE)
        906 EXCHANGE_BROKER_HA_INFO Replication OnWorker .cluster(UPDATE)
        907 GET_BROKER_HA_STATUS Replication OnWorker
        908 RESET_MASTER_FLUSH_OFFSET Replication OnWorker .cluster(UPDATE)
        1007 GET_BROKER_EPOCH_CACHE Replication OnWorker
        1008 NOTIFY_BROKER_ROLE_CHANGED Replication OnWorker .cluster(UPDATE)
        2001 UPDATE_COLD_DATA_FLOW_CTR_CONFIG Admin OnWorker .groups(Body, NONE)
        2002 REMOVE_COLD_DATA_FLOW_CTR_CONFIG Admin OnWorker .groups(Body, NONE)
        2003 GET_COLD_DATA_FLOW_CTR_INFO Admin Beside
        2004 SET_COMMITLOG_READ_MODE Admin OnWorker
        3001 AUTH_CREATE_USER Auth OnWorker .cluster(UPDATE).master_only()
        3002 AUTH_UPDATE_USER Auth OnWorker .cluster(UPDATE).master_only()
        3003 AUTH_DELETE_USER Auth OnWorker .cluster(UPDATE).master_only()
        3004 AUTH_GET_USER Auth OnWorker .cluster(GET)
        3005 AUTH_LIST_USER Auth OnWorker .cluster(GET)
        3006 AUTH_CREATE_ACL Auth OnWorker .cluster(UPDATE).master_only()
        3007 AUTH_UPDATE_ACL Auth OnWorker .cluster(UPDATE).master_only()
        3008 AUTH_DELETE_ACL Auth OnWorker .cluster(UPDATE).master_only()
        3009 AUTH_GET_ACL Auth OnWorker .cluster(GET)
        3010 AUTH_LIST_ACL Auth OnWorker .cluster(GET)
        5001 SWITCH_TIMER_ENGINE Timer OnWorker
        30001 SEND_TOGETHER Send OnWorker .topics(Body, NONE).group("producerGroup", NONE).gathers(Gathers::Sends).passed_on()
        30002 COPY_JOURNAL Replication OnWorker .cluster(UPDATE).main_port_only().master_only()
        30003 GET_MEMBER_STATE Replication OnWorker .cluster(GET)
        30004 HAND_OVER_MASTER Replication OnWorker .cluster(UPDATE)
        30005 TAKE_OVER_MASTER Replication OnWorker .cluster(UPDATE)
        30006 ASK_FOR_CLIENT Replication OnWorker .cluster(UPDATE).main_port_only().master_only()
        200050 POP_MESSAGE Pop OnWorker .topic("topic", SUB).group("consumerGroup", SUB).main_port_only().passed_on()
        200051 ACK_MESSAGE Pop OnWorker .topic("topic", SUB).group("consumerGroup", SUB).passed_on()
        200052 PEEK_MESSAGE Pop OnWorker .topic("topic", SUB).group("consumerGroup", SUB).main_port_only().passed_on()
        200053 CHANGE_MESSAGE_INVISIBLETIME Pop OnWorker .topic("topic", SUB).group("consumerGroup", SUB).passed_on()
        200054 NOTIFICATION Pop OnWorker .topic("topic", SUB).group("consumerGroup", SUB).main_port_only().passed_on()
        200055 POLLING_INFO Pop OnWorker .topic("topic", GET).group("consumerGroup", GET).main_port_only().master_only()
        200056 POP_ROLLBACK Pop OnWorker .passed_on()
        200070 POP_LITE_MESSAGE Lite OnWorker .topic("topic", NONE).group("consumerGroup", NONE).main_port_only().passed_on()
        200071 LITE_SUBSCRIPTION_CTL Lite BySize .topics(Body, NONE).groups(Body, NONE).master_only()
        200074 GET_BROKER_LITE_INFO Lite Beside
        200075 GET_PARENT_TOPIC_INFO Lite Beside .topic("topic", NONE)
        200076 GET_LITE_TOPIC_INFO Lite Beside .topic("parentTopic", NONE)
        200077 GET_LITE_CLIENT_INFO Lite Beside .topic("parentTopic", NONE).group("group", NONE)
        200078 GET_LITE_GROUP_INFO Lite Beside .group("group", NONE)
        200079 TRIGGER_LITE_DISPATCH Lite Beside .group("group", NONE).master_only()
        200151 BATCH_ACK_MESSAGE Pop BySize .topics(Body, NONE).groups(Body, NONE).passed_on()
    }
    NameServer {
        100 PUT_KV_CONFIG Settings OnWorker .cluster(UPDATE)
        101 GET_KV_CONFIG Settings OnWorker .cluster(GET)
        102 DELETE_KV_CONFIG Settings OnWorker .cluster(UPDATE)
        103 REGISTER_BROKER Routes BySize .cluster(UPDATE)
        104 UNREGISTER_BROKER Routes Beside .cluster(UPDATE)
        105 GET_ROUTEINFO_BY_TOPIC Routes OnWorker .topic("topic", PUB_SUB_OR_GET)
        106 GET_BROKER_CLUSTER_INFO Routes Beside
        205 WIPE_WRITE_PERM_OF_BROKER Routes Beside .cluster(UPDATE)
        206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER Routes Beside
        216 DELETE_TOPIC_IN_NAMESRV Routes Beside .topic("topic", NONE).cluster(UPDATE)
        217 REGISTER_TOPIC_IN_NAMESRV Routes BySize .topic("topic", NONE).cluster(UPDATE)
        219 GET_KVLIST_BY_NAMESPACE Settings Beside .cluster(GET)
        224 GET_TOPICS_BY_CLUSTER Routes Beside .topics(Every, LIST)
        304 GET_SYSTEM_TOPIC_LIST_FROM_NS Routes Beside
        311 GET_UNIT_TOPIC_LIST Routes Beside
        312 GET_HAS_UNIT_SUB_TOPIC_LIST Routes Beside
        313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST Routes Beside
        318 UPDATE_NAMESRV_CONFIG Settings BySize
        319 GET_NAMESRV_CONFIG Settings OnWorker
        322 QUERY_DATA_VERSION Routes BySize .cluster(GET)
        327 ADD_WRITE_PERM_OF_BROKER Routes Beside .cluster(UPDATE)
        901 GET_BROKER_MEMBER_GROUP Replication OnWorker .cluster(GET)
        904 BROKER_HEARTBEAT Replication OnWorker .cluster(UPDATE)
    }
    Controller {
        1001 CONTROLLER_ALTER_SYNC_STATE_SET Controller OnWorker .cluster(UPDATE)
        1002 CONTROLLER_ELECT_MASTER Controller OnWorker .cluster(UPDATE)
        1003 CONTROLLER_REGISTER_BROKER Controller OnWorker .cluster(UPDATE)
        1004 CONTROLLER_GET_REPLICA_INFO Controller OnWorker .cluster(GET)
        1005 CONTROLLER_GET_METADATA_INFO Controller OnWorker
        1006 CONTROLLER_GET_SYNC_STATE_DATA Controller OnWorker
        1009 UPDATE_CONTROLLER_CONFIG Controller OnWorker
        1010 GET_CONTROLLER_CONFIG Controller OnWorker
        1011 CLEAN_BROKER_DATA Controller OnWorker .cluster(UPDATE)
        1012 CONTROLLER_GET_NEXT_BROKER_ID Controller OnWorker .cluster(GET)
        1013 CONTROLLER_APPLY_BROKER_ID Controller OnWorker .cluster(UPDATE)
        31001 RAFT_APPEND_ENTRIES Controller OnWorker .cluster(UPDATE)
        31002 RAFT_VOTE Controller OnWorker .cluster(UPDATE)
        31003 RAFT_INSTALL_SNAPSHOT Controller OnWorker .cluster(UPDATE)
    }
    Container {
        902 ADD_BROKER Container Unserved .cluster(UPDATE)
        903 REMOVE_BROKER Container Unserved .cluster(UPDATE)
    }
    Client {
        39 CHECK_TRANSACTION_STATE Transaction Unserved .topic("topic", NONE)
        40 NOTIFY_CONSUMER_IDS_CHANGED Clients Unserved .group("consumerGroup", NONE)
        220 RESET_CONSUMER_CLIENT_OFFSET Offsets Unserved .topic("topic", NONE).group("group", NONE)
        221 GET_CONSUMER_STATUS_FROM_CLIENT Offsets Unserved .topic("topic", NONE).group("group", NONE)
        326 PUSH_REPLY_MESSAGE_TO_CLIENT Reply Unserved .topic("topic", NONE).group("producerGroup", NONE)
        200073 NOTIFY_UNSUBSCRIBE_LITE Lite Unserved .group("consumerGroup", NONE)
    }
    Nobody {
        13 QUERY_BROKER_OFFSET Query Unserved
        22 GET_TOPIC_CONFIG_LIST Topics Unserved
        23 GET_TOPIC_NAME_LIST Topics Unserved
        27 TRIGGER_DELETE_FILES Admin Unserved
        47 GET_CLIENT_CONFIG Clients Unserved
        50 UPDATE_AND_CREATE_ACL_CONFIG Auth Unserved
        51 DELETE_ACL_CONFIG Auth Unserved
        52 GET_BROKER_CLUSTER_ACL_INFO Auth Unserved
        53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG Auth Unserved
        54 GET_BROKER_CLUSTER_ACL_CONFIG Auth Unserved
        209 SUSPEND_CONSUMER Groups Unserved
        210 RESUME_CONSUMER Groups Unserved
        211 RESET_CONSUMER_OFFSET_IN_CONSUMER Offsets Unserved
        212 RESET_CONSUMER_OFFSET_IN_BROKER Offsets Unserved
        213 ADJUST_CONSUMER_THREAD_POOL Clients Unserved
        214 WHO_CONSUME_THE_MESSAGE Groups Unserved
        301 REGISTER_FILTER_SERVER Admin Unserved
        302 REGISTER_MESSAGE_FILTER_CLASS Admin Unserved
        5002 DELETE_TOPIC_IN_BROKER_LIST Topics Unserved
        5003 DELETE_SUBSCRIPTION_GROUP_LIST Groups Unserved
        200072 ACK_LITE_MESSAGE Lite Unserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_whose_body_decides_what_they_cost_are_not_bound_to_a_network_worker() {
        for code in [
            RequestCode::UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode::UPDATE_BROKER_CONFIG,
            RequestCode::HEART_BEAT,
            RequestCode::LOCK_BATCH_MQ,
            RequestCode::UNLOCK_BATCH_MQ,
            RequestCode::CHECK_CLIENT_CONFIG,
            RequestCode::REGISTER_BROKER,
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode::REGISTER_TOPIC_IN_NAMESRV,
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode::UPDATE_NAMESRV_CONFIG,
            RequestCode::QUERY_DATA_VERSION,
            RequestCode::QUERY_ASSIGNMENT,
            RequestCode::SET_MESSAGE_REQUEST_MODE,
            RequestCode::UPDATE_AND_CREATE_STATIC_TOPIC,
            RequestCode::LITE_SUBSCRIPTION_CTL,
            RequestCode::BATCH_ACK_MESSAGE,
        ] {
            let runs = code.row().runs;
            assert!(matches!(runs, Runs::BySize | Runs::Beside), "{code:?} runs {runs:?}");
        }
    }

    #[test]
    fn a_number_leads_to_its_own_row_and_any_other_to_none() {
        for row in REQUESTS {
            assert_eq!(RequestCode::from_i32(row.number).unwrap().row(), row);
        }
        for number in [i32::MIN, -1, 0, 16, 30_000, 200_152, i32::MAX] {
            assert_eq!(RequestCode::from_i32(number), None);
        }
    }

    #[test]
    fn what_our_servers_answer_is_carried_out_somewhere_and_nothing_else_is() {
        for row in REQUESTS {
            let is_served = matches!(row.served_by, ServedBy::Broker | ServedBy::NameServer | ServedBy::Controller);
            assert_eq!(is_served, row.runs != Runs::Unserved, "{}", row.name);
        }
    }
}
