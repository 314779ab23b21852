//! A sweep from its file to its comparison.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tiebreak_data::Lock;
use tiebreak_train::device::{self, DeviceKind, DeviceSpec};
use tiebreak_train::folder::{RunFolder, RunState};
use tiebreak_train::{Error, check_other_devices};

use crate::compare::compare_cells;
use crate::expand::parameters;
use crate::launch::{LaunchOptions, failure_table, launch, split};
use crate::plan::{Planned, plan, plan_if_cached};
use crate::runs::find;
use crate::summary::{SWEEP_FILE, SweepRecord, declare, differing, flat, write_json, write_summary};
use crate::table::{grouped, plain_table};
use crate::written::check_written;
use crate::{Cell, SweepConfig, expand};

/// A sweep file, read, checked and expanded.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What the file says.
    pub config: SweepConfig,
    /// Every run, arms x grid x seeds.
    pub cells: Vec<Cell>,
}

/// How a sweep ended, with the comparison for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepOutcome {
    /// All cells are complete.
    Complete(String),
    /// Some failed or diverged; the text names them.
    Failures(String),
    /// A signal came; cells wrote checkpoints.
    Interrupted,
}

impl Sweep {
    /// Reads a sweep file and every cell's configuration, and checks what can be checked without touching the data.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file, the arm and the key.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, Error> {
        let config = SweepConfig::read(path, sets)?;
        let cells = expand(&config, path)?;
        for cell in &cells {
            let place = |e: Error| e.at(format_args!("{}: arm {:?}", path.display(), cell.name));
            let kind = cell.loaded.config.device.parse::<DeviceSpec>().and_then(DeviceSpec::kind).map_err(place)?;
            device::precision(cell.loaded.config.train.precision, kind).map_err(place)?;
            cell.loaded.config.data.check_sources().map_err(place)?;
            check_written(&config.metric, &cell.loaded.config).map_err(place)?;
        }
        Ok(Self { config, cells })
    }

    /// What the cells are: the sweep's keys, then the configuration keys in which cells differ.
    ///
    /// # Errors
    /// [`Error::Input`] for a tokenizer.json that is missing.
    pub fn describe(&self) -> Result<String, Error> {
        let config = &self.config;
        let mut text = format!(
            "[sweep]\nname = {:?}\nbase = {:?}\nseeds = {:?}\nbaseline = {:?}\nmetric = {:?}\n\n",
            config.name,
            config.base.display().to_string(),
            config.seeds,
            config.baseline,
            config.metric
        );
        let keys = differing(&self.cells);
        let mut table = plain_table(["cell", "parameters", "sets"].map(String::from).to_vec());
        let firsts = |(index, cell): &(usize, &Cell)| !self.cells[..*index].iter().any(|c| c.name == cell.name);
        for (_, cell) in self.cells.iter().enumerate().filter(firsts) {
            let flat = flat(cell);
            let sets: Vec<String> = keys.iter().filter_map(|key| Some(format!("{key} = {}", flat.get(key)?))).collect();
            let parameters = grouped(parameters(&cell.loaded.config)? as u64);
            table.add_row([cell.name.clone(), parameters, sets.join(", ")]);
        }
        let _ = writeln!(
            text,
            "{table}\n\n{} cells with {} seeds; everything else is the base's.",
            self.cells.len(),
            config.seeds.len()
        );
        Ok(text)
    }

    /// The cells, their folders (where the data is cached, for folders are named by content), sizes and states. Writes and fetches
    /// nothing. `jobs` is as in [`LaunchOptions`].
    ///
    /// # Errors
    /// [`Error::Input`] for data, a device, a folder or `jobs` that running would refuse.
    pub fn dry_run(&self, out: &Path, jobs: Option<usize>) -> Result<String, Error> {
        check_jobs(jobs)?;
        let folder = self.folder(out)?;
        let planned = plan_if_cached(&self.cells, &folder)?;
        present(planned.iter().flatten(), &folder)?;
        for (cell, _) in self.cells.iter().zip(&planned).filter(|(_, planned)| planned.is_none()) {
            let there = cell.loaded.config.device.parse::<DeviceSpec>()?.present();
            there.map_err(|e| e.at(format_args!("arm {:?}", cell.name)))?;
        }
        let header = ["cell", "seed", "folder", "parameters", "steps", "state"].map(String::from);
        let mut table = plain_table(header.to_vec());
        let mut left = 0;
        for (cell, planned) in self.cells.iter().zip(&planned) {
            let config = &cell.loaded.config;
            let (name, state) = match planned {
                None => ("(named once the data is prepared)".to_owned(), None),
                Some(planned) => (planned.folder_name(), planned.status()?.map(|status| (status.state, status.step))),
            };
            let state = match state {
                Some((RunState::Complete, _)) => "complete".to_owned(),
                Some((RunState::Diverged, step)) => format!("diverged at step {step}"),
                Some((state, step)) => {
                    left += 1;
                    format!("{} at step {step}", format!("{state:?}").to_lowercase())
                }
                None => {
                    left += 1;
                    "to do".to_owned()
                }
            };
            let parameters = grouped(parameters(config)? as u64);
            table.add_row([
                cell.name.clone(),
                cell.seed.to_string(),
                name,
                parameters,
                config.train.steps.to_string(),
                state,
            ]);
        }
        let how = match threads(&self.cells, jobs, left) {
            _ if left == 0 => String::new(),
            (jobs, threads) => format!(", {} at a time with {threads} threads each", jobs.min(left)),
        };
        Ok(format!(
            "{table}\n{} cells in {}, {left} to run{how}; nothing was written\n",
            self.cells.len(),
            folder.display()
        ))
    }

    /// Prepares the data, runs every cell that is not done, and compares them.
    ///
    /// # Errors
    /// [`Error::Input`], before anything is written, for data that cannot be used or a folder that is in use; [`Error::Failed`] for
    /// data that cannot be fetched, for the sweep's own files and for runs that cannot be compared. A cell's failure is no error: see [`SweepOutcome`].
    pub fn run(&self, out: &Path, options: LaunchOptions) -> Result<SweepOutcome, Error> {
        check_jobs(options.jobs)?;
        let folder = self.folder(out)?;
        let planned = plan(&self.cells, &folder)?;
        present(&planned, &folder)?;
        if options.stop.load(Ordering::Relaxed) {
            return Ok(SweepOutcome::Interrupted);
        }
        let _lock = occupy(&folder).map_err(|e| e.at(format_args!("--out {}", out.display())))?;
        let names: Vec<String> = planned.iter().map(|p| p.folder_name()).collect();
        let record = SweepRecord::new(&self.config, self.cells.iter().zip(names.iter().map(String::as_str)));
        write_json(&folder.join(SWEEP_FILE), &record)?;
        declare(&folder, &self.config, &self.cells)?;

        let left = left(&planned)?;
        let failures = launch(&planned, &folder, threads(&self.cells, options.jobs, left), &options)?;
        let mut complete = 0;
        for cell in &planned {
            complete += cell.status()?.is_some_and(|s| s.state == RunState::Complete) as usize;
        }
        if options.stop.load(Ordering::Relaxed) && complete + failures.len() < planned.len() {
            tracing::warn!("interrupted with {complete} of {} cells complete; the same command goes on", planned.len());
            return Ok(SweepOutcome::Interrupted);
        }
        let compared = compare_cells(&folder, &record).and_then(|comparison| {
            write_summary(&folder, &comparison)?;
            Ok(comparison.to_text())
        });
        let mut text = match compared {
            Ok(table) => table,
            // With failures the exit code is theirs, and the text the place to tell it.
            Err(e) if !failures.is_empty() => format!("no comparison: {e}\n"),
            Err(Error::Input(text) | Error::Failed(text)) => return Err(Error::Failed(text)),
        };
        if !failures.is_empty() {
            text += &format!("\n{}", failure_table(&failures));
        }
        let ours = planned.iter().filter(|cell| RunFolder::is_run(&cell.folder.0)).count();
        let others = find(std::slice::from_ref(&folder))?.runs.len().saturating_sub(ours);
        if others > 0 {
            let _ = writeln!(
                text,
                "{others} runs in the same folder are no cells of this sweep and are not part of this table; `tiebreak compare` \
                 reads them too."
            );
        }
        let _ = writeln!(text, "\nTo see the curves: tensorboard --logdir {}", folder.display());
        Ok(if failures.is_empty() { SweepOutcome::Complete(text) } else { SweepOutcome::Failures(text) })
    }

    /// The sweep's folder, refused where it cannot be one.
    fn folder(&self, out: &Path) -> Result<PathBuf, Error> {
        let folder = out.join(&self.config.name);
        for (path, what) in [(out, "--out"), (folder.as_path(), "the sweep's folder")] {
            let wrong = if RunFolder::is_run(path) {
                "is a run's own folder"
            } else if path.exists() && !path.is_dir() {
                "is a file"
            } else {
                continue;
            };
            return Err(Error::Input(format!("{what} {}: {wrong}; choose another --out", path.display())));
        }
        Ok(folder)
    }
}

