//! What cells of a lens hold, in words, numbers and colours; the same for the terminal and for figures.

use clap::ValueEnum;

use super::show::{Cell, Kind, Sheet};

/// What cells hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// The most probable next token and its probability.
    Top,
    /// Rank of the final prediction in the layer's distribution: 1 where they agree.
    Rank,
    /// KL(final || layer) in bits: what is lost by predicting with the layer instead of the whole model.
    Kl,
    /// Entropy of the layer's distribution in bits.
    Entropy,
    /// Probability of the token that is read: how much of it is still there.
    Input,
}

/// The way from dark to bright, one for all runs.
pub struct Scale {
    view: View,
    vocabulary: usize,
    /// The value of the dark end: bits, or ln of a rank.
    most: f64,
}

impl Scale {
    /// The scale of some runs.
    pub fn new(sheets: &[Sheet], view: View) -> Self {
        let vocabulary = sheets.iter().map(|s| s.vocabulary).max().unwrap_or(1);
        let most = match view {
            View::Top | View::Input => 1.0,
            View::Rank => (vocabulary as f64).ln(),
            View::Entropy => (vocabulary as f64).log2(),
            View::Kl => sheets.iter().flat_map(|s| s.cells.iter().flatten()).map(|c| c.kl_bits).fold(0.0, f64::max),
        };
        Self { view, vocabulary, most }
    }

    /// 1, bright: sure, or what the whole model says. 0, dark: the other end.
    pub fn share(&self, cell: &Cell) -> f64 {
        let far = |value: f64| if self.most > 0.0 { 1.0 - value / self.most } else { 1.0 };
        match self.view {
            View::Top => cell.p,
            View::Input => cell.p_input,
            View::Rank => far((cell.rank as f64).ln()),
            View::Entropy => far(cell.entropy_bits),
            View::Kl => far(cell.kl_bits),
        }
    }

    /// What the dark and the bright end stand for.
    pub fn ends(&self) -> [String; 2] {
        match self.view {
            View::Top | View::Input => ["probability 0".into(), "1".into()],
            View::Rank => [format!("rank {}", self.vocabulary), "1 (logarithmic)".into()],
            View::Kl | View::Entropy => [format!("{:.2} bits", self.most), "0".into()],
        }
    }
}

impl View {
    /// A cell's number.
    pub fn number(self, cell: &Cell) -> String {
        match self {
            View::Top => probability(cell.p),
            View::Input => probability(cell.p_input),
            View::Rank => cell.rank.to_string(),
            View::Kl => format!("{:.2}", cell.kl_bits),
            View::Entropy => format!("{:.2}", cell.entropy_bits),
        }
    }

    /// What the number is.
    pub fn describe(self) -> &'static str {
        match self {
            View::Top => "most probable next token and its probability",
            View::Rank => "rank of the model's prediction in the layer's distribution (1: they agree)",
            View::Kl => "KL(final || layer) in bits, what is lost by predicting with the layer",
            View::Entropy => "entropy of the layer's distribution in bits",
            View::Input => "probability of the token that is read: how much of it is still there",
        }
    }
}

impl Kind {
    /// What is read, and how far it can be trusted.
    pub fn describe(self) -> &'static str {
        match self {
            Kind::Logit => {
                "Logit lens: each layer's state through the final norm and the head, which was not trained to read early layers. \
                 The last layer is what the model predicts."
            }
            Kind::Tuned => {
                "Tuned lens: each layer's state through its translator, the final norm and the head. The last layer is what the \
                 model predicts."
            }
            Kind::TunedPaper => {
                "Tuned lens, the paper's recipe: each layer's state through a translator, the final norm and the head, the last \
                 layer's too, which so is not quite what the model predicts."
            }
        }
    }
}

/// What is read and how it was trained, for all runs that are shown.
pub fn legend(sheets: &[Sheet]) -> String {
    let trained = sheets.iter().filter_map(|sheet| {
        let whose = if sheets.len() > 1 { format!("{}: ", sheet.title()) } else { String::new() };
        Some(format!(" {whose}trained on {}.", sheet.trained?.describe()))
    });
    sheets[0].kind.describe().to_owned() + &trained.collect::<String>()
}

/// Columns of a probability.
pub const PROBABILITY: usize = 3;

/// `.42`, `1.0`.
fn probability(p: f64) -> String {
    match p {
        p if p.is_nan() => "NaN".into(),
        p if p >= 0.995 => "1.0".into(),
        p => format!("{p:.2}")[1..].to_owned(),
    }
}
