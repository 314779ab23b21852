//! One run from its first step to its last, or to whatever ends it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tiebreak_data::{
    DataInfo, Error, Prepared, Sampler, Shard, by_rank, evaluation_windows, frequencies, loss_deciles, prepare,
    seen_deciles, window_count, write_atomic,
};
use tiebreak_kernels::{Precision, squares};
use tiebreak_model::{Model, Placement, Vocabulary};

use crate::checkpoint;
use crate::config::{RunConfig, identity, plain_name, read_table, run_folder_name};
use crate::device::{self, DeviceKind, DeviceSpec, Opened};
use crate::evaluate::{TargetInfo, evaluate};
use crate::folder::{RunFolder, RunState, Status};
use crate::lens::{LensJob, all_scalars, train_lens};
use crate::optim::AdamW;
use crate::probed::Probed;
use crate::probes::Probes;
use crate::residual::update_over_stream;
use crate::step::{Memory, MicroBatch, gradients, update};
use crate::track::{HParam, Lengths, Progress, Tag, Trackers};

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
    /// The kind of device that it began on, where that is another than it goes on with: its identity names that.
    pub begun_on: Option<DeviceKind>,
    /// Set from outside to stop after the current step.
    pub stop: Arc<AtomicBool>,
    /// Told the run's folder once it is locked.
    pub announce: &'a (dyn Fn(&Path) + Sync),
}

/// `env.json`, as far as it is read back.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Recorded {
    threads: usize,
    device: String,
    adapter: Option<String>,
    starts: Vec<Start>,
}

/// One process that worked on the run.
#[derive(Deserialize, Serialize)]
struct Start {
    from_step: u64,
    threads: usize,
    #[serde(default)]
    device: String,
    #[serde(default)]
    adapter: Option<String>,
    /// Arithmetic of the step: [`Opened::products`].
    #[serde(default)]
    products: String,
    command: Vec<String>,
}

/// Validation tokens on which residual/ is measured, in whole windows spread evenly.
const RESIDUAL_TOKENS: usize = 4096;

/// Burn's version as pinned in the workspace's manifest.
pub const BURN_VERSION: &str = "0.22.1";

fn recorded(folder: &RunFolder) -> Recorded {
    std::fs::read(folder.env()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Trains, or goes on training, one run.
pub fn train(config: &RunConfig, options: &TrainOptions) -> Result<Outcome, Error> {
    let spec = config.device.parse::<DeviceSpec>()?;
    let kind = spec.kind()?;
    let begun_on = options.begun_on.unwrap_or(kind);
    if options.begun_on.is_some() && !options.resume {
        return Err(Error::Input("--begun-on names the device of a run to go on with: add --resume".into()));
    }
    let precision = match device::precision(config.train.precision, kind) {
        // A run that is there may have begun with it.
        Err(refused) if !options.resume => return Err(refused),
        found => found,
    };
    let out = options.out.display();
    if RunFolder::is_run(options.out) {
        return Err(Error::Input(format!(
            "--out {out}: this is a run's own folder; choose its parent or another folder"
        )));
    }
    if options.out.exists() && !options.out.is_dir() {
        return Err(Error::Input(format!("--out {out}: this is a file; choose a folder")));
    }
    if !may_be_there(config, options.out) {
        // Before the data take their time. A complete run needs no device.
        spec.present()?;
    }
    let data = prepare(&config.data)?;
    if options.stop.load(Ordering::Relaxed) {
        return Ok(Outcome::Interrupted);
    }
    config.validate_head_for(data.tokenizer.vocabulary())?;
    let identity = identity(config, &data.info, begun_on);
    let folder = RunFolder(options.out.join(run_folder_name(config, &identity)));
    // A complete run needs no lock, and asking must work on a folder that is read-only by now.
    let there = check_owner(config, &folder, &identity)?;
    if options.begun_on.is_some() && there.is_none() {
        return Err(Error::Input(format!(
            "--begun-on {}: there is no run of this configuration that began on it ({}); see the device in its env.json",
            begun_on.name(),
            folder.0.display()
        )));
    }
    if options.begun_on.is_none() {
        check_other_devices(config, &data.info, options.out)?;
    }
    if let Some(status) = there {
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
    let begun = || device::begun_with(&recorded(&folder).starts.first()?.products);
    let precision = precision.or_else(|refused| begun().filter(|_| kind == DeviceKind::Flex).ok_or(refused))?;
    let opened = device::open(spec)?;
    device::fits(config, data.tokenizer.vocabulary(), config.lens.after_training, &opened.present())?;
    let threads = threads(config, &folder);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::Failed(format!("threads = {threads}: cannot start them: {e}")))?;
    let counts = frequencies(&data.train);
    // From first to last on one thread, for a GPU keeps a queue of work for each.
    pool.install(|| {
        let model = device::caught(|| Ok(init(config, &counts, &opened.device)))?;
        let probes = Probes::open(config, &data, counts.clone(), &*model.interface)?;
        std::fs::create_dir_all(&folder.0)
            .map_err(|e| Error::Input(format!("--out {out}: cannot make the folder {}: {e}", folder.0.display())))?;
        let lock = folder.lock().map_err(|e| Error::Input(format!("--out {out}: {e}")))?;
        let _lock = lock.ok_or_else(|| being_written(&folder))?;
        // Another process may have finished between the look above and the lock.
        let before = check_owner(config, &folder, &identity)?;
        if before.as_ref().is_some_and(|s| s.state == RunState::Complete) {
            (options.announce)(&folder.0);
            return Ok(Outcome::AlreadyComplete);
        }
        (options.announce)(&folder.0);
        let run = Run {
            config,
            data: &data,
            counts: &counts,
            probes: &probes,
            identity: &identity,
            folder: &folder,
            begun_on,
            opened: &opened,
            precision,
            threads,
        };
        let mut step = before.map_or(0, |s| s.step);
        let ended = device::caught(|| run.go(model, options, &mut step));
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
    })
}

fn state_name(state: RunState) -> String {
    format!("{state:?}").to_lowercase()
}

/// Whether the folder holds something by the name of this run.
fn may_be_there(config: &RunConfig, out: &Path) -> bool {
    let begins = format!("{}-s{}-", plain_name(&config.name), config.seed);
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&begins))
}

