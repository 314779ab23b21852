//! The claims: each one's measures from the runs, and its verdict.

use std::collections::BTreeMap;

use serde::Serialize;
use tiebreak_data::did_you_mean;
use tiebreak_probe::lens::Recipe;
use tiebreak_probe::{Drift, Rows};
use tiebreak_sweep::windows::{RatioWindows, Window};
use tiebreak_train::{Error, Side};

use crate::alignments::{Alignments, Crossed, Part, Score, table};
use crate::estimate::{Estimate, Pairs, minus};
use crate::lens::{self, Value, Which, early, lens};
use crate::measure::{Measure, Role};
use crate::pilot;
use crate::published::Claim;
use crate::runs::{Run, Runs};
use crate::series::mean_over;
use crate::verdict::{Evidence, Says, Verdict, verdict};

/// A claim with what was measured and decided.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Its name.
    pub id: String,
    /// authors or summary.
    pub source: String,
    /// The claim.
    pub text: String,
    /// The published number.
    pub published: String,
    /// What decides, in words.
    pub primary: String,
    /// Its measures, the primary one first.
    pub measures: Vec<Measure>,
    /// The verdict.
    pub verdict: Verdict,
    /// Needed runs that are not complete.
    pub missing: Vec<String>,
}

/// Finds a claim's measures.
type Finder = fn(&mut Judge) -> Result<Vec<Measure>, Error>;

/// Every claim that can be judged: its id, the cells it needs, and how it is measured.
const CLAIMS: [(&str, &[&str], Finder); 13] = [
    ("closer-to-output", &["tied", "untied"], closer_to_output),
    ("output-gradient-dominates", &["tied"], output_gradient_dominates),
    ("output-gradient-5-to-10-times", &["tied"], output_gradient_5_to_10_times),
    ("output-moves-more", &["untied"], output_moves_more),
    ("norm-frequency", &["tied", "untied"], norm_frequency),
    ("early-layers-suffer", &["tied", "untied"], early_layers_suffer),
    ("scaling-lowers-output-alignment", &["tied", "untied", "x5", "movement-matched"], |judge| {
        scaling(judge, Side::Output)
    }),
    ("scaling-raises-input-alignment", &["tied", "untied", "x5"], |judge| scaling(judge, Side::Input)),
    ("x3-restores-balance", &["tied", "untied", "x3"], x3_restores_balance),
    ("scaling-worsens-perplexity", &["tied", "x5"], |judge| loss(judge, "x5", "tied")),
    ("scaling-improves-perplexity", &["tied", "x3"], |judge| loss(judge, "x3", "tied")),
    ("untying-helps-equal-trunk", &["tied", "untied"], |judge| loss(judge, "untied", "tied")),
    ("untying-helps-equal-parameters", &["tied-matched", "untied"], |judge| loss(judge, "untied", "tied-matched")),
];

/// Runs, and what has been measured of them.
pub struct Judge<'a> {
    /// The runs.
    pub runs: &'a Runs,
    /// Their alignments.
    pub alignments: Alignments<'a>,
}

/// Refuses a claim that this build does not measure.
///
/// # Errors
/// [`Error::Input`] with the nearest that it does.
pub fn check(claims: &[Claim]) -> Result<(), Error> {
    let known = || CLAIMS.iter().map(|(id, ..)| *id);
    match claims.iter().find(|claim| !known().any(|id| id == claim.id)) {
        None => Ok(()),
        Some(claim) => Err(Error::Input(format!(
            "published.toml: claim {:?} has no measure in this build{}; a new claim needs one in tiebreak-report's claims.rs",
            claim.id,
            did_you_mean(&claim.id, known())
        ))),
    }
}

