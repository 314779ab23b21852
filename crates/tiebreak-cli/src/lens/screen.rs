//! A lens as text: layers by tokens, wrapped into blocks that fit the terminal.

use anstyle::Style;

use super::show::{Cell, Sheet};
use super::view::{PROBABILITY, Scale, View, legend};
use crate::terminal::{Side, cell, columns, is_disputed, ramp, styled, wrap};

/// Blanks between columns.
const GAP: usize = 2;

/// Columns that a token gets at most where there is room for others.
const WIDEST_TOKEN: usize = 14;

/// Between two runs side by side.
const BETWEEN: &str = " | ";

/// Two runs stand side by side where each has at least so many columns, else one above the other.
const NARROWEST_SIDE: usize = 44;

/// What there is to write on.
#[derive(Clone, Copy)]
pub struct Paper {
    /// Columns.
    pub width: usize,
    /// Whether colours are used.
    pub colours: bool,
    /// Whether it is a terminal that moves its cursor when told.
    pub cursor: bool,
}

/// Titles, tables and legend.
pub fn screen(sheets: &[Sheet], view: View, paper: Paper) -> String {
    let side = (paper.width - BETWEEN.len()) / 2;
    let beside = sheets.len() == 2 && side >= NARROWEST_SIDE;
    let label = sheets.iter().flat_map(|s| &s.layers).map(|l| columns(l)).max().unwrap_or(0).max("token".len());
    let room = if beside { side } else { paper.width };
    let widths = column_widths(sheets, view, room - label - GAP);
    // A short sentence needs no whole half.
    let titles = sheets.iter().map(|s| columns(&s.title())).max().unwrap_or(0);
    let needed = titles.max(label + widths.iter().map(|w| GAP + w).sum::<usize>());
    let width = if beside { side.min(needed) } else { paper.width };
    let scale = Scale::new(sheets, view);
    let mut text = String::new();
    let mut from = 0;
    while from < widths.len() {
        let mut used = label;
        let fits = |w: &&usize| {
            used += GAP + **w;
            used <= width
        };
        let to = from + widths[from..].iter().take_while(fits).count().max(1);
        let draw = |(index, sheet): (usize, &Sheet)| {
            let left = if beside { index * (width + BETWEEN.len()) } else { 0 };
            Block { view, scale: &scale, paper, label, left, from, widths: &widths[from..to] }.draw(sheet, width)
        };
        let drawn: Vec<Vec<Line>> = sheets.iter().enumerate().map(draw).collect();
        match &drawn[..] {
            [a, b] if beside => {
                let row = |row: usize| {
                    let line = |lines: &[Line]| lines.get(row).cloned().unwrap_or_default();
                    let (a, b) = (line(a), line(b));
                    format!("{}{}{BETWEEN}{}", a.text, " ".repeat(width - a.width.min(width)), b.text)
                };
                (0..a.len().max(b.len())).for_each(|i| push_line(&mut text, &row(i)));
            }
            _ => {
                for (index, lines) in drawn.iter().enumerate() {
                    text += if index > 0 { "\n" } else { "" };
                    lines.iter().for_each(|line| push_line(&mut text, &line.text));
                }
            }
        }
        text.push('\n');
        from = to;
    }
    let [dark, bright] = scale.ends();
    let legend = format!(
        "{} Cells: {}. Dark: {dark}, bright: {bright}. The row \"next\" holds the token that follows.",
        legend(sheets),
        view.describe(),
    );
    text + &wrap(&legend, paper.width)
}

fn push_line(text: &mut String, line: &str) {
    *text += line.trim_end_matches(' ');
    text.push('\n');
}

/// A line and the columns it takes.
#[derive(Clone, Default)]
struct Line {
    text: String,
    width: usize,
}

/// A text of a column, and a number that stands right of it.
struct Entry {
    text: String,
    number: Option<String>,
    style: Style,
}

/// Some of the tokens.
struct Block<'a> {
    view: View,
    scale: &'a Scale,
    paper: Paper,
    /// Columns of the labels.
    label: usize,
    /// Column it begins in, from 0.
    left: usize,
    from: usize,
    widths: &'a [usize],
}

