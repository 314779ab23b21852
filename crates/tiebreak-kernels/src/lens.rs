//! The head as lenses use it: how far the distribution that an early state gives is from the final state's, in chunks of
//! tokens, off the tape.
//!
//! With p the final distribution and q the lens's, KL(p || q) = sum p (ln p - ln q), and with respect to the lens's normed
//! state its gradient is (q - p) U: the table itself needs none, so a lens costs two products per token and point, and
//! the final distribution is computed once for all points. Logits of more than one chunk never exist at once.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor, activation};
use rayon::prelude::*;

use crate::CHUNK;
use crate::flex::{Unfilled, from_values, indices, plain, shape, tensor, values};
use crate::largest::rows_at_a_time;
use crate::logit_map::{LogitMap, RowMap};
use crate::matrix::{Into, Matrix, MatrixMut, multiply_parallel};
use crate::simd::{LANES, exp, fold, largest, simd, sum2};

/// Rows of logits per task.
const ROWS: usize = 8;

/// How logits follow from normed states: the map of h U^T.
#[derive(Clone, Debug)]
pub struct LogitHead {
    /// U, `[v, d]`.
    pub output_vd: Tensor<2>,
    /// Bias and soft-cap; lenses have no z-loss.
    pub map: LogitMap,
}

impl LogitHead {
    /// A head that is its table alone.
    pub fn new(output_vd: Tensor<2>) -> Self {
        Self { output_vd, map: LogitMap::default() }
    }

    /// Logits `[n, v]` of normed states `[n, d]`, composed of tensor operations.
    pub fn logits(&self, state_nd: Tensor<2>) -> Tensor<2> {
        self.map.apply(state_nd.matmul(self.output_vd.clone().transpose()))
    }
}

/// Where a distribution that is compared with the final one comes from.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack of one call")]
pub enum Source {
    /// The head, over normed states `[n, d]`.
    States(Tensor<2>),
    /// A list of distributions: log-probabilities (up to a constant per row) `[g, v]`, and which row each token has, `[n]`.
    Rows(Tensor<2>, Tensor<1, Int>),
}

/// What a distribution says at one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The id it holds most likely, the first of equals.
    pub top: usize,
    /// That id's probability.
    pub p: f32,
    /// Place of the final distribution's top id among its ids, from 1: 1 exactly where both have one top.
    pub rank: usize,
    /// KL(final || this), nats.
    pub kl_nats: f32,
    /// Its entropy, nats.
    pub entropy_nats: f32,
    /// Probability of the token that is read (the current one, not the next).
    pub p_input: f32,
    /// -ln probability of the next token, where that is known.
    pub nats: Option<f32>,
}

impl Reading {
    /// KL(final || this), bits.
    pub fn kl_bits(&self) -> f64 {
        f64::from(self.kl_nats) / std::f64::consts::LN_2
    }

    /// Its entropy, bits.
    pub fn entropy_bits(&self) -> f64 {
        f64::from(self.entropy_nats) / std::f64::consts::LN_2
    }
}

/// KL(final || lens) of one point in nats per token `[n]`, and its gradient with respect to the lens's normed states.
pub struct LensGradients {
    /// KL in nats, `[n]`.
    pub kl_n: Tensor<1>,
    /// dL/dh of L = `scale` times the sum of KL, `[n, d]`.
    pub state_nd: Tensor<2>,
}

/// KL(final || lens) in nats per token, `[n]` for each of `lenses`: normed states `[n, d]` like `final_nd`.
pub fn lens_kl(final_nd: &Tensor<2>, lenses: &[Tensor<2>], head: &LogitHead) -> Vec<Tensor<1>> {
    divergences(final_nd, lenses, head, None, &mut None).into_iter().map(|(kl_n, _)| kl_n).collect()
}

