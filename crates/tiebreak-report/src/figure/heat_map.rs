//! Tables of coloured cells, long ones in blocks, several side by side with one scale of colours.

use ab_glyph::{Font, FontRef};
use plotters::coord::Shift;
use plotters::prelude::{
    Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, RGBColor, Rectangle, Text, TextStyle, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tiebreak_train::Error;

use super::{FONT, Figure, GREY, INK, Picture, draw, font, px};

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Most cells of a figure; more would be a picture that nobody reads and that fills the memory.
pub const MOST_CELLS: usize = 2400;

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// What it says.
    pub text: String,
    /// A second line; empty: none.
    pub detail: String,
    /// Its colour, from 0 (dark) to 1 (bright); what is no number has none.
    pub share: f64,
}

/// A table of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Above it.
    pub title: String,
    /// Above each column.
    pub heads: Vec<String>,
    /// Name of the row of feet.
    pub foot: String,
    /// Below each column.
    pub feet: Vec<String>,
    /// Names of the rows, from the top.
    pub rows: Vec<String>,
    /// By row, then by column.
    pub cells: Vec<Vec<Tile>>,
}

/// What the colours mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Beside the dark end.
    pub dark: String,
    /// Beside the bright end.
    pub bright: String,
    /// What is shown, a paragraph each.
    pub caption: Vec<String>,
}

/// Columns of a block, at most.
const COLUMNS: usize = 14;
/// Pixels.
const CELL: u32 = 74;
const MARGIN: u32 = 14;
const LABEL: u32 = 52;
const TITLE: u32 = 30;
const LINE: u32 = 18;
const BETWEEN_BLOCKS: u32 = 12;
const BETWEEN_MAPS: u32 = 26;
const TEXT: u32 = 12;
/// A picture is no wider than this because of maps side by side.
const WIDE: u32 = 1250;
/// And no narrower than this, for the sake of the caption.
const NARROWEST: u32 = 620;
/// Of a letter, about.
const LETTER: u32 = 7;
const BAR: (u32, u32) = (180, 12);

/// From dark to bright with even steps of lightness, told apart with any colour vision (after cividis, Nunez et al., 2018).
const RAMP: [(u8, u8, u8); 5] = [(0, 32, 77), (65, 77, 107), (124, 123, 120), (188, 175, 111), (255, 234, 70)];

/// Draws maps of equal columns, side by side where there is room, else below one another.
///
/// # Errors
/// [`Error::Input`] for more than [`MOST_CELLS`] cells, [`Error::Failed`] with what the drawing library says.
pub fn heat_maps(maps: &[HeatMap], key: &Key) -> Result<Figure, Error> {
    let cells: usize = maps.iter().flat_map(|m| &m.cells).map(Vec::len).sum();
    if cells > MOST_CELLS {
        return Err(Error::Input(format!(
            "the figure would have {cells} cells, more than the {MOST_CELLS} that can be read: shorten the text"
        )));
    }
    draw(&Sheet::new(maps, key))
}

struct Sheet<'a> {
    maps: &'a [HeatMap],
    key: &'a Key,
    /// Of a map, pixels.
    width: u32,
    beside: bool,
    /// Of everything, without margins.
    whole: u32,
    /// The key's, in lines that fit.
    caption: Vec<String>,
}

impl<'a> Sheet<'a> {
    fn new(maps: &'a [HeatMap], key: &'a Key) -> Self {
        let n = maps.len().max(1) as u32;
        let widest = maps.iter().map(|m| m.heads.len()).max().unwrap_or(0).clamp(1, COLUMNS) as u32;
        let width = LABEL + widest * CELL;
        let both = n * width + (n - 1) * BETWEEN_MAPS;
        let beside = both <= WIDE;
        let whole = if beside { both } else { width }.max(NARROWEST);
        let texts = maps.iter().flat_map(HeatMap::texts);
        let named = texts.chain(key.caption.iter().map(String::as_str)).any(|text| text.chars().any(is_missing));
        let named = named.then_some("U+ and a number stand for a character that is not in the font.");
        let caption = key.caption.iter().map(String::as_str).chain(named);
        let caption = caption.flat_map(|text| lines(text, whole / LETTER)).collect();
        Self { maps, key, width, beside, whole, caption }
    }
}

/// `text` in lines of at most about `letters` letters, broken at blanks.
fn lines(text: &str, letters: u32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.to_owned();
        } else if lines[last].chars().count() + 1 + word.chars().count() <= letters as usize {
            lines[last] += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

impl HeatMap {
    /// Everything that is written in it.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let cells = self.cells.iter().flatten().flat_map(|tile| [&tile.text, &tile.detail]);
        let labels = [&self.title, &self.foot].into_iter().chain(&self.heads).chain(&self.feet).chain(&self.rows);
        labels.chain(cells).map(String::as_str)
    }

    /// Lines of text of a cell.
    fn lines(&self) -> u32 {
        1 + u32::from(self.cells.iter().flatten().any(|tile| !tile.detail.is_empty()))
    }

    fn row_height(&self) -> u32 {
        8 + 16 * self.lines()
    }

    fn block_height(&self) -> u32 {
        2 * LINE + self.rows.len() as u32 * self.row_height() + BETWEEN_BLOCKS
    }

    fn height(&self) -> u32 {
        TITLE + self.heads.len().div_ceil(COLUMNS) as u32 * self.block_height()
    }
}

