//! One optimiser step: the two sides apart from the start, then clip and AdamW.
//!
//! The trunk's leaf is x0 = E\[ids\], looked up off the tape; its gradient is scatter-added into G_in. The head gives the
//! loss, dL/dh and G_out off the tape, and the trunk's backward pass starts from dL/dh.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_kernels::{Moved, Moving, Pending, PendingRows, Precision, Reads, inject};
use tiebreak_model::Model;
use tiebreak_model::interface::{Head, Role, Sides, Table, TableGradient, TablesGradient};

use crate::auxiliary::auxiliary;
use crate::config::RunConfig;
use crate::intervene::{self, Factors, Place, Products};
use crate::optim::{AdamW, is_table};
use crate::provenance::{Provenance, Shared};
use crate::schedule::{learning_rate, table_learning_rate};

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
    /// Of every token, by micro-batch, before `paper_output_scale`.
    pub nats: Vec<Tensor<1>>,
    /// Of E, U and the bias, in the form in which the mode hands them out.
    pub tables: TablesGradient,
    /// The trunk's, in visiting order.
    pub trunk: Vec<Tensor<2>>,
    /// Where they were asked for, or are what there is anyway.
    pub whole: Option<WholeGradients>,
}

impl Gradients {
    /// L in nats per token, before `paper_output_scale`. Reads it.
    pub fn loss(&self) -> f64 {
        let mut reads = Reads::default();
        let places: Vec<Pending> = self.nats.iter().map(|nats_n| reads.values(nats_n.clone())).collect();
        reads.execute();
        mean(&reads, &places)
    }
}

/// The mean over tokens of what was read, by micro-batch.
fn mean(reads: &Reads, nats: &[Pending]) -> f64 {
    let tokens: usize = nats.iter().map(|pending| reads.get(*pending).len()).sum();
    nats.iter().map(|pending| reads.sum(*pending)).sum::<f64>() / tokens as f64
}

/// Gradients of the formed tables.
pub struct WholeGradients {
    /// G_in, `[v, d]`.
    pub input_vd: Tensor<2>,
    /// G_out, `[v, d]`.
    pub output_vd: Tensor<2>,
    /// Of the last micro-batch alone: dL/dx0 as `[n, d]`, and its G_out `[v, d]` (the quantities of the paper's code).
    pub last: (Tensor<2>, Tensor<2>),
}

/// Runs forward and backward over the micro-batches of one step; `precision` is that of the products of the trunk's maps, of
/// attention and of the head. `whole`: tables that the mode hands out in factors are formed, so that G_in and G_out exist; else they
/// are where that is cheaper.
pub fn gradients(
    model: &Model,
    batches: &[MicroBatch],
    paper_output_scale: f64,
    precision: Precision,
    whole: bool,
) -> Gradients {
    let tokens: usize = batches.iter().map(|b| b.inputs.len()).sum();
    let tables = model.interface.tables();
    let device = tables.input.rows_vr.device();
    let input = if whole { Table::whole(tables.input.formed()) } else { tables.input.for_lookup(tokens) };
    let form = |table: &Table| if whole { Table::whole(table.formed()) } else { table.for_head(tokens) };
    let head = Head::new(&tables, &model.logit_map, form);
    let mut nats = Vec::with_capacity(batches.len());
    let mut input_sum: Option<TableGradient> = None;
    let mut output_sum: Option<TableGradient> = None;
    let mut bias_1v: Option<Tensor<2>> = None;
    let mut trunk: Vec<Tensor<2>> = Vec::new();
    let mut last = None;
    for batch in batches {
        let (b, t) = (batch.sequences(), batch.context);
        let ids = |ids: &[i32]| Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [ids.len()]), &device);
        let ids_n = ids(&batch.inputs);
        let x0_nd = input.lookup(ids_n.clone());
        let [_, d] = x0_nd.dims();
        let x0_btd = Tensor::from_inner(x0_nd.reshape([b, t, d])).require_grad();
        let tracked = model.trunk.tracked(precision);
        let h_btd = tracked.forward(x0_btd.clone());
        let state_nd = h_btd.clone().inner().reshape([b * t, d]);
        let scale = paper_output_scale / tokens as f64;
        let found = head.gradients(state_nd, ids(&batch.targets), scale, precision);
        nats.push(found.nats_n);
        let mut tape = inject(h_btd, found.state_nd.reshape([b, t, d])).backward();
        let x0_nd = x0_btd.grad_remove(&mut tape).expect("x0 is a leaf").reshape([b * t, d]);
        input_sum = Some(input.lookup_gradient(input_sum.take(), ids_n, &x0_nd));
        let parts = tracked.parameters().into_iter();
        let parts = parts.map(|p| p.value.grad_remove(&mut tape).expect("every trunk parameter is used"));
        trunk = match trunk.is_empty() {
            true => parts.collect(),
            false => trunk.into_iter().zip(parts).map(|(sum, part)| sum + part).collect(),
        };
        last = Some((x0_nd, found.table.rows_vr.clone()));
        output_sum = Some(match output_sum.take() {
            Some(sum) => sum.plus(found.table),
            None => found.table,
        });
        bias_1v = match (bias_1v, found.bias_1v) {
            (Some(sum_1v), Some(part_1v)) => Some(sum_1v + part_1v),
            (sum, part) => sum.or(part),
        };
    }
    let (Some(input_sum), Some(output_sum), Some(last)) = (input_sum, output_sum, last) else {
        unreachable!("a step has at least one micro-batch")
    };
    let formed = input.map_rd.is_none() && head.table.map_rd.is_none();
    let whole = formed.then(|| WholeGradients {
        input_vd: input_sum.rows_vr.clone(),
        output_vd: output_sum.rows_vr.clone(),
        last,
    });
    let handed_out = |table: &Table, used: &Table, gradient: TableGradient| match used.map_rd {
        Some(_) => gradient,
        None => table.gradient(gradient.rows_vr),
    };
    let tables = TablesGradient {
        input: handed_out(&tables.input, &input, input_sum),
        output: handed_out(&tables.output, &head.table, output_sum),
        bias_1v,
    };
    Gradients { nats, tables, trunk, whole }
}

