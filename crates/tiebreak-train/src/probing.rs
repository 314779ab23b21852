//! `tiebreak probe`: what the kept tables of runs have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Value, json};
use tiebreak_data::{Error, did_you_mean, write_atomic};
use tiebreak_probe::{
    Aligner, Drift, Geometry, Metric, NormFrequency, Operand, Options, Rows, Score, Table, align, geometry,
    learned_part, norm_frequency, turned,
};

use crate::config::numeric_keys;
use crate::kept::{KeptTables, Side};

/// A group of measures, and the name of the files they are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// Identity, Procrustes, linear, held-out linear and canonical correlation of two tables.
    Alignment,
    /// The first four of what both tables learned: each row less its projection on its own initial row.
    Learned,
    /// Common nearest neighbours.
    Knn,
    /// The shape of each table, and linear CKA of two.
    Geometry,
    /// How far each table has turned, at every kept step.
    Evolution,
    /// Row norms against frequency, and of two tables against each other.
    NormFrequency,
}

impl Probe {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::Alignment, Self::Learned, Self::Knn, Self::Geometry, Self::Evolution, Self::NormFrequency];

    /// As `--only` and file names spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alignment => "alignment",
            Self::Learned => "learned",
            Self::Knn => "knn",
            Self::Geometry => "geometry",
            Self::Evolution => "evolution",
            Self::NormFrequency => "norm_frequency",
        }
    }

    /// What it measures between two tables.
    fn metrics(self) -> &'static [Metric] {
        use Metric::*;
        match self {
            Self::Alignment => &[Identity, Procrustes, Linear, LinearHeldout, Cca],
            Self::Learned => &[Identity, Procrustes, Linear, LinearHeldout],
            Self::Knn => &[Knn10],
            Self::Geometry => &[Cka],
            Self::Evolution => &[],
            Self::NormFrequency => &[NormSpearman, NormPearson],
        }
    }
}

impl FromStr for Probe {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        let names = || Self::ALL.iter().map(|p| p.name());
        Self::ALL.into_iter().find(|p| p.name() == word).ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            Error::Input(format!("--only {word}: no such probe; expected some of {all}{}", did_you_mean(word, names())))
        })
    }
}

/// Which tables are compared with which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Input to output within a model; input and output of one to the shared table of another; and, as ceilings, the same
    /// table of two seeds of one arm.
    Default,
    /// Every table to every other.
    All,
}

/// How to probe.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// What to measure.
    pub probes: Vec<Probe>,
    /// Of which pairs.
    pub pairs: Pairs,
    /// At which step; `None`: the last kept one of each run.
    pub step: Option<u64>,
    /// Look at every id, and not only at those that the training split holds.
    pub all_ids: bool,
    /// Random pairings behind each null.
    pub permutations: usize,
    /// Of folds and random pairings.
    pub seed: u64,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            probes: Probe::ALL.to_vec(),
            pairs: Pairs::Default,
            step: None,
            all_ids: false,
            permutations: 20,
            seed: 0,
        }
    }
}

/// What was measured; `--json` prints it.
#[derive(Debug, Serialize)]
pub struct ProbeReport {
    /// Pairs of tables.
    pub pairs: Vec<PairReport>,
    /// Single models.
    pub models: Vec<ModelReport>,
    /// Which rows everything was measured over.
    pub rows: RowsReport,
    /// Random pairings behind each null.
    pub permutations: usize,
    /// Of folds and random pairings.
    pub seed: u64,
}

/// The rows that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowsReport {
    /// `seen`: ids that the training split holds; `all`.
    pub which: &'static str,
    /// How many.
    pub ids: usize,
    /// Of how many.
    pub vocabulary: usize,
}

/// Why two tables are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Two tables of one model.
    Within,
    /// Tables of two models.
    Across,
    /// The same table of two seeds of one arm: as much agreement as there is to be had.
    Ceiling,
}