impl Picture for Sheet<'_> {
    fn size(&self) -> (u32, u32) {
        let heights = self.maps.iter().map(HeatMap::height);
        let height = match self.beside {
            true => heights.max().unwrap_or(0),
            false => heights.map(|height| height + BETWEEN_BLOCKS).sum(),
        };
        let key = (2 + self.caption.len() as u32) * LINE;
        (2 * MARGIN + self.whole, 2 * MARGIN + height + key)
    }

    fn paint<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let (mut x, mut y) = (MARGIN, MARGIN);
        for map in self.maps {
            // A title may be wider than its map where nothing stands beside it.
            let title = if self.beside && self.maps.len() > 1 { self.width } else { self.whole };
            paint_map(area, map, x, y, title)?;
            match self.beside {
                true => x += self.width + BETWEEN_MAPS,
                false => y += map.height() + BETWEEN_BLOCKS,
            }
        }
        let (_, height) = self.size();
        let y = height - MARGIN - (1 + self.caption.len() as u32) * LINE;
        paint_key(area, self.key, &self.caption, MARGIN, y)
    }
}

fn paint_map<B: DrawingBackend>(area: &Area<B>, map: &HeatMap, left: u32, top: u32, title: u32) -> Drawn<B> {
    write(area, &map.title, (left, top), title, &font(TEXT + 2))?;
    for (block, first) in (0..map.heads.len()).step_by(COLUMNS).enumerate() {
        let columns = first..(first + COLUMNS).min(map.heads.len());
        let mut y = top + TITLE + block as u32 * map.block_height();
        let labels = |y: u32, name: &str, texts: &[String], style: &TextStyle| -> Drawn<B> {
            write(area, name, (left, y), LABEL, style)?;
            for (x, text) in (left + LABEL..).step_by(CELL as usize).zip(&texts[columns.clone()]) {
                write(area, text, (x + 4, y), CELL - 6, style)?;
            }
            Ok(())
        };
        labels(y, "", &map.heads, &font(TEXT))?;
        y += LINE;
        for (row, tiles) in map.rows.iter().zip(&map.cells) {
            let height = map.row_height();
            write(area, row, (left, y + (height - 12) / 2), LABEL, &font(TEXT))?;
            for (x, tile) in (left + LABEL..).step_by(CELL as usize).zip(&tiles[columns.clone()]) {
                paint_tile(area, tile, (x, y), (CELL, height))?;
            }
            y += height;
        }
        labels(y + 3, &map.foot, &map.feet, &font(TEXT).color(&GREY))?;
    }
    Ok(())
}

fn paint_tile<B: DrawingBackend>(area: &Area<B>, tile: &Tile, (x, y): (u32, u32), (w, h): (u32, u32)) -> Drawn<B> {
    let (back, ink) = colours(tile.share);
    // A pixel of white stays between neighbours.
    area.draw(&Rectangle::new([(px(x), px(y)), (px(x + w - 1), px(y + h - 1))], back.filled()))?;
    let style = font(TEXT).color(&ink);
    write(area, &tile.text, (x + 4, y + 5), w - 8, &style)?;
    write(area, &tile.detail, (x + 4, y + 21), w - 8, &style)
}

fn paint_key<B: DrawingBackend>(area: &Area<B>, key: &Key, caption: &[String], x: u32, y: u32) -> Drawn<B> {
    let (style, right) = (font(TEXT), font(TEXT).pos(Pos::new(HPos::Right, VPos::Top)));
    let ends = (x + 130, x + 130 + BAR.0);
    area.draw(&Text::new(drawable(&key.dark), (px(ends.0 - 8), px(y - 2)), right))?;
    for step in 0..BAR.0 {
        let (colour, _) = colours(f64::from(step) / f64::from(BAR.0 - 1));
        let corner = (px(ends.0 + step), px(y));
        area.draw(&Rectangle::new([corner, (corner.0 + px(1), px(y + BAR.1))], colour.filled()))?;
    }
    area.draw(&Text::new(drawable(&key.bright), (px(ends.1 + 8), px(y - 2)), style.clone()))?;
    for (line, text) in (1..).zip(caption) {
        area.draw(&Text::new(drawable(text), (px(x), px(y + line * LINE)), style.clone()))?;
    }
    Ok(())
}