/// Refuses `device = "auto"` where it is another kind than that of a run that is there: what "auto" is, a driver or a build can change.
/// Warns where another kind was named.
///
/// # Errors
/// [`Error::Input`] naming that run and what to say instead.
pub fn check_other_devices(config: &RunConfig, info: &DataInfo, out: &Path) -> Result<(), Error> {
    let spec = config.device.parse::<DeviceSpec>()?;
    let kind = spec.kind()?;
    let of = |kind: DeviceKind| {
        let identity = identity(config, info, kind);
        (RunFolder(out.join(run_folder_name(config, &identity))), identity)
    };
    if RunFolder::is_run(&of(kind).0.0) {
        return Ok(());
    }
    for other in DeviceKind::ALL.into_iter().filter(|other| *other != kind) {
        let (folder, identity) = of(other);
        // A folder that is damaged or somebody else's is not this run's matter.
        let Ok(Some(Status { state, step, .. })) = check_owner(config, &folder, &identity) else { continue };
        let (kind, name) = (kind.name(), other.name());
        let there = format!("{}: this run ({}, step {step}) began on {name}", folder.0.display(), state_name(state));
        if spec != DeviceSpec::Auto || !other.may_be_auto() {
            tracing::warn!("{there}; on {kind} it begins anew (--resume --begun-on {name} would go on with it)");
            continue;
        }
        // Its own number, unless it goes on elsewhere by now.
        let named = read_table(&folder.config()).ok().and_then(|table| Some(table.get("device")?.as_str()?.to_owned()));
        let named = named.filter(|named| named.parse().is_ok_and(|kind: DeviceKind| kind == other));
        return Err(Error::Input(format!(
            "{there}, and device = \"auto\" is {kind} now; name the device: {:?} to keep to that run, {kind:?} to begin anew (with --set \
             device=NAME, `reproduce` with --device NAME; `train --resume --begun-on {name}` goes on with a run on another device)",
            named.unwrap_or(name.into())
        )));
    }
    Ok(())
}

