//! Bytes on this machine: commit log, consume queues, journal.
