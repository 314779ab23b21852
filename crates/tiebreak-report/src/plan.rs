//! What is trained: the experiments' sweep files, at a scale, with what the pilots found, each run once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tiebreak_data::{did_you_mean, write_atomic};
use tiebreak_sweep::{Cell, Located, SweepConfig, expand, locate};
use tiebreak_train::Error;
use tiebreak_train::config::{Origin, flatten, read_table};
use toml::{Table, Value};

use crate::pilot::Pilot;

/// Folder of the experiments in the working directory; it wins over what is compiled in.
pub const FOLDER: &str = "experiments";

/// The files that say what is trained and judged.
const FILES: [(&str, &str); 11] = [
    ("base.toml", include_str!("../../../experiments/base.toml")),
    ("quick.toml", include_str!("../../../experiments/quick.toml")),
    ("pilot.toml", include_str!("../../../experiments/pilot.toml")),
    ("published.toml", include_str!("../../../experiments/published.toml")),
    ("1_embedding_alignment/sweep.toml", include_str!("../../../experiments/1_embedding_alignment/sweep.toml")),
    ("2_tuned_lens/sweep.toml", include_str!("../../../experiments/2_tuned_lens/sweep.toml")),
    ("3_embedding_evolution/sweep.toml", include_str!("../../../experiments/3_embedding_evolution/sweep.toml")),
    ("4_norm_frequency/sweep.toml", include_str!("../../../experiments/4_norm_frequency/sweep.toml")),
    ("5_gradient_flow/sweep.toml", include_str!("../../../experiments/5_gradient_flow/sweep.toml")),
    ("6_gradient_scaling/sweep.toml", include_str!("../../../experiments/6_gradient_scaling/sweep.toml")),
    ("8_size/sweep.toml", include_str!("../../../experiments/8_size/sweep.toml")),
];

/// Names of the experiments, which are those of their folders.
pub const EXPERIMENTS: [&str; 7] = [
    "1_embedding_alignment",
    "2_tuned_lens",
    "3_embedding_evolution",
    "4_norm_frequency",
    "5_gradient_flow",
    "6_gradient_scaling",
    "8_size",
];

/// Arms that a claim names: they are trained first, seed by seed.
const CLAIMED: [&str; 6] = ["tied", "untied", "x3", "x5", "tied-matched", "movement-matched"];

/// How large the runs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// quick.toml over base.toml.
    Quick,
    /// base.toml.
    Full,
}

impl Scale {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// quick.toml.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    /// How many of each arm's seeds are run.
    seeds: usize,
    /// Keys over the base's.
    set: Table,
    /// Values of a sweep's grid, where it has the key.
    grid: BTreeMap<String, Value>,
}

/// One experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// Whether it is among those asked for.
    pub chosen: bool,
    /// Its runs, each a cell of its sweep.
    cells: Vec<Cell>,
}

/// Everything that is trained.
pub struct Plan {
    /// All experiments, chosen or not.
    pub experiments: Vec<Experiment>,
    /// The learning rates' grid.
    pub pilots: Vec<Cell>,
    /// Text of published.toml.
    pub published: String,
}

/// A cell of an experiment and the run that it is.
#[derive(Clone, Debug)]
pub struct Member {
    /// Whether its experiment is chosen.
    pub chosen: bool,
    /// The cell's name in the experiment's sweep: the arm, with the grid's values.
    pub name: String,
    /// The cell, under the name of the first cell of the same run.
    pub cell: Cell,
    /// Where the run is.
    pub located: Located,
}

impl Experiment {
    /// Its cells, as its sweep has them.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// Refuses a name that is no experiment.
///
/// # Errors
/// [`Error::Input`] with the nearest name and all of them.
pub fn check_names(only: &[String]) -> Result<(), Error> {
    match only.iter().find(|name| !EXPERIMENTS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::Input(format!(
            "--only {name}: no such experiment{}; experiments: {}",
            did_you_mean(name, EXPERIMENTS.into_iter()),
            EXPERIMENTS.join(", ")
        ))),
    }
}

