//! The property string of a record, `name \x01 value \x02` repeated, searched for a few names in one pass.

use memchr::{memchr, memrchr};

use crate::eval::{EvalError, Steps};

/// Between a name and its value.
const NAME_VALUE: u8 = 1;
/// After each property; after the last it may be missing.
const PROPERTY_END: u8 = 2;

/// Properties from the last to the first: the first that has a name is the one that a Java map would hold. Dropped, as in
/// Java: what has no name, no value or no separator.
pub(crate) struct FromTheEnd<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> FromTheEnd<'a> {
    pub fn of(properties: &'a [u8]) -> FromTheEnd<'a> {
        FromTheEnd { rest: Some(properties) }
    }
}

impl<'a> Iterator for FromTheEnd<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(rest) = self.rest {
            let segment = match memrchr(PROPERTY_END, rest) {
                Some(end) => {
                    self.rest = Some(&rest[..end]);
                    &rest[end + 1..]
                }
                None => {
                    self.rest = None;
                    rest
                }
            };
            if let Some(separator) = memchr(NAME_VALUE, segment) {
                let (name, value) = (&segment[..separator], &segment[separator + 1..]);
                if !name.is_empty() && !value.is_empty() {
                    return Some((name, value));
                }
            }
        }
        None
    }
}

/// Lays the value of each name into the slot of the same index. There are as many slots as names; they are empty before.
pub(crate) fn fill<'a>(
    properties: &'a [u8],
    names: &[Box<str>],
    slots: &mut [Option<&'a [u8]>],
    steps: &Steps,
) -> Result<(), EvalError> {
    let mut missing = names.len();
    for (name, value) in FromTheEnd::of(properties) {
        if missing == 0 {
            break;
        }
        steps.take(1)?;
        let wanted = names.iter().position(|wanted| wanted.as_bytes() == name);
        if let Some(slot) = wanted.and_then(|index| slots.get_mut(index))
            && slot.is_none()
        {
            *slot = Some(value);
            missing -= 1;
        }
    }
    Ok(())
}

/// The same for many names, whose indexes are given in the order of the names: no property is compared with all of them.
pub(crate) fn fill_many<'a>(
    properties: &'a [u8],
    names: &[Box<str>],
    by_name: &[u16],
    slots: &mut [Option<&'a [u8]>],
    steps: &Steps,
) -> Result<(), EvalError> {
    let halvings = u64::from(names.len().checked_ilog2().unwrap_or(0)) + 1;
    for (name, value) in FromTheEnd::of(properties) {
        steps.take(halvings)?;
        let found = by_name.binary_search_by(|index| names[usize::from(*index)].as_bytes().cmp(name));
        if let Ok(place) = found {
            slots[usize::from(by_name[place])].get_or_insert(value);
        }
    }
    Ok(())
}