/// Measures and judges every claim.
///
/// # Errors
/// [`Error::Input`] naming a run whose files are damaged or lack what a measure needs.
pub fn judge(judge: &mut Judge, claims: &[Claim]) -> Result<Vec<Judged>, Error> {
    check(claims)?;
    let mut all = Vec::new();
    for claim in claims {
        let Some((_, needed, find)) = CLAIMS.iter().find(|(id, ..)| *id == claim.id) else { continue };
        tracing::info!("measuring {}", claim.id);
        let mut missing: Vec<String> = needed.iter().flat_map(|cell| judge.runs.missing(cell)).collect();
        let mut measures = find(judge)?;
        if claim.id == "early-layers-suffer" {
            missing.extend(lens::missing(judge.runs, Recipe::Converged)?);
        }
        measures.sort_by_key(|m| m.role as u8);
        let interval = |role: Role| measures.iter().find(|m| m.role == role).map(|m| m.ci95);
        let says = claim.says()?;
        // Beside a band it has to lie wholly below the band; elsewhere rule 6a has it.
        let (above_chance, condition) = match (says, interval(Role::Condition)) {
            (Says::Band { low, .. }, Some(ends)) => (None, ends.is_some_and(|[_, high]| high < low)),
            (_, above_chance) => (above_chance, true),
        };
        let evidence = Evidence {
            measurable: judge.runs.fallback().is_none(),
            missing: !missing.is_empty(),
            says,
            primary: interval(Role::Primary).flatten(),
            above_chance,
            corrected: claim.corrected.as_ref().map(|_| interval(Role::Corrected).flatten()),
            condition,
        };
        all.push(Judged {
            id: claim.id.clone(),
            source: claim.source.clone(),
            text: claim.text.clone(),
            published: claim.published.clone(),
            primary: format!("{} ({})", claim.primary.measure, claim.primary.window),
            verdict: verdict(&evidence),
            measures,
            missing,
        });
    }
    Ok(all)
}

const LAST: &str = "last step";

fn mean_of(pairs: &Pairs) -> Option<f64> {
    Estimate::crossed(pairs).mean
}

fn null(score: &Score) -> Option<f64> {
    score.null
}

fn null_freq(score: &Score) -> Option<f64> {
    score.null_freq
}

impl Judge<'_> {
    /// Alignments of an arm's shared tables with the untied arm's input and output tables.
    pub fn sides(&mut self, arm: &str, part: Part) -> Result<[Crossed; 2], Error> {
        self.sides_of("untied", arm, part)
    }

    /// The same with another untied arm.
    pub fn sides_of(&mut self, untied: &str, arm: &str, part: Part) -> Result<[Crossed; 2], Error> {
        let input = self.alignments.crossed(untied, Side::Input, arm, part)?;
        Ok([input, self.alignments.crossed(untied, Side::Output, arm, part)?])
    }

    /// A metric's difference, output less input, with chance levels and ceilings.
    pub fn difference(
        &mut self,
        role: Role,
        untied: &str,
        arm: &str,
        metric: &str,
        part: Part,
    ) -> Result<Measure, Error> {
        let [input, output] = self.sides_of(untied, arm, part)?;
        let [from, to] = self.sides_of(untied, untied, part)?;
        let less = |of: &dyn Fn(&Crossed) -> Pairs| minus(&of(&output), &of(&input));
        let ceiling = minus(&to.values(metric), &from.values(metric));
        let (name, window) = (prefixed(part, metric), window(part));
        let estimate = Estimate::crossed(&less(&|c| c.values(metric)));
        Ok(Measure::new(role, format!("{name}: output_to_tied - input_to_tied"), window, estimate).beside(
            mean_of(&less(&|c| c.pairs(metric, null))),
            mean_of(&less(&|c| c.pairs(metric, null_freq))),
            mean_of(&ceiling),
        ))
    }

    /// A metric's score of one side, with chance levels and ceiling.
    pub fn score(&mut self, untied: &str, arm: &str, side: Side, metric: &str, part: Part) -> Result<Measure, Error> {
        let scores = self.alignments.crossed(untied, side, arm, part)?;
        let ceiling = self.alignments.crossed(untied, side, untied, part)?;
        let name = format!("{} {}_to_tied", prefixed(part, metric), side.name());
        let measure = Measure::new(Role::Also, name, window(part), Estimate::crossed(&scores.values(metric)));
        Ok(measure.beside(
            mean_of(&scores.pairs(metric, null)),
            mean_of(&scores.pairs(metric, null_freq)),
            mean_of(&ceiling.values(metric)),
        ))
    }

    /// One value a seed, of every complete run of a cell.
    pub fn each(&self, cell: &str, of: impl Fn(&Run) -> Result<Option<f64>, Error>) -> Result<Estimate, Error> {
        let mut values = BTreeMap::new();
        for run in self.runs.of(cell) {
            values.extend(of(run)?.map(|value| (run.seed, value)));
        }
        Ok(Estimate::of(values))
    }

    /// The difference of a tag at the last step, paired by seed.
    pub fn paired(&self, arm: &str, baseline: &str, tag: &str) -> Result<Estimate, Error> {
        self.each(arm, |run| {
            let Some(other) = self.runs.get(baseline, run.seed) else { return Ok(None) };
            let (a, b) = (run.series()?.at(tag, run.steps()), other.series()?.at(tag, other.steps()));
            Ok(a.zip(b).map(|(a, b)| a - b))
        })
    }
}

