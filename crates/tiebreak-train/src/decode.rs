//! Continuing a text with a run's model.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_kernels::LogitHead;
use tiebreak_model::Model;
use tiebreak_model::generation::Decoder;
use tiebreak_model::trunk::Cache;
use tiebreak_probe::ProbedModel;

use crate::{Probed, TrainedModel};

/// Reads ids one after the other; keys and values of the earlier ones are kept, so that an id costs one row of every
/// product.
pub struct CachedDecoder<'a> {
    model: Probed<'a>,
    input_vd: Tensor<2>,
    head: LogitHead,
    cache: Cache,
}

impl<'a> CachedDecoder<'a> {
    /// A decoder that has read nothing.
    pub fn new(model: Probed<'a>) -> Self {
        Self { input_vd: model.input_vd(), head: model.head(), cache: model.model.trunk.cache(), model }
    }
}

impl<D> TrainedModel<D> {
    /// A decoder that has read nothing.
    pub fn decoder(&self) -> CachedDecoder<'_> {
        CachedDecoder::new(self.probed())
    }
}

impl Decoder for CachedDecoder<'_> {
    fn context(&self) -> usize {
        self.model.context()
    }

    fn restart(&mut self) {
        self.cache = self.model.model.trunk.cache();
    }

    fn extend(&mut self, ids: &[u32]) -> Vec<f32> {
        let (t, device) = (ids.len(), self.input_vd.device());
        let ids: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, t]), &device);
        let h_btd = self.model.model.trunk.extend(Model::lookup(&self.input_vd, ids_bt), &mut self.cache);
        let [_, _, d] = h_btd.dims();
        let last_nd = h_btd.slice_dim(1, t - 1..t).reshape([1, d]);
        self.head.logits(last_nd).into_data().iter::<f32>().collect()
    }
}
