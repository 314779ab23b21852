//! A run's model, loaded to be looked into.

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use tiebreak_data::{Error, Prepared, Tokenizer};
use tiebreak_kernels::{LogitHead, LogitMap};
use tiebreak_model::interface::Role;
use tiebreak_model::{Model, Placement};
use tiebreak_probe::ProbedModel;

use crate::checkpoint;
use crate::config::RunConfig;
use crate::device;
use crate::folder::RunFolder;
use crate::records::{Records, text};

/// A model at one step of a run, with its text or only its [`Vocabulary`].
pub struct TrainedModel<D = Prepared> {
    /// The run's resolved configuration.
    pub config: RunConfig,
    /// The run's folder.
    pub folder: RunFolder,
    /// Completed optimiser steps.
    pub step: u64,
    /// Its text and tokenizer.
    pub data: D,
    /// Trunk and tables.
    pub model: Model,
}

/// What a run's ids stand for; its text is not needed for that.
pub struct Vocabulary {
    /// The tokenizer that the run was trained with.
    pub tokenizer: Tokenizer,
    /// How often the training text holds each id, where that is known still.
    pub counts: Option<Vec<u64>>,
}

impl TrainedModel {
    /// Loads the checkpoint of `step`, or the last one, of the run in `folder`, and the text that it was trained on.
    ///
    /// # Errors
    /// [`Error::Input`] as [`Records::open`], for a checkpoint that was not kept or is not as it was written, and for a text
    /// that is no longer the run's.
    pub fn load(folder: &Path, step: Option<u64>) -> Result<Self, Error> {
        let records = Records::open(folder)?;
        let step = kept_step(&records.folder, step)?;
        let data = text(&records.folder, &records.config, &records.data)?;
        Self::of(records, step, data)
    }
}

impl TrainedModel<Vocabulary> {
    /// The same without the text.
    ///
    /// # Errors
    /// [`Error::Input`] as [`TrainedModel::load`], but for the text.
    pub fn look(folder: &Path, step: Option<u64>) -> Result<Self, Error> {
        let records = Records::open(folder)?;
        let step = kept_step(&records.folder, step)?;
        let tokenizer = records.tokenizer()?;
        let counts = records.counts(&tokenizer);
        Self::of(records, step, Vocabulary { tokenizer, counts })
    }
}

impl<D> TrainedModel<D> {
    fn of(records: Records, step: u64, data: D) -> Result<Self, Error> {
        let Records { folder, config, data: recorded, identity } = records;
        let device = device::open_to_look(&config, recorded.vocabulary)?;
        let (vocabulary, context) = (recorded.vocabulary, config.data.context_length);
        let at = Placement::f32(&device);
        let mut model = Model::init(&config.model, &config.head, vocabulary, context, config.seed, &at);
        checkpoint::load_model(&folder.checkpoints(), step, &identity, &mut model, &device)?;
        Ok(Self { config, folder, step, data, model })
    }
}

/// `step`, or the last of which a checkpoint was kept.
fn kept_step(folder: &RunFolder, step: Option<u64>) -> Result<u64, Error> {
    let name = folder.0.display();
    let kept = checkpoint::list(&folder.checkpoints())?;
    match (step, kept.last()) {
        (_, None) => {
            Err(Error::Input(format!("{name}: has no checkpoint yet; train it first (--resume goes on with it)")))
        }
        (None, Some(last)) => Ok(*last),
        (Some(step), Some(_)) if kept.contains(&step) => Ok(step),
        (Some(step), Some(_)) => Err(Error::Input(format!(
            "{name}: no checkpoint of step {step} was kept (checkpoint.every and checkpoint.keep decide); {}",
            checkpoint::other_steps(&kept)
        ))),
    }
}

/// A model as probes see it.
pub struct Probed<'a> {
    /// The model.
    pub model: &'a Model,
    /// Most positions of a sequence.
    pub context: usize,
}

impl ProbedModel for Probed<'_> {
    fn layers(&self) -> usize {
        self.model.trunk.layers()
    }

    fn context(&self) -> usize {
        self.context
    }

    fn device(&self) -> Device {
        self.model.interface.tables().input.rows_vr.device()
    }

    fn input_vd(&self) -> Tensor<2> {
        self.model.interface.tables().input.formed()
    }

    fn output_vd(&self) -> Tensor<2> {
        self.model.interface.tables().output.formed()
    }

    fn states(&self, ids_bt: Tensor<2, Int>) -> Vec<Tensor<3>> {
        self.model.trunk.states(Model::lookup(&self.input_vd(), ids_bt))
    }

    fn final_norm(&self, state_nd: Tensor<2>) -> Tensor<2> {
        let [n, d] = state_nd.dims();
        self.model.trunk.final_norm(state_nd.reshape([1, n, d])).reshape([n, d])
    }

    fn norm_parameters(&self) -> Vec<Tensor<2>> {
        self.model.trunk.final_norm_parameters().into_iter().map(|p| p.value).collect()
    }

    fn head_parameters(&self) -> Vec<Tensor<2>> {
        let parameters = self.model.interface.parameters().into_iter().filter(|p| p.role != Role::Input);
        parameters
            .map(|p| p.parameter.value.clone())
            .chain(self.model.interface.state().into_iter().map(|p| p.value.clone()))
            .collect()
    }

    fn head(&self) -> LogitHead {
        let tables = self.model.interface.tables();
        let map = LogitMap { bias_1v: tables.bias_1v.clone(), ..self.model.logit_map.clone() };
        LogitHead { output_vd: tables.output.formed(), map }
    }
}

impl<D> TrainedModel<D> {
    /// The model as probes see it.
    pub fn probed(&self) -> Probed<'_> {
        Probed { model: &self.model, context: self.config.data.context_length }
    }
}
