//! An append-only file of whole records that a killed run leaves readable.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tiebreak_data::Error;

/// The buffer is handed to the system at this size, or when it is older than [`FLUSH_EVERY`].
const BUFFER_BYTES: usize = 64 * 1024;
/// How long a record may stay in our memory, so that a viewer sees a live run.
const FLUSH_EVERY: Duration = Duration::from_secs(2);

/// An open log. Only whole records are handed to the system, so the file ends at a record boundary between two writes.
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Bytes handed to the system; the file's length.
    length: u64,
    flushed: Instant,
    /// A failed write could not be undone, so nothing may follow it.
    broken: bool,
}

impl LogFile {
    /// A new or emptied file.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|e| failed(path, "create", &e))?;
        // Not `OpenOptions::truncate`, which the standard library refuses together with `append`.
        if file.metadata().map_err(|e| failed(path, "create", &e))?.len() > 0 {
            file.set_len(0).map_err(|e| failed(path, "empty", &e))?;
        }
        Ok(Self::new(path, file, 0))
    }

    /// An existing file, cut back to its first `keep` bytes.
    pub(crate) fn reopen(path: &Path, keep: u64) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).open(path).map_err(|e| failed(path, "reopen", &e))?;
        let found = file.metadata().map_err(|e| failed(path, "reopen", &e))?.len();
        if found < keep {
            return Err(damaged(path, &format!("holds {found} bytes, but the checkpoint was written at {keep}")));
        }
        file.set_len(keep).map_err(|e| failed(path, "cut back", &e))?;
        Ok(Self::new(path, file, keep))
    }

    fn new(path: &Path, file: File, length: u64) -> Self {
        Self {
            path: path.to_owned(),
            file,
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            length,
            flushed: Instant::now(),
            broken: false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends what `write` puts into the buffer: one or more whole records.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Result<(), Error> {
        let before = self.buffer.len();
        if let Err(e) = write(&mut self.buffer) {
            self.buffer.truncate(before);
            return Err(failed(&self.path, "encode a record for", &e));
        }
        if self.buffer.len() >= BUFFER_BYTES || self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(())
    }

    /// Hands the buffer to the system.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.broken {
            return Err(Error::Failed(format!(
                "{}: an earlier write failed; nothing more is written",
                self.path.display()
            )));
        }
        if let Err(e) = self.file.write_all(&self.buffer) {
            // A full disk may have taken part of a record.
            self.broken = self.file.set_len(self.length).is_err();
            return Err(failed(&self.path, "write to", &e));
        }
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        self.flushed = Instant::now();
        Ok(())
    }

    /// Flushes, waits until the disk has it and returns the file's length in bytes.
    pub(crate) fn sync(&mut self) -> Result<u64, Error> {
        self.flush()?;
        self.file.sync_all().map_err(|e| failed(&self.path, "sync", &e))?;
        Ok(self.length)
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // The run's own error, if any, matters more than this one.
        let _ = self.flush();
    }
}

/// An operating system error on `path`.
pub(crate) fn failed(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    Error::Failed(format!("cannot {doing} {}: {error}; check the disk and the folder's permissions", path.display()))
}

/// `path` is not what a checkpoint needs it to be.
pub(crate) fn damaged(path: &Path, what: &str) -> Error {
    Error::Failed(format!(
        "{} is damaged: it {what}; restore the file, or remove the run's folder and start the run again",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_file_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "abc").unwrap();
        let Err(Error::Failed(message)) = LogFile::reopen(&path, 4) else { panic!("accepted") };
        assert!(message.contains("log is damaged: it holds 3 bytes") && message.contains("at 4"), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn records_are_whole_in_the_file_at_any_moment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogFile::create(&path).unwrap();
        let record = [b"x".repeat(999), vec![b'\n']].concat();
        let mut seen = 0;
        for _ in 0..200 {
            log.append(|buffer| buffer.write_all(&record)).unwrap();
            let length = std::fs::metadata(&path).unwrap().len();
            assert_eq!(length % 1000, 0);
            seen = seen.max(length);
        }
        assert!(seen >= 2 * BUFFER_BYTES as u64, "the buffer was never handed over");
        drop(log);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 200_000);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let mut log = LogFile::create(Path::new("/dev/full")).unwrap();
        log.append(|buffer| buffer.write_all(b"record")).unwrap();
        let Err(Error::Failed(message)) = log.sync() else { panic!("accepted") };
        assert!(message.contains("/dev/full"), "{message}");
        // What could not be undone stays an error instead of leaving half a record in the middle.
        assert!(log.sync().is_err());
    }
}
