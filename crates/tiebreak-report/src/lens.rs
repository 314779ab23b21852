//! What tuned lenses read of the experiments' runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tiebreak_train::Error;

use crate::runs::{Run, Runs};

/// A run's lens of one recipe, as `probes/lens-step-<n>-<recipe>.json` has it.
#[derive(Clone, Debug, Deserialize)]
pub struct Lens {
    held_out: HeldOut,
}

#[derive(Clone, Debug, Deserialize)]
struct HeldOut {
    points: Vec<Point>,
}

#[derive(Clone, Debug, Deserialize)]
struct Point {
    point: String,
    logit: BTreeMap<String, Option<f64>>,
    tuned: BTreeMap<String, Option<f64>>,
}

impl Lens {
    /// A value at a point; `which` is "logit" or "tuned".
    pub fn at(&self, which: &str, point: &str, tag: &str) -> Option<f64> {
        let point = self.held_out.points.iter().find(|p| p.point == point)?;
        let values = if which == "logit" { &point.logit } else { &point.tuned };
        *values.get(tag)?
    }
}

/// Mean over the points of a model's first half: embed and 1 to L/2.
pub fn early(lens: &Lens, which: &str, tag: &str) -> Option<f64> {
    let layers = lens.held_out.points.len().saturating_sub(1);
    let early = &lens.held_out.points[..(layers / 2 + 1).min(lens.held_out.points.len())];
    let values: Vec<f64> = early.iter().filter_map(|p| lens.at(which, &p.point, tag)).collect();
    (values.len() == early.len()).then(|| tiebreak_sweep::statistics::mean(&values)).flatten()
}

/// Names of a run's points: embed, 1 .. L.
pub fn points(run: &Run) -> Vec<String> {
    let layers = run.kept.config.model.n_layers;
    (0..=layers).map(|k| if k == 0 { "embed".into() } else { k.to_string() }).collect()
}

fn file(run: &Run, recipe: &str) -> PathBuf {
    run.kept.folder.0.join("probes").join(format!("lens-step-{}-{recipe}.json", run.steps()))
}

/// A run's lens at its last step; `None` if it has none yet.
///
/// # Errors
/// [`Error::Input`] for a damaged file.
pub fn lens(run: &Run, recipe: &str) -> Result<Option<Lens>, Error> {
    let path = file(run, recipe);
    let bytes = match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
    };
    let lens = serde_json::from_slice(&bytes).map_err(|e| {
        Error::Input(format!("{}: {e}: no lens's record; remove it and train the lens again", path.display()))
    })?;
    Ok(Some(lens))
}

/// Complete runs of the cells that have no lens of a recipe yet.
pub fn missing(runs: &Runs, cells: &[&str], recipe: &str) -> Vec<String> {
    let of = |cell: &&str| runs.of(cell).into_iter().filter(|run| !file(run, recipe).is_file()).collect::<Vec<_>>();
    let all = cells.iter().flat_map(|cell| of(cell).into_iter().map(move |run| (cell, run.seed)));
    all.map(|(cell, seed)| format!("{cell} s{seed}: no {recipe} lens")).collect()
}
