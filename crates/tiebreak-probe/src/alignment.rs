//! How well one table maps onto another, beside what unrelated tables would give (paper, table 1 and figure 1).

use std::collections::BTreeMap;
use std::ops::Range;

use faer::{Mat, MatRef};
use rayon::prelude::*;
use serde::Serialize;
use tiebreak_data::Error;

use crate::algebra::{self, BLOCK, Fill};
use crate::operand::{Basis, Spectrum, mean_without, sum, sum_without};
use crate::pairing::Pairing;
use crate::statistics::{mean, pearson};
use crate::table::dot;
use crate::{Distribution, Operand, Rows, Table};

/// k of [`Metric::Knn10`].
pub(crate) const NEIGHBOURS: usize = 10;

/// Random pairings that an [`Aligner`] takes at most.
pub const MOST_PERMUTATIONS: usize = 10_000;

/// Rows per column from which on [`Metric::analytic_null`] gives its limits.
pub const FEWEST_ROWS: usize = 8;

/// What is measured between a source S and a target T, both `[n, d]`, row i of both the same token. Unless said otherwise the
/// value is the plain mean over tokens, and tables are centred (column means over the chosen rows removed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// cos(S\[i\], T\[i\]) as they are: not centred, not mapped.
    Identity,
    /// cos(S\[i\] Q, T\[i\]), Q the orthogonal matrix (reflections allowed, no scale) with the least |S Q - T|.
    Procrustes,
    /// cos(S\[i\] M, T\[i\]), M any matrix with the least |S M - T|, fitted on the rows that are scored.
    Linear,
    /// The same, each row scored by the map (and means) of the other folds.
    LinearHeldout,
    /// Mean canonical correlation.
    Cca,
    /// Share of common ten nearest neighbours by cosine, not centred; widths may differ.
    Knn10,
    /// Linear CKA: |S^T T|^2 / (|S^T S| |T^T T|).
    Cka,
    /// Spearman's correlation over tokens of the row lengths, not centred.
    NormSpearman,
    /// Pearson's correlation of the same.
    NormPearson,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 9] = [
        Self::Identity,
        Self::Procrustes,
        Self::Linear,
        Self::LinearHeldout,
        Self::Cca,
        Self::Knn10,
        Self::Cka,
        Self::NormSpearman,
        Self::NormPearson,
    ];

    /// As tags and JSON spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Procrustes => "procrustes",
            Self::Linear => "linear",
            Self::LinearHeldout => "linear_heldout",
            Self::Cca => "cca",
            Self::Knn10 => "knn10",
            Self::Cka => "cka",
            Self::NormSpearman => "norm_spearman",
            Self::NormPearson => "norm_pearson",
        }
    }

    /// Whether it needs tables of one width.
    pub fn needs_equal_widths(self) -> bool {
        matches!(self, Self::Identity | Self::Procrustes)
    }

    /// Whether it fits a map, which needs more rows than columns.
    pub fn fits(self) -> bool {
        matches!(self, Self::Procrustes | Self::Linear | Self::LinearHeldout | Self::Cca)
    }

    /// What independent isotropic Gaussian tables `[n, source]` and `[n, target]` give on average; `None` where no closed form
    /// is known. [`Self::Procrustes`] and [`Self::Cca`] have a limit for n far above the widths, which is off by less than 3 %
    /// where n is at least [`FEWEST_ROWS`] times the larger one, and `None` below that. Trained tables are not isotropic:
    /// their null is the permuted one.
    pub fn analytic_null(self, n: usize, source: usize, target: usize) -> Option<f64> {
        let (n, source, target) = (n as f64, source as f64, target as f64);
        // Mean singular value of a square Gaussian matrix, by the quarter circle law.
        let quarter_circle = 8.0 / (3.0 * std::f64::consts::PI) * (source / n).sqrt();
        let holds = n >= FEWEST_ROWS as f64 * source.max(target);
        match self {
            Self::Identity | Self::LinearHeldout | Self::NormSpearman | Self::NormPearson => Some(0.0),
            Self::Procrustes => holds.then_some(quarter_circle),
            Self::Linear => Some((source / n).sqrt()),
            Self::Cca => (holds && source == target).then_some(quarter_circle),
            Self::Knn10 => Some(NEIGHBOURS as f64 / (n - 1.0)),
            Self::Cka => Some((source * target).sqrt() / ((n + source) * (n + target)).sqrt()),
        }
    }
}

