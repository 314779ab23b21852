//! The local launcher: cells as child processes of the same binary, several at a time.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tiebreak_data::{FORCED_FALLBACK, write_atomic};
use tiebreak_train::Error;
use tiebreak_train::config::RunConfig;
use tiebreak_train::device::DeviceSpec;
use tiebreak_train::folder::RunState;

use crate::plan::Planned;
use crate::progress::{Progress, minutes};

const POLL: Duration = Duration::from_millis(100);

/// How a sweep runs.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Cells at a time; `None`: [`default_split`].
    pub jobs: Option<usize>,
    /// Set from outside to stop: cells write checkpoints, then the sweep ends.
    pub stop: Arc<AtomicBool>,
    /// The `tiebreak` binary.
    pub program: PathBuf,
}

/// Cells at a time and threads for each, for `cells` that are left and `cores`: as many cells as there are cores, then as many
/// threads for each as remain.
pub fn default_split(cells: usize, cores: usize) -> (usize, usize) {
    let jobs = cells.min(cores).max(1);
    (jobs, (cores / jobs).max(1))
}

/// Cells at a time and threads for each, as asked for where something was asked: by `--jobs`, or by `threads` in the base.
pub(crate) fn split(jobs: Option<usize>, threads: usize, cells: usize, cores: usize) -> (usize, usize) {
    match (jobs, threads) {
        (None, 0) => default_split(cells, cores),
        (None, threads) => ((cores / threads).clamp(1, cells.max(1)), threads),
        (Some(jobs), 0) => (jobs, (cores / jobs.min(cells).max(1)).max(1)),
        (Some(jobs), threads) => (jobs, threads),
    }
}

/// A cell that did not complete.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub name: String,
    pub seed: u64,
    pub state: String,
    pub step: Option<u64>,
    pub reason: String,
    pub log: Option<PathBuf>,
}

/// Runs every cell of `plan` that is not done; returns the failures.
///
/// A cell's own trouble never ends the others, so that nothing here returns an error once the first cell runs.
pub(crate) fn launch(
    plan: &[Planned],
    sweep_folder: &Path,
    split: (usize, usize),
    options: &LaunchOptions,
) -> Result<Vec<Failure>, Error> {
    let mut failures = Vec::new();
    let mut pending: Vec<Task> = Vec::new();
    let mut done = 0;
    for planned in plan {
        match planned.status()? {
            Some(status) if status.state == RunState::Complete => done += 1,
            Some(status) if status.state == RunState::Diverged => failures.push(Failure {
                name: planned.cell.name.clone(),
                seed: planned.cell.seed,
                state: "diverged".into(),
                step: Some(status.step),
                reason: format!("earlier, not tried again: {}", status.reason.unwrap_or_default()),
                log: None,
            }),
            status => pending.push(Task::new(planned, sweep_folder, split.1, status.map_or(0, |s| s.step))?),
        }
    }
    // One seed after the other, so that what is there after an early end can be paired.
    pending.sort_by_key(|task| plan.iter().position(|p| p.cell.seed == task.planned.cell.seed));
    let mut progress = Progress::new(plan.len(), done, failures.len(), pending.iter().map(|t| t.work(t.step)).sum());
    progress.line(&match pending.len() {
        0 => format!("{} cells: nothing left to run", plan.len()),
        left => format!(
            "{} cells: {done} complete, {left} to run, {} at a time with {} threads each; logs in {}",
            plan.len(),
            split.0.min(left),
            split.1,
            sweep_folder.join("cells").display()
        ),
    });

    let mut running: Vec<Running> = Vec::new();
    let mut told = false;
    loop {
        let stop = options.stop.load(Ordering::Relaxed);
        if stop && !told {
            told = true;
            running.iter().for_each(|r| terminate(&r.child));
            progress.line(&format!("stopping: {} cells write their checkpoints", running.len()));
        }
        let mut index = 0;
        while index < running.len() {
            let ended = match running[index].child.try_wait() {
                Ok(None) => {
                    index += 1;
                    continue;
                }
                Ok(Some(status)) => Ok(status),
                Err(e) => Err(e),
            };
            let cell = running.swap_remove(index);
            let took = minutes(cell.started.elapsed());
            progress.worked(cell.task.work(cell.task.step));
            match outcome(&cell.task, ended, stop) {
                End::Complete => {
                    progress.done += 1;
                    progress.line(&format!("{} complete after {took}", cell.task.label()));
                }
                End::Stopped => progress.line(&format!("{} interrupted after {took}", cell.task.label())),
                End::Failed(failure) => {
                    progress.failed += 1;
                    progress.line(&format!(
                        "{} {} after {took}: {}",
                        cell.task.label(),
                        failure.state,
                        brief(&failure.reason)
                    ));
                    failures.push(failure);
                }
            }
        }
        while !stop && running.len() < split.0 {
            // A cell that another process still writes (one that outlived an earlier sweep) waits at the end of the queue.
            let Some(next) = pending.iter().position(|task| !task.is_written_elsewhere()) else { break };
            let task = pending.remove(next);
            match task.spawn(options, sweep_folder, split.1) {
                Ok(child) => {
                    progress.line(&format!("{} started", task.label()));
                    running.push(Running { task, child, started: Instant::now() });
                }
                Err(e) => {
                    progress.failed += 1;
                    progress.line(&format!("{} cannot be started: {e}", task.label()));
                    failures.push(task.failure("failed", None, e.to_string()));
                }
            }
        }
        if running.is_empty() && (stop || pending.is_empty()) {
            return Ok(failures);
        }
        let steps =
            running.iter().map(|r| (r.task.label(), r.task.step_now(), r.task.planned.cell.loaded.config.train.steps));
        progress.tick(
            || steps.collect(),
            || running.iter().map(|r| r.task.work(r.task.step) - r.task.work(r.task.step_now())).sum(),
        );
        std::thread::sleep(POLL);
    }
}

