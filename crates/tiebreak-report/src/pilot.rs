//! What has to be known before the experiments: learning rates, a learning rate that moves the table as little as x5 does, an
//! eps as large as a typical gradient. All from runs of a seed that no test uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiebreak_data::write_atomic;
use tiebreak_model::interface::ModeKind;
use tiebreak_probe::{Drift, Table};
use tiebreak_sweep::{Cell, CellsOutcome, LaunchOptions, locate, train_cells};
use tiebreak_train::folder::RunFolder;
use tiebreak_train::{Error, KeptTables};

use crate::plan::{Plan, Scale, renamed, with};
use crate::reproduce::Halt;
use crate::series::Series;

/// The arm whose table learns more slowly.
pub const MATCHED_MOVEMENT: &str = "movement-matched";
/// The arm whose movement it matches.
const SCALED: &str = "x5";
/// Arms of the paper's regime of Adam's eps begin so.
const EPS_ARMS: &str = "eps-";
/// How near the two movements have to be, as a cosine.
const NEAR: f64 = 0.01;
/// Trials of the bisection.
const TRIALS: usize = 10;

/// `pilot.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pilot {
    /// The scale it was found at.
    pub scale: String,
    /// The pilots' seed.
    pub seed: u64,
    /// Learning rates, by the arm of the grid.
    pub rates: BTreeMap<String, Rate>,
    /// The factor of the movement-matched arm.
    pub movement: Option<Movement>,
    /// Adam's eps in the paper's regime.
    pub eps: Option<Eps>,
}

/// The best of a grid of learning rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The rate with the lowest validation loss.
    pub lr: f64,
    /// Validation loss (nats per token) by rate; a rate that diverged has none.
    pub losses: BTreeMap<String, f64>,
    /// Whether it is the smallest or largest rate of the grid, so that a better one may lie outside.
    pub at_the_edge: bool,
    /// Folders of the pilots.
    pub runs: Vec<String>,
}

/// A learning rate of the table at which an unscaled model moves as x5 does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Movement {
    /// `optim.table_lr_scale`.
    pub table_lr_scale: f64,
    /// Mean cosine of x5's rows to their initial values.
    pub target: f64,
    /// The same with `table_lr_scale`.
    pub reached: f64,
    /// Every factor that was tried, with what it reached.
    pub trials: Vec<(f64, f64)>,
    /// Folders of the two pilots that it starts from.
    pub runs: Vec<String>,
}

/// Root mean square over the elements of G_out in the last tenth of a tied pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eps {
    /// Rounded to two digits.
    pub eps: f64,
    /// The pilot's folder.
    pub runs: Vec<String>,
}

/// The arm of the grid whose learning rate a cell takes.
fn rate_arm(cell: &Cell) -> &'static str {
    match (cell.arm.as_str(), cell.loaded.config.head.mode) {
        ("tied-matched", _) => "tied-matched",
        (_, ModeKind::Untied) => "untied",
        _ => "tied",
    }
}

impl Pilot {
    /// The cell with the numbers that the pilots found; `None` while one is missing.
    pub fn settle(&self, cell: &Cell) -> Option<Cell> {
        let mut cell = with(cell, "optim.lr", self.rates.get(rate_arm(cell))?.lr);
        if cell.arm == MATCHED_MOVEMENT {
            cell = with(&cell, "optim.table_lr_scale", self.movement.as_ref()?.table_lr_scale);
        }
        if cell.arm.starts_with(EPS_ARMS) {
            cell = with(&cell, "optim.eps", self.eps.as_ref()?.eps);
        }
        Some(cell)
    }

