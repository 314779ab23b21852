//! What is measured on a schedule while a run trains: how far the tables have turned, and how they align with each other and
//! with those of other seeds.

use std::collections::BTreeMap;

use tiebreak_data::{Error, Prepared};
use tiebreak_model::interface::HeadMode;
use tiebreak_probe::{Aligner, Drift, Metric, Operand, Options, Rows, Table};

use crate::config::RunConfig;
use crate::folder::RunFolder;
use crate::kept::{KeptTables, Side, keep_tables, tables_of};
use crate::reference::Reference;
use crate::track::{Tag, Trackers};

/// The probes of one run.
pub struct Probes {
    every: u64,
    steps: u64,
    tables_at: Vec<u64>,
    /// Occurrences of each id in the training split; probes look at the ids that have any.
    counts: Vec<u64>,
    alignments: Option<Alignments>,
}

/// What aligns, if `probe.every` asks for it.
struct Alignments {
    aligner: Aligner,
    references: Vec<Reference>,
    histograms: bool,
}

/// Tables of one model at one step.
type Tables = [(Side, Table)];

/// Values of one alignment tag, one per reference; the mean is logged.
type Values = BTreeMap<String, Vec<f64>>;

impl Probes {
    /// Opens the references and draws what nulls need. `counts`: occurrences of each id in the training split; `start`: the
    /// initial tables, so that what cannot be aligned is refused before anything is written.
    ///
    /// # Errors
    /// [`Error::Input`] for a reference that cannot serve, or a table that has too few rows to be aligned.
    pub fn open(config: &RunConfig, data: &Prepared, counts: Vec<u64>, start: &dyn HeadMode) -> Result<Self, Error> {
        let (every, steps) = (config.probe.every, config.train.steps);
        let tables_at = config.log.tables_at.clone();
        let mut probes = Self { every, steps, tables_at, counts, alignments: None };
        if every == 0 {
            if !config.probe.reference.is_empty() {
                tracing::warn!("probe.reference has no effect: probe.every = 0 asks for no probes while training");
            }
            return Ok(probes);
        }
        let at: Vec<u64> = (1..=steps / every).map(|k| k * every).chain([steps]).collect();
        let references = Reference::open(config, &data.info, &at)?;
        if references.is_empty() && start.one_matrix() {
            tracing::warn!(
                "probe.every = {every}, but one matrix has nothing to be aligned with: give probe.reference"
            );
        }
        let histograms = config.log.histograms_every > 0;
        let options = Options { permutations: config.probe.permutations, per_token: histograms, ..Options::default() };
        let input = |e: Error| Error::Input(format!("probe.every = {every}: {e}; 0 switches probes off"));
        let aligner = Aligner::new(Rows::seen(&probes.counts).map_err(input)?, options).map_err(input)?;
        let alignments = Alignments { aligner, references, histograms };
        alignments.ready(&tables_of(start)?).map_err(input)?;
        probes.alignments = Some(alignments);
        Ok(probes)
    }

    /// Whether tables are kept for good at `step`.
    pub fn keeps(&self, step: u64) -> bool {
        step == 0 || step == self.steps || self.tables_at.contains(&step)
    }

    /// Whether tables are aligned at `step`.
    pub fn aligns(&self, step: u64) -> bool {
        self.every > 0 && step > 0 && (step.is_multiple_of(self.every) || step == self.steps)
    }

    fn kept_before(&self, step: u64) -> Option<u64> {
        self.tables_at.iter().copied().chain([0]).filter(|kept| *kept < step).max()
    }

    /// Refuses to go on from `step` without the kept tables that later ones are compared with.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file.
    pub fn check(&self, folder: &RunFolder, step: u64) -> Result<(), Error> {
        let kept = KeptTables::open(&folder.0)?;
        for step in [Some(0), self.kept_before(step + 1)].into_iter().flatten() {
            kept.tables(step).map_err(|e| {
                let checkpoints = folder.checkpoints();
                Error::Input(format!("{e}; put it back, or remove {} to start again", checkpoints.display()))
            })?;
        }
        Ok(())
    }

    /// Keeps the tables of `step` for good, and gives the embedding/ tags: the mean over ids of the training split of the cosine
    /// of each row with the same row of step 0 and of the table kept before (none before step 0). Rows that are zero have no
    /// direction and are left out.
    pub fn keep(&self, folder: &RunFolder, step: u64, interface: &dyn HeadMode) -> Result<Vec<(Tag, f64)>, Error> {
        let failed = |e: Error| Error::Failed(e.to_string());
        keep_tables(folder, step, interface)?;
        let (now, kept) = (tables_of(interface)?, KeptTables::open(&folder.0).map_err(failed)?);
        let mut tags = self.turned(&now, &kept.tables(0).map_err(failed)?, "cos_to_init")?;
        if let Some(before) = self.kept_before(step) {
            tags.extend(self.turned(&now, &kept.tables(before).map_err(failed)?, "cos_to_prev")?);
        }
        Ok(tags)
    }

