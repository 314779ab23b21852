//! A run's model, loaded to be looked into.

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use tiebreak_data::{Error, Prepared, prepare};
use tiebreak_model::interface::{Head, Table};
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
        let device = device::open(config.device.parse::<DeviceSpec>()?.kind()?)?;
        let vocabulary = data.tokenizer.vocabulary();
        let context = config.data.context_length;
        let at = Placement::f32(&device);
        let mut model = Model::init(&config.model, &config.head, vocabulary, context, config.seed, &at);
        checkpoint::load_model(&checkpoints.join(format!("step-{step}")), &mut model, &device)?;
        Ok(Self { config, folder, step, data, model })
    }
}

impl ProbedModel for TrainedModel {
    fn layers(&self) -> usize {
        self.model.trunk.layers()
    }

    fn context(&self) -> usize {
        self.config.data.context_length
    }

    fn device(&self) -> Device {
        self.input_vd().device()
    }

    fn input_vd(&self) -> Tensor<2> {
        self.model.interface.pair().input_vd
    }

    fn output_vd(&self) -> Tensor<2> {
        self.model.interface.pair().output_vd
    }

    fn states(&self, ids_bt: Tensor<2, Int>) -> Vec<Tensor<3>> {
        self.model.trunk.states(Model::lookup(&self.input_vd(), ids_bt))
    }

    fn final_norm(&self, state_nd: Tensor<2>) -> Tensor<2> {
        let [n, d] = state_nd.dims();
        self.model.trunk.final_norm(state_nd.reshape([1, n, d])).reshape([n, d])
    }

    fn logits(&self, normed_nd: Tensor<2>) -> Tensor<2> {
        let tables = self.model.interface.tables();
        Head::new(&tables, &self.model.logit_map, |table| Table::whole(table.formed())).logits(normed_nd)
    }
}
