//! openraft's own proof of a storage.

use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::*;

struct Builder;

impl StoreBuilder<Types, Storage, StateMachine<Ledger>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Storage, StateMachine<Ledger>), StorageError<u64>> {
        let dir = tempfile::tempdir().unwrap();
        let storage = open(dir.path());
        let applied = Arc::new(RwLock::new(Applied::begin(Ledger::default(), None).unwrap()));
        let state = StateMachine { id: 1, applied, storage: storage.clone() };
        Ok((dir, storage, state))
    }
}

pub(super) fn member() -> Member {
    Member { group: "group".to_owned(), id: 1, members: "1=127.0.0.1:9".to_owned() }
}

pub(super) fn open(dir: &Path) -> Storage {
    Storage::open(dir, &member(), Clock::real(), Arc::new(RealDisk)).unwrap()
}

#[test]
fn the_storage_passes_the_suite_of_openraft() {
    Suite::test_all(Builder).unwrap();
}
