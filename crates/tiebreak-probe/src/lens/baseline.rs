//! What a lens is measured against: predictors that know the model's final distributions but not the state.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use tiebreak_kernels::{Source, largest_tensor};

/// Largest vocabulary with a bigram predictor, whose V^2 numbers then take 256 MiB. A device may hold no tensor as large.
const LARGEST_BIGRAM: usize = 8192;

/// Weight of the constant predictor in each id's distribution, in tokens.
const BACK_OFF: f64 = 1.0;

/// Columns per task of the constant predictor's sums.
const COLUMNS: usize = 1024;

/// The mean final distribution over the tokens seen: of all of them (the constant predictor), and of those with one
/// current id (the bigram predictor), which leans on the constant as if that had been seen once there.
pub struct Baselines {
    vocabulary: usize,
    /// Tokens seen.
    pub tokens: u64,
    /// Sums of all; empty with a bigram, whose rows hold them.
    all: Vec<f64>,
    /// Sums by current id, `[v, v]`; none for large vocabularies.
    by_id: Option<Vec<f32>>,
    seen: Vec<u64>,
}

impl Baselines {
    /// Nothing seen yet of V ids.
    pub fn new(vocabulary: usize) -> Self {
        let bytes = 4 * (vocabulary as u64).pow(2);
        let bigram = vocabulary <= LARGEST_BIGRAM && bytes <= largest_tensor();
        Self {
            vocabulary,
            tokens: 0,
            all: vec![0.0; if bigram { 0 } else { vocabulary }],
            by_id: bigram.then(|| vec![0.0; vocabulary * vocabulary]),
            seen: vec![0; vocabulary],
        }
    }

    /// Adds final distributions `[m, v]`, row-major, of m tokens with these current ids.
    pub fn see(&mut self, ids: &[usize], p_mv: &[f32]) {
        let v = self.vocabulary;
        self.tokens += ids.len() as u64;
        ids.iter().for_each(|id| self.seen[*id] += 1);
        match &mut self.by_id {
            Some(sums) => {
                let mut rows: Vec<Vec<usize>> = vec![Vec::new(); v];
                ids.iter().enumerate().for_each(|(row, id)| rows[*id].push(row));
                sums.par_chunks_mut(v).zip(&rows).with_min_len(16).for_each(|(sum, rows)| {
                    for row in rows {
                        sum.iter_mut().zip(&p_mv[row * v..]).for_each(|(sum, p)| *sum += p);
                    }
                });
            }
            None => self.all.par_chunks_mut(COLUMNS).enumerate().for_each(|(block, sums)| {
                for row in p_mv.chunks(v) {
                    sums.iter_mut().zip(&row[block * COLUMNS..]).for_each(|(sum, p)| *sum += f64::from(*p));
                }
            }),
        }
    }

    /// The constant predictor. The uniform distribution counts as one token, so that no probability is 0.
    pub fn constant(&self) -> Vec<f64> {
        let v = self.vocabulary;
        let mut sums = vec![1.0 / v as f64; v];
        match &self.by_id {
            Some(rows) => {
                rows.chunks(v).for_each(|row| sums.iter_mut().zip(row).for_each(|(s, p)| *s += f64::from(*p)))
            }
            None => sums.iter_mut().zip(&self.all).for_each(|(s, all)| *s += all),
        }
        sums.iter().map(|sum| sum / (self.tokens + 1) as f64).collect()
    }

    /// The predictors, for use.
    pub fn predictors(self, device: &Device) -> Predictors {
        let (v, constant) = (self.vocabulary, self.constant());
        let table = |values: Vec<f32>| {
            let rows = values.len() / v;
            Tensor::from_data(TensorData::new(values, [rows, v]), device)
        };
        let bigram_vv = self.by_id.map(|mut sums| {
            sums.par_chunks_mut(v).zip(&self.seen).for_each(|(row, seen)| {
                for (p, constant) in row.iter_mut().zip(&constant) {
                    *p = ((f64::from(*p) + BACK_OFF * constant) / (*seen as f64 + BACK_OFF)).ln() as f32;
                }
            });
            table(sums)
        });
        Predictors { constant_1v: table(constant.iter().map(|p| p.ln() as f32).collect()), bigram_vv }
    }
}

/// Log-probabilities of predictors.
pub struct Predictors {
    /// The same for every token, `[1, v]`.
    pub constant_1v: Tensor<2>,
    /// By current id, `[v, v]`; none above 8192 ids, where it would take too much memory, or where the device has no such tensors.
    pub bigram_vv: Option<Tensor<2>>,
}

impl Predictors {
    /// The constant predictor, then the bigram if there is one, for tokens with these current ids `[n]`.
    pub fn sources(&self, inputs_n: &Tensor<1, Int>) -> Vec<Source> {
        let constant = Source::Rows(self.constant_1v.clone(), inputs_n.zeros_like());
        let bigram = self.bigram_vv.iter().map(|logs_vv| Source::Rows(logs_vv.clone(), inputs_n.clone()));
        std::iter::once(constant).chain(bigram).collect()
    }
}
