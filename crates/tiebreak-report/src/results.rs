//! What is left to read: the claims table, RESULTS.md, claims.json and each experiment's result.json.

use std::fmt::Write;
use std::path::Path;

use comfy_table::{Table, presets};
use serde::Serialize;
use tiebreak_data::write_atomic;
use tiebreak_train::Error;

use crate::claims::{Judge, Judged};
use crate::estimate::Estimate;
use crate::measure::{Measure, Role};
use crate::pilot::Pilot;
use crate::plan::{Plan, Scale};
use crate::runs::Runs;

/// result.json of an experiment.
#[derive(Serialize)]
pub struct Summary {
    /// Its name.
    pub experiment: String,
    /// quick or full.
    pub scale: &'static str,
    /// Its arms.
    pub arms: Vec<Arm>,
    /// What it measures beside the claims.
    pub measures: Vec<Measure>,
}

/// An arm of an experiment.
#[derive(Serialize)]
pub struct Arm {
    /// Its name, with the grid's values.
    pub arm: String,
    /// `eval/loss` at the last step, nats per token.
    pub eval_loss: Estimate,
    /// Distinct parameters.
    pub parameters: Option<usize>,
    /// Its learning rate.
    pub lr: Option<f64>,
    /// Planned runs that are not complete, and why.
    pub missing: Vec<String>,
}

/// An experiment's arms.
///
/// # Errors
/// [`Error::Input`] naming a damaged file.
pub fn arms(judge: &Judge, plan: &Plan, experiment: &str) -> Result<Vec<Arm>, Error> {
    let mut names: Vec<&str> = Vec::new();
    for cell in plan.experiments.iter().filter(|e| e.name == experiment).flat_map(|e| e.cells()) {
        if !names.contains(&cell.name.as_str()) {
            names.push(&cell.name);
        }
    }
    let arm = |name: &str| -> Result<Arm, Error> {
        let runs = judge.runs.of(name);
        let first = runs.first();
        Ok(Arm {
            arm: name.into(),
            eval_loss: judge.each(name, |run| Ok(run.series()?.at("eval/loss", run.steps())))?,
            parameters: first.map(|run| {
                let config = &run.kept.config;
                config.model.count(&config.head, run.kept.data.vocabulary, config.data.context_length).unique
            }),
            lr: first.map(|run| run.kept.config.optim.lr),
            missing: judge.runs.missing(name),
        })
    };
    names.into_iter().map(arm).collect()
}

/// Writes JSON as a whole.
///
/// # Errors
/// [`Error::Failed`] if it cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut json = serde_json::to_vec_pretty(value).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    json.push(b'\n');
    write_text(path, &json)
}

/// Writes a file whose folder may be missing.
///
/// # Errors
/// [`Error::Failed`] if it cannot be written.
pub fn write_text(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", folder.display())))?;
    write_atomic(path, bytes)
}

/// The claims for a terminal.
pub fn table(claims: &[Judged]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(HEADER);
    for claim in claims {
        table.add_row(row(claim));
    }
    let mut text = format!("{table}\n");
    let unjudged: Vec<&Judged> = claims.iter().filter(|c| !c.missing.is_empty()).collect();
    if let Some(first) = unjudged.first() {
        let _ = writeln!(
            text,
            "{} claims lack runs, the first of them {}: {}",
            unjudged.len(),
            first.id,
            brief(&first.missing)
        );
    }
    if claims.iter().any(|c| c.measures.first().is_some_and(|m| m.role == Role::Primary && m.n < 3)) {
        text += "n too small: an interval needs at least 3 seeds, and without one nothing is decided.\n";
    }
    text
}

const HEADER: [&str; 8] = ["claim", "source", "published", "ours [95 %]", "n", "null_freq", "ceiling", "verdict"];

