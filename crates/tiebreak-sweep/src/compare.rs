//! Arms over seeds: mean, spread, and the difference to a baseline paired by seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;

use serde::Serialize;
use tiebreak_data::did_you_mean;
use tiebreak_train::Error;
use tiebreak_train::folder::RunState;

use crate::runs::{Found, Run, Scalars, find};
use crate::statistics::{Paired, holm, mean, median, p_value, paired, sd};
use crate::summary::SweepRecord;

/// Shown beside every metric: differences of perplexity depend on its level, differences in nats do not.
const LOSS: &str = "eval/loss";

/// What to compare.
#[derive(Clone, Debug, Default)]
pub struct CompareOptions {
    /// Runs, sweeps' folders, or folders above.
    pub dirs: Vec<PathBuf>,
    /// Arm that the others are compared with; `None`: the sweep's, else `tied`.
    pub baseline: Option<String>,
    /// Tag to compare; `None`: the sweep's, else `eval/ppl`.
    pub metric: Option<String>,
    /// Take an arm's runs together even where their configurations differ; runs of one seed count as their mean.
    pub allow_mixed: bool,
}

/// What `compare` finds; serialises to its JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The tag.
    pub metric: String,
    /// The arm that the others are compared with.
    pub baseline: String,
    /// One entry per arm.
    pub arms: Vec<ArmSummary>,
    /// Present if a corpus was a fallback: which, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What else a reader should know.
    pub warnings: Vec<String>,
}

/// One arm over its seeds. Only complete runs give values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmSummary {
    /// The arm's name.
    pub arm: String,
    /// Seeds with a value.
    pub n: usize,
    /// Failed and diverged runs.
    pub failed: usize,
    /// Runs that are interrupted, running or not started.
    pub unfinished: usize,
    /// Mean over seeds.
    pub mean: Option<f64>,
    /// Standard deviation over seeds (n - 1).
    pub sd: Option<f64>,
    /// The metric at the last step, by seed.
    pub values: BTreeMap<String, f64>,
    /// Distinct parameters.
    pub parameters: Option<u64>,
    /// Median over runs of each run's median speed.
    pub tokens_per_second: Option<f64>,
    /// The corpus actually used.
    pub corpus: Option<String>,
    /// The difference to the baseline; `None` for the baseline itself.
    pub vs_baseline: Option<Versus>,
}

/// An arm minus the baseline, over the seeds that both have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Versus {
    /// Mean difference of the metric.
    pub mean_difference: Option<f64>,
    /// Its 95 % t interval; `None` below three pairs.
    pub ci95: Option<[f64; 2]>,
    /// Two-sided p-value of the paired t test; `None` below three pairs.
    pub p: Option<f64>,
    /// `p` adjusted (Holm) for the number of arms that are compared.
    pub p_holm: Option<f64>,
    /// Seeds that both have.
    pub pairs: usize,
    /// The arm that this one is compared with: in a grid, the baseline's at the same point.
    pub baseline: String,
    /// The difference of `eval/loss` (nats per token), whatever the metric.
    pub eval_loss: Paired,
}

/// Compares the runs at and below the folders.
///
/// # Errors
/// [`Error::Input`] if there are no runs, for a baseline or metric that they lack, a damaged file, and, unless mixing is allowed, for
/// an arm with two configurations. Copies of one run count once.
pub fn compare(options: &CompareOptions) -> Result<Comparison, Error> {
    let Found { runs, sweeps, above } = find(&options.dirs)?;
    if runs.is_empty() {
        let dirs: Vec<String> = options.dirs.iter().map(|d| d.display().to_string()).collect();
        return Err(Error::Input(format!(
            "{}: no runs found; a run's folder holds config.toml and status.json",
            dirs.join(", ")
        )));
    }
    let runs = runs.iter().map(|folder| Run::read(folder)).collect::<Result<Vec<_>, _>>()?;
    let records: Vec<&SweepRecord> = sweeps.iter().map(|(_, record)| record).chain(&above).collect();
    let baseline = options.baseline.clone().or_else(|| agreed(&records, |r| &r.baseline));
    let metric = options.metric.clone().or_else(|| agreed(&records, |r| &r.metric));
    let mut arms = Arms::new(records.iter().flat_map(|r| &r.cells).map(|c| c.name.clone()));
    for (folder, record) in &sweeps {
        for cell in record.cells.iter().filter(|cell| !folder.join(&cell.folder).join("status.json").is_file()) {
            arms.of(&cell.name).unfinished += 1;
        }
    }
    arms.add(runs, options.allow_mixed)?;
    arms.compare(&baseline.unwrap_or_else(|| "tied".into()), &metric.unwrap_or_else(|| "eval/ppl".into()))
}

