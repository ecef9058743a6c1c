//! What the launcher prints, on threads: it watches the ranks and passes signals on while a reader of its output does not read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::outcome::Outcome;
use crate::terminal::one_line;

/// The longest wait for what is not printed yet, if it is not known that a reader reads slowly.
pub(super) const PRINT: Duration = Duration::from_secs(2);

/// The time between two looks at what is not printed yet.
const LOOK: Duration = Duration::from_millis(1);

/// The number of lines of standard error that are repeated for the first rank that failed.
const LAST_LINES: usize = 20;

/// The most bytes of a line. A longer line is printed in parts.
const LINE_BYTES: u64 = 1 << 16;

/// The last lines of a rank's standard error, as they were printed.
pub(super) type LastLines = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// The notes of the launcher on standard error, and the lines of ranks.
#[derive(Clone)]
pub(super) struct Notes {
    texts: Sender<Vec<u8>>,
    is_quiet: bool,
    /// The number of texts, and of streams of ranks, that are not printed to their end.
    unprinted: Arc<AtomicUsize>,
    /// The number of lines of ranks that are being written, which takes long if their reader is slow.
    writing: Arc<AtomicUsize>,
    /// The exit code of ranks that have succeeded.
    code: Arc<AtomicU8>,
}

impl Notes {
    /// Starts the thread that prints the notes.
    pub(super) fn start(is_quiet: bool) -> io::Result<Self> {
        let (texts, received) = channel();
        let notes = Self {
            texts,
            is_quiet,
            unprinted: Arc::default(),
            writing: Arc::default(),
            code: Arc::default(),
        };
        let unprinted = Arc::clone(&notes.unprinted);
        let print = move |text: Vec<u8>| {
            // A failure to write to standard error can't be reported.
            let _ = io::stderr().write_all(&text);
            unprinted.fetch_sub(1, SeqCst);
        };
        thread::Builder::new().spawn(move || received.into_iter().for_each(print))?;
        Ok(notes)
    }

    /// Prints a note, except with `--quiet`.
    pub(super) fn note(&self, text: &str) {
        if !self.is_quiet {
            self.say("note", text);
        }
    }

    /// Prints a line such as `error: ...`.
    pub(super) fn say(&self, kind: &str, text: &str) {
        self.print(format!("{kind}: {}\n", one_line(text)));
    }

    /// Prints a text.
    pub(super) fn print(&self, text: impl Into<Vec<u8>>) {
        self.unprinted.fetch_add(1, SeqCst);
        // The receiver lives as long as the process.
        let _ = self.texts.send(text.into());
    }

    /// Prints the lines of a stream with their rank, on a thread that ends with the stream.
    pub(super) fn print_lines(
        &self,
        rank: u32,
        from: impl Read + Send + 'static,
        mut to: impl Write + Send + 'static,
        keep: Option<LastLines>,
    ) -> io::Result<()> {
        let notes = self.clone();
        let print = move || {
            // One write, so that lines of ranks do not mix.
            let write = |line: &[u8]| {
                notes.writing.fetch_add(1, SeqCst);
                let done = to.write_all(line).and_then(|()| to.flush());
                notes.writing.fetch_sub(1, SeqCst);
                done
            };
            let copied = copy_lines(from, write, &format!("[rank {rank}] "), keep.as_ref());
            // The reader of the output, such as `head`, may have closed the pipe.
            let is_lost = |error: &io::Error| error.kind() != io::ErrorKind::BrokenPipe;
            if let Some(error) = copied.err().filter(is_lost) {
                notes.lose();
                let text = format!("can't write the lines of [rank {rank}]: {error}");
                notes.say("error", &text);
            }
            notes.unprinted.fetch_sub(1, SeqCst);
        };
        self.unprinted.fetch_add(1, SeqCst);
        thread::Builder::new().spawn(print).map(drop)
    }

    /// Waits until all is printed, at most for [`PRINT`]: the reader may not read.
    pub(super) fn wait(&self) {
        let began = Instant::now();
        while self.is_unprinted() && began.elapsed() < PRINT {
            thread::sleep(LOOK);
        }
    }

    /// Returns whether there are texts that are not printed, or streams of ranks that have not ended.
    pub(super) fn is_unprinted(&self) -> bool {
        self.unprinted.load(SeqCst) > 0
    }

    /// Returns whether lines of ranks are being written.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.load(SeqCst) > 0
    }

    /// Remembers that lines of ranks are lost.
    pub(super) fn lose(&self) {
        self.code.store(Outcome::MACHINE.0, SeqCst);
    }

    /// Returns the outcome of ranks that have succeeded: a success does not hide that lines of any start are lost.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome(self.code.load(SeqCst))
    }
}

/// The writer of events, each of which is one write.
impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.print(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns what the lines of standard output are written to: a file, or standard output.
pub(super) fn writer(file: Option<&Arc<File>>) -> Box<dyn Write + Send> {
    match file {
        Some(file) => Box::new(Arc::clone(file)),
        None => Box::new(io::stdout()),
    }
}

fn copy_lines(
    from: impl Read,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
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
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if let Some(keep) = keep {
            let mut lines = keep.lock();
            lines.push_back(line.clone());
            if lines.len() > LAST_LINES {
                lines.pop_front();
            }
        }
        write(&line)?;
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
            |line| printed.write_all(line),
            "[rank 1] ",
            Some(&kept),
        )
        .unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(printed.starts_with("[rank 1] line 0\n[rank 1] line 1\n"));
        assert!(printed.ends_with("[rank 1] line 29\n[rank 1] no end\n"));
        let kept = kept.lock();
        let [first, last] = [&b"[rank 1] line 11\n"[..], b"[rank 1] no end\n"];
        assert_eq!((kept.len(), &*kept[0], &*kept[19]), (20, first, last));
    }
}
