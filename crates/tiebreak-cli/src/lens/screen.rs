//! A lens as text: layers by tokens, wrapped into blocks that fit the terminal.

use super::show::{Cell, Kind, Sheet, View};
use crate::terminal::{Side, cell, columns, ramp, styled};
use anstyle::Style;

/// Blanks between columns.
const GAP: usize = 2;

/// Columns that a token gets at most where there is room for others.
const WIDEST_TOKEN: usize = 14;

/// Columns of a probability.
const PROBABILITY: usize = 3;

/// Between two runs side by side.
const BETWEEN: &str = " | ";

/// Two runs stand side by side where each has at least so many columns, else one above the other.
const NARROWEST_SIDE: usize = 44;

/// What there is to write on.
#[derive(Clone, Copy)]
pub struct Size {
    /// Columns.
    pub width: usize,
    /// Whether colours are used.
    pub colours: bool,
}

/// The table, its head and its legend.
pub fn screen(sheets: &[Sheet], view: View, size: Size) -> String {
    let scale = Scale::new(sheets, view);
    let sides = if sheets.len() == 2 { (size.width - BETWEEN.len()) / 2 } else { size.width };
    let beside = sheets.len() == 2 && sides >= NARROWEST_SIDE;
    let width = if beside { sides } else { size.width };
    let label = sheets.iter().flat_map(|s| &s.layers).map(|l| columns(l)).max().unwrap_or(0).max("token".len());
    let widths = column_widths(sheets, view, width - label - GAP);
    let mut text = String::new();
    let mut from = 0;
    while from < widths.len() {
        let mut used = label;
        let fits = |w: &&usize| {
            used += GAP + **w;
            used <= width
        };
        let to = from + widths[from..].iter().take_while(fits).count().max(1);
        let block = Block { view, scale: &scale, label, from, widths: &widths[from..to], colours: size.colours };
        let drawn: Vec<Vec<Line>> = sheets.iter().map(|sheet| block.draw(sheet, width)).collect();
        match &drawn[..] {
            [a, b] if beside => {
                for row in 0..a.len().max(b.len()) {
                    let line = |lines: &[Line]| lines.get(row).cloned().unwrap_or_default();
                    let (a, b) = (line(a), line(b));
                    text += &format!("{}{}{BETWEEN}{}", a.text, " ".repeat(width.saturating_sub(a.width)), b.text);
                    text = text.trim_end_matches(' ').to_owned() + "\n";
                }
            }
            _ => {
                for line in drawn.iter().flatten() {
                    text += line.text.trim_end_matches(' ');
                    text.push('\n');
                }
            }
        }
        text.push('\n');
        from = to;
    }
    text + &wrap(&legend(&sheets[0], view, &scale), size.width)
}

/// The way from dark to bright, one for all runs.
struct Scale {
    view: View,
    /// The largest value that is told apart: bits, or ln of a rank.
    most: f64,
}

impl Scale {
    fn new(sheets: &[Sheet], view: View) -> Self {
        let all = || sheets.iter().flat_map(|s| s.cells.iter().flatten());
        let vocabulary = sheets.iter().map(|s| s.vocabulary).max().unwrap_or(1) as f64;
        let most = match view {
            View::Top | View::Input => 1.0,
            View::Rank => vocabulary.ln(),
            View::Entropy => vocabulary.log2(),
            View::Kl => all().map(|c| c.kl_bits).fold(0.0, f64::max),
        };
        Self { view, most }
    }

    /// 1, bright: sure, or what the whole model says. 0, dark: the other end.
    fn share(&self, cell: &Cell) -> f64 {
        let far = |value: f64| if self.most > 0.0 { 1.0 - value / self.most } else { 1.0 };
        match self.view {
            View::Top => cell.p,
            View::Input => cell.p_input,
            View::Rank => far((cell.rank as f64).ln()),
            View::Entropy => far(cell.entropy_bits),
            View::Kl => far(cell.kl_bits),
        }
    }
}

/// A line and the columns it takes.
#[derive(Clone, Default)]
struct Line {
    text: String,
    width: usize,
}

/// Some of the tokens.
struct Block<'a> {
    view: View,
    scale: &'a Scale,
    label: usize,
    from: usize,
    widths: &'a [usize],
    colours: bool,
}

