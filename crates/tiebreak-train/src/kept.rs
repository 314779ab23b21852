//! The tables that a run keeps for good, written and read back.

use std::path::Path;

use burn::tensor::Device;
use tiebreak_data::{DataInfo, Error, frequencies, write_atomic};
use tiebreak_model::interface::HeadMode;
use tiebreak_probe::{Rows, Table};

use crate::checkpoint::other_steps;
use crate::config::RunConfig;
use crate::folder::RunFolder;
use crate::records::{Records, text};
use crate::tensors;

/// Which table of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// E, where U is another matrix.
    Input,
    /// U, where E is another matrix.
    Output,
    /// E and U in one.
    Tied,
}

impl Side {
    /// As pairs spell it: `<run>:input`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Tied => "tied",
        }
    }
}

/// A model's tables: one if E and U are one matrix, else input and output.
pub fn tables_of(interface: &dyn HeadMode) -> Result<Vec<(Side, Table)>, Error> {
    let pair = interface.pair();
    let input = Table::from_tensor(&pair.input_vd)?;
    if interface.one_matrix() {
        return Ok(vec![(Side::Tied, input)]);
    }
    Ok(vec![(Side::Input, input), (Side::Output, Table::from_tensor(&pair.output_vd)?)])
}

/// Keeps a model's tables as those of `step`: E as "input", and U as "output" where it is another matrix.
pub fn keep_tables(folder: &RunFolder, step: u64, interface: &dyn HeadMode) -> Result<(), Error> {
    let pair = interface.pair();
    let output = (!interface.one_matrix()).then_some(("output", &pair.output_vd));
    let tables = std::iter::once(("input", &pair.input_vd)).chain(output);
    let bytes = tensors::to_bytes(tables, ("step", step.to_string()))?;
    let parent = folder.tables();
    std::fs::create_dir_all(&parent)
        .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", parent.display())))?;
    write_atomic(&folder.table(step), &bytes)
}

/// A run whose kept tables can be read.
#[derive(Debug)]
pub struct KeptTables {
    /// The run's folder.
    pub folder: RunFolder,
    /// Its resolved configuration.
    pub config: RunConfig,
    /// Text and tokenizer as the run recorded them.
    pub data: DataInfo,
    /// Steps with tables, ascending, at least one.
    pub steps: Vec<u64>,
}

impl KeptTables {
    /// Looks into a run's folder.
    ///
    /// # Errors
    /// [`Error::Input`] if it is no run, has no tables yet, or its records cannot be read.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let name = folder.display();
        let Records { folder, config, data, .. } = Records::open(folder)?;
        let steps = folder.table_steps()?;
        if steps.is_empty() {
            return Err(Error::Input(format!(
                "{name}: has kept no tables (tables/step-<n>.safetensors); train it, the first are kept at step 0"
            )));
        }
        Ok(Self { folder, config, data, steps })
    }

    /// The last step with tables.
    pub fn last(&self) -> u64 {
        self.steps.last().copied().unwrap_or_default()
    }

    /// `step`, or the last with tables.
    ///
    /// # Errors
    /// [`Error::Input`] if no tables of `step` were kept.
    pub fn step(&self, step: Option<u64>) -> Result<u64, Error> {
        match step {
            None => Ok(self.last()),
            Some(step) if self.steps.contains(&step) => Ok(step),
            Some(step) => {
                let kept = self.steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                Err(Error::Input(format!(
                    "{}: no tables of step {step} were kept; there are those of step{} {kept} (log.tables_at decides)",
                    self.folder.0.display(),
                    if self.steps.len() == 1 { "" } else { "s" }
                )))
            }
        }
    }

    /// The tables of `step`: one if E and U are one matrix, else input and output.
    ///
    /// # Errors
    /// [`Error::Input`] if they were not kept, the file is damaged, or it holds something else than this run's tables.
    pub fn tables(&self, step: u64) -> Result<Vec<(Side, Table)>, Error> {
        let path = self.folder.table(self.step(Some(step))?);
        let mut stored = tensors::read(&path, &Device::flex()).map_err(|e| {
            let others: Vec<u64> = self.steps.iter().copied().filter(|other| *other != step).collect();
            Error::Input(format!("{e}; {}", other_steps(&others)))
        })?;
        let place = path.display();
        let mut take = |key: &str| -> Result<Option<Table>, Error> {
            let Some(tensor_vd) = stored.remove(key) else { return Ok(None) };
            let (found, expected) = (tensor_vd.dims(), [self.data.vocabulary, self.config.model.d_model]);
            if found != expected {
                return Err(Error::Input(format!(
                    "{place}: {key} is {} x {}, this run's tables are {} x {} (ids x model.d_model): it is of another model",
                    found[0], found[1], expected[0], expected[1]
                )));
            }
            Table::from_tensor(&tensor_vd).map(Some)
        };
        let (input, output) = (take("input")?, take("output")?);
        if let Some(other) = stored.keys().next() {
            return Err(Error::Input(format!(
                "{place}: holds {other:?}; expected input and, beside it, output at most"
            )));
        }
        match (input, output) {
            (Some(input), Some(output)) => Ok(vec![(Side::Input, input), (Side::Output, output)]),
            (Some(tied), None) => Ok(vec![(Side::Tied, tied)]),
            (None, _) => {
                Err(Error::Input(format!("{place}: holds no table called input; it is of no run of tiebreak")))
            }
        }
    }

    /// Refuses a run whose ids stand for other text, or whose counts are of other text, than those of `self`.
    ///
    /// # Errors
    /// [`Error::Input`] naming both runs and what differs.
    pub fn check_same_data(&self, other: &Self) -> Result<(), Error> {
        let fraction = |run: &Self| run.config.data.validation_fraction.to_string();
        for (what, found, expected) in [
            ("tokenizer", other.data.tokenizer_hash.clone(), self.data.tokenizer_hash.clone()),
            ("vocabulary", other.data.vocabulary.to_string(), self.data.vocabulary.to_string()),
            ("corpus", other.data.corpus_hash.clone(), self.data.corpus_hash.clone()),
            ("data.validation_fraction", fraction(other), fraction(self)),
        ] {
            if found != expected {
                return Err(Error::Input(format!(
                    "{} and {}: tokenizer or data differ ({what}: {found:.12} and {expected:.12}): row i is not the same token \
                     in both, or not as frequent; probe runs of the same data together",
                    other.folder.0.display(),
                    self.folder.0.display(),
                )));
            }
        }
        Ok(())
    }

    /// How often the training split holds each id.
    ///
    /// # Errors
    /// [`Error::Input`] if the run's data is no longer what it was trained on; else as [`tiebreak_data::prepare`].
    pub fn counts(&self) -> Result<Vec<u64>, Error> {
        Ok(frequencies(&text(&self.folder, &self.config, &self.data)?.train))
    }

    /// The rows to look at: the ids that the training split holds, or all.
    ///
    /// # Errors
    /// As [`KeptTables::counts`].
    pub fn rows(&self, all: bool) -> Result<Rows, Error> {
        let counts = self.counts()?;
        if all { Rows::all(&counts) } else { Rows::seen(&counts) }
    }
}
