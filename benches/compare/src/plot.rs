//! The results, as a picture: how far every library is from the floor. SVG, which needs no fonts here.

use std::path::Path;

use plotters::prelude::*;

use crate::measure::{Failure, Row};

const COLORS: [(&str, RGBColor); 4] = [
    ("tlc bound", RGBColor(31, 119, 180)),
    ("candle", RGBColor(255, 127, 14)),
    ("gemm x86-v4", RGBColor(44, 160, 44)),
    ("ndarray", RGBColor(150, 150, 150)),
];

/// Draws the rows of one thread count.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(path: &Path, rows: &[&Row], cpu: &str) -> Result<(), Failure> {
    let Some(first) = rows.first() else { return Ok(()) };
    let n = rows.len() as i32;
    let area = SVGBackend::new(path, (1000, 120 + 22 * n as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let caption = format!("{cpu}: time over floor, {} thread(s), log scale", first.threads);
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(230)
        .build_cartesian_2d((0.5f64..100.0).log_scale(), 0f64..f64::from(n))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_labels(10)
        .draw()?;
    for (i, row) in rows.iter().enumerate() {
        let y = f64::from(n - 1 - i as i32);
        let style = ("sans-serif", 12).into_font().color(&BLACK);
        let at = chart.backend_coord(&(0.5, y + 0.7));
        area.draw(&Text::new(row.name.clone(), (10, at.1), style))?;
        for (k, (who, color)) in COLORS.iter().enumerate() {
            let Some(ns) = row.time(who) else { continue };
            let x = (ns / row.floor_ns()).clamp(0.5, 100.0);
            let top = y + 0.9 - 0.2 * k as f64;
            let bar = Rectangle::new([(0.5, top - 0.18), (x, top)], color.filled());
            chart.draw_series(std::iter::once(bar))?;
        }
    }
    for (k, (who, color)) in COLORS.iter().enumerate() {
        let x = 800;
        let y = 40 + 16 * k as i32;
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], color.filled()))?;
        area.draw(&Text::new(*who, (x + 18, y), ("sans-serif", 12).into_font()))?;
    }
    area.present()?;
    Ok(())
}
