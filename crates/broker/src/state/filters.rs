//! Long filters that pulls and pops say themselves, made ready once for all that say the same.
//!
//! A pull may bring its subscription along, and a consumer that does so brings it with each pull. A short one is made ready again faster
//! than it is looked for. Of the long ones those that were used last are kept, up to so many bytes of their texts.

use std::sync::Arc;

use filter::Expression;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::state::message_filter::MessageFilter;

/// A text of fewer bytes is not kept.
const KEPT_FROM: usize = 1 << 10;
/// Bytes of the texts that are kept. What is made of them takes about six times as much.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// A text of more bytes is not kept: it would drive out all others.
const KEPT_BYTES_EACH_MAX: usize = KEPT_BYTES_MAX / 2;

#[derive(Debug)]
struct FilterEntry {
    want: Arc<MessageFilter>,
    used: u64,
}

#[derive(Debug, Default)]
struct Kept {
    tags: HashMap<Box<str>, FilterEntry>,
    conditions: HashMap<Box<str>, FilterEntry>,
    /// Of the texts of both.
    bytes: usize,
    uses: u64,
}

/// Filters by their text.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    /// Guards nothing else; filters are made and dropped without it.
    kept: Mutex<Kept>,
}

impl Filters {
    /// A filter by tags; `Ok(None)`: everything. An error says what is wrong with it.
    pub(crate) fn tags(&self, expression: &str) -> Result<Option<Arc<MessageFilter>>, String> {
        if let Some(known) = self.known(expression, |kept| &mut kept.tags) {
            return Ok(Some(known));
        }
        let made = MessageFilter::tags(expression)?;
        if let Some(want) = &made {
            self.keep(expression, want, |kept| &mut kept.tags);
        }
        Ok(made)
    }

    /// A condition on properties.
    pub(crate) fn condition(&self, expression: &str) -> Result<Arc<MessageFilter>, String> {
        if let Some(known) = self.known(expression, |kept| &mut kept.conditions) {
            return Ok(known);
        }
        let compiled = Expression::compile(expression).map_err(|error| error.remark())?;
        let want = Arc::new(MessageFilter::Sql(compiled));
        self.keep(expression, &want, |kept| &mut kept.conditions);
        Ok(want)
    }

    fn known(
        &self,
        text: &str,
        of_kind: impl Fn(&mut Kept) -> &mut HashMap<Box<str>, FilterEntry>,
    ) -> Option<Arc<MessageFilter>> {
        if !is_kept(text) {
            return None;
        }
        let mut kept = self.kept.lock();
        kept.uses += 1;
        let uses = kept.uses;
        let entry = of_kind(&mut kept).get_mut(text)?;
        entry.used = uses;
        Some(Arc::clone(&entry.want))
    }

    fn keep(
        &self,
        text: &str,
        want: &Arc<MessageFilter>,
        of_kind: impl Fn(&mut Kept) -> &mut HashMap<Box<str>, FilterEntry>,
    ) {
        if !is_kept(text) {
            return;
        }
        let text: Box<str> = text.into();
        let bytes = text.len();
        // Dropped when the lock is given back.
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        kept.uses += 1;
        let entry = FilterEntry { want: Arc::clone(want), used: kept.uses };
        match of_kind(&mut kept).insert(text, entry) {
            // Somebody else was faster.
            Some(before) => gone.push(before),
            None => kept.bytes += bytes,
        }
        // Each turn takes one out, and those of the largest size fit alone.
        while kept.bytes > KEPT_BYTES_MAX
            && let Some(oldest) = kept.take_oldest()
        {
            gone.push(oldest);
        }
        drop(kept);
    }

    /// Bytes of the texts that are kept.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }
}

impl Kept {
    fn take_oldest(&mut self) -> Option<FilterEntry> {
        let oldest = |table: &HashMap<Box<str>, FilterEntry>| {
            table.iter().min_by_key(|(_, entry)| entry.used).map(|(text, entry)| (entry.used, text.clone()))
        };
        let of_tags = oldest(&self.tags);
        let of_conditions = oldest(&self.conditions);
        let is_of_tags = match (&of_tags, &of_conditions) {
            (Some((tags, _)), Some((conditions, _))) => tags < conditions,
            (of_tags, _) => of_tags.is_some(),
        };
        let (table, (_, text)) =
            if is_of_tags { (&mut self.tags, of_tags?) } else { (&mut self.conditions, of_conditions?) };
        self.bytes = self.bytes.saturating_sub(text.len());
        table.remove(&text)
    }
}

fn is_kept(text: &str) -> bool {
    (KEPT_FROM..=KEPT_BYTES_EACH_MAX).contains(&text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(name: &str, bytes: usize) -> String {
        let mut text = format!("{name} = 1");
        while text.len() < bytes {
            text.push_str(" OR a CONTAINS 'x'");
        }
        text
    }

    #[test]
    fn a_long_filter_is_made_once_for_all_that_say_it_and_a_short_one_is_not_kept() {
        let filters = Filters::default();
        let (long, tags) = (condition("a", 50_000), "t||".repeat(30_000));
        assert!(Arc::ptr_eq(&filters.condition(&long).unwrap(), &filters.condition(&long).unwrap()));
        assert!(Arc::ptr_eq(&filters.tags(&tags).unwrap().unwrap(), &filters.tags(&tags).unwrap().unwrap()));
        let before = filters.bytes();
        assert!(!Arc::ptr_eq(&filters.condition("a = 1").unwrap(), &filters.condition("a = 1").unwrap()));
        assert!(filters.tags("*").unwrap().is_none());
        // A text is a filter of its own kind.
        filters.condition(&tags).unwrap_err();
        assert_eq!(filters.bytes(), before);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_was_used_last_stays() {
        let filters = Filters::default();
        let first = filters.condition(&condition("first", 60_000)).unwrap();
        for number in 0..200 {
            filters.condition(&condition(&format!("n{number}"), 60_000)).unwrap();
            assert!(filters.bytes() <= KEPT_BYTES_MAX, "{}", filters.bytes());
            assert!(Arc::ptr_eq(&first, &filters.condition(&condition("first", 60_000)).unwrap()), "{number}");
        }
        let again = filters.condition(&condition("n0", 60_000)).unwrap();
        assert_eq!(Arc::strong_count(&again), 2, "it was made anew");
        // One that would drive out all others.
        filters.tags(&"t||".repeat(500_000)).unwrap();
        assert!(Arc::ptr_eq(&first, &filters.condition(&condition("first", 60_000)).unwrap()));
    }
}
