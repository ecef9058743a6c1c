//! The lines of ranks: each is printed with its rank, and the last ones are kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use crate::terminal::say;

/// The number of lines of standard error that are repeated for the first rank that failed.
const LAST_LINES: usize = 20;

/// The most bytes of a line. A longer line is printed in parts.
const LINE_BYTES: u64 = 1 << 16;

/// The last lines of a rank's standard error.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: &[u8]) {
        let mut lines = self.0.lock();
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).trim_end().to_owned());
    }

    pub(super) fn take(&self) -> Vec<String> {
        self.0.lock().drain(..).collect()
    }
}

/// Returns what the lines of standard output are written to: a file, or standard output.
pub(super) fn writer(file: Option<&Arc<File>>) -> Box<dyn Write + Send> {
    match file {
        Some(file) => Box::new(Arc::clone(file)),
        None => Box::new(io::stdout()),
    }
}

/// Prints the lines of a stream with a prefix, on a thread that ends with the stream. It returns `false` if they could not be
/// written, although they have a reader.
pub(super) fn print_lines(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    prefix: String,
    keep: Option<LastLines>,
) -> JoinHandle<bool> {
    thread::spawn(move || {
        let copied = copy_lines(from, to, &prefix, keep.as_ref());
        // The reader of the output, such as `head`, may have closed the pipe.
        let is_lost = |error: &io::Error| error.kind() != io::ErrorKind::BrokenPipe;
        let Some(error) = copied.err().filter(is_lost) else {
            return true;
        };
        let rank = prefix.trim_end();
        let text = format!("can't write the lines of {rank}: {error}");
        say("error", &text);
        false
    })
}

fn copy_lines(
    from: impl Read,
    mut to: impl Write,
    prefix: &str,
    keep: Option<&LastLines>,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        let mut part = from.by_ref().take(LINE_BYTES);
        if part.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(keep) = keep {
            keep.push(&line[prefix.len()..]);
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write, so that lines of ranks do not mix.
        to.write_all(&line)?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_get_their_rank_and_the_last_are_kept() {
        let kept = LastLines::default();
        let text: String = (0..30).map(|line| format!("line {line}\n")).collect();
        let mut printed = Vec::new();
        copy_lines(
            format!("{text}no end").as_bytes(),
            &mut printed,
            "[rank 1] ",
            Some(&kept),
        )
        .unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(printed.starts_with("[rank 1] line 0\n[rank 1] line 1\n"));
        assert!(printed.ends_with("[rank 1] line 29\n[rank 1] no end\n"));
        let kept = kept.take();
        assert_eq!(
            (kept.len(), kept[0].as_str(), kept[19].as_str()),
            (20, "line 11", "no end")
        );
    }
}
