//! Sending: 10, 310, 320, 324, 325, 36, and our own 30001.

use super::field::{FieldError, FieldKind, FieldSpec, Value, headers};
use crate::header::{EncodeFields, FieldSink, Fields};

/// The two spellings of a send. The fields and their meaning are the same.
macro_rules! send_message {
    ($( $(#[$doc:meta])* $field:ident: $kind:ty = $v1:literal $v2:literal $(or $default:expr)? ),* $(,)?) => {
        /// A send of one message or a batch, in either spelling.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct SendMessage<'a> {
            $( $(#[$doc])* pub $field: $kind, )*
        }

        impl<'a> SendMessage<'a> {
            /// The table of codes 10 and 324.
            pub const FIELDS_V1: &'static [FieldSpec] = &[ $( spec::<$kind>($v1, true $(&& { let _ = $default; false })?) ),* ];
            /// The table of codes 310, 320 and 325.
            pub const FIELDS_V2: &'static [FieldSpec] = &[ $( spec::<$kind>($v2, true $(&& { let _ = $default; false })?) ),* ];

            /// Reads codes 10 and 324.
            pub fn decode_v1(fields: &Fields<'a>) -> Result<Self, FieldError> {
                Ok(SendMessage { $( $field: headers!(@read fields, $kind, $v1 $(, $default)?), )* })
            }

            /// Reads codes 310, 320 and 325.
            pub fn decode_v2(fields: &Fields<'a>) -> Result<Self, FieldError> {
                Ok(SendMessage { $( $field: headers!(@read fields, $kind, $v2 $(, $default)?), )* })
            }

            /// Writes codes 10 and 324.
            pub fn encode_v1(&self, sink: &mut FieldSink<'_>) {
                $( self.$field.write($v1, sink); )*
            }

            /// Writes codes 310, 320 and 325.
            pub fn encode_v2(&self, sink: &mut FieldSink<'_>) {
                $( self.$field.write($v2, sink); )*
            }
        }
    };
}

const fn spec<'a, T: Value<'a>>(name: &'static str, has_no_default: bool) -> FieldSpec {
    FieldSpec { name, kind: T::KIND, is_required: T::IS_REQUIRED && has_no_default }
}

send_message! {
    /// Who sends.
    producer_group: &'a str = "producerGroup" "a" or "",
    /// Where to.
    topic: &'a str = "topic" "b",
    /// Whose permissions and queues a new topic inherits.
    default_topic: &'a str = "defaultTopic" "c" or "",
    /// How many queues a new topic gets at most.
    default_topic_queue_nums: i32 = "defaultTopicQueueNums" "d" or 0,
    /// Which queue; negative: any.
    queue_id: i32 = "queueId" "e",
    /// See [`crate::sys_flag`].
    sys_flag: i32 = "sysFlag" "f",
    /// The producer's clock.
    born_timestamp: i64 = "bornTimestamp" "g",
    /// The user's own value.
    flag: i32 = "flag" "h",
    /// See [`crate::properties`].
    properties: Option<&'a str> = "properties" "i",
    /// How often it was consumed already, for a retry that the client sends by itself.
    reconsume_times: Option<i32> = "reconsumeTimes" "j",
    /// Units of old.
    unit_mode: Option<bool> = "unitMode" "k",
    /// When such a retry gives up.
    max_reconsume_times: Option<i32> = "maxReconsumeTimes" "l",
    /// The body is a batch.
    batch: Option<bool> = "batch" "m",
    /// The broker that the client meant.
    broker_name: Option<&'a str> = "bname" "n",
}

/// What clients send today.
impl EncodeFields for SendMessage<'_> {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        self.encode_v2(sink);
    }
}

const _: () = assert!(matches!(SendMessage::FIELDS_V2[4].kind, FieldKind::I32));

headers! {
    /// The answer to a send.
    SendReply<'a> {
        msg_id: &'a str = "msgId",
        queue_id: i32 = "queueId",
        queue_offset: i64 = "queueOffset",
        transaction_id: Option<&'a str> = "transactionId",
        batch_uniq_id: Option<&'a str> = "batchUniqId",
        recall_handle: Option<&'a str> = "recallHandle",
    }

    /// Fields that the broker adds to the answer of a send; Java clients read them without looking whether there are any.
    SendReplyExtra<'a> {
        msg_region: &'a str = "MSG_REGION",
        trace_on: Option<&'a str> = "TRACE_ON",
    }

    /// 30001, our own: several sends in one request. What they have in common; the rest stands in the body, see [`crate::together`].
    SendTogether<'a> {
        producer_group: &'a str = "producerGroup" or "",
        default_topic: &'a str = "defaultTopic" or "",
        default_topic_queue_nums: i32 = "defaultTopicQueueNums" or 0,
        born_timestamp: i64 = "bornTimestamp",
        parts: i32 = "parts",
        broker_name: Option<&'a str> = "bname",
    }

    /// 36: a consumer gives a message back, to get it again later.
    SendBack<'a> {
        offset: i64 = "offset",
        group: &'a str = "group",
        delay_level: i32 = "delayLevel",
        origin_msg_id: Option<&'a str> = "originMsgId",
        origin_topic: Option<&'a str> = "originTopic",
        unit_mode: bool = "unitMode" or false,
        max_reconsume_times: Option<i32> = "maxReconsumeTimes",
        broker_name: Option<&'a str> = "bname",
    }

    /// 37: the end of a transaction.
    EndTransaction<'a> {
        topic: Option<&'a str> = "topic",
        producer_group: &'a str = "producerGroup",
        tran_state_table_offset: i64 = "tranStateTableOffset",
        commit_log_offset: i64 = "commitLogOffset",
        commit_or_rollback: i32 = "commitOrRollback",
        from_transaction_check: bool = "fromTransactionCheck" or false,
        msg_id: &'a str = "msgId",
        transaction_id: Option<&'a str> = "transactionId",
    }

    /// 39, broker to client: what became of this transaction?
    CheckTransactionState<'a> {
        topic: Option<&'a str> = "topic",
        tran_state_table_offset: i64 = "tranStateTableOffset",
        commit_log_offset: i64 = "commitLogOffset",
        msg_id: Option<&'a str> = "msgId",
        transaction_id: Option<&'a str> = "transactionId",
        offset_msg_id: Option<&'a str> = "offsetMsgId",
        broker_name: Option<&'a str> = "bname",
    }

    /// 370: takes back a message that waits for its time.
    RecallMessage<'a> {
        producer_group: Option<&'a str> = "producerGroup",
        topic: &'a str = "topic",
        recall_handle: &'a str = "recallHandle",
    }

    /// The answer to 370.
    RecallMessageReply<'a> {
        msg_id: &'a str = "msgId",
    }

    /// 326, broker to client: the reply to a request.
    PushReply<'a> {
        producer_group: &'a str = "producerGroup",
        topic: &'a str = "topic",
        default_topic: &'a str = "defaultTopic",
        default_topic_queue_nums: i32 = "defaultTopicQueueNums",
        queue_id: i32 = "queueId",
        sys_flag: i32 = "sysFlag",
        born_timestamp: i64 = "bornTimestamp",
        flag: i32 = "flag",
        properties: Option<&'a str> = "properties",
        reconsume_times: Option<i32> = "reconsumeTimes",
        unit_mode: bool = "unitMode" or false,
        born_host: &'a str = "bornHost",
        store_host: &'a str = "storeHost",
        store_timestamp: i64 = "storeTimestamp",
    }
}