/// Two tables.
#[derive(Debug, Serialize)]
pub struct PairReport {
    /// `<run>:input`, `<run>:output` or `<run>:tied`.
    pub source: String,
    /// Likewise.
    pub target: String,
    /// Step of the source.
    pub source_step: u64,
    /// Step of the target.
    pub target_step: u64,
    /// Why they are compared.
    pub relation: Relation,
    /// Rows compared.
    pub tokens: usize,
    /// Both runs have one seed: tied and input tables then start from the same values, which inflates what they share.
    pub same_seed: bool,
    /// By metric.
    pub metrics: BTreeMap<Metric, Score>,
    /// Of what both learned; over the rows that turned in both. Absent where it was not asked for or there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<LearnedReport>,
    #[serde(skip)]
    runs: [usize; 2],
}

/// Two tables less their initial directions.
#[derive(Debug, Serialize)]
pub struct LearnedReport {
    /// Rows compared.
    pub tokens: usize,
    /// By metric.
    pub metrics: BTreeMap<Metric, Score>,
}

/// One model.
#[derive(Debug, Serialize)]
pub struct ModelReport {
    /// Name of the run's folder (its whole path if two share the name).
    pub run: String,
    /// Arm name.
    pub arm: String,
    /// Seed.
    pub seed: u64,
    /// Step.
    pub step: u64,
    /// Its tables.
    pub tables: Vec<TableReport>,
    #[serde(skip)]
    folder: PathBuf,
}

/// One table.
#[derive(Debug, Serialize)]
pub struct TableReport {
    /// Which.
    pub table: Side,
    /// Its shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geometry: Option<Geometry>,
    /// At every kept step up to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evolution: Option<Vec<Evolution>>,
    /// Row norms against frequency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_frequency: Option<NormFrequency>,
}

/// A table at one kept step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Evolution {
    /// Step.
    pub step: u64,
    /// Cosines to the table of step 0.
    pub cos_to_init: Drift,
    /// Cosines to the kept table before; `None` of the first.
    pub cos_to_prev: Option<Drift>,
}

/// One table of one run, with what its pairs need.
struct Entry {
    run: usize,
    side: Side,
    table: Table,
    operand: Option<Operand>,
    /// What training added, and which rows turned; `None` at step 0.
    learned: Option<(Table, Vec<bool>)>,
}

/// Measures runs, each given by its folder.
///
/// # Errors
/// [`Error::Input`] if a folder is no run or lacks what is asked for, runs differ in data or tokenizer, or a table cannot be
/// measured (see [`Table::select`] and [`Aligner::operand`]).
pub fn probe(folders: &[PathBuf], options: &ProbeOptions) -> Result<ProbeReport, Error> {
    let runs = open(folders)?;
    let Some(first) = runs.first() else { return Err(Error::Input("no run to probe".into())) };
    runs.iter().try_for_each(|run| first.check_same_data(run))?;
    let steps: Vec<u64> = runs.iter().map(|run| run.step(options.step)).collect::<Result<_, _>>()?;
    runs.iter().zip(&steps).try_for_each(|(run, step)| check_first(run, *step, &options.probes))?;
    let rows = first.rows(options.all_ids)?;
    let names = names(&runs);
    let asked = |probe: Probe| options.probes.contains(&probe);
    let entries = entries(&runs, &steps, asked(Probe::Learned))?;
    let models = models(&runs, &steps, &names, &entries, &rows, &asked)?;
    let pairs = Pairing { runs: &runs, steps: &steps, names: &names, options }.measure(entries, &rows)?;
    let rows = RowsReport {
        which: if options.all_ids { "all" } else { "seen" },
        ids: rows.len(),
        vocabulary: rows.vocabulary(),
    };
    Ok(ProbeReport { pairs, models, rows, permutations: options.permutations, seed: options.seed })
}