fn row(claim: &Judged) -> [String; 8] {
    let primary = claim.measures.iter().find(|m| m.role == Role::Primary);
    let optional = |value: Option<f64>| value.map_or("-".into(), signed);
    [
        claim.id.clone(),
        claim.source.clone(),
        claim.published.clone(),
        primary.map_or("-".into(), interval),
        primary.map_or(0, |m| m.n).to_string(),
        optional(primary.and_then(|m| m.null_freq)),
        optional(primary.and_then(|m| m.ceiling)),
        claim.verdict.words().into(),
    ]
}

/// A mean and its interval, or what there is of them.
fn interval(measure: &Measure) -> String {
    match (measure.mean, measure.ci95) {
        (None, _) => "-".into(),
        (Some(mean), None) => format!("{} (n too small)", signed(mean)),
        (Some(mean), Some([low, high])) => format!("{} [{}, {}]", signed(mean), signed(low), signed(high)),
    }
}

/// Four digits after the point, fewer for large numbers.
fn signed(x: f64) -> String {
    match x.abs() {
        size if size >= 1000.0 => format!("{x:.0}"),
        size if size >= 10.0 => format!("{x:.2}"),
        _ => format!("{x:+.4}"),
    }
}

fn brief(list: &[String]) -> String {
    match list {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}; {second}; {third} and {} more", rest.len())
        }
        all => all.join("; "),
    }
}

/// RESULTS.md.
pub struct Results<'a> {
    /// Scale.
    pub scale: Scale,
    /// The commands that made it.
    pub command: String,
    /// The claims.
    pub claims: &'a [Judged],
    /// The experiments.
    pub experiments: &'a [(Summary, Vec<&'static str>)],
    /// The pilots.
    pub pilot: &'a Pilot,
    /// The runs.
    pub runs: &'a Runs,
}