fn prefixed(part: Part, metric: &str) -> String {
    match part {
        Part::Learned => format!("learned part {metric}"),
        _ => format!("align {metric}"),
    }
}

fn window(part: Part) -> String {
    match part {
        Part::At(step) => format!("step {step}"),
        _ => LAST.into(),
    }
}

/// Of two scores the larger, less its own chance level within frequency groups.
fn larger_above_chance<'a>(scores: [(&str, &'a Crossed); 2], metric: &str) -> Measure {
    let mean = |c: &'a Crossed| mean_of(&c.values(metric)).unwrap_or(f64::NEG_INFINITY);
    let [first, second] = scores;
    let (name, larger) = if mean(second.1) > mean(first.1) { second } else { first };
    let name = format!("align {metric} {name}, the larger score, less its own null_freq");
    Measure::new(Role::Condition, name, LAST, Estimate::crossed(&larger.above_frequency(metric)))
}

/// Kept steps of an arm's runs, but 0 and the last.
pub fn kept_between(runs: &Runs, cell: &str) -> Vec<u64> {
    let first = runs.of(cell).into_iter().next();
    let steps = first.map(|run| run.kept.steps.iter().copied().filter(|s| *s > 0 && *s < run.kept.last()).collect());
    steps.unwrap_or_default()
}

fn closer_to_output(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let sides = judge.sides("tied", Part::Whole)?;
    let mut measures = vec![judge.difference(Role::Primary, "untied", "tied", "procrustes", Part::Whole)?];
    let learned = judge.sides("tied", Part::Learned)?;
    let corrected = minus(&learned[1].above_frequency("procrustes"), &learned[0].above_frequency("procrustes"));
    measures.push(Measure::new(
        Role::Corrected,
        "learned part procrustes less its null_freq: output_to_tied - input_to_tied",
        LAST,
        Estimate::crossed(&corrected),
    ));
    for metric in ["linear", "linear_heldout", "knn10"] {
        measures.push(judge.difference(Role::Also, "untied", "tied", metric, Part::Whole)?);
    }
    for (part, metrics) in [
        (Part::Whole, &["identity", "procrustes", "linear", "linear_heldout", "knn10"][..]),
        (Part::Learned, &["procrustes", "linear_heldout"]),
    ] {
        for metric in metrics {
            for side in [Side::Input, Side::Output] {
                measures.push(judge.score("untied", "tied", side, metric, part)?);
            }
        }
    }
    let tokens = learned[1].pairs("procrustes", |score| Some(score.tokens as f64));
    measures.push(Measure::new(Role::Also, "tokens of the learned parts", LAST, Estimate::crossed(&tokens)));
    measures.extend(of_ceiling(judge, &sides)?);
    for step in kept_between(judge.runs, "tied") {
        measures.push(judge.difference(Role::Also, "untied", "tied", "procrustes", Part::At(step))?);
    }
    let [input, output] = &sides;
    measures.push(larger_above_chance([("input_to_tied", input), ("output_to_tied", output)], "procrustes"));
    Ok(measures)
}

/// Each side as a share of what two seeds of its own table have in common, where these have anything in common.
fn of_ceiling(judge: &mut Judge, sides: &[Crossed; 2]) -> Result<Option<Measure>, Error> {
    let above = |crossed: &Crossed| crossed.pairs("procrustes", |s| Some(s.value - s.null?));
    let ceilings = judge.sides_of("untied", "untied", Part::Whole)?.map(|c| Estimate::crossed(&above(&c)));
    let [Some(input), Some(output)] = ceilings.map(|c| c.mean.filter(|_| c.ci95.is_some_and(|[low, _]| low > 0.0)))
    else {
        return Ok(None);
    };
    let share = |crossed: &Crossed, ceiling: f64| -> Pairs {
        above(crossed).into_iter().map(|(key, x)| (key, x / ceiling)).collect()
    };
    let shares = minus(&share(&sides[1], output), &share(&sides[0], input));
    let name = "procrustes less null, over its seed-to-seed ceiling less null: output - input";
    Ok(Some(Measure::new(Role::Also, name, LAST, Estimate::crossed(&shares))))
}