/// The same with gradients. `see` is told the final distribution, row-major `[m, v]`, of m tokens from a first one on, in
/// order.
pub fn lens_gradients(
    final_nd: &Tensor<2>,
    lenses: &[Tensor<2>],
    head: &LogitHead,
    scale: f64,
    see: &mut dyn FnMut(usize, &[f32]),
) -> Vec<LensGradients> {
    let found = divergences(final_nd, lenses, head, Some(scale), &mut Some(see));
    let parts = found.into_iter();
    parts.map(|(kl_n, state_nd)| LensGradients { kl_n, state_nd: state_nd.expect("asked for") }).collect()
}

/// What each source says at every token, beside the final distribution.
///
/// # Panics
/// If an id is not below `v`, or a row not below `g`.
pub fn readings(
    final_nd: &Tensor<2>,
    sources: &[Source],
    head: &LogitHead,
    inputs_n: &Tensor<1, Int>,
    targets_n: Option<&Tensor<1, Int>>,
) -> Vec<Vec<Reading>> {
    native_readings(final_nd, sources, head, inputs_n, targets_n)
        .unwrap_or_else(|| composed_readings(final_nd, sources, head, inputs_n, targets_n))
}

type Divergence = (Tensor<1>, Option<Tensor<2>>);

/// Told the final distribution of a chunk, from its first token on.
type See<'a> = &'a mut dyn FnMut(usize, &[f32]);

fn divergences(
    final_nd: &Tensor<2>,
    lenses: &[Tensor<2>],
    head: &LogitHead,
    scale: Option<f64>,
    see: &mut Option<See>,
) -> Vec<Divergence> {
    match native(final_nd, lenses, head, scale.map(|s| s as f32), see) {
        Some(found) => found,
        None => composed(final_nd, lenses, head, scale, see),
    }
}

fn composed(
    final_nd: &Tensor<2>,
    lenses: &[Tensor<2>],
    head: &LogitHead,
    scale: Option<f64>,
    see: &mut Option<See>,
) -> Vec<Divergence> {
    let mut found: Vec<(Vec<Tensor<2>>, Vec<Tensor<2>>)> = lenses.iter().map(|_| Default::default()).collect();
    for rows in chunks(final_nd, head) {
        let part = |state_nd: &Tensor<2>| state_nd.clone().slice_dim(0, rows.clone());
        let log_p_mv = activation::log_softmax(head.logits(part(final_nd)), 1);
        let p_mv = log_p_mv.clone().exp();
        if let Some(see) = see {
            see(rows.start, &p_mv.to_data().iter::<f32>().collect::<Vec<_>>());
        }
        for (lens_nd, (kl, gradient)) in lenses.iter().zip(&mut found) {
            let z_mv = head.logits(part(lens_nd));
            let log_q_mv = activation::log_softmax(z_mv.clone(), 1);
            kl.push((p_mv.clone() * (log_p_mv.clone() - log_q_mv.clone())).sum_dim(1));
            if let Some(scale) = scale {
                let mut dz_mv = (log_q_mv.exp() - p_mv.clone()).mul_scalar(scale);
                if let Some(slope_mv) = head.map.slope(&z_mv) {
                    dz_mv = dz_mv * slope_mv;
                }
                gradient.push(dz_mv.matmul(head.output_vd.clone()));
            }
        }
    }
    let none = || final_nd.clone().slice_dim(0, 0..0);
    let join = |parts: Vec<Tensor<2>>| if parts.is_empty() { none() } else { Tensor::cat(parts, 0) };
    let kl = |parts: Vec<Tensor<2>>| match parts.is_empty() {
        true => Tensor::<1>::empty([0], (&final_nd.device(), final_nd.dtype())),
        false => Tensor::cat(parts, 0).squeeze_dim(1),
    };
    found.into_iter().map(|(k, gradient)| (kl(k), scale.map(|_| join(gradient)))).collect()
}