/// `text` from its top left corner (pixels), cut to `width` pixels.
fn write<B: DrawingBackend>(area: &Area<B>, text: &str, (x, y): (u32, u32), width: u32, style: &TextStyle) -> Drawn<B> {
    let mut shown = drawable(text);
    let fits = |text: &str| {
        Ok::<_, DrawingAreaErrorKind<B::ErrorType>>(area.estimate_text_size(text, style)?.0 <= px(width) as u32)
    };
    while !fits(&shown)? {
        let kept = shown.trim_end_matches('\u{2026}').chars().count().saturating_sub(1);
        if kept == 0 {
            break;
        }
        let start: String = shown.chars().take(kept).collect();
        shown = format!("{}\u{2026}", start.trim_end());
    }
    if shown.is_empty() {
        return Ok(());
    }
    area.draw(&Text::new(shown, (px(x), px(y)), style.clone()))
}

/// A blank to be seen, for which there is a plainer sign.
const OPEN_BOX: char = '\u{2423}';

/// Whether the compiled-in font lacks a character, so that its code point is written.
fn is_missing(c: char) -> bool {
    c != OPEN_BOX && lacks(c)
}

fn lacks(c: char) -> bool {
    FontRef::try_from_slice(FONT).is_ok_and(|font| font.glyph_id(c).0 == 0)
}

/// `text` with code points in place of characters that the compiled-in font lacks.
fn drawable(text: &str) -> String {
    let shown = |c: char| match c {
        OPEN_BOX if lacks(c) => "_".into(),
        c if is_missing(c) => format!("U+{:04X} ", c as u32),
        c => c.to_string(),
    };
    text.chars().map(shown).collect::<String>().trim_end().to_owned()
}

/// Colour of a share and of the text on it.
fn colours(share: f64) -> (RGBColor, RGBColor) {
    if share.is_nan() {
        return (WHITE, INK);
    }
    let at = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let low = (at as usize).min(RAMP.len() - 2);
    let part = at - low as f64;
    let (a, b) = (RAMP[low], RAMP[low + 1]);
    let mix = |a: u8, b: u8| (f64::from(a) + part * (f64::from(b) - f64::from(a))).round() as u8;
    let colour = RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2));
    (colour, if share < 0.55 { WHITE } else { RGBColor(0, 0, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(columns: usize, rows: usize) -> HeatMap {
        let tile = |i: usize| Tile { text: format!("t{i}"), detail: String::new(), share: i as f64 / columns as f64 };
        HeatMap {
            title: "a run".into(),
            heads: (0..columns).map(|i| format!("h{i}")).collect(),
            foot: "next".into(),
            feet: vec![String::new(); columns],
            rows: (0..rows).map(|i| i.to_string()).collect(),
            cells: vec![(0..columns).map(tile).collect(); rows],
        }
    }

    fn key() -> Key {
        Key { dark: "0".into(), bright: "1".into(), caption: vec!["p".into()] }
    }

    #[test]
    fn every_cell_is_drawn_in_its_colour() {
        let figure = heat_maps(&[map(3, 2)], &key()).unwrap();
        for text in ["a run", "h0", "h2", "t0", "t2", "next"] {
            assert!(figure.svg.contains(text), "{text}");
        }
        // The dark end is in the first cells of both rows and at one end of the bar.
        assert_eq!(figure.svg.matches("#00204D").count(), 3);
        assert_eq!(colours(f64::NAN).0, WHITE);
        assert_eq!((colours(-1.0), colours(9.0).0), (colours(0.0), RGBColor(255, 234, 70)));
    }

    #[test]
    fn long_maps_wrap_and_wide_pairs_stack() {
        let size = |maps: &[HeatMap]| Sheet::new(maps, &key()).size();
        let (one, two) = (size(&[map(14, 3)]), size(&[map(15, 3)]));
        assert!(two.0 == one.0 && two.1 == one.1 + map(1, 3).block_height());
        assert!(size(&[map(4, 3), map(4, 3)]).0 > size(&[map(4, 3)]).0, "side by side");
        assert!(size(&[map(14, 3), map(14, 3)]).1 > 3 * one.1 / 2, "one above the other");
        assert!(heat_maps(&[map(1201, 2)], &key()).unwrap_err().to_string().contains("2402 cells"));
    }

    #[test]
    fn a_title_is_as_wide_as_the_picture() {
        let title = "a title that is wider than three columns of cells are".to_owned();
        let figure = heat_maps(&[HeatMap { title: title.clone(), ..map(3, 2) }], &key()).unwrap();
        assert!(figure.svg.contains(&title));
    }

    #[test]
    fn captions_wrap() {
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("", 7), [""]);
        let long = Key { caption: vec!["word ".repeat(60).trim_end().into()], ..key() };
        assert_eq!(Sheet::new(&[map(3, 2)], &long).caption.len(), 4);
    }

    #[test]
    fn characters_without_a_glyph_are_named() {
        assert_eq!(drawable("ab\u{d55c}"), "abU+D55C");
        assert_eq!(drawable("the\u{2026}"), "the\u{2026}");
        let said =
            |map: HeatMap| heat_maps(&[map], &key()).unwrap().svg.contains("a character that is not in the font");
        assert!(said(HeatMap { heads: vec!["\u{d55c}".into()], ..map(1, 1) }));
        assert!(!said(HeatMap { heads: vec!["\u{2423}a".into()], ..map(1, 1) }));
    }
}
