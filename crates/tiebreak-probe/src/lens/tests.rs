//! Lenses against numpy (fixtures/lens.json, written by scripts/check_lens.py), against what they must reduce to, and on
//! states whose best translators are known.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde_json::Value;
use tiebreak_kernels::{LogitHead, LogitMap, NormKind, lens_gradients, norm};

use super::*;

/// States of ids at every point.
type StatesOf = dyn Fn(&Tensor<2, Int>) -> Vec<Tensor<2>>;

/// States by a rule of the ids; a layer norm with gain and bias.
pub(super) struct Toy {
    states: Box<StatesOf>,
    layers: usize,
    gain: Tensor<2>,
    bias: Tensor<2>,
    head: LogitHead,
}

impl ProbedModel for Toy {
    fn layers(&self) -> usize {
        self.layers
    }

    fn context(&self) -> usize {
        64
    }

    fn device(&self) -> Device {
        Device::flex()
    }

    fn input_vd(&self) -> Tensor<2> {
        self.head.output_vd.clone()
    }

    fn output_vd(&self) -> Tensor<2> {
        self.head.output_vd.clone()
    }

    fn states(&self, ids_bt: Tensor<2, Int>) -> Vec<Tensor<3>> {
        let [b, t] = ids_bt.dims();
        (self.states)(&ids_bt).into_iter().map(|state_nd| state_nd.reshape([b as i32, t as i32, -1])).collect()
    }

    fn final_norm(&self, state_nd: Tensor<2>) -> Tensor<2> {
        let ([n, d], taped) = (state_nd.dims(), state_nd.is_autodiff());
        let on = |t: &Tensor<2>| if taped { Tensor::from_inner(t.clone()) } else { t.clone() };
        let (gain, bias) = (on(&self.gain), on(&self.bias));
        norm(NormKind::Layer, state_nd.reshape([1, n, d]), 1e-5, Some(&gain), Some(&bias)).reshape([n, d])
    }

    fn norm_parameters(&self) -> Vec<Tensor<2>> {
        vec![self.gain.clone(), self.bias.clone()]
    }

    fn head(&self) -> LogitHead {
        self.head.clone()
    }
}

fn matrix(rows: usize, columns: usize, values: Vec<f64>, dtype: DType) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values, [rows, columns]), (&Device::flex(), dtype))
}

/// Repeatable values, roughly normal.
pub(super) fn draw(rows: usize, columns: usize, seed: u64, dtype: DType) -> Tensor<2> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    matrix(rows, columns, (0..rows * columns).map(|_| (0..6).map(|_| uniform()).sum::<f64>() * 1.4).collect(), dtype)
}

pub(super) fn ids(b: usize, t: usize, bound: usize, first: usize) -> Tensor<2, Int> {
    let list: Vec<i32> = (first..first + b * t).map(|i| ((i * i + 3 * i) % bound) as i32).collect();
    Tensor::from_data(TensorData::new(list, [b, t]), &Device::flex())
}

const IDS: usize = 40;
const D: usize = 6;

/// Every id has a final state; what the other two points hold are affine images of it.
pub(super) fn distorted(dtype: DType) -> Toy {
    let final_vd = draw(IDS, D, 1, dtype).mul_scalar(2.0);
    let maps = [2, 3].map(|seed| {
        let map_dd = Tensor::<2>::eye(D, &Device::flex()).cast(dtype) + draw(D, D, seed, dtype).mul_scalar(0.4);
        (map_dd, draw(1, D, seed + 10, dtype))
    });
    let states = move |ids_bt: &Tensor<2, Int>| {
        let [b, t] = ids_bt.dims();
        let final_nd = final_vd.clone().select(0, ids_bt.clone().reshape([b * t]));
        let early = maps.iter().map(|(map_dd, offset_1d)| final_nd.clone().matmul(map_dd.clone()) + offset_1d.clone());
        early.chain([final_nd.clone()]).collect()
    };
    Toy {
        states: Box::new(states),
        layers: 2,
        gain: draw(1, D, 4, dtype).mul_scalar(0.1).add_scalar(1.0),
        bias: draw(1, D, 5, dtype).mul_scalar(0.1),
        head: LogitHead::new(draw(IDS, D, 6, dtype)),
    }
}

pub(super) fn host(t: &Tensor<2>) -> Vec<f64> {
    t.to_data().iter::<f64>().collect()
}

fn trained(model: &Toy, recipe: Recipe, tokens: u64) -> Trained {
    train(
        model,
        Training {
            recipe,
            tokens,
            step_tokens: 64,
            batch: &mut |step| ids(8, 8, IDS, 1 + 64 * step as usize),
            check: &[ids(8, 8, IDS, 7), ids(4, 8, IDS, 1000)],
            go_on: &|| true,
            report: &mut |_| {},
        },
    )
}

