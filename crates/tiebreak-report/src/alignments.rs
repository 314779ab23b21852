//! Alignments of shared tables with the tables of untied models of other seeds. They take longest of all measures, so what was
//! measured is kept in `alignments.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiebreak_data::write_atomic;
use tiebreak_probe::{Aligner, Metric, Operand, Options, Rows, Table, align, learned_part, turned};
use tiebreak_train::{Error, Side};

use crate::estimate::Pairs;
use crate::runs::{Run, Runs};

/// What is aligned, and how much of it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Whole tables at the last step, every metric, with nulls.
    Whole,
    /// Each row less its projection on its own initial row, at the last step, with nulls.
    Learned,
    /// Whole tables at a kept step, without nulls.
    At(u64),
}

impl Part {
    fn name(self) -> String {
        match self {
            Self::Whole => "whole".into(),
            Self::Learned => "learned".into(),
            Self::At(step) => format!("step {step}"),
        }
    }

    fn options(self) -> Options {
        use Metric::*;
        let (metrics, permutations) = match self {
            Self::Whole => (vec![Identity, Procrustes, Linear, LinearHeldout, Knn10, NormSpearman], 20),
            Self::Learned => (vec![Procrustes, LinearHeldout], 20),
            Self::At(_) => (vec![Procrustes, LinearHeldout], 0),
        };
        Options { metrics, permutations, ..Options::default() }
    }
}

/// A score beside its chance levels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Of the true pairing.
    pub value: f64,
    /// Mean over random pairings.
    pub null: Option<f64>,
    /// Mean over random pairings within frequency groups.
    pub null_freq: Option<f64>,
}

/// Scores by metric.
type Scores = BTreeMap<String, Score>;

/// Scores of pairs of tables of two arms: by the seed of the first arm, and that of the second.
#[derive(Clone, Debug, Default)]
pub struct Crossed(BTreeMap<(u64, u64), Scores>);

impl Crossed {
    /// One number of every pair, where it is there.
    pub fn pairs(&self, metric: &str, of: impl Fn(&Score) -> Option<f64>) -> Pairs {
        self.0.iter().filter_map(|(key, scores)| Some((*key, of(scores.get(metric)?)?))).collect()
    }

    /// A metric's values.
    pub fn values(&self, metric: &str) -> Pairs {
        self.pairs(metric, |score| Some(score.value))
    }

    /// A metric's values less each pair's own chance level within frequency groups.
    pub fn above_frequency(&self, metric: &str) -> Pairs {
        self.pairs(metric, |score| Some(score.value - score.null_freq?))
    }
}

/// Which table of a run.
type Which<'a> = (&'a Run, Side);

/// Aligns, and remembers.
pub struct Alignments<'a> {
    runs: &'a Runs,
    path: PathBuf,
    known: BTreeMap<String, Scores>,
}