/// A cell that is to be run.
struct Task<'a> {
    planned: &'a Planned<'a>,
    config: PathBuf,
    log: PathBuf,
    /// Where it starts from.
    step: u64,
}

struct Running<'a> {
    task: Task<'a>,
    child: Child,
    started: Instant,
}

enum End {
    Complete,
    Stopped,
    Failed(Failure),
}

impl<'a> Task<'a> {
    /// Writes the cell's configuration.
    fn new(planned: &'a Planned<'a>, sweep_folder: &Path, threads: usize, step: u64) -> Result<Self, Error> {
        let file = |extension: &str| sweep_folder.join("cells").join(format!("{}.{extension}", planned.folder_name()));
        let (path, cell) = (file("toml"), &planned.cell.loaded.config);
        let threads = if cell.threads > 0 { cell.threads } else { threads };
        // What "auto" is here, the cell must not decide for itself: its folder follows from it.
        let config = RunConfig { threads, device: cell.device.parse::<DeviceSpec>()?.name()?, ..cell.clone() };
        let text = toml::to_string(&config).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
        write_atomic(&path, text.as_bytes())?;
        Ok(Self { planned, config: path, log: file("log"), step })
    }

    fn spawn(&self, options: &LaunchOptions, sweep_folder: &Path, threads: usize) -> std::io::Result<Child> {
        let mut command = Command::new(&options.program);
        command.arg("train").arg(&self.config).arg("--out").arg(sweep_folder).arg("--resume");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&self.log)?);
        // Preparing data uses the global pool; cells share the cores.
        command.env("RAYON_NUM_THREADS", threads.to_string());
        if let Some(reason) = &self.planned.info.fallback_reason {
            command.env(FORCED_FALLBACK, reason.replace('\0', " "));
        }
        apart(&mut command);
        command.spawn()
    }

    fn label(&self) -> String {
        format!("{} s{}", self.planned.cell.name, self.planned.cell.seed)
    }

    fn is_written_elsewhere(&self) -> bool {
        matches!(self.planned.folder.status(), Ok(Some(status)) if status.state == RunState::Running)
    }

    /// The step that the run's log has reached; a log that is not cut back yet may be ahead of where it resumes.
    fn step_now(&self) -> u64 {
        last_step(&self.planned.folder.metrics())
            .unwrap_or(0)
            .clamp(self.step, self.planned.cell.loaded.config.train.steps)
    }

    /// FLOPs from `step` to the end.
    fn work(&self, step: u64) -> f64 {
        let config = &self.planned.cell.loaded.config;
        let (vocabulary, context) = (self.planned.info.vocabulary, config.data.context_length);
        let tokens = config.train.batch_size * context;
        let per_token = config.model.flops_per_token(&config.head, vocabulary, context, tokens) as f64;
        config.train.steps.saturating_sub(step) as f64 * tokens as f64 * per_token
    }

    fn failure(&self, state: &str, step: Option<u64>, reason: String) -> Failure {
        let (name, seed) = (self.planned.cell.name.clone(), self.planned.cell.seed);
        Failure { name, seed, state: state.into(), step, reason, log: Some(self.log.clone()) }
    }
}

