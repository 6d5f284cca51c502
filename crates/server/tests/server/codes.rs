//! Every request code of RocketMQ, and those of our own: what the binary does with it, as the
//! table of requests says. `docs/compatibility.md` holds the same table; `WRITE_DOCS=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::support::Running;
use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::{REQUESTS, RequestRow, ServedBy};
use protocol::header::{EncodeFields, FieldSink};

const DEADLINE: Duration = Duration::from_secs(60);

/// What becomes of a request.
#[derive(Clone, Copy)]
enum Answer {
    /// Somebody answers it, by what it says.
    Works,
    /// It is answered with success, with words that say what that means here.
    WorksAs(&'static str),
    /// It is refused on purpose: the code, a part of the remark, and why.
    Refused(i32, &'static str, &'static str),
    /// Code 3, as from Apache, because it is not for a server of this kind.
    NotHere,
    /// Code 3, as from Apache.
    NoHandler(&'static str),
}

use Answer::*;

const TO_CLIENTS: &str = "sent by a broker to its clients";
const DECLARED: &str = "declared in RocketMQ without a handler";
const ACL_1: &str = "access rules of 4.x, gone from RocketMQ in 5.3.3";
const LATER: &str = "not in 5.5.0";
const CONTROLLER: &str = "answered by a controller (failover.md); a broker or name server of Apache answers the same";
const RAFT: &str = "our own: what controllers say to each other";
const CONTAINER: &str = "for broker containers; a broker of Apache that is none answers the same";
const NO_ACCESS: Answer =
    Refused(1, "keeps no users and no rules", "access control is off; Apache says \"An system error occurred\" then");
const LITE_OFF: Answer = Refused(
    3,
    "enableLmq or enableMultiDispatch is false",
    "light queues are off by default; works with enableLmq and enableMultiDispatch",
);

const NOT_OFFERED: Answer = Refused(
    3,
    "the heartbeats of this connection were not told that it may be sent",
    "our own: sends that travel together; works where a heartbeat asked and was told so",
);

/// Where the answer is not the one that follows from the program that serves the code.
const EXCEPTIONS: &[(&[i32], Answer, Answer)] = &[
    (&[30_001], NOT_OFFERED, NotHere),
    (&[30_002], WorksAs("our own: the journal for slaves of Gantry, in pieces"), NotHere),
    (&[200_070, 200_071], LITE_OFF, NotHere),
    (&[306], WorksAs("units that lead to nothing go with the file of the log that they led to"), NotHere),
    (
        &[2001],
        WorksAs("kept and shown; no group is held back, as in Apache without coldDataFlowControlEnable"),
        NotHere,
    ),
    (&[354], WorksAs("consume queues are files only"), NotHere),
    (&[355], WorksAs("the JSON files are written as the state changes"), NotHere),
    (&[905, 908], WorksAs("taken, without effect"), NotHere),
    (&[1007], Refused(1, "this request only for controllerMode ", "as Apache without a controller"), NotHere),
    (&[1008], WorksAs("without effect, as in Apache without a controller; the remark says so"), NotHere),
    (&[3001, 3002, 3003, 3004, 3005, 3006, 3007, 3008, 3009, 3010], NO_ACCESS, NotHere),
    (&[50, 51, 52, 53, 54], NoHandler(ACL_1), NotHere),
    (&[5002, 5003], NoHandler(LATER), NotHere),
    (&[31_001, 31_002, 31_003], NoHandler(RAFT), NoHandler(RAFT)),
];

/// What follows from the program that serves it: what a broker does, what a name server does.
fn answers_of(row: &RequestRow) -> (Answer, Answer) {
    match row.served_by {
        ServedBy::Broker => (Works, NotHere),
        ServedBy::NameServer => (NotHere, Works),
        ServedBy::Controller => (NoHandler(CONTROLLER), NoHandler(CONTROLLER)),
        ServedBy::Container => (NoHandler(CONTAINER), NotHere),
        ServedBy::Client => (NoHandler(TO_CLIENTS), NotHere),
        ServedBy::Nobody => (NoHandler(DECLARED), NoHandler(DECLARED)),
    }
}

fn answers() -> BTreeMap<i32, (Answer, Answer)> {
    let mut answers: BTreeMap<_, _> = REQUESTS.iter().map(|row| (row.number, answers_of(row))).collect();
    for (codes, broker, names) in EXCEPTIONS {
        for code in *codes {
            assert!(answers.insert(*code, (*broker, *names)).is_some(), "{code} is no request");
        }
    }
    answers
}

/// Enough for the requests about users and rules to get past the checks of what they hold; no other request knows these.
struct Someone;

impl EncodeFields for Someone {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        sink.str("username", "u");
        sink.str("subject", "User:u");
    }
}

const BODY: &str = r#"{"policies":[{"policyType":"Custom"}]}"#;

async fn ask(client: &Client, address: &str, code: i32, expected: Answer) -> Result<(), String> {
    let answer = client.call(address, code, &Someone, Bytes::from_static(BODY.as_bytes()), DEADLINE).await;
    let answer = answer.map_err(|error| format!("{code}: {error}"))?;
    let remark = answer.remark.unwrap_or_default();
    let is_right = match expected {
        Works | WorksAs(_) => answer.code != 3,
        Refused(refused, words, _) => answer.code == refused && remark.contains(words),
        NotHere | NoHandler(_) => {
            answer.code == 3 && remark.starts_with(&format!(" request type {code} not supported"))
        }
    };
    if is_right { Ok(()) } else { Err(format!("{code}: code {} {remark:?}", answer.code)) }
}

#[test]
fn every_code_of_rocketmq_is_in_the_table() {
    let ours: Vec<i32> = answers().into_keys().collect();
    let mut all: Vec<i32> = REQUESTS.iter().map(|row| row.number).collect();
    all.sort_unstable();
    assert_eq!(ours, all);
}

#[tokio::test]
async fn every_request_is_answered_as_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::server(folder.path());
    let client = Client::new(ClientOptions::default());
    let mut wrong = Vec::new();
    for (code, (broker, names)) in answers() {
        for (of, expected) in [("broker", broker), ("namesrv", names)] {
            if let Err(what) = ask(&client, server.address(of), code, expected).await {
                wrong.push(format!("{of} {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn shown(answer: Answer) -> String {
    match answer {
        Works => "works".to_owned(),
        WorksAs(how) => format!("works: {how}"),
        Refused(code, _, why) => format!("answers with code {code}: {why}"),
        NotHere => "–".to_owned(),
        NoHandler(why) => format!("code 3: {why}"),
    }
}

fn table() -> String {
    let names: BTreeMap<i32, &str> = REQUESTS.iter().map(|row| (row.number, row.name)).collect();
    let mut table = "| code | name | broker | name server |\n| --- | --- | --- | --- |\n".to_owned();
    for (code, (broker, server)) in answers() {
        writeln!(table, "| {code} | {} | {} | {} |", names[&code], shown(broker), shown(server)).unwrap();
    }
    table
}

#[test]
fn the_documents_hold_this_table() {
    const BEGIN: &str =
        "<!-- The table is checked by crates/server/tests/server/codes.rs; WRITE_DOCS=1 writes it. -->\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table has its mark");
    let after = rest.split_once("\n\n").map(|(_, after)| after).unwrap_or_default();
    let wanted = format!("{before}{BEGIN}{}\n{after}", table());
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    } else {
        assert_eq!(text, wanted, "WRITE_DOCS=1 writes the table anew");
    }
}