/// The folder's status, refused if the folder belongs to something else.
fn check_owner(config: &RunConfig, folder: &RunFolder, identity: &str) -> Result<Option<Status>, Error> {
    let status = folder.status_for(config)?;
    // The name is no part of the identity, and two names can become one folder name.
    let name = || read_table(&folder.config()).ok()?.get("name")?.as_str().map(str::to_owned);
    let foreign = |what: &str| {
        Err(Error::Input(format!("{}: {what}; choose another --out or remove the folder", folder.0.display())))
    };
    match &status {
        Some(status) if status.identity != identity => foreign("the folder holds another run"),
        Some(_) => match name() {
            Some(name) if name != config.name => {
                foreign(&format!("the folder holds the run {name:?}, not {:?}", config.name))
            }
            _ => Ok(status),
        },
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
    match (recorded(folder).threads, config.threads) {
        (0, 0) => std::thread::available_parallelism().map_or(1, |n| n.get()),
        (0, configured) => configured,
        (recorded, _) => recorded,
    }
}

struct Run<'a> {
    config: &'a RunConfig,
    data: &'a Prepared,
    /// Occurrences of each id in the training split.
    counts: &'a [u64],
    probes: &'a Probes,
    identity: &'a str,
    folder: &'a RunFolder,
    /// What the identity names, whatever it goes on with.
    begun_on: DeviceKind,
    opened: &'a Opened,
    precision: Precision,
    threads: usize,
}

