//! One run from its first step to its last, or to whatever ends it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tiebreak_data::{
    Error, Prepared, Sampler, Shard, evaluation_windows, frequencies, loss_deciles, prepare, window_count, write_atomic,
};
use tiebreak_model::{Model, Placement};

use crate::config::{RunConfig, identity, run_folder_name};
use crate::device::{self, DeviceKind, DeviceSpec};
use crate::evaluate::{TargetInfo, evaluate};
use crate::folder::{RunFolder, RunState, Status};
use crate::optim::AdamW;
use crate::step::{MicroBatch, gradients, update};
use crate::track::{HParam, Lengths, Progress, Tag, Trackers};
use crate::{checkpoint, tensors};

/// How a run ended without an error of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Complete,
    /// They were done before.
    AlreadyComplete,
    /// A signal came; a checkpoint was written.
    Interrupted,
    /// Loss or gradients became no finite numbers; the reason names them.
    Diverged(String),
}

/// What a run needs beside its configuration.
pub struct TrainOptions<'a> {
    /// Parent of the run's folder.
    pub out: &'a Path,
    /// Go on with an unfinished run.
    pub resume: bool,
    /// Set from outside to stop after the current step.
    pub stop: Arc<AtomicBool>,
    /// Told the run's folder once it is locked.
    pub announce: &'a (dyn Fn(&Path) + Sync),
}

/// `env.json`, as far as it is read back.
#[derive(Deserialize, Serialize)]
struct Recorded {
    threads: usize,
}

/// Trains, or goes on training, one run.
pub fn train(config: &RunConfig, options: &TrainOptions) -> Result<Outcome, Error> {
    let kind = config.device.parse::<DeviceSpec>()?.kind()?;
    let out = options.out.display();
    if RunFolder::is_run(options.out) {
        return Err(Error::Input(format!(
            "--out {out}: this is a run's own folder; choose its parent or another folder"
        )));
    }
    if options.out.exists() && !options.out.is_dir() {
        return Err(Error::Input(format!("--out {out}: this is a file; choose a folder")));
    }
    let data = prepare(&config.data)?;
    let identity = identity(config, &data.info, kind);
    let folder = RunFolder(options.out.join(run_folder_name(config, &identity)));
    // A complete run needs no lock, and asking must work on a folder that is read-only by now.
    if let Some(status) = check_owner(&folder, &identity)? {
        if status.state == RunState::Complete {
            (options.announce)(&folder.0);
            return Ok(Outcome::AlreadyComplete);
        }
        if status.state == RunState::Running {
            return Err(being_written(&folder));
        }
        if !options.resume {
            return Err(Error::Input(format!(
                "{}: an unfinished run of this configuration ({}, step {}); go on with --resume or choose another --out",
                folder.0.display(),
                state_name(status.state),
                status.step
            )));
        }
    }
    std::fs::create_dir_all(&folder.0)
        .map_err(|e| Error::Input(format!("--out {out}: cannot make the folder {}: {e}", folder.0.display())))?;
    let _lock = folder.lock()?.ok_or_else(|| being_written(&folder))?;
    // Another process may have finished between the look above and the lock.
    let before = check_owner(&folder, &identity)?;
    if before.as_ref().is_some_and(|s| s.state == RunState::Complete) {
        (options.announce)(&folder.0);
        return Ok(Outcome::AlreadyComplete);
    }
    let device = device::open(kind)?;
    let threads = threads(config, &folder);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::Failed(format!("threads = {threads}: cannot start them: {e}")))?;
    (options.announce)(&folder.0);
    let run = Run { config, data: &data, identity: &identity, folder: &folder, device, kind, threads };
    let mut step = before.map_or(0, |s| s.step);
    let ended = pool.install(|| run.go(options, &mut step));
    let (state, reason) = match &ended {
        // Found before anything was written, so that the run stands where it stood.
        Err(Error::Input(_)) => return ended,
        Ok(Outcome::Complete | Outcome::AlreadyComplete) => (RunState::Complete, None),
        Ok(Outcome::Interrupted) => (RunState::Interrupted, Some("stopped by a signal".to_owned())),
        Ok(Outcome::Diverged(reason)) => (RunState::Diverged, Some(reason.clone())),
        Err(e) => (RunState::Failed, Some(e.to_string())),
    };
    let status = folder.set_status(&Status { state, step, reason, identity: identity.clone() });
    // The first error is the one to tell; a status that cannot be written is often the same full disk.
    ended.and_then(|outcome| status.map(|()| outcome))
}