/// How to align.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to measure.
    pub metrics: Vec<Metric>,
    /// Random pairings per null; 0: no nulls, 1: no standard deviations.
    pub permutations: usize,
    /// Parts of [`Metric::LinearHeldout`].
    pub folds: usize,
    /// Of the folds and pairings.
    pub seed: u64,
    /// Keep every token's value in [`Score::per_token`].
    pub per_token: bool,
}

impl Default for Options {
    /// The metrics of the `align/` tags, 20 permutations, 5 folds.
    fn default() -> Self {
        Self { metrics: Metric::ALL[..6].to_vec(), permutations: 20, folds: 5, seed: 0, per_token: false }
    }
}

/// A metric's value beside what chance gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Of the true pairing.
    pub value: f64,
    /// Mean over random pairings of the rows.
    pub null: Option<f64>,
    /// Standard deviation over these pairings.
    pub null_sd: Option<f64>,
    /// Mean over random pairings within ten groups of tokens of like frequency, which leaves what both tables owe to frequency.
    pub null_freq: Option<f64>,
    /// Standard deviation over these pairings.
    pub null_freq_sd: Option<f64>,
    /// See [`Metric::analytic_null`].
    pub analytic_null: Option<f64>,
    /// Thirds of the tokens by frequency, the most frequent first, under the same map; for metrics that are means over tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terciles: Option<[Tercile; 3]>,
    /// The value's distribution over tokens; likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Each token's value, in the order of [`Rows::ids`]; empty unless asked for.
    #[serde(skip)]
    pub per_token: Vec<f64>,
}

/// A third of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tercile {
    /// Mean over its tokens.
    pub value: f64,
    /// Mean over its tokens and random pairings.
    pub null: Option<f64>,
    /// The same for pairings within frequency groups.
    pub null_freq: Option<f64>,
}

/// Two tables compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// Rows compared.
    pub tokens: usize,
    /// By metric.
    pub scores: BTreeMap<Metric, Score>,
}

/// Aligns tables over one choice of rows, folds and pairings.
pub struct Aligner {
    rows: Rows,
    options: Options,
    pairing: Pairing,
}

/// Aligns `source` to `target`, two tables of all ids, over `rows`. To align many, make an [`Aligner`].
///
/// # Errors
/// As [`Aligner::align`]; a refused table is named "source" or "target".
pub fn align(source: &Table, target: &Table, rows: Rows, options: Options) -> Result<Alignment, Error> {
    let aligner = Aligner::new(rows, options)?;
    let source = aligner.operand(source).map_err(|e| e.at("source"))?;
    let target = aligner.target(target).map_err(|e| e.at("target"))?;
    aligner.align(&source, &target)
}

impl Aligner {
    /// Draws folds and pairings.
    ///
    /// # Errors
    /// [`Error::Input`] if there are fewer than two folds or more folds than rows, or more than 10,000 permutations.
    pub fn new(rows: Rows, options: Options) -> Result<Self, Error> {
        if options.folds < 2 || options.folds > rows.len() {
            return Err(Error::Input(format!(
                "folds = {}: expected from 2 to the number of rows, {}",
                options.folds,
                rows.len()
            )));
        }
        if options.permutations > MOST_PERMUTATIONS {
            return Err(Error::Input(format!(
                "permutations = {}: expected at most {MOST_PERMUTATIONS}; a null's mean is known well from 20",
                options.permutations
            )));
        }
        let pairing = Pairing::new(&rows, options.folds, options.seed);
        Ok(Self { rows, options, pairing })
    }

    /// The rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Makes a table of all ids ready to be source and target.
    ///
    /// # Errors
    /// [`Error::Input`] as [`Table::select`], and if the metrics ask for more of the table than it has: more rows than columns
    /// for a map, more than ten for neighbours, rows that are not all equal.
    pub fn operand(&self, table: &Table) -> Result<Operand, Error> {
        let mut operand = self.target(table)?;
        if self.any(|m| m.fits() || m == Metric::Cka) {
            let folds = if self.any(|m| m == Metric::LinearHeldout) { &self.pairing.folds[..] } else { &[] };
            operand.find_basis(folds)?;
        }
        Ok(operand)
    }

