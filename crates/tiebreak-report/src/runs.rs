//! The experiments' runs as they lie on the disk, by cell and seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tiebreak_data::DataInfo;
use tiebreak_probe::Rows;
use tiebreak_train::folder::RunState;
use tiebreak_train::{Error, KeptTables};

use crate::plan::{Member, Plan};
use crate::series::Series;

/// A complete run.
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its folder, configuration, data and kept tables.
    pub kept: KeptTables,
    series: RefCell<Option<Rc<Series>>>,
}

impl Run {
    /// Name of its folder, which holds the beginning of its identity.
    pub fn name(&self) -> String {
        self.kept.folder.0.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Its scalars, read once.
    ///
    /// # Errors
    /// As [`Series::read`].
    pub fn series(&self) -> Result<Rc<Series>, Error> {
        if let Some(series) = &*self.series.borrow() {
            return Ok(Rc::clone(series));
        }
        let series = Rc::new(Series::read(&self.kept.folder)?);
        *self.series.borrow_mut() = Some(Rc::clone(&series));
        Ok(series)
    }

    /// Its last step.
    pub fn steps(&self) -> u64 {
        self.kept.config.train.steps
    }
}

/// What there is, and what is missing.
pub struct Runs {
    complete: BTreeMap<(String, u64), Run>,
    /// Why a planned run is not there, by cell and seed.
    missing: BTreeMap<(String, u64), String>,
    rows: RefCell<BTreeMap<String, Rows>>,
}

impl Runs {
    /// Looks at every cell of the plan.
    ///
    /// # Errors
    /// [`Error::Input`] for a complete run whose records cannot be read.
    pub fn find(plan: &Plan, members: &[Member]) -> Result<Self, Error> {
        let (mut complete, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for cell in plan.experiments.iter().flat_map(|e| e.cells()) {
            _ = missing.insert((cell.name.clone(), cell.seed), "its pilots are to come".to_owned());
        }
        for member in members {
            let key = (member.name.clone(), member.cell.seed);
            if complete.contains_key(&key) {
                continue;
            }
            let why = match member.located.folder.status()? {
                Some(status) if status.state == RunState::Complete => {
                    let kept = KeptTables::open(&member.located.folder.0)?;
                    complete.insert(key.clone(), Run { seed: key.1, kept, series: RefCell::default() });
                    missing.remove(&key);
                    continue;
                }
                Some(status) if status.state == RunState::Diverged => {
                    format!("diverged at step {}", status.step)
                }
                Some(status) => format!("{:?} at step {}", status.state, status.step).to_lowercase(),
                None => "not run".into(),
            };
            missing.insert(key, why);
        }
        Ok(Self { complete, missing, rows: RefCell::default() })
    }

    /// Complete runs of a cell, by seed.
    pub fn of(&self, cell: &str) -> Vec<&Run> {
        self.complete.iter().filter(|((name, _), _)| name == cell).map(|(_, run)| run).collect()
    }

    /// A cell's complete run of a seed.
    pub fn get(&self, cell: &str, seed: u64) -> Option<&Run> {
        self.complete.get(&(cell.to_owned(), seed))
    }

    /// Planned runs of a cell that are not complete, with the reason.
    pub fn missing(&self, cell: &str) -> Vec<String> {
        let of = self.missing.iter().filter(|((name, _), _)| name == cell);
        of.map(|((name, seed), why)| format!("{name} s{seed}: {why}")).collect()
    }

    /// Any complete run.
    pub fn any(&self) -> Option<&Run> {
        self.complete.values().next()
    }

    /// The corpus that was taken instead of the one asked for, and why.
    pub fn fallback(&self) -> Option<&DataInfo> {
        self.complete.values().map(|run| &run.kept.data).find(|data| data.fallback_reason.is_some())
    }

    /// The rows that tables are compared over: ids that occur in the training split.
    ///
    /// # Errors
    /// As [`KeptTables::rows`].
    pub fn rows(&self, run: &Run) -> Result<Rows, Error> {
        let key = format!("{} {}", run.kept.data.corpus_hash, run.kept.data.tokenizer_hash);
        if let Some(rows) = self.rows.borrow().get(&key) {
            return Ok(rows.clone());
        }
        let rows = run.kept.rows(false)?;
        self.rows.borrow_mut().insert(key, rows.clone());
        Ok(rows)
    }
}
