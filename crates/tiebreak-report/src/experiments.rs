//! What each experiment shows beside the claims: further measures, and its figures.

use std::collections::BTreeMap;

use plotters::style::RGBColor;
use tiebreak_probe::lens::Recipe;
use tiebreak_probe::{Metric, norm_frequency};
use tiebreak_sweep::statistics::mean;
use tiebreak_train::{Error, Side};

use crate::alignments::{Part, table};
use crate::claims::{Judge, cosine, kept_between};
use crate::estimate::{Estimate, minus};
use crate::figure::{Band, Figure, GREY, Line, PALETTE, Panel, Rule, Style, panels};
use crate::lens::{self, Value, Which, lens};
use crate::measure::{Measure, Role};
use crate::runs::Run;

const INPUT: RGBColor = PALETTE[0];
const OUTPUT: RGBColor = PALETTE[1];
const TIED: RGBColor = PALETTE[2];
const WITHIN: RGBColor = PALETTE[3];

/// Further measures of an experiment.
///
/// # Errors
/// [`Error::Input`] naming a run whose files are damaged or lack what a measure needs.
pub fn findings(judge: &mut Judge, experiment: &str) -> Result<Vec<Measure>, Error> {
    match experiment {
        "6_gradient_scaling" => scaling(judge),
        "8_size" => size(judge),
        _ => Ok(Vec::new()),
    }
}

/// An experiment's figures, by file name; none while it has no runs.
///
/// # Errors
/// As [`findings`], and [`Error::Failed`] if one cannot be drawn.
pub fn figures(judge: &mut Judge, experiment: &str) -> Result<Vec<(&'static str, Figure)>, Error> {
    let (tied, untied) = (judge.runs.of("tied").len(), judge.runs.of("untied").len());
    let drawn = match experiment {
        "1_embedding_alignment" if tied > 0 && untied > 1 => {
            vec![("histograms", histograms(judge)?), ("over_steps", over_steps(judge)?)]
        }
        "2_tuned_lens" if tied > 0 && untied > 0 => lenses(judge)?.map(|f| ("by_layer", f)).into_iter().collect(),
        "3_embedding_evolution" if untied > 0 => vec![("evolution", evolution(judge)?)],
        "4_norm_frequency" if tied > 0 && untied > 0 => vec![("norms", norms(judge)?)],
        "5_gradient_flow" if tied > 0 => vec![("gradients", gradients(judge)?)],
        "6_gradient_scaling" if tied > 0 => vec![("scaling", scaling_figure(judge)?)],
        "8_size" if SIZES.iter().any(|d| !judge.runs.of(&sized("tied", *d)).is_empty()) => {
            vec![("size", size_figure(judge)?)]
        }
        _ => Vec::new(),
    };
    Ok(drawn)
}

/// Means over seeds with the range over seeds as a band; x by x.
fn line(name: &str, colour: RGBColor, style: Style, seeds: &[Vec<(f64, f64)>]) -> Line {
    let mut at: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for (x, y) in seeds.iter().flatten().filter(|(_, y)| y.is_finite()) {
        // Places on an axis are not negative, so that their bits are in their order; -1 to 1 are moved up.
        at.entry((x + 2.0).to_bits()).or_insert((*x, Vec::new())).1.push(*y);
    }
    let band = |(x, ys): (f64, Vec<f64>)| Band {
        x,
        mean: mean(&ys).unwrap_or(f64::NAN),
        low: ys.iter().copied().fold(f64::INFINITY, f64::min),
        high: ys.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    };
    Line { name: name.into(), colour, style, values: at.into_values().map(band).collect() }
}

fn each<T>(runs: &[&Run], of: impl Fn(&Run) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    runs.iter().map(|run| of(run)).collect()
}

fn rule(name: impl Into<String>, at: f64, vertical: bool) -> Rule {
    Rule { name: name.into(), colour: GREY, at, vertical }
}