const NORMS: [&str; 2] = ["grad/output_norm", "grad/input_norm"];
const AUTHORS: [&str; 2] = ["grad/authors/output_norm", "grad/authors/input_norm"];

/// The ratio of two norms over windows of every tied run.
fn ratios(judge: &Judge, norms: [&str; 2], of: impl Fn(RatioWindows) -> Option<f64>) -> Result<Estimate, Error> {
    judge.each("tied", |run| {
        let series = run.series()?;
        Ok(of(RatioWindows::of(series.of(norms[0]), series.of(norms[1]), run.steps())))
    })
}

fn log_ratio(norms: [&str; 2]) -> String {
    format!("mean over steps of log(20-step mean of {} / 20-step mean of {})", norms[0], norms[1])
}

const FIRST: &str = "first 10 % of steps";

fn output_gradient_dominates(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let share = judge.each("tied", |run| {
        let share = mean_over(run.series()?.of("grad/output_signed_share"), Window::First(0.1), run.steps(), |x| x);
        Ok(share.map(|share| share - 0.5))
    })?;
    let mut measures = vec![
        Measure::new(Role::Primary, log_ratio(NORMS), FIRST, ratios(judge, NORMS, |r| r.first_10.mean_log)?),
        Measure::new(Role::Corrected, "grad/output_signed_share - 0.5", FIRST, share),
        Measure::new(Role::Also, log_ratio(AUTHORS), FIRST, ratios(judge, AUTHORS, |r| r.first_10.mean_log)?),
    ];
    for (norms, name) in [(NORMS, "ratio of 20-step mean norms"), (AUTHORS, "the same, authors' definition")] {
        let mut add = |what: &str, window: &str, estimate| {
            measures.push(Measure::new(Role::Also, format!("{name}: {what}"), window, estimate));
        };
        add("mean", FIRST, ratios(judge, norms, |r| r.first_10.mean)?);
        add("median", FIRST, ratios(judge, norms, |r| r.first_10.median)?);
        add("share of the output, out / (in + out)", FIRST, ratios(judge, norms, |r| r.first_10.share)?);
        add("peak", "all steps", ratios(judge, norms, |r| Some(r.peak?.value))?);
        add("step of the peak", "all steps", ratios(judge, norms, |r| Some(r.peak?.step as f64))?);
        add("last crossing of 1, step", "all steps", ratios(judge, norms, |r| Some(r.last_crossing? as f64))?);
        add("mean", "first 1 % of steps", ratios(judge, norms, |r| r.first_1.mean)?);
        add("mean", "all steps", ratios(judge, norms, |r| r.all.mean)?);
        add("mean log", "last 10 % of steps", ratios(judge, norms, |r| r.last_10.mean_log)?);
    }
    Ok(measures)
}

fn output_gradient_5_to_10_times(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let between = judge.each("tied", |run| {
        let ratio = run.series()?.rolling_ratio(AUTHORS[0], AUTHORS[1]);
        let inside = |x: f64| f64::from(u8::from((5.0..=10.0).contains(&x)));
        Ok(mean_over(&ratio, Window::First(0.1), run.steps(), inside))
    })?;
    let measures = vec![
        Measure::new(Role::Primary, log_ratio(AUTHORS), FIRST, ratios(judge, AUTHORS, |r| r.first_10.mean_log)?),
        Measure::new(Role::Also, "share of steps with a ratio between 5 and 10", FIRST, between),
    ];
    Ok(measures)
}

/// Mean cosine of an untied run's table with the same table at another kept step.
pub fn cosine(run: &Run, side: Side, step: u64, before: u64, rows: &Rows) -> Result<f64, Error> {
    Ok(Drift::between(&table(run, side, step)?, &table(run, side, before)?, rows)?.mean)
}

