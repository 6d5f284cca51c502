//! The table of configuration keys, where each value came from, and what is wrong with a file.