impl<'a> Alignments<'a> {
    /// With what `out` holds already.
    ///
    /// # Errors
    /// [`Error::Input`] for a damaged `alignments.json`.
    pub fn open(runs: &'a Runs, out: &Path) -> Result<Self, Error> {
        let path = out.join("alignments.json");
        let known = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(Error::Failed(format!("{}: cannot be read: {e}", path.display()))),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
                Error::Input(format!(
                    "{}: {e}: not what was measured; remove it, and it is measured again",
                    path.display()
                ))
            })?,
        };
        Ok(Self { runs, path, known })
    }

    /// Tables of one side of `sources` with the shared tables (or the same side) of `targets`, for every two runs of unlike seeds.
    /// Keys are (target's seed, source's seed), for the target's arm is what is asked about.
    ///
    /// # Errors
    /// [`Error::Input`] naming the run whose tables are missing or cannot be aligned.
    pub fn crossed(&mut self, sources: &str, side: Side, targets: &str, part: Part) -> Result<Crossed, Error> {
        let (from, to) = (self.runs.of(sources), self.runs.of(targets));
        // A ceiling: one arm with itself, the same table of two seeds.
        let same = sources == targets;
        let pairs = to.iter().flat_map(|t| from.iter().map(move |s| (*s, *t)));
        let pairs: Vec<(&Run, &Run)> = pairs.filter(|(s, t)| s.seed != t.seed && (!same || s.seed < t.seed)).collect();
        let target_side = if same { side } else { Side::Tied };
        let tables: Vec<(Which, Which)> = pairs.iter().map(|(s, t)| ((*s, side), (*t, target_side))).collect();
        let scores = self.align(&tables, part)?;
        let mut crossed = Crossed::default();
        for ((source, target), scores) in pairs.iter().zip(scores) {
            if same {
                crossed.0.insert((source.seed, target.seed), scores.clone());
            }
            crossed.0.insert((target.seed, source.seed), scores);
        }
        Ok(crossed)
    }

    /// Pairs of tables, in order; those that are not known are measured and kept.
    fn align(&mut self, pairs: &[(Which, Which)], part: Part) -> Result<Vec<Scores>, Error> {
        let key = |(s, t): &(Which, Which)| {
            format!("{}:{} {}:{} {}", s.0.name(), s.1.name(), t.0.name(), t.1.name(), part.name())
        };
        let unknown: Vec<&(Which, Which)> = pairs.iter().filter(|pair| !self.known.contains_key(&key(pair))).collect();
        if let Some(((first, _), _)) = unknown.first() {
            let mut tables: BTreeMap<String, Prepared> = BTreeMap::new();
            let name = |which: &Which| format!("{}:{}", which.0.name(), which.1.name());
            for which in unknown.iter().flat_map(|(s, t)| [s, t]) {
                if let std::collections::btree_map::Entry::Vacant(entry) = tables.entry(name(which)) {
                    entry.insert(Prepared::new(which, part)?);
                }
            }
            let rows = self.runs.rows(first)?;
            let aligner = Aligner::new(rows.clone(), part.options())?;
            let mut operands: BTreeMap<String, Operand> = BTreeMap::new();
            for (name, table) in &tables {
                // A table in which some row learned nothing is aligned on its own below.
                if table.turned_in(&rows) {
                    operands.insert(name.clone(), aligner.operand(&table.table).map_err(|e| e.at(name))?);
                }
            }
            for pair in &unknown {
                let (source, target) = (name(&pair.0), name(&pair.1));
                tracing::debug!("{source} to {target}, {}", part.name());
                let found = match (operands.get(&source), operands.get(&target)) {
                    (Some(source), Some(target)) => aligner.align(source, target)?,
                    _ => {
                        let (source, target) = (&tables[&source], &tables[&target]);
                        let rows = rows.filter(|id| source.turned(id) && target.turned(id))?;
                        align(&source.table, &target.table, rows, part.options())?
                    }
                };
                let scores = found.scores.into_iter().map(|(metric, s)| {
                    (metric.name().to_owned(), Score { value: s.value, null: s.null, null_freq: s.null_freq })
                });
                self.known.insert(key(pair), scores.collect());
            }
            let json = serde_json::to_vec(&self.known).map_err(|e| Error::Failed(format!("alignments.json: {e}")))?;
            write_atomic(&self.path, &json)?;
        }
        Ok(pairs.iter().map(|pair| self.known[&key(pair)].clone()).collect())
    }

    /// Every token's Procrustes, identity and linear cosine of one pair at the last step, and their nulls: for histograms.
    ///
    /// # Errors
    /// As [`Alignments::crossed`].
    pub fn tokens(&self, source: (&Run, Side), target: (&Run, Side)) -> Result<BTreeMap<Metric, Tokens>, Error> {
        let options = Options {
            metrics: vec![Metric::Identity, Metric::Procrustes, Metric::Linear],
            permutations: 3,
            ..Options::default()
        };
        let rows: Rows = self.runs.rows(source.0)?;
        let aligner = Aligner::new(rows, options)?;
        let operand = |which: Which| aligner.operand(&Prepared::new(&which, Part::Whole)?.table);
        let found = aligner.align(&operand(source)?, &operand(target)?)?;
        let tokens = found.scores.into_iter().filter_map(|(metric, score)| {
            Some((metric, Tokens { histogram: score.distribution?.histogram, null: score.null }))
        });
        Ok(tokens.collect())
    }
}

/// A distribution of cosines over tokens.
pub struct Tokens {
    /// Tokens in each of 80 bins from -1 to 1.
    pub histogram: Vec<u32>,
    /// Mean cosine of random pairings.
    pub null: Option<f64>,
}

struct Prepared {
    table: Table,
    /// For learned parts: the rows that have any.
    turned: Option<Vec<bool>>,
}

impl Prepared {
    fn turned(&self, id: u32) -> bool {
        self.turned.as_ref().is_none_or(|turned| turned[id as usize])
    }

    fn turned_in(&self, rows: &Rows) -> bool {
        rows.ids().iter().all(|id| self.turned(*id))
    }

    fn new((run, side): &Which, part: Part) -> Result<Self, Error> {
        let step = if let Part::At(step) = part { step } else { run.kept.last() };
        let table = table(run, *side, step)?;
        if part != Part::Learned {
            return Ok(Self { table, turned: None });
        }
        let initial = self::table(run, *side, 0)?;
        Ok(Self { turned: Some(turned(&table, &initial)?), table: learned_part(&table, &initial)? })
    }
}

/// A kept table of a run; for a shared one any side is it.
///
/// # Errors
/// As [`tiebreak_train::KeptTables::tables`].
pub fn table(run: &Run, side: Side, step: u64) -> Result<Table, Error> {
    let mut tables = run.kept.tables(step)?;
    let at = tables.iter().position(|(s, _)| *s == side || *s == Side::Tied).unwrap_or(0);
    Ok(tables.swap_remove(at).1)
}
