//! Where a run's numbers go while it trains: `metrics.jsonl`, a TensorBoard event file and the console.
//!
//! The two files carry the same tags and, after a resume, no (step, tag) twice: a checkpoint stores the byte lengths that
//! [`Trackers::sync`] returned, and a resume cuts both files back to them before it appends.

mod jsonl;
mod log_file;
mod progress;
mod tensorboard;

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tiebreak_data::Error;

pub use jsonl::Jsonl;
pub use progress::{LogWriter, Progress};
pub use tensorboard::{HParam, TensorBoard, write_experiment};

/// Name of a scalar series, such as `train/loss`. The part before the first slash is its section in TensorBoard.
pub type Tag = Cow<'static, str>;

/// File name of the JSONL log inside a run's folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// A sink for what a run measures. Errors are [`Error::Failed`] and name the file.
///
/// Non-finite scalars are left out of every sink, so that all sinks agree: JSON cannot hold them and a plot hides them.
/// The caller counts them under a tag of its own.
pub trait Tracker {
    /// Records `scalars` at `step` completed optimiser steps.
    fn scalars(&mut self, step: u64, scalars: &[(Tag, f64)]) -> Result<(), Error>;

    /// Records the distribution of `values`. Sinks that cannot hold one ignore it.
    fn histogram(&mut self, _step: u64, _tag: &str, _values: &[f64]) -> Result<(), Error> {
        Ok(())
    }

    /// Records an image given as the bytes of a PNG file. Sinks that cannot hold one ignore it.
    fn image(&mut self, _step: u64, _tag: &str, _png: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    /// Forces everything recorded so far onto the disk and returns the file's length in bytes, for a checkpoint to store.
    fn sync(&mut self) -> Result<u64, Error>;
}

/// Byte lengths of the two log files at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Length of [`METRICS_FILE`].
    pub metrics: u64,
    /// Length of the TensorBoard event file.
    pub events: u64,
}

/// Both log files of one run.
pub struct Trackers {
    jsonl: Jsonl,
    tensorboard: TensorBoard,
}

impl Trackers {
    /// Opens the logs in the run's folder `dir`: emptied where `keep` is `None`, else cut back to the lengths of a
    /// checkpoint. A log shorter than that is an error, for its records are lost.
    pub fn open(dir: &Path, keep: Option<Lengths>) -> Result<Self, Error> {
        Ok(Self {
            jsonl: Jsonl::open(&dir.join(METRICS_FILE), keep.map(|k| k.metrics))?,
            tensorboard: TensorBoard::open(dir, keep.map(|k| k.events))?,
        })
    }

    /// Whether [`Trackers::open`] could go on from `keep`; nothing is changed.
    ///
    /// # Errors
    /// [`Error::Input`] naming the log that is missing, too short or damaged.
    pub fn check(dir: &Path, keep: Lengths) -> Result<(), Error> {
        let checked =
            Jsonl::check(&dir.join(METRICS_FILE), keep.metrics).and_then(|()| TensorBoard::check(dir, keep.events));
        checked.map_err(|e| {
            Error::Input(format!(
                "{e}; put the file back, or remove {} to start again",
                dir.join("checkpoints").display()
            ))
        })
    }

    /// See [`Tracker::scalars`]. What an event file's f32 cannot hold is left out of both, so that they agree.
    pub fn scalars(&mut self, step: u64, scalars: &[(Tag, f64)]) -> Result<(), Error> {
        let held: Vec<(Tag, f64)> = scalars.iter().filter(|(_, x)| (*x as f32).is_finite()).cloned().collect();
        self.each(|t| t.scalars(step, &held))
    }

    /// See [`Tracker::histogram`].
    pub fn histogram(&mut self, step: u64, tag: &str, values: &[f64]) -> Result<(), Error> {
        self.each(|t| t.histogram(step, tag, values))
    }

    /// See [`Tracker::image`].
    pub fn image(&mut self, step: u64, tag: &str, png: &[u8]) -> Result<(), Error> {
        self.each(|t| t.image(step, tag, png))
    }

    /// See [`TensorBoard::session_start`].
    pub fn session_start(
        &mut self,
        hparams: &std::collections::BTreeMap<String, HParam>,
        group: &str,
    ) -> Result<(), Error> {
        self.tensorboard.session_start(hparams, group)
    }

    /// See [`TensorBoard::session_end`].
    pub fn session_end(&mut self, success: bool) -> Result<(), Error> {
        self.tensorboard.session_end(success)
    }

    /// Forces both logs onto the disk and returns their lengths, for a checkpoint to store.
    pub fn sync(&mut self) -> Result<Lengths, Error> {
        Ok(Lengths { metrics: self.jsonl.sync()?, events: self.tensorboard.sync()? })
    }

    /// One failing sink does not keep the other from its data; the first error is returned.
    fn each(&mut self, mut record: impl FnMut(&mut dyn Tracker) -> Result<(), Error>) -> Result<(), Error> {
        let first = record(&mut self.jsonl);
        let second = record(&mut self.tensorboard);
        first.and(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_logs_are_cut_back_together() {
        let dir = tempfile::tempdir().unwrap();
        let mut trackers = Trackers::open(dir.path(), None).unwrap();
        trackers.scalars(1, &[("train/loss".into(), 2.0)]).unwrap();
        let kept = trackers.sync().unwrap();
        trackers.scalars(2, &[("train/loss".into(), 1.0)]).unwrap();
        let longer = trackers.sync().unwrap();
        assert!(longer.metrics > kept.metrics && longer.events > kept.events);
        drop(trackers);

        let mut trackers = Trackers::open(dir.path(), Some(kept)).unwrap();
        assert_eq!(trackers.sync().unwrap(), kept);
        let text = std::fs::read_to_string(dir.path().join(METRICS_FILE)).unwrap();
        assert_eq!(text, "{\"step\":1,\"tag\":\"train/loss\",\"value\":2.0}\n");
    }
}
