//! `tiebreak reproduce`: pilots, runs, lenses, claims, figures. Every part is found again when the same command goes on.

use std::path::PathBuf;

use tiebreak_sweep::{CellsOutcome, LaunchOptions, train_cells};
use tiebreak_train::Error;
use tiebreak_train::folder::RunFolder;

use crate::pilot::{self, Pilot};
use crate::plan::{Plan, Scale, stages};

/// What to reproduce, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// How large the runs are.
    pub scale: Scale,
    /// Names of experiments; none: all.
    pub only: Vec<String>,
    /// Folder of everything that is written.
    pub out: PathBuf,
    /// How runs are started.
    pub launch: LaunchOptions,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything chosen is there.
    Complete(String),
    /// Runs failed; the text names them.
    Failures(String),
    /// A signal came; the same command goes on.
    Interrupted,
}

/// Why it cannot go on.
#[derive(Debug)]
pub enum Halt {
    /// An error.
    Error(Error),
    /// Runs failed; the text names them.
    Failures(String),
    /// A signal came.
    Interrupted,
}

impl From<Error> for Halt {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

/// Trains what the chosen experiments need.
///
/// # Errors
/// [`Error::Input`] before anything is trained for names, files or a folder that cannot be used; [`Error::Failed`] where data cannot be
/// had or a file not be written.
pub fn reproduce(options: &Options) -> Result<Ended, Error> {
    match steps(options) {
        Ok(text) => Ok(Ended::Complete(text)),
        Err(Halt::Failures(text)) => Ok(Ended::Failures(text)),
        Err(Halt::Interrupted) => Ok(Ended::Interrupted),
        Err(Halt::Error(e)) => Err(e),
    }
}

fn steps(options: &Options) -> Result<String, Halt> {
    let out = &options.out;
    let wrong = if RunFolder::is_run(out) {
        Some("is a run's own folder")
    } else if out.exists() && !out.is_dir() {
        Some("is a file")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        return Err(Error::Input(format!("--out {}: {wrong}; choose another --out", out.display())).into());
    }
    let plan = Plan::load(options.scale, &options.only, out)?;
    let pilot = Pilot::read(out, options.scale)?;
    let pilot = pilot::find(&plan, pilot, out, &options.launch)?;
    let runs = out.join("runs");
    let members = plan.members(&pilot, &runs)?;
    let mut failures = String::new();
    for cells in stages(&members).into_iter().filter(|cells| !cells.is_empty()) {
        match train_cells(&cells, &runs, &options.launch)? {
            CellsOutcome::Complete(_) => {}
            CellsOutcome::Failures(text) => failures += &text,
            CellsOutcome::Interrupted => return Err(Halt::Interrupted),
        }
    }
    if failures.is_empty() { Ok(String::new()) } else { Err(Halt::Failures(failures)) }
}