fn chunks(state_nd: &Tensor<2>, head: &LogitHead) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let ([n, _], rows) = (state_nd.dims(), rows_at_a_time(head.output_vd.dims()[0]));
    (0..n).step_by(rows).map(move |start| start..(start + rows).min(n))
}

fn composed_readings(
    final_nd: &Tensor<2>,
    sources: &[Source],
    head: &LogitHead,
    inputs_n: &Tensor<1, Int>,
    targets_n: Option<&Tensor<1, Int>>,
) -> Vec<Vec<Reading>> {
    let mut found: Vec<Vec<Reading>> = sources.iter().map(|_| Vec::new()).collect();
    // One by one, though every read waits: read together they are fused further, and Burn 0.22.1's fuser panics over them.
    let host = |t: Tensor<2>| t.to_data().iter::<f32>().collect::<Vec<_>>();
    for rows in chunks(final_nd, head) {
        let part = |state_nd: &Tensor<2>| state_nd.clone().slice_dim(0, rows.clone());
        let ids = |ids_n: &Tensor<1, Int>| ids_n.clone().slice_dim(0, rows.clone()).unsqueeze_dim::<2>(1);
        let log_p_mv = activation::log_softmax(head.logits(part(final_nd)), 1);
        let final_top_m1 = log_p_mv.clone().argmax(1);
        for (source, found) in sources.iter().zip(&mut found) {
            let z_mv = match source {
                Source::States(state_nd) => head.logits(part(state_nd)),
                Source::Rows(logs_gv, rows_n) => {
                    logs_gv.clone().select(0, rows_n.clone().slice_dim(0, rows.clone())).cast(log_p_mv.dtype())
                }
            };
            let log_q_mv = activation::log_softmax(z_mv.clone(), 1);
            let [m, v] = log_q_mv.dims();
            let at = |ids_m1: Tensor<2, Int>| host(log_q_mv.clone().gather(1, ids_m1));
            let top_m1 = log_q_mv.clone().argmax(1);
            let other_mv = z_mv.clone().gather(1, final_top_m1.clone()).expand([m, v]);
            let ids_mv = Tensor::<1, Int>::arange(0..v as i64, &z_mv.device()).unsqueeze::<2>().expand([m, v]);
            let before_mv = ids_mv.lower(final_top_m1.clone().expand([m, v])).float().cast(z_mv.dtype());
            let ahead_mv = z_mv.clone().greater(other_mv.clone()).float().cast(z_mv.dtype());
            let equal_mv = z_mv.equal(other_mv).float().cast(log_q_mv.dtype());
            let rank = host((ahead_mv + equal_mv * before_mv).sum_dim(1).add_scalar(1.0));
            let kl = host((log_p_mv.clone().exp() * (log_p_mv.clone() - log_q_mv.clone())).sum_dim(1));
            let entropy = host((log_q_mv.clone().exp() * log_q_mv.clone()).sum_dim(1).neg());
            let (p, input) = (at(top_m1.clone()), at(ids(inputs_n)));
            let target = targets_n.map(|targets_n| at(ids(targets_n)));
            let top = top_m1.to_data().iter::<i64>().collect::<Vec<_>>();
            found.extend((0..m).map(|i| Reading {
                top: top[i] as usize,
                p: p[i].exp(),
                rank: rank[i] as usize,
                kl_nats: kl[i],
                entropy_nats: entropy[i],
                p_input: input[i].exp(),
                nats: target.as_ref().map(|log_q| -log_q[i]),
            }));
        }
    }
    found
}

simd! {
    fn map_row(z: &mut [f32], map: RowMap) {
        map.apply::<FMA>(z);
    }
}

/// Of one row of logits: the largest, the sum of e^(z - top), and the mean of z - top under another distribution p.
#[derive(Clone, Copy)]
struct Row {
    top: f32,
    sum: f32,
    mean: f32,
}

impl Row {
    /// E_p\[ln q\].
    fn mean_log(self) -> f64 {
        self.mean as f64 - (self.sum as f64).ln()
    }

