//! How tables hash whose order shows: in snapshots of the journal, and so in files.

use foldhash::fast::SeedableRandomState;

/// By chance, so that nobody can make up names that collide; in the simulator, where a seed decides everything, always the same.
pub(crate) type Hashing = SeedableRandomState;

/// For a new table.
pub(crate) fn new() -> Hashing {
    if disk::turns::are_given() { SeedableRandomState::fixed() } else { SeedableRandomState::random() }
}