fn output_moves_more(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let moved = |step: Option<u64>| {
        judge.each("untied", |run| {
            let (rows, third) = (judge.runs.rows(run)?, (run.steps() as f64 / 3.0).round() as u64);
            let at = |side| cosine(run, side, step.unwrap_or(third), 0, &rows);
            Ok(Some(at(Side::Input)? - at(Side::Output)?))
        })
    };
    let name = "embedding/input_cos_to_init - embedding/output_cos_to_init";
    let mut measures = vec![Measure::new(Role::Primary, name, "step at one third", moved(None)?)];
    let last = judge.runs.of("untied").first().map(|run| run.steps());
    for step in kept_between(judge.runs, "untied").into_iter().chain(last) {
        measures.push(Measure::new(Role::Also, name, format!("step {step}"), moved(Some(step))?));
    }
    let flips = judge.each("untied", |run| {
        let rows = judge.runs.rows(run)?;
        for pair in run.kept.steps.windows(2) {
            let at = |side| cosine(run, side, pair[1], pair[0], &rows);
            if at(Side::Input)? < at(Side::Output)? {
                return Ok(Some(pair[1] as f64));
            }
        }
        Ok(None)
    })?;
    let name = "first kept step up to which, from the one before, the input table changed more (no value: none)";
    measures.push(Measure::new(Role::Also, name, "kept steps", flips));
    Ok(measures)
}

fn norm_frequency(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let mut primary = judge.difference(Role::Primary, "untied", "tied", "norm_spearman", Part::Whole)?;
    primary.name = "Spearman of tied row norms with output norms, minus with input norms (other seeds)".into();
    let mut measures = vec![primary];
    for side in [Side::Input, Side::Output] {
        measures.push(judge.score("untied", "tied", side, "norm_spearman", Part::Whole)?);
    }
    for (cell, side) in [("untied", Side::Input), ("untied", Side::Output), ("tied", Side::Tied)] {
        let estimate = judge.each(cell, |run| {
            let found = tiebreak_probe::norm_frequency(&table(run, side, run.kept.last())?, &judge.runs.rows(run)?)?;
            Ok(found.spearman)
        })?;
        let name = format!("Spearman of row norm with token frequency: {}", side.name());
        measures.push(Measure::new(Role::Also, name, LAST, estimate));
    }
    Ok(measures)
}

fn early_layers_suffer(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    use Recipe::{Converged, Paper};
    let bits: Value = |s| Some(s.kl_bits);
    // Tied less untied, of one point or of the first half.
    let difference = |recipe: Recipe, which: Which, value: Value, point: Option<usize>| {
        judge.each("tied", |run| {
            let Some(untied) = judge.runs.get("untied", run.seed) else { return Ok(None) };
            let of = |run: &Run| -> Result<Option<f64>, Error> {
                let Some(lens) = lens(run, recipe)? else { return Ok(None) };
                Ok(match point {
                    None => early(&lens, which, value),
                    Some(point) => lens::at(&lens, which, point, value),
                })
            };
            Ok(of(run)?.zip(of(untied)?).map(|(tied, untied)| tied - untied))
        })
    };
    let name = |recipe: Recipe, what: &str| {
        format!("lens tuned ({}, held out) {what}, embed and points 1 to L/2: tied - untied", recipe.name())
    };
    let mut agreement = difference(Converged, Which::Tuned, |s| Some(s.top1_agreement), None)?.values;
    // Less agreement in the tied model is the published side.
    agreement.values_mut().for_each(|x| *x = -*x);
    let mut measures = vec![
        Measure::new(
            Role::Primary,
            name(Converged, "kl_fraction"),
            LAST,
            difference(Converged, Which::Tuned, |s| s.kl_fraction, None)?,
        ),
        Measure::new(
            Role::Corrected,
            "lens tuned (converged, held out) top1_agreement, embed and points 1 to L/2: untied - tied",
            LAST,
            Estimate::of(agreement),
        ),
    ];
    let others: [(Recipe, &str, Value); 4] = [
        (Converged, "kl_bits", bits),
        (Converged, "accuracy", |s| Some(s.accuracy)),
        (Paper, "kl_fraction", |s| s.kl_fraction),
        (Paper, "kl_bits", bits),
    ];
    for (recipe, what, value) in others {
        let estimate = difference(recipe, Which::Tuned, value, None)?;
        measures.push(Measure::new(Role::Also, name(recipe, what), LAST, estimate));
    }
    // Each lens ends by its own curve; up to the shorter one both arms saw the same tokens.
    for cell in ["tied", "untied"] {
        let tokens = judge.each(cell, |run| Ok(lens(run, Converged)?.map(|lens| lens.training.tokens as f64)))?;
        measures.push(Measure::new(Role::Also, format!("tokens of the converged lens of {cell}"), "training", tokens));
    }
    let layers = judge.runs.of("tied").first().map_or(0, |run| run.kept.config.model.n_layers);
    for (recipe, which) in [(Converged, Which::Tuned), (Paper, Which::Tuned), (Converged, Which::Logit)] {
        for (point, place) in lens::points(layers).iter().enumerate() {
            let what = if which == Which::Logit { "logit".into() } else { format!("tuned ({})", recipe.name()) };
            let estimate = difference(recipe, which, bits, Some(point))?;
            measures.push(Measure::new(
                Role::Also,
                format!("lens {what} kl_bits at {place}: tied - untied"),
                LAST,
                estimate,
            ));
        }
    }
    for layer in 1..=layers {
        let tag = format!("residual/{layer}/update_over_stream");
        let estimate = judge.paired("tied", "untied", &tag)?;
        measures.push(Measure::new(Role::Also, format!("{tag}: tied - untied"), LAST, estimate));
    }
    Ok(measures)
}