    fn turned(&self, now: &Tables, before: &Tables, what: &str) -> Result<Vec<(Tag, f64)>, Error> {
        let mut tags = Vec::new();
        for (side, name) in [(Side::Input, "input"), (Side::Output, "output")] {
            let (now, before) = (of_side(now, side), of_side(before, side));
            let cosine = mean_cosine(now, before, &self.counts)?;
            tags.extend(cosine.map(|cosine| (format!("embedding/{name}_{what}").into(), cosine)));
        }
        Ok(tags)
    }

    /// Aligns the tables at `step` and logs the align/ tags, with histograms over tokens where they are asked for.
    pub fn align(&self, step: u64, interface: &dyn HeadMode, trackers: &mut Trackers) -> Result<(), Error> {
        let Some(alignments) = &self.alignments else { return Ok(()) };
        let (mut values, mut tokens) = (Values::new(), Values::new());
        alignments.measure(step, &tables_of(interface)?, &mut values, &mut tokens).map_err(|e| {
            Error::Failed(format!(
                "probe at step {step}: {e}; --resume with --set probe.every=0 goes on without probes"
            ))
        })?;
        let mean = |(tag, values): (String, Vec<f64>)| (tag.into(), values.iter().sum::<f64>() / values.len() as f64);
        trackers.scalars(step, &values.into_iter().map(mean).collect::<Vec<_>>())?;
        for (tag, values) in tokens {
            trackers.histogram(step, &tag, &values)?;
        }
        Ok(())
    }
}

impl Alignments {
    fn measure(&self, step: u64, own: &Tables, values: &mut Values, tokens: &mut Values) -> Result<(), Error> {
        let own = self.ready(own)?;
        if let [input, output] = &own[..] {
            self.pair(input, output, values, tokens)?;
        }
        for reference in &self.references {
            let theirs = self.ready(&reference.tables(step)?)?;
            match (&theirs[..], &own[..]) {
                // From the sides of an untied run to the one matrix of a tied one, whichever of the two trains.
                (_, [tied]) => theirs.iter().try_for_each(|side| self.pair(side, tied, values, tokens))?,
                ([tied], _) => own.iter().try_for_each(|side| self.pair(side, tied, values, tokens))?,
                // The same table of two seeds: how alike they can be at all.
                _ => theirs.iter().zip(&own).try_for_each(|(a, b)| self.pair(a, b, values, tokens))?,
            }
        }
        Ok(())
    }

    fn ready(&self, tables: &Tables) -> Result<Vec<(Side, Operand)>, Error> {
        tables.iter().map(|(side, table)| Ok((*side, self.aligner.operand(table)?))).collect()
    }

    fn pair(
        &self,
        (source, from): &(Side, Operand),
        (target, to): &(Side, Operand),
        values: &mut Values,
        tokens: &mut Values,
    ) -> Result<(), Error> {
        let found = self.aligner.align(from, to)?;
        for (metric, score) in found.scores {
            let tag = format!("align/{}_to_{}/{}", source.name(), target.name(), metric.name());
            let nulls = [("_null", score.null), ("_null_freq", score.null_freq)];
            let nulls = nulls.into_iter().filter_map(|(name, value)| Some((name, value?)));
            for (name, value) in [("", score.value)].into_iter().chain(nulls) {
                values.entry(format!("{tag}{name}")).or_default().push(value);
            }
            let cosine =
                matches!(metric, Metric::Identity | Metric::Procrustes | Metric::Linear | Metric::LinearHeldout);
            if self.histograms && cosine {
                tokens.entry(format!("{tag}_tokens")).or_default().extend(score.per_token);
            }
        }
        Ok(())
    }
}

/// The table of a side; where both are one, that one.
fn of_side(tables: &Tables, side: Side) -> &Table {
    let found = tables.iter().find(|(s, _)| *s == side).or(tables.first());
    &found.expect("a model has a table").1
}

