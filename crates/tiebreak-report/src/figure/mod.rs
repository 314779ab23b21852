//! Pictures: drawn once as SVG with plotters, then its text is turned into outlines of the font that is compiled in, so that neither
//! the SVG nor the PNG made of it needs a font of the system.

mod panel;
mod scale;

pub use panel::{Band, Line, Panel, Rule, Style, panels};
pub use scale::Scale;

use std::path::Path;
use std::sync::{Arc, Once};

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, IntoDrawingArea, RGBColor, SVGBackend, WHITE};
use plotters::style::{FontStyle, register_font};
use resvg::{tiny_skia, usvg};
use tiebreak_data::write_atomic;
use tiebreak_train::Error;

/// DejaVu Sans, cut down to Latin, Greek and the signs of formulas (fonts/LICENSE_DEJAVU).
const FONT: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");

/// Drawing units per pixel: plotters counts in whole units.
pub const UNIT: u32 = 4;
/// Pixels of the PNG per pixel of the picture.
const DENSITY: f32 = 2.0;

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

/// Where a picture is drawn, in units of 1 / [`UNIT`] pixel.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What drawing returns; plotters has an error type per backend.
pub type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A finished picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Without any text element: glyphs are outlines.
    pub svg: String,
    /// Of two pixels per pixel.
    pub png: Vec<u8>,
}

/// Draws a picture of `width` x `height` pixels on white.
///
/// # Errors
/// [`Error::Failed`] with what the drawing library says.
pub fn draw(width: u32, height: u32, paint: impl FnOnce(&Area) -> Drawn) -> Result<Figure, Error> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| _ = register_font("sans-serif", FontStyle::Normal, FONT));
    let failed = |e: &dyn std::fmt::Display| Error::Failed(format!("a figure cannot be drawn: {e}"));
    let size = (width * UNIT, height * UNIT);
    let mut drawn = String::new();
    {
        let area = SVGBackend::with_string(&mut drawn, size).into_drawing_area();
        area.fill(&WHITE).map_err(|e| failed(&e))?;
        paint(&area).map_err(|e| failed(&e))?;
        area.present().map_err(|e| failed(&e))?;
    }
    // The outer size in pixels; the view box keeps the units.
    let outer = |w: u32, h: u32| format!("width=\"{w}\" height=\"{h}\"");
    let drawn = drawn.replacen(&outer(size.0, size.1), &outer(width, height), 1);
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(FONT)));
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = usvg::Tree::from_str(&drawn, &options).map_err(|e| failed(&e))?;
    let pixels = |x: u32| (x as f32 * DENSITY) as u32;
    let mut picture = tiny_skia::Pixmap::new(pixels(width), pixels(height)).ok_or_else(|| failed(&"it has no size"))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(DENSITY, DENSITY), &mut picture.as_mut());
    let outlines = usvg::WriteOptions { coordinates_precision: 2, transforms_precision: 4, ..Default::default() };
    Ok(Figure { svg: tree.to_string(&outlines), png: picture.encode_png().map_err(|e| failed(&e))? })
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
    use plotters::prelude::{Color, IntoFont, Rectangle, Text};

    #[test]
    fn text_becomes_outlines_and_the_picture_has_its_size() {
        let figure = draw(60, 20, |area| {
            area.draw(&Rectangle::new([(0, 0), (40, 40)], PALETTE[0].filled()))?;
            area.draw(&Text::new("x²", (80, 10), ("sans-serif", 48).into_font().color(&INK)))?;
            Ok(())
        })
        .unwrap();
        assert!(!figure.svg.contains("<text") && figure.svg.contains("<path"), "{}", figure.svg);
        assert!(figure.svg.contains("width=\"60\"") && figure.svg.contains("height=\"20\""), "{}", figure.svg);
        let picture = tiny_skia::Pixmap::decode_png(&figure.png).unwrap();
        assert_eq!((picture.width(), picture.height()), (120, 40));
        let colour = |x, y| {
            let c = picture.pixel(x, y).unwrap();
            (c.red(), c.green(), c.blue())
        };
        assert_eq!((colour(5, 5), colour(118, 38)), ((0, 114, 178), (255, 255, 255)));
        // The x is there: somewhere right of the square it is dark.
        assert!((40..80).any(|x| (4..36).any(|y| colour(x, y).0 < 120)));
    }
}