/// What a cell's end means. Its exit code says which account to believe: the run's status, or, where it did not get so far, the log.
fn outcome(task: &Task, ended: std::io::Result<ExitStatus>, stop: bool) -> End {
    let exit = match ended {
        Ok(exit) => exit,
        Err(e) => return End::Failed(task.failure("failed", None, format!("cannot be waited for: {e}"))),
    };
    let status = match task.planned.status() {
        Ok(status) => status,
        Err(e) => return End::Failed(task.failure("failed", None, e.to_string())),
    };
    let step = status.as_ref().map(|s| s.step);
    let said = || last_line(&task.log).unwrap_or_else(|| format!("no message; {exit}"));
    match (exit.code(), status) {
        (Some(0), Some(status)) if status.state == RunState::Complete => End::Complete,
        (Some(0), _) => {
            let reason =
                format!("it ended well but not in {}: its data changed meanwhile", task.planned.folder.0.display());
            End::Failed(task.failure("failed", step, reason))
        }
        (Some(130) | None, _) if stop => End::Stopped,
        (Some(130), _) => End::Failed(task.failure("interrupted", step, "a signal was sent to the cell".into())),
        (Some(1), Some(status)) if matches!(status.state, RunState::Diverged | RunState::Failed) => {
            let state = if status.state == RunState::Diverged { "diverged" } else { "failed" };
            End::Failed(task.failure(state, step, status.reason.unwrap_or_else(said)))
        }
        (Some(_), _) => End::Failed(task.failure("failed", step, said())),
        (None, _) => End::Failed(task.failure("killed", step, exit.to_string())),
    }
}

/// The last line of a log that says something, without `error: ` before it.
fn last_line(path: &Path) -> Option<String> {
    let text = tail(path, 8192)?;
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.strip_prefix("error: ").unwrap_or(line).into())
}

/// The step of the last whole line of a `metrics.jsonl`.
fn last_step(path: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    let text = tail(path, 1024)?;
    text.lines().rev().find_map(|line| Some(serde_json::from_str::<Line>(line).ok()?.step))
}

fn tail(path: &Path, bytes: u64) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes))).ok()?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A group of its own keeps a terminal's Ctrl-C from a cell, which would otherwise get it twice; and a sweep that dies takes its
/// cells along where the system can do that.
#[cfg(unix)]
fn apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let ask = || match prctl_term_with_parent() {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed, and prctl is the only one made.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(ask);
        }
    }
}

#[cfg(target_os = "linux")]
fn prctl_term_with_parent() -> libc::c_int {
    // SAFETY: takes two integers and touches no memory of ours.
    #[allow(unsafe_code)]
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong)
    }
}

#[cfg(not(unix))]
fn apart(_command: &mut Command) {}

/// Asks a cell to write a checkpoint and end.
fn terminate(child: &Child) {
    #[cfg(unix)]
    if let Ok(pid) = libc::pid_t::try_from(child.id()) {
        // SAFETY: a number of a child that was not waited for yet, so that it cannot name another process.
        #[allow(unsafe_code)]
        unsafe {
            libc::kill(pid, libc::SIGTERM);
        }
    }
    // Elsewhere there is no gentle way: the cell goes on from its last checkpoint.
    #[cfg(not(unix))]
    let _ = child;
}

/// A reason in one line of a table; all of it stands in the cell's log and status.json.
fn brief(reason: &str) -> String {
    const MOST: usize = 160;
    let line = reason.replace('\n', " ");
    if line.chars().count() <= MOST { line } else { format!("{} ...", line.chars().take(MOST).collect::<String>()) }
}

/// Failures as a table.
pub(crate) fn failure_table(failures: &[Failure]) -> String {
    let mut table = crate::table::plain_table(["cell", "seed", "state", "step", "reason"].map(String::from).to_vec());
    for failure in failures {
        let step = failure.step.map_or("-".into(), |step| step.to_string());
        let log = failure.log.as_ref().map(|log| format!(" (log: {})", log.display())).unwrap_or_default();
        table.add_row([
            failure.name.clone(),
            failure.seed.to_string(),
            failure.state.clone(),
            step,
            format!("{}{log}", brief(&failure.reason)),
        ]);
    }
    format!("{} of the sweep's cells did not complete:\n{table}\n", failures.len())
}

/// Whether someone watches.
pub(crate) fn watched() -> bool {
    std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_first_then_threads() {
        assert_eq!(default_split(6, 2), (2, 1));
        assert_eq!(default_split(3, 16), (3, 5));
        assert_eq!(default_split(1, 2), (1, 2));
        assert_eq!(default_split(0, 4), (1, 4));
        assert_eq!(split(Some(2), 0, 6, 8), (2, 4));
        assert_eq!(split(Some(4), 0, 1, 8), (4, 8));
        assert_eq!(split(None, 3, 6, 8), (2, 3));
        assert_eq!(split(None, 16, 6, 8), (1, 16));
        assert_eq!(split(Some(3), 1, 6, 8), (3, 1));
    }

    #[test]
    fn ends_of_logs() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        std::fs::write(&log, "step 1\nerror: the disk is full\n\n").unwrap();
        assert_eq!(last_line(&log).as_deref(), Some("the disk is full"));
        assert_eq!(last_line(&dir.path().join("none")), None);
        let metrics = dir.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"step\":{step},\"tag\":\"train/loss\",\"value\":1.0}}\n");
        let text: String = (0..100).map(line).collect();
        std::fs::write(&metrics, text + "{\"step\":100,\"ta").unwrap();
        assert_eq!(last_step(&metrics), Some(99));
    }
}
