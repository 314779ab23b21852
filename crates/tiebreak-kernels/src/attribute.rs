//! How far an AdamW update moves a parameter, and what of it came from one side.
//!
//! AdamW's first moment is linear in the gradient, so the update u = -lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! splits as its gradient does: u_in has the input part m_in of the moment in place of m, and what is left is the output's.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::adamw::{AdamWStep, BLOCK, Factors, own};
use crate::flex::{plain, tensor, values, values_mut};
use crate::simd::{LANES, fold, simd};
use crate::sums::{Pending, Reads};

/// Products of one update u (weight decay left out) and its input part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// <u_in, u>.
    pub input: f64,
    /// |u|^2.
    pub whole: f64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.input += other.input;
        self.whole += other.whole;
    }
}

/// A [`Moved`] that is still to be read.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// <m_in, m> scaled, in parts; none: 0.
    input: Option<Pending>,
    whole: Pending,
    /// What both are to be multiplied with, twice.
    rate: f64,
}

impl Moving {
    /// The same of an update that is all the input side's.
    pub fn all_input(self) -> Self {
        Self { input: Some(self.whole), ..self }
    }

    /// What was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn read(self, reads: &Reads) -> Moved {
        let sum = |place: Pending| reads.sum(place) * self.rate * self.rate;
        Moved { input: self.input.map_or(0.0, sum), whole: sum(self.whole) }
    }
}

/// Carries the input part of a first moment on by the input part of the gradient, m_in = b1 m_in + (1 - b1) factor g_in, and
/// attributes the update where there are `reads` to ask. To be called behind [`adamw`](crate::adamw), whose moments (m, v) after the
/// update these are, with the same `step`. Without `input` m_in starts at 0.
pub fn attribute(
    moments: (&Tensor<2>, &Tensor<2>),
    input: Option<Tensor<2>>,
    gradient: &Tensor<2>,
    step: AdamWStep,
    reads: Option<&mut Reads>,
) -> (Tensor<2>, Option<Moving>) {
    let (first, second) = moments;
    let rate = step.rate();
    let start = |like: &Tensor<2>| Tensor::zeros(like.dims(), (&like.device(), like.dtype()));
    let input = input.unwrap_or_else(|| start(first));
    if let (Some(m), Some(v), Some(g), Some(_)) = (plain(first), plain(second), plain(gradient), plain(&input)) {
        let mut input = own(input);
        let f = Factors::new(step);
        let parts = values_mut(&mut input).expect("a buffer of its own").par_chunks_mut(BLOCK);
        let others = values(&g).par_chunks(BLOCK).zip(values(&m).par_chunks(BLOCK)).zip(values(&v).par_chunks(BLOCK));
        let sums: Vec<[f64; 2]> = parts.zip(others).map(|(i, ((g, m), v))| both(f, i, g, m, v)).collect();
        // In order, so that the sum does not depend on the threads.
        let sum = |k: usize| vec![sums.iter().map(|s| s[k]).sum::<f64>()];
        let moving = reads.map(|reads| Moving { input: Some(reads.put(sum(0))), whole: reads.put(sum(1)), rate });
        return (tensor(input), moving);
    }
    let [b1, _] = step.betas;
    let input = input.mul_scalar(b1) + gradient.clone().mul_scalar(step.factor).mul_scalar(1.0 - b1);
    let moving = reads.map(|reads| {
        let inverse = inverse(second, step);
        let (part, all) = (input.clone() * inverse.clone(), first.clone() * inverse);
        Moving { input: Some(reads.values((part * all.clone()).sum_dim(1))), whole: reads.square(&all), rate }
    });
    (input, moving)
}

/// |u|^2 of the update behind which the moments are (m, v).
pub fn update_square(first: &Tensor<2>, second: &Tensor<2>, step: AdamWStep, reads: &mut Reads) -> Moving {
    let whole = if let (Some(m), Some(v)) = (plain(first), plain(second)) {
        let blocks = values(&m).par_chunks(BLOCK).zip(values(&v).par_chunks(BLOCK));
        let sums: Vec<f64> = blocks.map(|(m, v)| whole(Factors::new(step), m, v)).collect();
        reads.put(vec![sums.iter().sum()])
    } else {
        reads.square(&(first.clone() * inverse(second, step)))
    };
    Moving { input: None, whole, rate: step.rate() }
}

