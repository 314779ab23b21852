//! How much each block adds to the residual stream.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_kernels::{PendingRows, Reads};
use tiebreak_model::Model;

use crate::step::MicroBatch;
use crate::track::Tag;

/// `residual/<layer>/update_over_stream`: the mean over tokens of |x_k - x_(k-1)| / |x_(k-1)| for layer k = 1 to L, where x_k is
/// the residual stream `[d]` behind block k and x_0 what enters the first block. A block is attention and MLP together. A token
/// whose stream is zero has no ratio.
pub fn update_over_stream(model: &Model, batches: impl Iterator<Item = MicroBatch>) -> Vec<(Tag, f64)> {
    let input_vd = model.interface.pair().input_vd;
    let [_, d] = input_vd.dims();
    let mut sums = vec![(0.0, 0usize); model.trunk.layers()];
    for batch in batches {
        let (n, t) = (batch.inputs.len(), batch.context);
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(batch.inputs, [n / t, t]), &input_vd.device());
        let states = model.trunk.states(Model::lookup(&input_vd, ids_bt));
        let states: Vec<Tensor<2>> = states.into_iter().map(|x_btd| x_btd.reshape([n, d])).collect();
        let mut reads = Reads::default();
        let pending: Vec<PendingRows> =
            states.windows(2).map(|pair| reads.row_products(&(pair[1].clone() - pair[0].clone()), &pair[0])).collect();
        reads.execute();
        for (sum, pending) in sums.iter_mut().zip(pending) {
            let found = reads.rows(pending);
            for (update, stream) in found.aa.into_iter().zip(found.bb).filter(|(_, stream)| *stream > 0.0) {
                sum.0 += (update / stream).sqrt();
                sum.1 += 1;
            }
        }
    }
    let layers = sums.into_iter().enumerate().filter(|(_, (_, tokens))| *tokens > 0);
    layers.map(|(k, (sum, n))| (format!("residual/{}/update_over_stream", k + 1).into(), sum / n as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use tiebreak_model::interface::HeadConfig;
    use tiebreak_model::{ModelConfig, Placement};

    fn model() -> Model {
        let shape = ModelConfig { d_model: 8, n_layers: 2, n_heads: 2, d_ff: 12, ..ModelConfig::default() };
        Model::init(&shape, &HeadConfig::default(), 11, 4, 0, &Placement::f32(&Device::flex()))
    }

    fn batch(ids: &[i32]) -> MicroBatch {
        MicroBatch { inputs: ids.to_vec(), targets: vec![0; ids.len()], context: 4 }
    }

    fn host(x_btd: &Tensor<3>) -> Vec<f64> {
        crate::step::host(x_btd)
    }

    #[test]
    fn the_mean_over_tokens_of_every_layer() {
        let model = model();
        let ids = [1, 5, 5, 2, 10, 0, 3, 4];
        let found = update_over_stream(&model, [batch(&ids[..4]), batch(&ids[4..])].into_iter());
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(ids.to_vec(), [2, 4]), &Device::flex());
        let states = model.trunk.states(Model::lookup(&model.interface.pair().input_vd, ids_bt));
        assert_eq!(found.len(), 2);
        for (k, (tag, value)) in found.iter().enumerate() {
            let (before, after) = (host(&states[k]), host(&states[k + 1]));
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let ratio = |token: usize| {
                let row = token * 8..token * 8 + 8;
                let change = before[row.clone()].iter().zip(&after[row.clone()]).map(|(a, b)| b - a);
                norm(&mut change.into_iter()) / norm(&mut before[row].iter().copied())
            };
            let mean = (0..8).map(ratio).sum::<f64>() / 8.0;
            assert_eq!(tag, &format!("residual/{}/update_over_stream", k + 1));
            assert!((value - mean).abs() < 1e-5 * mean && *value > 0.0, "{tag}: {value} instead of {mean}");
        }
    }

    #[test]
    fn blocks_that_add_nothing_and_streams_of_zero() {
        let mut model = model();
        model.visit(&mut |p, _| {
            if p.path.starts_with("blocks.1.") {
                p.value = p.value.zeros_like();
            }
        });
        let found = update_over_stream(&model, [batch(&[1, 2, 3, 4])].into_iter());
        assert!(found[0].1 > 0.0 && found[1].1 == 0.0, "{found:?}");
        // An id whose row is zero is left out; with no other there is no value.
        model.visit(&mut |p, role| {
            if role.is_some() {
                p.value = p.value.zeros_like();
            }
        });
        assert!(update_over_stream(&model, [batch(&[1, 2, 3, 4])].into_iter()).is_empty());
    }
}
