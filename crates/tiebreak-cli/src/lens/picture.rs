//! A lens as a figure.

use tiebreak_report::figure::{Figure, HeatMap, Key, Tile, heat_maps};
use tiebreak_train::Error;

use super::show::Sheet;
use super::view::{Scale, View, legend};

/// The figure of one run or two.
pub fn picture(sheets: &[Sheet], view: View) -> Result<Figure, Error> {
    let scale = Scale::new(sheets, view);
    let map = |sheet: &Sheet| {
        let tile = |cell| {
            let (number, share) = (view.number(cell), scale.share(cell));
            match view {
                View::Top => Tile { text: cell.shown.clone(), detail: number, share },
                _ => Tile { text: number, detail: String::new(), share },
            }
        };
        HeatMap {
            title: sheet.title(),
            heads: sheet.shown.clone(),
            foot: "next".into(),
            feet: sheet.shown[1..].iter().cloned().chain([String::new()]).collect(),
            rows: sheet.layers.clone(),
            cells: sheet.cells.iter().map(|row| row.iter().map(tile).collect()).collect(),
        }
    };
    let [dark, bright] = scale.ends();
    let caption =
        vec![format!("Cells: {}. The row \"next\" holds the token that follows.", view.describe()), legend(sheets)];
    heat_maps(&sheets.iter().map(map).collect::<Vec<_>>(), &Key { dark, bright, caption })
}
