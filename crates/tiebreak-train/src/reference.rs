//! Runs of other seeds whose tables a run is aligned with while it trains.

use std::path::Path;

use serde::Deserialize;
use tiebreak_data::{DataInfo, Error};

use crate::config::{self, RunConfig};
use crate::folder::{RunFolder, RunState};
use crate::tables::KeptTables;

/// A complete run with tables of the same shape, over the same ids.
#[derive(Debug)]
pub struct Reference {
    folder: RunFolder,
    /// Steps of its kept tables, ascending.
    steps: Vec<u64>,
}

/// `env.json`, as far as it is read.
#[derive(Deserialize)]
struct Recorded {
    data: DataInfo,
}

impl Reference {
    /// Opens the references of a run that is aligned at the steps `at` (ascending), and reads every table that it will need.
    /// A reference of the same seed, or of other text, is warned of.
    ///
    /// # Errors
    /// [`Error::Input`] naming the folder that is no run, not complete, named twice, has other ids or another width, or lacks a
    /// table.
    pub fn open(config: &RunConfig, data: &DataInfo, at: &[u64]) -> Result<Vec<Self>, Error> {
        let mut seen: Vec<std::path::PathBuf> = Vec::new();
        let mut references = Vec::new();
        for folder in &config.probe.reference {
            let place = format!("probe.reference = {folder:?}");
            let path = Path::new(folder);
            let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            if seen.contains(&whole) {
                return Err(Error::Input(format!("{place}: named twice; each reference counts once")));
            }
            seen.push(whole);
            references.push(Self::open_one(path, config, data, at).map_err(|e| Error::Input(format!("{place}: {e}")))?);
        }
        Ok(references)
    }

    fn open_one(path: &Path, config: &RunConfig, data: &DataInfo, at: &[u64]) -> Result<Self, Error> {
        let fail = |text: String| Err(Error::Input(text));
        if !RunFolder::is_run(path) {
            return fail(
                "no run (it lacks config.toml or status.json); give a run's folder, as `train` prints it".into(),
            );
        }
        let folder = RunFolder(path.to_path_buf());
        let state = folder.status()?.map(|status| status.state);
        if state != Some(RunState::Complete) {
            let state = state.map_or_else(|| "without a status".into(), |s| format!("{s:?}").to_lowercase());
            return fail(format!(
                "the run is {state}; finish it first, for what is measured must not depend on the hour"
            ));
        }
        let theirs = config::load(&folder.config(), &[])?.config;
        let env = std::fs::read(folder.env()).map_err(|e| Error::Input(format!("{}: {e}", folder.env().display())))?;
        let recorded: Recorded = serde_json::from_slice(&env)
            .map_err(|e| Error::Input(format!("{}: {e}: not a run's record", folder.env().display())))?;
        let (ours, other) = (data, recorded.data);
        if (other.vocabulary, &other.tokenizer_hash) != (ours.vocabulary, &ours.tokenizer_hash) {
            return fail(format!(
                "its tokenizer ({}, {} ids) is not this run's ({}, {} ids), so rows do not stand for the same tokens; choose a run \
                 with this tokenizer",
                other.tokenizer, other.vocabulary, ours.tokenizer, ours.vocabulary
            ));
        }
        if theirs.model.d_model != config.model.d_model {
            return fail(format!(
                "model.d_model = {} there and {} here; procrustes and identity need tables of one width",
                theirs.model.d_model, config.model.d_model
            ));
        }
        let reference = Self { steps: KeptTables::steps(&folder)?, folder };
        let mut checked = None;
        for step in at {
            let kept = reference.step_for(*step).ok_or_else(|| {
                Error::Input(format!("has no kept table at or before step {step} (log.tables_at); train it again"))
            })?;
            if checked.replace(kept) == Some(kept) {
                continue;
            }
            let tables = KeptTables::read(&reference.folder, kept)?;
            let (found, expected) =
                ((tables.input.rows(), tables.input.columns()), (ours.vocabulary, config.model.d_model));
            if found != expected {
                return fail(format!(
                    "its table of step {kept} has shape {found:?}, its configuration says {expected:?}"
                ));
            }
        }
        if theirs.seed == config.seed {
            tracing::warn!(
                "probe.reference {}: has this run's seed {}; tables that start from the same values are alike for that reason",
                path.display(),
                config.seed
            );
        }
        if other.corpus_hash != ours.corpus_hash {
            tracing::warn!(
                "probe.reference {}: was trained on other text ({}, here {}); the rows compared are the ids of this run's \
                 training split",
                path.display(),
                other.corpus,
                ours.corpus
            );
        }
        Ok(reference)
    }

    fn step_for(&self, step: u64) -> Option<u64> {
        self.steps.iter().copied().rfind(|kept| *kept <= step)
    }

    /// Its last kept tables not after `step`, one of the steps it was opened for.
    pub fn tables(&self, step: u64) -> Result<KeptTables, Error> {
        KeptTables::read(&self.folder, self.step_for(step).unwrap_or_default())
    }
}
