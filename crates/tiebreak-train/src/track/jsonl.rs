//! `metrics.jsonl`: one object per scalar, for scripts.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Serialize;
use tiebreak_data::Error;

use super::log_file::{LogFile, damaged, failed};
use super::{Tag, Tracker};

/// Writes one line per scalar: `{"step":12,"tag":"train/loss","value":6.93}`. Values are the shortest text that reads
/// back to the same f64.
pub struct Jsonl {
    log: LogFile,
}

#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    tag: &'a str,
    value: f64,
}

impl Jsonl {
    /// Opens `path`: a new or emptied file, or the first `keep_bytes` bytes of the file that is there.
    pub fn open(path: &Path, keep_bytes: Option<u64>) -> Result<Self, Error> {
        let log = match keep_bytes {
            None => LogFile::create(path)?,
            Some(keep) => {
                Self::check(path, keep)?;
                LogFile::reopen(path, keep)?
            }
        };
        Ok(Self { log })
    }

    /// Whether the first `keep` bytes of the file are there and end a line.
    pub(super) fn check(path: &Path, keep: u64) -> Result<(), Error> {
        let length = std::fs::metadata(path).map_err(|e| failed(path, "read", &e))?.len();
        if length < keep {
            return Err(damaged(path, &format!("holds {length} bytes, but the checkpoint was written at {keep}")));
        }
        ends_a_line(path, keep)
    }
}

impl Tracker for Jsonl {
    fn scalars(&mut self, step: u64, scalars: &[(Tag, f64)]) -> Result<(), Error> {
        self.log.append(|buffer| {
            for (tag, value) in scalars.iter().filter(|(_, value)| value.is_finite()) {
                serde_json::to_writer(&mut *buffer, &Line { step, tag, value: *value })?;
                buffer.push(b'\n');
            }
            Ok(())
        })
    }

    fn sync(&mut self) -> Result<u64, Error> {
        self.log.sync()
    }
}

/// Refuses a length inside a line: such a file is not the one the checkpoint was written with.
fn ends_a_line(path: &Path, keep: u64) -> Result<(), Error> {
    let read = || -> std::io::Result<Option<u8>> {
        let mut file = std::fs::File::open(path)?;
        let Some(last) = keep.checked_sub(1) else { return Ok(Some(b'\n')) };
        file.seek(SeekFrom::Start(last))?;
        let mut byte = [0];
        Ok((file.read(&mut byte)? == 1).then_some(byte[0]))
    };
    match read().map_err(|e| failed(path, "read", &e))? {
        Some(byte) if byte != b'\n' => Err(damaged(path, &format!("has no line that ends at byte {keep}"))),
        // Too short: `LogFile::reopen` says so with both lengths.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(jsonl: &mut Jsonl, step: u64, value: f64) {
        jsonl.scalars(step, &[("train/loss".into(), value)]).unwrap();
    }

    #[test]
    fn lines_are_exact_and_values_read_back_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut jsonl = Jsonl::open(&path, None).unwrap();
        jsonl
            .scalars(12, &[("train/loss".into(), 6.93), ("grad/\"odd\"".into(), f64::NAN), ("lr".into(), 0.1 + 0.2)])
            .unwrap();
        log(&mut jsonl, 13, f64::INFINITY);
        log(&mut jsonl, 14, f64::MIN_POSITIVE / 3.0);
        jsonl.sync().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], r#"{"step":12,"tag":"train/loss","value":6.93}"#);
        assert_eq!(lines[1], r#"{"step":12,"tag":"lr","value":0.30000000000000004}"#);
        let tiny: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!(tiny["value"].as_f64().unwrap().to_bits(), (f64::MIN_POSITIVE / 3.0).to_bits());
        assert_eq!(lines.len(), 3, "non-finite values are left out");
    }

    #[test]
    fn a_resume_drops_what_followed_the_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut jsonl = Jsonl::open(&path, None).unwrap();
        log(&mut jsonl, 1, 3.0);
        let keep = jsonl.sync().unwrap();
        log(&mut jsonl, 2, 2.0);
        drop(jsonl);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();

        let mut jsonl = Jsonl::open(&path, Some(keep)).unwrap();
        log(&mut jsonl, 2, 1.5);
        jsonl.sync().unwrap();
        let expected =
            "{\"step\":1,\"tag\":\"train/loss\",\"value\":3.0}\n{\"step\":2,\"tag\":\"train/loss\",\"value\":1.5}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        drop(jsonl);

        for (keep, says) in
            [(keep - 1, "has no line that ends at byte"), (10_000, "but the checkpoint was written at 10000")]
        {
            let Err(Error::Failed(message)) = Jsonl::open(&path, Some(keep)) else { panic!("accepted {keep}") };
            assert!(message.contains("metrics.jsonl") && message.contains(says), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected, "a refused file is left alone");
        }
        drop(Jsonl::open(&path, None).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_missing_file_or_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for (path, keep) in [("metrics.jsonl", Some(0)), ("no/metrics.jsonl", None)] {
            let Err(Error::Failed(message)) = Jsonl::open(&dir.path().join(path), keep) else { panic!("accepted") };
            assert!(message.contains(path), "{message}");
        }
    }
}
