//! One optimiser step: the two sides apart from the start, then clip and AdamW.
//!
//! The trunk's leaf is x0 = E\[ids\], looked up off the tape; its gradient is scatter-added into G_in. The head gives the
//! loss, dL/dh and G_out off the tape, and the trunk's backward pass starts from dL/dh.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_kernels::{Moved, Precision, cross_entropy_gradients, inject, scatter_add, squares};
use tiebreak_model::Model;
use tiebreak_model::interface::{Role, Sides};

use crate::config::RunConfig;
use crate::intervene::{Factors, Place};
use crate::optim::AdamW;
use crate::provenance::{Provenance, Shared};

/// Token windows of one forward pass, row-major `[sequences, context]`.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Ids to look up.
    pub inputs: Vec<i32>,
    /// Ids to predict.
    pub targets: Vec<i32>,
    /// Tokens per sequence.
    pub context: usize,
}

impl MicroBatch {
    fn sequences(&self) -> usize {
        self.inputs.len() / self.context
    }
}

/// Gradients of L = sum of nats / tokens of the whole step, before the table's scales and the clip;
/// `paper_output_scale`, which acts inside the head, is in all of them.
pub struct Gradients {
    /// L in nats per token, before `paper_output_scale`.
    pub loss: f64,
    /// G_in, `[v, d]`.
    pub input_vd: Tensor<2>,
    /// G_out, `[v, d]`.
    pub output_vd: Tensor<2>,
    /// The trunk's, in visiting order.
    pub trunk: Vec<Tensor<2>>,
    /// Of the last micro-batch alone: dL/dx0 as `[n, d]`, and its G_out `[v, d]` (the quantities of the paper's code).
    pub last: (Tensor<2>, Tensor<2>),
}

/// Runs forward and backward over the micro-batches of one step; `precision` is that of the products of the
/// trunk's maps, of attention and of the head.
pub fn gradients(model: &Model, batches: &[MicroBatch], paper_output_scale: f64, precision: Precision) -> Gradients {
    let tokens: usize = batches.iter().map(|b| b.inputs.len()).sum();
    let pair = model.interface.pair();
    let device = pair.input_vd.device();
    let [v, d] = pair.input_vd.dims();
    let mut nats = 0.0;
    let mut input_vd: Option<Tensor<2>> = None;
    let mut output_vd: Option<Tensor<2>> = None;
    let mut trunk: Vec<Tensor<2>> = Vec::new();
    let mut last = None;
    for batch in batches {
        let (b, t) = (batch.sequences(), batch.context);
        let ids = |ids: &[i32]| Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [ids.len()]), &device);
        let ids_n = ids(&batch.inputs);
        let x0_btd = Tensor::from_inner(Model::lookup(&pair.input_vd, ids_n.clone().reshape([b, t]))).require_grad();
        let tracked = model.trunk.tracked(precision);
        let h_btd = tracked.forward(x0_btd.clone());
        let state_nd = h_btd.clone().inner().reshape([b * t, d]);
        let scale = paper_output_scale / tokens as f64;
        let head = cross_entropy_gradients(state_nd, &pair.output_vd, ids(&batch.targets), scale, precision);
        nats += host(&head.nats_n).iter().sum::<f64>();
        let mut tape = inject(h_btd, head.state_nd.reshape([b, t, d])).backward();
        let x0_nd = x0_btd.grad_remove(&mut tape).expect("x0 is a leaf").reshape([b * t, d]);
        input_vd = Some(scatter_add(input_vd.take(), v, ids_n, &x0_nd));
        let parts = tracked.parameters().into_iter();
        let parts = parts.map(|p| p.value.grad_remove(&mut tape).expect("every trunk parameter is used"));
        trunk = match trunk.is_empty() {
            true => parts.collect(),
            false => trunk.into_iter().zip(parts).map(|(sum, part)| sum + part).collect(),
        };
        output_vd = Some(match output_vd.take() {
            Some(sum_vd) => sum_vd + head.output_vd.clone(),
            None => head.output_vd.clone(),
        });
        last = Some((x0_nd, head.output_vd));
    }
    let (Some(input_vd), Some(output_vd), Some(last)) = (input_vd, output_vd, last) else {
        unreachable!("a step has at least one micro-batch")
    };
    Gradients { loss: nats / tokens as f64, input_vd, output_vd, trunk, last }
}

