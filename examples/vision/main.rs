//! Reading the text in a picture: two trained ONNX networks between two recorded graphs.
//!
//! `python3 examples/fetch.py vision` fetches the networks, PP-OCRv4's detector of text and its recognizer; then
//! `cargo run --release --example vision` reads `page.png` and compares each step with what ONNX Runtime answered, and
//! `... -- PICTURE.png` reads another picture. Each graph is compiled once, for pictures and lines of every size.

mod picture;
mod reader;
mod regions;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use picture::Picture;
use reader::{Read, Reader};
use tlc::HostTensor;
use tlc::formats::npz;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The largest difference of a probability from ONNX Runtime's that rounding explains.
const TOLERANCE: f64 = 1e-4;
/// Every so many rows and columns of the probabilities of text are in the reference.
const SPARSE: usize = 5;

const PAGE: &[u8] = include_bytes!("page.png");
const REFERENCE: &[u8] = include_bytes!("reference.npz");

/// The networks, or `None` where they have not been fetched.
fn reader() -> Outcome<Option<Reader>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/weights/vision");
    match folder.join("recognize.onnx").exists() {
        true => Reader::load(&folder).map(Some),
        false => Ok(None),
    }
}

fn largest(found: impl IntoIterator<Item = f64>, expected: &HostTensor) -> f64 {
    let off = found
        .into_iter()
        .enumerate()
        .map(|(i, v)| (v - expected.get(i).as_f64()).abs());
    off.fold(0.0, |m: f64, d| if d.is_nan() { d } else { m.max(d) })
}

/// How far what was read in the page is from what ONNX Runtime answered.
fn difference(read: &Read) -> Outcome<f64> {
    let expected = |name: &str| npz::read(REFERENCE, name);
    let boxes = expected("boxes")?;
    if boxes.len() != 4 * read.lines.len() {
        return Err(format!("{} lines; expected {}", read.lines.len(), boxes.len() / 4).into());
    }
    let corners = read.lines.iter().flat_map(|l| l.region.corners());
    let moved = largest(corners, &boxes);
    if moved > 1e-3 {
        return Err(format!("a line is {moved:.1e} pixels from where it should be").into());
    }
    let (rows, columns) = read.size;
    let sparse = (0..rows)
        .step_by(SPARSE)
        .flat_map(|y| (0..columns).step_by(SPARSE).map(move |x| y * columns + x));
    let text = largest(sparse.map(|i| read.probability[i].into()), &expected("probability")?);
    let best = expected("best")?;
    if (0..best.len()).any(|i| best.get(i).as_i64() != read.best[i]) {
        return Err("another character".into());
    }
    let score = largest(read.score.iter().map(|&s| s.into()), &expected("score")?);
    Ok(text.max(score))
}

fn run() -> Outcome<bool> {
    let start = Instant::now();
    let Some(mut reader) = reader()? else {
        return Err("the networks are not there; fetch them with `python3 examples/fetch.py vision`".into());
    };
    println!(
        "imported and compiled two networks and two graphs in {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    let given = std::env::args_os().nth(1);
    let picture = match &given {
        Some(path) => Picture::decode(&std::fs::read(path)?)?,
        None => Picture::decode(PAGE)?,
    };
    let read = reader.read(&picture)?;
    let start = Instant::now();
    reader.read(&picture)?;
    let warm = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "read {} lines in {}x{} pixels in {warm:.0} ms\n",
        read.lines.len(),
        picture.width,
        picture.height
    );
    for line in &read.lines {
        let [left, top, right, bottom] = line.region.corners().map(f64::round);
        println!(
            "{left:5} {top:4} to {right:4} {bottom:4}  {:4.2}  {}",
            line.confidence, line.text
        );
    }
    if given.is_some() {
        return Ok(true);
    }
    let off = difference(&read)?;
    println!("\nlargest difference of a probability from ONNX Runtime's: {off:.1e}");
    Ok(off <= TOLERANCE)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: probabilities further than {TOLERANCE} from the reference");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_onnx_runtime_reads_it() {
        let Some(mut reader) = reader().expect("networks that tlc can import") else {
            println!("SKIP: no networks; `python3 examples/fetch.py vision` fetches them");
            return;
        };
        let read = reader
            .read(&Picture::decode(PAGE).expect("a picture"))
            .expect("it can be read");
        let off = difference(&read).expect("the same lines and characters");
        assert!(off <= TOLERANCE, "off by {off:.1e}");
        assert_eq!(read.lines[0].text, "Region-based segmentation");
    }

    #[test]
    fn a_picture_without_text_has_no_lines() {
        let Some(mut reader) = reader().expect("networks that tlc can import") else {
            return;
        };
        let (width, height) = (70, 33);
        let rgb = vec![200; 3 * width * height];
        let read = reader.read(&Picture { width, height, rgb }).expect("it can be read");
        assert!(read.lines.is_empty());
    }
}
