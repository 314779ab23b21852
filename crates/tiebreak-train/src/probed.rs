//! A run's model, loaded to be looked into.

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use tiebreak_data::{Error, Prepared, prepare};
use tiebreak_kernels::{LogitHead, LogitMap};
use tiebreak_model::{Model, Placement};
use tiebreak_probe::ProbedModel;

use crate::checkpoint;
use crate::config::{self, RunConfig};
use crate::device::{self, DeviceSpec};
use crate::folder::RunFolder;

/// A model at one step of a run.
pub struct TrainedModel {
    /// The run's resolved configuration.
    pub config: RunConfig,
    /// The run's folder.
    pub folder: RunFolder,
    /// Completed optimiser steps.
    pub step: u64,
    /// Its text and tokenizer.
    pub data: Prepared,
    /// Trunk and tables.
    pub model: Model,
}

impl TrainedModel {
    /// Loads the checkpoint of `step`, or the last one, of the run in `folder`.
    pub fn load(folder: &Path, step: Option<u64>) -> Result<Self, Error> {
        let name = folder.display();
        if !RunFolder::is_run(folder) {
            return Err(Error::Input(format!(
                "{name}: no run (it lacks config.toml or status.json); give a run's folder, as `train` prints it"
            )));
        }
        let folder = RunFolder(folder.to_path_buf());
        let config = config::load(&folder.config(), &[])?.config;
        let checkpoints = folder.checkpoints();
        let kept = checkpoint::list(&checkpoints)?;
        let step = match (step, kept.last()) {
            (_, None) => {
                return Err(Error::Input(format!(
                    "{name}: has no checkpoint yet; train it first (--resume goes on with it)"
                )));
            }
            (None, Some(last)) => *last,
            (Some(step), Some(_)) if kept.contains(&step) => step,
            (Some(step), Some(_)) => {
                let kept = kept.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                return Err(Error::Input(format!(
                    "{name}: no checkpoint of step {step} was kept; there are steps {kept} \
                     (checkpoint.every and checkpoint.keep decide)"
                )));
            }
        };
        let data = prepare(&config.data)?;
        if let Some(recorded) = folder.tokenizer_hash()?.filter(|recorded| recorded != data.tokenizer.hash()) {
            return Err(Error::Input(format!(
                "{name}: trained with another tokenizer than data.tokenizer = {:?} gives now ({recorded:.12}, now {:.12}): its \
                 ids would stand for other text. Has the corpus or the tokenizer's file changed? Put it back, or train anew",
                config.data.tokenizer,
                data.tokenizer.hash()
            )));
        }
        let device = device::open(config.device.parse::<DeviceSpec>()?.kind()?)?;
        let vocabulary = data.tokenizer.vocabulary();
        let context = config.data.context_length;
        let at = Placement::f32(&device);
        let mut model = Model::init(&config.model, &config.head, vocabulary, context, config.seed, &at);
        checkpoint::load_model(&checkpoints.join(format!("step-{step}")), &mut model, &device)?;
        Ok(Self { config, folder, step, data, model })
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

    fn head(&self) -> LogitHead {
        let tables = self.model.interface.tables();
        let map = LogitMap { bias_1v: tables.bias_1v.clone(), ..self.model.logit_map.clone() };
        LogitHead { output_vd: tables.output.formed(), map }
    }
}

impl TrainedModel {
    /// The model for probes that look while something else holds the rest.
    pub fn probed(&self) -> Probed<'_> {
        Probed { model: &self.model, context: self.config.data.context_length }
    }
}

impl ProbedModel for TrainedModel {
    fn layers(&self) -> usize {
        self.probed().layers()
    }

    fn context(&self) -> usize {
        self.probed().context()
    }

    fn device(&self) -> Device {
        self.probed().device()
    }

    fn input_vd(&self) -> Tensor<2> {
        self.probed().input_vd()
    }

    fn output_vd(&self) -> Tensor<2> {
        self.probed().output_vd()
    }

    fn states(&self, ids_bt: Tensor<2, Int>) -> Vec<Tensor<3>> {
        self.probed().states(ids_bt)
    }

    fn final_norm(&self, state_nd: Tensor<2>) -> Tensor<2> {
        self.probed().final_norm(state_nd)
    }

    fn norm_parameters(&self) -> Vec<Tensor<2>> {
        self.probed().norm_parameters()
    }

    fn head(&self) -> LogitHead {
        self.probed().head()
    }
}
