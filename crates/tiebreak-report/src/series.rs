//! What runs left behind: scalars over steps, kept tables.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor};
use tiebreak_sweep::each_scalar;
use tiebreak_train::folder::RunFolder;
use tiebreak_train::{Error, tensors};

/// Every scalar of a run: tag to (step, value) in the order of steps.
#[derive(Clone, Debug, Default)]
pub struct Series(pub BTreeMap<String, Vec<(u64, f64)>>);

impl Series {
    /// Reads a run's `metrics.jsonl`.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file, and the line where one is damaged.
    pub fn read(folder: &RunFolder) -> Result<Self, Error> {
        let mut series = Self::default();
        each_scalar(&folder.metrics(), |step, tag, value| match series.0.get_mut(tag) {
            Some(values) => values.push((step, value)),
            None => _ = series.0.insert(tag.to_owned(), vec![(step, value)]),
        })?;
        Ok(series)
    }

    /// All of a tag's values; empty where there is no such tag.
    pub fn of(&self, tag: &str) -> &[(u64, f64)] {
        self.0.get(tag).map_or(&[], Vec::as_slice)
    }

    /// A tag's last value.
    pub fn last(&self, tag: &str) -> Option<f64> {
        self.of(tag).last().map(|(_, value)| *value)
    }
}

/// A table that a run kept: `side` is "input", or "output", which for one matrix at both ends is the input's.
///
/// # Errors
/// [`Error::Input`] naming the file that is missing.
pub fn table(folder: &RunFolder, step: u64, side: &str) -> Result<Tensor<2>, Error> {
    let path = folder.table(step);
    if !path.is_file() {
        return Err(Error::Input(format!(
            "{}: the run kept no table at step {step}; log.tables_at has to contain it: train it again in another --out",
            path.display()
        )));
    }
    let mut tables = tensors::read(&path, &Device::flex())?;
    let table = tables.remove(side).or_else(|| tables.remove("input"));
    table.ok_or_else(|| Error::Input(format!("{}: holds no table \"input\"; it is no kept table", path.display())))
}

/// Mean over rows of the cosine between rows of two tables `[v, d]`; rows without length count 0.
pub fn mean_row_cosine(a_vd: &Tensor<2>, b_vd: &Tensor<2>) -> f64 {
    let products = tiebreak_kernels::row_products(a_vd, b_vd);
    let rows = products.aa.iter().zip(&products.bb).zip(&products.ab);
    let cosines = rows.map(|((aa, bb), ab)| if aa * bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 });
    cosines.sum::<f64>() / products.aa.len().max(1) as f64
}

/// The kept tables' steps, in order.
///
/// # Errors
/// [`Error::Failed`] if the folder cannot be read.
pub fn kept_steps(folder: &RunFolder) -> Result<Vec<u64>, Error> {
    let tables = folder.table(0);
    let tables = tables.parent().unwrap_or(Path::new(""));
    let entries =
        std::fs::read_dir(tables).map_err(|e| Error::Input(format!("{}: no kept tables ({e})", tables.display())))?;
    let step = |name: &str| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
    let mut steps: Vec<u64> = entries.flatten().filter_map(|e| step(&e.file_name().to_string_lossy())).collect();
    steps.sort_unstable();
    Ok(steps)
}
