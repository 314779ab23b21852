//! Tuned lenses of the experiments' runs: trained after the runs, and what they read.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use tiebreak_probe::lens::points;
use tiebreak_probe::lens::{Ended, Recipe, Summary};
use tiebreak_sweep::statistics::mean;
use tiebreak_train::config::LensConfig;
use tiebreak_train::device::{DeviceKind, DeviceSpec, caught};
use tiebreak_train::lens::{LensJob, LensReport, train_lens};
use tiebreak_train::{Error, TrainedModel};

use crate::reproduce::Halt;
use crate::runs::{Run, Runs};

/// Arms that have lenses.
const ARMS: [&str; 2] = ["tied", "untied"];

/// Which of the two lenses that a report holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The state as it is.
    Logit,
    /// The state translated.
    Tuned,
}

/// A value of a reading.
pub type Value = fn(&Summary) -> Option<f64>;

fn file(run: &Run, recipe: Recipe) -> PathBuf {
    run.kept.folder.lens_report(run.steps(), recipe, None)
}

/// What a run's lens reads at a point.
pub fn at(lens: &LensReport, which: Which, point: usize, value: Value) -> Option<f64> {
    let point = lens.held_out.points.get(point)?;
    value(if which == Which::Logit { &point.logit } else { &point.tuned })
}

/// The same over a model's first half: mean of embed and points 1 to L/2.
pub fn early(lens: &LensReport, which: Which, value: Value) -> Option<f64> {
    let half = lens.held_out.points.len().saturating_sub(1) / 2;
    let values: Option<Vec<f64>> = (0..=half).map(|point| at(lens, which, point, value)).collect();
    mean(&values?)
}

/// A run's lens at its last step; `None` if it has none yet.
///
/// # Errors
/// [`Error::Input`] for a damaged file.
pub fn lens(run: &Run, recipe: Recipe) -> Result<Option<LensReport>, Error> {
    let path = file(run, recipe);
    let bytes = match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
    };
    let wrong = |e| {
        Error::Input(format!("{}: {e}: no lens's record; remove it, and the lens is trained again", path.display()))
    };
    serde_json::from_slice(&bytes).map(Some).map_err(wrong)
}

/// Whether a lens was trained as its run's configuration asks: by hand it may have been given fewer tokens.
fn as_configured(run: &Run, lens: &LensReport) -> bool {
    let config = &run.kept.config.lens;
    lens.recipe == Recipe::Paper
        || match config.train_tokens {
            0 => lens.training.ended != Ended::Tokens,
            tokens => lens.training.ended == Ended::Tokens && lens.training.tokens >= tokens as u64,
        }
}

/// Complete runs without a lens that can be judged by, and why, for people.
///
/// # Errors
/// As [`lens`].
pub fn missing(runs: &Runs, recipe: Recipe) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for (arm, run) in ARMS.iter().flat_map(|arm| runs.of(arm).into_iter().map(move |run| (arm, run))) {
        let why = match lens(run, recipe)? {
            None => "no lens",
            Some(lens) if !as_configured(run, &lens) => "another length of lens than the configuration's",
            Some(lens) if !matches!(lens.training.ended, Ended::Settled | Ended::Tokens) => {
                "a lens that did not settle"
            }
            Some(_) => continue,
        };
        missing.push(format!("{arm} s{}: {why} ({})", run.seed, recipe.name()));
    }
    Ok(missing)
}