/// The paper's figure 1.
fn histograms(judge: &Judge) -> Result<Figure, Error> {
    let (tied, untied) = (judge.runs.of("tied"), judge.runs.of("untied"));
    // Each tied run with the untied run of the next seed, and each untied run with itself.
    let next = |run: &Run| untied.iter().find(|u| u.seed > run.seed).or(untied.iter().find(|u| u.seed != run.seed));
    let mut found: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for run in &tied {
        let Some(other) = next(run) else { continue };
        for (name, side) in [(FROM_INPUT, Side::Input), (FROM_OUTPUT, Side::Output)] {
            found.entry(name).or_default().push(judge.alignments.tokens((other, side), (run, Side::Tied))?);
        }
    }
    for run in &untied {
        let pair = judge.alignments.tokens((run, Side::Input), (run, Side::Output))?;
        found.entry(ACROSS).or_default().push(pair);
    }
    let charts =
        [(Metric::Identity, "as they are"), (Metric::Procrustes, "orthogonal map"), (Metric::Linear, "linear map")];
    let charts = charts.map(|(metric, title)| {
        let shares = |pairs: &[BTreeMap<Metric, crate::alignments::Tokens>]| -> Vec<Vec<(f64, f64)>> {
            let share = |counts: &Vec<u32>| {
                let all = f64::from(counts.iter().sum::<u32>().max(1));
                let centre = |i: usize| -1.0 + (2 * i + 1) as f64 / counts.len() as f64;
                counts.iter().enumerate().map(|(i, n)| (centre(i), 100.0 * f64::from(*n) / all)).collect()
            };
            pairs.iter().filter_map(|p| Some(share(&p.get(&metric)?.histogram))).collect()
        };
        let order = [(ACROSS, WITHIN), (FROM_INPUT, INPUT), (FROM_OUTPUT, OUTPUT)];
        let mut lines: Vec<Line> = order
            .iter()
            .filter_map(|(name, colour)| Some(line(name, *colour, Style::Solid, &shares(found.get(name)?))))
            .collect();
        // Bins that no pair reaches tell nothing.
        let reached = |x: f64| lines.iter().flat_map(|l| &l.values).any(|b| (b.x - x).abs() < 0.06 && b.high > 0.0);
        let keep: Vec<f64> = lines.iter().flat_map(|l| &l.values).map(|b| b.x).filter(|x| reached(*x)).collect();
        for line in &mut lines {
            line.values.retain(|b| keep.contains(&b.x));
        }
        let nulls: Vec<f64> = found.values().flatten().filter_map(|p| p.get(&metric)?.null).collect();
        Panel {
            title: title.into(),
            x: "cosine of mapped row and row".into(),
            y: "tokens [% per bin of 0.025]".into(),
            lines,
            rules: mean(&nulls).map(|at| rule("mean of random pairings", at, true)).into_iter().collect(),
            ..Panel::default()
        }
    });
    panels("How well tables map onto each other, token by token (bands: range over seeds)", 3, &charts)
}

const FROM_INPUT: &str = "untied input to tied";
const FROM_OUTPUT: &str = "untied output to tied";
const ACROSS: &str = "input to output, one untied model";

/// Alignment over the kept steps.
fn over_steps(judge: &mut Judge) -> Result<Figure, Error> {
    type Curve = Vec<(f64, f64)>;
    let mut series: BTreeMap<(usize, &str), Vec<Curve>> = BTreeMap::new();
    let runs = judge.runs;
    let last = runs.of("tied").first().map_or(0, |run| run.steps());
    let parts = kept_between(runs, "tied").into_iter().map(|s| (s, Part::At(s))).chain([(last, Part::Whole)]);
    for (step, part) in parts {
        for (index, crossed) in judge.sides("tied", part)?.iter().enumerate() {
            for metric in ["procrustes", "linear_heldout"] {
                let values = Estimate::crossed(&crossed.values(metric)).values;
                let all = values.into_values().map(|value| vec![(step as f64, value)]);
                series.entry((index, metric)).or_default().extend(all);
            }
        }
    }
    let Some(run) = runs.of("tied").into_iter().next() else { return panels("", 1, &[]) };
    let (rows, d) = (runs.rows(run)?.len(), run.kept.config.model.d_model);
    let charts = [
        ("procrustes", "orthogonal map", Metric::Procrustes),
        ("linear_heldout", "linear map, held out", Metric::LinearHeldout),
    ]
    .map(|(metric, title, null)| Panel {
        title: title.into(),
        x: "step".into(),
        y: "mean cosine".into(),
        log: (true, false),
        lines: [(0, FROM_INPUT, INPUT), (1, FROM_OUTPUT, OUTPUT)]
            .iter()
            .filter_map(|(side, name, colour)| Some(line(name, *colour, Style::Solid, series.get(&(*side, metric))?)))
            .collect(),
        rules: null
            .analytic_null(rows, d, d)
            .map(|at| rule("independent Gaussian tables", at, false))
            .into_iter()
            .collect(),
        ..Panel::default()
    });
    panels("The tied table's alignment with untied models' tables (bands: range over seeds)", 2, &charts)
}