    /// Reads `pilot.json`; an empty one if there is none.
    ///
    /// # Errors
    /// [`Error::Input`] for a file that is none, or another scale's.
    pub fn read(out: &Path, scale: Scale) -> Result<Self, Error> {
        let path = out.join("pilot.json");
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { scale: scale.name().into(), ..Self::default() });
            }
            other => other.map_err(|e| Error::Failed(format!("{}: cannot be read: {e}", path.display())))?,
        };
        let pilot: Self = serde_json::from_slice(&bytes).map_err(|e| {
            let name = path.display();
            Error::Input(format!(
                "{name}: {e}: not what the pilots wrote; remove it, and it is found again from their runs"
            ))
        })?;
        if pilot.scale != scale.name() {
            return Err(Error::Input(format!(
                "--out {}: holds the {} scale, and {} was asked for; choose another --out",
                out.display(),
                pilot.scale,
                scale.name()
            )));
        }
        Ok(pilot)
    }

    fn write(&self, out: &Path) -> Result<(), Error> {
        let path = out.join("pilot.json");
        let json = serde_json::to_vec_pretty(self).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
        std::fs::create_dir_all(out).map_err(|e| Error::Input(format!("--out {}: {e}", out.display())))?;
        write_atomic(&path, &json)
    }
}

/// Finds what the chosen experiments need and `pilot` lacks; `pilot.json` in `out` follows.
///
/// # Errors
/// [`Halt`], also where every learning rate diverges.
pub fn find(plan: &Plan, mut pilot: Pilot, out: &Path, launch: &LaunchOptions) -> Result<Pilot, Halt> {
    let search = Search { runs: out.join("runs"), launch };
    let chosen: Vec<&Cell> = plan.chosen().collect();
    let seed = plan.pilots.first().map_or(0, |cell| cell.seed);
    pilot.seed = seed;
    let needed = |arm: &str| chosen.iter().any(|cell| rate_arm(cell) == arm);
    let grid: Vec<Cell> = plan.pilots.iter().filter(|cell| needed(&cell.arm)).cloned().collect();
    // Together, so that the cores are full.
    let missing: Vec<Cell> = grid.iter().filter(|cell| !pilot.rates.contains_key(&cell.arm)).cloned().collect();
    search.train(&missing)?;
    for arm in ["tied", "untied", "tied-matched"].into_iter().filter(|arm| needed(arm)) {
        let cells: Vec<Cell> = grid.iter().filter(|cell| cell.arm == arm).cloned().collect();
        let names = search.names(&cells)?;
        if pilot.rates.get(arm).is_none_or(|rate| rate.runs != names) {
            let rate = search.rate(arm, &cells, names)?;
            tracing::info!("{arm}: learning rate {} of {:?}", rate.lr, rate.losses);
            pilot.rates.insert(arm.into(), rate);
            pilot.write(out)?;
        }
    }
    let Some(tied) = plan.arm("tied").and_then(|cell| pilot.settle(cell)) else { return Ok(pilot) };
    // The grid's run of that rate, under its name.
    let Some(tied) = grid.iter().find(|c| c.arm == "tied" && c.loaded.config.optim.lr == tied.loaded.config.optim.lr)
    else {
        return Ok(pilot);
    };
    if chosen.iter().any(|cell| cell.arm.starts_with(EPS_ARMS)) {
        let names = search.names(std::slice::from_ref(tied))?;
        if pilot.eps.as_ref().is_none_or(|eps| eps.runs != names) {
            let eps = search.eps(tied, names)?;
            tracing::info!("eps of the paper's regime: {}", eps.eps);
            pilot.eps = Some(eps);
            pilot.write(out)?;
        }
    }
    let matched = plan.arm(MATCHED_MOVEMENT).filter(|_| chosen.iter().any(|cell| cell.arm == MATCHED_MOVEMENT));
    let scaled = plan.arm(SCALED).and_then(|cell| pilot.settle(cell));
    if let (Some(matched), Some(scaled)) = (matched, scaled) {
        let scaled = renamed(&scaled, SCALED.into(), seed);
        let names = search.names(&[tied.clone(), scaled.clone()])?;
        if pilot.movement.as_ref().is_none_or(|movement| movement.runs != names) {
            let lr = tied.loaded.config.optim.lr;
            let matched = with(&renamed(matched, MATCHED_MOVEMENT.into(), seed), "optim.lr", lr);
            let movement = search.movement(tied, &scaled, &matched, names)?;
            tracing::info!(
                "{MATCHED_MOVEMENT}: table_lr_scale {} reaches {:.4}, {SCALED} {:.4}",
                movement.table_lr_scale,
                movement.reached,
                movement.target
            );
            pilot.movement = Some(movement);
            pilot.write(out)?;
        }
    }
    Ok(pilot)
}

