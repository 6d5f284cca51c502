//! What a command writes to its terminal, or to the program that reads its output.
//!
//! The reader may go away at any time (`gantry store inspect | head -3`). That is no failure of the
//! command: the rest of the text goes nowhere, the command does its work to the end, and its exit code
//! is that of its work. A command that only shows asks [`Stdout::is_closed`] and ends early. `println!`
//! would panic instead, so crates with commands forbid it. A signal cannot do the same: a server and
//! a client must survive a write to a closed socket.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of standard output has gone. Guards nothing else, so `Relaxed` is enough.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Standard output, which takes everything once its reader has gone.
///
/// Other failures, such as a full disk behind it, are errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stdout;

impl Stdout {
    /// Whether the reader has gone, as far as a write has met it.
    pub fn is_closed() -> bool {
        IS_CLOSED.load(Ordering::Relaxed)
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if Stdout::is_closed() {
            return Ok(bytes.len());
        }
        or_closed(io::stdout().write(bytes), bytes.len(), &IS_CLOSED)
    }

    fn flush(&mut self) -> io::Result<()> {
        if Stdout::is_closed() {
            return Ok(());
        }
        or_closed(io::stdout().flush(), (), &IS_CLOSED)
    }
}

/// The result of a write, with a closed pipe noted and taken for `done`.
fn or_closed<T>(written: io::Result<T>, done: T, is_closed: &AtomicBool) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            is_closed.store(true, Ordering::Relaxed);
            Ok(done)
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))),
        Ok(written) => Ok(written),
    }
}

/// Writes text to standard output now. [`say!`](crate::say) writes a line.
///
/// # Errors
/// Standard output cannot be written for another reason than a reader that has gone.
pub fn print(text: fmt::Arguments<'_>) -> io::Result<()> {
    write_at_once(&mut Stdout, text)?;
    Stdout.flush()
}

/// Writes text to standard error. Nobody may be reading it, which is no reason to end.
pub fn print_aside(text: fmt::Arguments<'_>) {
    let _ = write_at_once(&mut io::stderr(), text);
}

/// Writes text in one call. Piece by piece, a line of the log would come in between where both go to one file, in front of the line's end for instance.
fn write_at_once(out: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    match text.as_str() {
        Some(text) => out.write_all(text.as_bytes()),
        None => out.write_all(text.to_string().as_bytes()),
    }
}

/// Writes a line to standard output, as `println!`, but a reader that has gone ends nothing. The value is an [`io::Result`].
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::print(::std::format_args!("{}\n", ::std::format_args!($($text)*))) };
}

/// Writes a line to standard error, as `eprintln!`, but never panics.
#[macro_export]
macro_rules! say_aside {
    ($($text:tt)*) => { $crate::print_aside(::std::format_args!("{}\n", ::std::format_args!($($text)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_in_one_call() {
        struct Calls(Vec<Vec<u8>>);
        impl Write for Calls {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut calls = Calls(Vec::new());
        let (name, number) = ("broker", 10911);
        write_at_once(&mut calls, format_args!("{}\n", format_args!("ready {name}={number}"))).unwrap();
        assert_eq!(calls.0, [b"ready broker=10911\n"]);
    }

    #[test]
    fn a_closed_pipe_is_noted_and_anything_else_is_an_error() {
        let is_closed = AtomicBool::new(false);
        let failed = |kind: io::ErrorKind| Err::<usize, _>(io::Error::from(kind));
        assert!(or_closed(failed(io::ErrorKind::StorageFull), 3, &is_closed).is_err());
        assert!(!is_closed.load(Ordering::Relaxed));
        assert_eq!(or_closed(failed(io::ErrorKind::BrokenPipe), 3, &is_closed).unwrap(), 3);
        assert!(is_closed.load(Ordering::Relaxed));
    }
}
