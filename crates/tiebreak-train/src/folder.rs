//! A run's folder: its files, its state, its lock.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiebreak_data::{Error, Lock, write_atomic};

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

    /// One JSON object per scalar.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// Checkpoint folders.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// E and U at `step`.
    pub fn table(&self, step: u64) -> PathBuf {
        self.0.join("tables").join(format!("step-{step}.safetensors"))
    }

    fn status_file(&self) -> PathBuf {
        self.0.join("status.json")
    }

    /// Reads `status.json`; a running state that no live process holds counts as interrupted. `None` if there is none.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        let path = self.status_file();
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
        };
        let mut status: Status = serde_json::from_slice(&bytes)
            .map_err(|e| Error::Input(format!("{}: {e}: not a run's status; remove the folder", path.display())))?;
        if status.state == RunState::Running && !Lock::is_held(&self.lock_file()) {
            status.state = RunState::Interrupted;
        }
        Ok(Some(status))
    }

    /// Replaces `status.json`.
    pub fn set_status(&self, status: &Status) -> Result<(), Error> {
        let json = serde_json::to_vec_pretty(status).map_err(|e| Error::Failed(format!("status.json: {e}")))?;
        write_atomic(&self.status_file(), &json)
    }

    /// Takes the folder's lock, or says that another process has it.
    pub fn lock(&self) -> Result<Lock, Error> {
        Lock::try_acquire(&self.lock_file())?
            .ok_or_else(|| Error::Input(format!("{}: another process is writing this run", self.0.display())))
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Whether `path` looks like a run.
    pub fn is_run(path: &Path) -> bool {
        path.join("status.json").is_file() && path.join("config.toml").is_file()
    }
}
