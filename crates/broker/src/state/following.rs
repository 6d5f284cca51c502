//! Where the master of a slave is, and how following it goes. A master has one of these too, and nobody writes to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use config::BrokerSettings;
use parking_lot::Mutex;
use protocol::LogOffset;
use replica::follow::FollowStatus;
use tokio::sync::watch;

/// The end of the master's log is not known.
const UNKNOWN: u64 = u64::MAX;

/// A master, as a name server says it.
struct Named {
    /// Its main port.
    main: Arc<str>,
    /// Where it gives its log, if that was said.
    log: Option<Arc<str>>,
}

/// What is known of the master, and what the copy of its log has come to.
pub(crate) struct Following {
    /// `HOST:PORT` at which the master gives its log.
    log: watch::Sender<Option<Arc<str>>>,
    /// `haMasterAddress` says it, and name servers do not.
    is_fixed: bool,
    /// There are name servers, which say where the main port is.
    is_registered: bool,
    /// The master's main port. Guards itself only.
    main: Mutex<Option<Arc<str>>>,
    /// Another master that was named: used when the log does not come from this one any more. Guards itself only.
    news: Mutex<Option<Named>>,
    /// The copy of the log, as the one that makes it tells of it.
    pub(crate) status: Arc<FollowStatus>,
    /// Held by the one that takes over topics, across its requests.
    pub(crate) topics: tokio::sync::Mutex<()>,
    /// The log here is empty, and is to begin there.
    begins_at: watch::Sender<Option<LogOffset>>,
    /// Where the master's log ended when it was asked last. Relaxed: it stands alone.
    master_end: AtomicU64,
    /// The master's main port has answered while the log did not come. Relaxed: it stands alone.
    answers: AtomicBool,
}

impl Following {
    pub(crate) fn new(settings: &BrokerSettings) -> Following {
        let fixed = settings.ha_master_address.as_deref().map(Arc::from);
        Following {
            is_fixed: fixed.is_some(),
            is_registered: !settings.namesrv_addr.is_empty(),
            log: watch::Sender::new(fixed),
            main: Mutex::default(),
            news: Mutex::default(),
            status: Arc::default(),
            topics: tokio::sync::Mutex::default(),
            begins_at: watch::Sender::new(None),
            master_end: AtomicU64::new(UNKNOWN),
            answers: AtomicBool::new(false),
        }
    }

    /// A name server has said where the master is: its main port, and where it gives its log. While the log comes from one, another one has to
    /// wait, as in Apache: name servers that have not heard of a change yet would send the copy back and forth.
    pub(crate) fn learnt(&self, main: &str, log: Option<&str>) {
        if main.is_empty() {
            return;
        }
        let log = log.filter(|log| !log.is_empty());
        let known = self.main.lock().clone();
        let Some(known) = known.filter(|_| self.is_connected()) else {
            *self.news.lock() = None;
            return self.believe(main, log);
        };
        let is_other = *known != *main || !self.is_fixed && log.is_some() && self.log.borrow().as_deref() != log;
        *self.news.lock() = is_other.then(|| Named { main: Arc::from(main), log: log.map(Arc::from) });
    }

    /// The log does not come from the master any more: another one that was named meanwhile takes its place.
    pub(crate) fn lost(&self) {
        let news = self.news.lock().take();
        if let Some(Named { main, log }) = news {
            self.believe(&main, log.as_deref());
        }
    }

    fn believe(&self, main: &str, log: Option<&str>) {
        let is_news = self.main.lock().replace(Arc::from(main)).is_none_or(|before| *before != *main);
        if let Some(log) = log.filter(|_| !self.is_fixed) {
            self.log.send_if_modified(|known| {
                let is_other = known.as_deref() != Some(log);
                if is_other {
                    *known = Some(Arc::from(log));
                }
                is_other
            });
        }
        if is_news {
            tracing::info!(master = main, log = self.log.borrow().as_deref(), "the master is known");
        }
    }

    /// Shows where the master gives its log, now and whenever it is another place.
    pub(crate) fn masters(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.log.subscribe()
    }

    /// The master's main port. With a fixed address and without a name server (`namesrvAddr`) it is the port before that of the log, where a master
    /// has it that sets no `haListenPort`.
    pub(crate) fn master(&self) -> Option<Arc<str>> {
        let known = self.main.lock().clone();
        if self.is_registered {
            return known;
        }
        known.or_else(|| {
            let log = self.log.borrow();
            let (host, port) = log.as_deref()?.rsplit_once(':')?;
            let main = port.parse::<u16>().ok()?.checked_sub(1)?;
            Some(Arc::from(format!("{host}:{main}")))
        })
    }

    /// Whether the log comes from the master at this moment.
    pub(crate) fn is_connected(&self) -> bool {
        self.status.is_connected()
    }

    /// Shows the same, now and whenever it changes.
    pub(crate) fn connection(&self) -> watch::Receiver<bool> {
        self.status.connection()
    }

