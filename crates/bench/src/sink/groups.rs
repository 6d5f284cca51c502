//! The consumer groups that the null server was told of. While there are none, nobody pulls.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::names::check_group;

use super::Refusal;

/// Groups at once: ten runs as large as they may be.
const GROUPS_MAX: usize = 100_000;

/// The groups.
#[derive(Default)]
pub struct Groups {
    /// Guards the list of groups; held for a change.
    names: Mutex<HashSet<String>>,
    // Relaxed: nothing is published through it.
    are_any: AtomicBool,
}

impl Groups {
    /// Makes a group, or leaves the one that is there.
    pub fn create(&self, name: &str) -> Result<(), Refusal> {
        check_group(name).map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
        let mut names = self.names.lock();
        if names.len() >= GROUPS_MAX && !names.contains(name) {
            let text = format!("the null server has {GROUPS_MAX} groups, which is the limit: {name} is not made");
            return Err(Refusal::new(ResponseCode::SystemError, text));
        }
        names.insert(name.to_owned());
        self.are_any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets a group.
    pub fn delete(&self, name: &str) {
        let mut names = self.names.lock();
        names.remove(name);
        self.are_any.store(!names.is_empty(), Ordering::Relaxed);
    }

    /// Whether there is one that could pull.
    pub fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_bounded_in_number_and_in_what_they_are_called() {
        let groups = Groups::default();
        for name in ["", "a b", &"x".repeat(200)] {
            assert_eq!(groups.create(name).unwrap_err().code, ResponseCode::InvalidParameter, "{name}");
        }
        assert!(!groups.are_any());
        (0..GROUPS_MAX).for_each(|group| groups.create(&format!("g-{group}")).unwrap());
        let refusal = groups.create("one-more").unwrap_err();
        assert_eq!(refusal.code, ResponseCode::SystemError);
        assert!(refusal.remark.starts_with("the null server has 100000 groups"), "{}", refusal.remark);
        // What is there stays, and room is made by what goes.
        groups.create("g-7").unwrap();
        groups.delete("g-7");
        groups.create("one-more").unwrap();
        assert!(groups.are_any());
    }
}
