//! Row norm against token frequency (paper, figure 5).

use serde::Serialize;
use tiebreak_data::Error;

use crate::statistics::{mean, pearson, spearman};
use crate::{Rows, Table};

/// How row lengths go with how often their tokens occur. x = log10(count + 1), y = |row|, not centred; ids that never occur
/// are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NormFrequency {
    /// Tokens that occur.
    pub tokens: usize,
    /// Spearman's correlation of y with the count; `None` if one does not vary.
    pub spearman: Option<f64>,
    /// Pearson's correlation of y with x; `None` likewise.
    pub pearson: Option<f64>,
    /// Least-squares slope of y on x: length per tenfold frequency; `None` likewise.
    pub slope: Option<f64>,
    /// Mean y in bins of x, a quarter of a decade wide; empty ones are left out.
    pub bins: Vec<FrequencyBin>,
}

/// Tokens of similar frequency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrequencyBin {
    /// Mean x of the bin's tokens.
    pub log10_count: f64,
    /// Mean row length.
    pub norm: f64,
    /// Standard deviation of the row length over tokens; 0 of one.
    pub norm_sd: f64,
    /// Tokens in the bin.
    pub tokens: usize,
}

/// Bins per factor of ten.
const PER_DECADE: f64 = 4.0;

/// Measures `table`, whose rows are all ids of the vocabulary, over the ids of `rows` that occur.
///
/// # Errors
/// [`Error::Input`] if `rows` belongs to another vocabulary, has no id that occurs, or names a row that is zero or not finite.
pub fn norm_frequency(table: &Table, rows: &Rows) -> Result<NormFrequency, Error> {
    let norms = table.select(rows)?.norms();
    let seen: Vec<(f64, f64)> =
        rows.counts().iter().zip(norms).filter(|(n, _)| **n > 0).map(|(n, y)| ((*n as f64 + 1.0).log10(), y)).collect();
    if seen.is_empty() {
        return Err(Error::Input("no id of the rows occurs in the training split: norm has no frequency".into()));
    }
    let (x, y): (Vec<f64>, Vec<f64>) = seen.iter().copied().unzip();
    let pearson = pearson(&x, &y);
    let spread = |v: &[f64]| {
        let mean = mean(v);
        (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt()
    };
    let mut bins: std::collections::BTreeMap<i64, Vec<(f64, f64)>> = Default::default();
    for (x, y) in &seen {
        bins.entry((x * PER_DECADE).floor() as i64).or_default().push((*x, *y));
    }
    let bins = bins.into_values().map(|tokens| {
        let (x, y): (Vec<f64>, Vec<f64>) = tokens.into_iter().unzip();
        FrequencyBin { log10_count: mean(&x), norm: mean(&y), norm_sd: spread(&y), tokens: y.len() }
    });
    Ok(NormFrequency {
        tokens: seen.len(),
        spearman: spearman(&x, &y),
        pearson,
        slope: pearson.map(|r| r * spread(&y) / spread(&x)),
        bins: bins.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gaussian;

    #[test]
    fn a_planted_slope_is_recovered() {
        // Rows of random directions and length 0.3 + 0.4 log10(count + 1); every seventh id never occurs.
        let counts: Vec<u64> = (0..2000u64).map(|i| if i % 7 == 0 { 0 } else { 1 + 100_000 / (i + 1) }).collect();
        let directions = gaussian(2000, 16, 3);
        let values = directions.values().chunks(16).zip(&counts).flat_map(|(row, n)| {
            let length = if *n == 0 { 9.0 } else { 0.3 + 0.4 * (*n as f64 + 1.0).log10() };
            let scale = (length / row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()) as f32;
            row.iter().map(move |x| x * scale).collect::<Vec<_>>()
        });
        let table = Table::new(2000, 16, values.collect()).unwrap();
        let rows = Rows::all(&counts).unwrap();
        let found = norm_frequency(&table, &rows).unwrap();
        assert_eq!(found.tokens, counts.iter().filter(|n| **n > 0).count());
        assert!((found.slope.unwrap() - 0.4).abs() < 1e-6, "{:?}", found.slope);
        assert!((found.pearson.unwrap() - 1.0).abs() < 1e-9 && found.spearman.unwrap() > 0.999);
        assert_eq!(found.bins.iter().map(|b| b.tokens).sum::<usize>(), found.tokens);
        for bin in &found.bins {
            assert!((bin.norm - 0.3 - 0.4 * bin.log10_count).abs() < 1e-6, "{bin:?}");
        }
        // Frequency that goes with nothing: Pearson's r of 1714 independent pairs has standard deviation 0.024.
        let found = norm_frequency(&directions, &rows).unwrap();
        assert!(found.pearson.unwrap().abs() < 0.12, "{found:?}");
        assert!(norm_frequency(&table, &Rows::all(&[0; 2000]).unwrap()).is_err());
    }
}
