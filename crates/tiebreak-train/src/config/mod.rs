//! Run configuration: what a TOML file and `--set` say ([`load`]) becomes one resolved, valid [`RunConfig`].

mod identity;
mod load;

pub use identity::{FORMAT, identity, numeric_keys, plain_name, run_folder_name};
pub use load::{Loaded, Origin, flatten, folder_of, insert, load, parse_set, read_table, resolve};

use serde::{Deserialize, Serialize};
use tiebreak_data::{DataConfig, Error, TokenizerSpec};
use tiebreak_model::ModelConfig;
use tiebreak_model::interface::{HeadConfig, Role};
use tiebreak_probe::MOST_PERMUTATIONS;
use tiebreak_probe::lens::Recipe;

use crate::auxiliary::AuxConfig;
use crate::device::DeviceSpec;
use crate::intervene::InterveneConfig;
use crate::intervene::schedule::whole_steps;

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
pub(crate) use section;

section! {
    /// One run.
    RunConfig {
        /// Arm name.
        name: String = "tied".into(),
        /// Split by name into streams for initial values and data order.
        seed: u64 = 0,
        /// Where tensors live: see [`DeviceSpec`].
        device: String = "auto".into(),
        /// CPU threads; 0 means all cores.
        threads: usize = 0,
        /// Text, tokenizer, context.
        data: DataConfig = DataConfig::default(),
        /// The trunk.
        model: ModelConfig = ModelConfig::default(),
        /// The token interface.
        head: HeadConfig = HeadConfig::default(),
        /// What is done to the two sides' gradients.
        intervene: InterveneConfig = InterveneConfig::default(),
        /// Losses beside the language model's.
        aux: AuxConfig = AuxConfig::default(),
        /// AdamW and the clip.
        optim: OptimConfig = OptimConfig::default(),
        /// Learning rate over steps.
        schedule: ScheduleConfig = ScheduleConfig::default(),
        /// Steps and batches.
        train: TrainConfig = TrainConfig::default(),
        /// Validation.
        eval: EvalConfig = EvalConfig::default(),
        /// What is logged and kept, and how often.
        log: LogConfig = LogConfig::default(),
        /// Probes while training.
        probe: ProbeConfig = ProbeConfig::default(),
        /// Lenses after training.
        lens: LensConfig = LensConfig::default(),
        /// Checkpoints.
        checkpoint: CheckpointConfig = CheckpointConfig::default(),
    }
}

section! {
    /// `[optim]`: AdamW (PyTorch's formula) and the global clip.
    OptimConfig {
        /// Peak learning rate.
        lr: f64 = 3e-3,
        /// Decay rates of the two moments.
        betas: [f64; 2] = [0.9, 0.95],
        /// Added to the root of the second moment; with 0 an element whose second moment is 0 does not move.
        eps: f64 = 1e-8,
        /// Decoupled decay of matrices; gains and biases never decay.
        weight_decay: f64 = 0.1,
        /// Whether the interface's tables decay too.
        decay_embeddings: bool = true,
        /// Largest global gradient norm over distinct parameters; 0 switches the clip off.
        clip_norm: f64 = 1.0,
        /// Factor on the learning rate of parameters of role shared, input and output.
        table_lr_scale: f64 = 1.0,
        /// Further factor for role input; refused where the mode has none.
        input_lr_scale: f64 = 1.0,
        /// Further factor for role output; refused where the mode has none.
        output_lr_scale: f64 = 1.0,
        /// Factor for role map; refused where the mode has none.
        map_lr_scale: f64 = 1.0,
        /// Updates in a warm-up of roles shared, input and output in place of the schedule's; 0: the schedule's.
        table_warmup_steps: u64 = 0,
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Half a cosine down to the last step.
    Cosine,
    /// A straight line down to the last step.
    Linear,
    /// The peak throughout.
    Constant,
}

section! {
    /// `[schedule]`: see [`crate::schedule::learning_rate`].
    ScheduleConfig {
        /// Shape after the warm-up.
        kind: ScheduleKind = ScheduleKind::Cosine,
        /// Updates in the warm-up.
        warmup_steps: u64 = 100,
        /// r: the warm-up starts from r lr.
        warmup_start_ratio: f64 = 0.1,
        /// The last update uses this part of lr.
        min_lr_ratio: f64 = 0.1,
    }
}

/// Arithmetic of the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Single precision throughout: the reference.
    F32,
    /// The operands of the large products rounded to bf16: the trunk's maps, attention's products and the head's, forward
    /// and backward. Sums, weights, moments, norms, softmax and loss stay in single precision, and so do evaluation, probes
    /// and lenses. Refused where it would not be faster.
    Bf16,
}

section! {
    /// `[train]`.
    TrainConfig {
        /// Optimiser steps.
        steps: u64 = 1000,
        /// Sequences per optimiser step.
        batch_size: usize = 32,
        /// Sequences per forward pass; 0 means `batch_size`; divides it.
        micro_batch_size: usize = 0,
        /// Arithmetic.
        precision: Precision = Precision::F32,
    }
}

