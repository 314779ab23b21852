//! Pictures, as SVG and as PNG, with a font that is compiled in, so that neither needs a font of the system.

mod heat_map;
mod panel;
mod scale;

pub use heat_map::{HeatMap, Key, MOST_CELLS, Tile, heat_maps};
pub use panel::{Band, Line, Panel, Rule, Style, panels};
pub use scale::Scale;

use std::io::Write;
use std::path::Path;
use std::sync::Once;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, Crc, write::ZlibEncoder};
use plotters::coord::Shift;
use plotters::prelude::{
    BitMapBackend, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoDrawingArea, IntoFont, RGBColor, SVGBackend,
    TextStyle, WHITE,
};
use plotters::style::{FontStyle, register_font};
use tiebreak_data::write_atomic;
use tiebreak_train::Error;

/// DejaVu Sans, cut down to Latin, Greek and the signs of formulas (fonts/LICENSE_DEJAVU).
const FONT: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");
/// The name it goes by.
const FAMILY: &str = "tiebreak-sans";

/// Drawing units per pixel: plotters counts in whole units, and lines are smooth because the PNG is drawn in units and averaged.
pub const UNIT: u32 = 6;
/// Units per pixel of the PNG, which so has two pixels per pixel of the picture.
const AVERAGED: u32 = 3;

/// Colours that people with any colour vision can tell apart (Okabe and Ito, 2008): blue, vermilion, green, purple, orange, sky.
pub const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// Colour of text and axes.
pub const INK: RGBColor = RGBColor(40, 40, 40);
/// Colour of what is chance, and of other lines to compare with.
pub const GREY: RGBColor = RGBColor(110, 110, 110);

/// Pixels as drawing units.
pub fn px(pixels: u32) -> i32 {
    (pixels * UNIT) as i32
}

/// Text of `size` pixels.
pub fn font(size: u32) -> TextStyle<'static> {
    register();
    (FAMILY, px(size)).into_font().color(&INK)
}

/// Something that can be drawn; once for the SVG, once for the PNG.
pub trait Picture {
    /// Width and height, pixels.
    fn size(&self) -> (u32, u32);

    /// Draws it on a white area of [`Picture::size`] times [`UNIT`].
    ///
    /// # Errors
    /// Whatever the drawing library returns.
    fn paint<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>;
}

/// A finished picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// With its font inside.
    pub svg: String,
    /// Of two pixels per pixel.
    pub png: Vec<u8>,
}

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| _ = register_font(FAMILY, FontStyle::Normal, FONT));
}

/// Draws a picture.
///
/// # Errors
/// [`Error::Failed`] with what the drawing library says.
pub fn draw(picture: &impl Picture) -> Result<Figure, Error> {
    register();
    let failed = |e: &dyn std::fmt::Display| Error::Failed(format!("a figure cannot be drawn: {e}"));
    let (width, height) = picture.size();
    let size = (width * UNIT, height * UNIT);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).and_then(|()| picture.paint(&area)).and_then(|()| area.present()).map_err(|e| failed(&e))?;
    }
    let mut rgb = vec![255; size.0 as usize * size.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut rgb, size).into_drawing_area();
        picture.paint(&area).and_then(|()| area.present()).map_err(|e| failed(&e))?;
    }
    // The outer size in pixels; the view box keeps the units.
    let outer = |w: u32, h: u32| format!("width=\"{w}\" height=\"{h}\"");
    let svg = svg.replacen(&outer(size.0, size.1), &outer(width, height), 1);
    let data = STANDARD.encode(FONT);
    let face = format!("<style>@font-face{{font-family:\"{FAMILY}\";src:url(data:font/ttf;base64,{data})}}</style>\n");
    let after = svg.find("xmlns").and_then(|at| Some(at + svg[at..].find('>')? + 1)).unwrap_or(0);
    let svg = format!("{}\n{face}{}", &svg[..after], &svg[after..]);
    Ok(Figure { svg, png: png(&averaged(&rgb, size), size.0 / AVERAGED, size.1 / AVERAGED).map_err(|e| failed(&e))? })
}

