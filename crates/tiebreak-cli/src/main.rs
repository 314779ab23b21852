//! The `tiebreak` command: raw TOML to a resolved configuration to one call.

mod devices;
mod generate;
mod inspect;
mod lens;
mod probe;
mod reproduce;
mod show;
mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser, Subcommand};
use lens::LensCommand;
use signal_hook::consts::{SIGINT, SIGTERM};
use terminal::whole;
use tiebreak_report::Ended;
use tiebreak_sweep::{CompareOptions, LaunchOptions, Sweep, SweepOutcome};
use tiebreak_train::config::{self, Loaded};
use tiebreak_train::device::{self, DeviceKind};
use tiebreak_train::probing::{self, Pairs, Probe, ProbeOptions};
use tiebreak_train::track::LogWriter;
use tiebreak_train::{Error, Outcome, TrainOptions};

// Fresh pages dominate element-wise work: mimalloc keeps them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Should the embedding and the output head share one matrix, and what does sharing do?
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    /// Log level on stderr: error, warn, info, debug or trace.
    #[arg(long, global = true, default_value = "info")]
    log: tracing::Level,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Corpora: list them, fetch one, prepare a run's tokens, look into them.
    #[command(subcommand)]
    Data(DataCommand),
    /// Train one run; prints its folder.
    Train {
        /// Run configuration.
        run: PathBuf,
        #[command(flatten)]
        set: Sets,
        #[command(flatten)]
        out: Out,
        /// Go on with an unfinished run of the same configuration.
        #[arg(long)]
        resume: bool,
        /// With --resume: the kind of device that the run began on, where it goes on with another (flex, wgpu, vulkan, ...).
        #[arg(long, value_name = "KIND")]
        begun_on: Option<DeviceKind>,
    },
    /// Train every arm, grid point and seed of a sweep, then compare them. Finished cells are skipped.
    Sweep {
        /// Sweep configuration.
        sweep: PathBuf,
        #[command(flatten)]
        set: Sets,
        #[command(flatten)]
        out: Out,
        /// Cells at a time [default: what suits the cores].
        #[arg(long, allow_negative_numbers = true, value_parser = whole::<usize>)]
        jobs: Option<usize>,
        /// Print the cells and write nothing.
        #[arg(long)]
        dry_run: bool,
        /// Where cells run.
        #[arg(long, default_value = "local")]
        launcher: Launcher,
    },
    /// Compare arms over seeds.
    Compare {
        /// Runs, sweep folders, or folders above.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Arm the others are compared with [default: the sweep's, else tied].
        #[arg(long)]
        baseline: Option<String>,
        /// Tag to compare [default: the sweep's, else eval/ppl].
        #[arg(long)]
        metric: Option<String>,
        /// Allow one arm name with several configurations.
        #[arg(long)]
        allow_mixed: bool,
        #[command(flatten)]
        json: Json,
    },
    /// What every layer knows of the final prediction.
    #[command(subcommand)]
    Lens(LensCommand),
    /// Continue a text.
    Generate(generate::GenerateArgs),
    /// What the kept tables of runs have in common, beside chance: alignment, neighbours, geometry, evolution, norms.
    Probe {
        /// Folders of runs with the same data.
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<PathBuf>,
        /// Some of alignment, learned, knn, geometry, evolution, norm_frequency [default: all].
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Which tables are compared.
        #[arg(long, default_value = "default")]
        pairs: PairsArg,
        /// Step of the tables [default: the last kept one of each run].
        #[arg(long, allow_negative_numbers = true, value_parser = whole::<u64>)]
        step: Option<u64>,
        /// Which rows: ids that occur in the training split, or all.
        #[arg(long, default_value = "seen")]
        rows: RowsArg,
        /// Random pairings behind each null.
        #[arg(long, default_value_t = 20, allow_negative_numbers = true, value_parser = whole::<usize>)]
        permutations: usize,
        /// Seed of the random pairings and folds.
        #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = whole::<u64>)]
        probe_seed: u64,
        #[command(flatten)]
        json: Json,
    },
    /// Check or show a run's or sweep's configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Head mode, parameters, FLOPs and memory of a run or configuration.
    Inspect {
        /// A run's folder or a run configuration.
        target: PathBuf,
        #[command(flatten)]
        set: Sets,
        #[command(flatten)]
        json: Json,
    },
    /// The paper's experiments: their runs, figures and a verdict per claim.
    Reproduce(reproduce::Reproduce),
    /// What this build can compute on.
    Devices {
        /// Compute on one what a run computes, and compare with double precision on the CPU.
        #[arg(long, value_name = "DEVICE")]
        check: Option<String>,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Subcommand)]
