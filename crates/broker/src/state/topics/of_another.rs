//! Names that a store has from another broker, or from another cluster.
//!
//! A broker makes topics that are called by its own name and by that of its cluster. A store with those of others, and none of its own, was
//! that of a broker of another name: perhaps the setting is mistyped, and clients would look for their queues in vain.

use config::BrokerSettings;
use protocol::names as known;

use super::Topics;

/// What a topic is called by, the setting that says it, and what it costs to have changed it.
const NAMED_BY: [(&str, &str, &str); 2] = [
    (
        known::BROKER_MEMBER_PREFIX,
        "brokerName",
        "consumers that keep their offsets themselves begin anew, and mappings of static topics lead to the old name",
    ),
    (
        known::REVIVE_TOPIC_PREFIX,
        "brokerClusterName",
        "leases of an Apache broker in the old cluster's topic are not taken over, and clients look for the old cluster",
    ),
];

/// Which of its own topics a store did not have before it was opened by this broker.
pub(crate) struct OfAnother {
    missing: Vec<(&'static str, &'static str, &'static str, String)>,
}

impl OfAnother {
    /// To be called before this broker makes its topics.
    pub(crate) fn before(topics: &Topics, settings: &BrokerSettings) -> OfAnother {
        let own = [&settings.broker_name, &settings.broker_cluster_name];
        let all = NAMED_BY.into_iter().zip(own);
        let missing = all.filter(|((prefix, ..), own)| topics.get(&format!("{prefix}{own}")).is_none());
        OfAnother { missing: missing.map(|((prefix, key, costs), own)| (prefix, key, costs, own.clone())).collect() }
    }

    /// A sentence for each setting that names another one than the store does.
    pub(crate) fn found(&self, topics: &Topics) -> Vec<String> {
        let topics = topics.all();
        let sentence = |(prefix, key, costs, own): &(&str, &str, &str, String)| {
            let names = topics.iter().filter_map(|topic| topic.name().strip_prefix(prefix));
            let others: Vec<&str> = names.filter(|name| name != own).collect();
            (!others.is_empty()).then(|| {
                format!("{key} is {own}, and the store was that of {}: if the new name is not meant, stop, and set {key} to the old one; else {costs}", others.join(", "))
            })
        };
        self.missing.iter().filter_map(sentence).collect()
    }
}