/// Refuses a run without the tables of step 0 where something is measured against them.
fn check_first(run: &KeptTables, step: u64, probes: &[Probe]) -> Result<(), Error> {
    let names = |needs: bool| {
        let wanted = move |p: &&Probe| matches!(p, Probe::Learned | Probe::Evolution) == needs;
        probes.iter().filter(wanted).map(|p| p.name()).collect::<Vec<_>>()
    };
    let (need, rest) = (names(true), names(false));
    if step == 0 || need.is_empty() || run.steps.contains(&0) {
        return Ok(());
    }
    let way_out = if rest.is_empty() { String::new() } else { format!(", or leave it out: --only {}", rest.join(",")) };
    Err(Error::Input(format!(
        "{}: no tables of step 0 were kept, against which {} measures; put the file back{way_out}",
        run.folder.table(0).display(),
        need.join(" and ")
    )))
}

/// Opens each folder once.
fn open(folders: &[PathBuf]) -> Result<Vec<KeptTables>, Error> {
    let mut seen = BTreeSet::new();
    let first_time = |folder: &&PathBuf| seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf()));
    folders.iter().filter(first_time).map(|folder| KeptTables::open(folder)).collect()
}

/// Short names, all different.
fn names(runs: &[KeptTables]) -> Vec<String> {
    let short = |run: &KeptTables| {
        let whole = run.folder.0.canonicalize().unwrap_or_else(|_| run.folder.0.clone());
        whole.file_name().map_or_else(|| whole.display().to_string(), |n| n.to_string_lossy().into_owned())
    };
    let all: Vec<String> = runs.iter().map(short).collect();
    let unique = |name: &String| all.iter().filter(|other| *other == name).count() == 1;
    all.iter()
        .zip(runs)
        .map(|(n, run)| if unique(n) { n.clone() } else { run.folder.0.display().to_string() })
        .collect()
}

fn entries(runs: &[KeptTables], steps: &[u64], learned: bool) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for (index, (run, &step)) in runs.iter().zip(steps).enumerate() {
        let initial = if learned && step > 0 { run.tables(0)? } else { Vec::new() };
        for (side, table) in run.tables(step)? {
            // One matrix that later became two is where both began.
            let before = initial.iter().find(|(s, _)| *s == side || *s == Side::Tied);
            let learned = match before {
                Some((_, before)) => Some((learned_part(&table, before)?, turned(&table, before)?)),
                None => None,
            };
            entries.push(Entry { run: index, side, table, operand: None, learned });
        }
    }
    Ok(entries)
}

fn models(
    runs: &[KeptTables],
    steps: &[u64],
    names: &[String],
    entries: &[Entry],
    rows: &Rows,
    asked: &impl Fn(Probe) -> bool,
) -> Result<Vec<ModelReport>, Error> {
    let mut models = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut evolution = if asked(Probe::Evolution) { evolution(run, steps[index], rows)? } else { BTreeMap::new() };
        let mut tables = Vec::new();
        for entry in entries.iter().filter(|e| e.run == index) {
            let place = || format!("{}:{}", names[index], entry.side.name());
            let shape = asked(Probe::Geometry).then(|| geometry(&entry.table, rows)).transpose();
            let norms = asked(Probe::NormFrequency).then(|| norm_frequency(&entry.table, rows)).transpose();
            tables.push(TableReport {
                table: entry.side,
                geometry: shape.map_err(|e| e.at(place()))?,
                evolution: evolution.remove(&entry.side),
                norm_frequency: norms.map_err(|e| e.at(place()))?,
            });
        }
        models.push(ModelReport {
            run: names[index].clone(),
            arm: run.config.name.clone(),
            seed: run.config.seed,
            step: steps[index],
            tables,
            folder: run.folder.0.clone(),
        });
    }
    Ok(models)
}