/// 1 / (sqrt(v) / sqrt(1 - b2^t) + eps); 0 where an element stays where it is.
fn inverse(second: &Tensor<2>, step: AdamWStep) -> Tensor<2> {
    let root = second.clone().sqrt().div_scalar(step.correction(step.betas[1]).sqrt());
    let inverse = root.add_scalar(step.eps).recip();
    if step.eps == 0.0 { inverse.mask_fill(second.clone().equal_scalar(0.0), 0.0) } else { inverse }
}

#[inline(always)]
fn scaled(f: Factors, m: f32, v: f32) -> (f32, f32) {
    let inverse = 1.0 / (v.sqrt() / f.root + f.eps);
    let inverse = if f.eps == 0.0 && v == 0.0 { 0.0 } else { inverse };
    (m * inverse, inverse)
}

simd! {
    fn both(f: Factors, i: &mut [f32], g: &[f32], m: &[f32], v: &[f32]) -> [f64; 2] {
        let mut lanes = [[0.0; LANES]; 2];
        let mut one = |lane: usize, i: &mut f32, g: f32, m: f32, v: f32| {
            *i = *i * f.b1 + g * f.factor * f.rest1;
            let (change, inverse) = scaled(f, m, v);
            lanes[0][lane] += *i * inverse * change;
            lanes[1][lane] += change * change;
        };
        let ((is, i_rest), (gs, g_rest)) = (i.as_chunks_mut::<LANES>(), g.as_chunks::<LANES>());
        let ((ms, m_rest), (vs, v_rest)) = (m.as_chunks::<LANES>(), v.as_chunks::<LANES>());
        for (((i, g), m), v) in is.iter_mut().zip(gs).zip(ms).zip(vs) {
            for lane in 0..LANES {
                one(lane, &mut i[lane], g[lane], m[lane], v[lane]);
            }
        }
        for (lane, (((i, g), m), v)) in i_rest.iter_mut().zip(g_rest).zip(m_rest).zip(v_rest).enumerate() {
            one(lane, i, *g, *m, *v);
        }
        lanes.map(|lanes| fold(lanes) as f64)
    }
}