/// The paper's figure 2.
fn lenses(judge: &Judge) -> Result<Option<Figure>, Error> {
    let chart = |title: &str, y: &str, (recipe, which, value): (Recipe, Which, Value)| -> Result<Panel, Error> {
        let mut lines = Vec::new();
        for (cell, colour) in [("untied", OUTPUT), ("tied", TIED)] {
            let of = |run: &Run| -> Result<Vec<(f64, f64)>, Error> {
                let Some(lens) = lens(run, recipe)? else { return Ok(Vec::new()) };
                let points = 0..=run.kept.config.model.n_layers;
                Ok(points.filter_map(|k| Some((k as f64, lens::at(&lens, which, k, value)?))).collect())
            };
            lines.push(line(cell, colour, Style::Solid, &each(&judge.runs.of(cell), of)?));
        }
        let x = "point: 0 embedding, k after block k".into();
        Ok(Panel { title: title.into(), x, y: y.into(), lines, ..Panel::default() })
    };
    let (kl, bits): (&str, Value) = ("KL(final || lens) [bits per token]", |s| Some(s.kl_bits));
    let fraction: Value = |s| s.kl_fraction;
    let (converged, paper) = (Recipe::Converged, Recipe::Paper);
    let share =
        chart("tuned lens, converged", "KL over the constant predictor's", (converged, Which::Tuned, fraction))?;
    let mut charts = vec![
        Panel { rules: vec![rule("constant predictor", 1.0, false)], ..share },
        chart("tuned lens, converged", kl, (converged, Which::Tuned, bits))?,
        chart("tuned lens, the paper's recipe", kl, (paper, Which::Tuned, bits))?,
        chart("logit lens", kl, (converged, Which::Logit, bits))?,
    ];
    if charts.iter().all(|panel| panel.lines.iter().all(|line| line.values.is_empty())) {
        return Ok(None);
    }
    // The last point of the logit lens is 0, which no logarithm shows.
    charts[3].log.1 = true;
    panels("What each layer knows of the final prediction (held out; bands: range over seeds)", 2, &charts).map(Some)
}

/// The paper's figures 3, 8 and 9.
fn evolution(judge: &Judge) -> Result<Figure, Error> {
    let tables = [
        ("untied", Side::Input, "untied input", INPUT),
        ("untied", Side::Output, "untied output", OUTPUT),
        ("tied", Side::Tied, "tied", TIED),
    ];
    let mut lines = [Vec::new(), Vec::new()];
    for (cell, side, name, colour) in tables {
        let of = |run: &Run, initial: bool| -> Result<Vec<(f64, f64)>, Error> {
            let rows = judge.runs.rows(run)?;
            let pairs = run.kept.steps.windows(2);
            pairs.map(|p| Ok((p[1] as f64, cosine(run, side, p[1], if initial { 0 } else { p[0] }, &rows)?))).collect()
        };
        let runs = judge.runs.of(cell);
        lines[0].push(line(name, colour, Style::Solid, &each(&runs, |run| of(run, true))?));
        lines[1].push(line(name, colour, Style::Solid, &each(&runs, |run| of(run, false))?));
    }
    let titles = ["to the initial table", "to the kept table before (steps as marked)"];
    let charts = titles.into_iter().zip(lines).map(|(title, lines)| Panel {
        title: title.into(),
        x: "step".into(),
        y: "mean cosine over tokens".into(),
        log: (true, false),
        lines,
        ..Panel::default()
    });
    panels("How far the tables turn (bands: range over seeds)", 2, &charts.collect::<Vec<_>>())
}