    /// Makes a table of all ids ready to be a target, which takes less time and memory.
    ///
    /// # Errors
    /// As [`Aligner::operand`].
    pub fn target(&self, table: &Table) -> Result<Operand, Error> {
        let (n, d) = (self.rows.len(), table.columns());
        let fewest = if self.any(|m| m == Metric::LinearHeldout) {
            n - self.pairing.folds.iter().map(Range::len).max().unwrap_or_default()
        } else {
            n
        };
        if self.any(Metric::fits) && fewest <= d {
            return Err(Error::Input(format!(
                "{d} columns and {n} rows ({fewest} to fit on): a map of that many columns fits anything; more rows than \
                 columns are needed (neighbours, geometry and norms do without)"
            )));
        }
        let mut operand = Operand::new(table, &self.rows, &self.pairing)?;
        if self.any(|m| m.fits() || m == Metric::Cka) {
            operand.find_spectrum()?;
        }
        if self.any(|m| m == Metric::Knn10) {
            operand.find_neighbours()?;
        }
        Ok(operand)
    }

    fn any(&self, which: impl Fn(Metric) -> bool) -> bool {
        self.options.metrics.iter().any(|m| which(*m))
    }

    /// Scores the true pairing and the random ones. Random pairings keep both tables and so their spectra, lengths and means:
    /// only which row belongs to which token is lost.
    ///
    /// # Errors
    /// [`Error::Input`] if the widths differ and a metric needs equal ones, or if `source` was made as a target only or over
    /// other rows; [`Error::Failed`] if a decomposition does not converge.
    pub fn align(&self, source: &Operand, target: &Operand) -> Result<Alignment, Error> {
        let n = self.rows.len();
        if (source.rows(), target.rows()) != (n, n) {
            return Err(Error::Input("the tables were made ready over other rows".into()));
        }
        if let Some(metric) = self.options.metrics.iter().find(|m| m.needs_equal_widths())
            && source.columns() != target.columns()
        {
            return Err(Error::Input(format!(
                "tables of {} and {} columns: {} needs equal widths (linear, linear_heldout, cca and knn10 do not)",
                source.columns(),
                target.columns(),
                metric.name()
            )));
        }
        let maps = match (&source.spectrum, &source.basis, &target.spectrum) {
            (Some(from), Some(basis), Some(to)) => Some(Maps::new(from, basis, target, to)),
            (Some(_), None, _) => return Err(Error::Input("the source was made ready as a target only".into())),
            _ => None,
        };
        let work = Work { aligner: self, source, target, maps };
        let mut true_one = work.measure(&self.pairing.true_pairs())?;
        let null = work.nulls(&|k| self.pairing.free(k))?;
        let null_freq = work.nulls(&|k| self.pairing.within_deciles(k))?;
        let scores = self.options.metrics.iter().filter_map(|metric| {
            let Found { summary, tokens } = true_one.remove(metric)?;
            let column = |nulls: &[Summaries], of: &dyn Fn(&Summary) -> Option<f64>| -> Vec<f64> {
                nulls.iter().filter_map(|found| of(&found[metric])).collect()
            };
            let value = |s: &Summary| Some(s.value);
            let (free, within) = (column(&null, &value), column(&null_freq, &value));
            let terciles = summary.terciles.map(|terciles| {
                std::array::from_fn(|t| {
                    let of = |s: &Summary| s.terciles.map(|terciles| terciles[t]);
                    let null = some_mean(&column(&null, &of));
                    Tercile { value: terciles[t], null, null_freq: some_mean(&column(&null_freq, &of)) }
                })
            });
            let score = Score {
                value: summary.value,
                null: some_mean(&free),
                null_sd: sample_sd(&free),
                null_freq: some_mean(&within),
                null_freq_sd: sample_sd(&within),
                analytic_null: metric.analytic_null(n, source.columns(), target.columns()),
                terciles,
                distribution: tokens.as_deref().map(Distribution::of),
                per_token: tokens.filter(|_| self.options.per_token).map_or(Vec::new(), |t| self.in_order_of_ids(&t)),
            };
            Some((*metric, score))
        });
        Ok(Alignment { tokens: n, scores: scores.collect() })
    }

    fn in_order_of_ids(&self, by_position: &[f64]) -> Vec<f64> {
        let mut values = vec![0.0; by_position.len()];
        self.pairing.order.iter().zip(by_position).for_each(|(row, x)| values[*row as usize] = *x);
        values
    }
}

fn some_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| mean(values))
}