/// The mean, over ids that occur and rows that are not zero, of cos(now\[id\], before\[id\]); `None` of no such row.
fn mean_cosine(now: &Table, before: &Table, counts: &[u64]) -> Result<Option<f64>, Error> {
    let (now_norms, before_norms) = (now.norms(), before.norms());
    let rows = Rows::seen(counts)?;
    match rows.filter(|id| now_norms[id as usize] > 0.0 && before_norms[id as usize] > 0.0) {
        Ok(rows) => Drift::between(now, before, &rows).map(|drift| Some(drift.mean)),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: [[f32; 2]; 4]) -> Table {
        Table::new(4, 2, rows.concat()).unwrap()
    }

    #[test]
    fn cosines_are_averaged_over_rows_that_occur_and_are_not_zero() {
        let before = table([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [0.0, 0.0]]);
        let now = table([[0.0, 5.0], [0.0, 1.0], [4.0, 3.0], [1.0, 0.0]]);
        // Cosines 0, 1, 0.96 and none.
        let mean = |counts: [u64; 4]| mean_cosine(&now, &before, &counts).unwrap();
        assert!((mean([1, 9, 1, 1]).unwrap() - 1.96 / 3.0).abs() < 1e-7);
        assert!((mean([0, 1, 2, 0]).unwrap() - 0.98).abs() < 1e-7);
        assert_eq!(mean([0, 0, 0, 7]), None);
    }

    fn probes(every: u64, tables_at: &[u64], steps: u64) -> Probes {
        Probes { every, steps, tables_at: tables_at.to_vec(), counts: vec![1; 4], alignments: None }
    }

    #[test]
    fn the_schedule() {
        let probes = probes(4, &[30, 2, 2, 5, 400], 10);
        let steps = |which: &dyn Fn(u64) -> bool| (0..=10).filter(|s| which(*s)).collect::<Vec<_>>();
        assert_eq!(steps(&|s| probes.keeps(s)), [0, 2, 5, 10]);
        assert_eq!(steps(&|s| probes.aligns(s)), [4, 8, 10]);
        let before: Vec<Option<u64>> = [0, 1, 2, 3, 5, 10].map(|s| probes.kept_before(s)).to_vec();
        assert_eq!(before, [None, Some(0), Some(0), Some(2), Some(2), Some(5)]);
    }

    #[test]
    fn one_matrix_turns_once_for_both_sides() {
        let tied = |rows| [(Side::Tied, table(rows))];
        let (before, now) = (tied([[1.0, 0.0]; 4]), tied([[3.0, 4.0]; 4]));
        let tags = probes(0, &[], 1).turned(&now, &before, "cos_to_init").unwrap();
        let tags: Vec<(&str, f64)> = tags.iter().map(|(tag, x)| (tag.as_ref(), *x)).collect();
        let [("embedding/input_cos_to_init", a), ("embedding/output_cos_to_init", b)] = tags[..] else {
            panic!("{tags:?}")
        };
        assert!((a - 0.6).abs() < 1e-7 && a == b);
        // Two matrices that once were one: each against what it came from.
        let now = [(Side::Input, table([[3.0, 4.0]; 4])), (Side::Output, table([[0.0, 1.0]; 4]))];
        let tags = probes(0, &[], 1).turned(&now, &before, "cos_to_prev").unwrap();
        assert!((tags[0].1 - 0.6).abs() < 1e-7 && tags[1].1.abs() < 1e-7, "{tags:?}");
    }

    fn gaussian(stream: &str) -> Table {
        let values = tiebreak_model::rng::Stream::new(0, stream).normals(60 * 4, 1.0, None);
        Table::new(60, 4, values.into_iter().map(|x| x as f32).collect()).unwrap()
    }

    #[test]
    fn a_rotated_table_aligns_and_an_unrelated_one_does_not() {
        let input = gaussian("a");
        // A quarter turn of the first two columns, the last two exchanged.
        let turn = |row: &[f32]| [-row[1], row[0], row[3], row[2]];
        let output = Table::new(60, 4, input.values().chunks(4).flat_map(turn).collect()).unwrap();
        let options = Options { permutations: 3, per_token: true, ..Options::default() };
        let aligner = Aligner::new(Rows::seen(&[1; 60]).unwrap(), options).unwrap();
        let alignments = Alignments { aligner, references: Vec::new(), histograms: true };
        let (mut values, mut tokens) = (Values::new(), Values::new());
        let own = [(Side::Input, input), (Side::Output, output)];
        alignments.measure(1, &own, &mut values, &mut tokens).unwrap();
        let value = |tag: &str| values[&format!("align/input_to_output/{tag}")][0];
        for metric in ["procrustes", "linear", "linear_heldout", "cca"] {
            assert!((value(metric) - 1.0).abs() < 1e-4, "{metric}: {}", value(metric));
            assert!(value(&format!("{metric}_null")) < 0.6 && value(&format!("{metric}_null_freq")) < 0.6);
        }
        assert_eq!(value("knn10"), 1.0);
        assert!(value("identity").abs() < 0.5);
        assert_eq!(values.len(), 18, "six metrics, each with two nulls");
        assert_eq!(tokens.keys().filter(|tag| tag.ends_with("_tokens")).count(), 4);
        assert!(tokens.values().all(|tokens| tokens.len() == 60));
    }
}
