//! How much of cold reads groups may have. Limits are kept and shown only: see
//! `admin/cold_data.rs`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Bytes that each group may read, by its name. Lost with a restart, as in Apache. The mutex guards
/// nothing else.
#[derive(Default)]
pub(crate) struct ColdLimits(pub(crate) Mutex<BTreeMap<String, i64>>);