#[test]
fn every_number_equals_numpy() {
    let fixture: Value = serde_json::from_str(include_str!("../../fixtures/lens.json")).unwrap();
    let case = &fixture["case"];
    for dtype in [DType::F32, DType::F64] {
        let tensor = |value: &Value| {
            let rows: Vec<Vec<f64>> = serde_json::from_value(value.clone()).unwrap();
            matrix(rows.len(), rows[0].len(), rows.concat(), dtype)
        };
        let list = |key: &str| case[key].as_array().unwrap().iter().map(tensor).collect::<Vec<_>>();
        let ids = |key: &str| serde_json::from_value::<Vec<i32>>(case[key].clone()).unwrap();
        let (states, layers) = (list("states"), list("A").len());
        let head = LogitHead {
            output_vd: tensor(&case["U"]),
            map: LogitMap {
                bias_1v: Some(tensor(&case["vocabulary_bias"])),
                softcap: case["softcap"].as_f64(),
                z_loss: 0.0,
            },
        };
        let (gain, bias) = (tensor(&case["gain"]), tensor(&case["bias"]));
        let v = head.output_vd.dims()[0];
        let model = Toy { states: Box::new(move |_| states.clone()), layers, gain, bias, head };

        let mut baselines = Baselines::new(v);
        let trained_on: Vec<usize> = ids("trained_on_ids").into_iter().map(|id| id as usize).collect();
        let normed_nd = model.final_norm(tensor(&case["trained_on"]));
        lens_gradients(&normed_nd, &[], &model.head, 1.0, &mut |first, p_mv| {
            baselines.see(&trained_on[first..first + p_mv.len() / v], p_mv)
        });
        let predictors = baselines.predictors(&Device::flex());

        let tensor_of = |ids: Vec<i32>| {
            let n = ids.len();
            Tensor::<2, Int>::from_data(TensorData::new(ids, [2, n / 2]), &Device::flex())
        };
        let (inputs_bt, targets_bt) = (tensor_of(ids("inputs")), tensor_of(ids("targets")));
        for recipe in [Recipe::Converged, Recipe::Paper] {
            let translators = list("A").into_iter().zip(list("b"));
            let lens = TunedLens { recipe, translators: translators.map(|(a, b)| Translator::new(a, b)).collect() };
            let kinds = [("logit", layers + 1), (recipe.name(), layers + 1), ("constant", 1), ("bigram", 1)];
            let expected = kinds.iter().flat_map(|(kind, points)| (0..*points).map(move |k| (*kind, k)));
            let targets_n = targets_bt.clone().reshape([-1]);
            let lenses = [Lens::Logit, Lens::Tuned(&lens)];
            let found = read_beside(&model, &lenses, Some(&predictors), inputs_bt.clone(), Some(&targets_n));
            assert_eq!(found.len(), 2 * (layers + 1) + 2);
            for ((kind, point), found) in expected.zip(&found) {
                let expected = &fixture["readings"][kind][point];
                for (i, r) in found.iter().enumerate() {
                    let at = |name: &str| expected[name][i].as_f64().unwrap();
                    let pairs = [
                        (r.top as f64, at("top")),
                        (r.rank as f64, at("rank")),
                        (r.p.into(), at("p")),
                        (r.kl_nats.into(), at("kl_nats")),
                        (r.entropy_nats.into(), at("entropy_nats")),
                        (r.p_input.into(), at("p_input")),
                        (r.nats.unwrap().into(), at("nats")),
                    ];
                    let close = |(a, b): &(f64, f64)| (a - b).abs() < 5e-6 * (1.0 + b.abs());
                    assert!(pairs.iter().all(close), "{kind} {point} token {i}: {pairs:?}");
                }
            }
            let batches = [[inputs_bt.clone(), targets_bt.clone()]].into_iter();
            let read = held_out(&model, &lens, &predictors, batches, &|| true).unwrap();
            assert_eq!((read.tokens, read.points.len()), (12, layers + 1));
            let same = |summary: &Summary, kind: &str, point: usize| {
                let values = summary.values();
                assert_eq!(values.len(), 6);
                for (name, value) in values {
                    let expected = fixture["means"][kind][point][name].as_f64().unwrap();
                    let off = (value - expected).abs();
                    assert!(off < 5e-6 * (1.0 + expected), "{kind} {point} {name}: {value} {expected}");
                }
            };
            for (k, point) in read.points.iter().enumerate() {
                same(&point.logit, "logit", k);
                same(&point.tuned, recipe.name(), k);
            }
            same(&read.constant, "constant", 0);
            same(read.bigram.as_ref().unwrap(), "bigram", 0);
        }
    }
}