/// The paper's figure 5.
fn norms(judge: &Judge) -> Result<Figure, Error> {
    let tables = [
        ("untied", Side::Input, "untied input", INPUT),
        ("untied", Side::Output, "untied output", OUTPUT),
        ("tied", Side::Tied, "tied", TIED),
    ];
    let mut lines = Vec::new();
    let mut start = Vec::new();
    for (cell, side, name, colour) in tables {
        let of = |run: &Run, step: u64| -> Result<Vec<(f64, f64)>, Error> {
            let found = norm_frequency(&table(run, side, step)?, &judge.runs.rows(run)?)?;
            Ok(found.bins.iter().map(|bin| (bin.log10_count, bin.norm)).collect())
        };
        let runs = judge.runs.of(cell);
        lines.push(line(name, colour, Style::Solid, &each(&runs, |run| of(run, run.kept.last()))?));
        start.extend(each(&runs, |run| of(run, 0))?.into_iter().flatten().map(|(_, norm)| norm));
    }
    let chart = Panel {
        title: String::new(),
        x: "log10(count in the training split + 1)".into(),
        y: "mean row norm in the bin".into(),
        lines,
        rules: mean(&start).map(|at| rule("at the start", at, false)).into_iter().collect(),
        ..Panel::default()
    };
    panels("Row norm against token frequency", 1, &[chart])
}

/// The paper's figure 4, by both definitions.
fn gradients(judge: &Judge) -> Result<Figure, Error> {
    let runs = judge.runs.of("tied");
    let rolling = |tag: &str| each(&runs, |run| Ok(steps(run.series()?.rolling(tag))));
    let norms = |input: &str, output: &str| -> Result<Vec<Line>, Error> {
        Ok(vec![
            line("input side", INPUT, Style::Solid, &rolling(input)?),
            line("output side", OUTPUT, Style::Solid, &rolling(output)?),
        ])
    };
    let share = |input: &str, output: &str| {
        each(&runs, |run| {
            let ratio = run.series()?.rolling_ratio(output, input);
            Ok(ratio.into_iter().map(|(s, r)| (s as f64, r / (1.0 + r))).collect())
        })
    };
    let (own, theirs) =
        (("grad/input_norm", "grad/output_norm"), ("grad/authors/input_norm", "grad/authors/output_norm"));
    let (x, norm) = ("step", "gradient norm (20-step mean) [nats per token]");
    let charts = [
        Panel {
            title: "both sides V x d, whole step".into(),
            y: norm.into(),
            log: (true, true),
            lines: norms(own.0, own.1)?,
            ..Panel::default()
        },
        Panel {
            title: "the paper code's definition".into(),
            y: norm.into(),
            log: (true, true),
            lines: norms(theirs.0, theirs.1)?,
            ..Panel::default()
        },
        Panel {
            title: "share of the output side".into(),
            y: "out / (in + out), of 20-step means".into(),
            log: (true, false),
            lines: vec![
                line("both V x d", TIED, Style::Solid, &share(own.0, own.1)?),
                line("the paper code's", WITHIN, Style::Dashed, &share(theirs.0, theirs.1)?),
            ],
            rules: vec![rule("equal sides", 0.5, false)],
            ..Panel::default()
        },
        Panel {
            title: "signed shares of the output side".into(),
            y: "share (20-step mean)".into(),
            log: (true, false),
            lines: vec![
                line("of the gradient", TIED, Style::Solid, &rolling("grad/output_signed_share")?),
                line("of Adam's update", PALETTE[4], Style::Dashed, &rolling("update/output_signed_share")?),
            ],
            rules: vec![rule("equal sides", 0.5, false)],
            ..Panel::default()
        },
    ];
    let charts = charts.map(|chart| Panel { x: x.into(), ..chart });
    panels("What each side gives to the tied table (bands: range over seeds)", 2, &charts)
}

fn steps(values: Vec<(u64, f64)>) -> Vec<(f64, f64)> {
    values.into_iter().map(|(step, value)| (step as f64, value)).collect()
}

/// Arms of the scaling experiment and what each is compared with.
const AGAINST: [(&str, &str); 16] = [
    ("untied", "tied"),
    ("tied-matched", "tied"),
    ("x2", "tied"),
    ("x3", "tied"),
    ("x5", "tied"),
    ("x10", "tied"),
    ("movement-matched", "tied"),
    ("output-fifth", "tied"),
    ("paper-output-fifth", "tied"),
    ("both-x4-before-clip", "tied"),
    ("both-x4-after-clip", "tied"),
    ("untied-x4-before-clip", "untied"),
    ("untied-x4-after-clip", "untied"),
    ("eps-tied", "tied"),
    ("eps-x5", "eps-tied"),
    ("eps-untied", "eps-tied"),
];

/// Arms with a shared table of the same shape as tied's, and the untied arm of their regime.
fn shared(arm: &str) -> Option<&'static str> {
    match arm {
        "eps-tied" | "eps-x5" => Some("eps-untied"),
        "tied-matched" => None,
        arm if arm.contains("untied") => None,
        _ => Some("untied"),
    }
}