fn sample_sd(values: &[f64]) -> Option<f64> {
    let mean = some_mean(values).filter(|_| values.len() > 1)?;
    Some((values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt())
}

/// One metric of one pairing, without its tokens.
#[derive(Clone, Copy)]
struct Summary {
    value: f64,
    terciles: Option<[f64; 3]>,
}

type Summaries = BTreeMap<Metric, Summary>;

struct Found {
    summary: Summary,
    /// By position.
    tokens: Option<Vec<f64>>,
}

/// What is the same for every pairing of two tables, of ranks r and s.
struct Maps<'a> {
    basis: &'a Basis,
    /// The source's singular values, r: Q times these is the centred source, turned.
    singular: Vec<f64>,
    /// The target's W diag(1 / sqrt values), `[d, s]`: the centred target times this is its own Q.
    whiten: Mat<f64>,
    /// |S^T S| |T^T T|.
    squares: f64,
}

impl<'a> Maps<'a> {
    fn new(from: &Spectrum, basis: &'a Basis, target: &Operand, to: &Spectrum) -> Self {
        let square = |s: &Spectrum| s.values.iter().map(|x| x * x).sum::<f64>().sqrt();
        Self {
            basis,
            singular: from.values.iter().map(|x| x.sqrt()).collect(),
            whiten: Mat::from_fn(target.columns(), to.values.len(), |i, j| to.vectors[(i, j)] / to.values[j].sqrt()),
            squares: square(from) * square(to),
        }
    }

    /// diag(singular) a, `[r, d]`. The centred source is Q diag(singular) W^T with W^T W = I, so for all that is asked of it Q
    /// diag(singular) serves: the W of S^T T, and of the orthogonal map that comes of it, meets the W^T of S.
    fn stretch(&self, a: &Mat<f64>) -> Mat<f64> {
        Mat::from_fn(a.nrows(), a.ncols(), |i, j| self.singular[i] * a[(i, j)])
    }
}

struct Work<'a> {
    aligner: &'a Aligner,
    source: &'a Operand,
    target: &'a Operand,
    maps: Option<Maps<'a>>,
}

