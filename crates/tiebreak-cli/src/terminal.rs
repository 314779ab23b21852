//! What a terminal shows: its width, its colours, and texts of any script in cells of a fixed width.

use std::borrow::Cow;
use std::io::IsTerminal;

use anstyle::{Ansi256Color, AnsiColor, Style};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns where nothing says how many there are.
const WIDTH: usize = 100;

/// Fewer columns than this hold no table.
pub const NARROWEST: usize = 20;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ColourChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    Auto,
    /// Also into files and pipes.
    Always,
    /// Never.
    Never,
}

impl ColourChoice {
    /// Whether stdout gets colours.
    pub fn on(self) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            ColourChoice::Always => true,
            ColourChoice::Never => false,
            ColourChoice::Auto => {
                std::io::stdout().is_terminal()
                    && !set("NO_COLOR")
                    && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
            }
        }
    }
}

/// Whether stdout is a terminal that can be told a column.
pub fn moves_cursor() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Columns of the terminal behind stdout; elsewhere what COLUMNS says.
pub fn width() -> usize {
    let of_terminal = console::Term::stdout().size_checked().map(|(_, columns)| columns as usize);
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal.filter(|&columns| columns > 0).or_else(columns).unwrap_or(WIDTH).max(NARROWEST)
}

/// From dark to bright, each lighter than the one before; a number beside it says the same without colour.
const RAMP: [u8; 8] = [17, 18, 25, 31, 37, 79, 150, 229];

/// The style of `share` in 0..=1 of the way from dark to bright; what is no number has none.
pub fn ramp(share: f64) -> Style {
    if share.is_nan() {
        return Style::new();
    }
    let step = (share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64).round() as usize;
    let on_dark = step < RAMP.len() / 2;
    let text = if on_dark { AnsiColor::BrightWhite } else { AnsiColor::Black };
    Style::new().fg_color(Some(text.into())).bg_color(Some(Ansi256Color(RAMP[step]).into()))
}

/// `text` in a style, or as it is without colours.
pub fn styled(text: &str, style: Style, colours: bool) -> Cow<'_, str> {
    if colours { format!("{style}{text}{style:#}").into() } else { text.into() }
}

/// A token's bytes as they can be seen: a blank is an open box, control and format characters are named, a mark that
/// combines with nothing sits on a dotted circle, bytes that are no character are given in hexadecimal. No result is empty
/// unless `bytes` are.
pub fn visible(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        let mut alone = true;
        let mut characters = chunk.valid().chars().peekable();
        while let Some(c) = characters.next() {
            // Joins what stands on both sides of it, or picks the form of what stands before.
            let joins = !alone && (c == '\u{fe0f}' || (c == '\u{200d}' && characters.peek().is_some()));
            match c {
                ' ' => shown.push('\u{2423}'),
                '\n' => shown += "\\n",
                '\r' => shown += "\\r",
                '\t' => shown += "\\t",
                c if joins => shown.push(c),
                c if is_hidden(c) => shown += &format!("<U+{:04X}>", c as u32),
                c => {
                    if alone && c.width() == Some(0) {
                        shown.push('\u{25cc}');
                    }
                    shown.push(c);
                }
            }
            alone = c.is_whitespace() || (is_hidden(c) && !joins);
        }
        if !chunk.invalid().is_empty() {
            let hex: String = chunk.invalid().iter().map(|byte| format!("{byte:02X}")).collect();
            // Neighbours share their brackets.
            match shown.strip_suffix('>').filter(|_| chunk.valid().is_empty()) {
                Some(before) => shown = format!("{before}{hex}>"),
                None => shown += &format!("<{hex}>"),
            }
        }
    }
    shown
}

/// Generated text for a terminal: control characters, which would steer it, are shown as their pictures, and characters that
/// change the direction of what follows as U+FFFD.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let turns =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let steers = |c: char| turns(c) || c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return text.into();
    }
    let picture = |c: char| match c {
        c if !steers(c) => c,
        '\u{7f}' => '\u{2421}',
        c => char::from_u32(0x2400 + c as u32).filter(|_| (c as u32) < 0x20).unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    text.chars().map(picture).collect::<String>().into()
}

/// A whole number on the command line; one below zero would be taken for an option.
pub fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number from 0 on".into())
}

/// A path as a shell takes it for one word.
pub fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    match text.chars().all(|c| c.is_alphanumeric() || "/._-+=,:@%".contains(c)) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Characters that show nothing or change how others are shown.
fn is_hidden(c: char) -> bool {
    let format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    format || c.is_control() || (c.is_whitespace() && c != ' ')
}

/// Whether a terminal that orders text by direction would move this.
fn is_right_to_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}'
        | '\u{1e800}'..='\u{1efff}')
}

/// Columns that `text` takes. Terminals differ over sequences that merge into one character: the most that any may use.
pub fn columns(text: &str) -> usize {
    text.width().max(one_by_one(text))
}

