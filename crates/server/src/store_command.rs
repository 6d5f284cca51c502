//! `gantry store`: the commands of [`cli::store`], with what the broker's tables say; and the export of these tables, which the broker does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use broker::{Broker, ConfigLook, Writer};
use cli::store::{ConfigFile, Configuration, StoreArgs, StoreCommand, tell_mended};
use config::Settings;
use env::{Clock, Random, say, say_aside, sentence};
use store::look::{KnownTables, Look};
use store::{Store, StoreEnv};

use crate::memory::Memory;
use crate::{machine, settings, threads};

/// What could not even be looked at, as `verify` says it.
const COULD_NOT_LOOK: u8 = 2;

/// Runs a command on a store that no broker has open.
pub fn run(args: StoreArgs) -> anyhow::Result<ExitCode> {
    if let StoreCommand::Replay(args) = &args.command {
        return cli::store::replay(args).map(|()| ExitCode::SUCCESS);
    }
    let place = args.command.place();
    let (config, store) = place.map_or((None, None), |place| (place.config.as_deref(), place.store.as_deref()));
    let is_verify = matches!(args.command, StoreCommand::Verify(_));
    let done = settings::of_store(config, store).and_then(|settings| {
        if let StoreCommand::Export(export) = &args.command
            && export.messages.is_none()
        {
            let is_mended = write_configuration(&settings)?;
            return Ok(if is_mended { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let options = settings::store_options(&settings.store()?, &memory(&settings)?)?;
        cli::store::run(args.command, options, &read)
    });
    match done {
        Err(error) if is_verify => {
            say_aside!("gantry: {}", sentence(error.as_ref()));
            Ok(ExitCode::from(COULD_NOT_LOOK))
        }
        done => done,
    }
}

/// How much memory the command may take, as for a server of these settings.
fn memory(settings: &Settings) -> anyhow::Result<Memory> {
    Memory::of(settings, machine::memory())
}

/// What the tables of a store say. A journal that cannot be read is told of by whoever needs it.
fn read(look: &Look) -> Configuration {
    let journal = look.journal().ok().flatten();
    let found = ConfigLook::at(&look.options().root, journal.as_ref());
    let files = found.files.into_iter().map(|file| ConfigFile {
        path: file.path,
        wins: file.writer == Writer::Another,
        version: file.version,
        entries: file.entries,
    });
    Configuration {
        files: files.collect(),
        known: KnownTables {
            topics: Some(found.topics).filter(|topics| !topics.is_empty()),
            offsets: found.offsets,
            offsets_in: found.offsets_in,
        },
        groups: found.groups.len(),
        half_offset: found.half_offset,
    }
}

/// Opens the store as a start does, writes `config/*.json`, and closes it. Nothing is served, and nothing is delivered. Says whether nothing is
/// left to be mended.
fn write_configuration(settings: &Settings) -> anyhow::Result<bool> {
    let store_settings = settings.store()?;
    let root = store_settings.store_path_root_dir.clone();
    if !root.is_dir() {
        anyhow::bail!("there is no store in {}", root.display());
    }
    if let Some(why) = store::unfinished_repair(&root) {
        anyhow::bail!(why);
    }
    let options = settings::store_options(&store_settings, &memory(settings)?)?;
    let (store, found) = Store::open(options, StoreEnv::real())?;
    // Said now; a failure to say it stops nothing before the store is closed.
    let mended = tell_mended(&found, false);
    let mut settings = settings.clone();
    broker::role_in_force(store.journal(), &mut settings)?;
    let start = broker::Start {
        name_servers: Vec::new(),
        calls: net::ClientOptions::default(),
        settings: settings.broker()?,
        store_settings,
        store: Arc::clone(&store),
        advertised: SocketAddr::from((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
        configuration: settings,
        config_file: None,
        log_port: None,
        clock: Clock::real(),
        random: Random::from_entropy(),
    };
    let runtime = threads::runtime()?;
    let written = runtime.block_on(Broker::write_configuration(start));
    runtime.shutdown_timeout(Duration::from_secs(5));
    store.close_as_found().context("the store did not close well; the next start recovers")?;
    written?;
    let is_mended = mended?;
    say!("{}/config/*.json are as the journal has them", root.display())?;
    if store.was_abnormal() {
        say!(
            "the store was not closed: popped messages that are not acknowledged, and how far delayed messages came in the last seconds, are \
             handed over by a stop of the server only; start it and stop it before an Apache broker takes over, if it starts"
        )?;
    }
    Ok(is_mended)
}