/// Cosines of every kept table up to `last`, by side; refused without that of step 0. One matrix that later became two is the past
/// of both.
fn evolution(run: &KeptTables, last: u64, rows: &Rows) -> Result<BTreeMap<Side, Vec<Evolution>>, Error> {
    // The first of what is left would pass for it.
    run.step(Some(0))?;
    let mut found: BTreeMap<Side, Vec<Evolution>> = BTreeMap::new();
    let mut before: BTreeMap<Side, (Table, Table)> = BTreeMap::new();
    for &step in run.steps.iter().filter(|step| **step <= last) {
        for (side, table) in run.tables(step)? {
            let place = |e: Error| e.at(run.folder.table(step).display());
            let measure = |other: &Table| Drift::between(&table, other, rows).map_err(place);
            let shared = (before.get(&Side::Tied).cloned(), found.get(&Side::Tied).cloned());
            let (first, cos_to_init, cos_to_prev) = match before.remove(&side).or(shared.0) {
                Some((first, previous)) => {
                    let (init, prev) = (measure(&first)?, measure(&previous)?);
                    (first, init, Some(prev))
                }
                None => (table.clone(), measure(&table)?, None),
            };
            let past = found.entry(side).or_insert_with(|| shared.1.unwrap_or_default());
            past.push(Evolution { step, cos_to_init, cos_to_prev });
            before.insert(side, (first, table));
        }
    }
    Ok(found)
}

struct Pairing<'a> {
    runs: &'a [KeptTables],
    steps: &'a [u64],
    names: &'a [String],
    options: &'a ProbeOptions,
}

impl Pairing<'_> {
    fn measure(&self, mut entries: Vec<Entry>, rows: &Rows) -> Result<Vec<PairReport>, Error> {
        let asked = |learned: bool| {
            let probes = self.options.probes.iter().filter(|p| (**p == Probe::Learned) == learned);
            probes.flat_map(|p| p.metrics()).copied().collect::<Vec<Metric>>()
        };
        let (metrics, of_learned) = (asked(false), asked(true));
        let mut chosen = self.choose(&entries);
        if metrics.is_empty() && of_learned.is_empty() {
            chosen.clear();
        }
        let widths: BTreeSet<usize> = entries.iter().map(|e| e.table.columns()).collect();
        if let (false, Some(metric)) =
            (widths.len() < 2, metrics.iter().chain(&of_learned).find(|m| m.needs_equal_widths()))
            && !chosen.is_empty()
        {
            return Err(Error::Input(format!(
                "tables of {widths:?} columns: {} needs equal widths; probe runs of one model.d_model, or --only knn",
                metric.name()
            )));
        }
        let options = |metrics: Vec<Metric>| Options {
            metrics,
            permutations: self.options.permutations,
            seed: self.options.seed,
            ..Options::default()
        };
        let aligner = Aligner::new(rows.clone(), options(metrics))?;
        for (index, entry) in entries.iter_mut().enumerate() {
            if chosen.iter().any(|(a, b, _)| [*a, *b].contains(&index)) {
                entry.operand = Some(aligner.operand(&entry.table).map_err(|e| e.at(self.name(entry)))?);
            }
        }
        let mut reports = Vec::new();
        for (a, b, relation) in chosen {
            let (source, target) = (&entries[a], &entries[b]);
            let (Some(from), Some(to)) = (&source.operand, &target.operand) else { continue };
            let (source_name, target_name) = (self.name(source), self.name(target));
            tracing::debug!("{source_name} to {target_name}");
            let alignment = aligner.align(from, to)?;
            let learned = match (of_learned.is_empty(), &source.learned, &target.learned) {
                (false, Some(from), Some(to)) => learned(rows, from, to, options(of_learned.clone()))
                    .map_err(|e| tracing::warn!("{source_name} to {target_name}: no learned part: {e}"))
                    .ok(),
                _ => None,
            };
            reports.push(PairReport {
                source: source_name,
                target: target_name,
                source_step: self.steps[source.run],
                target_step: self.steps[target.run],
                relation,
                tokens: alignment.tokens,
                same_seed: self.runs[source.run].config.seed == self.runs[target.run].config.seed,
                metrics: alignment.scores,
                learned,
                runs: [source.run, target.run],
            });
        }
        Ok(reports)
    }

    fn name(&self, entry: &Entry) -> String {
        format!("{}:{}", self.names[entry.run], entry.side.name())
    }

    /// Pairs of entries, source first.
    fn choose(&self, entries: &[Entry]) -> Vec<(usize, usize, Relation)> {
        let arms: Vec<_> = self.runs.iter().map(configuration).collect();
        let relation = |a: &Entry, b: &Entry| {
            let (run_a, run_b) = (&self.runs[a.run], &self.runs[b.run]);
            if a.run == b.run {
                Relation::Within
            } else if a.side == b.side && arms[a.run] == arms[b.run] && run_a.config.seed != run_b.config.seed {
                Relation::Ceiling
            } else {
                Relation::Across
            }
        };
        let wanted = |i: usize, j: usize, a: &Entry, b: &Entry| match (self.options.pairs, relation(a, b)) {
            (Pairs::All, _) => i != j,
            (Pairs::Default, Relation::Within) => (a.side, b.side) == (Side::Input, Side::Output),
            (Pairs::Default, Relation::Across) => a.side != Side::Tied && b.side == Side::Tied,
            (Pairs::Default, Relation::Ceiling) => i < j,
        };
        let all = entries.iter().enumerate();
        let pairs = all.flat_map(|(i, a)| entries.iter().enumerate().map(move |(j, b)| (i, j, a, b)));
        pairs.filter(|(i, j, a, b)| wanted(*i, *j, a, b)).map(|(i, j, a, b)| (i, j, relation(a, b))).collect()
    }
}

