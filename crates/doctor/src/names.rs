//! Whether name servers answer, and what they tell clients about this broker.

use protocol::body::{ClusterInfo, MASTER_ID};

use super::finding::{Finding, Severity};
use super::patient::Patient;

/// Those of the settings.
pub fn name_servers_of(patient: &Patient) -> Vec<String> {
    let text = patient.target.settings.text("namesrvAddr");
    text.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

/// Asks a name server for the clusters that it knows.
fn clusters(patient: &Patient, server: &str) -> Result<ClusterInfo, String> {
    let server = server.to_owned();
    let asked = patient.ask(|operator| async move { operator.cluster_at(&server).await });
    asked.map_err(|error| error.to_string())
}

/// Whether each name server answers.
pub fn name_servers(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let servers = name_servers_of(patient);
    if servers.is_empty() {
        return vec![if settings.role().has_names() {
            Finding::ok("the name server is in the same process").seen("namesrvAddr", "not set")
        } else {
            Finding::warning("no name server is given")
                .seen(settings.origin("namesrvAddr").to_string(), "namesrvAddr=")
                .effect("the broker runs, and no client finds it")
                .fix("namesrvAddr=HOST:9876;HOST:9876, or -n, or the variable NAMESRV_ADDR")
        }];
    }
    let mut findings: Vec<Finding> = servers
        .iter()
        .map(|server| match clusters(patient, server) {
            Ok(info) => Finding::ok(format!("name server {server} answers"))
                .of(server)
                .seen(format!("request 106 to {server}"), format!("{} brokers", info.broker_addr_table.len())),
            Err(error) => Finding::warning(format!("name server {server} does not answer"))
                .of(server)
                .seen(format!("request 106 to {server}"), error)
                .effect("clients that ask it wait for their time-out and then ask another; what it knew is out of date")
                .fix("start it, take it out of namesrvAddr, or open its port in the firewall"),
        })
        .collect();
    if findings.iter().all(|finding| finding.severity != Severity::Ok) {
        for finding in &mut findings {
            finding.severity = Severity::Error;
            finding.effect = "none of them answers: no client finds this broker".to_owned();
        }
    }
    findings
}

/// Whether name servers know this broker, and by the address that it advertises.
pub fn route(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let (name, host) = (settings.text("brokerName"), settings.text("brokerIP1"));
    let port = match settings.text("listenPort").as_str() {
        "0" => patient.server().rsplit_once(':').map_or(String::new(), |(_, port)| port.to_owned()),
        port => port.to_owned(),
    };
    let expected = format!("{host}:{port}");
    let runs = patient.runtime_info().is_ok();
    let mut findings = Vec::new();
    for server in name_servers_of(patient) {
        // That it does not answer is said by the check before.
        let Ok(info) = clusters(patient, &server) else { continue };
        let known = info.broker_addr_table.get(&name).and_then(|broker| broker.broker_addrs.get(&MASTER_ID));
        let finding = match known {
            Some(known) if *known == expected => Finding::ok(format!("{server} knows {name} at {expected}")),
            Some(known) if runs => Finding::error(format!("{server} knows {name} at {known}, not at {expected}"))
                .effect("clients are led elsewhere: to another master of this name, or to an address of old. Two masters of one name share its queues out by chance")
                .fix("give each master its own brokerName; an address of old is forgotten after two minutes of silence"),
            Some(known) => Finding::warning(format!("{server} knows a master {name} already, at {known}"))
                .effect("a broker that starts with this name here would take its place, and clients would lose sight of the other")
                .fix("another brokerName, if that broker is not this one under an older address"),
            None if runs => Finding::warning(format!("{server} does not know {name}"))
                .effect("clients that ask it find none of the broker's topics. A broker registers at its start and every 30 s")
                .fix("look for `register` in the broker's log; compare namesrvAddr and brokerName with those of the process that runs"),
            None => Finding::ok(format!("{server} knows no {name} yet")).effect("it will when the broker has started"),
        };
        findings.push(finding.of(&server).seen(
            format!("request 106 to {server}"),
            known.map_or_else(|| format!("no master {name}"), |known| format!("{name} at {known}")),
        ));
    }
    if findings.is_empty() {
        findings
            .push(Finding::ok("no name server to ask for the route").seen("namesrvAddr", settings.text("namesrvAddr")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn name_servers_that_do_not_answer_are_an_error_when_there_is_no_other() {
        let fake = FakeHost::with(&[]);
        let found = name_servers(&patient(&fake, "namesrvAddr=127.0.0.1:1"));
        assert_eq!((found[0].severity, found[0].subject.as_deref()), (Severity::Error, Some("127.0.0.1:1")));
        assert_eq!(name_servers(&patient(&fake, "")).remove(0).severity, Severity::Warning);
        assert_eq!(route(&patient(&fake, "namesrvAddr=127.0.0.1:1")).remove(0).severity, Severity::Ok);
    }
}
