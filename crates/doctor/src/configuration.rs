//! The property file: what a start would say about each line, and settings that do not go together.

use config::{Role, Weight};

use super::finding::{Finding, Severity, size};
use super::machine::usable_memory;
use super::patient::Patient;
use super::target::Refused;

/// What a frame holds beside the body of a message: header and properties.
const FRAME_REST: usize = 64 << 10;

/// Every line that a start would refuse, warn of or note.
pub fn lint(patient: &Patient) -> Vec<Finding> {
    let target = &patient.target;
    let mut findings = Vec::new();
    if let Some((path, why)) = &target.unread {
        findings.push(
            Finding::unknown(format!("{} cannot be read", path.display()))
                .of(path.display().to_string())
                .seen(path.display().to_string(), why)
                .effect("a start would end here; everything below is judged by default values")
                .fix("give the path of a file that the broker's user can read"),
        );
    }
    for Refused { key, from, value, sentence } in &target.refused {
        let finding = Finding::error(sentence).effect("a start ends with this sentence").fix(match key {
            Some(key) => format!("set {key} to a value that docs/configuration.md lists, or remove the line"),
            None => "mend the line".to_owned(),
        });
        findings.push(match (key, value) {
            (Some(key), Some(value)) => finding.of(key).seen(from, line_of(key, Some(value.as_str()))),
            (Some(key), None) => finding.of(key).seen(from, sentence),
            (None, _) => finding.seen(from, sentence),
        });
    }
    for said in target.settings.findings() {
        let (severity, effect, fix) = match said.weight {
            Weight::Note => (Severity::Note, "nothing is lost: the broker goes on without the line", None),
            Weight::Warning => (
                Severity::Warning,
                "the broker does something else than the line says",
                Some("correct the line, or remove it".to_owned()),
            ),
        };
        let mut finding = Finding::new(severity, format!("{}: {}", said.key, said.says))
            .of(&said.key)
            .seen(said.origin.to_string(), line_of(&said.key, said.value.as_deref()));
        finding.effect = effect.to_owned();
        finding.fix = fix;
        findings.push(finding);
    }
    if findings.is_empty() {
        findings.push(match &target.file {
            Some(file) => Finding::ok("every line of the property file is understood and used")
                .seen(file.display().to_string(), "read"),
            None => Finding::ok("there is no property file")
                .seen("command line", "no -c")
                .effect("the broker runs with defaults, and serves this machine only"),
        });
    }
    findings
}

/// A line of a property file, as evidence.
fn line_of(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
}

