//! Whether the chains of an index file are whole. One pass over its entries tells, since each says
//! which one was the newest of its slot before it.

use std::io;

use disk::DiskFile;

use super::file::{ENTRY_BYTES, Header, IndexEntry, SLOT_BYTES, Shape};

/// Entries read at once, some 250 KiB.
pub(crate) const ENTRIES_AT_ONCE: u32 = 12_800;
/// Slots read at once, as many bytes.
const SLOTS_AT_ONCE: u32 = 64_000;
const _: () = assert!(ENTRIES_AT_ONCE as u64 * ENTRY_BYTES == SLOTS_AT_ONCE as u64 * SLOT_BYTES);
/// Files of more slots are not looked at: the newest entry of each is kept meanwhile, here in 256
/// MiB. By default there are 5,000,000.
const SLOTS_MAX: u32 = 64 << 20;

/// Tells what is wrong with the entries that the header counts and with the slots that lead to
/// them, and at which byte. The file has the length of its shape. `may_lead_on`: a process was
/// killed, and a start takes back what slots know beyond the header's count.
pub(crate) fn check_chains(
    file: &dyn DiskFile,
    shape: Shape,
    header: &Header,
    may_lead_on: bool,
    tell: &mut dyn FnMut(u64, String),
) -> io::Result<()> {
    if shape.slots > SLOTS_MAX || header.is_empty() || header.next > shape.entries {
        return Ok(());
    }
    let slot_of = |entry: &IndexEntry| entry.hash % shape.slots;
    let mut newest = vec![0_u32; shape.slots as usize];
    let mut bytes = vec![0; ENTRIES_AT_ONCE as usize * ENTRY_BYTES as usize];
    for first in (1..header.next).step_by(ENTRIES_AT_ONCE as usize) {
        let count = (header.next - first).min(ENTRIES_AT_ONCE);
        let bytes = &mut bytes[..count as usize * ENTRY_BYTES as usize];
        let read = file.read_once_at(bytes, shape.entry_at(first))?;
        for (number, raw) in (first..).zip(bytes[..read].as_chunks::<{ ENTRY_BYTES as usize }>().0) {
            let entry = IndexEntry::decode(raw);
            let before = std::mem::replace(&mut newest[slot_of(&entry) as usize], number);
            if entry.before != before {
                let says = entry.before;
                tell(
                    shape.entry_at(number),
                    format!("key {number} says that key {says} comes before it in its slot, and that is {before}"),
                );
            }
            let range = header.begin_offset..=header.end_offset;
            if !i64::try_from(entry.at).is_ok_and(|at| range.contains(&at)) {
                tell(
                    shape.entry_at(number),
                    format!(
                        "key {number} leads to log offset {}, and those of this file lie between {} and {}",
                        entry.at, header.begin_offset, header.end_offset
                    ),
                );
            }
        }
    }
    // The number of the entry to which a slot leads, as far as the header counts them; none if that
    // cannot be told.
    let counted = |slot: u32, found: u32| -> io::Result<Option<u32>> {
        let mut number = found;
        // Each turn goes down.
        while number >= header.next {
            let mut raw = [0; ENTRY_BYTES as usize];
            if number >= shape.entries || file.read_at(&mut raw, shape.entry_at(number))? < raw.len() {
                return Ok(None);
            }
            let entry = IndexEntry::decode(&raw);
            if entry.before >= number || slot_of(&entry) != slot {
                return Ok(None);
            }
            number = entry.before;
        }
        Ok(Some(number))
    };
    for first in (0..shape.slots).step_by(SLOTS_AT_ONCE as usize) {
        let count = (shape.slots - first).min(SLOTS_AT_ONCE);
        let bytes = &mut bytes[..count as usize * SLOT_BYTES as usize];
        let read = file.read_once_at(bytes, Shape::slot_at(first))?;
        for (slot, raw) in (first..).zip(bytes[..read].as_chunks::<{ SLOT_BYTES as usize }>().0) {
            let (found, known) = (u32::from_be_bytes(*raw), newest[slot as usize]);
            let is_beyond = found >= header.next;
            if found == known || is_beyond && (may_lead_on || counted(slot, found)? == Some(known)) {
                continue;
            }
            tell(Shape::slot_at(slot), format!("slot {slot} leads to key {found}, and its newest one is {known}"));
        }
    }
    Ok(())
}