/// Means over squares of [`AVERAGED`] units.
fn averaged(rgb: &[u8], (width, height): (u32, u32)) -> Vec<u8> {
    let [width, side] = [width, AVERAGED].map(|x| x as usize);
    let mut out = Vec::with_capacity(rgb.len() / (side * side));
    for top in (0..height as usize).step_by(side) {
        for left in (0..width).step_by(side) {
            for channel in 0..3 {
                let square = (0..side * side).map(|i| ((top + i / side) * width + left + i % side) * 3 + channel);
                out.push((square.map(|at| u32::from(rgb[at])).sum::<u32>() / AVERAGED.pow(2)) as u8);
            }
        }
    }
    out
}

/// A PNG file of 8-bit RGB rows, each coded as differences to the row above (PNG, third edition, sections 5 and 9).
fn png(rgb: &[u8], width: u32, height: u32) -> std::io::Result<Vec<u8>> {
    const UP: u8 = 2;
    let row = width as usize * 3;
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::best());
    for (index, line) in rgb.chunks(row).enumerate() {
        let above = |i: usize| if index == 0 { 0 } else { rgb[(index - 1) * row + i] };
        rows.write_all(&[UP])?;
        rows.write_all(&line.iter().enumerate().map(|(i, x)| x.wrapping_sub(above(i))).collect::<Vec<u8>>())?;
    }
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8; 4], data: &[u8]| {
        let mut sum = Crc::new();
        sum.update(kind);
        sum.update(data);
        file.extend((data.len() as u32).to_be_bytes());
        file.extend(kind);
        file.extend(data);
        file.extend(sum.sum().to_be_bytes());
    };
    // 8 bits, RGB, the only compression, the adaptive filters, not interlaced.
    chunk(b"IHDR", &[&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat());
    chunk(b"IDAT", &rows.finish()?);
    chunk(b"IEND", &[]);
    Ok(file)
}

impl Figure {
    /// Writes `<stem>.svg` and `<stem>.png`.
    ///
    /// # Errors
    /// [`Error::Failed`] if one cannot be written.
    pub fn write(&self, stem: &Path) -> Result<(), Error> {
        write_atomic(&stem.with_extension("svg"), self.svg.as_bytes())?;
        write_atomic(&stem.with_extension("png"), &self.png)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::prelude::{Color, Rectangle, Text};
    use std::io::Read;

    struct Square;

    impl Picture for Square {
        fn size(&self) -> (u32, u32) {
            (60, 20)
        }

        fn paint<B: DrawingBackend>(
            &self,
            area: &DrawingArea<B, Shift>,
        ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
            area.draw(&Rectangle::new([(0, 0), (px(10), px(10))], PALETTE[0].filled()))?;
            area.draw(&Text::new("x\u{b2}", (px(20), px(2)), font(12)))
        }
    }

    #[test]
    fn a_picture_has_its_size_its_colours_and_its_font() {
        let figure = draw(&Square).unwrap();
        assert!(figure.svg.contains("width=\"60\" height=\"20\" viewBox=\"0 0 360 120\""), "{:.300}", figure.svg);
        assert!(figure.svg.contains("data:font/ttf;base64,") && figure.svg.contains("font-family=\"tiebreak-sans\""));
        // IHDR, then one IDAT from byte 33 on, then the twelve bytes of IEND.
        assert_eq!(figure.png[16..24], [0, 0, 0, 120, 0, 0, 0, 40]);
        let mut rows = Vec::new();
        flate2::read::ZlibDecoder::new(&figure.png[41..figure.png.len() - 16]).read_to_end(&mut rows).unwrap();
        let row = 1 + 120 * 3;
        assert_eq!(rows.len(), 40 * row);
        let mut picture = vec![[0u8; 360]];
        for line in rows.chunks(row) {
            let above = picture[picture.len() - 1];
            picture.push(std::array::from_fn(|i| above[i].wrapping_add(line[1 + i])));
        }
        let colour = |x: usize, y: usize| [0, 1, 2].map(|c| picture[y + 1][x * 3 + c]);
        assert_eq!((colour(5, 5), colour(118, 38)), ([0, 114, 178], [255; 3]));
        assert!((40..80).any(|x| (4..36).any(|y| colour(x, y)[0] < 120)), "the text is dark somewhere");
    }
}