section! {
    /// `[eval]`: on the validation split.
    EvalConfig {
        /// Steps between evaluations; 0: only at step 0 and the last.
        every: u64 = 100,
        /// At most this many tokens, in whole windows spread evenly; 0 means all.
        tokens: usize = 200_000,
    }
}

section! {
    /// `[log]`. Whatever the intervals, the first and the last step are logged, unless 0 says none.
    LogConfig {
        /// Steps between train/ scalars.
        every: u64 = 1,
        /// Steps between grad/ and update/ scalars; 0: none, and nothing is kept for them.
        provenance_every: u64 = 1,
        /// Steps between histograms of row norms in TensorBoard; 0: none.
        histograms_every: u64 = 0,
        /// Steps at which E and U are kept for good, beside 0 and the last.
        tables_at: Vec<u64> = vec![0, 10, 30, 100, 300, 1000],
    }
}

section! {
    /// `[probe]`: tables aligned while training.
    ProbeConfig {
        /// Steps between probes, also at the last; 0: none.
        every: u64 = 0,
        /// Run folders of other seeds to align with.
        reference: Vec<String> = vec![],
        /// Row permutations behind each null.
        permutations: usize = 20,
    }
}

section! {
    /// `[lens]`.
    LensConfig {
        /// Train a tuned lens after the model.
        after_training: bool = false,
        /// How.
        recipe: Recipe = Recipe::Converged,
        /// Training tokens; 0: until the stopping rule (or the recipe's number of steps).
        train_tokens: usize = 0,
        /// Held-out tokens, in whole windows spread evenly; 0: all.
        eval_tokens: usize = 50_000,
    }
}

section! {
    /// `[checkpoint]`.
    CheckpointConfig {
        /// Steps between checkpoints; 0: only at the last.
        every: u64 = 500,
        /// How many to keep.
        keep: usize = 2,
    }
}

impl RunConfig {
    /// Fills derived values in and refuses what cannot run; errors name the key.
    pub fn resolve(&mut self) -> Result<(), Error> {
        self.validate()?;
        self.model.resolve();
        let steps = self.train.steps;
        self.intervene.input_scale.resolve(steps);
        self.intervene.output_scale.resolve(steps);
        if self.head.uses("untie_at") {
            self.head.untie_at = whole_steps(self.head.untie_at, steps);
            if self.head.untie_at >= steps as f64 {
                return Err(Error::Input(format!(
                    "head.untie_at = {}: the run ends at train.steps = {steps}, so that it would be head.mode = \"tied\" but be \
                     counted as two tables; choose an earlier step, or that mode",
                    self.head.untie_at
                )));
            }
        }
        if self.train.micro_batch_size == 0 {
            self.train.micro_batch_size = self.train.batch_size;
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), Error> {
        let fail = |text: String| Err(Error::Input(text));
        if self.name.is_empty()
            || self.name.len() > 150
            || self.name.chars().any(|c| c.is_control() || "/\\".contains(c))
        {
            return fail(format!(
                "name = {:?}: expected 1 to 150 characters without slashes or control characters",
                self.name
            ));
        }
        if self.seed > i64::MAX as u64 {
            return fail(format!("seed = {}: expected at most {}", self.seed, i64::MAX));
        }
        if self.threads > 4096 {
            return fail(format!("threads = {}: expected at most 4096 (0 means all cores)", self.threads));
        }
        self.device.parse::<DeviceSpec>()?;
        self.data.validate()?;
        self.model.validate().map_err(|e| Error::Input(e.0))?;
        self.intervene.validate()?;
        self.aux.validate()?;
        let (o, s, t) = (&self.optim, &self.schedule, &self.train);
        let ranges = [
            ("optim.lr", o.lr, 0.0, 1e3),
            ("optim.betas[0]", o.betas[0], 0.0, 1.0 - 1e-12),
            ("optim.betas[1]", o.betas[1], 0.0, 1.0 - 1e-12),
            ("optim.eps", o.eps, 0.0, 1e3),
            ("optim.weight_decay", o.weight_decay, 0.0, 1e3),
            ("optim.clip_norm", o.clip_norm, 0.0, 1e12),
            ("optim.table_lr_scale", o.table_lr_scale, 0.0, 1e6),
            ("optim.input_lr_scale", o.input_lr_scale, 0.0, 1e6),
            ("optim.output_lr_scale", o.output_lr_scale, 0.0, 1e6),
            ("optim.map_lr_scale", o.map_lr_scale, 0.0, 1e6),
            ("schedule.warmup_start_ratio", s.warmup_start_ratio, 0.0, 1.0),
            ("schedule.min_lr_ratio", s.min_lr_ratio, 0.0, 1.0),
        ];
        for (key, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return fail(format!("{key} = {value}: expected a number from {low} to {high}"));
            }
        }
        self.validate_head()?;
        let positive = [
            ("train.steps", t.steps, 1 << 40),
            ("train.batch_size", t.batch_size as u64, 1 << 24),
            ("log.every", self.log.every, 1 << 40),
            ("checkpoint.keep", self.checkpoint.keep as u64, 1 << 20),
        ];
        for (key, value, most) in positive {
            if value == 0 || value > most {
                return fail(format!("{key} = {value}: expected 1 to {most}"));
            }
        }
        let context = self.data.context_length;
        for (key, tokens, zero) in [
            ("eval.tokens", self.eval.tokens, "all"),
            ("lens.eval_tokens", self.lens.eval_tokens, "all"),
            ("lens.train_tokens", self.lens.train_tokens, "until the stopping rule"),
        ] {
            // A default that no lens of this run will use is nobody's mistake.
            let unused = key.starts_with("lens.") && self.lens == LensConfig::default();
            if !unused && (1..context).contains(&tokens) {
                return fail(format!(
                    "{key} = {tokens}: less than one window of data.context_length = {context}; expected 0 ({zero}) or at \
                     least that"
                ));
            }
        }
        if o.table_warmup_steps > t.steps {
            return fail(format!(
                "optim.table_warmup_steps = {}: expected at most train.steps = {}",
                o.table_warmup_steps, t.steps
            ));
        }
        if t.micro_batch_size > 0 && !t.batch_size.is_multiple_of(t.micro_batch_size) {
            return fail(format!(
                "train.micro_batch_size = {} does not divide train.batch_size = {}",
                t.micro_batch_size, t.batch_size
            ));
        }
        let most = [
            ("probe.every", self.probe.every, 1 << 40),
            ("log.provenance_every", self.log.provenance_every, 1 << 40),
            ("probe.permutations", self.probe.permutations as u64, MOST_PERMUTATIONS as u64),
        ];
        if let Some((key, value, most)) = most.into_iter().find(|(_, value, most)| value > most) {
            return fail(format!("{key} = {value}: expected 0 to {most}"));
        }
        if self.probe.reference.iter().any(String::is_empty) {
            return fail("probe.reference holds an empty name: expected run folders, as `train` prints them".into());
        }
        Ok(())
    }
}

