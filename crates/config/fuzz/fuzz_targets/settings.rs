//! Whatever a property file says, it is taken or refused with a sentence; what is printed of it can be read again.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use config::{Machine, Role, Settings, SourceFile, Sources};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: String| {
    let machine =
        Machine { host_name: "host".to_owned(), address: IpAddr::V4(Ipv4Addr::LOCALHOST), home: PathBuf::from("/home") };
    for role in [Role::Server, Role::Broker, Role::Names] {
        let mut sources = Sources::new(role, machine.clone());
        sources.file = Some(SourceFile { path: PathBuf::from("broker.conf"), text: text.clone() });
        match Settings::load(sources) {
            Ok(settings) => {
                for finding in settings.findings() {
                    assert!(!finding.to_string().is_empty());
                }
                config::properties::parse(&settings.print(false)).expect("what is printed can be read");
                let _ = (settings.broker(), settings.store(), settings.net(), settings.tls());
            }
            Err(refused) => assert!(!refused.to_string().is_empty()),
        }
    }
});