    /// Whether there is a connection to a master whose log continues the one here.
    pub(crate) fn agrees(&self) -> bool {
        self.status.agrees()
    }

    /// The master was asked at its main port while the log did not come from it, and has answered or not; or the log comes, and it is not known.
    pub(crate) fn note_answer(&self, has_answered: bool) {
        self.answers.store(has_answered, Ordering::Relaxed);
    }

    /// Whether readers find the master at its main port: the log comes from it, or it answers, though its log is not followed.
    pub(crate) fn is_master_there(&self) -> bool {
        self.is_connected() || self.answers.load(Ordering::Relaxed)
    }

    /// Whether name servers can help: the log does not come, and they say from where it might.
    pub(crate) fn looks_for_master(&self) -> bool {
        let is_said = self.is_fixed && self.main.lock().is_some();
        !(is_said || self.is_connected())
    }

    /// The log here is empty and is to begin at this file of the master's: this store has to begin anew.
    pub(crate) fn begin_at(&self, at: LogOffset) {
        self.begins_at.send_replace(Some(at));
    }

    /// Waits until the log is to begin elsewhere.
    pub(crate) async fn begins_at(&self) -> LogOffset {
        let mut seen = self.begins_at.subscribe();
        match seen.wait_for(Option::is_some).await.ok().and_then(|at| *at) {
            Some(at) => at,
            // The sender lives as long as this does.
            None => std::future::pending().await,
        }
    }

    /// The master's log has come to this.
    pub(crate) fn note_master_end(&self, end: Option<u64>) {
        self.master_end.store(end.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// By how many bytes a log that ends at `end` is behind the master's, as that was a few seconds ago; none if it is not known.
    pub(crate) fn behind_bytes(&self, end: LogOffset) -> Option<u64> {
        Some(self.master_end.load(Ordering::Relaxed))
            .filter(|master| *master != UNKNOWN)
            .map(|of| of.saturating_sub(end.0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::{Machine, Role, Settings, Sources};

    use super::*;

    fn following(more: &[(&str, &str)]) -> Following {
        let machine =
            Machine { host_name: "h".into(), address: [127, 0, 0, 1].into(), home: Path::new("/nowhere").into() };
        let given = [("brokerRole", "SLAVE"), ("brokerId", "1")].iter().chain(more);
        let command_line = given.map(|(key, value)| ((*key).to_owned(), (*value).to_owned(), "test".to_owned()));
        let sources = Sources { command_line: command_line.collect(), ..Sources::new(Role::Broker, machine) };
        Following::new(&Settings::load(sources).unwrap().broker().unwrap())
    }

    #[test]
    fn the_master_is_where_name_servers_say_unless_a_setting_says_it() {
        let learnt = following(&[]);
        assert_eq!(learnt.master(), None);
        learnt.learnt("", Some("m:10912"));
        assert_eq!((learnt.master(), learnt.log.borrow().clone()), (None, None));
        learnt.learnt("m:10911", Some("m:10912"));
        assert_eq!((learnt.master().as_deref(), learnt.log.borrow().as_deref()), (Some("m:10911"), Some("m:10912")));
        learnt.learnt("n:10911", None);
        assert_eq!((learnt.master().as_deref(), learnt.log.borrow().as_deref()), (Some("n:10911"), Some("m:10912")));
        let fixed = following(&[("haMasterAddress", "f:1001")]);
        assert_eq!(fixed.master().as_deref(), Some("f:1000"));
        fixed.learnt("m:10911", Some("m:10912"));
        assert_eq!((fixed.master().as_deref(), fixed.log.borrow().as_deref()), (Some("m:10911"), Some("f:1001")));
        let asking = following(&[("haMasterAddress", "f:1001"), ("namesrvAddr", "n:9876")]);
        assert_eq!(asking.master(), None, "no guess, where somebody knows");
    }

    #[test]
    fn name_servers_are_asked_for_a_master_unless_a_setting_says_where_it_is() {
        let learnt = following(&[]);
        assert!(learnt.looks_for_master());
        learnt.learnt("m:10911", Some("m:10912"));
        assert!(learnt.looks_for_master(), "it may be another one by now");
        let fixed = following(&[("haMasterAddress", "f:1001")]);
        assert!(fixed.looks_for_master(), "its main port is not known");
        fixed.learnt("m:10911", Some("m:10912"));
        assert!(!fixed.looks_for_master());
    }

    #[test]
    fn a_copy_is_behind_by_what_the_master_had_when_it_was_asked() {
        let following = following(&[]);
        assert_eq!(following.behind_bytes(LogOffset(7)), None);
        following.note_master_end(Some(10));
        assert_eq!(following.behind_bytes(LogOffset(7)), Some(3));
        assert_eq!(following.behind_bytes(LogOffset(12)), Some(0));
    }
}
