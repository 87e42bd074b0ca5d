//! Sentences by meaning: all-MiniLM-L6-v2 recorded, compiled once for every number and length of sentences, and run.
//!
//! `python3 examples/fetch.py embed` fetches the weights; then, in the repository's root,
//! `cargo run --release --manifest-path examples/embed/Cargo.toml` tells which sentences of `sentences.txt` are nearest to a
//! few questions, and compares each embedding with what a NumPy program computed. `... -- FILE.txt "a question" ...` takes
//! other sentences, a line each, and other questions.

mod encoder;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use encoder::{MAX_WORDS, encoder, nearest};
use tlc::formats::{npz, safetensors};
use tlc::{CompileOptions, Executable, HostTensor, MappedFile, Output, inputs};
use tokenizers::{PaddingParams, PaddingStrategy, Tokenizer, TruncationParams};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The largest difference from the reference that rounding explains.
const TOLERANCE: f64 = 1e-4;
/// How many sentences are printed for each question.
const TOLD: usize = 3;
/// Longer sentences are cut, as the model's makers do.
const MAX_TOKENS: usize = 256;
const _: () = assert!(MAX_TOKENS <= MAX_WORDS as usize);

const SENTENCES: &str = include_str!("../sentences.txt");
const REFERENCE: &[u8] = include_bytes!("../reference.npz");
const QUESTIONS: [&str; 3] = ["Which pets are asleep?", "When can I travel?", "Why is my code slow?"];

struct Embedder {
    tokenizer: Tokenizer,
    network: Executable,
}

/// Where `examples/fetch.py` puts the weights.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/weights/embed")
}

/// Sentences as the numbers of their tokens, filled up to the longest, and which tokens are theirs.
struct Tokens {
    tokens: HostTensor,
    seen: HostTensor,
}

impl Embedder {
    fn load(folder: &Path) -> Outcome<Embedder> {
        let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|e| e.to_string())?;
        let truncation = TruncationParams {
            max_length: MAX_TOKENS,
            ..TruncationParams::default()
        };
        let padding = PaddingParams {
            strategy: PaddingStrategy::BatchLongest,
            ..PaddingParams::default()
        };
        let cut = tokenizer.with_truncation(Some(truncation)).map_err(|e| e.to_string())?;
        cut.with_padding(Some(padding));
        let file = MappedFile::open(folder.join("model.safetensors"))?;
        let graph = encoder(&safetensors::Views::parse(&file)?)?;
        Ok(Embedder {
            tokenizer,
            network: graph.compile(&CompileOptions::default())?,
        })
    }

    fn tokens(&self, sentences: &[&str]) -> Outcome<Tokens> {
        let encoded = self
            .tokenizer
            .encode_batch(sentences.to_vec(), true)
            .map_err(|e| e.to_string())?;
        let shape = [encoded.len(), encoded.first().map_or(0, |e| e.len())];
        let tokens: Vec<i64> = encoded.iter().flat_map(|e| e.get_ids()).map(|&t| t.into()).collect();
        let seen: Vec<bool> = encoded
            .iter()
            .flat_map(|e| e.get_attention_mask())
            .map(|&m| m != 0)
            .collect();
        Ok(Tokens {
            tokens: HostTensor::from_slice(&shape, &tokens)?,
            seen: HostTensor::from_slice(&shape, &seen)?,
        })
    }

    /// `f32[sentences, WIDTH]`, each of length 1.
    fn embed(&self, sentences: &[&str]) -> Outcome<Output> {
        let given = self.tokens(sentences)?;
        let mut outputs = self.network.run(&inputs![&given.tokens, &given.seen])?;
        Ok(outputs.remove(0))
    }
}

/// The largest difference between an output and a tensor of its shape.
fn difference(found: &[f32], expected: &HostTensor) -> f64 {
    assert_eq!(found.len(), expected.len());
    let off = found
        .iter()
        .enumerate()
        .map(|(i, &v)| (f64::from(v) - expected.get(i).as_f64()).abs());
    off.fold(0.0, |m: f64, d| if d.is_nan() { d } else { m.max(d) })
}

fn run() -> Outcome<bool> {
    if !folder().join("tokenizer.json").exists() {
        return Err("the weights are not there; fetch them with `python3 examples/fetch.py embed`".into());
    }
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next();
    let text = file.as_ref().map(std::fs::read_to_string).transpose()?;
    let sentences: Vec<&str> = text.as_deref().unwrap_or(SENTENCES).lines().collect();
    let asked: Vec<String> = arguments.collect();
    let questions: Vec<&str> = match asked.is_empty() {
        true => QUESTIONS.to_vec(),
        false => asked.iter().map(String::as_str).collect(),
    };
    if sentences.len() < TOLD {
        return Err(format!("{} sentences; expected at least {TOLD}", sentences.len()).into());
    }

    let start = Instant::now();
    let embedder = Embedder::load(&folder())?;
    let nearest = nearest(TOLD).compile(&CompileOptions::default())?;
    println!("loaded and compiled in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    let known = embedder.embed(&sentences)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("embedded {} sentences in {:.1} ms\n", sentences.len(), seconds * 1e3);

    let asked = embedder.embed(&questions)?;
    let found = nearest.run(&inputs![&asked, &known])?;
    let cosines = found[0].as_slice::<f32>()?;
    let places = found[1].as_slice::<i64>()?;
    for (i, question) in questions.iter().enumerate() {
        println!("{question}");
        for k in i * TOLD..(i + 1) * TOLD {
            println!("  {:.3}  {}", cosines[k], sentences[places[k] as usize]);
        }
    }
    if file.is_some() {
        return Ok(true);
    }
    let expected = npz::read(REFERENCE, "embeddings")?;
    let off = difference(known.as_slice::<f32>()?, &expected);
    println!("\nlargest difference from the reference embeddings: {off:.1e}");
    Ok(off <= TOLERANCE)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: embeddings further than {TOLERANCE} from the reference");
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
    fn embeddings_are_the_reference_s_in_batches_of_any_size_and_length() {
        if !folder().join("tokenizer.json").exists() {
            println!("SKIP: no weights; `python3 examples/fetch.py embed` fetches them");
            return;
        }
        let embedder = Embedder::load(&folder()).expect("weights");
        let sentences: Vec<&str> = SENTENCES.lines().collect();
        let given = embedder.tokens(&sentences).expect("tokens");
        let read = |key: &str| npz::read(REFERENCE, key).expect("an array");
        assert_eq!(given.tokens, read("tokens"));
        let expected = read("embeddings");
        let width = expected.shape()[1];
        let all = embedder.embed(&sentences).expect("it runs");
        let off = difference(all.as_slice::<f32>().expect("f32"), &expected);
        assert!(off <= TOLERANCE, "off by {off:.1e}");

        // The same network, never compiled again: what fills a sentence up has no part in its embedding.
        for size in [1, 2, 3, 7] {
            for (i, some) in sentences.chunks(size).enumerate() {
                let part = embedder.embed(some).expect("it runs");
                let first = i * size * width;
                let rows = &all.as_slice::<f32>().expect("f32")[first..first + some.len() * width];
                let rows = HostTensor::from_slice(&[some.len(), width], rows).expect("rows");
                let off = difference(part.as_slice::<f32>().expect("f32"), &rows);
                assert!(off <= 1e-5, "{some:?}: off by {off:.1e}");
            }
        }
        let long = "word ".repeat(1000);
        assert_eq!(
            embedder.tokens(&[&long]).expect("tokens").tokens.shape(),
            [1, MAX_TOKENS]
        );
        embedder.embed(&[&long]).expect("it runs");
    }
}