/// Whether terminals differ over the columns that `text` takes.
pub fn is_disputed(text: &str) -> bool {
    text.width() != one_by_one(text)
}

fn one_by_one(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Lines of at most `width` columns, broken at blanks.
pub fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let w = columns(word);
        if used > 0 {
            let fits = used + 1 + w <= width;
            wrapped.push(if fits { ' ' } else { '\n' });
            used = if fits { used + 1 } else { 0 };
        }
        wrapped += word;
        used += w;
    }
    wrapped
}

/// Where a text stands in its cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Blanks after it.
    Left,
    /// Blanks before it.
    Right,
}

/// `text` cut to `width` columns, with an ellipsis where something is missing, and filled up with blanks. Text of
/// right-to-left scripts is isolated, so that it moves nothing outside its cell.
pub fn cell(text: &str, width: usize, side: Side) -> String {
    let mut shown = Cow::from(text);
    if columns(text) > width {
        let mut cut = String::new();
        for cluster in text.graphemes(true) {
            if columns(&cut) + columns(cluster) + 1 > width {
                break;
            }
            cut += cluster;
        }
        cut.push('\u{2026}');
        shown = cut.into();
    }
    let blanks = " ".repeat(width.saturating_sub(shown.width()));
    if shown.contains(is_right_to_left) {
        shown = format!("\u{2068}{shown}\u{2069}").into();
    }
    match side {
        Side::Left => format!("{shown}{blanks}"),
        Side::Right => format!("{blanks}{shown}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_token_can_be_seen() {
        let cases: &[(&[u8], &str)] = &[
            (b" the", "␣the"),
            (b"\n\n", "\\n\\n"),
            (b"a\tb\r", "a\\tb\\r"),
            ("한국".as_bytes(), "한국"),
            (&"한".as_bytes()[..2], "<ED95>"),
            (&[0xf0, b'x', 0x9f, 0x8e], "<F0>x<9F8E>"),
            (b"\x1b[31m", "<U+001B>[31m"),
            ("\u{301}".as_bytes(), "\u{25cc}\u{301}"),
            ("e\u{301}".as_bytes(), "e\u{301}"),
            (" \u{301}".as_bytes(), "␣\u{25cc}\u{301}"),
            ("\u{200d}".as_bytes(), "<U+200D>"),
            ("\u{202e}x".as_bytes(), "<U+202E>x"),
            ("👩\u{200d}💻".as_bytes(), "👩\u{200d}💻"),
            ("\u{a0}".as_bytes(), "<U+00A0>"),
            ("سلام".as_bytes(), "سلام"),
            (b"", ""),
        ];
        for (bytes, expected) in cases {
            assert_eq!(visible(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn cells_have_their_width_in_any_script() {
        for text in [
            "",
            "a",
            "abcdefghij",
            "한국어입니다",
            "🎉🎉🎉🎉",
            "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}",
            "سلام عليكم",
        ] {
            for width in 1..12 {
                for side in [Side::Left, Side::Right] {
                    let cell = cell(text, width, side);
                    assert_eq!(cell.width(), width, "{cell:?}");
                    assert_eq!(cell.contains('\u{2026}'), columns(text) > width, "{cell:?}");
                }
            }
        }
        assert_eq!(cell("한국", 5, Side::Left), "한국 ");
        assert_eq!(cell("한국", 3, Side::Left), "한…");
        assert_eq!(cell("한국", 2, Side::Right), " …");
        assert_eq!(cell("سلام", 6, Side::Left), "\u{2068}سلام\u{2069}   ");
    }

    #[test]
    fn wrapped_lines_keep_their_words() {
        assert_eq!(wrap("one two three", 7), "one two\nthree");
        assert_eq!(wrap("incomprehensible a b", 3), "incomprehensible\na b");
        assert_eq!(wrap("", 5), "");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\n\tb한"), "a\n\tb한");
        assert_eq!(harmless("a\u{202e}b\u{2066}c\u{200f}d\u{61c}سلام"), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}سلام");
        assert_eq!(harmless("\x1b[2J\x07\x7f\u{9b}"), "␛[2J␇␡\u{fffd}");
    }

    #[test]
    fn a_path_with_blanks_is_one_word_of_a_shell() {
        for (path, expected) in
            [("runs/tied-s0", "runs/tied-s0"), ("my runs/a", "'my runs/a'"), ("it's", "'it'\\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(path.as_ref()), expected);
        }
    }

    #[test]
    fn the_ramp_is_bounded() {
        assert_eq!(ramp(f64::NAN), Style::new());
        assert_eq!((ramp(-1.0), ramp(2.0)), (ramp(0.0), ramp(1.0)));
        assert_ne!(ramp(0.0), ramp(1.0));
        assert_eq!(styled("x", ramp(1.0), false), "x");
        assert!(styled("x", ramp(1.0), true).ends_with("\u{1b}[0m"));
    }
}