/// Compares the cells of one sweep, whatever else lies in its folder.
pub(crate) fn compare_cells(folder: &std::path::Path, record: &SweepRecord) -> Result<Comparison, Error> {
    let mut arms = Arms::new(record.cells.iter().map(|c| c.name.clone()));
    let mut runs = Vec::new();
    for cell in &record.cells {
        let run = folder.join(&cell.folder);
        if tiebreak_train::folder::RunFolder::is_run(&run) {
            runs.push(Run::read(&run)?);
        } else {
            arms.of(&cell.name).unfinished += 1;
        }
    }
    arms.add(runs, false)?;
    arms.compare(&record.baseline, &record.metric)
}

/// What all records say, if they agree.
fn agreed(records: &[&SweepRecord], of: impl Fn(&SweepRecord) -> &String) -> Option<String> {
    let all: BTreeSet<&String> = records.iter().map(|r| of(r)).collect();
    (all.len() == 1).then(|| all.first().map(|s| s.to_string())).flatten()
}

/// An arm while its runs are gathered.
#[derive(Default)]
struct Gathered {
    name: String,
    runs: Vec<Run>,
    complete: Vec<(u64, Scalars)>,
    failed: usize,
    unfinished: usize,
}

impl Gathered {
    /// A tag at the last step by seed; several runs of one seed give their mean, for the seed is what is replicated.
    fn values(&self, tag: &str) -> BTreeMap<u64, f64> {
        let mut by_seed: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (seed, scalars) in &self.complete {
            if let Some(value) = scalars.last.get(tag) {
                by_seed.entry(*seed).or_default().push(*value);
            }
        }
        by_seed.into_iter().filter_map(|(seed, values)| Some((seed, mean(&values)?))).collect()
    }
}

struct Arms {
    arms: Vec<Gathered>,
    warnings: Vec<String>,
}

impl Arms {
    /// Arms in the order of `names`, each once; others follow as they are met.
    fn new(names: impl Iterator<Item = String>) -> Self {
        let mut arms = Self { arms: Vec::new(), warnings: Vec::new() };
        for name in names {
            arms.of(&name);
        }
        arms
    }

    fn of(&mut self, name: &str) -> &mut Gathered {
        let index = self.arms.iter().position(|arm| arm.name == name).unwrap_or_else(|| {
            self.arms.push(Gathered { name: name.into(), ..Gathered::default() });
            self.arms.len() - 1
        });
        &mut self.arms[index]
    }

    fn add(&mut self, runs: Vec<Run>, allow_mixed: bool) -> Result<(), Error> {
        let (mut steps, mut devices) = (BTreeMap::new(), BTreeMap::new());
        for run in self.once(runs) {
            let name = run.config.name.clone();
            steps.entry(run.config.train.steps).or_insert_with(|| name.clone());
            // Without a record the device is not known: "auto" is none.
            if run.data.is_some() {
                devices.entry(run.config.device.clone()).or_insert_with(|| name.clone());
            }
            let arm = self.of(&name);
            let problem = mixed(&arm.runs, &run);
            match run.state {
                RunState::Complete => arm.complete.push((run.config.seed, run.scalars()?)),
                RunState::Failed | RunState::Diverged => arm.failed += 1,
                RunState::Interrupted | RunState::Running => arm.unfinished += 1,
            }
            arm.runs.push(run);
            let Some(problem) = problem else { continue };
            if !allow_mixed {
                return Err(Error::Input(format!(
                    "{problem}. Give the folders of one experiment only, rename an arm, or pass --allow-mixed"
                )));
            }
            let told = format!("arm {name:?} has two ");
            if !self.warnings.iter().any(|warning| warning.starts_with(&told)) {
                self.warnings.push(format!("{problem}; all its runs are taken together"));
            }
        }
        self.warnings.extend(told_apart("train.steps", &steps));
        self.warnings.extend(told_apart("kind of device", &devices));
        Ok(())
    }