/// What makes two runs seeds of one arm.
fn configuration(run: &KeptTables) -> BTreeMap<String, Value> {
    let mut keys = numeric_keys(&run.config);
    keys.remove("seed");
    keys
}

fn learned(
    rows: &Rows,
    (source, turned_s): &(Table, Vec<bool>),
    (target, turned_t): &(Table, Vec<bool>),
    options: Options,
) -> Result<LearnedReport, Error> {
    let rows = rows.filter(|id| turned_s[id as usize] && turned_t[id as usize])?;
    let found = align(source, target, rows, options)?;
    Ok(LearnedReport { tokens: found.tokens, metrics: found.scores })
}

impl ProbeReport {
    /// Keeps what was measured in each run's own folder, one file per probe and step: the run's own tables and every pair that
    /// one of them is part of. A later call replaces it.
    ///
    /// # Errors
    /// [`Error::Failed`] if a file cannot be written.
    pub fn save(&self, probes: &[Probe]) -> Result<(), Error> {
        for (index, model) in self.models.iter().enumerate() {
            let folder = crate::folder::RunFolder(model.folder.clone());
            for &probe in probes {
                let path = folder.probe(probe.name(), model.step);
                let parent = path.parent().unwrap_or(Path::new("."));
                std::fs::create_dir_all(parent)
                    .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", parent.display())))?;
                let text = serde_json::to_vec_pretty(&self.of(index, model, probe))
                    .map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
                write_atomic(&path, &text)?;
            }
        }
        Ok(())
    }

    fn of(&self, index: usize, model: &ModelReport, probe: Probe) -> Value {
        let only = |pair: &PairReport| {
            let mut value = json!(pair);
            let keep: Vec<&str> = probe.metrics().iter().map(|m| m.name()).collect();
            if let Some(object) = value.as_object_mut() {
                let (kept, dropped) =
                    if probe == Probe::Learned { ("learned", "metrics") } else { ("metrics", "learned") };
                object.remove(dropped);
                if let Some(metrics) = object.get_mut(kept).and_then(Value::as_object_mut)
                    && kept == "metrics"
                {
                    metrics.retain(|name, _| keep.contains(&name.as_str()));
                }
            }
            value
        };
        let pairs = self.pairs.iter().filter(|p| p.runs.contains(&index) && !probe.metrics().is_empty());
        let mut own = json!(model);
        for table in own["tables"].as_array_mut().into_iter().flatten() {
            if let Some(table) = table.as_object_mut() {
                table.retain(|key, _| key == "table" || key == probe.name());
            }
        }
        json!({
            "rows": self.rows,
            "permutations": self.permutations,
            "seed": self.seed,
            "model": own,
            "pairs": pairs.map(only).collect::<Vec<_>>(),
        })
    }
}
