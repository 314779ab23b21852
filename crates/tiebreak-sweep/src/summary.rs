//! What a sweep leaves in its folder: `sweep.json`, `summary.json` and TensorBoard's hyperparameter table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tiebreak_data::write_atomic;
use tiebreak_train::Error;
use tiebreak_train::config::flatten;
use tiebreak_train::track::{HParam, write_experiment};
use toml::Value;

use crate::{Cell, Comparison, SweepConfig};

/// File name of the sweep's record.
pub const SWEEP_FILE: &str = "sweep.json";
/// File name of the sweep's comparison.
pub const SUMMARY_FILE: &str = "summary.json";

/// Shown as hyperparameters even where all cells agree.
const ALWAYS: [&str; 6] = ["head.mode", "model.d_model", "model.n_layers", "data.corpus", "optim.lr", "train.steps"];
/// Shown as metrics, beside the sweep's own.
const METRICS: [&str; 3] = ["eval/ppl", "eval/loss", "grad/output_over_input"];

/// `sweep.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// The sweep's name.
    pub name: String,
    /// Arm or cell name that the others are compared with.
    pub baseline: String,
    /// Tag that is compared.
    pub metric: String,
    /// Arms in the sweep file's order.
    pub arms: Vec<String>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Every run.
    pub cells: Vec<CellRecord>,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellRecord {
    /// The run's `name`: its arm and grid values.
    pub name: String,
    /// The arm.
    pub arm: String,
    /// The seed.
    pub seed: u64,
    /// The run's folder, inside the sweep's.
    pub folder: String,
}

impl SweepRecord {
    /// The record of a sweep whose cells have these folder names.
    pub(crate) fn new<'a>(config: &SweepConfig, cells: impl Iterator<Item = (&'a Cell, &'a str)>) -> Self {
        let record = |(cell, folder): (&Cell, &str)| CellRecord {
            name: cell.name.clone(),
            arm: cell.arm.clone(),
            seed: cell.seed,
            folder: folder.to_owned(),
        };
        Self {
            name: config.name.clone(),
            baseline: config.baseline.clone(),
            metric: config.metric.clone(),
            arms: config.arms.iter().map(|arm| arm.name.clone()).collect(),
            seeds: config.seeds.clone(),
            cells: cells.map(record).collect(),
        }
    }

    /// Reads `folder`'s record; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Input`] for a file that is no such record, [`Error::Failed`] for one that cannot be read.
    pub fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(SWEEP_FILE);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
        };
        let record = serde_json::from_slice(&bytes);
        record
            .map(Some)
            .map_err(|e| Error::Input(format!("{}: {e}: not a sweep's record; remove the file", path.display())))
    }
}

/// Replaces a JSON file as a whole.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut json = serde_json::to_vec_pretty(value).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    json.push(b'\n');
    write_atomic(path, &json)
}

/// Writes `summary.json`: what `compare --json` prints.
pub(crate) fn write_summary(folder: &Path, comparison: &Comparison) -> Result<(), Error> {
    write_json(&folder.join(SUMMARY_FILE), comparison)
}

/// Declares the sweep to TensorBoard's HPARAMS tab.
pub(crate) fn declare(folder: &Path, config: &SweepConfig, cells: &[Cell]) -> Result<(), Error> {
    let mut metrics: Vec<String> = METRICS.iter().map(|m| m.to_string()).collect();
    if !metrics.contains(&config.metric) {
        metrics.insert(0, config.metric.clone());
    }
    write_experiment(folder, &hyperparameters(cells), &metrics)
}

/// Dotted keys that differ between cells, and a few more, each with its values over the cells.
fn hyperparameters(cells: &[Cell]) -> Vec<(String, Vec<HParam>)> {
    let flat: Vec<BTreeMap<String, Value>> = cells.iter().map(flat).collect();
    differing(cells)
        .into_iter()
        .chain(ALWAYS.map(String::from))
        .collect::<BTreeSet<String>>()
        .into_iter()
        .map(|key| {
            // As the runs write theirs: TensorBoard matches the two by value.
            let values = flat.iter().filter_map(|f| f.get(&key)).map(HParam::from).collect();
            (key, values)
        })
        .collect()
}

/// Keys whose values differ between cells, but for name, seed and threads.
pub(crate) fn differing(cells: &[Cell]) -> Vec<String> {
    let flat: Vec<BTreeMap<String, Value>> = cells.iter().map(flat).collect();
    let Some(first) = flat.first() else { return Vec::new() };
    let differs = |key: &&String| {
        !matches!(key.as_str(), "name" | "seed" | "threads")
            && flat.iter().any(|other| other.get(*key) != first.get(*key))
    };
    // A factor may be a number in one cell and have keys of its own in another.
    let keys: BTreeSet<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    keys.into_iter().filter(differs).cloned().collect()
}

/// A cell's configuration as dotted keys.
pub(crate) fn flat(cell: &Cell) -> BTreeMap<String, Value> {
    match Value::try_from(&cell.loaded.config) {
        Ok(Value::Table(table)) => flatten(&table),
        _ => BTreeMap::new(),
    }
}