impl Work<'_> {
    /// Measures random pairings, as many at a time as fit into about 1 GiB.
    fn nulls(&self, pairs: &(dyn Fn(usize) -> Vec<u32> + Sync)) -> Result<Vec<Summaries>, Error> {
        let matrix = 8 * self.source.columns() * self.target.columns();
        let at_once = ((1 << 30) / (matrix * (self.aligner.options.folds + 8))).max(1);
        let measure = |k: usize| -> Result<Summaries, Error> {
            Ok(self.measure(&pairs(k))?.into_iter().map(|(metric, found)| (metric, found.summary)).collect())
        };
        let all: Vec<usize> = (0..self.aligner.options.permutations).collect();
        let mut found = Vec::with_capacity(all.len());
        for some in all.chunks(at_once) {
            found.extend(some.par_iter().map(|k| measure(*k)).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(found)
    }

    /// Measures one pairing: row i of the source goes with row `pairs[i]` of the target.
    fn measure(&self, pairs: &[u32]) -> Result<BTreeMap<Metric, Found>, Error> {
        let cross = self.maps.as_ref().map(|maps| Cross::new(self, maps, pairs));
        let mut found = BTreeMap::new();
        for &metric in &self.aligner.options.metrics {
            let one = match (metric, &self.maps, &cross) {
                (Metric::Identity, ..) => self.of_tokens(self.identity(pairs)),
                (Metric::Procrustes, Some(maps), Some(cross)) => {
                    let map = maps.stretch(&algebra::polar(&maps.stretch(&cross.whole))?);
                    self.of_tokens(self.mapped(0..pairs.len(), &map, None, pairs))
                }
                (Metric::Linear, Some(_), Some(cross)) => {
                    self.of_tokens(self.mapped(0..pairs.len(), &cross.whole, None, pairs))
                }
                (Metric::LinearHeldout, Some(maps), Some(cross)) => self.of_tokens(self.held_out(maps, cross, pairs)),
                (Metric::Cca, Some(maps), Some(cross)) => {
                    let both = algebra::product(cross.whole.as_ref(), maps.whiten.as_ref());
                    self.whole(mean(&algebra::singular_values(&both)?))
                }
                (Metric::Cka, Some(maps), Some(cross)) => {
                    self.whole(maps.stretch(&cross.whole).squared_norm_l2() / maps.squares)
                }
                (Metric::Knn10, ..) => match (&self.source.neighbours, &self.target.neighbours) {
                    (Some(a), Some(b)) => self.of_tokens(a.overlap_paired(b, pairs)),
                    _ => continue,
                },
                (Metric::NormSpearman, ..) => {
                    self.whole(correlation(&self.source.norm_ranks, &self.target.norm_ranks, pairs))
                }
                (Metric::NormPearson, ..) => self.whole(correlation(&self.source.norms, &self.target.norms, pairs)),
                // Operands of this aligner have spectra and a basis where a metric needs them.
                _ => continue,
            };
            found.insert(metric, one);
        }
        Ok(found)
    }

    fn whole(&self, value: f64) -> Found {
        Found { summary: Summary { value, terciles: None }, tokens: None }
    }

    fn of_tokens(&self, tokens: Vec<f64>) -> Found {
        let (mut sums, mut counts) = ([0.0; 3], [0.0; 3]);
        for (x, t) in tokens.iter().zip(&self.aligner.pairing.tercile) {
            sums[usize::from(*t)] += x;
            counts[usize::from(*t)] += 1.0;
        }
        let terciles = (counts.iter().all(|n| *n > 0.0)).then(|| std::array::from_fn(|t| sums[t] / counts[t]));
        Found { summary: Summary { value: mean(&tokens), terciles }, tokens: Some(tokens) }
    }

    fn identity(&self, pairs: &[u32]) -> Vec<f64> {
        let cosine = |(i, j): (usize, &u32)| {
            let j = *j as usize;
            let lengths = self.source.norms[i] * self.target.norms[j];
            dot(self.source.table.row(i), self.target.table.row(j)) / lengths
        };
        pairs.par_iter().enumerate().with_min_len(BLOCK).map(cosine).collect()
    }

    /// Cosines of rows of Q, times `map` `[r, d]`, with the rows of the centred target that they are paired with. `moved` is
    /// added to the products, and taken from the centred target.
    fn mapped(&self, rows: Range<usize>, map: &Mat<f64>, moved: Option<(&[f64], &[f64])>, pairs: &[u32]) -> Vec<f64> {
        let Some(maps) = &self.maps else { return Vec::new() };
        let (r, d) = (maps.basis.rank, self.target.columns());
        let mut narrow = vec![0f32; r * d];
        for (i, row) in narrow.chunks_mut(d).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, x)| *x = map[(i, j)] as f32);
        }
        let narrow = MatRef::from_row_major_slice(&narrow, r, d);
        let shift: Vec<f32> = moved.map_or(vec![0.0; d], |(shift, _)| shift.iter().map(|x| *x as f32).collect());
        let centre: Vec<f32> = match moved {
            Some((_, mean)) => self.target.mean.iter().zip(mean).map(|(a, b)| (a + b) as f32).collect(),
            None => self.target.mean.iter().map(|x| *x as f32).collect(),
        };
        let block = |start: usize| {
            let m = BLOCK.min(rows.end - start);
            let mut products = vec![0f32; m * d];
            algebra::multiply_rows(&mut products, &maps.basis.rows[start * r..(start + m) * r], (m, r), narrow);
            let cosine = |(i, product): (usize, &[f32])| {
                shifted_cosine(product, &shift, self.target.table.row(pairs[start + i] as usize), &centre)
            };
            products.chunks(d).enumerate().map(cosine).collect::<Vec<f64>>()
        };
        let starts: Vec<usize> = rows.clone().step_by(BLOCK).collect();
        starts.into_par_iter().flat_map_iter(block).collect()
    }

    fn held_out(&self, maps: &Maps, cross: &Cross, pairs: &[u32]) -> Vec<f64> {
        let folds = &self.aligner.pairing.folds;
        let fold = |(f, rows): (usize, &Range<usize>)| {
            let training = pairs.len() - rows.len();
            let mean = mean_without(&cross.target_sums, f, training);
            let (map, shift) = maps.basis.fits[f].solve(sum_without(&cross.by_fold, f), &mean, training);
            self.mapped(rows.clone(), &map, Some((&shift, &mean)), pairs)
        };
        folds.iter().enumerate().flat_map(fold).collect()
    }
}

/// Q^T T for one pairing, T the centred target.
struct Cross {
    /// `[r, d]`.
    whole: Mat<f64>,
    /// Its parts by fold, and the sums of the target's rows there; the whole is one part if nothing is held out.
    by_fold: Vec<Mat<f64>>,
    target_sums: Vec<Vec<f64>>,
}

