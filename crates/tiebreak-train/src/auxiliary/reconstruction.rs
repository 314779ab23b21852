//! Every id is to be predicted from its own row of E: -log softmax(U e_v)\[v\], with the head's bias and soft-cap.
//!
//! On a sample: [`SAMPLE`] ids a step, drawn uniformly from the vocabulary with replacement. Cost: as much as the head for that many
//! tokens more, so an eighth of it at 2,048 tokens a step. In f32, whatever the precision of the run.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_kernels::{Precision, Reads};
use tiebreak_model::Model;
use tiebreak_model::interface::{Head, LogitMap, Table, Tables};
use tiebreak_model::rng::Stream;

use super::{Loss, Part};

/// Ids a step.
pub(super) const SAMPLE: usize = 256;

/// Multiply-adds of a step: the head's product, forward and backward.
pub(super) fn cost(v: usize, d: usize) -> usize {
    3 * SAMPLE * v * d
}

/// `weight` times the mean over the step's sample.
pub(super) fn part(
    model: &Model,
    tables: &Tables,
    seed: u64,
    step: u64,
    weight: f64,
    whole: bool,
    reads: &mut Reads,
) -> Part {
    let [v, _] = tables.input.rows_vr.dims();
    let mut stream = Stream::new(seed, &format!("aux/reconstruction/{step}"));
    let ids: Vec<i32> = (0..SAMPLE).map(|_| stream.below(v) as i32).collect();
    let ids_n = Tensor::<1, Int>::from_data(TensorData::new(ids, [SAMPLE]), &tables.input.rows_vr.device());
    let form = |table: Table| if whole { Table::whole(table.formed()) } else { table };
    let input = form(tables.input.for_lookup(SAMPLE));
    // The z-loss regularises the language model alone.
    let map = LogitMap { z_loss: 0.0, ..model.logit_map.clone() };
    let head = Head::new(tables, &map, |table| form(table.for_head(SAMPLE)));
    let found = head.gradients(input.lookup(ids_n.clone()), ids_n.clone(), weight / SAMPLE as f64, Precision::F32);
    Part {
        loss: Loss(vec![(reads.values(found.nats_n), weight / SAMPLE as f64)]),
        input: input.lookup_gradient(None, ids_n, &found.state_nd),
        output: found.table,
        bias_1v: found.bias_1v,
    }
}