    /// Runs of one name and identity, seed included, are one run: the first complete one counts, else the first.
    fn once(&mut self, runs: Vec<Run>) -> Vec<Run> {
        let mut kept: Vec<Run> = Vec::with_capacity(runs.len());
        for mut run in runs {
            let same = |other: &&mut Run| other.config.name == run.config.name && other.identity == run.identity;
            let Some(twin) = kept.iter_mut().find(same) else {
                kept.push(run);
                continue;
            };
            if twin.state != RunState::Complete && run.state == RunState::Complete {
                std::mem::swap(twin, &mut run);
            }
            let (ours, theirs) = (twin.folder.display(), run.folder.display());
            self.warnings.push(format!("{theirs} is the same run as {ours}, which alone counts"));
        }
        kept
    }

    fn compare(mut self, baseline: &str, metric: &str) -> Result<Comparison, Error> {
        // An arm that only a sweep's record knows, of a folder that was not named, has nothing to show.
        self.arms.retain(|arm| !arm.runs.is_empty() || arm.unfinished > 0);
        let names: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        let references: Vec<Reference> = names.iter().map(|arm| reference(arm, baseline, &names)).collect();
        if !references.contains(&Reference::Itself) {
            return Err(Error::Input(format!(
                "baseline {baseline:?}: no such arm{}; arms: {}. Choose one with --baseline",
                did_you_mean(baseline, names.iter().copied()),
                names.join(", ")
            )));
        }
        let complete = || self.arms.iter().flat_map(|arm| &arm.complete);
        let tags: BTreeSet<&str> = complete().flat_map(|(_, s)| s.last.keys().map(String::as_str)).collect();
        if complete().next().is_some() && !tags.contains(metric) {
            let tags: Vec<&str> = tags.into_iter().collect();
            return Err(Error::Input(format!(
                "metric {metric:?}: no complete run has this tag at its last step{}; tags: {}",
                did_you_mean(metric, tags.iter().copied()),
                tags.join(", ")
            )));
        }
        let mut warnings = std::mem::take(&mut self.warnings);
        for arm in &self.arms {
            for (seed, _) in arm.complete.iter().filter(|(_, scalars)| !scalars.last.contains_key(metric)) {
                warnings.push(format!(
                    "{:?} seed {seed} is complete but has no finite {metric} at its last step",
                    arm.name
                ));
            }
        }
        warnings.extend(self.corpora_differ());
        let find = |name: &str| self.arms.iter().find(|arm| arm.name == name);
        let summaries = self.arms.iter().zip(&references).map(|(arm, reference)| {
            let versus = match reference {
                Reference::Arm(name) => find(name).map(|other| versus(arm, other, metric)),
                Reference::Itself | Reference::None => None,
            };
            summary(arm, metric, versus)
        });
        let mut summaries: Vec<ArmSummary> = summaries.collect();
        adjust(&mut summaries);
        Ok(Comparison {
            metric: metric.into(),
            baseline: baseline.into(),
            arms: summaries,
            note: self.fallback(),
            warnings,
        })
    }

    /// Says which corpus is a fallback, if any is.
    fn fallback(&self) -> Option<String> {
        let data = self.arms.iter().flat_map(|arm| &arm.runs).filter_map(|run| run.data.as_ref());
        let reasons: BTreeSet<String> = data
            .filter_map(|d| {
                Some(format!(
                    "the corpus is the fallback {:?}, not the one asked for: {}",
                    d.corpus,
                    d.fallback_reason.as_ref()?
                ))
            })
            .collect();
        (!reasons.is_empty()).then(|| reasons.into_iter().collect::<Vec<_>>().join("; "))
    }

