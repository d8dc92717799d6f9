//! Time per pass against the budget, as a picture.

use super::cost::{Cost, LinkArguments, PassCost};
use super::model::Model;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (960, 540);
const MB: f64 = (1 << 20) as f64;

/// Which passes a line shows.
type Pick = fn(&Cost) -> PassCost;

/// Writes an SVG file. The text of an error says what went wrong.
pub fn draw(
    file: &Path,
    model: &Model,
    link: &LinkArguments,
    costs: &[Cost],
) -> Result<(), String> {
    drawn(file, model, link, costs).map_err(|error| error.to_string())
}

fn drawn(
    file: &Path,
    model: &Model,
    link: &LinkArguments,
    costs: &[Cost],
) -> Result<(), Box<dyn std::error::Error>> {
    let highest = costs.iter().map(|cost| cost.lru.ms).fold(0.0, f64::max);
    let title = format!("{}: {}, {} GB/s", model.name, model.names(), link.link_gbps);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(
            0.0..model.everything() as f64 / MB,
            0.0..highest.max(1e-6) * 1.05,
        )?;
    chart
        .configure_mesh()
        .x_desc("budget, MB of 1,048,576 bytes")
        .y_desc("ms per pass")
        .light_line_style(WHITE)
        .draw()?;
    let lines: [(&str, Pick, RGBColor); 3] = [
        ("lru", |cost| cost.lru, RGBColor(200, 80, 60)),
        ("planned", |cost| cost.planned, RGBColor(40, 100, 190)),
        ("limit", |cost| cost.limit, RGBColor(120, 120, 120)),
    ];
    for (name, pass, color) in lines {
        let points = costs
            .iter()
            .map(|cost| (cost.budget as f64 / MB, pass(cost).ms));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 20, y)], color.stroke_width(2))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