struct Search<'a> {
    runs: PathBuf,
    launch: &'a LaunchOptions,
}

impl Search<'_> {
    fn train(&self, cells: &[Cell]) -> Result<(), Halt> {
        if cells.is_empty() {
            return Ok(());
        }
        match train_cells(cells, &self.runs, self.launch)? {
            CellsOutcome::Complete(_) => Ok(()),
            CellsOutcome::Failures(text) => Err(Halt::Failures(text)),
            CellsOutcome::Interrupted => Err(Halt::Interrupted),
        }
    }

    fn folder(&self, cell: &Cell) -> Result<RunFolder, Error> {
        let located = locate(std::slice::from_ref(cell), &self.runs)?.pop();
        located.map(|l| l.folder).ok_or_else(|| Error::Failed(format!("{}: its run cannot be named", cell.name)))
    }

    fn names(&self, cells: &[Cell]) -> Result<Vec<String>, Error> {
        let name =
            |folder: RunFolder| folder.0.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(locate(cells, &self.runs)?.into_iter().map(|located| name(located.folder)).collect())
    }

    /// The best of one arm's rates.
    fn rate(&self, arm: &str, cells: &[Cell], runs: Vec<String>) -> Result<Rate, Halt> {
        self.train(cells)?;
        let (mut losses, mut best) = (BTreeMap::new(), None::<(f64, f64)>);
        for cell in cells {
            let (lr, steps) = (cell.loaded.config.optim.lr, cell.loaded.config.train.steps);
            let series = Series::read(&self.folder(cell)?)?;
            // A run that diverged has no value at the last step.
            let Some((_, loss)) = series.of("eval/loss").iter().find(|(step, _)| *step == steps) else { continue };
            losses.insert(lr.to_string(), *loss);
            if best.is_none_or(|(_, lowest)| *loss < lowest) {
                best = Some((lr, *loss));
            }
        }
        let Some((lr, _)) = best else {
            return Err(Error::Failed(format!(
                "{arm}: every learning rate of pilot.toml diverged; give it lower ones"
            ))
            .into());
        };
        let rates = || cells.iter().map(|cell| cell.loaded.config.optim.lr);
        let at_the_edge = rates().all(|other| other <= lr) || rates().all(|other| other >= lr);
        Ok(Rate { lr, losses, at_the_edge, runs })
    }

    fn eps(&self, tied: &Cell, runs: Vec<String>) -> Result<Eps, Halt> {
        self.train(std::slice::from_ref(tied))?;
        let config = &tied.loaded.config;
        let series = Series::read(&self.folder(tied)?)?;
        let last_tenth = config.train.steps - config.train.steps / 10;
        let norms = series.of("grad/output_norm").iter().filter(|(step, _)| *step > last_tenth);
        let squares: Vec<f64> = norms.map(|(_, norm)| norm * norm).collect();
        let elements = (config.data.vocabulary()? * config.model.d_model) as f64;
        let rms = (squares.iter().sum::<f64>() / squares.len() as f64 / elements).sqrt();
        if !rms.is_normal() {
            return Err(Error::Failed(format!("{}: its grad/output_norm gives no eps", tied.name)).into());
        }
        let eps = format!("{rms:.1e}").parse().unwrap_or(rms);
        Ok(Eps { eps, runs })
    }

    /// Mean cosine of the run's rows to their initial values, at its last step.
    fn moved(&self, cell: &Cell) -> Result<f64, Halt> {
        self.train(std::slice::from_ref(cell))?;
        let kept = KeptTables::open(&self.folder(cell)?.0)?;
        let table = |step: u64| -> Result<Table, Error> { Ok(kept.tables(step)?.swap_remove(0).1) };
        Ok(Drift::between(&table(kept.last())?, &table(0)?, &kept.rows(false)?)?.mean)
    }

    /// Bisects the logarithm of the table's learning rate.
    fn movement(&self, tied: &Cell, scaled: &Cell, matched: &Cell, runs: Vec<String>) -> Result<Movement, Halt> {
        let target = self.moved(scaled)?;
        let start = self.moved(tied)?;
        let (table_lr_scale, reached, trials) = bisect(start, target, |factor| {
            let cell = with(matched, "optim.table_lr_scale", factor);
            self.moved(&renamed(&cell, format!("{MATCHED_MOVEMENT} {factor}"), matched.seed))
        })?;
        Ok(Movement { table_lr_scale, target, reached, trials, runs })
    }
}

