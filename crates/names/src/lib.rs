//! The name server: route table and its requests.