    /// ln q of an id with this logit.
    fn log(self, z: f32) -> f64 {
        (z as f64 - self.top as f64) - (self.sum as f64).ln()
    }
}

simd! {
    /// The final distribution of logits `z`, and its own row.
    fn final_row(z: &[f32], p: &mut [f32]) -> Row {
        let top = largest(z);
        p.copy_from_slice(z);
        let sum = crate::simd::exp_sum::<FMA>(p, top);
        let each = 1.0 / sum;
        for p in p.iter_mut() {
            *p *= each;
        }
        Row { top, sum, mean: sum2(z, p, |z, p| p * (z - top)) }
    }
}

simd! {
    fn lens_row(z: &[f32], p: &[f32]) -> Row {
        let top = largest(z);
        // In the order of `final_row`, so that a lens that says the same has a divergence of 0.
        let mut lanes = [0.0; LANES];
        let (blocks, rest) = z.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                lanes[i] += exp::<FMA>(block[i] - top);
            }
        }
        for (lane, z) in lanes.iter_mut().zip(rest) {
            *lane += exp::<FMA>(*z - top);
        }
        Row { top, sum: fold(lanes), mean: sum2(z, p, |z, p| p * (z - top)) }
    }
}

simd! {
    /// Logits to dL/d(h U^T) = scale (q - p), times the cap's slope where there is one.
    fn gradient_row(z: &mut [f32], p: &[f32], row: Row, scale: f32, cap: Option<f32>) {
        let each = 1.0 / row.sum;
        match cap {
            None => {
                for (z, p) in z.iter_mut().zip(p) {
                    *z = scale * (exp::<FMA>(*z - row.top) * each - p);
                }
            }
            Some(cap) => {
                let part = 1.0 / cap;
                for (z, p) in z.iter_mut().zip(p) {
                    let y = *z * part;
                    *z = scale * (exp::<FMA>(*z - row.top) * each - p) * (1.0 - y * y);
                }
            }
        }
    }
}

simd! {
    /// The first of the largest, how many come before the id `other`, and the sum of e^(z - top) (z - top).
    fn places(z: &[f32], top: f32, other: usize) -> (usize, usize, f32) {
        let at = z[other];
        let first = z.iter().position(|z| *z == top).unwrap_or(0);
        let ahead: u32 = z.iter().map(|z| u32::from(*z > at)).sum();
        let equal: u32 = z[..other].iter().map(|z| u32::from(*z == at)).sum();
        (first, (ahead + equal) as usize, sum2(z, z, |z, _| exp::<FMA>(z - top) * (z - top)))
    }
}

/// The head's operands on the native path.
struct Native {
    u: FlexTensor,
    bias: Option<FlexTensor>,
    map: LogitMap,
    v: usize,
    d: usize,
}

impl Native {
    fn new(head: &LogitHead) -> Option<Self> {
        let u = plain(&head.output_vd)?;
        let (v, d) = (shape(&u)[0], shape(&u)[1]);
        let bias = match &head.map.bias_1v {
            Some(bias) => Some(plain(bias)?),
            None => None,
        };
        (v > 0).then_some(Self { u, bias, map: head.map.clone(), v, d })
    }