    fn corpora_differ(&self) -> Option<String> {
        let data = self.arms.iter().flat_map(|arm| &arm.runs).filter_map(|run| run.data.as_ref());
        let kinds: BTreeSet<(&str, &str)> = data.map(|d| (d.corpus_hash.as_str(), d.tokenizer_hash.as_str())).collect();
        (kinds.len() > 1).then(|| {
            "runs differ in corpus or tokenizer: values per token cannot be compared (eval/bits_per_byte can, on one corpus)".into()
        })
    }
}

/// Says that runs differ in something, with an arm for each value.
fn told_apart<T: Display>(what: &str, values: &BTreeMap<T, String>) -> Option<String> {
    let list: Vec<String> = values.iter().map(|(value, arm)| format!("{arm:?} {value}")).collect();
    (list.len() > 1).then(|| format!("runs differ in {what}: {}", list.join(", ")))
}

/// Why `run` is no repetition of the arm's other runs.
fn mixed(others: &[Run], run: &Run) -> Option<String> {
    let name = &run.config.name;
    if let Some(twin) = others.iter().find(|other| other.config.seed == run.config.seed) {
        return Some(format!(
            "arm {name:?} has two runs of seed {}: {} and {}{}",
            run.config.seed,
            twin.folder.display(),
            run.folder.display(),
            differences(twin, run).map(|d| format!(", which differ in {d}")).unwrap_or_default()
        ));
    }
    others.iter().find_map(|other| {
        let keys = differences(other, run)?;
        Some(format!(
            "arm {name:?} has two configurations: {} and {} differ in {keys}",
            other.folder.display(),
            run.folder.display()
        ))
    })
}

/// Keys in which two runs differ, the seed aside; what only one of them recorded does not count.
fn differences(a: &Run, b: &Run) -> Option<String> {
    let (a, b) = (a.configuration(), b.configuration());
    let shown = |value: &str| {
        if value.len() > 40 { format!("{}...", value.chars().take(8).collect::<String>()) } else { value.into() }
    };
    let differs = a.iter().filter_map(|(key, x)| b.get(key).filter(|y| *y != x).map(|y| (key, x, y)));
    let list: Vec<String> = differs.map(|(key, x, y)| format!("{key} ({} and {})", shown(x), shown(y))).collect();
    (!list.is_empty()).then(|| list.join(", "))
}

#[derive(Debug, PartialEq)]
enum Reference {
    /// The arm is the baseline.
    Itself,
    /// The arm it is compared with.
    Arm(String),
    /// A grid point without a baseline.
    None,
}

/// Whom `arm` is compared with. In a grid, the baseline `tied` is `tied optim.lr=0.003` at the point of `untied optim.lr=0.003`.
fn reference(arm: &str, baseline: &str, names: &[&str]) -> Reference {
    if arm == baseline {
        return Reference::Itself;
    }
    if names.contains(&baseline) {
        return Reference::Arm(baseline.into());
    }
    let point = |name: &str| {
        name.strip_prefix(baseline).filter(|rest| rest.starts_with(' ') && rest.contains('=')).map(str::to_owned)
    };
    if point(arm).is_some() {
        return Reference::Itself;
    }
    let points = names.iter().filter_map(|name| point(name)).filter(|point| arm.ends_with(point.as_str()));
    match points.max_by_key(String::len) {
        Some(point) => Reference::Arm(format!("{baseline}{point}")),
        None => Reference::None,
    }
}

fn versus(arm: &Gathered, baseline: &Gathered, metric: &str) -> Versus {
    let difference = |tag: &str| {
        let others = baseline.values(tag);
        let pairs: Vec<f64> = arm.values(tag).iter().filter_map(|(seed, x)| Some(x - others.get(seed)?)).collect();
        pairs
    };
    let differences = difference(metric);
    let Paired { mean_difference, ci95, pairs } = paired(&differences);
    let (p, eval_loss) = (p_value(&differences), paired(&difference(LOSS)));
    Versus { mean_difference, ci95, p, p_holm: None, pairs, baseline: baseline.name.clone(), eval_loss }
}