/// How [`train_cells`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellsOutcome {
    /// All are complete, or diverged and listed here by their run folders.
    Complete(Vec<PathBuf>),
    /// Some failed; the text names them.
    Failures(String),
    /// A signal came; cells wrote checkpoints.
    Interrupted,
}

/// Trains every cell that is not done, with `folder` for their runs, and compares nothing. Cells of one identity must be given once.
///
/// # Errors
/// As [`Sweep::run`].
pub fn train_cells(cells: &[Cell], folder: &Path, options: &LaunchOptions) -> Result<CellsOutcome, Error> {
    check_jobs(options.jobs)?;
    let planned = plan(cells, folder)?;
    present(&planned, folder)?;
    if options.stop.load(Ordering::Relaxed) {
        return Ok(CellsOutcome::Interrupted);
    }
    let _lock = occupy(folder)?;
    let failures = launch(&planned, folder, threads(cells, options.jobs, left(&planned)?), options)?;
    if failures.iter().any(|failure| failure.state != "diverged") {
        return Ok(CellsOutcome::Failures(failure_table(&failures)));
    }
    let mut diverged = Vec::new();
    for cell in &planned {
        match cell.status()?.map(|status| status.state) {
            Some(RunState::Complete) => {}
            Some(RunState::Diverged) => diverged.push(cell.folder.0.clone()),
            _ => return Ok(CellsOutcome::Interrupted),
        }
    }
    Ok(CellsOutcome::Complete(diverged))
}