    fn table(&self) -> Matrix<'_> {
        Matrix::new(values(&self.u), self.v, self.d)
    }

    /// Logits of m states into the first m rows of `buffer`.
    fn logits<'a>(&self, states: Matrix, m: usize, buffer: &'a mut Unfilled) -> &'a mut [f32] {
        let slots = &mut buffer.slots()[..m * self.v];
        // SAFETY: the product overwrites.
        let to = unsafe { MatrixMut::unfilled(slots, m, self.v) };
        multiply_parallel(to, states, self.table().t(), Into::Overwrite);
        // SAFETY: the product has written all m rows.
        let z = unsafe { slots.assume_init_mut() };
        if self.bias.is_some() || self.map.softcap.is_some() {
            let map = RowMap::new(&self.map, self.bias.as_ref().map(values));
            z.par_chunks_mut(self.v).with_min_len(ROWS).for_each(|z| map_row(z, map));
        }
        z
    }

    /// The final distribution of m states into `p`, and its rows.
    fn distribution(&self, states: Matrix, m: usize, buffer: &mut Unfilled, p: &mut [f32]) -> Vec<(Row, usize)> {
        let z = self.logits(states, m, buffer);
        let rows = z.par_chunks(self.v).zip(p.par_chunks_mut(self.v)).with_min_len(ROWS);
        rows.map(|(z, p)| {
            let row = final_row(z, p);
            (row, z.iter().position(|z| *z == row.top).unwrap_or(0))
        })
        .collect()
    }
}

fn native(
    final_nd: &Tensor<2>,
    lenses: &[Tensor<2>],
    head: &LogitHead,
    scale: Option<f32>,
    see: &mut Option<See>,
) -> Option<Vec<Divergence>> {
    let head = Native::new(head)?;
    let h = plain(final_nd)?;
    let lenses = lenses.iter().map(plain).collect::<Option<Vec<_>>>()?;
    let (n, d, v) = (shape(&h)[0], head.d, head.v);
    let matrix = |t| Matrix::new(values(t), n, d);
    let m = CHUNK.min(n);
    let (mut buffer, mut p) = (Unfilled::new(m * v), vec![0.0; m * v]);
    let mut kl: Vec<Vec<f32>> = lenses.iter().map(|_| vec![0.0; n]).collect();
    let mut dh: Vec<Unfilled> = lenses.iter().map(|_| Unfilled::new(if scale.is_some() { n * d } else { 0 })).collect();
    for start in (0..n).step_by(CHUNK) {
        let m = CHUNK.min(n - start);
        let p = &mut p[..m * v];
        let own = head.distribution(matrix(&h).rows(start, m), m, &mut buffer, p);
        let p = &*p;
        if let Some(see) = see {
            see(start, p);
        }
        for ((lens, kl), dh) in lenses.iter().zip(&mut kl).zip(&mut dh) {
            let z = head.logits(matrix(lens).rows(start, m), m, &mut buffer);
            let rows = z.par_chunks_mut(v).zip(p.par_chunks(v)).zip(&own).zip(&mut kl[start..start + m]);
            rows.with_min_len(ROWS).for_each(|(((z, p), (own, _)), kl)| {
                let row = lens_row(z, p);
                *kl = (own.mean_log() - row.mean_log()) as f32;
                if let Some(scale) = scale {
                    gradient_row(z, p, row, scale, head.map.softcap.map(|c| c as f32));
                }
            });
            if scale.is_some() {
                // SAFETY: the product overwrites.
                let part = unsafe { MatrixMut::unfilled(&mut dh.slots()[start * d..(start + m) * d], m, d) };
                multiply_parallel(part, Matrix::new(z, m, v), head.table(), Into::Overwrite);
            }
        }
    }
    let states = dh.into_iter().map(|dh| {
        // SAFETY: the chunks cover all rows, and each chunk's product has written its rows.
        scale.map(|_| tensor(from_values(unsafe { dh.filled() }, [n, d])))
    });
    Some(kl.into_iter().map(|kl| tensor(from_values(kl, [n]))).zip(states).collect())
}

