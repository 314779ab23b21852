//! Charts of lines with bands, side by side, one legend below.

use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::prelude::{Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, RGBColor, TRANSPARENT};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Figure, GREY, INK, Picture, Scale, UNIT, draw, font, px};
use tiebreak_train::Error;

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// One value with its spread over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Where on the horizontal axis.
    pub x: f64,
    /// The mean.
    pub mean: f64,
    /// Lower end of the band.
    pub low: f64,
    /// Upper end of the band.
    pub high: f64,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Through.
    Solid,
    /// Dashed.
    Dashed,
    /// A dot per value, with its band as a bar, and no line.
    Dots,
}

/// Values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend; lines of one name share an entry.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Its look.
    pub style: Style,
    /// Its values, from left to right.
    pub values: Vec<Band>,
}

/// A straight line to compare with.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Where it crosses the axis.
    pub at: f64,
    /// Upright, at a place of the horizontal axis.
    pub vertical: bool,
}

/// One chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What the horizontal axis shows, with its unit.
    pub x: String,
    /// What the vertical axis shows, with its unit.
    pub y: String,
    /// Whether the axes are logarithmic: horizontal, vertical.
    pub log: (bool, bool),
    /// Rows of a list: the first gets place 0 on top. Then [`Band::x`] is a row, and its values lie along the horizontal axis.
    pub rows: Vec<String>,
    /// What is drawn.
    pub lines: Vec<Line>,
    /// What it is compared with.
    pub rules: Vec<Rule>,
}

/// Width and height of a chart, of the title and of a row of the legend, pixels.
const PANEL: (u32, u32) = (380, 300);
const TITLE: u32 = 34;
const ROW: u32 = 20;
const TEXT: u32 = 12;

/// Draws charts side by side, `columns` in a row, below `title`.
///
/// # Errors
/// [`Error::Failed`] with what the drawing library says.
pub fn panels(title: &str, columns: usize, panels: &[Panel]) -> Result<Figure, Error> {
    let columns = columns.clamp(1, panels.len().max(1)) as u32;
    let charts = (PANEL.0 * columns, PANEL.1 * (panels.len() as u32).div_ceil(columns).max(1));
    draw(&Sheet { title, columns, panels, charts, legend: legend(panels, charts.0) })
}

struct Sheet<'a> {
    title: &'a str,
    columns: u32,
    panels: &'a [Panel],
    /// Width and height of all charts.
    charts: (u32, u32),
    legend: Vec<Entry>,
}

/// A name, its look, its left edge (pixels) and row.
type Entry = (String, Look, (u32, u32));

impl Picture for Sheet<'_> {
    fn size(&self) -> (u32, u32) {
        let below = self.legend.last().map_or(0, |(_, _, (_, row))| (row + 1) * ROW + 10);
        (self.charts.0, TITLE + self.charts.1 + below)
    }

    fn paint<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        area.draw(&Text::new(self.title.to_owned(), (px(12), px(10)), font(TEXT + 3)))?;
        for (index, panel) in (0..).zip(self.panels) {
            let (left, top) = (PANEL.0 * (index % self.columns), TITLE + PANEL.1 * (index / self.columns));
            let part = area.clone().shrink((px(left), px(top)), (px(PANEL.0), px(PANEL.1)));
            chart(&part, panel)?;
        }
        for (name, look, (x, row)) in &self.legend {
            let y = px(TITLE + self.charts.1 + row * ROW + ROW / 2);
            let ends = [(px(*x), y), (px(*x + 24), y)];
            match look {
                Look::Line(colour, Style::Dots) => area.draw(&Circle::new((px(*x + 12), y), px(4), colour.filled()))?,
                Look::Line(colour, style) => stroke(area, &ends, *colour, 2, *style)?,
                Look::Rule(colour) => stroke(area, &ends, *colour, 1, Style::Dashed)?,
            }
            let style = font(TEXT).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(name.clone(), (px(x + 30), y), style))?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Look {
    Line(RGBColor, Style),
    Rule(RGBColor),
}