fn scaling(judge: &mut Judge, side: Side) -> Result<Vec<Measure>, Error> {
    let of = |side: Side, sides: [Crossed; 2]| {
        let [input, output] = sides;
        if side == Side::Input { input } else { output }
    };
    let whole = of(side, judge.sides("tied", Part::Whole)?);
    let what = format!("{}_to_tied", side.name());
    let difference =
        |a: &Crossed, b: &Crossed, get: &dyn Fn(&Crossed) -> Pairs| Estimate::crossed(&minus(&get(a), &get(b)));
    let x5 = of(side, judge.sides("x5", Part::Whole)?);
    let values = |metric: &'static str| move |c: &Crossed| c.values(metric);
    let ceiling = of(side, judge.sides_of("untied", "untied", Part::Whole)?);
    let mut measures = vec![
        Measure::new(
            Role::Primary,
            format!("align procrustes {what}: x5 - x1"),
            LAST,
            difference(&x5, &whole, &values("procrustes")),
        )
        .beside(
            difference(&x5, &whole, &|c| c.pairs("procrustes", null)).mean,
            difference(&x5, &whole, &|c| c.pairs("procrustes", null_freq)).mean,
            None,
        ),
    ];
    let corrected = if side == Side::Output {
        let matched = of(side, judge.sides("movement-matched", Part::Whole)?);
        let mut estimate = difference(&x5, &matched, &values("procrustes"));
        let apart = moved_apart(judge)?;
        // An arm that moves otherwise than x5 corrects nothing.
        if apart.mean.is_none_or(|apart| apart.abs() > pilot::NEAR) {
            estimate.ci95 = None;
        }
        let name = format!("cosine to initial table: movement-matched - x5; above {} it corrects nothing", pilot::NEAR);
        measures.push(Measure::new(Role::Also, name, LAST, apart));
        Measure::new(Role::Corrected, format!("align procrustes {what}: x5 - movement-matched"), LAST, estimate)
    } else {
        let estimate = difference(&x5, &whole, &|c| c.above_frequency("procrustes"));
        Measure::new(
            Role::Corrected,
            format!("align procrustes {what} less each arm's own null_freq: x5 - x1"),
            LAST,
            estimate,
        )
    };
    measures.push(corrected);
    for (arm, scores) in [("x1", &whole), ("x5", &x5)] {
        let name = format!("align procrustes {what} of {arm}");
        let measure = Measure::new(Role::Also, name, LAST, Estimate::crossed(&scores.values("procrustes"))).beside(
            mean_of(&scores.pairs("procrustes", null)),
            mean_of(&scores.pairs("procrustes", null_freq)),
            mean_of(&ceiling.values("procrustes")),
        );
        measures.push(measure);
    }
    for arm in ["x2", "x3", "x10"] {
        let scores = of(side, judge.sides(arm, Part::Whole)?);
        let estimate = difference(&scores, &whole, &values("procrustes"));
        measures.push(Measure::new(Role::Also, format!("align procrustes {what}: {arm} - x1"), LAST, estimate));
    }
    let heldout = difference(&x5, &whole, &values("linear_heldout"));
    measures.push(Measure::new(Role::Also, format!("align linear_heldout {what}: x5 - x1"), LAST, heldout));
    let [base, scaled] = ["tied", "x5"].map(|arm| judge.sides(arm, Part::Learned));
    let learned = difference(&of(side, scaled?), &of(side, base?), &values("procrustes"));
    measures.push(Measure::new(Role::Also, format!("learned part procrustes {what}: x5 - x1"), LAST, learned));
    let names = ["x1", "x5"].map(|arm| format!("{what} of {arm}"));
    measures.push(larger_above_chance([(&names[0], &whole), (&names[1], &x5)], "procrustes"));
    Ok(measures)
}