/// Factors with the cosines that they reached.
type Trials = Vec<(f64, f64)>;

/// The factor whose cosine is within [`NEAR`] of `target`, or the nearest of [`TRIALS`]; its cosine; all trials. The cosine falls
/// as the factor grows, and is `start` at factor 1.
fn bisect(
    start: f64,
    target: f64,
    mut moved: impl FnMut(f64) -> Result<f64, Halt>,
) -> Result<(f64, f64, Trials), Halt> {
    // In powers of two; x5 moves less than tied, as a rule, and then the factor is below 1.
    let (mut low, mut high) = if target >= start { (-6.0, 0.0) } else { (0.0, 6.0) };
    let mut trials = vec![(1.0, start)];
    while trials.len() <= TRIALS && trials.iter().all(|(_, cosine)| (cosine - target).abs() > NEAR) {
        let middle: f64 = (low + high) / 2.0;
        // Short, so that it can be written into a sweep.
        let factor = (middle.exp2() * 1e4).round() / 1e4;
        let cosine = moved(factor)?;
        trials.push((factor, cosine));
        if cosine > target {
            low = middle;
        } else {
            high = middle;
        }
    }
    let distance = |trial: &(f64, f64)| (trial.1 - target).abs();
    let best = trials.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).copied().unwrap_or((1.0, start));
    Ok((best.0, best.1, trials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bisection_finds_the_factor() {
        let cosine = |factor: f64| 1.0 / (1.0 + factor);
        for target in [0.8, 0.66, 0.3, 0.502] {
            let (factor, reached, trials) = bisect(0.5, target, |f| Ok(cosine(f))).unwrap();
            assert!((reached - target).abs() <= NEAR, "{target}: {reached}");
            assert!((cosine(factor) - reached).abs() < 1e-12 && trials.len() <= 9, "{trials:?}");
        }
        // Out of reach: the nearest, after a bounded number of runs.
        let (factor, _, trials) = bisect(0.5, 1.5, |f| Ok(cosine(f))).unwrap();
        assert!(factor < 0.02 && trials.len() == TRIALS + 1);
    }

    #[test]
    fn a_damaged_record_and_another_scale_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |scale| match Pilot::read(dir.path(), scale) {
            Err(Error::Input(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(Pilot::read(dir.path(), Scale::Full).unwrap().scale, "full");
        std::fs::write(dir.path().join("pilot.json"), "{").unwrap();
        assert!(refused(Scale::Full).contains("pilot.json"));
        Pilot { scale: "full".into(), ..Pilot::default() }.write(dir.path()).unwrap();
        assert!(Pilot::read(dir.path(), Scale::Full).is_ok());
        assert!(refused(Scale::Quick).contains("choose another --out"));
    }
}