impl Block<'_> {
    fn draw(&self, sheet: &Sheet, width: usize) -> Vec<Line> {
        let tokens = self.from..self.from + self.widths.len();
        let title = sheet.title();
        let title = cell(&title, width.min(columns(&title)), Side::Left);
        let line = |text: &str, style: Style| Line {
            width: columns(text),
            text: styled(text, style, self.paper.colours).into(),
        };
        let plain = |label: &str, style: Style, texts: &mut dyn Iterator<Item = String>| {
            let entries = texts.map(|text| Entry { text, number: None, style });
            self.row(label, entries.collect())
        };
        let mut lines = vec![line(&title, Style::new().bold())];
        lines.push(plain("", Style::new().dimmed(), &mut tokens.clone().map(|i| (i + 1).to_string())));
        lines.push(plain("token", Style::new().bold(), &mut tokens.clone().map(|i| sheet.shown[i].clone())));
        for (layer, cells) in sheet.layers.iter().zip(&sheet.cells) {
            lines.push(self.row(layer, cells[tokens.clone()].iter().map(|c| self.entry(c)).collect()));
        }
        let mut next = tokens.map(|i| sheet.shown.get(i + 1).cloned().unwrap_or_default());
        lines.push(plain("next", Style::new().dimmed(), &mut next));
        lines
    }

    fn entry(&self, cell: &Cell) -> Entry {
        let (number, style) = (self.view.number(cell), ramp(self.scale.share(cell)));
        match self.view {
            View::Top => Entry { text: cell.shown.clone(), number: Some(number), style },
            _ => Entry { text: number, number: None, style },
        }
    }

    fn row(&self, label: &str, entries: Vec<Entry>) -> Line {
        let colours = self.paper.colours;
        let mut text = styled(&cell(label, self.label, Side::Left), Style::new().bold(), colours).into_owned();
        let mut width = self.label;
        let side = if self.view == View::Top { Side::Left } else { Side::Right };
        for (entry, w) in entries.into_iter().zip(self.widths) {
            text += &" ".repeat(GAP);
            width += GAP + w;
            let of_number = entry.number.as_ref().map_or(0, |_| 1 + PROBABILITY);
            let mut shown = cell(&entry.text, w - of_number, side);
            // Whatever the terminal took for the text, what follows it stands in its column.
            let disputed = self.paper.cursor && is_disputed(&entry.text);
            let follows =
                |column: usize| if disputed { format!("\x1b[{}G", self.left + column + 1) } else { String::new() };
            if let Some(number) = entry.number {
                shown += &format!("{} {number}", follows(width - of_number));
            }
            text += &styled(&shown, entry.style, colours);
            text += &follows(width);
        }
        Line { text, width }
    }
}