impl Plan {
    /// Reads the experiments' files: those of `experiments/` in the working directory, else those compiled in, which are
    /// written into `out` first. `only`: names of the chosen experiments; none: all. `device`: in place of the files'.
    ///
    /// # Errors
    /// [`Error::Input`] for a name that is no experiment and for whatever a sweep refuses.
    pub fn load(scale: Scale, only: &[String], device: Option<&str>, out: &Path) -> Result<Self, Error> {
        let here = Path::new(FOLDER);
        let folder = if here.join("base.toml").is_file() { here.to_path_buf() } else { unpack(out)? };
        Self::read(scale, only, device, &folder)
    }

    fn read(scale: Scale, only: &[String], device: Option<&str>, folder: &Path) -> Result<Self, Error> {
        let mut quick: Quick = match scale {
            Scale::Full => Quick { seeds: usize::MAX, ..Quick::default() },
            Scale::Quick => {
                let path = folder.join("quick.toml");
                let wrong =
                    |e: toml::de::Error| Error::Input(format!("{}: {}", path.display(), e.to_string().trim_end()));
                Value::Table(read_table(&path)?).try_into().map_err(wrong)?
            }
        };
        if let Some(device) = device {
            quick.set.insert("device".into(), device.into());
        }
        let mut experiments = Vec::new();
        for name in EXPERIMENTS {
            let cells = cells(&folder.join(name).join("sweep.toml"), &quick)?;
            let chosen = only.is_empty() || only.iter().any(|o| o == name);
            experiments.push(Experiment { name, chosen, cells });
        }
        let pilots = cells(&folder.join("pilot.toml"), &quick)?;
        let published = folder.join("published.toml");
        let published = std::fs::read_to_string(&published)
            .map_err(|e| Error::Input(format!("{}: cannot be read ({e})", published.display())))?;
        Ok(Self { experiments, pilots, published })
    }

    /// The chosen experiments' cells.
    pub fn chosen(&self) -> impl Iterator<Item = &Cell> {
        self.experiments.iter().filter(|e| e.chosen).flat_map(|e| &e.cells)
    }

    /// A cell of this arm, of any experiment and seed, at no grid point.
    pub fn arm(&self, name: &str) -> Option<&Cell> {
        self.experiments.iter().flat_map(|e| &e.cells).find(|cell| cell.name == name)
    }

    /// Every cell whose configuration the pilots have settled, with the folder of its run in `runs`. Cells of one run share
    /// the name of the first of them.
    ///
    /// # Errors
    /// As [`locate`].
    pub fn members(&self, pilot: &Pilot, runs: &Path) -> Result<Vec<Member>, Error> {
        let mut members: Vec<(&Experiment, Cell)> = Vec::new();
        for experiment in &self.experiments {
            for cell in &experiment.cells {
                members.extend(pilot.settle(cell).map(|cell| (experiment, cell)));
            }
        }
        let cells: Vec<Cell> = members.iter().map(|(_, cell)| cell.clone()).collect();
        let mut first: BTreeMap<String, (Cell, Located)> = BTreeMap::new();
        let located = locate(&cells, runs)?;
        let all = members.into_iter().zip(located).map(|((experiment, cell), located)| {
            let name = cell.name.clone();
            let run = first.entry(located.identity.clone()).or_insert((cell, located)).clone();
            Member { chosen: experiment.chosen, name, cell: run.0, located: run.1 }
        });
        Ok(all.collect())
    }
}

/// The runs of the chosen experiments, each once: those that claims name, then the others.
pub fn stages(members: &[Member]) -> [Vec<Cell>; 2] {
    let mut stages = [Vec::new(), Vec::new()];
    let mut seen: Vec<&str> = Vec::new();
    for member in members.iter().filter(|m| m.chosen) {
        if !seen.contains(&member.located.identity.as_str()) {
            seen.push(&member.located.identity);
            stages[usize::from(!CLAIMED.contains(&member.cell.name.as_str()))].push(member.cell.clone());
        }
    }
    stages
}

/// Writes the compiled-in files below `out`.
fn unpack(out: &Path) -> Result<PathBuf, Error> {
    let folder = out.join("plan");
    for (name, text) in FILES {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).map_err(|e| Error::Input(format!("--out {}: {e}", out.display())))?;
        write_atomic(&path, text.as_bytes())?;
    }
    Ok(folder)
}