/// What one update did.
pub struct Update {
    /// Global gradient norm, as the clip saw it.
    pub norm: f64,
    /// Factor the clip applied.
    pub clip_factor: f64,
    /// Learning rate used for the trunk.
    pub lr: f64,
    /// The two sides, if asked for.
    pub provenance: Option<Provenance>,
    /// Parameters (or "loss") with values that are no finite numbers; then nothing was moved.
    pub nonfinite: Vec<String>,
}

/// Interventions, clip and AdamW for the update that completes `step` (1-based).
pub fn update(
    model: &mut Model,
    optimiser: &mut AdamW,
    gradients: Gradients,
    config: &RunConfig,
    step: u64,
    with_provenance: bool,
) -> Update {
    let lr = config.optim.lr * crate::schedule::learning_rate(&config.schedule, step, config.train.steps);
    let factors = config.intervene.factors();
    let Gradients { loss, input_vd, output_vd, trunk, last } = gradients;
    let sides = model.interface.pullback(input_vd.clone(), output_vd.clone());
    let roles: Vec<Role> = model.interface.parameters().iter().map(|p| p.role).collect();
    let mut provenance = with_provenance.then(|| {
        let shared = model.interface.parameters().into_iter().zip(&sides);
        let shared = shared.filter(|(p, _)| p.role == Role::Shared).map(|(_, s)| s.clone()).collect::<Vec<_>>();
        let shared = if model.interface.one_matrix() { Shared::Table } else { Shared::Parts(&shared) };
        Provenance::measure(&input_vd, &output_vd, shared, last, factors)
    });
    drop((input_vd, output_vd));

    let before_clip = config.intervene.position == Place::BeforeClip;
    let (now, later) = if before_clip { (factors, Factors::NONE) } else { (Factors::NONE, factors) };
    let scaled: Vec<Sides> = sides.into_iter().map(|s| scale(s, now)).collect();
    // After the clip the sides are still needed apart; before it, adding them first saves a pass. The input's part of what
    // is shared is needed at every step, if ever, for a moment remembers.
    let attributes = config.log.provenance_every > 0;
    let (tables, apart): (Vec<Tensor<2>>, Vec<Sides>) = scaled
        .into_iter()
        .map(|s| match later == Factors::NONE {
            true => (Sides { input: s.input.clone().filter(|_| attributes), output: None }, s),
            false => (s.clone(), s),
        })
        .map(|(kept, s)| (s.sum(), kept))
        .unzip();
    let squares = squares(tables.iter().chain(&trunk));
    let norm = squares.iter().sum::<f64>().sqrt();
    let clip_factor = config.optim.clip_factor(norm);

    let mut nonfinite: Vec<String> = Vec::new();
    if !loss.is_finite() {
        nonfinite.push("loss".into());
    }
    let paths = model.parameters().into_iter().map(|p| p.path);
    nonfinite
        .extend(paths.zip(&squares).filter(|(_, s)| !s.is_finite()).map(|(path, _)| format!("gradient of {path}")));
    if nonfinite.is_empty() {
        let tables = tables.into_iter().zip(apart).zip(roles).map(|((sum, apart), role)| {
            let apart = scale(apart, later);
            let input = apart.input.clone().filter(|_| attributes && role == Role::Shared);
            (if later == Factors::NONE { sum } else { apart.sum() }, input)
        });
        let mut gradients = tables.chain(trunk.into_iter().map(|g| (g, None))).collect::<Vec<_>>().into_iter();
        let mut moved = Moved::default();
        model.visit(&mut |parameter, role| {
            let (gradient, input) = gradients.next().expect("one gradient per parameter");
            let (lr, decay) = (lr * config.optim.lr_scale(role), config.optim.decay(parameter, role));
            optimiser.update(parameter, gradient, clip_factor, lr, decay, step);
            if let Some(input) = input {
                moved += optimiser.attribute(&parameter.path, &input, clip_factor, lr, step);
            } else if with_provenance && matches!(role, Some(Role::Input | Role::Output)) {
                let whole = optimiser.update_square(&parameter.path, lr, step);
                moved += Moved { input: if role == Some(Role::Input) { whole } else { 0.0 }, whole };
            }
        });
        if let Some(provenance) = &mut provenance {
            provenance.moved = Some(moved);
        }
    }
    Update { norm, clip_factor, lr, provenance, nonfinite }
}

fn scale(sides: Sides, factors: Factors) -> Sides {
    let times = |side: Option<Tensor<2>>, s: f64| if s == 1.0 { side } else { side.map(|g| g.mul_scalar(s)) };
    Sides { input: times(sides.input, factors.input), output: times(sides.output, factors.output) }
}

/// Reads one tensor to the host as f64.
pub fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}