fn native_readings(
    final_nd: &Tensor<2>,
    sources: &[Source],
    head: &LogitHead,
    inputs_n: &Tensor<1, Int>,
    targets_n: Option<&Tensor<1, Int>>,
) -> Option<Vec<Vec<Reading>>> {
    enum Operand {
        States(FlexTensor),
        Rows(FlexTensor, Vec<usize>),
    }
    let head = Native::new(head)?;
    let h = plain(final_nd)?;
    let (n, d, v) = (shape(&h)[0], head.d, head.v);
    let sources = sources.iter().map(|source| match source {
        Source::States(state_nd) => Some(Operand::States(plain(state_nd)?)),
        Source::Rows(logs_gv, rows_n) => {
            let logs = plain(logs_gv)?;
            let rows = indices(rows_n, shape(&logs)[0])?;
            Some(Operand::Rows(logs, rows))
        }
    });
    let sources = sources.collect::<Option<Vec<_>>>()?;
    let inputs = indices(inputs_n, v)?;
    let targets = match targets_n {
        Some(targets_n) => Some(indices(targets_n, v)?),
        None => None,
    };
    let matrix = |t| Matrix::new(values(t), n, d);
    let m = CHUNK.min(n);
    let (mut buffer, mut p) = (Unfilled::new(m * v), vec![0.0; m * v]);
    let mut found: Vec<Vec<Reading>> = sources.iter().map(|_| Vec::with_capacity(n)).collect();
    for start in (0..n).step_by(CHUNK) {
        let m = CHUNK.min(n - start);
        let p = &mut p[..m * v];
        let own = head.distribution(matrix(&h).rows(start, m), m, &mut buffer, p);
        let p = &*p;
        let read = |i: usize, z: &[f32]| {
            let ((own, final_top), row) = (own[i], lens_row(z, &p[i * v..(i + 1) * v]));
            let (top, ahead, mean) = places(z, row.top, final_top);
            Reading {
                top,
                p: row.log(z[top]).exp() as f32,
                rank: ahead + 1,
                kl_nats: (own.mean_log() - row.mean_log()) as f32,
                entropy_nats: ((row.sum as f64).ln() - mean as f64 / row.sum as f64) as f32,
                p_input: row.log(z[inputs[start + i]]).exp() as f32,
                nats: targets.as_ref().map(|targets| -row.log(z[targets[start + i]]) as f32),
            }
        };
        for (source, found) in sources.iter().zip(&mut found) {
            let part: Vec<Reading> = match source {
                Operand::States(states) => {
                    let z = head.logits(matrix(states).rows(start, m), m, &mut buffer);
                    let rows = z.par_chunks(v).enumerate().with_min_len(ROWS);
                    rows.map(|(i, z)| read(i, z)).collect()
                }
                Operand::Rows(logs, row_of) => {
                    let row = |i: usize| &values(logs)[row_of[start + i] * v..(row_of[start + i] + 1) * v];
                    (0..m).into_par_iter().with_min_len(ROWS).map(|i| read(i, row(i))).collect()
                }
            };
            found.extend(part);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Values, at_every_level, distance, host, matrix, normal, one_level};
    use burn::tensor::{DType, Device, TensorData};

    fn ids(n: usize, bound: usize, factor: usize) -> Tensor<1, Int> {
        let list: Vec<i32> = (0..n).map(|i| (i * factor % bound) as i32).collect();
        Tensor::from_data(TensorData::new(list, [n]), &Device::flex())
    }

    struct Case {
        last: Values,
        lens: Values,
        u: Values,
        bias: Option<Values>,
        cap: Option<f64>,
    }

    impl Case {
        fn new(n: usize, v: usize, d: usize, bias: bool, cap: Option<f64>) -> Self {
            let bias = bias.then(|| normal([1, v], 0.5));
            Self { last: normal([n, d], 1.0), lens: normal([n, d], 0.7), u: normal([v, d], 0.8), bias, cap }
        }

        fn head(&self, dtype: DType) -> LogitHead {
            let bias_1v = self.bias.as_ref().map(|bias| matrix(bias, dtype));
            LogitHead { output_vd: matrix(&self.u, dtype), map: LogitMap { bias_1v, softcap: self.cap, z_loss: 0.0 } }
        }

        fn kl_sum(&self, lens: &Values) -> f64 {
            let found = lens_kl(&matrix(&self.last, DType::F64), &[matrix(lens, DType::F64)], &self.head(DType::F64));
            host(&found[0]).iter().sum()
        }
    }

    fn cases() -> Vec<Case> {
        let sizes =
            [(0, 5, 3), (1, 1, 1), (1, 37, 2), (7, 3, 80), (CHUNK, 129, 16), (CHUNK + 1, 31, 6), (37, 1500, 64)];
        let heads = [(false, None), (true, None), (false, Some(8.0)), (true, Some(20.0))];
        let all = sizes.into_iter().flat_map(|s| heads.into_iter().map(move |h| (s, h)));
        all.map(|((n, v, d), (bias, cap))| Case::new(n, v, d, bias, cap)).collect()
    }

    #[test]
    fn divergences_and_gradients_equal_their_composition_in_f64() {
        at_every_level(|| {
            for case in cases() {
                let run = |dtype| {
                    let (last, lens) = (matrix(&case.last, dtype), matrix(&case.lens, dtype));
                    let (head, mut seen) = (case.head(dtype), Vec::new());
                    let lenses = [lens, last.clone()];
                    let found = lens_gradients(&last, &lenses, &head, 0.3, &mut |first, p| {
                        assert_eq!(first * case.u.1[0], seen.len());
                        seen.extend(p.iter().map(|p| f64::from(*p)));
                    });
                    for (plain, with) in lens_kl(&last, &lenses, &head).iter().zip(&found) {
                        assert_eq!(host(plain), host(&with.kl_n));
                    }
                    assert!(dtype == DType::F64 || host(&found[1].kl_n).iter().all(|kl| *kl == 0.0), "its own");
                    [host(&found[0].kl_n), host(&found[0].state_nd), seen]
                };
                let (found, expected) = (run(DType::F32), run(DType::F64));
                let sizes = (case.last.1, case.u.1);
                let worst = found[0].iter().zip(&expected[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst < 3e-5, "{sizes:?}: kl is off by {worst:e}");
                for which in [1, 2] {
                    let off = distance(&found[which], &expected[which]);
                    assert!(off < 5e-6, "{sizes:?} {which}: {off:e}");
                }
            }
        });
    }

    #[test]
    fn gradients_equal_finite_differences() {
        for cap in [None, Some(1.5)] {
            let case = Case::new(3, 11, 4, true, cap);
            let head = case.head(DType::F64);
            let (last, lens) = (matrix(&case.last, DType::F64), matrix(&case.lens, DType::F64));
            let gradient = host(&lens_gradients(&last, &[lens], &head, 1.0, &mut |_, _| {})[0].state_nd);
            for (i, gradient) in gradient.iter().enumerate() {
                let at = |by: f64| {
                    let mut lens = case.lens.clone();
                    lens.0[i] += by;
                    case.kl_sum(&lens)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((slope - gradient).abs() < 1e-8 * (1.0 + slope.abs()), "{i}: {slope} {gradient}");
            }
        }
    }

    #[test]
    fn readings_equal_their_composition_in_f64() {
        at_every_level(|| {
            for case in cases().into_iter().filter(|case| case.last.1[0] > 0) {
                let ([n, _], [v, _]) = (case.last.1, case.u.1);
                let run = |dtype| {
                    let (last, lens) = (matrix(&case.last, dtype), matrix(&case.lens, dtype));
                    let rows = Source::Rows(matrix(&normal([3, v], 1.0), dtype), ids(n, 3, 1));
                    let sources = [Source::States(lens), Source::States(last.clone()), rows];
                    readings(&last, &sources, &case.head(dtype), &ids(n, v, 7), Some(&ids(n, v, 5)))
                };
                let (found, expected) = (run(DType::F32), run(DType::F64));
                assert!(found[1].iter().all(|r| r.rank == 1 && r.kl_nats == 0.0));
                for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
                    assert_eq!((a.top, a.rank), (b.top, b.rank));
                    let pairs = [
                        (a.p, b.p),
                        (a.kl_nats, b.kl_nats),
                        (a.entropy_nats, b.entropy_nats),
                        (a.p_input, b.p_input),
                        (a.nats.unwrap(), b.nats.unwrap()),
                    ];
                    assert!(pairs.iter().all(|(a, b)| (a - b).abs() < 3e-5 * (1.0 + b.abs())), "{a:?} {b:?}");
                }
            }
        });
    }

    #[test]
    fn equals_the_sums_written_out() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), as logits of one-dimensional states.
        let ln2 = 2f32.ln();
        let u = crate::testing::matrix_f32(&[ln2, 0.0, 0.0, 0.0, 0.0, ln2], [3, 2]);
        let states = crate::testing::matrix_f32(&[1.0, 0.0, 0.0, 1.0], [2, 2]);
        let (last, lens) = (states.clone().slice_dim(0, 0..1), states.slice_dim(0, 1..2));
        let (head, id) = (LogitHead::new(u), |id| Tensor::from_data([id], &Device::flex()));
        at_every_level(|| {
            let found = readings(&last, &[Source::States(lens.clone())], &head, &id(1), Some(&id(0)))[0][0];
            assert_eq!((found.top, found.rank), (2, 2));
            let expected = [0.5, 0.25 * 2f32.ln(), 1.5 * 2f32.ln(), 0.25, 4f32.ln()];
            let found = [found.p, found.kl_nats, found.entropy_nats, found.p_input, found.nats.unwrap()];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
            let gradient = lens_gradients(&last, std::slice::from_ref(&lens), &head, 1.0, &mut |_, _| {});
            let gradient = host(&gradient[0].state_nd);
            let expected = [-0.25 * f64::from(ln2), 0.25 * f64::from(ln2)];
            assert!(gradient.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7), "{gradient:?}");
        });
    }

    #[test]
    fn extreme_logits_stay_finite_and_nan_passes_in_its_row() {
        let run = |dtype| {
            let column = |values: &[f64]| matrix(&(values.to_vec(), [values.len(), 1]), dtype);
            let (last, lens) = (column(&[1e4, 1e4, -1e4, 1.0]), column(&[1e4, -1e4, 0.0, f64::NAN]));
            let head = LogitHead::new(column(&[1.0, -1.0, 0.0]));
            let found = &lens_gradients(&last, std::slice::from_ref(&lens), &head, 1.0, &mut |_, _| {})[0];
            let (kl, dh) = (host(&found.kl_n), host(&found.state_nd));
            assert!(kl[0] == 0.0 && kl[1] == 2e4 && (kl[2] - 3f64.ln()).abs() < 1e-6 && kl[3].is_nan(), "{kl:?}");
            assert!(dh[..2] == [0.0, -2.0] && (dh[2] - 1.0).abs() < 1e-6 && dh[3].is_nan(), "{dh:?}");
            let read = &readings(&last, &[Source::States(lens)], &head, &ids(4, 3, 1), Some(&ids(4, 3, 1)))[0];
            assert!((read[1].top, read[1].rank, read[1].p) == (1, 3, 1.0) && read[3].kl_nats.is_nan(), "{read:?}");
            assert!(read[..3].iter().all(|r| r.entropy_nats.is_finite() && r.nats.is_some_and(f32::is_finite)));
        };
        at_every_level(|| run(DType::F32));
        run(DType::F64);
    }

    #[test]
    fn the_same_bits_for_any_number_of_threads() {
        let case = Case::new(2 * CHUNK + 77, 700, 48, true, Some(4.0));
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (last, lens) = (matrix(&case.last, DType::F32), matrix(&case.lens, DType::F32));
                let head = case.head(DType::F32);
                let found = &lens_gradients(&last, std::slice::from_ref(&lens), &head, 1.0, &mut |_, _| {})[0];
                (host(&found.kl_n), host(&found.state_nd))
            })
        };
        let _level = one_level();
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(3));
    }
}