/// Trains the lenses that are missing or were trained otherwise, `at_once` at a time on one thread each (by default one for each core; on a
/// GPU one), seed by seed. Gives what failed, a line each.
///
/// # Errors
/// [`Halt::Interrupted`] if `stop` is set meanwhile; [`Halt::Error`] as [`lens`].
pub fn train(runs: &Runs, at_once: Option<usize>, stop: &AtomicBool) -> Result<String, Halt> {
    let mut jobs: Vec<(u64, &Run, Recipe)> = Vec::new();
    for (run, recipe) in
        ARMS.iter().flat_map(|arm| runs.of(arm)).flat_map(|run| [(run, Recipe::Converged), (run, Recipe::Paper)])
    {
        if !lens(run, recipe)?.is_some_and(|lens| as_configured(run, &lens)) {
            jobs.push((run.seed, run, recipe));
        }
    }
    jobs.sort_by_key(|(seed, ..)| *seed);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let on_gpu = |run: &Run| {
        let spec = run.kept.config.device.parse::<DeviceSpec>();
        spec.is_ok_and(|spec| spec.kind().is_ok_and(DeviceKind::is_gpu) && spec.present().is_ok())
    };
    let at_once = at_once.unwrap_or(if jobs.iter().any(|(_, run, _)| on_gpu(run)) { 1 } else { cores });
    let jobs: Vec<(PathBuf, Recipe)> =
        jobs.into_iter().map(|(_, run, recipe)| (run.kept.folder.0.clone(), recipe)).collect();
    if jobs.is_empty() {
        return Ok(String::new());
    }
    tracing::info!("{} lenses to train, {} at a time", jobs.len(), at_once.min(jobs.len()));
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let give_up = || stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(jobs.len()) {
            scope.spawn(|| {
                // One thread for all of them, for a GPU keeps a queue of work for each.
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
                let pool = pool.map_err(|e| format!("a thread cannot be started: {e}"));
                while let Some((folder, recipe)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !give_up())
                {
                    let done = match &pool {
                        Ok(pool) => pool.install(|| caught(|| one(folder, *recipe, &give_up))),
                        Err(e) => Err(Error::Failed(e.clone())),
                    };
                    match (done, failed.lock()) {
                        (Err(e), Ok(mut failed)) => {
                            tracing::error!("{}: {} lens: {e}", folder.display(), recipe.name());
                            *failed += &format!("{}: {} lens: {e}\n", folder.display(), recipe.name());
                        }
                        (Ok(true), _) => {
                            let name = folder.file_name().unwrap_or_default().to_string_lossy();
                            tracing::info!("{name}: {} lens", recipe.name());
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    if stop.load(Ordering::Relaxed) { Err(Halt::Interrupted) } else { Ok(failed.into_inner().unwrap_or_default()) }
}

/// Trains and reads one lens; `false` if it was told to stop.
fn one(folder: &std::path::Path, recipe: Recipe, give_up: &(impl Fn() -> bool + Sync)) -> Result<bool, Error> {
    let model = TrainedModel::load(folder, None)?;
    // The paper's recipe has a length of its own.
    let train_tokens = if recipe == Recipe::Paper { 0 } else { model.config.lens.train_tokens };
    let config = LensConfig { recipe, train_tokens, ..model.config.lens.clone() };
    let job = LensJob {
        model: &model.probed(),
        folder: &model.folder,
        step: model.step,
        data: &model.data,
        corpus: None,
        config: &config,
        go_on: &|| !give_up(),
    };
    Ok(train_lens(&job)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_half_is_the_embedding_and_the_points_up_to_half_the_blocks() {
        let reading = |kl: f64| serde_json::json!({"kl_bits": kl, "kl_fraction": null, "top1_agreement": 0.5, "accuracy": 0.5, "ce_nats": 1.0, "p_input": 0.1});
        let point = |k: usize| serde_json::json!({"point": if k == 0 { "embed".into() } else { k.to_string() }, "logit": reading(8.0), "tuned": reading(k as f64)});
        let points: Vec<_> = (0..=4).map(point).collect();
        let report = serde_json::json!({
            "recipe": "converged", "step": 1, "corpus": "", "corpus_hash": "", "fingerprint": "",
            "training": {"tokens": 1, "steps": 1, "check_tokens": 1, "ended": "settled"},
            "held_out": {"tokens": 1, "points": points, "constant": reading(1.0), "bigram": null}, "curve": [],
        });
        let report: LensReport = serde_json::from_value(report).unwrap();
        // Points 0, 1, 2 of a model of four blocks.
        assert_eq!(early(&report, Which::Tuned, |s| Some(s.kl_bits)), Some(1.0));
        assert_eq!(early(&report, Which::Logit, |s| Some(s.kl_bits)), Some(8.0));
        assert_eq!(early(&report, Which::Tuned, |s| s.kl_fraction), None, "no constant predictor to divide by");
        assert_eq!(at(&report, Which::Tuned, 4, |s| Some(s.kl_bits)), Some(4.0));
        assert_eq!(at(&report, Which::Tuned, 5, |s| Some(s.kl_bits)), None);
    }
}