fn scaling(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let mut measures = Vec::new();
    for (arm, baseline) in AGAINST {
        let estimate = judge.paired(arm, baseline, "eval/loss")?;
        measures.push(Measure::new(Role::Also, format!("eval/loss: {arm} - {baseline}"), "last step", estimate));
    }
    for arm in std::iter::once("tied").chain(AGAINST.map(|(arm, _)| arm)) {
        let Some(untied) = shared(arm) else { continue };
        let turned =
            judge.each(arm, |run| Ok(Some(cosine(run, Side::Tied, run.kept.last(), 0, &judge.runs.rows(run)?)?)))?;
        measures.push(Measure::new(Role::Also, format!("cosine to the initial table: {arm}"), "last step", turned));
        for side in [Side::Input, Side::Output] {
            let mut measure = judge.score(untied, arm, side, "procrustes", Part::Whole)?;
            measure.name = format!("align procrustes {}_to_tied of {arm}", side.name());
            measures.push(measure);
        }
    }
    for arm in ["eps-tied", "eps-x5"] {
        for part in [Part::Whole, Part::Learned] {
            let mut measure = judge.difference(Role::Also, "eps-untied", arm, "procrustes", part)?;
            measure.name = format!("{arm}: {}", measure.name);
            measures.push(measure);
        }
    }
    for (side, index) in [(Side::Input, 0), (Side::Output, 1)] {
        for part in [Part::Whole, Part::Learned] {
            let [plain, scaled] = ["eps-tied", "eps-x5"].map(|arm| judge.sides_of("eps-untied", arm, part));
            let difference = minus(&scaled?[index].values("procrustes"), &plain?[index].values("procrustes"));
            let learned = if part == Part::Learned { "learned part" } else { "align" };
            let name = format!("{learned} procrustes {}_to_tied: eps-x5 - eps-tied", side.name());
            measures.push(Measure::new(Role::Also, name, "last step", Estimate::crossed(&difference)));
        }
    }
    Ok(measures)
}

/// A mean with its interval, or without one with the range over seeds.
fn bar(x: f64, measure: &Measure) -> Option<Band> {
    let mean = measure.mean?;
    let ends = measure.values.values().copied();
    let [low, high] = measure.ci95.unwrap_or([ends.clone().fold(mean, f64::min), ends.fold(mean, f64::max)]);
    Some(Band { x, mean, low, high })
}

fn scaling_figure(judge: &mut Judge) -> Result<Figure, Error> {
    let mut lines = Vec::new();
    let mut rules = Vec::new();
    for (side, name, colour) in [(Side::Input, FROM_INPUT, INPUT), (Side::Output, FROM_OUTPUT, OUTPUT)] {
        let (mut values, mut nulls) = (Vec::new(), Vec::new());
        for (scale, arm) in [(1.0, "tied"), (2.0, "x2"), (3.0, "x3"), (5.0, "x5"), (10.0, "x10")] {
            let measure = judge.score("untied", arm, side, "procrustes", Part::Whole)?;
            values.extend(bar(scale, &measure));
            nulls.extend(measure.null_freq);
        }
        lines.push(Line { name: name.into(), colour, style: Style::Solid, values });
        rules.extend(
            mean(&nulls)
                .map(|at| Rule { colour, ..rule(format!("{name}, random pairing of like frequency"), at, false) }),
        );
        let matched = judge.score("untied", "movement-matched", side, "procrustes", Part::Whole)?;
        let values = bar(5.0, &matched).into_iter().collect();
        lines.push(Line { name: format!("{name}, movement-matched"), colour, style: Style::Dots, values });
    }
    let alignment = Panel {
        title: "alignment with untied tables".into(),
        x: "factor on the input side's gradient".into(),
        y: "mean cosine after an orthogonal map".into(),
        log: (true, false),
        lines,
        rules,
        ..Panel::default()
    };
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    for (arm, baseline) in AGAINST {
        let estimate = judge.paired(arm, baseline, "eval/loss")?;
        let measure = Measure::new(Role::Also, "", "", estimate);
        if let Some(band) = bar(rows.len() as f64, &measure) {
            values.push(band);
            rows.push(if baseline == "tied" { arm.to_owned() } else { format!("{arm} / {baseline}") });
        }
    }
    let loss = Panel {
        title: "validation loss less tied's (or the arm's after /)".into(),
        x: "difference [nats per token]".into(),
        rows,
        lines: vec![Line { name: String::new(), colour: TIED, style: Style::Dots, values }],
        rules: vec![rule("no difference", 0.0, true)],
        ..Panel::default()
    };
    panels("The input side's gradient scaled (bars: 95 % intervals over seeds)", 2, &[alignment, loss])
}