impl Run<'_> {
    fn go(&self, mut model: Model, options: &TrainOptions, step: &mut u64) -> Result<Outcome, Error> {
        let (config, steps) = (self.config, self.config.train.steps);
        let mut optimiser = AdamW::new(config.optim.betas, config.optim.eps);
        let mut memory = Memory::default();
        let logs = self.restore(&mut model, &mut optimiser, &mut memory, step)?;
        self.write_records(*step)?;
        // Before any other file: a folder that holds logs but no status is taken for somebody else's.
        self.set_running(*step)?;
        // Nothing is in memory that this checkpoint lacks; at step 0 there is nothing to keep.
        let mut saved = *step;
        let mut trackers = Trackers::open(&self.folder.0, logs)?;
        trackers.session_start(&hparams(config), &config.name)?;

        let context = config.data.context_length;
        let windows = window_count(self.data.train.len(), context);
        let mut sampler = Sampler::new(config.seed, windows);
        let (info, groups) = (self.target_info(), seen_deciles(self.counts));
        let mut progress = Progress::new(&format!("{} s{}", config.name, config.seed), steps, *step);
        if *step == 0 {
            let nonfinite = self.evaluate(&model, &info, 0, &mut trackers, &mut progress)?;
            if !nonfinite.is_empty() {
                return diverged(trackers, progress, 0, &nonfinite);
            }
            let turned = self.probes.keep(self.folder, 0, &*model.interface)?;
            trackers.scalars(0, &turned)?;
        }
        while *step < steps {
            if options.stop.load(Ordering::Relaxed) {
                if saved != *step {
                    self.checkpoint(&model, &optimiser, &memory, *step, &mut trackers)?;
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
            let (measured, drawn) = (due(config.log.provenance_every), due(config.log.histograms_every));
            let whole = measured || drawn || !config.intervene.rules().is_empty();
            let one_matrix = model.interface.one_matrix();
            let gradients = gradients(&model, &batches, config.intervene.paper_output_scale, self.precision, whole);
            let histograms =
                gradients.whole.as_ref().filter(|_| drawn).map(|w| (w.input_vd.clone(), w.output_vd.clone()));
            let done = update(&mut model, &mut optimiser, &mut memory, gradients, config, next, measured);
            let loss = done.loss;
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
                ]);
            }
            if due(config.log.every) {
                if config.optim.table_warmup_steps > 0 {
                    tags.push(("train/table_lr".into(), done.table_lr));
                }
                if config.intervene.acts() {
                    tags.push(("intervene/input_scale".into(), done.factors.input));
                    tags.push(("intervene/output_scale".into(), done.factors.output));
                }
                if config.head.changes() {
                    tags.push(("head/one_matrix".into(), f64::from(u8::from(one_matrix))));
                }
                tags.extend(done.auxiliary.map(|(loss, _)| ("train/aux_loss".into(), loss)));
            }
            if let Some(provenance) = &done.provenance {
                tags.extend(provenance.scalars(&groups));
            }
            if let Some((_, Some([input, output]))) = done.auxiliary {
                tags.push(("grad/aux_input_norm".into(), input));
                tags.push(("grad/aux_output_norm".into(), output));
            }
            let at = |every: u64| every > 0 && next.is_multiple_of(every) || next == steps;
            let (keep, align) = (self.probes.keeps(next), self.probes.aligns(next));
            let mut nonfinite = done.nonfinite;
            // An update can overflow where its gradient did not. Nothing that is kept may hold such values.
            if nonfinite.is_empty() && (keep || align || at(config.eval.every) || at(config.checkpoint.every)) {
                nonfinite = nonfinite_parameters(&model);
            }
            if nonfinite.is_empty() && at(config.eval.every) {
                nonfinite = self.evaluate(&model, &info, next, &mut trackers, &mut progress)?;
            }
            if due(config.log.every) || !nonfinite.is_empty() {
                tags.push(("train/nonfinite".into(), nonfinite.len() as f64));
            }
            trackers.scalars(next, &tags)?;
            if !nonfinite.is_empty() {
                return diverged(trackers, progress, next, &nonfinite);
            }
            if let Some((input_vd, output_vd)) = histograms {
                self.histograms(&model, [&input_vd, &output_vd], next, &mut trackers)?;
            }
            *step = next;
            progress.step(next, loss, speed);
            if keep {
                let turned = self.probes.keep(self.folder, next, &*model.interface)?;
                trackers.scalars(next, &turned)?;
            }
            if align {
                self.probes.align(next, &*model.interface, &mut trackers)?;
            }
            if at(config.checkpoint.every) {
                self.checkpoint(&model, &optimiser, &memory, next, &mut trackers)?;
                saved = next;
                self.set_running(next)?;
            }
        }
        if config.lens.after_training {
            let job = LensJob {
                model: &Probed { model: &model, context },
                folder: self.folder,
                step: steps,
                data: self.data,
                corpus: None,
                config: &config.lens,
                go_on: &|| !options.stop.load(Ordering::Relaxed),
            };
            // The last checkpoint is written: an interrupted lens begins again from it, and cuts the logs back to it.
            match train_lens(&job)? {
                Some(report) => trackers.scalars(steps, &all_scalars(self.folder, &report))?,
                None => {
                    progress.finish(&format!("{} s{}: interrupted in its lens", config.name, config.seed));
                    return Ok(Outcome::Interrupted);
                }
            }
        }
        trackers.session_end(true)?;
        trackers.sync()?;
        progress.finish(&format!("{} s{}: complete, {steps} steps", config.name, config.seed));
        Ok(Outcome::Complete)
    }

    /// What an id counts for where it is a target.
    fn target_info(&self) -> TargetInfo {
        let tokenizer = &self.data.tokenizer;
        let mut bytes: Vec<u32> =
            (0..tokenizer.vocabulary()).map(|id| tokenizer.token_bytes(id as u32).len() as u32).collect();
        // A tokenizer that drops or adds text (word pieces, blanks of its own) has no bytes per token to speak of.
        let counted: u64 = frequencies(&self.data.validation).iter().zip(&bytes).map(|(n, b)| n * u64::from(*b)).sum();
        let text = self.data.info.validation.bytes;
        if counted.abs_diff(text) * 200 > text {
            tracing::warn!(
                "no eval/bits_per_byte: the tokens stand for {counted} bytes, the validation text has {text}"
            );
            bytes.fill(0);
        }
        TargetInfo { bytes, deciles: loss_deciles(self.counts) }
    }

    /// Loads the newest checkpoint, if there is one; gives the lengths to which the logs are cut.
    fn restore(
        &self,
        model: &mut Model,
        optimiser: &mut AdamW,
        memory: &mut Memory,
        step: &mut u64,
    ) -> Result<Option<Lengths>, Error> {
        let folder = self.folder.checkpoints();
        let Some(newest) = checkpoint::list(&folder)?.pop() else {
            *step = 0;
            self.folder.clean()?;
            return Ok(None);
        };
        let attributed = self.config.log.provenance_every > 0;
        let state = checkpoint::load(&folder, newest, self.identity, model, optimiser, memory, attributed)
            .map_err(|e| Error::Input(e.to_string()))?;
        Trackers::check(&self.folder.0, state.logs)?;
        self.probes.check(self.folder, state.step)?;
        *step = state.step;
        self.folder.clean()?;
        tracing::info!(step = state.step, "resumed from a checkpoint");
        Ok(Some(state.logs))
    }

    fn checkpoint(
        &self,
        model: &Model,
        optimiser: &AdamW,
        memory: &Memory,
        step: u64,
        trackers: &mut Trackers,
    ) -> Result<(), Error> {
        let state = checkpoint::State { step, identity: self.identity.to_owned(), logs: trackers.sync()? };
        checkpoint::save(&self.folder.checkpoints(), model, optimiser, memory, &state, self.config.checkpoint.keep)
    }

    fn set_running(&self, step: u64) -> Result<(), Error> {
        let identity = self.identity.to_owned();
        self.folder.set_status(&Status { state: RunState::Running, step, reason: None, identity })
    }

    /// Logs the validation loss and the residual stream's growth; gives the tags whose value is no finite number.
    fn evaluate(
        &self,
        model: &Model,
        info: &TargetInfo,
        step: u64,
        trackers: &mut Trackers,
        progress: &mut Progress,
    ) -> Result<Vec<String>, Error> {
        let (shard, context) = (&self.data.validation, self.config.data.context_length);
        let windows = |tokens: usize| evaluation_windows(shard.len(), context, tokens);
        let batch = |w: &[usize]| read(shard, w, context);
        let size = self.config.train.micro_batch_size;
        let score = evaluate(model, windows(self.config.eval.tokens).chunks(size).map(batch), info);
        let mut scalars = score.scalars();
        scalars.extend(update_over_stream(model, windows(RESIDUAL_TOKENS).chunks(size).map(batch)));
        trackers.scalars(step, &scalars)?;
        progress.message(&format!(
            "{} s{}: step {step}, validation loss {:.4} nats per token, perplexity {:.2}",
            self.config.name,
            self.config.seed,
            score.loss(),
            score.perplexity()
        ));
        Ok(scalars.into_iter().filter(|(_, x)| !x.is_finite()).map(|(tag, _)| tag.into_owned()).collect())
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

    fn write_records(&self, step: u64) -> Result<(), Error> {
        let Recorded { device, adapter, mut starts, .. } = recorded(self.folder);
        // Earlier versions kept them once for all.
        for start in starts.iter_mut().filter(|start| start.device.is_empty()) {
            (start.device, start.adapter) = (device.clone(), adapter.clone());
        }
        let products = self.opened.products(self.precision);
        tracing::info!(threads = self.threads, products, "training from step {step}");
        if let Some(before) = starts.last().filter(|s| !s.products.is_empty() && s.products != products) {
            tracing::warn!(
                "the run began with other products ({}), so its bits may differ from here on",
                before.products
            );
        }
        let command = std::env::args().collect();
        starts.push(Start {
            from_step: step,
            threads: self.threads,
            device: self.opened.kind.name().into(),
            adapter: self.opened.adapter.clone(),
            products: products.clone(),
            command,
        });
        let text = toml::to_string(self.config).map_err(|e| Error::Failed(format!("config.toml: {e}")))?;
        write_atomic(&self.folder.config(), text.as_bytes())?;
        if let Some(json) = self.data.tokenizer.json() {
            write_atomic(&self.folder.tokenizer(), json)?;
        }
        let env = json!({
            "tiebreak": env!("CARGO_PKG_VERSION"),
            "burn": BURN_VERSION,
            "identity": self.identity,
            "device": self.begun_on.name(),
            "adapter": starts[0].adapter,
            "threads": self.threads,
            "products": products,
            "cpu": cpu_name(),
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "starts": starts,
            "parameters": self.config.model.count(
                &self.config.head, self.data.tokenizer.vocabulary(), self.config.data.context_length),
            "data": self.data.info,
        });
        let bytes = serde_json::to_vec_pretty(&env).map_err(|e| Error::Failed(format!("env.json: {e}")))?;
        write_atomic(&self.folder.env(), &bytes)
    }
}