/// Entries of the legend, each once, with left edge (pixels) and row.
fn legend(panels: &[Panel], width: u32) -> Vec<Entry> {
    let mut entries: Vec<(String, Look)> = Vec::new();
    let lines = panels.iter().flat_map(|p| &p.lines).map(|l| (l.name.clone(), Look::Line(l.colour, l.style)));
    let rules = panels.iter().flat_map(|p| &p.rules).map(|r| (r.name.clone(), Look::Rule(r.colour)));
    for entry in lines.chain(rules) {
        if !entry.0.is_empty() && !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let (mut x, mut row) = (16, 0);
    let place = |(name, look): (String, Look)| {
        let wide = 30 + (name.chars().count() as f32 * TEXT as f32 * 0.6) as u32 + 22;
        if x + wide > width && x > 16 {
            (x, row) = (16, row + 1);
        }
        let at = (x, row);
        x += wide;
        (name, look, at)
    };
    entries.into_iter().map(place).collect()
}

fn chart<B: DrawingBackend>(area: &Area<B>, panel: &Panel) -> Drawn<B> {
    let bands = || panel.lines.iter().flat_map(|l| &l.values);
    let rules = |vertical: bool| panel.rules.iter().filter(move |r| r.vertical == vertical).map(|r| r.at);
    let list = !panel.rows.is_empty();
    let place = |b: &Band, value: f64| if list { (value, -b.x) } else { (b.x, value) };
    let ends = |b: &Band| [b.low, b.mean, b.high];
    let corners = || bands().flat_map(|b| ends(b).map(|value| place(b, value)));
    let x = Scale::of(corners().map(|at| at.0).chain(rules(true)), panel.log.0, if list { 0.05 } else { 0.02 });
    let rows = (0..panel.rows.len()).map(|row| -(row as f64));
    let y = Scale::of(corners().map(|at| at.1).chain(rules(false)).chain(rows), panel.log.1, 0.06);
    let mut chart = ChartBuilder::on(area)
        .margin(px(8))
        .margin_right(px(16))
        .caption(&panel.title, font(TEXT + 1))
        .x_label_area_size(px(42))
        .y_label_area_size(px(if list { 150 } else { 60 }))
        .build_cartesian_2d(x, y)?;
    let blank = |_: &f64| String::new();
    let mut mesh = chart.configure_mesh();
    mesh.axis_style(INK.stroke_width(UNIT))
        .bold_line_style(GREY.mix(0.25).stroke_width(UNIT / 2))
        .light_line_style(TRANSPARENT)
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .axis_desc_style(font(TEXT))
        .label_style(font(TEXT - 1))
        .set_all_tick_mark_size(px(4));
    if list {
        // The names on the left stand for the axis's own numbers.
        mesh.disable_y_mesh().y_label_formatter(&blank).set_tick_mark_size(LabelAreaPosition::Left, 0);
    }
    mesh.draw()?;
    let clamp = |(a, b): (f64, f64)| Some((x.clamp(a)?, y.clamp(b)?));
    for line in panel.lines.iter().filter(|line| line.style != Style::Dots) {
        let edge = |of: fn(&Band) -> f64| line.values.iter().filter_map(move |b| clamp(place(b, of(b))));
        if line.values.iter().any(|b| b.high > b.low) {
            let back: Vec<(f64, f64)> = edge(|b| b.low).collect();
            let outline: Vec<(f64, f64)> = edge(|b| b.high).chain(back.into_iter().rev()).collect();
            chart.draw_series([Polygon::new(outline, line.colour.mix(0.22))])?;
        }
    }
    let plot = chart.plotting_area();
    // From values to places in `area`, for what is drawn over the chart.
    let (left, top) = area.get_base_pixel();
    let local = |at: (f64, f64)| {
        let (x, y) = plot.map_coordinate(&at);
        (x - left, y - top)
    };
    for rule in &panel.rules {
        let (across, up) = (x.range(), y.range());
        let ends = if rule.vertical {
            x.clamp(rule.at).map(|at| [(at, up.start), (at, up.end)])
        } else {
            y.clamp(rule.at).map(|at| [(across.start, at), (across.end, at)])
        };
        if let Some(ends) = ends {
            stroke(area, &ends.map(local), rule.colour, 1, Style::Dashed)?;
        }
    }
    for line in &panel.lines {
        let points: Vec<(i32, i32)> = line.values.iter().filter_map(|b| clamp(place(b, b.mean))).map(local).collect();
        if line.style != Style::Dots {
            stroke(area, &points, line.colour, 2, line.style)?;
            continue;
        }
        for value in &line.values {
            let bar: Vec<(i32, i32)> =
                [value.low, value.high].iter().filter_map(|end| clamp(place(value, *end))).map(local).collect();
            stroke(area, &bar, line.colour, 2, Style::Solid)?;
        }
        for at in points {
            area.draw(&Circle::new(at, px(4), line.colour.filled()))?;
        }
    }
    for (row, name) in panel.rows.iter().enumerate() {
        let (x, y) = local((x.range().start, -(row as f64)));
        let style = font(TEXT - 1).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(name.clone(), (x - px(8), y), style))?;
    }
    Ok(())
}

/// A line through points, `width` pixels wide; dashes are cut here, for plotters' own do not follow a polyline's corners.
fn stroke<B: DrawingBackend>(
    area: &Area<B>,
    points: &[(i32, i32)],
    colour: RGBColor,
    width: u32,
    style: Style,
) -> Drawn<B> {
    let look = colour.stroke_width(width * UNIT);
    if style != Style::Dashed {
        return area.draw(&PathElement::new(points.to_vec(), look));
    }
    let (dash, period) = (f64::from(px(6)), f64::from(px(10)));
    let mut along = 0.0;
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (x1 - x0).hypot(y1 - y0);
        let at = |s: f64| ((x0 + (x1 - x0) * s / length).round() as i32, (y0 + (y1 - y0) * s / length).round() as i32);
        // Dashes begin at multiples of the period, counted from the first point.
        let mut start = -(along % period);
        while start < length {
            let (from, to) = (start.max(0.0), (start + dash).min(length));
            if to > from {
                area.draw(&PathElement::new(vec![at(from), at(to)], look))?;
            }
            start += period;
        }
        along += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows_stand_alone_on_the_left() {
        let values = [0.0, 1.0].map(|x| Band { x, mean: 0.3, low: 0.2, high: 0.4 }).to_vec();
        let panel = Panel {
            rows: vec!["first".into(), "second".into()],
            lines: vec![Line { name: String::new(), colour: INK, style: Style::Dots, values }],
            ..Panel::default()
        };
        let svg = panels("", 1, &[panel]).unwrap().svg;
        let texts = || svg.split("<text").skip(1).map(|t| t.split_once('>').map_or("", |(_, t)| t).trim_start());
        assert_eq!(texts().filter(|t| t.starts_with("first") || t.starts_with("second")).count(), 2);
        // The axis of rows runs from -1 to 0, that of values from 0.2 to 0.4.
        let numbers =
            |t: &str| t.starts_with("0\n") || t.starts_with("0<") || t.starts_with('\u{2212}') || t.starts_with('-');
        assert_eq!(texts().filter(|t| numbers(t)).count(), 0, "{svg:.3000}");
    }
}