/// What a run remembers from step to step beside its model and the optimiser's moments.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Of the interventions.
    pub intervene: intervene::Memory,
    /// The rotation of the symmetry loss, `[d, d]`.
    pub rotation_dd: Option<Tensor<2>>,
}

/// What one update did.
pub struct Update {
    /// L in nats per token, before `paper_output_scale`.
    pub loss: f64,
    /// Global gradient norm, as the clip saw it.
    pub norm: f64,
    /// Factor the clip applied.
    pub clip_factor: f64,
    /// Learning rate used for the trunk.
    pub lr: f64,
    /// Learning rate used for the tables, before the factors of their roles.
    pub table_lr: f64,
    /// The table's factors.
    pub factors: Factors,
    /// Weighted sum of the auxiliary losses, and |dL/dE| and |dL/dU| of it with the provenance.
    pub auxiliary: Option<(f64, Option<[f64; 2]>)>,
    /// The two sides, if asked for.
    pub provenance: Option<Provenance>,
    /// Parameters (or "loss") with values that are no finite numbers; then nothing was moved.
    pub nonfinite: Vec<String>,
}

/// Interventions, clip and AdamW for the update that completes `step` (1-based).
///
/// The device is waited for once, before the update, whose clip needs the norm; once more with provenance, after it; and once more
/// before both under a rule that looks at the two sides.
pub fn update(
    model: &mut Model,
    optimiser: &mut AdamW,
    memory: &mut Memory,
    gradients: Gradients,
    config: &RunConfig,
    step: u64,
    with_provenance: bool,
) -> Update {
    let (schedule, steps) = (&config.schedule, config.train.steps);
    let lr = config.optim.lr * learning_rate(schedule, step, steps);
    let table_lr = config.optim.lr * table_learning_rate(schedule, config.optim.table_warmup_steps, step, steps);
    let Gradients { nats, tables, trunk, whole } = gradients;
    let mut reads = Reads::default();
    let nats: Vec<Pending> = nats.into_iter().map(|nats_n| reads.values(nats_n)).collect();
    let needed = || whole.as_ref().expect("whole gradients, which provenance and rules that look at the sides need");
    let extra = auxiliary(model, config, step, &mut memory.rotation_dd, with_provenance, &mut reads);
    let sides = model.interface.pullback(tables);
    let roles: Vec<Role> = model.interface.parameters().iter().map(|p| p.role).collect();
    let shared = || sides.iter().zip(&roles).filter(|(_, role)| **role == Role::Shared).map(|(sides, _)| sides);
    let factors = config.intervene.factors(step, &mut memory.intervene, shared().next().is_some(), || {
        match config.intervene.learned {
            // Two objectives over the parameters that they share.
            true => products(shared().filter_map(|s| Some((s.input.as_ref()?, s.output.as_ref()?)))),
            false => products(std::iter::once((&needed().input_vd, &needed().output_vd))),
        }
    });
    let measured = with_provenance.then(|| {
        let WholeGradients { input_vd, output_vd, last } = needed();
        let shared = shared().cloned().collect::<Vec<_>>();
        // The sides of one whole table are G_in and G_out themselves.
        let table =
            model.interface.one_matrix() && shared.len() == 1 && model.interface.tables().input.map_rd.is_none();
        let shared = if table { Shared::Table } else { Shared::Parts(&shared) };
        Provenance::measure(&mut reads, input_vd, output_vd, shared, last, factors)
    });
    drop(whole);

    let before_clip = config.intervene.position == Place::BeforeClip;
    let (now, later) = if before_clip { (factors, Factors::NONE) } else { (Factors::NONE, factors) };
    let scaled: Vec<Sides> = sides.into_iter().map(|s| scale(s, now)).collect();
    let (auxiliary, extra) = match extra {
        None => (None, vec![None; scaled.len()]),
        Some(found) => {
            let sides = model.interface.pullback(found.gradient).into_iter().map(Some).collect();
            (Some((found.loss, found.squares)), sides)
        }
    };
    // After the clip the sides are still needed apart; before it, adding them first saves a pass. The input's part of what
    // is shared is needed at every step, if ever, for a moment remembers.
    let attributes = config.log.provenance_every > 0;
    let (tables, apart): (Vec<Tensor<2>>, Vec<(Sides, Option<Sides>)>) = scaled
        .into_iter()
        .zip(extra)
        .map(|(sides, extra)| match later == Factors::NONE {
            true => {
                let all = sides.plus(extra);
                let input = Sides { input: all.input.clone().filter(|_| attributes), output: None };
                (all.sum(), (input, None))
            }
            false => (sides.clone().plus(extra.clone()).sum(), (sides, extra)),
        })
        .unzip();
    let squares: Vec<Pending> = tables.iter().chain(&trunk).map(|t| reads.square(t)).collect();
    reads.execute();
    let squares: Vec<f64> = squares.into_iter().map(|place| reads.sum(place)).collect();
    let loss = mean(&reads, &nats);
    let auxiliary = auxiliary.map(|(loss, squares)| {
        (loss.read(&reads), squares.map(|squares| squares.map(|place| reads.sum(place).sqrt())))
    });
    let mut provenance = measured.map(|measured| measured.read(&reads));
    let norm = squares.iter().sum::<f64>().sqrt();
    let clip_factor = config.optim.clip_factor(norm);

    let mut nonfinite: Vec<String> = Vec::new();
    if !(loss + auxiliary.map_or(0.0, |(loss, _)| loss)).is_finite() {
        nonfinite.push("loss".into());
    }
    let paths = model.parameters().into_iter().map(|p| p.path);
    nonfinite
        .extend(paths.zip(&squares).filter(|(_, s)| !s.is_finite()).map(|(path, _)| format!("gradient of {path}")));
    if nonfinite.is_empty() {
        let tables = tables.into_iter().zip(apart).zip(roles).map(|((sum, (sides, extra)), role)| {
            let apart = scale(sides, later).plus(extra);
            let input = apart.input.clone().filter(|_| attributes && role == Role::Shared);
            (if later == Factors::NONE { sum } else { apart.sum() }, input)
        });
        let mut gradients = tables.chain(trunk.into_iter().map(|g| (g, None))).collect::<Vec<_>>().into_iter();
        let (mut reads, mut moving) = (Reads::default(), Vec::<Moving>::new());
        model.visit(&mut |parameter, role| {
            let (gradient, input) = gradients.next().expect("one gradient per parameter");
            let decay = config.optim.decay(parameter, role);
            let lr = if is_table(role) { table_lr } else { lr } * config.optim.lr_scale(role);
            optimiser.update(parameter, gradient, clip_factor, lr, decay, step);
            if let Some(input) = input {
                let reads = with_provenance.then_some(&mut reads);
                moving.extend(optimiser.attribute(&parameter.path, &input, clip_factor, lr, step, reads));
            } else if with_provenance && matches!(role, Some(Role::Input | Role::Output)) {
                let whole = optimiser.update_square(&parameter.path, lr, step, &mut reads);
                moving.extend(whole.map(|m| if role == Some(Role::Input) { m.all_input() } else { m }));
            }
        });
        if let Some(provenance) = &mut provenance {
            reads.execute();
            let mut moved = Moved::default();
            moving.into_iter().for_each(|m| moved += m.read(&reads));
            provenance.moved = Some(moved);
        }
        optimiser.carry(&model.interface.after_step(step));
    }
    Update { loss, norm, clip_factor, lr, table_lr, factors, auxiliary, provenance, nonfinite }
}

/// Of pairs of sides together.
fn products<'a>(pairs: impl Iterator<Item = (&'a Tensor<2>, &'a Tensor<2>)>) -> Products {
    let mut reads = Reads::default();
    let places: Vec<PendingRows> = pairs.map(|(input, output)| reads.row_products(input, output)).collect();
    reads.execute();
    let sums = places.into_iter().map(|place| {
        let rows = reads.rows(place);
        let [input, output, dot] = [rows.aa, rows.bb, rows.ab].map(|rows| rows.iter().sum::<f64>());
        Products { input, output, dot }
    });
    sums.sum()
}

fn scale(sides: Sides, factors: Factors) -> Sides {
    let times = |side: Option<Tensor<2>>, s: f64| if s == 1.0 { side } else { side.map(|g| g.mul_scalar(s)) };
    Sides { input: times(sides.input, factors.input), output: times(sides.output, factors.output) }
}

/// Reads one tensor to the host as f64.
pub fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}
