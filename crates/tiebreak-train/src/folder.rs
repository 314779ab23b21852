//! A run's folder: its files, its state, its lock.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiebreak_data::{Error, Lock, write_atomic};

use crate::checkpoint;
use crate::config::RunConfig;

/// How names begin of what is not written to its end yet.
const TEMPORARY: &str = ".tmp-";

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process writes it (or died: then nothing holds the lock).
    Running,
    /// All steps done.
    Complete,
    /// An error ended it; it can be resumed.
    Failed,
    /// Loss or gradient became no finite number.
    Diverged,
    /// A signal ended it, after a checkpoint.
    Interrupted,
}

/// `status.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where the run stands.
    pub state: RunState,
    /// Completed steps when this was written.
    pub step: u64,
    /// Why it ended, if not by completing.
    pub reason: Option<String>,
    /// The run's identity.
    pub identity: String,
}

/// Paths inside a run's folder.
#[derive(Clone, Debug)]
pub struct RunFolder(pub PathBuf);

impl RunFolder {
    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// Versions, device, data.
    pub fn env(&self) -> PathBuf {
        self.0.join("env.json")
    }

    /// The tokenizer, where it is neither `bytes` nor `gpt2`.
    pub fn tokenizer(&self) -> PathBuf {
        self.0.join("tokenizer.json")
    }

    /// One JSON object per scalar.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// Checkpoint folders.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Tables kept for good: see [`crate::KeptTables`].
    pub fn tables(&self) -> PathBuf {
        self.0.join("tables")
    }

    /// E and U at `step`.
    pub fn table(&self, step: u64) -> PathBuf {
        self.tables().join(format!("step-{step}.safetensors"))
    }

    /// Steps whose tables were kept, ascending.
    pub fn table_steps(&self) -> Result<Vec<u64>, Error> {
        let folder = self.tables();
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", folder.display())))?,
        };
        let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
        let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
        let mut steps: Vec<u64> = names.filter_map(step).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// What a command measured at `step`.
    pub fn probe(&self, what: &str, step: u64) -> PathBuf {
        self.0.join("probes").join(format!("{what}-step-{step}.json"))
    }

    fn status_file(&self) -> PathBuf {
        self.0.join("status.json")
    }

    /// Reads `status.json`; a running state that no live process holds counts as interrupted. `None` if there is none.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        let path = self.status_file();
        let bytes = match fs::read(&path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
        };
        let mut status: Status = serde_json::from_slice(&bytes)
            .map_err(|e| Error::Input(format!("{}: {e}: not a run's status; remove the folder", path.display())))?;
        if status.state == RunState::Running && !Lock::is_held(&self.lock_file()) {
            status.state = RunState::Interrupted;
        }
        Ok(Some(status))
    }

    /// The same for a run of `config`: complete without the lens that this asks for counts as interrupted.
    pub fn status_for(&self, config: &RunConfig) -> Result<Option<Status>, Error> {
        let mut status = self.status()?;
        if let Some(status) = &mut status
            && status.state == RunState::Complete
            && config.lens.after_training
            && !self.lens_report(config.train.steps, config.lens.recipe, None).is_file()
        {
            status.state = RunState::Interrupted;
        }
        Ok(status)
    }

    /// Removes what a killed process left half written. The caller holds the lock.
    pub fn clean(&self) -> Result<(), Error> {
        for folder in [self.0.clone(), self.tables(), self.checkpoints()] {
            let failed = |e: std::io::Error| Error::Failed(format!("{}: cannot be tidied: {e}", folder.display()));
            let entries = match fs::read_dir(&folder) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                    continue;
                }
                let is_dir = entry.file_type().map_err(failed)?.is_dir();
                let remove = if is_dir { fs::remove_dir_all } else { fs::remove_file };
                remove(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// A file, in a folder that has no status, that no process of ours can have left there.
    pub(crate) fn foreign_file(&self) -> Option<String> {
        let names = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names = names.map(|e| e.file_name().to_string_lossy().into_owned());
        // The status comes after these.
        let early = ["lock", "config.toml", "env.json", "tokenizer.json"];
        names.find(|n| !n.starts_with(TEMPORARY) && !early.contains(&n.as_str()))
    }

    /// What to tell of a model that gives no finite numbers at `step`; `place` says where that was seen.
    pub fn no_numbers(&self, step: u64, place: &str) -> Error {
        let kept = checkpoint::list(&self.checkpoints()).unwrap_or_default();
        let others: Vec<u64> = kept.into_iter().filter(|other| *other != step).collect();
        Error::Input(format!(
            "{}: at step {step} the model gives no finite numbers ({place}), so there is nothing to read; {}",
            self.0.display(),
            checkpoint::other_steps(&others)
        ))
    }

    /// Replaces `status.json`.
    pub fn set_status(&self, status: &Status) -> Result<(), Error> {
        let json = serde_json::to_vec_pretty(status).map_err(|e| Error::Failed(format!("status.json: {e}")))?;
        write_atomic(&self.status_file(), &json)
    }

    /// Takes the folder's lock; `None` if another process has it.
    pub fn lock(&self) -> Result<Option<Lock>, Error> {
        Lock::try_acquire(&self.lock_file())
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Whether `path` looks like a run.
    pub fn is_run(path: &Path) -> bool {
        path.join("status.json").is_file() && path.join("config.toml").is_file()
    }
}