simd! {
    fn whole(f: Factors, m: &[f32], v: &[f32]) -> f64 {
        crate::simd::sum2(m, v, |m, v| {
            let (change, _) = scaled(f, m, v);
            change * change
        }) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adamw;
    use crate::testing::{at_every_level, distance, host, matrix, normal};
    use burn::tensor::DType;

    /// [`attribute`](super::attribute), read.
    fn attribute(
        moments: (&Tensor<2>, &Tensor<2>),
        input: Option<Tensor<2>>,
        gradient: &Tensor<2>,
        step: AdamWStep,
    ) -> (Tensor<2>, Moved) {
        let mut reads = Reads::default();
        let (input, moving) = super::attribute(moments, input, gradient, step, Some(&mut reads));
        reads.execute();
        (input, moving.unwrap().read(&reads))
    }

    fn update_square(first: &Tensor<2>, second: &Tensor<2>, step: AdamWStep) -> f64 {
        let mut reads = Reads::default();
        let moving = super::update_square(first, second, step, &mut reads);
        reads.execute();
        moving.read(&reads).whole
    }

    const STEP: AdamWStep = AdamWStep { betas: [0.9, 0.95], eps: 1e-8, factor: 0.7, lr: 0.01, decay: 0.1, step: 1 };

    /// Three updates of a parameter whose gradient has two parts; moments, the input part and what moved last.
    fn three(shape: [usize; 2], dtype: DType, eps: f64) -> ([Tensor<2>; 4], Moved) {
        let mut value = matrix(&normal(shape, 1.0), dtype);
        let (mut moments, mut input, mut moved) = (None, None, Moved::default());
        for step in 1..=3 {
            let step = AdamWStep { step, eps, ..STEP };
            let part = |scale: f64| matrix(&normal(shape, scale), dtype);
            // Elements that no gradient ever reaches.
            let reached = part(1.0).greater_scalar(0.0).float().cast(dtype);
            let (a, b) = (part(0.1 * step.step as f64) * reached.clone(), part(0.3) * reached);
            let (p, m, v) = adamw(value, moments, a.clone() + b, step);
            let (i, found) = attribute((&m, &v), input, &a, step);
            (value, moments, input, moved) = (p, Some((m, v)), Some(i), found);
        }
        let (Some((m, v)), Some(i)) = (moments, input) else { unreachable!() };
        ([value, m, v, i], moved)
    }

    #[test]
    fn native_equals_the_composition_in_f64() {
        at_every_level(|| {
            for shape in [[1, 1], [7, 37], [129, 80], [257, 33]] {
                for eps in [1e-8, 0.0, 1e-2] {
                    let ((found, moved), (exact, expected)) =
                        (three(shape, DType::F32, eps), three(shape, DType::F64, eps));
                    assert!(distance(&host(&found[3]), &host(&exact[3])) < 1e-6);
                    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * expected.whole;
                    assert!(
                        close(moved.input, expected.input) && close(moved.whole, expected.whole),
                        "{moved:?} {expected:?}"
                    );
                    let step = AdamWStep { step: 3, eps, ..STEP };
                    let alone = update_square(&found[1], &found[2], step);
                    assert!((alone - moved.whole).abs() <= 1e-6 * alone);
                }
            }
        });
    }

    #[test]
    fn the_two_parts_add_up_to_the_move_of_the_values() {
        // Without decay, |u|^2 is the squared distance that the values moved, and <u_in, u> + <u_out, u> is |u|^2.
        let shape = [5, 4];
        let at = |scale: f64| matrix(&normal(shape, scale), DType::F64);
        let step = AdamWStep { decay: 0.0, ..STEP };
        let (before, a, b) = (at(1.0), at(0.1), at(0.3));
        let (after, m, v) = adamw(before.clone(), None, a.clone() + b.clone(), step);
        let (_, input) = attribute((&m, &v), None, &a, step);
        let (_, output) = attribute((&m, &v), None, &b, step);
        let moved: f64 = host(&(after - before)).iter().map(|x| x * x).sum();
        assert!((input.whole - moved).abs() < 1e-12 * moved);
        assert!((input.input + output.input - moved).abs() < 1e-12 * moved);
        assert!((update_square(&m, &v, step) - moved).abs() < 1e-12 * moved);
    }

    #[test]
    fn an_element_by_hand() {
        // m_in = 0.1 x 2 = 0.2, m = 0.1 x (2 - 3) = -0.1, v = 0.05 x 1: after correction m = -1 and sqrt(v) = 1, so that
        // u = -0.1 x -1 = 0.1, u_in = -0.1 x 2 = -0.2.
        for dtype in [DType::F32, DType::F64] {
            let scalar = |x: f64| matrix(&(vec![x], [1, 1]), dtype);
            let step = AdamWStep { factor: 1.0, lr: 0.1, eps: 0.0, ..STEP };
            let (_, m, v) = adamw(scalar(5.0), None, scalar(2.0) + scalar(-3.0), step);
            let (input, moved) = attribute((&m, &v), None, &scalar(2.0), step);
            assert!((host(&input)[0] - 0.2).abs() < 1e-7);
            assert!((moved.input + 0.02).abs() < 1e-8 && (moved.whole - 0.01).abs() < 1e-8, "{moved:?}");
        }
    }

    #[test]
    fn moments_that_another_holds_are_left_alone() {
        let at = |scale: f64| matrix(&normal([3, 4], scale), DType::F32);
        let (input, gradient) = (at(0.5), at(0.1));
        let before = host(&input);
        let second = at(1.0) * at(1.0);
        let (next, _) = attribute((&at(0.2), &second), Some(input.clone()), &gradient, STEP);
        assert!(host(&input) == before && host(&next) != before);
    }
}