impl Block<'_> {
    fn draw(&self, sheet: &Sheet, width: usize) -> Vec<Line> {
        let title = format!("{} ({}), step {}", sheet.run, word(&sheet.head_mode), sheet.step);
        let title = cell(&title, width.min(columns(&title)), Side::Left);
        let tokens = self.from..self.from + self.widths.len();
        let plain = |texts: Vec<String>| texts.into_iter().map(|text| (text, Style::new())).collect::<Vec<_>>();
        let mut lines =
            vec![Line { width: columns(&title), text: styled(&title, Style::new().bold(), self.colours).into() }];
        lines.push(self.row("", plain(tokens.clone().map(|i| (i + 1).to_string()).collect()), Style::new().dimmed()));
        lines.push(self.row("token", plain(sheet.shown[tokens.clone()].to_vec()), Style::new().bold()));
        for (layer, cells) in sheet.layers.iter().zip(&sheet.cells) {
            let texts = cells[tokens.clone()].iter().map(|c| (self.text(c), ramp(self.scale.share(c)))).collect();
            lines.push(self.row(layer, texts, Style::new()));
        }
        let next = tokens.map(|i| sheet.shown.get(i + 1).cloned().unwrap_or_default()).collect();
        lines.push(self.row("next", plain(next), Style::new().dimmed()));
        lines
    }

    /// A row of texts, each in its column; without a style of its own a text has the row's.
    fn row(&self, label: &str, texts: Vec<(String, Style)>, style: Style) -> Line {
        let mut line = styled(&cell(label, self.label, Side::Left), Style::new().bold(), self.colours).into_owned();
        let mut width = self.label;
        for ((text, own), w) in texts.into_iter().zip(self.widths) {
            let side = if self.view == View::Top { Side::Left } else { Side::Right };
            // What is wider than its column here is a token: cells of numbers were measured.
            let text = match text.split_once(SPLIT) {
                Some((token, p)) => cell(token, w - PROBABILITY - 1, Side::Left) + " " + p,
                None => cell(&text, *w, side),
            };
            line += &" ".repeat(GAP);
            line += &styled(&text, if own == Style::new() { style } else { own }, self.colours);
            width += GAP + w;
        }
        Line { text: line, width }
    }

    fn text(&self, cell: &Cell) -> String {
        text(cell, self.view)
    }
}

/// Between a token and its probability; no visible token holds it.
const SPLIT: char = '\u{0}';

fn text(cell: &Cell, view: View) -> String {
    match view {
        View::Top => format!("{}{SPLIT}{}", cell.shown, probability(cell.p)),
        View::Input => probability(cell.p_input),
        View::Rank => cell.rank.to_string(),
        View::Kl => format!("{:.2}", cell.kl_bits),
        View::Entropy => format!("{:.2}", cell.entropy_bits),
    }
}

/// Three columns: `.42`, `1.0`.
fn probability(p: f64) -> String {
    match p {
        p if p.is_nan() => "NaN".into(),
        p if p >= 0.995 => "1.0".into(),
        p => format!("{p:.2}")[1..].to_owned(),
    }
}

/// Columns of each token, at most `room`, the same for every run.
fn column_widths(sheets: &[Sheet], view: View, room: usize) -> Vec<usize> {
    let of_token = |i: usize| {
        let header = columns(&sheets[0].shown[i]).max(sheets[0].shown.get(i + 1).map_or(0, |t| columns(t)));
        let cells = sheets.iter().flat_map(|s| s.cells.iter().map(move |row| &row[i]));
        let widest = |f: &dyn Fn(&Cell) -> usize| cells.clone().map(f).max().unwrap_or(0);
        let index = (i + 1).to_string().len();
        let width = match view {
            View::Top => {
                widest(&|c| columns(&c.shown).min(WIDEST_TOKEN)).max(header.min(WIDEST_TOKEN).saturating_sub(4)) + 4
            }
            _ => widest(&|c| columns(&text(c, view))).max(header.min(WIDEST_TOKEN)),
        };
        width.max(index).min(room)
    };
    (0..sheets[0].shown.len()).map(of_token).collect()
}

fn legend(sheet: &Sheet, view: View, scale: &Scale) -> String {
    let lens = match sheet.kind {
        Kind::Logit => {
            "Logit lens: each layer's state through the final norm and the head, which was not trained to read early layers."
        }
        Kind::Tuned => "Tuned lens: each layer's state through its translator, the final norm and the head.",
    };
    let most = scale.most;
    let cells = match view {
        View::Top => "Cells: most probable next token and its probability. Bright: probability 1.".into(),
        View::Input => {
            "Cells: probability of the token that is read, which is what the embedding holds. Bright: 1, still there."
                .into()
        }
        View::Rank => format!(
            "Cells: rank of the whole model's prediction in the layer's (1: they agree). Bright: 1, dark: {} (logarithmic).",
            sheet.vocabulary
        ),
        View::Kl => format!("Cells: KL(final || layer) in bits. Bright: 0, dark: {most:.2}."),
        View::Entropy => {
            format!("Cells: entropy in bits. Bright: 0, dark: {most:.2}, all {} tokens alike.", sheet.vocabulary)
        }
    };
    format!("{lens} {cells} The last layer is what the model predicts; \"next\" is the token that follows.")
}

fn word(mode: &impl serde::Serialize) -> String {
    serde_json::to_value(mode).ok().and_then(|v| Some(v.as_str()?.to_owned())).unwrap_or_default()
}

/// Lines of at most `width` columns, broken at blanks.
fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let w = columns(word);
        if used > 0 && used + 1 + w > width {
            wrapped.push('\n');
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped += word;
        used += w;
    }
    wrapped
}