/// Columns of each token, at most `room`, the same for every run.
fn column_widths(sheets: &[Sheet], view: View, room: usize) -> Vec<usize> {
    let token = |text: &String| columns(text).min(WIDEST_TOKEN);
    let of_token = |i: usize| {
        let heads = [i, i + 1].into_iter().filter_map(|i| sheets[0].shown.get(i)).map(token);
        let cells = sheets.iter().flat_map(|s| s.cells.iter().map(move |row| &row[i]));
        let cells = cells.map(|cell| match view {
            View::Top => token(&cell.shown) + 1 + PROBABILITY,
            _ => view.number(cell).len(),
        });
        heads.chain(cells).chain([(i + 1).to_string().len()]).max().unwrap_or(1).min(room)
    };
    (0..sheets[0].shown.len()).map(of_token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lens::show::Kind;
    use tiebreak_model::interface::ModeKind;
    use unicode_width::UnicodeWidthStr;

    fn sheet(tokens: &[&str], layers: usize) -> Sheet {
        let cell = |layer: usize, i: usize| Cell {
            top: tokens[i].into(),
            top_id: i,
            shown: tokens[(i + layer) % tokens.len()].into(),
            p: 0.25,
            rank: 1 + i * layer,
            kl_bits: (layers - layer) as f64,
            entropy_bits: 1.5,
            p_input: 0.5,
        };
        Sheet {
            kind: Kind::Logit,
            run: "tied-s0-00000000".into(),
            step: 7,
            head_mode: ModeKind::Tied,
            vocabulary: 256,
            tokens: tokens.iter().map(|t| t.to_string()).collect(),
            ids: (0..tokens.len() as u32).collect(),
            shown: tokens.iter().map(|t| t.to_string()).collect(),
            trained: None,
            layers: (0..=layers).map(|k| if k == 0 { "embed".into() } else { k.to_string() }).collect(),
            cells: (0..=layers).map(|layer| (0..tokens.len()).map(|i| cell(layer, i)).collect()).collect(),
        }
    }

    const TOKENS: [&str; 9] =
        ["The", "␣people", "한국어", "🎉", "<F09F>", "السلام", "e\u{301}te\u{301}", "incomprehensibilities", "."];
    const VIEWS: [View; 5] = [View::Top, View::Rank, View::Kl, View::Entropy, View::Input];

    #[test]
    fn columns_line_up_and_lines_fit_at_any_width() {
        let sheet = sheet(&TOKENS, 3);
        for view in VIEWS {
            for width in [20, 33, 60, 100, 200] {
                let paper = Paper { width, colours: false, cursor: false };
                let text = screen(std::slice::from_ref(&sheet), view, paper);
                let (tables, _) = text.rsplit_once("\n\n").unwrap();
                let longest_word = 12;
                assert!(text.lines().all(|line| line.width() <= width.max(longest_word)), "{view:?} {width}\n{text}");
                for block in tables.split("\n\n") {
                    let rows: Vec<&str> = block.lines().collect();
                    assert_eq!(rows.len(), 8, "title, positions, tokens, embed, 1, 2, 3 and next: {block}");
                }
                // Every position has its column, and in it its token.
                for i in 1..=TOKENS.len() {
                    assert!(
                        tables.lines().any(|l| l.split_whitespace().any(|w| w == i.to_string())),
                        "{view:?} {width}"
                    );
                }
            }
        }
    }

    #[test]
    fn two_runs_stand_side_by_side_where_there_is_room() {
        let sheets = [sheet(&TOKENS, 2), sheet(&TOKENS, 4)];
        let paper = |width| Paper { width, colours: false, cursor: false };
        let wide = screen(&sheets, View::Kl, paper(120));
        let first = wide.lines().next().unwrap();
        assert_eq!(first.matches("tied-s0-00000000 (tied), step 7").count(), 2, "{first}");
        // The shorter model ends earlier; the bar between them is straight, after the first half.
        let bars: Vec<usize> = wide.lines().take(8).map(|l| l[..l.find(" | ").unwrap()].width()).collect();
        assert_eq!(bars, [58; 8]);
        // And where a short sentence ends, if that is earlier.
        let wider = screen(&sheets, View::Kl, paper(400));
        let title = "tied-s0-00000000 (tied), step 7".len();
        assert!((title..120).contains(&wider.lines().nth(1).unwrap().find(" | ").unwrap()), "{wider}");
        let narrow = screen(&sheets, View::Kl, paper(60));
        assert!(!narrow.contains(" | ") && narrow.contains("tied-s0-00000000 (tied), step 7"));
        // One scale: the deeper model's largest divergence is the dark end for both.
        assert!(narrow.replace('\n', " ").contains("Dark: 4.00 bits, bright: 0"));
    }

    #[test]
    fn colours_and_cursor_moves_come_only_when_asked_for() {
        let sheet = [sheet(&["لا", "👩\u{200d}💻", "x"], 1)];
        let plain = screen(&sheet, View::Top, Paper { width: 80, colours: false, cursor: false });
        assert!(!plain.contains('\u{1b}'));
        let coloured = screen(&sheet, View::Top, Paper { width: 80, colours: true, cursor: false });
        assert!(coloured.contains("\u{1b}[48;5;"));
        let moved = screen(&sheet, View::Top, Paper { width: 80, colours: false, cursor: true });
        // "embed" and two blanks; a token, its number, what follows: the number and the next column have their places.
        let embed = moved.lines().find(|l| l.starts_with("embed")).unwrap();
        let moves: Vec<usize> =
            embed.split("\u{1b}[").skip(1).map(|m| m.split('G').next().unwrap().parse().unwrap()).collect();
        let token = columns("لا").max(columns("👩\u{200d}💻"));
        let first = 7 + token + 1;
        assert_eq!(moves, [first, first + 4, first + 6 + token, first + 10 + token], "{embed:?}");
    }

    #[test]
    fn a_number_stands_beside_every_token() {
        let text = screen(&[sheet(&["a", "b"], 1)], View::Top, Paper { width: 40, colours: false, cursor: false });
        assert!(text.contains("embed  a .25  b .25\n1      b .25  a .25\nnext   b"), "{text}");
    }
}