impl RunConfig {
    /// FLOPs per token of training this with V = `vocabulary`: [`ModelConfig::flops_per_token`], and the auxiliary losses.
    pub fn flops_per_token(&self, vocabulary: usize) -> usize {
        let context = self.data.context_length;
        let tokens = self.train.batch_size * context;
        let auxiliary = 2 * self.aux.cost(vocabulary, self.model.d_model) / tokens.max(1);
        self.model.flops_per_token(&self.head, vocabulary, context, tokens) + auxiliary
    }

    /// Refuses what the head mode cannot do, as far as that shows without the vocabulary of a tokenizer's file.
    fn validate_head(&self) -> Result<(), Error> {
        let vocabulary = match TokenizerSpec::parse(&self.data.tokenizer)? {
            TokenizerSpec::File(_) => usize::MAX,
            spec => spec.vocabulary()?,
        };
        self.validate_head_for(vocabulary)
    }

    /// Refuses what the head mode cannot do with V = `vocabulary`.
    pub fn validate_head_for(&self, vocabulary: usize) -> Result<(), Error> {
        let fail = |text: String| Err(Error::Input(text));
        let (head, d) = (&self.head, self.model.d_model);
        head.validate(vocabulary, d).map_err(|e| Error::Input(e.0))?;
        let name = head.mode_name();
        let scales = [
            ("input_lr_scale", self.optim.input_lr_scale, Role::Input),
            ("output_lr_scale", self.optim.output_lr_scale, Role::Output),
            ("map_lr_scale", self.optim.map_lr_scale, Role::Map),
        ];
        for (key, scale, role) in scales {
            if scale != 1.0 && !head.has_role(role, vocabulary, d) {
                let (what, other) = match role {
                    Role::Map => ("map between the sides", "projected"),
                    _ => ("parameter of that side alone", "untied"),
                };
                return fail(format!(
                    "optim.{key} = {scale}, but head.mode = \"{name}\" has no {what}: remove the key, use \
                     optim.table_lr_scale, or choose a mode such as \"{other}\""
                ));
            }
        }
        if let Some(rule) = self.intervene.rules().first()
            && !head.has_role(Role::Shared, vocabulary, d)
        {
            return fail(format!(
                "intervene.{rule} weighs the two sides against each other, but head.mode = \"{name}\" has no parameter that both \
                 reach, and AdamW undoes the scale of a whole gradient: remove the key, or choose a mode such as \"tied\""
            ));
        }
        if self.aux.symmetry > 0.0 && head.one_matrix(vocabulary, d) {
            return fail(format!(
                "aux.symmetry = {}: with head.mode = \"{name}\" E and U are one matrix, whose distance from itself is 0: remove the \
                 key, or choose a mode such as \"untied\"",
                self.aux.symmetry
            ));
        }
        Ok(())
    }
}

/// A mode's name as in TOML.
pub fn mode_name(mode: tiebreak_model::interface::ModeKind) -> String {
    match serde_json::to_value(mode) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{mode:?}"),
    }
}
