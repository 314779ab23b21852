//! A comparison as text.

use comfy_table::{CellAlignment, Table, presets};

use crate::statistics::Paired;
use crate::{ArmSummary, Comparison, Versus};

impl Comparison {
    /// The table and its notes, for a terminal or a file: plain text, no colours.
    pub fn to_text(&self) -> String {
        let metric = &self.metric;
        let unfinished = self.arms.iter().any(|arm| arm.unfinished > 0);
        let mut header = vec!["arm".into(), "n".into(), "failed".into()];
        if unfinished {
            header.push("unfinished".into());
        }
        header.push(format!("{metric} (mean ± sd)"));
        header.push(format!("vs {} [95 %]", self.baseline));
        let tested = self.arms.iter().filter_map(|arm| arm.vs_baseline.as_ref()?.p_holm).count();
        if tested > 0 {
            header.push("p (Holm)".into());
        }
        if metric != "eval/loss" {
            header.push("eval/loss difference [nats, 95 %]".into());
        }
        header.extend(["parameters", "tokens/s", "corpus"].map(String::from));
        let mut table = plain_table(header);
        for arm in &self.arms {
            let mut row = vec![arm.arm.clone(), arm.n.to_string(), arm.failed.to_string()];
            if unfinished {
                row.push(arm.unfinished.to_string());
            }
            row.push(spread(arm));
            let versus = arm.vs_baseline.as_ref();
            row.push(versus.map_or("-".into(), |v| difference(v.mean_difference, v.ci95)));
            if tested > 0 {
                row.push(versus.and_then(|v| v.p_holm).map_or("-".into(), probability));
            }
            if metric != "eval/loss" {
                row.push(versus.map_or(
                    "-".into(),
                    |Versus { eval_loss: Paired { mean_difference, ci95, .. }, .. }| {
                        difference(*mean_difference, *ci95)
                    },
                ));
            }
            row.push(arm.parameters.map_or("-".into(), grouped));
            row.push(arm.tokens_per_second.map_or("-".into(), |x| grouped(x.round() as u64)));
            row.push(arm.corpus.clone().unwrap_or_else(|| "-".into()));
            table.add_row(row);
        }
        let mut text = format!("{table}\n");
        if tested > 1 {
            text += &format!("p (Holm): paired t test, adjusted for the {tested} arms that have one.\n");
        }
        if self.arms.iter().any(|arm| {
            arm.vs_baseline.as_ref().is_some_and(|v| (1..crate::statistics::FEWEST_PAIRS).contains(&v.pairs))
        }) {
            text += "n too small: an interval needs at least 3 seeds that an arm shares with the baseline.\n";
        }
        for warning in self.note.iter().chain(&self.warnings) {
            text += &format!("WARNING: {warning}\n");
        }
        text
    }
}

/// A table in plain characters, numbers on the right.
pub(crate) fn plain_table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(&header);
    for (index, name) in header.iter().enumerate() {
        let text = matches!(name.as_str(), "arm" | "cell" | "corpus" | "folder" | "state" | "reason" | "sets");
        if let (false, Some(column)) = (text, table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn spread(arm: &ArmSummary) -> String {
    match (arm.mean, arm.sd) {
        (None, _) => "-".into(),
        (Some(mean), None) => number(mean, mean),
        (Some(mean), Some(sd)) => format!("{} ± {}", number(mean, mean), number(sd, mean)),
    }
}

fn difference(mean: Option<f64>, ci95: Option<[f64; 2]>) -> String {
    match (mean, ci95) {
        (None, _) => "no seed in common".into(),
        (Some(mean), None) => format!("{} (n too small)", signed(mean, mean)),
        (Some(mean), Some([low, high])) => {
            let scale = mean.abs().max(high - low);
            format!("{} [{}, {}]", signed(mean, scale), signed(low, scale), signed(high, scale))
        }
    }
}

fn probability(p: f64) -> String {
    if p < 1e-4 { "< 0.0001".into() } else { format!("{p:.4}") }
}

/// A number with about five significant digits of `scale`.
fn number(x: f64, scale: f64) -> String {
    let size = scale.abs();
    if size != 0.0 && !(1e-3..1e7).contains(&size) {
        return format!("{x:.3e}");
    }
    let digits = [1000.0, 100.0, 10.0].iter().filter(|limit| size < **limit).count();
    format!("{x:.*}", digits + 1)
}

fn signed(x: f64, scale: f64) -> String {
    let text = number(x, scale);
    if text.starts_with('-') { text } else { format!("+{text}") }
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_meaning() {
        assert_eq!(number(1234.567, 1234.567), "1234.6");
        assert_eq!(number(56.78912, 56.8), "56.789");
        assert_eq!(number(0.01, 2.0), "0.0100");
        assert_eq!(number(1.5e-5, 1.5e-5), "1.500e-5");
        assert_eq!(number(0.0, 0.0), "0.0000");
        assert_eq!((grouped(999), grouped(1000), grouped(1234567)), ("999".into(), "1,000".into(), "1,234,567".into()));
        assert_eq!(difference(Some(-1.5), None), "-1.5000 (n too small)");
        assert_eq!(difference(Some(0.5), Some([-0.25, 1.25])), "+0.5000 [-0.2500, +1.2500]");
        assert_eq!(difference(None, None), "no seed in common");
        assert_eq!((probability(0.04321), probability(0.0)), ("0.0432".into(), "< 0.0001".into()));
    }
}