/// Adjusts the p-values of all arms for their number: the best of many arms is also the luckiest.
fn adjust(arms: &mut [ArmSummary]) {
    let mut compared: Vec<&mut Versus> = arms.iter_mut().filter_map(|arm| arm.vs_baseline.as_mut()).collect();
    compared.retain(|versus| versus.p.is_some());
    let adjusted = holm(&compared.iter().filter_map(|versus| versus.p).collect::<Vec<_>>());
    for (versus, p) in compared.into_iter().zip(adjusted) {
        versus.p_holm = Some(p);
    }
}

fn summary(arm: &Gathered, metric: &str, vs_baseline: Option<Versus>) -> ArmSummary {
    let by_seed = arm.values(metric);
    let values: Vec<f64> = by_seed.values().copied().collect();
    let speeds = arm.complete.iter().filter_map(|(_, scalars)| scalars.tokens_per_second);
    let corpora: BTreeSet<&str> = arm.runs.iter().filter_map(|run| Some(run.data.as_ref()?.corpus.as_str())).collect();
    ArmSummary {
        arm: arm.name.clone(),
        n: values.len(),
        failed: arm.failed,
        unfinished: arm.unfinished,
        mean: mean(&values),
        sd: sd(&values),
        values: by_seed.into_iter().map(|(seed, value)| (seed.to_string(), value)).collect(),
        parameters: arm.runs.iter().find_map(|run| run.parameters),
        tokens_per_second: median(speeds.collect()),
        corpus: (!corpora.is_empty()).then(|| corpora.into_iter().collect::<Vec<_>>().join(", ")),
        vs_baseline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// A fabricated run of three steps whose last evaluation has this loss.
    fn run(out: &Path, arm: &str, seed: u64, state: &str, loss: f64, extra: &str) -> PathBuf {
        let folder = out.join(format!("{}-s{seed}-{state}{}", arm.replace(' ', "_"), extra.len()));
        std::fs::create_dir_all(&folder).unwrap();
        let config = format!("name = \"{arm}\"\nseed = {seed}\nthreads = {seed}\n[train]\nsteps = 3\n{extra}");
        std::fs::write(folder.join("config.toml"), config).unwrap();
        let identity = format!("{seed} {extra}");
        let status = json!({ "state": state, "step": 3, "reason": null, "identity": identity });
        std::fs::write(folder.join("status.json"), status.to_string()).unwrap();
        let lines: String = [(0, 9.0), (3, loss)]
            .iter()
            .flat_map(|(step, loss)| [(*step, "eval/loss", *loss), (*step, "eval/ppl", loss.exp())])
            .chain([(1, SPEED, 10.0), (2, SPEED, 30.0), (3, SPEED, 20.0)])
            .map(|(step, tag, value)| json!({ "step": step, "tag": tag, "value": value }).to_string() + "\n")
            .collect();
        std::fs::write(folder.join("metrics.jsonl"), lines).unwrap();
        folder
    }

    const SPEED: &str = "train/tokens_per_second";

    fn options(dir: &Path) -> CompareOptions {
        CompareOptions { dirs: vec![dir.into()], metric: Some("eval/loss".into()), ..CompareOptions::default() }
    }

    fn arm<'a>(comparison: &'a Comparison, name: &str) -> &'a ArmSummary {
        comparison.arms.iter().find(|a| a.arm == name).unwrap()
    }

    fn refused(options: &CompareOptions) -> String {
        match compare(options) {
            Err(Error::Input(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_tag_twice_at_the_last_step_is_refused() {
        let out = tempfile::tempdir().unwrap();
        let folder = run(out.path(), "tied", 0, "complete", 1.0, "");
        let file = folder.join("metrics.jsonl");
        let lines = std::fs::read_to_string(&file).unwrap();
        let again = lines.lines().find(|l| l.contains("\"step\":3") && l.contains("eval/ppl")).unwrap();
        std::fs::write(&file, format!("{lines}{again}\n")).unwrap();
        let options =
            CompareOptions { dirs: vec![out.path().into()], baseline: None, metric: None, allow_mixed: false };
        match compare(&options) {
            Err(Error::Input(text)) => assert!(text.contains("eval/ppl") && text.contains("twice"), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_complete_runs_count_and_pairs_are_by_seed() {
        let dir = tempfile::tempdir().unwrap();
        for (seed, tied, untied) in [(0, 2.0, 2.5), (1, 3.0, 3.25), (2, 4.0, 4.75)] {
            run(&dir.path().join("a"), "tied", seed, "complete", tied, "");
            run(&dir.path().join("b"), "untied", seed, "complete", untied, "");
        }
        for (seed, state) in [(3, "failed"), (4, "diverged"), (5, "interrupted"), (6, "running")] {
            run(dir.path(), "untied", seed, state, 100.0, "");
        }
        run(dir.path(), "untied", 9, "complete", 4.0, "");
        let result = compare(&options(dir.path())).unwrap();
        let (tied, untied) = (arm(&result, "tied"), arm(&result, "untied"));
        assert_eq!((tied.n, tied.mean, tied.sd, tied.failed), (3, Some(3.0), Some(1.0), 0));
        assert!(tied.vs_baseline.is_none());
        assert_eq!((untied.n, untied.failed, untied.unfinished), (4, 2, 2));
        assert_eq!(untied.mean, Some((2.5 + 3.25 + 4.75 + 4.0) / 4.0));
        assert_eq!(untied.tokens_per_second, Some(20.0));
        assert_eq!(untied.values["9"], 4.0);
        let versus = untied.vs_baseline.as_ref().unwrap();
        assert_eq!((versus.pairs, versus.mean_difference), (3, Some(0.5)));
        // Differences 0.5, 0.25, 0.75: sd 0.25, half width 4.302653 * 0.25 / sqrt(3).
        let [low, high] = versus.ci95.unwrap();
        assert!((low - (0.5 - 0.621034)).abs() < 1e-5 && (high - (0.5 + 0.621034)).abs() < 1e-5, "{low} {high}");
        // One arm only: nothing to adjust for. t = 0.5 / (0.25 / sqrt(3)) = 3.4641, p = 1 - t / sqrt(2 + t^2).
        assert_eq!(versus.p, versus.p_holm);
        assert!((versus.p.unwrap() - 0.0741799).abs() < 1e-6, "{versus:?}");
        let json = serde_json::to_value(&result).unwrap();
        assert!(json["arms"].as_array().unwrap().iter().any(|a| a["arm"] == "tied" && a["vs_baseline"].is_null()));
        assert!(json.get("note").is_none());
    }

    #[test]
    fn two_pairs_have_no_interval_and_the_loss_stands_beside() {
        let dir = tempfile::tempdir().unwrap();
        for seed in 0..2 {
            run(dir.path(), "tied", seed, "complete", 2.0, "");
            run(dir.path(), "untied", seed, "complete", 2.5, "");
        }
        let result = compare(&CompareOptions { metric: None, ..options(dir.path()) }).unwrap();
        assert_eq!(result.metric, "eval/ppl");
        let versus = arm(&result, "untied").vs_baseline.clone().unwrap();
        assert_eq!((versus.ci95, versus.pairs), (None, 2));
        assert!((versus.mean_difference.unwrap() - (2.5f64.exp() - 2f64.exp())).abs() < 1e-12);
        assert_eq!(versus.eval_loss, Paired { mean_difference: Some(0.5), ci95: None, pairs: 2 });
        assert!(result.to_text().contains("n too small"));
        assert!(serde_json::to_value(&result).unwrap()["arms"][1]["vs_baseline"]["ci95"].is_null());
    }

    #[test]
    fn p_values_are_adjusted_for_the_number_of_arms_with_one() {
        let dir = tempfile::tempdir().unwrap();
        for (seed, loss) in [(0, 2.0), (1, 3.0), (2, 4.0)] {
            run(dir.path(), "tied", seed, "complete", loss, "");
            run(dir.path(), "near", seed, "complete", loss + [0.1, -0.1, 0.2][seed as usize], "");
            run(dir.path(), "far", seed, "complete", loss + [0.5, 0.51, 0.52][seed as usize], "");
        }
        run(dir.path(), "single", 0, "complete", 1.0, "");
        let result = compare(&options(dir.path())).unwrap();
        let p = |name| arm(&result, name).vs_baseline.clone().map(|v| (v.p, v.p_holm)).unwrap();
        let ((far, Some(far_holm)), (near, near_holm)) = (p("far"), p("near")) else { panic!("{result:?}") };
        assert!((far_holm - 2.0 * far.unwrap()).abs() < 1e-12 && near_holm == near && near > far, "{result:?}");
        assert_eq!(p("single"), (None, None));
        assert!(result.to_text().contains("p (Holm)"), "{}", result.to_text());
    }

    #[test]
    fn mixed_configurations_and_repeated_seeds_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "tied", 0, "complete", 2.0, "");
        run(dir.path(), "tied", 1, "complete", 4.0, "[optim]\nlr = 0.5\n");
        let message = refused(&options(dir.path()));
        assert!(message.contains("optim.lr (0.003 and 0.5)") && message.contains("--allow-mixed"), "{message}");
        let allowed = compare(&CompareOptions { allow_mixed: true, ..options(dir.path()) }).unwrap();
        assert_eq!((allowed.arms[0].n, allowed.arms[0].mean, allowed.warnings.len()), (2, Some(3.0), 1));

        let dir = tempfile::tempdir().unwrap();
        run(&dir.path().join("one"), "tied", 0, "complete", 2.0, "");
        run(&dir.path().join("two"), "tied", 0, "complete", 4.0, "[optim]\nlr = 0.5\n");
        let message = refused(&options(dir.path()));
        assert!(message.contains("two runs of seed 0") && message.contains("optim.lr (0.003 and 0.5)"), "{message}");
        let allowed = compare(&CompareOptions { allow_mixed: true, ..options(dir.path()) }).unwrap();
        assert_eq!((allowed.arms[0].n, allowed.arms[0].mean), (1, Some(3.0)));
    }

    #[test]
    fn copies_of_one_run_count_once_and_the_complete_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, state, loss) in
            [("a", "interrupted", 9.0), ("b", "complete", 2.0), ("c", "complete", 4.0), ("d", "failed", 9.0)]
        {
            run(&dir.path().join(folder), "tied", 0, state, loss, "");
        }
        let result = compare(&options(dir.path())).unwrap();
        let tied = arm(&result, "tied");
        assert_eq!((tied.n, tied.mean, tied.failed, tied.unfinished), (1, Some(2.0), 0, 0));
        assert_eq!(result.warnings.len(), 3, "{:?}", result.warnings);
        assert!(result.warnings.iter().all(|w| w.contains("same run")), "{:?}", result.warnings);
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refused(&options(dir.path())).contains("no runs found"));
        assert!(refused(&options(&dir.path().join("no"))).contains("no such folder"));
        run(dir.path(), "tied", 0, "complete", 2.0, "");
        let message = refused(&CompareOptions { baseline: Some("tide".into()), ..options(dir.path()) });
        assert!(message.contains("did you mean \"tied\""), "{message}");
        let message = refused(&CompareOptions { metric: Some("eval/los".into()), ..options(dir.path()) });
        assert!(message.contains("did you mean \"eval/loss\"") && message.contains("eval/ppl"), "{message}");
        std::fs::write(dir.path().join("tied-s0-complete0/metrics.jsonl"), "{\"step\":1").unwrap();
        let message = refused(&options(dir.path()));
        assert!(message.contains("metrics.jsonl: line 1"), "{message}");
    }

    #[test]
    fn a_sweeps_record_gives_defaults_order_and_cells_that_never_ran() {
        let dir = tempfile::tempdir().unwrap();
        let folder = run(dir.path(), "untied", 0, "complete", 2.0, "");
        run(dir.path(), "tied", 0, "complete", 2.5, "");
        let cell =
            |name: &str, seed: u64, folder: &str| json!({ "name": name, "arm": name, "seed": seed, "folder": folder });
        let name = folder.file_name().unwrap().to_str().unwrap();
        let cells = [cell("untied", 0, name), cell("tied", 0, "tied-s0-complete0"), cell("tied", 1, "gone")];
        let record = json!({ "name": "s", "baseline": "untied", "metric": "eval/loss", "arms": ["untied", "tied"], "seeds": [0, 1],
            "cells": cells });
        std::fs::write(dir.path().join("sweep.json"), record.to_string()).unwrap();
        let result = compare(&CompareOptions { metric: None, ..options(dir.path()) }).unwrap();
        assert_eq!((result.baseline.as_str(), result.metric.as_str()), ("untied", "eval/loss"));
        assert_eq!(result.arms.iter().map(|a| a.arm.as_str()).collect::<Vec<_>>(), ["untied", "tied"]);
        assert_eq!((result.arms[1].n, result.arms[1].unfinished), (1, 1));
        // Of the run alone, the record above still gives the defaults, and nothing of the others is shown.
        let alone = compare(&CompareOptions { metric: None, ..options(&folder) }).unwrap();
        assert_eq!((alone.baseline.as_str(), alone.arms.len()), ("untied", 1));
    }

    #[test]
    fn a_grid_is_compared_point_by_point() {
        let dir = tempfile::tempdir().unwrap();
        for (lr, tied, untied) in [("0.1", 2.0, 3.0), ("0.2", 4.0, 4.5)] {
            let set = format!("[optim]\nlr = {lr}\n");
            run(dir.path(), &format!("tied optim.lr={lr}"), 0, "complete", tied, &set);
            run(dir.path(), &format!("untied optim.lr={lr}"), 0, "complete", untied, &set);
        }
        let result = compare(&options(dir.path())).unwrap();
        let versus = arm(&result, "untied optim.lr=0.2").vs_baseline.clone().unwrap();
        assert_eq!((versus.baseline.as_str(), versus.mean_difference), ("tied optim.lr=0.2", Some(0.5)));
        assert!(arm(&result, "tied optim.lr=0.2").vs_baseline.is_none());
        let fixed = CompareOptions { baseline: Some("tied optim.lr=0.1".into()), ..options(dir.path()) };
        let versus = arm(&compare(&fixed).unwrap(), "untied optim.lr=0.2").vs_baseline.clone().unwrap();
        assert_eq!(versus.mean_difference, Some(2.5));
    }

    fn record(folder: &Path, device: &str) {
        let split = json!({ "documents": 1, "bytes": 1, "tokens": 1 });
        let env = json!({ "parameters": { "unique": 7 }, "device": device, "data": {
            "corpus": "synthetic", "fallback_reason": "no network", "corpus_hash": "a", "tokenizer": "bytes", "tokenizer_hash": "b",
            "vocabulary": 257, "train": split, "validation": split, "exact_duplicates": 0, "near_duplicates_across_split": 0,
            "warnings": [] } });
        std::fs::write(folder.join("env.json"), env.to_string()).unwrap();
    }

    #[test]
    fn arms_of_two_kinds_of_device_are_told_and_one_arm_of_two_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        record(&run(dir.path(), "tied", 0, "complete", 2.0, ""), "flex");
        record(&run(dir.path(), "untied", 0, "complete", 3.0, ""), "wgpu");
        // No record, no device.
        run(dir.path(), "untied", 1, "failed", 3.0, "");
        let warnings = compare(&options(dir.path())).unwrap().warnings;
        assert_eq!(warnings, ["runs differ in kind of device: \"tied\" flex, \"untied\" wgpu"]);
        record(&run(dir.path(), "untied", 2, "complete", 3.0, ""), "flex");
        let error = refused(&options(dir.path()));
        assert!(error.contains("two configurations") && error.contains("device (wgpu and flex)"), "{error}");
    }

    #[test]
    fn a_fallback_corpus_is_told_loudly() {
        let dir = tempfile::tempdir().unwrap();
        record(&run(dir.path(), "tied", 0, "complete", 2.0, ""), "flex");
        let result = compare(&options(dir.path())).unwrap();
        assert!(result.note.as_ref().unwrap().contains("no network"));
        assert_eq!((result.arms[0].parameters, result.arms[0].corpus.as_deref()), (Some(7), Some("synthetic")));
        assert!(result.to_text().contains("WARNING: the corpus is the fallback \"synthetic\""));
    }
}