impl Cross {
    fn new(work: &Work, maps: &Maps, pairs: &[u32]) -> Self {
        let (r, d) = (maps.basis.rank, work.target.columns());
        let q: Fill = &|i, columns, out| maps.basis.write(i, columns, out);
        let t: Fill = &|i, columns, out| work.target.centred(pairs[i] as usize, columns, out);
        if maps.basis.fits.is_empty() {
            let whole = algebra::sum_of_products(0..pairs.len(), (r, q), (d, t));
            return Self { whole, by_fold: Vec::new(), target_sums: Vec::new() };
        }
        let folds = &work.aligner.pairing.folds;
        let by_fold: Vec<Mat<f64>> =
            folds.iter().map(|f| algebra::sum_of_products(f.clone(), (r, q), (d, t))).collect();
        let whole = sum_without(&by_fold, by_fold.len());
        Self { whole, by_fold, target_sums: folds.iter().map(|f| sum(f.clone(), d, t)).collect() }
    }
}

/// Pearson's correlation of a with b in another order; 0 if one does not vary.
fn correlation(a: &[f64], b: &[f64], pairs: &[u32]) -> f64 {
    let b: Vec<f64> = pairs.iter().map(|j| b[*j as usize]).collect();
    pearson(a, &b).unwrap_or(0.0)
}