fn init(config: &RunConfig, counts: &[u64], device: &burn::tensor::Device) -> Model {
    let context = config.data.context_length;
    let vocabulary = Vocabulary { by_rank: by_rank(counts).into_iter().map(|id| id as u32).collect() };
    Model::init(&config.model, &config.head, vocabulary, context, config.seed, &Placement::f32(device))
}

fn diverged(mut trackers: Trackers, progress: Progress, step: u64, nonfinite: &[String]) -> Result<Outcome, Error> {
    let reason = format!("not a finite number at step {step}: {}", nonfinite.join(", "));
    trackers.session_end(false)?;
    trackers.sync()?;
    progress.finish(&format!("diverged, {reason}"));
    Ok(Outcome::Diverged(reason))
}

fn nonfinite_parameters(model: &Model) -> Vec<String> {
    let parameters = model.parameters();
    let squares = squares(parameters.iter().map(|p| &p.value));
    parameters.into_iter().zip(squares).filter(|(_, s)| !s.is_finite()).map(|(p, _)| p.path).collect()
}

/// The keys of a configuration that TensorBoard shows as hyperparameters; name and seed name group and session.
fn hparams(config: &RunConfig) -> std::collections::BTreeMap<String, HParam> {
    let flat = match toml::Value::try_from(config) {
        Ok(toml::Value::Table(table)) => crate::config::flatten(&table),
        _ => Default::default(),
    };
    let keep = |key: &str| !matches!(key, "name" | "seed" | "threads") && !key.starts_with("checkpoint.");
    flat.into_iter().filter(|(key, _)| keep(key)).map(|(key, value)| (key, HParam::from(&value))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Int, Tensor, TensorData, activation};
    use tiebreak_data::ShardWriter;
    use tiebreak_model::ModelConfig;
    use tiebreak_model::interface::HeadConfig;

    #[test]
    fn evaluation_scores_each_token_once_against_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shard.bin");
        let tokens: Vec<u32> = (0..23).map(|i| i * i % 11).collect();
        let mut writer = ShardWriter::create(&path, 11, [0; 32], [1; 32]).unwrap();
        writer.push(&tokens, 23).unwrap();
        writer.finish().unwrap();
        let shard = Shard::open(&path).unwrap();
        // Five whole windows of four, and two tokens that fill none.
        let batch = read(&shard, &[0, 1, 2, 3, 4], 4);
        assert_eq!(batch.inputs, tokens[..20].iter().map(|&t| t as i32).collect::<Vec<_>>());
        assert_eq!(batch.targets, tokens[1..21].iter().map(|&t| t as i32).collect::<Vec<_>>());

        let device = Device::flex();
        let shape = ModelConfig { d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, ..ModelConfig::default() };
        let model = Model::init(&shape, &HeadConfig::default(), 11, 4, 0, &Placement::f32(&device));
        let info = TargetInfo { bytes: vec![1; 11], deciles: vec![0; 11] };
        let score = evaluate(&model, [&[0usize, 1][..], &[2], &[3, 4]].into_iter().map(|w| read(&shard, w, 4)), &info);
        let pair = model.interface.pair();
        let ids = |ids: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::new(ids, [20]), &device);
        let h_btd = model.trunk.forward(Model::lookup(&pair.input_vd, ids(batch.inputs).reshape([5, 4])));
        let log_p = activation::log_softmax(h_btd.reshape([20, 8]).matmul(pair.output_vd.transpose()), 1);
        let mean = -crate::step::host(&log_p.gather(1, ids(batch.targets).unsqueeze_dim(1))).iter().sum::<f64>() / 20.0;
        assert!((score.loss() - mean).abs() < 1e-6 * mean, "{} instead of {mean}", score.loss());
    }

    #[test]
    fn what_began_on_another_device_is_not_begun_anew_because_auto_changed() {
        let dir = tempfile::tempdir().unwrap();
        let info: DataInfo = serde_json::from_value(json!({
            "corpus": "c", "fallback_reason": null, "corpus_hash": "aa", "tokenizer": "bytes", "tokenizer_hash": "bb",
            "vocabulary": 257, "train": {"documents": 1, "bytes": 1, "tokens": 1},
            "validation": {"documents": 1, "bytes": 1, "tokens": 1},
            "exact_duplicates": 0, "near_duplicates_across_split": 0, "warnings": [],
        }))
        .unwrap();
        let run = |device: &str| RunConfig { device: device.into(), ..RunConfig::default() };
        let begun = |kind: DeviceKind, device: &str| {
            let identity = identity(&run("auto"), &info, kind);
            let folder = RunFolder(dir.path().join(run_folder_name(&run("auto"), &identity)));
            std::fs::create_dir_all(&folder.0).unwrap();
            std::fs::write(folder.config(), format!("name = \"tied\"\ndevice = {device:?}\n")).unwrap();
            folder.set_status(&Status { state: RunState::Interrupted, step: 3, reason: None, identity }).unwrap();
        };
        let check = |device: &str| check_other_devices(&run(device), &info, dir.path());
        check("auto").unwrap();
        // "auto" is never Metal as such, so this run was asked for by name.
        begun(DeviceKind::Metal, "metal");
        check("auto").unwrap();
        // A kind that no test machine has; the run goes on elsewhere in the second case.
        for (device, keep) in [("cuda:1", "\"cuda:1\" to keep"), ("flex", "\"cuda\" to keep")] {
            begun(DeviceKind::Cuda, device);
            let error = check("auto").unwrap_err().to_string();
            for part in ["interrupted, step 3", "began on cuda", keep, "--begun-on cuda"] {
                assert!(error.contains(part), "{part} is not in {error}");
            }
        }
        check("flex").unwrap();
        let kind = DeviceSpec::Auto.kind().unwrap();
        begun(kind, "auto");
        check("auto").unwrap();
    }
}