/// Settings that each are right and together are not, and those that do not fit this machine.
pub fn contradictions(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let mut findings = Vec::new();
    let (Ok(store), Ok(net), Ok(broker)) = (settings.store(), settings.net(), settings.broker()) else {
        return vec![
            Finding::note("settings cannot be compared: some of them cannot be read")
                .seen("settings", "a value that its key does not take")
                .effect("what does not go together is not known; the check configuration shows which it is"),
        ];
    };
    let said = |finding: Finding, keys: &[&str]| {
        keys.iter().fold(finding, |finding, key| {
            finding.seen(settings.origin(key).to_string(), format!("{key}={}", settings.text(key)))
        })
    };

    let marks = ["diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"];
    let [delete, force, refuse] =
        [store.disk_max_used_space_ratio, store.disk_space_clean_forcibly_ratio, store.disk_space_warning_level_ratio];
    if !(delete <= force && force <= refuse) {
        findings.push(said(
            Finding::warning("the watermarks of the disk are out of order")
                .of("watermarks")
                .effect(format!(
                    "a disk that fills should first let expired files go, then the oldest by force, then refuse sends. Here that happens above \
                     {delete} %, {force} % and {refuse} %"
                ))
                .fix("diskMaxUsedSpaceRatio=75, diskSpaceCleanForciblyRatio=85, diskSpaceWarningLevelRatio=90"),
            &marks,
        ));
    }
    if store.max_message_size.saturating_add(FRAME_REST) > net.frame_max_length {
        findings.push(said(
            Finding::warning("the largest message does not fit into the longest frame")
                .of("maxMessageSize")
                .effect("a message that maxMessageSize allows closes its connection, because its frame is too long")
                .fix(format!(
                    "com.rocketmq.remoting.frameMaxLength={}",
                    store.max_message_size.saturating_add(FRAME_REST)
                )),
            &["maxMessageSize", "com.rocketmq.remoting.frameMaxLength"],
        ));
    }
    // What nobody has set the broker lowers by itself where there is less memory.
    let asked = settings.given("requestBytesMax").map(|_| net.request_bytes_max as u64);
    if let Some((asked, memory)) = asked.zip(usable_memory(patient)).filter(|(asked, memory)| *asked > memory / 2) {
        let severity = if asked >= memory { Severity::Warning } else { Severity::Note };
        findings.push(said(
            Finding::new(severity, "large requests may hold more than half of the memory")
                .of("requestBytesMax")
                .seen("memory", size(memory))
                .effect("if as many large requests and replies were on their way as requestBytesMax allows, the process could be killed for want of memory")
                .fix("remove the line requestBytesMax: the broker then takes what fits into its memory"),
            &["requestBytesMax"],
        ));
    }
    if store.enable_lmq != store.enable_multi_dispatch {
        findings.push(said(
            Finding::warning("light queues are off")
                .of("enableLmq")
                .effect("they need enableLmq and enableMultiDispatch, and one of them is false")
                .fix("enableLmq=true and enableMultiDispatch=true"),
            &["enableLmq", "enableMultiDispatch"],
        ));
    }
    if store.file_reserved_time == 0 {
        findings.push(said(
            Finding::warning("messages expire at once")
                .of("fileReservedTime")
                .effect("each full file of the log goes at the next hour of deleteWhen, unless an active group has not consumed it")
                .fix("fileReservedTime=72, in hours"),
            &["fileReservedTime"],
        ));
    }
    let is_alone = settings.role() == Role::Server;
    if settings.given("brokerName").is_none() && !is_alone && broker.broker_name == "localhost" {
        findings.push(said(
            Finding::warning("the broker is called localhost")
                .of("brokerName")
                .effect("every host of that name would be taken for the same broker, and clients would send to one of them only")
                .fix("brokerName=broker-a, another for each master"),
            &["brokerName"],
        ));
    }
    if findings.is_empty() {
        findings.push(
            Finding::ok("no settings contradict each other").seen(
                "settings",
                format!("{}, watermarks {delete}, {force}, {refuse}", settings.text("flushDiskType")),
            ),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::{patient, patient_with};

    fn subjects(findings: &[Finding]) -> Vec<(&str, Severity)> {
        findings.iter().filter_map(|one| Some((one.subject.as_deref()?, one.severity))).collect()
    }

    #[test]
    fn a_file_of_the_field_is_read_line_by_line() {
        let fake = FakeHost::with(&[]);
        let text = include_str!("../../config/tests/data/take-over.conf");
        let found = lint(&patient(&fake, &text.replace("/var/lib/rocketmq/store", "STORE")));
        let subjects = subjects(&found);
        for (key, severity) in [
            ("sendMessageThreadPoolNums", Severity::Note),
            ("mapedFileSizeConsumeQueue", Severity::Warning),
            ("brokerRole", Severity::Warning),
        ] {
            assert!(subjects.contains(&(key, severity)), "{key}: {subjects:?}");
        }
        let size = found.iter().find(|one| one.subject.as_deref() == Some("mapedFileSizeConsumeQueue")).unwrap();
        assert!(size.evidence[0].from.contains("broker.conf:"), "{size:?}");
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_told_apart() {
        let fake = FakeHost::with(&[]);
        let found = lint(&patient(&fake, "brokerNam=a\nlistenPort=ten\nflushDiskType=SOMETIMES\n"));
        let subjects = subjects(&found);
        assert!(subjects.contains(&("brokerNam", Severity::Warning)), "{subjects:?}");
        assert!(subjects.contains(&("listenPort", Severity::Error)), "{subjects:?}");
        assert!(subjects.contains(&("flushDiskType", Severity::Error)), "{subjects:?}");
        let clean = lint(&patient(&fake, "brokerName=a\n"));
        assert_eq!((clean.len(), clean[0].severity), (1, Severity::Ok));
    }

    #[test]
    fn evidence_is_where_it_was_said_and_what_was_said_there() {
        let fake = FakeHost::with(&[]);
        let tls = fake.root().join("tls.properties");
        std::fs::write(&tls, "# one\nlistenPort=1\n").unwrap();
        let text = format!("brokerRole=SLAVE\ntls.config.file={}\nlistenPort=10911\n", tls.display());
        let found = lint(&patient_with(
            &fake,
            &text,
            &[("storeType", "defaultRocksDB"), ("flushDiskType", "SOMETIMES"), ("xyzzy", "1")],
        ));
        let file = fake.root().join("broker.conf");
        for (key, from, value) in [
            ("storeType", "option --set".to_owned(), "storeType=defaultRocksDB"),
            ("flushDiskType", "option --set".to_owned(), "flushDiskType=SOMETIMES"),
            ("xyzzy", "command line".to_owned(), "there is no key xyzzy"),
            ("listenPort", format!("{}:2", tls.display()), "listenPort=1"),
            ("brokerRole", format!("{}:2", file.display()), "brokerRole=SLAVE"),
        ] {
            let finding = found.iter().find(|one| one.subject.as_deref() == Some(key)).unwrap();
            assert_eq!((&finding.evidence[0].from, finding.evidence[0].value.as_str()), (&from, value), "{finding:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_unknown() {
        let fake = FakeHost::with(&[]);
        let mut patient = patient(&fake, "");
        patient.target.unread = Some(("/no/file".into(), "no such file".to_owned()));
        assert_eq!(lint(&patient)[0].severity, Severity::Unknown);
    }

    #[test]
    fn what_does_not_go_together_is_named_with_both_keys() {
        let fake = FakeHost::with(&[("/proc/meminfo", "MemTotal: 262144 kB\n")]);
        let text = "diskMaxUsedSpaceRatio=80\ndiskSpaceCleanForciblyRatio=60\nmaxMessageSize=16M\nrequestBytesMax=256M\nenableLmq=true\nfileReservedTime=0\n";
        let found = contradictions(&patient(&fake, text));
        let subjects: Vec<&str> = subjects(&found).into_iter().map(|(subject, _)| subject).collect();
        assert_eq!(subjects, ["watermarks", "maxMessageSize", "requestBytesMax", "enableLmq", "fileReservedTime"]);
        assert!(found[1].evidence.iter().any(|seen| seen.value.starts_with("com.rocketmq.remoting.frameMaxLength=")));
        assert!(
            found[2].severity == Severity::Warning && found[2].fix.as_ref().unwrap().starts_with("remove the line")
        );
        let none = contradictions(&patient(&fake, ""));
        assert!(none.len() == 1 && none[0].severity == Severity::Ok, "nobody has set requestBytesMax: {none:?}");
        let large = FakeHost::with(&[("/proc/meminfo", "MemTotal: 8388608 kB\n")]);
        let none = contradictions(&patient(&large, ""));
        assert!(none.len() == 1 && none[0].severity == Severity::Ok, "{none:?}");
    }
}