enum DataCommand {
    /// The corpora by name.
    List,
    /// Fetch a corpus with its package manager, check it, unpack it into the cache.
    Fetch {
        /// Name from `data list`.
        name: String,
    },
    /// Fetch, split and tokenise what a run needs.
    Prepare {
        /// Run configuration.
        run: PathBuf,
        #[command(flatten)]
        set: Sets,
    },
    /// Documents, tokens, coverage and baselines of a run's data or of a path.
    Inspect {
        /// Run configuration (.toml), text or token folder.
        target: PathBuf,
        #[command(flatten)]
        set: Sets,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say whether a run or sweep file is valid, as strictly as running it would.
    Check {
        /// A run or sweep file.
        file: PathBuf,
        #[command(flatten)]
        set: Sets,
    },
    /// Every key, its value, and where it came from.
    Show {
        /// A run or sweep file.
        file: PathBuf,
        #[command(flatten)]
        set: Sets,
    },
}

#[derive(Args)]
struct Sets {
    /// Set a key; the value is TOML, else a string.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

#[derive(Args)]
struct Out {
    /// Parent folder.
    #[arg(long, default_value = "runs")]
    out: PathBuf,
}

#[derive(Args)]
struct Json {
    /// Print one JSON document and nothing else.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PairsArg {
    /// Input to output of a model, either to the shared table of another, and the same table of two seeds.
    Default,
    /// Every table to every other.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RowsArg {
    Seen,
    All,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Launcher {
    /// Child processes on this machine.
    Local,
}

/// What a command ends with, as far as it did not fail.
enum End {
    Done,
    Failed,
    Interrupted,
}

fn main() -> ExitCode {
    tiebreak_kernels::keep_memory();
    device::without_display();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(cli.log)
        .with_target(false)
        .without_time()
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(LogWriter::default)
        // It would tell of them with eprintln!, which panics where stderr is what failed.
        .log_internal_errors(false)
        .init();
    let asked = tiebreak_kernels::simd::asked().map_err(Error::Input);
    match asked.and_then(|_| device::caught(|| run(cli.command))) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Failed) => ExitCode::from(1),
        Ok(End::Interrupted) => ExitCode::from(130),
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::from(match e {
                Error::Input(_) => 2,
                Error::Failed(_) => 1,
            })
        }
    }
}

fn run(command: Command) -> Result<End, Error> {
    match command {
        Command::Data(command) => data(command)?,
        Command::Train { run, set, out, resume, begun_on } => {
            return train(&run, &set.sets, &out.out, resume, begun_on);
        }
        Command::Sweep { sweep, set, out, jobs, dry_run, launcher: Launcher::Local } => {
            let sweep = Sweep::load(&sweep, &set.sets)?;
            if dry_run {
                return print(&sweep.dry_run(&out.out, jobs)?).map(|()| End::Done);
            }
            return match sweep.run(&out.out, launch(jobs)?)? {
                SweepOutcome::Complete(text) => print(&text).map(|()| End::Done),
                SweepOutcome::Failures(text) => print(&text).map(|()| End::Failed),
                SweepOutcome::Interrupted => Ok(End::Interrupted),
            };
        }
        Command::Compare { dirs, baseline, metric, allow_mixed, json } => {
            let comparison = tiebreak_sweep::compare(&CompareOptions { dirs, baseline, metric, allow_mixed })?;
            print_either(json.json, &comparison, || comparison.to_text())?;
        }
        Command::Lens(LensCommand::Show(args)) => lens::show(&args)?,
        Command::Generate(args) => generate::generate(&args)?,
        Command::Probe { runs, only, pairs, step, rows, permutations, probe_seed, json } => {
            let probes = match &only[..] {
                [] => Probe::ALL.to_vec(),
                some => some.iter().map(|word| word.parse()).collect::<Result<_, Error>>()?,
            };
            let pairs = match pairs {
                PairsArg::Default => Pairs::Default,
                PairsArg::All => Pairs::All,
            };
            let all_ids = rows == RowsArg::All;
            let options = ProbeOptions { probes, pairs, step, all_ids, permutations, seed: probe_seed };
            let report = probing::probe(&runs, &options)?;
            print_either(json.json, &report, || probe::text(&report))?;
            // A folder that cannot be written to does not keep the result from its reader.
            report.save(&options.probes)?;
        }
        Command::Config(ConfigCommand::Check { file, set }) => {
            show::check(&file, &set.sets)?;
            print(&format!("{}: valid", file.display()))?;
        }
        Command::Config(ConfigCommand::Show { file, set }) => print(&show::show(&file, &set.sets)?)?,
        Command::Inspect { target, set, json } => {
            let report = inspect::inspect(&target, &set.sets)?;
            print_either(json.json, &report, || report.to_text())?;
        }
        Command::Reproduce(command) => {
            return match command.run(launch(None)?)? {
                Ended::Complete(text) => print(&text).map(|()| End::Done),
                Ended::Failures(text) => print(&text).map(|()| End::Failed),
                Ended::Interrupted => Ok(End::Interrupted),
            };
        }
        Command::Lens(LensCommand::Train { run, step, corpus, recipe, train_tokens, eval_tokens, json }) => {
            let choice = lens::Choice { step, corpus, recipe, train_tokens, eval_tokens };
            let tell = |report: &tiebreak_train::lens::LensReport| print_either(json.json, report, || report.to_text());
            if !lens::train(&run, &choice, &tell, &*stop_on_signals()?)? {
                return Ok(End::Interrupted);
            }
        }
        Command::Devices { check: None, json } => {
            let listed = device::list();
            print_either(json.json, &listed, || devices::text(&listed))?;
        }
        Command::Devices { check: Some(name), json } => {
            let report = devices::check(&name)?;
            print_either(json.json, &report, || report.to_text())?;
            return Ok(if report.passed { End::Done } else { End::Failed });
        }
    }
    Ok(End::Done)
}