#[test]
fn the_last_point_says_what_the_model_says_and_an_untrained_lens_what_the_logit_lens_says() {
    let model = distorted(DType::F32);
    let lens = TunedLens::identity(&model, Recipe::Converged);
    let ids_bt = ids(3, 8, IDS, 0);
    let (logit, tuned) = (logit_lens(&model, ids_bt.clone()), lens.readings(&model, ids_bt));
    assert_eq!((logit.len(), logit[0].len()), (3, 24));
    assert_eq!(logit, tuned, "bit for bit");
    assert!(logit[2].iter().all(|r| r.kl_nats == 0.0 && r.rank == 1));
    assert!(logit[0].iter().any(|r| r.kl_nats > 0.1), "the early points differ");
    assert_eq!(points(2), ["embed", "1", "2"]);
}

#[test]
fn translator_k_reads_point_k_and_the_paper_reads_with_the_one_before() {
    let model = distorted(DType::F32);
    let mut lens = TunedLens::identity(&model, Recipe::Converged);
    for (k, translator) in lens.translators.iter_mut().enumerate() {
        translator.offset_1d = translator.offset_1d.clone().add_scalar(1.0 + k as f64);
    }
    let state_nd = draw(4, D, 9, DType::F32);
    let moved = |lens: &TunedLens, point: usize, from: &Tensor<2>| -> f64 {
        let by = host(&(lens.apply(&model, point, state_nd.clone()) - from.clone()));
        assert!(by.iter().all(|x| (x - by[0]).abs() < 1e-6), "{by:?}");
        by[0].round()
    };
    assert_eq!([0, 1, 2].map(|point| moved(&lens, point, &state_nd)), [1.0, 2.0, 0.0]);
    lens.recipe = Recipe::Paper;
    assert_eq!([0, 1].map(|point| moved(&lens, point, &state_nd)), [1.0, 1.0]);
    assert_eq!(moved(&lens, 2, &model.final_norm(state_nd.clone())), 2.0, "the last point, normed first");
}

#[test]
fn an_affine_distortion_is_undone_by_training() {
    let model = distorted(DType::F32);
    let trained = trained(&model, Recipe::Converged, 60_000);
    let [first, .., last] = &trained.curve[..] else { panic!("no curve") };
    assert!(first.kl_bits.iter().all(|kl| *kl > 0.2), "{first:?}");
    assert!(last.kl_bits.iter().all(|kl| *kl < 2e-3), "{last:?}");
    assert_eq!((trained.ended, trained.steps), (Ended::Tokens, 60_000_u64.div_ceil(64)));
    assert_eq!((last.tokens, last.rate, trained.baselines.tokens), (trained.steps * 64, 0.0, trained.steps * 64));
    let read = trained.lens.readings(&model, ids(5, 8, IDS, 500_000));
    let mean = |k: usize| read[k].iter().map(|r| f64::from(r.kl_nats)).sum::<f64>() / 40.0;
    assert!(mean(0) < 2e-3 && mean(1) < 2e-3 && mean(2) == 0.0);
    // The paper's few steps under one clip do not get there.
    let paper = self::trained(&model, Recipe::Paper, 0);
    assert_eq!((paper.ended, paper.steps), (Ended::Tokens, 100));
    let left = &paper.curve[paper.curve.len() - 1].kl_bits;
    assert!(left.iter().zip(&first.kl_bits).all(|(left, first)| *left < 0.9 * first && *left > 5e-3), "{left:?}");
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let model = distorted(DType::F32);
            let trained = trained(&model, Recipe::Converged, 6_400);
            let translators = trained.lens.translators.iter();
            let values = translators.flat_map(|t| [host(&t.transposed_dd), host(&t.offset_1d)].concat());
            (values.collect::<Vec<_>>(), trained.baselines.constant())
        })
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn a_training_ends_when_told_and_when_nothing_is_finite() {
    let mut model = distorted(DType::F32);
    let asked = std::cell::Cell::new(0);
    let training = |go_on: &dyn Fn() -> bool, model: &Toy| {
        let training = Training {
            recipe: Recipe::Converged,
            tokens: 0,
            step_tokens: 64,
            batch: &mut |step| ids(8, 8, IDS, step as usize),
            check: &[ids(8, 8, IDS, 7)],
            go_on,
            report: &mut |_| {},
        };
        train(model, training)
    };
    let told = training(&|| asked.replace(asked.get() + 1) < 3, &model);
    assert_eq!((told.ended, told.steps), (Ended::Interrupted, 3));
    model.head.output_vd = model.head.output_vd.clone().mul_scalar(f32::NAN);
    assert_eq!(training(&|| true, &model).ended, Ended::NotFinite);
}