/// cos(a + shift, b - centre); 0 if one is zero.
fn shifted_cosine(a: &[f32], shift: &[f32], b: &[f32], centre: &[f32]) -> f64 {
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for (((a, shift), b), centre) in a.iter().zip(shift).zip(b).zip(centre) {
        let (a, b) = (f64::from(a + shift), f64::from(b - centre));
        (aa, bb, ab) = (aa + a * a, bb + b * b, ab + a * b);
    }
    let lengths = (aa * bb).sqrt();
    if lengths > 0.0 { ab / lengths } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gaussian;

    fn rows(n: usize) -> Rows {
        Rows::all(&(0..n as u64).map(|i| 1 + 10_000 / (i + 1)).collect::<Vec<_>>()).unwrap()
    }

    fn scores(source: &Table, target: &Table, options: Options) -> BTreeMap<Metric, Score> {
        align(source, target, rows(source.rows()), options).unwrap().scores
    }

    fn all(permutations: usize) -> Options {
        Options { metrics: Metric::ALL.to_vec(), permutations, ..Options::default() }
    }

    fn message<T>(result: Result<T, Error>) -> String {
        match result {
            Err(Error::Input(text)) => text,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("not refused"),
        }
    }

    /// t times a matrix, plus a row.
    fn image(t: &Table, map: &Mat<f64>, added: f64) -> Table {
        let mut values = Vec::new();
        for i in 0..t.rows() {
            for j in 0..map.ncols() {
                let sum: f64 = t.row(i).iter().enumerate().map(|(k, x)| f64::from(*x) * map[(k, j)]).sum();
                values.push((sum + added * (j as f64 + 1.0)) as f32);
            }
        }
        Table::new(t.rows(), map.ncols(), values).unwrap()
    }

    fn matrix(n: usize, m: usize, seed: u64) -> Mat<f64> {
        let values = gaussian(n, m, seed);
        Mat::from_fn(n, m, |i, j| f64::from(values.row(i)[j]))
    }

    #[test]
    fn a_rotation_gives_1() {
        let table = gaussian(600, 24, 1);
        let rotation = algebra::polar(&matrix(24, 24, 2)).unwrap();
        let found = scores(&table, &image(&table, &rotation, 0.0), all(3));
        for (metric, score) in &found {
            if *metric != Metric::Identity {
                assert!((score.value - 1.0).abs() < 1e-6, "{metric:?}: {}", score.value);
            }
            // A random pairing of the same two tables is nowhere near.
            assert!(score.null.unwrap() < 0.4 && score.null_freq.unwrap() < 0.4, "{metric:?}: {score:?}");
        }
        assert!(found[&Metric::Identity].value.abs() < 0.1);
        // What is centred does not see a row added to all.
        let moved = scores(&table, &image(&table, &rotation, 3.0), all(0));
        for metric in [Metric::Procrustes, Metric::Linear, Metric::LinearHeldout, Metric::Cca, Metric::Cka] {
            assert!((moved[&metric].value - 1.0).abs() < 1e-5, "{metric:?}: {}", moved[&metric].value);
        }
        assert_eq!(moved[&Metric::Procrustes].null, None);
    }

    #[test]
    fn an_invertible_image_gives_1_where_maps_are_free() {
        let table = gaussian(600, 24, 1);
        let found = scores(&table, &image(&table, &matrix(24, 24, 3), 1.0), all(0));
        for metric in [Metric::Linear, Metric::LinearHeldout, Metric::Cca] {
            assert!((found[&metric].value - 1.0).abs() < 1e-5, "{metric:?}: {}", found[&metric].value);
        }
        assert!(found[&Metric::Procrustes].value < 0.95);
    }

    #[test]
    fn small_tables_have_no_analytic_limit() {
        // 62 x 32 independent Gaussian tables give 0.57 (Procrustes) and 0.65 (CCA), the limit for many rows is 0.61.
        for metric in [Metric::Procrustes, Metric::Cca] {
            assert_eq!(metric.analytic_null(62, 32, 32), None);
            assert_eq!(metric.analytic_null(255, 32, 32), None);
            assert!((metric.analytic_null(256, 32, 32).unwrap() - 0.30011).abs() < 1e-4);
        }
        assert!((Metric::Linear.analytic_null(62, 32, 32).unwrap() - 0.7184).abs() < 1e-4, "holds at any size");
        let (n, d) = (512, 64);
        let found = scores(&gaussian(n, d, 1), &gaussian(n, d, 2), all(0));
        for metric in [Metric::Procrustes, Metric::Cca] {
            let (value, limit) = (found[&metric].value, found[&metric].analytic_null.unwrap());
            assert!((value / limit - 1.0).abs() < 0.04, "{metric:?}: {value} at the fewest rows, limit {limit}");
        }
    }

    #[test]
    fn gaussian_tables_give_the_analytic_null() {
        let (n, d) = (2048, 64);
        let found = scores(&gaussian(n, d, 1), &gaussian(n, d, 2), all(6));
        let near = |metric: Metric, tolerance: f64| {
            let score = &found[&metric];
            let expected = score.analytic_null.unwrap();
            for value in [Some(score.value), score.null, score.null_freq] {
                let value = value.unwrap();
                assert!((value - expected).abs() < tolerance, "{metric:?}: {value} instead of {expected}");
            }
        };
        // 8/(3 pi) sqrt(64 / 2048) = 0.1501 and sqrt(64 / 2048) = 0.1768; at this width they hold within 3 %.
        assert!((found[&Metric::Procrustes].analytic_null.unwrap() - 0.15005).abs() < 1e-4);
        near(Metric::Procrustes, 0.006);
        near(Metric::Linear, 0.005);
        near(Metric::Cca, 0.006);
        near(Metric::Cka, 0.003);
        near(Metric::Knn10, 0.003);
        // Means of 2048 cosines of standard deviation 1/8, of one map each, and correlations of 2048 pairs.
        near(Metric::LinearHeldout, 0.015);
        near(Metric::Identity, 0.015);
        near(Metric::NormSpearman, 0.09);
        near(Metric::NormPearson, 0.09);
        for score in found.values() {
            let (sd, sd_freq) = (score.null_sd.unwrap(), score.null_freq_sd.unwrap());
            assert!(sd > 0.0 && sd_freq > 0.0 && sd < 0.04, "{score:?}");
            if let Some(terciles) = score.terciles {
                let mean = terciles.iter().map(|t| t.value).sum::<f64>() / 3.0;
                assert!((mean - score.value).abs() < 1e-3, "terciles of equally many tokens: {mean} {}", score.value);
            }
        }
    }

    /// Frequent tokens stand apart in both tables, and that is all the tables share: pairings that keep frequency keep it.
    #[test]
    fn the_null_within_frequency_groups_keeps_what_frequency_gives() {
        let (n, d) = (1000, 16);
        let of = |seed: u64| {
            let (noise, away) = (gaussian(n, d, seed), gaussian(1, d, seed + 100));
            let row = |i: usize| {
                let weight = if i < n / 2 { 1.0 } else { -1.0 };
                noise.row(i).iter().zip(away.row(0)).map(move |(x, a)| x + weight * a).collect::<Vec<_>>()
            };
            Table::new(n, d, (0..n).flat_map(row).collect()).unwrap()
        };
        let found = scores(&of(1), &of(2), Options { permutations: 8, ..Options::default() });
        for metric in [Metric::Procrustes, Metric::Linear, Metric::LinearHeldout, Metric::Cca] {
            let score = &found[&metric];
            let (value, null, freq) = (score.value, score.null.unwrap(), score.null_freq.unwrap());
            assert!((value - freq).abs() < 0.02, "{metric:?}: {value} {freq}");
            assert!(value - null > 0.02, "{metric:?}: {value} {null}");
        }
    }

    #[test]
    fn tokens_come_in_the_order_of_ids() {
        let source = gaussian(40, 6, 1);
        let mut values = source.values().to_vec();
        values[7 * 6..8 * 6].iter_mut().for_each(|x| *x = -*x);
        let target = Table::new(40, 6, values).unwrap();
        let counts: Vec<u64> = (0..40).map(|i| u64::from(i != 3)).collect();
        let options =
            Options { per_token: true, permutations: 2, metrics: vec![Metric::Identity], ..Options::default() };
        let found = align(&source, &target, Rows::seen(&counts).unwrap(), options).unwrap();
        assert_eq!(found.tokens, 39);
        let score = &found.scores[&Metric::Identity];
        for (id, cosine) in (0..40).filter(|id| *id != 3).zip(&score.per_token) {
            let expected = if id == 7 { -1.0 } else { 1.0 };
            assert!((cosine - expected).abs() < 1e-6, "{id}: {cosine}");
        }
        assert!((score.value - 37.0 / 39.0).abs() < 1e-6);
        assert_eq!(score.distribution.as_ref().unwrap().histogram[0], 1);
    }

    #[test]
    fn a_table_of_lower_rank_aligns_as_its_own_columns() {
        let (narrow, target) = (gaussian(300, 5, 1), gaussian(300, 8, 2));
        let values = (0..300).flat_map(|i| [narrow.row(i), narrow.row(i)].concat()).collect();
        let doubled = Table::new(300, 10, values).unwrap();
        let metrics = vec![Metric::Linear, Metric::LinearHeldout, Metric::Cca, Metric::Knn10];
        let options = Options { metrics: metrics.clone(), permutations: 2, ..Options::default() };
        let (one, two) = (scores(&narrow, &target, options.clone()), scores(&doubled, &target, options.clone()));
        for metric in &metrics {
            assert!((one[metric].value - two[metric].value).abs() < 1e-6, "{metric:?}");
            assert!((one[metric].null.unwrap() - two[metric].null.unwrap()).abs() < 1e-6, "{metric:?}");
        }
        assert!(
            message(align(&narrow, &target, rows(300), Options::default())).contains("identity needs equal widths")
        );
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let options = Options::default;
        let wide = gaussian(20, 20, 1);
        let text = message(align(&wide, &wide, rows(20), options()));
        assert!(text.starts_with("source: 20 columns and 20 rows (16 to fit on)"), "{text}");
        // Held out, 16 of 20 rows are left to fit on.
        assert!(message(align(&gaussian(20, 16, 1), &wide, rows(20), options())).contains("16 to fit on"));
        let some = Options { metrics: vec![Metric::Identity, Metric::Knn10], ..options() };
        assert!(align(&wide, &wide, rows(20), some).is_ok());
        let equal = Table::new(50, 2, [1.0, 2.0].repeat(50)).unwrap();
        assert!(
            message(align(&equal, &gaussian(50, 2, 1), rows(50), options()))
                .contains("all rows of the table are equal")
        );
        assert!(message(align(&gaussian(50, 2, 1), &equal, rows(50), options())).starts_with("target: all rows"));
        let narrow = gaussian(20, 2, 1);
        assert!(message(align(&narrow, &narrow, rows(21), options())).contains("20 rows, the vocabulary 21"));
        assert!(message(Aligner::new(rows(20), Options { folds: 1, ..options() })).contains("folds = 1"));
        assert!(message(Aligner::new(rows(20), Options { folds: 21, ..options() })).contains("folds = 21"));
        let many = Options { permutations: usize::MAX, ..options() };
        assert!(message(Aligner::new(rows(20), many)).contains("expected at most 10000"));
        let aligner = Aligner::new(rows(50), options()).unwrap();
        let target = aligner.target(&gaussian(50, 2, 1)).unwrap();
        assert!(message(aligner.align(&target, &target)).contains("as a target only"));
        let other = Aligner::new(rows(60), options()).unwrap().operand(&gaussian(60, 2, 1)).unwrap();
        assert!(message(aligner.align(&other, &target)).contains("other rows"));
    }

    #[test]
    fn the_bits_do_not_depend_on_threads() {
        let (a, b) = (gaussian(700, 20, 1), gaussian(700, 20, 2));
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| scores(&a, &b, all(3)))
        };
        assert_eq!(with(1), with(3));
    }
}
