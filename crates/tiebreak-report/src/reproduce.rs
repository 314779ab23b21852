//! `tiebreak reproduce`: pilots, runs, lenses, claims, figures. Every part is found again when the same command goes on.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::Serialize;
use tiebreak_data::Lock;
use tiebreak_sweep::{CellsOutcome, LaunchOptions, train_cells};
use tiebreak_train::Error;
use tiebreak_train::device::DeviceSpec;
use tiebreak_train::folder::RunFolder;
use tiebreak_train::track::{TensorBoard, Tracker};

use crate::alignments::Alignments;
use crate::claims::{self, Judge, Judged};
use crate::experiments;
use crate::lens;
use crate::pilot::{self, Pilot};
use crate::plan::{Experiment, FOLDER, Plan, Scale, check_names, stages};
use crate::published::{self, Claim};
use crate::results::{self, Results, Summary};
use crate::runs::Runs;

/// What to reproduce, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// How large the runs are.
    pub scale: Scale,
    /// Names of experiments; none: all.
    pub only: Vec<String>,
    /// Where the runs are trained; `None`: as the experiments' files say.
    pub device: Option<String>,
    /// Folder of everything that is written.
    pub out: PathBuf,
    /// How runs are started.
    pub launch: LaunchOptions,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything chosen is there.
    Complete(String),
    /// Runs failed; the text names them.
    Failures(String),
    /// A signal came; the same command goes on.
    Interrupted,
}

/// Why it cannot go on.
#[derive(Debug)]
pub enum Halt {
    /// An error.
    Error(Error),
    /// Runs failed; the text names them.
    Failures(String),
    /// A signal came.
    Interrupted,
}

impl From<Error> for Halt {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

/// Trains what the chosen experiments need.
///
/// # Errors
/// [`Error::Input`] before anything is trained for names, files or a folder that cannot be used; [`Error::Failed`] where data cannot be
/// had or a file not be written.
pub fn reproduce(options: &Options) -> Result<Ended, Error> {
    match steps(options) {
        Ok(text) => Ok(Ended::Complete(text)),
        Err(Halt::Failures(text)) => Ok(Ended::Failures(text)),
        Err(Halt::Interrupted) => Ok(Ended::Interrupted),
        Err(Halt::Error(e)) => Err(e),
    }
}

/// The experiment that needs lenses.
const LENSES: &str = "2_tuned_lens";

fn steps(options: &Options) -> Result<String, Halt> {
    let out = &options.out;
    let wrong = if RunFolder::is_run(out) {
        Some("is a run's own folder")
    } else if out.exists() && !out.is_dir() {
        Some("is a file")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        return Err(Error::Input(format!("--out {}: {wrong}; choose another --out", out.display())).into());
    }
    check_names(&options.only)?;
    if options.launch.jobs == Some(0) {
        return Err(Error::Input("--jobs 0: expected at least 1".into()).into());
    }
    let here = Path::new(FOLDER);
    if here.is_dir() && !here.join("base.toml").is_file() {
        let what = "has no base.toml, so it is not clear which experiments are meant";
        let way = "run from another folder for those that are compiled in, or give it a base.toml";
        return Err(Error::Input(format!("{FOLDER}/ in the working directory {what}; {way}")).into());
    }
    if let Some(device) = &options.device {
        let spec = device.parse::<DeviceSpec>()?;
        // Runs that are there may be complete, which need no device.
        if out.join("runs").exists() { spec.kind().map(|_| ()) } else { spec.present().map(|_| ()) }?;
    }
    let unusable = |e: &dyn std::fmt::Display| Error::Input(format!("--out {}: {e}", out.display()));
    std::fs::create_dir_all(out).map_err(|e| unusable(&e))?;
    let lock = Lock::try_acquire(&out.join("reproduce.lock")).map_err(|e| unusable(&e))?;
    let _lock = lock.ok_or_else(|| unusable(&"another process reproduces into it"))?;
    let pilot = Pilot::read(out, options.scale)?;
    let plan = Plan::load(options.scale, &options.only, options.device.as_deref(), out)?;
    let claims = published::claims(&plan.published)?;
    claims::check(&claims)?;
    let runs = out.join("runs");
    let pilot = pilot::find(&plan, pilot, out, &options.launch)?;
    let members = plan.members(&pilot, &runs)?;
    let mut failures = String::new();
    for cells in stages(&members).into_iter().filter(|cells| !cells.is_empty()) {
        match train_cells(&cells, &runs, &options.launch)? {
            CellsOutcome::Complete(diverged) => {
                diverged.iter().for_each(|run| tracing::warn!("{}: diverged; its arm lacks this seed", run.display()));
            }
            CellsOutcome::Failures(text) => failures += &text,
            CellsOutcome::Interrupted => return Err(Halt::Interrupted),
        }
    }
    let runs = Runs::find(&plan, &members)?;
    if plan.experiments.iter().any(|e| e.chosen && e.name == LENSES) {
        failures += &lens::train(&runs, options.launch.jobs, &options.launch.stop)?;
    }
    let text = match write(options, &plan, &pilot, &runs, &claims) {
        Err(_) if options.launch.stop.load(Ordering::Relaxed) => return Err(Halt::Interrupted),
        other => other?,
    };
    if failures.is_empty() { Ok(text) } else { Err(Halt::Failures(format!("{text}\n{failures}"))) }
}

/// `claims.json`.
#[derive(Serialize)]
struct ClaimsFile<'a> {
    scale: &'static str,
    claims: &'a [Judged],
}