/// How much less than x5 the movement-matched arm moved.
fn moved_apart(judge: &Judge) -> Result<Estimate, Error> {
    judge.each(pilot::MATCHED_MOVEMENT, |run| {
        let Some(scaled) = judge.runs.get("x5", run.seed) else { return Ok(None) };
        let moved = |run: &Run| cosine(run, Side::Tied, run.steps(), 0, &judge.runs.rows(run)?);
        Ok(Some(moved(run)? - moved(scaled)?))
    })
}

fn x3_restores_balance(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let balance = |[input, output]: [Crossed; 2]| {
        Estimate::crossed(&minus(&input.values("procrustes"), &output.values("procrustes")))
    };
    let (x1, x3) = (balance(judge.sides("tied", Part::Whole)?), balance(judge.sides("x3", Part::Whole)?));
    let name = |arm: &str| format!("align procrustes of {arm}: input_to_tied - output_to_tied");
    // Nothing is restored where nothing was out of balance.
    Ok(vec![Measure::new(Role::Primary, name("x3"), LAST, x3), Measure::new(Role::Condition, name("x1"), LAST, x1)])
}

/// Validation losses of two arms, paired by seed.
fn loss(judge: &mut Judge, arm: &str, baseline: &str) -> Result<Vec<Measure>, Error> {
    let versus = format!("{arm} - {baseline}");
    let mut measures = vec![Measure::new(
        Role::Primary,
        format!("eval/loss: {versus}"),
        LAST,
        judge.paired(arm, baseline, "eval/loss")?,
    )];
    for cell in [arm, baseline] {
        let estimate = judge.each(cell, |run| Ok(run.series()?.at("eval/ppl", run.steps())))?;
        measures.push(Measure::new(Role::Also, format!("eval/ppl of {cell}"), LAST, estimate));
    }
    if arm == "untied" {
        for decile in 0..10 {
            let tag = format!("eval/loss_decile/{decile}");
            let estimate = judge.paired(arm, baseline, &tag)?;
            measures.push(Measure::new(Role::Also, format!("{tag}: {versus}"), LAST, estimate));
        }
        for cell in [arm, baseline] {
            let flops = judge.each(cell, |run| {
                let (config, ids) = (&run.kept.config, run.kept.data.vocabulary);
                Ok(Some(config.flops_per_token(ids) as f64))
            })?;
            let parameters = judge.each(cell, |run| {
                let (config, ids) = (&run.kept.config, run.kept.data.vocabulary);
                Ok(Some(config.model.count(&config.head, ids, config.data.context_length).unique as f64))
            })?;
            measures.push(Measure::new(Role::Also, format!("FLOPs per token of {cell}"), "training", flops));
            measures.push(Measure::new(Role::Also, format!("parameters of {cell}"), "", parameters));
        }
    }
    Ok(measures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    #[test]
    fn every_published_claim_has_a_measure_and_others_are_refused() {
        let mut claims = published::claims(include_str!("../../../experiments/published.toml")).unwrap();
        check(&claims).unwrap();
        assert_eq!(claims.len(), CLAIMS.len());
        claims[0].id = "closer-to-outptu".into();
        let message = check(&claims).unwrap_err().to_string();
        assert!(message.contains("did you mean \"closer-to-output\""), "{message}");
    }
}