fn state_name(state: RunState) -> String {
    format!("{state:?}").to_lowercase()
}

/// The folder's status, refused if the folder belongs to something else.
fn check_owner(folder: &RunFolder, identity: &str) -> Result<Option<Status>, Error> {
    let status = folder.status()?;
    let foreign = |what: &str| {
        Err(Error::Input(format!("{}: {what}; choose another --out or remove the folder", folder.0.display())))
    };
    match &status {
        Some(status) if status.identity != identity => foreign("the folder holds another run"),
        Some(_) => Ok(status),
        None => match folder.foreign_file() {
            Some(name) => foreign(&format!("the folder is no run of tiebreak (it holds {name})")),
            None => Ok(None),
        },
    }
}

fn being_written(folder: &RunFolder) -> Error {
    Error::Input(format!("{}: another process is writing this run", folder.0.display()))
}

/// The thread count: as recorded by the run that is resumed, else as configured, else all cores.
fn threads(config: &RunConfig, folder: &RunFolder) -> usize {
    let recorded = std::fs::read(folder.env()).ok().and_then(|b| serde_json::from_slice::<Recorded>(&b).ok());
    match recorded {
        Some(recorded) if recorded.threads > 0 => recorded.threads,
        _ if config.threads > 0 => config.threads,
        _ => std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

struct Run<'a> {
    config: &'a RunConfig,
    data: &'a Prepared,
    identity: &'a str,
    folder: &'a RunFolder,
    device: Device,
    kind: DeviceKind,
    threads: usize,
}

impl Run<'_> {
    fn go(&self, options: &TrainOptions, step: &mut u64) -> Result<Outcome, Error> {
        let (config, steps) = (self.config, self.config.train.steps);
        let mut model = self.init();
        let mut optimiser = AdamW::new(config.optim.betas, config.optim.eps);
        let logs = self.restore(&mut model, &mut optimiser, step)?;
        self.write_records(*step, logs.is_some())?;
        // Before any other file: a folder that holds logs but no status is taken for somebody else's.
        self.set_running(*step)?;
        // Nothing is in memory that this checkpoint lacks; at step 0 there is nothing to keep.
        let mut saved = *step;
        let mut trackers = Trackers::open(&self.folder.0, logs)?;
        trackers.session_start(&self.hparams()?, &config.name)?;

        let context = config.data.context_length;
        let windows = window_count(self.data.train.len(), context);
        let mut sampler = Sampler::new(config.seed, windows);
        let counts = frequencies(&self.data.train);
        let vocabulary = self.data.tokenizer.vocabulary();
        let info = TargetInfo {
            bytes: (0..vocabulary).map(|id| self.data.tokenizer.token_bytes(id as u32).len() as u32).collect(),
            deciles: loss_deciles(&counts),
        };
        let mut progress = Progress::new(&format!("{} s{}", config.name, config.seed), steps, *step);
        if *step == 0 {
            self.evaluate(&model, &info, 0, &mut trackers, &mut progress)?;
            self.keep_table(&model, 0)?;
        }
        while *step < steps {
            if options.stop.load(Ordering::Relaxed) {
                if saved != *step {
                    self.checkpoint(&model, &optimiser, *step, &mut trackers)?;
                }
                progress.finish(&format!("{} s{}: interrupted at step {step}", config.name, config.seed));
                return Ok(Outcome::Interrupted);
            }
            let started = Instant::now();
            let windows_of_step = sampler.batch(*step, config.train.batch_size);
            let batches: Vec<MicroBatch> = windows_of_step
                .chunks(config.train.micro_batch_size)
                .map(|w| read(&self.data.train, w, context))
                .collect();
            let next = *step + 1;
            let due = |every: u64| every > 0 && (next.is_multiple_of(every) || next == 1 || next == steps);
            let gradients = gradients(&model, &batches, config.intervene.paper_output_scale);
            let loss = gradients.loss;
            let histograms =
                due(config.log.histograms_every).then(|| (gradients.input_vd.clone(), gradients.output_vd.clone()));
            let done = update(&mut model, &mut optimiser, gradients, config, next, due(config.log.provenance_every));
            let tokens = (config.train.batch_size * context) as f64;
            let speed = tokens / started.elapsed().as_secs_f64();

            let mut tags: Vec<(Tag, f64)> = Vec::with_capacity(24);
            if due(config.log.every) || !done.nonfinite.is_empty() {
                tags.extend([
                    ("train/loss".into(), loss),
                    ("train/lr".into(), done.lr),
                    ("train/epoch".into(), next as f64 * config.train.batch_size as f64 / windows as f64),
                    ("train/tokens_per_second".into(), speed),
                    ("train/grad_norm".into(), done.norm),
                    ("train/clip_factor".into(), done.clip_factor),
                    ("train/nonfinite".into(), done.nonfinite.len() as f64),
                ]);
            }
            if let Some(provenance) = &done.provenance {
                tags.extend(provenance.scalars());
            }
            trackers.scalars(next, &tags)?;
            if !done.nonfinite.is_empty() {
                let reason = format!("not a finite number at step {next}: {}", done.nonfinite.join(", "));
                trackers.session_end(false)?;
                trackers.sync()?;
                progress.finish(&format!("{}: diverged, {reason}", config.name));
                return Ok(Outcome::Diverged(reason));
            }
            if let Some((input_vd, output_vd)) = histograms {
                self.histograms(&model, [&input_vd, &output_vd], next, &mut trackers)?;
            }
            *step = next;
            progress.step(next, loss, speed);
            let at = |every: u64| every > 0 && next.is_multiple_of(every) || next == steps;
            if at(config.eval.every) {
                self.evaluate(&model, &info, next, &mut trackers, &mut progress)?;
            }
            if config.log.tables_at.contains(&next) || next == steps {
                self.keep_table(&model, next)?;
            }
            if at(config.checkpoint.every) {
                self.checkpoint(&model, &optimiser, next, &mut trackers)?;
                saved = next;
                self.set_running(next)?;
            }
        }
        trackers.session_end(true)?;
        trackers.sync()?;
        progress.finish(&format!("{} s{}: complete, {steps} steps", config.name, config.seed));
        Ok(Outcome::Complete)
    }

    fn init(&self) -> Model {
        let (config, at) = (self.config, Placement::f32(&self.device));
        let vocabulary = self.data.tokenizer.vocabulary();
        Model::init(&config.model, &config.head, vocabulary, config.data.context_length, config.seed, &at)
    }

    /// Loads the newest checkpoint, if there is one; gives the lengths to which the logs are cut.
    fn restore(&self, model: &mut Model, optimiser: &mut AdamW, step: &mut u64) -> Result<Option<Lengths>, Error> {
        let folder = self.folder.checkpoints();
        let Some(newest) = checkpoint::list(&folder)?.pop() else {
            *step = 0;
            self.folder.clean()?;
            return Ok(None);
        };
        let state = checkpoint::load(&folder, newest, self.identity, model, optimiser, &self.device)
            .map_err(|e| Error::Input(e.to_string()))?;
        *step = state.step;
        self.folder.clean()?;
        tracing::info!(step = state.step, "resumed from a checkpoint");
        Ok(Some(state.logs))
    }

    fn checkpoint(&self, model: &Model, optimiser: &AdamW, step: u64, trackers: &mut Trackers) -> Result<(), Error> {
        let state = checkpoint::State { step, identity: self.identity.to_owned(), logs: trackers.sync()? };
        checkpoint::save(&self.folder.checkpoints(), model, optimiser, &state, self.config.checkpoint.keep)
    }

    fn set_running(&self, step: u64) -> Result<(), Error> {
        let identity = self.identity.to_owned();
        self.folder.set_status(&Status { state: RunState::Running, step, reason: None, identity })
    }

    fn evaluate(
        &self,
        model: &Model,
        info: &TargetInfo,
        step: u64,
        trackers: &mut Trackers,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let (shard, context) = (&self.data.validation, self.config.data.context_length);
        let windows = evaluation_windows(shard.len(), context, self.config.eval.tokens);
        let batches = windows.chunks(self.config.train.micro_batch_size).map(|w| read(shard, w, context));
        let score = evaluate(model, batches, info);
        trackers.scalars(step, &score.scalars())?;
        progress.message(&format!(
            "{} s{}: step {step}, validation loss {:.4} nats per token, perplexity {:.2}",
            self.config.name,
            self.config.seed,
            score.loss(),
            score.perplexity()
        ));
        Ok(())
    }

    /// Keeps E, and U where it is another matrix, for good.
    fn keep_table(&self, model: &Model, step: u64) -> Result<(), Error> {
        let pair = model.interface.pair();
        let shared = model.interface.kind() == tiebreak_model::interface::ModeKind::Tied;
        let output = (!shared).then_some(("output", &pair.output_vd));
        let tables = std::iter::once(("input", &pair.input_vd)).chain(output);
        let bytes = tensors::to_bytes(tables, ("step", step.to_string()))?;
        let path = self.folder.table(step);
        let folder = path.parent().unwrap_or(&self.folder.0);
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", folder.display())))?;
        write_atomic(&path, &bytes)
    }

    /// Distributions over rows, of the tables and of their gradients in this step.
    fn histograms(
        &self,
        model: &Model,
        gradients: [&burn::tensor::Tensor<2>; 2],
        step: u64,
        trackers: &mut Trackers,
    ) -> Result<(), Error> {
        let pair = model.interface.pair();
        let all = [
            ("embedding/input_row_norm", &pair.input_vd),
            ("embedding/output_row_norm", &pair.output_vd),
            ("grad/input_row_norm", gradients[0]),
            ("grad/output_row_norm", gradients[1]),
        ];
        for (tag, table_vd) in all {
            let rows: Vec<f64> = crate::step::host(&table_vd.clone().mul(table_vd.clone()).sum_dim(1));
            trackers.histogram(step, tag, &rows.into_iter().map(f64::sqrt).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn write_records(&self, step: u64, resumed: bool) -> Result<(), Error> {
        let text = toml::to_string(self.config).map_err(|e| Error::Failed(format!("config.toml: {e}")))?;
        write_atomic(&self.folder.config(), text.as_bytes())?;
        let env = json!({
            "tiebreak": env!("CARGO_PKG_VERSION"),
            "burn": "0.22.1",
            "identity": self.identity,
            "device": self.kind.name(),
            "threads": self.threads,
            "cpu": cpu_name(),
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "command": std::env::args().collect::<Vec<_>>(),
            "started_from_step": step,
            "resumed": resumed,
            "parameters": self.config.model.count(
                self.config.head.mode, self.data.tokenizer.vocabulary(), self.config.data.context_length),
            "data": self.data.info,
        });
        let bytes = serde_json::to_vec_pretty(&env).map_err(|e| Error::Failed(format!("env.json: {e}")))?;
        write_atomic(&self.folder.env(), &bytes)
    }

    /// The configuration as TensorBoard's hyperparameters: dotted keys without name and seed, which name arm and session.
    fn hparams(&self) -> Result<std::collections::BTreeMap<String, HParam>, Error> {
        Ok(hparams(self.config))
    }
}

/// The keys of a configuration that TensorBoard shows as hyperparameters.
pub(crate) fn hparams(config: &RunConfig) -> std::collections::BTreeMap<String, HParam> {
    let flat = match toml::Value::try_from(config) {
        Ok(toml::Value::Table(table)) => crate::config::flatten(&table),
        _ => Default::default(),
    };
    let keep = |key: &str| !matches!(key, "name" | "seed" | "threads") && !key.starts_with("checkpoint.");
    flat.into_iter()
        .filter(|(key, _)| keep(key))
        .map(|(key, value)| {
            let value = match value {
                toml::Value::Integer(i) => HParam::Number(i as f64),
                toml::Value::Float(x) => HParam::Number(x),
                toml::Value::Boolean(b) => HParam::Bool(b),
                toml::Value::String(s) => HParam::Text(s),
                other => HParam::Text(other.to_string()),
            };
            (key, value)
        })
        .collect()
}

/// Windows of a shard as one micro-batch: inputs, and targets one token on.
pub fn read(shard: &Shard, windows: &[usize], context: usize) -> MicroBatch {
    let mut batch = MicroBatch { inputs: Vec::new(), targets: Vec::new(), context };
    for window in windows {
        let tokens = shard.tokens(window * context..(window + 1) * context + 1);
        batch.inputs.extend(tokens[..context].iter().map(|&id| id as i32));
        batch.targets.extend(tokens[1..].iter().map(|&id| id as i32));
    }
    batch
}

fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
}