/// Measures, judges, draws and writes: into OUT, and at full scale also into a project's own experiments folder.
fn write(options: &Options, plan: &Plan, pilot: &Pilot, runs: &Runs, claims: &[Claim]) -> Result<String, Halt> {
    let mut judge = Judge { runs, alignments: Alignments::open(runs, &options.out, &options.launch.stop)? };
    let judged = claims::judge(&mut judge, claims)?;
    let here = Path::new(FOLDER);
    let published = options.scale == Scale::Full && here.join("base.toml").is_file();
    let folders: Vec<PathBuf> =
        std::iter::once(options.out.join(FOLDER)).chain(published.then(|| here.to_path_buf())).collect();
    let mut experiments = Vec::new();
    let mut board = images(&options.out)?;
    // Those that were run earlier too, so that a part of the experiments adds to the results.
    let there = |e: &&Experiment| e.chosen || e.cells().iter().any(|cell| runs.get(&cell.name, cell.seed).is_some());
    for experiment in plan.experiments.iter().filter(there) {
        if options.launch.stop.load(Ordering::Relaxed) {
            return Err(Halt::Interrupted);
        }
        tracing::info!("measuring and drawing {}", experiment.name);
        let figures = experiments::figures(&mut judge, experiment.name)?;
        let summary = Summary {
            experiment: experiment.name.into(),
            scale: options.scale.name(),
            arms: results::arms(&judge, plan, experiment.name)?,
            measures: experiments::findings(&mut judge, experiment.name)?,
        };
        for (name, figure) in &figures {
            board.image(0, &format!("{}/{name}", experiment.name), figure.png())?;
        }
        for folder in folders.iter().map(|folder| folder.join(experiment.name)) {
            results::write_json(&folder.join("result.json"), &summary)?;
            figures.iter().try_for_each(|(name, figure)| figure.write(&folder.join(name)))?;
        }
        experiments.push((summary, figures.into_iter().map(|(name, _)| name).collect()));
    }
    board.sync()?;
    let file = ClaimsFile { scale: options.scale.name(), claims: &judged };
    results::write_json(&options.out.join("claims.json"), &file)?;
    if published {
        results::write_json(&here.join("claims.json"), &file)?;
    }
    let commands = commands(options)?;
    let (experiments, claims) = (&experiments[..], &judged[..]);
    let results = Results { scale: options.scale, commands, claims, experiments, pilot, runs }.to_markdown();
    for folder in &folders {
        results::write_text(&folder.join("RESULTS.md"), results.as_bytes())?;
    }
    let files: Vec<String> = folders.iter().map(|f| f.join("RESULTS.md").display().to_string()).collect();
    Ok(format!("{}\nMeasures, arms and figures: {}\n", results::table(claims), files.join(", ")))
}

/// Every command that added to OUT, oldest first: `commands.json`.
fn commands(options: &Options) -> Result<Vec<String>, Error> {
    let path = options.out.join("commands.json");
    let mut all: Vec<String> = match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(Error::Failed(format!("{}: cannot be read: {e}", path.display()))),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|e| Error::Input(format!("{}: {e}: no list of commands; remove it", path.display())))?,
    };
    let only: String = options.only.iter().map(|name| format!(" --only {name}")).collect();
    let jobs = options.launch.jobs.map(|jobs| format!(" --jobs {jobs}")).unwrap_or_default();
    let device = options.device.as_ref().map(|device| format!(" --device {device}")).unwrap_or_default();
    let scale = options.scale.name();
    let command = format!("tiebreak reproduce --scale {scale}{only}{device}{jobs} --out {}", options.out.display());
    if !all.contains(&command) {
        all.push(command);
        results::write_json(&path, &all)?;
    }
    Ok(all)
}

/// TensorBoard's copy of the figures, made anew: `OUT/figures`.
fn images(out: &Path) -> Result<TensorBoard, Error> {
    let folder = out.join("figures");
    std::fs::create_dir_all(&folder)
        .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", folder.display())))?;
    TensorBoard::open(&folder, None)
}
