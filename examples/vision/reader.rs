//! The four graphs, and how a picture goes through them.

use std::path::Path;

use tlc::formats::onnx::Model;
use tlc::onnx::{ImportOptions, import};
use tlc::{
    CompileOptions, DType, Executable, Graph, GridSample, HostTensor, Interpolation, Outside, Resample, compile_ir,
    stack,
};

use crate::Outcome;
use crate::picture::Picture;
use crate::regions::{Region, regions};

/// The detector sees pictures this much larger.
const ENLARGE: i64 = 3;
/// The detector takes whole blocks of so many pixels.
const BLOCK: i64 = 32;
/// The recognizer takes lines of this height.
const HEIGHT: i64 = 48;

/// The networks, and what goes before each.
pub struct Reader {
    enlarge: Executable,
    detect: Executable,
    cut: Executable,
    recognize: Executable,
    /// What the recognizer's classes are; the first is none.
    characters: Vec<String>,
}

/// A line of text.
pub struct Line {
    pub region: Region,
    pub text: String,
    /// The mean probability of its characters.
    pub confidence: f64,
}

/// What was read in a picture.
pub struct Read {
    pub lines: Vec<Line>,
    /// The probability of text at each pixel of the detector's picture, of `size` rows and columns.
    pub probability: Vec<f32>,
    pub size: (usize, usize),
    /// The most probable class at each place of each line, and its probability.
    pub best: Vec<i64>,
    pub score: Vec<f32>,
}

/// The input `picture: u8[h, w, 3]` as `[3, h, w]`, blue first, from -1 to 1: what both networks were trained on.
fn pixels(g: &Graph) -> tlc::Tensor {
    let (h, w) = (g.symbol("h", 1..=16384), g.symbol("w", 1..=16384));
    let bytes = g.input("picture", DType::U8, (&h, &w, 3));
    (bytes.cast(DType::F32) / 127.5 - 1.0).flip([2]).permute([2, 0, 1])
}

/// The picture enlarged to whole blocks, `[1, 3, rows, columns]`.
fn enlarge() -> Outcome<Executable> {
    let g = Graph::new("enlarge");
    let mut x = pixels(&g);
    for axis in [1, 2] {
        let blocks = (x.dim(axis) * ENLARGE + BLOCK / 2) / BLOCK;
        x = x.resample(axis, blocks.max(1) * BLOCK, &Resample::new(Interpolation::Linear));
    }
    g.output("x", &x.unsqueeze(0));
    Ok(g.compile(&CompileOptions::default())?)
}

/// The lines of a picture, `[lines, 3, HEIGHT, columns]`. `regions: f64[lines, 4]` are fractions of the picture;
/// `along: f64[lines, columns]` says how far along its line each column lies, and behind the end, which is 1, is 0.
fn cut() -> Outcome<Executable> {
    let g = Graph::new("cut");
    let x = pixels(&g);
    let (n, columns) = (g.symbol("lines", 1..=4096), g.symbol("columns", 1..=16384));
    let regions = g.input("regions", DType::F64, (&n, 4));
    let along = g.input("along", DType::F64, (&n, &columns));
    let corner = |i: i64| regions.select_index(1, i).unsqueeze(1);
    let place = |from: i64, to: i64, part: &tlc::Tensor| corner(from) + part * (corner(to) - corner(from));
    let down = (g.range(HEIGHT, DType::F64) + 0.5) / HEIGHT as f64;
    let x_at = place(0, 2, &along).unsqueeze(1).expand((&n, HEIGHT, &columns));
    let y_at = place(1, 3, &down).unsqueeze(2).expand((&n, HEIGHT, &columns));
    let grid = stack(&[&x_at, &y_at], 3) * 2.0 - 1.0;
    let bilinear = GridSample::new(Interpolation::Linear).outside(Outside::Border);
    let each = x.unsqueeze(0).expand((&n, 3, x.dim(1), x.dim(2)));
    let lines = each.grid_sample(&grid, &bilinear);
    let within = along.lt(1.0).reshape((&n, 1, 1, &columns));
    g.output("x", &within.select(lines, 0.0));
    Ok(g.compile(&CompileOptions::default())?)
}

