//! Runs of other seeds whose tables a run is aligned with while it trains.

use std::collections::BTreeSet;
use std::path::Path;

use tiebreak_data::{DataInfo, Error};
use tiebreak_probe::Table;

use crate::config::RunConfig;
use crate::folder::RunState;
use crate::kept::{KeptTables, Side};

/// A complete run with tables of the same shape, over the same ids.
#[derive(Debug)]
pub struct Reference(KeptTables);

impl Reference {
    /// Opens the references of a run that is aligned at the steps `at` (ascending), and reads every table that it will need.
    /// A reference of the same seed, or of other text, is warned of.
    ///
    /// # Errors
    /// [`Error::Input`] naming the folder that is no run, not complete, named twice, has other ids or another width, or lacks a
    /// table.
    pub fn open(config: &RunConfig, data: &DataInfo, at: &[u64]) -> Result<Vec<Self>, Error> {
        let mut seen = BTreeSet::new();
        let mut references = Vec::new();
        for folder in &config.probe.reference {
            let place = format!("probe.reference = {folder:?}");
            let path = Path::new(folder);
            let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            if !seen.insert(whole) {
                return Err(Error::Input(format!("{place}: named twice; each reference counts once")));
            }
            references.push(Self::open_one(path, config, data, at).map_err(|e| Error::Input(format!("{place}: {e}")))?);
        }
        Ok(references)
    }

    fn open_one(path: &Path, config: &RunConfig, data: &DataInfo, at: &[u64]) -> Result<Self, Error> {
        let fail = |text: String| Err(Error::Input(text));
        let kept = KeptTables::open(path)?;
        let state = kept.folder.status()?.map(|status| status.state);
        if state != Some(RunState::Complete) {
            let state = state.map_or_else(|| "without a status".into(), |s| format!("{s:?}").to_lowercase());
            return fail(format!(
                "the run is {state}; finish it first, for what is measured must not depend on when it is read"
            ));
        }
        let (theirs, ours) = (&kept.data, data);
        if (theirs.vocabulary, &theirs.tokenizer_hash) != (ours.vocabulary, &ours.tokenizer_hash) {
            return fail(format!(
                "its tokenizer ({}, {} ids) is not this run's ({}, {} ids), so rows do not stand for the same tokens; choose a \
                 run with this tokenizer",
                theirs.tokenizer, theirs.vocabulary, ours.tokenizer, ours.vocabulary
            ));
        }
        let (theirs, ours) = (kept.config.model.d_model, config.model.d_model);
        if theirs != ours {
            return fail(format!(
                "model.d_model = {theirs} there and {ours} here; identity and procrustes need tables of one width"
            ));
        }
        let reference = Self(kept);
        let mut needed = BTreeSet::new();
        for step in at {
            needed.insert(reference.step_for(*step).ok_or_else(|| {
                Error::Input(format!("has no kept table at or before step {step} (log.tables_at); train it again"))
            })?);
        }
        for step in needed {
            reference.0.tables(step)?;
        }
        reference.warn(path, config, data);
        Ok(reference)
    }

    fn warn(&self, path: &Path, config: &RunConfig, data: &DataInfo) {
        if self.0.config.seed == config.seed {
            tracing::warn!(
                "probe.reference {}: has this run's seed {}; tables that start from the same values are alike for that reason",
                path.display(),
                config.seed
            );
        }
        if self.0.data.corpus_hash != data.corpus_hash {
            tracing::warn!(
                "probe.reference {}: was trained on other text ({}, here {}); the rows compared are the ids of this run's \
                 training split",
                path.display(),
                self.0.data.corpus,
                data.corpus
            );
        }
    }

    fn step_for(&self, step: u64) -> Option<u64> {
        self.0.steps.iter().copied().rfind(|kept| *kept <= step)
    }

    /// Its last kept tables not after `step`, one of the steps it was opened for.
    pub fn tables(&self, step: u64) -> Result<Vec<(Side, Table)>, Error> {
        self.0.tables(self.step_for(step).unwrap_or_default())
    }
}
