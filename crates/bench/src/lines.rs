//! Lines that another process prints, up to a length.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Lines, one after the other.
pub struct Lines<R> {
    from: R,
    /// The line that has begun.
    begun: Vec<u8>,
    max_bytes: usize,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Of at most so many bytes each.
    pub fn new(from: R, max_bytes: usize) -> Lines<R> {
        Lines { from, begun: Vec::new(), max_bytes }
    }

    /// The next line, without its end; none: there will be no more, and one that was not ended does not count. An error: it cannot be
    /// read, or is longer than allowed. Whoever does not wait for it any more loses nothing: the next call goes on.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let read = self.from.fill_buf().await?;
            if read.is_empty() {
                return Ok(None);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            if self.begun.len() + part.len() > self.max_bytes {
                let text = format!("a line has more than {} bytes", self.max_bytes);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            self.begun.extend_from_slice(part);
            let taken = part.len() + usize::from(end.is_some());
            self.from.consume(taken);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.begun)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_they_are_read_and_one_that_is_too_long_is_an_error() {
        for buffer in [1, 3, 100] {
            let text = &b"ab\n\nabcd\nabcde\nab\n"[..];
            let mut lines = Lines::new(BufReader::with_capacity(buffer, text), 4);
            for line in ["ab", "", "abcd"] {
                assert_eq!(lines.next().await.unwrap().as_deref(), Some(line.as_bytes()), "{buffer}");
            }
            assert_eq!(lines.next().await.unwrap_err().to_string(), "a line has more than 4 bytes");
        }
        let mut lines = Lines::new(BufReader::new(&b"ab\nab"[..]), 4);
        assert_eq!(lines.next().await.unwrap().as_deref(), Some(&b"ab"[..]));
        assert_eq!(lines.next().await.unwrap(), None);
    }
}