/// Makes and locks a sweep's folder, before anything else is written, so that a folder that somebody else owns stays as it is.
fn occupy(folder: &Path) -> Result<Lock, Error> {
    let unusable = |e: &dyn std::fmt::Display| {
        Error::Input(format!("the sweep's folder cannot be written: {e}; choose another --out"))
    };
    let lock = match Lock::try_acquire(&folder.join("sweep.lock")) {
        Err(e) => return Err(unusable(&e)),
        Ok(None) => return Err(Error::Input(format!("{}: another process runs this sweep", folder.display()))),
        Ok(Some(lock)) => lock,
    };
    let cells = folder.join("cells");
    std::fs::create_dir_all(&cells).map_err(|e| unusable(&format_args!("{}: {e}", cells.display())))?;
    Ok(lock)
}

/// Refuses cells that are left to do on a device that does not answer or cannot hold them, and those that were trained on what "auto"
/// was before.
fn present<'a>(planned: impl IntoIterator<Item = &'a Planned<'a>>, folder: &Path) -> Result<(), Error> {
    for cell in planned {
        let config = &cell.cell.loaded.config;
        if !done(cell)? {
            let there = config.device.parse::<DeviceSpec>()?.present();
            let fits = |there| device::fits(config, cell.info.vocabulary, config.lens.after_training, &there);
            let wanted = there.and_then(fits).and_then(|()| check_other_devices(config, &cell.info, folder));
            wanted.map_err(|e| e.at(format_args!("arm {:?}", cell.cell.name)))?;
        }
    }
    Ok(())
}

fn done(cell: &Planned) -> Result<bool, Error> {
    Ok(cell.status()?.is_some_and(|s| matches!(s.state, RunState::Complete | RunState::Diverged)))
}

/// How many cells are neither complete nor diverged.
fn left(planned: &[Planned]) -> Result<usize, Error> {
    planned.iter().try_fold(0, |left, cell| Ok(left + usize::from(!done(cell)?)))
}

/// Cells at a time and threads for each; on a GPU, which is one, one at a time.
fn threads(cells: &[Cell], jobs: Option<usize>, left: usize) -> (usize, usize) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cells.iter().map(|cell| cell.loaded.config.threads).max().unwrap_or(0);
    let on_gpu = |cell: &Cell| {
        let kind = cell.loaded.config.device.parse::<DeviceSpec>().and_then(DeviceSpec::kind);
        kind.is_ok_and(DeviceKind::is_gpu)
    };
    let jobs = jobs.or_else(|| cells.iter().any(on_gpu).then_some(1));
    split(jobs, threads, left, cores)
}

fn check_jobs(jobs: Option<usize>) -> Result<(), Error> {
    match jobs {
        Some(0) => Err(Error::Input("--jobs 0: expected at least 1".into())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_sweeps_load() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sweeps");
        let mut seen = 0;
        for entry in std::fs::read_dir(configs).unwrap() {
            let path = entry.unwrap().path();
            let sweep = Sweep::load(&path, &[]).unwrap_or_else(|e| panic!("{e}"));
            assert!(sweep.cells.len() >= 2 && sweep.describe().unwrap().contains("[sweep]"));
            seen += 1;
        }
        assert!(seen >= 3);
    }

    #[test]
    fn a_sweep_may_not_lie_in_a_run() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.toml", "status.json"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sweeps/quickstart.toml");
        let sweep = Sweep::load(&configs, &[]).unwrap();
        let Err(Error::Input(text)) = sweep.dry_run(dir.path(), None) else { panic!("accepted") };
        assert!(text.contains("--out") && text.contains("run's own folder"), "{text}");
    }
}
