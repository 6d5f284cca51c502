//! What is put into a journal: tables, and changes of their entries.

use std::collections::BTreeMap;

/// Names a table in the journal's files. A number once given is never given to another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u8);

/// What becomes of one key.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Of which table.
    pub table: TableId,
    /// Which one.
    pub key: &'a [u8],
    /// None: it is gone.
    pub value: Option<&'a [u8]>,
}

/// Whoever holds a table's state.
///
/// Two rules make a snapshot that is taken beside ongoing changes complete. The owner changes its
/// state first and calls [`Journal::put`](crate::Journal::put) after that. And of two changes of
/// one key, that which the state keeps is put last: change and put are one step under whatever
/// guards the key.
pub trait Table: Send + Sync {
    /// Shows each entry once; entries that change meanwhile, before or after. Each call of `show`
    /// may write to the device, so no lock that a request needs may be held across it.
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8]));
}

/// A table's entries, while the journal has them.
pub(crate) type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Makes one change to a table.
pub(crate) fn apply(entries: &mut Entries, key: &[u8], value: Option<&[u8]>) {
    match value {
        Some(value) => match entries.get_mut(key) {
            Some(old) => *old = value.into(),
            None => {
                entries.insert(key.into(), value.into());
            }
        },
        None => {
            entries.remove(key);
        }
    }
}
