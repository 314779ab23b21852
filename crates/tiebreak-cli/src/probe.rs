//! Text of `tiebreak probe`.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use tiebreak_probe::{Drift, FEWEST_ROWS, Metric, Score};
use tiebreak_train::probing::{ModelReport, ProbeReport, Relation};

/// The report for people: values beside their chance levels.
pub fn text(report: &ProbeReport) -> String {
    let rows = report.rows;
    let which = if rows.which == "seen" { "ids that occur in the training split" } else { "all ids" };
    let mut text = format!("rows: {} of {} ({which})\n", rows.ids, rows.vocabulary);
    if !report.pairs.is_empty() {
        let _ = writeln!(
            text,
            "null: mean ± sd of {0} random pairings of the rows; null_freq: of {0} within ten groups of like frequency;\n\
             analytic: independent isotropic Gaussian tables (of procrustes and cca the limit for many rows, \"-\" below {1} rows \
             per column);\nlearned: rows less their projection on their initial rows\n\n{2}",
            report.permutations,
            FEWEST_ROWS,
            pairs(report)
        );
        if report.pairs.iter().any(|p| p.same_seed && p.relation == Relation::Across) {
            text += "* one seed: both runs start from the same values, which inflates what they share\n";
        }
    }
    text + &models(report)
}

fn pairs(report: &ProbeReport) -> Table {
    let mut table = plain(&["source", "target", "metric", "value", "null", "null_freq", "analytic", "tokens"], 3);
    for pair in &report.pairs {
        let mut names = [pair.source.clone(), pair.target.clone()];
        match pair.relation {
            Relation::Across if pair.same_seed => names[1] += " *",
            Relation::Ceiling => names[1] += " (ceiling)",
            _ => {}
        }
        let mut add = |prefix: &str, metrics: &BTreeMap<Metric, Score>, tokens: usize| {
            for (metric, score) in metrics {
                let [source, target] = std::mem::take(&mut names);
                table.add_row([
                    source,
                    target,
                    format!("{prefix}{}", metric.name()),
                    number(score.value),
                    spread(score.null, score.null_sd),
                    spread(score.null_freq, score.null_freq_sd),
                    score.analytic_null.map_or("-".into(), number),
                    tokens.to_string(),
                ]);
            }
        };
        add("", &pair.metrics, pair.tokens);
        if let Some(learned) = &pair.learned {
            add("learned ", &learned.metrics, learned.tokens);
        }
    }
    table
}

fn models(report: &ProbeReport) -> String {
    let tables = || report.models.iter().flat_map(|model| model.tables.iter().map(move |table| (model, table)));
    let place = |model: &ModelReport, table: &str| [format!("{}:{table}", model.run), model.step.to_string()];
    let mut text = String::new();
    let mut geometry =
        plain(&["table", "step", "mean cosine", "effective rank", "IsoScore", "partition isotropy", "mean norm"], 1);
    let mut norms =
        plain(&["table", "step", "norm on frequency: Spearman", "Pearson", "slope per decade", "tokens"], 1);
    let mut evolution =
        plain(&["table", "step", "cos to init", "deciles 1, 5, 9", "cos to prev", "deciles 1, 5, 9"], 1);
    let some = |x: Option<f64>| x.map_or("-".into(), number);
    for (model, table) in tables() {
        let place = place(model, table.table.name());
        if let Some(g) = &table.geometry {
            let measured = [
                some(g.mean_cosine),
                format!("{:.2}", g.effective_rank),
                some(g.isoscore),
                number(g.partition_isotropy),
                number(g.mean_norm),
            ];
            geometry.add_row(place.iter().cloned().chain(measured));
        }
        if let Some(n) = &table.norm_frequency {
            let measured = [some(n.spearman), some(n.pearson), some(n.slope), n.tokens.to_string()];
            norms.add_row(place.iter().cloned().chain(measured));
        }
        for e in table.evolution.iter().flatten() {
            let [init, prev] = [Some(e.cos_to_init), e.cos_to_prev].map(drift);
            evolution.add_row([place[0].clone(), e.step.to_string()].into_iter().chain(init).chain(prev));
        }
    }
    for table in [geometry, norms, evolution] {
        if table.row_count() > 0 {
            let _ = writeln!(text, "\n{table}");
        }
    }
    text
}

fn drift(drift: Option<Drift>) -> [String; 2] {
    let Some(Drift { mean, deciles }) = drift else { return ["-".into(), "-".into()] };
    [number(mean), [deciles[0], deciles[4], deciles[8]].map(number).join(" ")]
}

/// A table in plain characters; the first `words` columns are text, the others numbers on the right.
fn plain(header: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for index in words..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn spread(mean: Option<f64>, sd: Option<f64>) -> String {
    match (mean, sd) {
        (None, _) => "-".into(),
        (Some(mean), None) => number(mean),
        (Some(mean), Some(sd)) => format!("{} ± {}", number(mean), number(sd)),
    }
}

fn number(x: f64) -> String {
    format!("{x:.4}")
}