/// Widths of either scale.
const SIZES: [usize; 4] = [32, 64, 128, 256];

fn sized(arm: &str, d_model: usize) -> String {
    format!("{arm} model.d_model={d_model}")
}

/// The share that a run's tables have of its parameters.
fn table_share(run: &Run) -> f64 {
    let config = &run.kept.config;
    let count = config.model.count(&config.head, run.kept.data.vocabulary, config.data.context_length);
    (count.embedding + count.head) as f64 / count.unique as f64
}

fn size(judge: &mut Judge) -> Result<Vec<Measure>, Error> {
    let mut measures = Vec::new();
    for d_model in SIZES {
        let (tied, untied, scaled) = (sized("tied", d_model), sized("untied", d_model), sized("x5", d_model));
        if judge.runs.of(&tied).is_empty() {
            continue;
        }
        let share = judge.each(&tied, |run| Ok(Some(table_share(run))))?;
        measures.push(Measure::new(
            Role::Also,
            format!("d {d_model}: the table's share of the parameters, tied"),
            "",
            share,
        ));
        for (arm, name) in [(&tied, "tied"), (&scaled, "x5")] {
            let [input, output] = judge.sides_of(&untied, arm, Part::Whole)?;
            let difference = minus(&output.above_frequency("procrustes"), &input.above_frequency("procrustes"));
            let what = format!("d {d_model}, {name}: align procrustes less null_freq: output_to_tied - input_to_tied");
            measures.push(Measure::new(Role::Also, what, "last step", Estimate::crossed(&difference)));
        }
        for arm in ["untied", "x5"] {
            let estimate = judge.paired(&sized(arm, d_model), &tied, "eval/loss")?;
            measures.push(Measure::new(
                Role::Also,
                format!("d {d_model}: eval/loss: {arm} - tied"),
                "last step",
                estimate,
            ));
        }
    }
    Ok(measures)
}

fn size_figure(judge: &mut Judge) -> Result<Figure, Error> {
    let mut values: [Vec<Band>; 4] = Default::default();
    for d_model in SIZES {
        let tied = sized("tied", d_model);
        let runs = judge.runs;
        let Some(share) = runs.of(&tied).first().map(|run| table_share(run)) else { continue };
        let untied = sized("untied", d_model);
        for (arm, index) in [("tied", 0), ("x5", 1)] {
            let [input, output] = judge.sides_of(&untied, &sized(arm, d_model), Part::Whole)?;
            let difference = minus(&output.above_frequency("procrustes"), &input.above_frequency("procrustes"));
            let measure = Measure::new(Role::Also, "", "", Estimate::crossed(&difference));
            values[index].extend(bar(100.0 * share, &measure));
        }
        for (arm, index) in [("untied", 2), ("x5", 3)] {
            let estimate = judge.paired(&sized(arm, d_model), &tied, "eval/loss")?;
            values[index].extend(bar(100.0 * share, &Measure::new(Role::Also, "", "", estimate)));
        }
    }
    for values in &mut values {
        values.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let [tied, x5, untied_loss, x5_loss] = values;
    let dots = |name: &str, colour, values| Line { name: name.into(), colour, style: Style::Dots, values };
    let x = "the table's share of the tied model's parameters [%]";
    let charts = [
        Panel {
            title: "nearer to the output table".into(),
            x: x.into(),
            y: "alignment less chance: output - input".into(),
            lines: vec![dots("tied", TIED, tied), dots("x5", PALETTE[4], x5.clone())],
            rules: vec![rule("none", 0.0, false)],
            ..Panel::default()
        },
        Panel {
            title: "validation loss less tied's".into(),
            x: x.into(),
            y: "difference [nats per token]".into(),
            lines: vec![dots("untied", OUTPUT, untied_loss), dots("x5", PALETTE[4], x5_loss)],
            rules: vec![rule("none", 0.0, false)],
            ..Panel::default()
        },
    ];
    panels("One vocabulary, three widths (bars: 95 % intervals over seeds)", 2, &charts)
}