impl Results<'_> {
    /// As Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = String::from("# Results\n\nWritten by `tiebreak reproduce`; not edited by hand.\n\n");
        let _ = writeln!(text, "```sh\n{}\n```\n", self.command);
        text += &self.machine();
        let _ = writeln!(
            text,
            "\n## Claims\n\nRules and margins: [published.toml](published.toml). Intervals are 95 % over seeds.\n"
        );
        text += &markdown(HEADER.map(String::from), self.claims.iter().map(row));
        for claim in self.claims {
            let _ = writeln!(text, "\n### {}\n\n{} ({})\n", claim.id, claim.text, claim.source);
            let _ = writeln!(
                text,
                "Decided by: {}. Published: {}. **{}**\n",
                claim.primary,
                claim.published,
                claim.verdict.words()
            );
            text += &measures(&claim.measures);
            if !claim.missing.is_empty() {
                let _ = writeln!(text, "\nMissing: {}", brief(&claim.missing));
            }
        }
        text += "\n## Experiments\n";
        for (summary, figures) in self.experiments {
            let _ = writeln!(text, "\n### {}\n", summary.experiment);
            for figure in figures {
                let _ = writeln!(text, "![{figure}]({}/{figure}.png)\n", summary.experiment);
            }
            let header = ["arm", "n", "eval/loss [95 %]", "parameters", "learning rate", "missing"].map(String::from);
            text += &markdown(
                header,
                summary.arms.iter().map(|arm| {
                    let loss = Measure::new(Role::Also, "", "", arm.eval_loss.clone());
                    [
                        arm.arm.clone(),
                        arm.eval_loss.n.to_string(),
                        interval(&loss),
                        arm.parameters.map_or("-".into(), |n| n.to_string()),
                        arm.lr.map_or("-".into(), |lr| lr.to_string()),
                        brief(&arm.missing),
                    ]
                }),
            );
            if !summary.measures.is_empty() {
                text += "\n";
                text += &measures(&summary.measures);
            }
        }
        text + &self.pilots()
    }

    fn machine(&self) -> String {
        let mut text = format!("Scale: {}. ", self.scale.name());
        let Some(run) = self.runs.any() else { return text + "No run is complete.\n" };
        let env: serde_json::Value =
            std::fs::read(run.kept.folder.env()).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        let word = |key: &str| env[key].as_str().unwrap_or("unknown").to_owned();
        let checkout = checkout().map(|name| format!(" (checkout {name})")).unwrap_or_default();
        let config = &run.kept.config;
        let _ = writeln!(
            text,
            "tiebreak {}{checkout}, Burn {}, {} on {} ({}, {}). Corpus {}: {} training tokens of {} ids; {} steps of {} tokens.",
            word("tiebreak"),
            word("burn"),
            word("device"),
            word("cpu"),
            word("os"),
            word("arch"),
            run.kept.data.corpus,
            run.kept.data.train.tokens,
            run.kept.data.vocabulary,
            config.train.steps,
            config.train.batch_size * config.data.context_length,
        );
        if let Some(reason) = self.runs.fallback().and_then(|data| data.fallback_reason.as_ref()) {
            let _ = writeln!(text, "\n**The corpus is a fallback, so nothing is judged:** {reason}");
        }
        text
    }

    fn pilots(&self) -> String {
        let pilot = self.pilot;
        let mut text = format!("\n## Pilots (seed {})\n\n", pilot.seed);
        let header = ["arm", "learning rate", "eval/loss by rate", "note"].map(String::from);
        text += &markdown(
            header,
            pilot.rates.iter().map(|(arm, rate)| {
                let losses: Vec<String> = rate.losses.iter().map(|(lr, loss)| format!("{lr}: {loss:.4}")).collect();
                let note = if rate.at_the_edge { "at the edge of the grid" } else { "" };
                [arm.clone(), rate.lr.to_string(), losses.join(", "), note.into()]
            }),
        );
        if let Some(m) = &pilot.movement {
            let _ = writeln!(
                text,
                "\nmovement-matched: table_lr_scale {} gives a cosine to the initial table of {:.4}; x5 has {:.4} ({} trials).",
                m.table_lr_scale,
                m.reached,
                m.target,
                m.trials.len()
            );
        }
        if let Some(eps) = &pilot.eps {
            let _ = writeln!(
                text,
                "\nThe paper's regime: eps {:e}, the RMS of G_out's elements late in a tied pilot.",
                eps.eps
            );
        }
        text
    }
}

/// The commit of the working directory, where it is a checkout.
fn checkout() -> Option<String> {
    let git = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    let name = String::from_utf8(git.stdout).ok().filter(|_| git.status.success())?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

fn measures(measures: &[Measure]) -> String {
    let header = ["measure", "window", "", "mean [95 %]", "n", "null", "null_freq", "ceiling"].map(String::from);
    let optional = |value: Option<f64>| value.map_or(String::new(), signed);
    markdown(
        header,
        measures.iter().map(|m| {
            let role = match m.role {
                Role::Primary => "primary",
                Role::Corrected => "corrected",
                Role::Also => "",
            };
            [
                m.name.clone(),
                m.window.clone(),
                role.into(),
                interval(m),
                m.n.to_string(),
                optional(m.null),
                optional(m.null_freq),
                optional(m.ceiling),
            ]
        }),
    )
}

fn markdown<const N: usize>(header: [String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: &[String; N]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&header) + &format!("|{}\n", "---|".repeat(N));
    rows.for_each(|row| text += &line(&row));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists_are_short() {
        assert_eq!([0.01234567, -12.3456, 123456.7].map(signed), ["+0.0123", "-12.35", "123457"]);
        let list: Vec<String> = ["a", "b", "c", "d", "e"].map(String::from).to_vec();
        assert_eq!((brief(&list), brief(&list[..2])), ("a; b; c and 2 more".into(), "a; b".into()));
        let rows = [["x|y".to_owned(), "1".to_owned()]].into_iter();
        assert_eq!(markdown(["a".into(), "b".into()], rows), "| a | b |\n|---|---|\n| x\\|y | 1 |\n");
    }
}
