//! Bytes of a program's output, cut into lines.
//!
//! In: chunks as they were read. Out: lines without their newline. Guarantee: bounded memory: a line longer than
//! [`LONGEST_PIECE`] comes out in pieces; a last line without newline comes out with [`LineSplitter::finish`].

/// Longest line that stays whole.
pub(crate) const LONGEST_PIECE: usize = 16 * 1024;

/// The unfinished line of one stream.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    unfinished: Vec<u8>,
}

impl LineSplitter {
    /// Takes `chunk` and hands every line that it completes to `emit`.
    pub(crate) fn push(&mut self, chunk: &[u8], mut emit: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.append(&rest[..end], &mut emit);
            emit(&self.unfinished);
            self.unfinished.clear();
            rest = &rest[end + 1..];
        }
        self.append(rest, &mut emit);
    }

    /// Hands out the last line when it had no newline.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        if !self.unfinished.is_empty() {
            emit(&self.unfinished);
            self.unfinished.clear();
        }
    }

    /// Adds bytes without newline; a full piece leaves only when more bytes follow it.
    fn append(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(&[u8])) {
        while self.unfinished.len() + bytes.len() > LONGEST_PIECE {
            let (now, later) = bytes.split_at(LONGEST_PIECE - self.unfinished.len());
            self.unfinished.extend_from_slice(now);
            emit(&self.unfinished);
            self.unfinished.clear();
            bytes = later;
        }
        self.unfinished.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::default();
        for chunk in chunks {
            splitter.push(chunk, |line| lines.push(line.to_vec()));
        }
        splitter.finish(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn lines_do_not_depend_on_chunks() {
        let text = b"one\n\ntwo \xff\r\nthree";
        let expected: Vec<&[u8]> = vec![b"one", b"", b"two \xff\r", b"three"];
        for size in 1..=text.len() {
            assert_eq!(split(&text.chunks(size).collect::<Vec<_>>()), expected, "chunks of {size}");
        }
        assert!(split(&[b""]).is_empty());
        assert_eq!(split(&[b"\n"]), [b""]);
    }

    #[test]
    fn long_lines_come_in_pieces() {
        for (length, pieces) in [
            (LONGEST_PIECE, vec![LONGEST_PIECE]),
            (LONGEST_PIECE + 1, vec![LONGEST_PIECE, 1]),
            (2 * LONGEST_PIECE, vec![LONGEST_PIECE, LONGEST_PIECE]),
        ] {
            let mut text = vec![b'x'; length];
            text.extend_from_slice(b"\nend\n");
            for size in [1000, LONGEST_PIECE, text.len()] {
                let lines = split(&text.chunks(size).collect::<Vec<_>>());
                assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [&pieces[..], &[3]].concat());
            }
        }
    }
}