fn launch(jobs: Option<usize>) -> Result<LaunchOptions, Error> {
    let program =
        std::env::current_exe().map_err(|e| Error::Failed(format!("the path of this program cannot be found: {e}")))?;
    Ok(LaunchOptions { jobs, stop: stop_on_signals()?, program })
}

fn train(path: &Path, sets: &[String], out: &Path, resume: bool, begun_on: Option<DeviceKind>) -> Result<End, Error> {
    let Loaded { config, .. } = show::runnable(path, sets)?;
    let told = std::sync::Mutex::new(Ok(()));
    let announce = |folder: &Path| {
        *told.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = print(&folder.display().to_string());
    };
    let options = TrainOptions { out, resume, begun_on, stop: stop_on_signals()?, announce: &announce };
    let outcome = tiebreak_train::train(&config, &options)?;
    // A run is worth finishing though nobody hears of its folder.
    told.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)?;
    match outcome {
        Outcome::Complete => Ok(End::Done),
        Outcome::AlreadyComplete => {
            tracing::info!("already complete");
            Ok(End::Done)
        }
        Outcome::Interrupted => Ok(End::Interrupted),
        Outcome::Diverged(reason) => {
            tracing::error!("diverged: {reason}");
            Ok(End::Failed)
        }
    }
}

fn data(command: DataCommand) -> Result<(), Error> {
    match command {
        DataCommand::List => print(&show::corpora()?),
        DataCommand::Fetch { name } => print(&show::fetched(&tiebreak_data::fetch(&name)?)),
        DataCommand::Prepare { run, set } => {
            let Loaded { config, .. } = config::load(&run, &set.sets)?;
            let prepared = tiebreak_data::prepare(&config.data)?;
            print(&show::prepared(&prepared.info))
        }
        DataCommand::Inspect { target, set, json } => {
            if target.extension().is_some_and(|e| e == "toml") {
                let Loaded { config, .. } = config::load(&target, &set.sets)?;
                let report = tiebreak_data::inspect(&config.data)?;
                print_either(json.json, &report, || show::data(&report))
            } else {
                let report = tiebreak_data::inspect_path(&target)?;
                print_either(json.json, &report, || show::path(&report))
            }
        }
    }
}

/// Set when SIGINT, SIGTERM or SIGHUP arrives, whereupon a run ends after its step, with a checkpoint, and a lens with none. A second SIGINT, from
/// somebody who will not wait, ends the process at once, which leaves the last complete checkpoint; the others may come
/// twice (a sweep that dies sends one per thread).
fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let failed = |e: std::io::Error| Error::Failed(format!("signals cannot be caught: {e}"));
    // In this order: the first SIGINT finds the flag unset and sets it, the second finds it set.
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&stop)).map_err(failed)?;
    for signal in [
        SIGINT,
        SIGTERM,
        #[cfg(unix)]
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    Ok(stop)
}

fn print_either<T: serde::Serialize>(json: bool, value: &T, text: impl Fn() -> String) -> Result<(), Error> {
    if json {
        let json = serde_json::to_string_pretty(value).map_err(|e| Error::Failed(format!("JSON: {e}")))?;
        print(&json)
    } else {
        print(&text())
    }
}

/// Writes to stdout; a reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::Failed(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}