impl Reader {
    /// Imports and compiles everything.
    pub fn load(folder: &Path) -> Outcome<Reader> {
        let recognizer = std::fs::read(folder.join("recognize.onnx"))?;
        let network = |file: &[u8]| -> Outcome<Executable> {
            let imported = import(file, &ImportOptions::default())?;
            Ok(compile_ir(&imported.graph, &CompileOptions::default())?)
        };
        let model = Model::parse(&recognizer)?;
        let listed = model.metadata().find(|e| e.key() == "character");
        let listed = listed.ok_or("the recognizer lists no characters")?.value().lines();
        let characters = [""].into_iter().chain(listed).chain([" "]);
        Ok(Reader {
            enlarge: enlarge()?,
            detect: network(&std::fs::read(folder.join("detect.onnx"))?)?,
            cut: cut()?,
            recognize: network(&recognizer)?,
            characters: characters.map(Into::into).collect(),
        })
    }

    /// Reads the text in a picture.
    pub fn read(&mut self, picture: &Picture) -> Outcome<Read> {
        let pixels = HostTensor::from_slice(&[picture.height, picture.width, 3], &picture.rgb)?;
        let enlarged = self.enlarge.run(&[(&pixels).into()])?;
        let detected = self.detect.run(&[(&enlarged[0]).into()])?.remove(0);
        let size = (detected.shape()[2], detected.shape()[3]);
        let probability = detected.as_slice::<f32>()?.to_vec();
        let found = regions(&probability, size.1, (picture.width, picture.height));
        let mut read = Read {
            lines: vec![],
            probability,
            size,
            best: vec![],
            score: vec![],
        };
        if found.is_empty() {
            return Ok(read);
        }
        let scores = self.recognized(&pixels, &found)?;
        let classes = self.characters.len();
        let all = scores.as_slice::<f32>()?;
        if scores.shape().last() != Some(&classes) {
            return Err(format!(
                "the recognizer has {:?} classes; expected {classes}",
                scores.shape().last()
            )
            .into());
        }
        for place in all.chunks_exact(classes) {
            // The first of equals, as NumPy and tlc's own argmax have it.
            let best = (1..classes).fold(0, |b, c| if place[c] > place[b] { c } else { b });
            read.best.push(best as i64);
            read.score.push(place[best]);
        }
        let places = scores.shape()[1];
        for (i, region) in found.into_iter().enumerate() {
            let row = i * places..(i + 1) * places;
            read.lines
                .push(self.line(region, &read.best[row.clone()], &read.score[row]));
        }
        Ok(read)
    }

    /// Probabilities of classes at each place of each line, `[lines, places, classes]`.
    fn recognized(&self, pixels: &HostTensor, found: &[Region]) -> Outcome<tlc::Output> {
        // How many columns each line has, at the recognizer's height.
        let own: Vec<f64> = found.iter().map(|r| r.aspect() * HEIGHT as f64).collect();
        let columns = own.iter().fold(1.0, |m: f64, &w| m.max(w.ceil())) as usize;
        let along: Vec<f64> = own
            .iter()
            .flat_map(|w| (0..columns).map(move |k| (k as f64 + 0.5) / w))
            .collect();
        let corners: Vec<f64> = found.iter().flat_map(|r| [r.left, r.top, r.right, r.bottom]).collect();
        let corners = HostTensor::from_slice(&[found.len(), 4], &corners)?;
        let along = HostTensor::from_slice(&[found.len(), columns], &along)?;
        let lines = self.cut.run(&[pixels.into(), (&corners).into(), (&along).into()])?;
        Ok(self.recognize.run(&[(&lines[0]).into()])?.remove(0))
    }

    /// Text from the class at each place: equal neighbours are one character, class 0 is none (Graves et al.,
    /// "Connectionist temporal classification", 2006).
    fn line(&self, region: Region, best: &[i64], score: &[f32]) -> Line {
        let (mut text, mut sum, mut count, mut before) = (String::new(), 0.0, 0, 0);
        for (&class, &score) in best.iter().zip(score) {
            if class != 0 && class != before {
                text.push_str(&self.characters[class as usize]);
                sum += f64::from(score);
                count += 1;
            }
            before = class;
        }
        Line {
            region,
            text,
            confidence: if count == 0 { 0.0 } else { sum / f64::from(count) },
        }
    }
}