/// Cells of a sweep file at a scale.
fn cells(path: &Path, quick: &Quick) -> Result<Vec<Cell>, Error> {
    let mut sets: Vec<String> = flatten(&quick.set).iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !quick.grid.is_empty() {
        let grid = SweepConfig::read(path, &[])?.grid;
        for (key, values) in quick.grid.iter().filter(|(key, _)| grid.iter().any(|(known, _)| known == *key)) {
            sets.push(format!("sweep.grid.{key}={values}"));
        }
    }
    let config = SweepConfig::read(path, &sets)?;
    let mut cells = expand(&config, path)?;
    let seeds = &config.seeds[..quick.seeds.min(config.seeds.len())];
    cells.retain(|cell| seeds.contains(&cell.seed));
    Ok(cells)
}

/// `cell` under another name and seed.
pub fn renamed(cell: &Cell, name: String, seed: u64) -> Cell {
    let mut cell = cell.clone();
    (cell.loaded.config.name, cell.loaded.config.seed) = (name.clone(), seed);
    (cell.name, cell.seed) = (name, seed);
    cell
}

/// `cell` with a number that a pilot found.
pub fn with(cell: &Cell, key: &str, value: f64) -> Cell {
    let mut cell = cell.clone();
    let optim = &mut cell.loaded.config.optim;
    match key {
        "optim.lr" => optim.lr = value,
        "optim.eps" => optim.eps = value,
        _ => optim.table_lr_scale = value,
    }
    cell.loaded.origins.insert(key.into(), Origin::Set);
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled_in(scale: Scale, only: &[&str]) -> Plan {
        let dir = tempfile::tempdir().unwrap();
        let folder = unpack(dir.path()).unwrap();
        Plan::read(scale, &only.iter().map(|s| s.to_string()).collect::<Vec<_>>(), None, &folder).unwrap()
    }

    fn seeds(plan: &Plan, experiment: &str, cell: &str) -> Vec<u64> {
        let cells = &plan.experiments.iter().find(|e| e.name == experiment).unwrap().cells;
        cells.iter().filter(|c| c.name == cell).map(|c| c.seed).collect()
    }

    #[test]
    fn the_full_plan_is_what_the_claims_need() {
        let plan = compiled_in(Scale::Full, &[]);
        for arm in CLAIMED {
            assert_eq!(seeds(&plan, "6_gradient_scaling", arm), [0, 1, 2, 3, 4], "{arm}");
        }
        assert_eq!(seeds(&plan, "6_gradient_scaling", "x10"), [0, 1, 2]);
        assert_eq!(seeds(&plan, "8_size", "untied model.d_model=256"), [0, 1, 2]);
        assert_eq!(plan.pilots.len(), 9);
        assert!(plan.pilots.iter().all(|cell| cell.seed == 100));
        for cell in plan.chosen().chain(&plan.pilots) {
            let config = &cell.loaded.config;
            let third = (config.train.steps as f64 / 3.0).round() as u64;
            assert!(config.log.tables_at.contains(&third), "{}: {third}", cell.name);
            // Above the 4.9 million tokens of the text, a step would see a window twice.
            let tokens = config.train.steps * (config.train.batch_size * config.data.context_length) as u64;
            assert!(tokens < 4_900_000, "{tokens}");
        }
    }

    #[test]
    fn the_quick_plan_has_two_seeds_and_small_models() {
        let plan = compiled_in(Scale::Quick, &["5_gradient_flow"]);
        assert_eq!(seeds(&plan, "6_gradient_scaling", "x5"), [0, 1]);
        assert_eq!(seeds(&plan, "8_size", "x5 model.d_model=32"), [0, 1]);
        assert!(seeds(&plan, "8_size", "x5 model.d_model=256").is_empty());
        assert_eq!(plan.chosen().count(), 4, "two arms, two seeds");
        for cell in plan.chosen() {
            let config = &cell.loaded.config;
            assert_eq!((config.model.n_layers, config.data.fallback.as_str()), (2, "synthetic"));
            assert!(config.log.tables_at.contains(&(config.train.steps / 3)));
        }
    }

    #[test]
    fn unknown_experiments_are_refused_with_the_nearest() {
        let Err(Error::Input(text)) = check_names(&["5_gradient_flw".into()]) else { panic!("accepted") };
        assert!(text.contains("did you mean \"5_gradient_flow\"") && text.contains("8_size"), "{text}");
        assert!(check_names(&["8_size".into()]).is_ok());
    }
}
