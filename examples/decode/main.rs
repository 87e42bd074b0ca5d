//! Decoding with a cache of keys and values as state: what each token adds is all that is written.
//!
//! `cargo run --release --example decode` trains a transformer of characters until it knows a rhyme, then has three decoders, which share
//! its weights and have caches of their own, go on from the beginnings of lines. Every character is checked against the rhyme, and against
//! what the network says of the whole text at once, without a cache.

use std::process::ExitCode;
use std::time::Instant;

use tlc::init::{self, Init};
use tlc::optim::{Groups, STEPS};
use tlc::{Attention, CompileOptions, CrossEntropy, DType, Executable, Graph, State, Tensor, inputs};

/// Jane Taylor, "The Star", 1806.
const RHYME: &str = "Twinkle, twinkle, little star,\nHow I wonder what you are!\nUp above the world so high,\nLike a diamond in the sky.\n\
When the blazing sun is gone,\nWhen he nothing shines upon,\nThen you show your little light,\nTwinkle, twinkle, all the night.\n";
/// Where decoders begin.
const PROMPTS: [&str; 3] = ["How I wond", "Like a dia", "Then you s"];

const LAYERS: usize = 2;
const HEADS: i64 = 4;
const WIDTH: i64 = 64;
/// Characters that the network sees at once, and the capacity of the caches.
const CONTEXT: i64 = 64;
const BATCH: i64 = 16;
const TRAINING_STEPS: u64 = 300;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The characters of the rhyme, in order of their codes.
fn alphabet() -> Vec<char> {
    let mut all: Vec<char> = RHYME.chars().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A text as numbers of characters.
fn tokens(text: &str) -> Outcome<Vec<i64>> {
    let alphabet = alphabet();
    let number = |c| {
        Ok(alphabet
            .binary_search(&c)
            .map_err(|_| format!("no `{c}` in the rhyme"))? as i64)
    };
    text.chars().map(number).collect()
}

/// The parameters: names, extents, and what they begin with.
fn declared() -> Vec<(String, Vec<i64>, Init)> {
    let characters = alphabet().len() as i64;
    let small = || init::normal(0.0, 0.05);
    let mut all = vec![
        ("characters".to_string(), vec![characters, WIDTH], small()),
        ("positions".to_string(), vec![CONTEXT, WIDTH], small()),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("qkv", [3 * WIDTH, WIDTH]),
            ("mix", [WIDTH, WIDTH]),
            ("up", [4 * WIDTH, WIDTH]),
            ("down", [WIDTH, 4 * WIDTH]),
        ] {
            all.push((format!("{layer}.{name}"), shape.to_vec(), small()));
        }
        for name in ["norm1", "norm2"] {
            all.push((format!("{layer}.{name}"), vec![WIDTH], init::ones()));
        }
    }
    all.push(("norm".to_string(), vec![WIDTH], init::ones()));
    all
}

/// The network, as parameters that are states.
struct Network {
    names: Vec<String>,
    parameters: Vec<Tensor>,
}

impl Network {
    fn new(g: &Graph) -> Network {
        let all = declared();
        Network {
            parameters: all
                .iter()
                .map(|(name, shape, _)| g.state(name, DType::F32, shape))
                .collect(),
            names: all.into_iter().map(|(name, ..)| name).collect(),
        }
    }

    fn get(&self, name: &str) -> &Tensor {
        let at = self.names.iter().position(|n| n == name);
        &self.parameters[at.expect("a parameter that is declared")]
    }

    /// Characters `i64[b, t]` at positions `i64[t]` to the logits of what follows each, `f32[b, t, characters]`. `attend` is given the number
    /// of the layer, and queries, keys and values `f32[b, heads, t, features]`.
    fn logits(
        &self,
        characters: &Tensor,
        positions: &Tensor,
        attend: impl Fn(usize, Tensor, Tensor, Tensor) -> Tensor,
    ) -> Tensor {
        let (b, t) = (characters.dim(0), characters.dim(1));
        let norm = |x: &Tensor, name: &str| x.rms_norm(Some(self.get(name)), 1e-5);
        let mut x = self.get("characters").take(characters, 0) + self.get("positions").take(positions, 0);
        for layer in 0..LAYERS {
            let get = |name: &str| self.get(&format!("{layer}.{name}"));
            let qkv = norm(&x, &format!("{layer}.norm1")).linear(get("qkv"), None);
            let heads = qkv.reshape((&b, &t, 3, HEADS, WIDTH / HEADS)).permute([2, 0, 3, 1, 4]);
            let part = |k: i64| heads.select_index(0, k);
            let seen = attend(layer, part(0), part(1), part(2));
            x = &x
                + seen
                    .permute([0, 2, 1, 3])
                    .reshape((&b, &t, WIDTH))
                    .linear(get("mix"), None);
            let inner = norm(&x, &format!("{layer}.norm2")).linear(get("up"), None).gelu();
            x = &x + inner.linear(get("down"), None);
        }
        norm(&x, "norm").linear(self.get("characters"), None)
    }
}

/// All positions attend to those before them.
fn causal(_: usize, q: Tensor, k: Tensor, v: Tensor) -> Tensor {
    q.attention(&k, &v, &Attention::new().causal())
}

fn record_init(seed: u64) -> Outcome<Executable> {
    let g = Graph::new("init");
    let key = g.key(seed);
    for (name, shape, first) in declared() {
        g.set(&name, &first.draw(&key.named(&name), shape, DType::F32));
    }
    Ok(g.compile(&CompileOptions::default())?)
}

/// A step of training on parts of the rhyme, which follow from the number of the step.
fn record_train(optimizer: &Groups, seed: u64) -> Outcome<Executable> {
    let g = Graph::new("train");
    let network = Network::new(&g);
    let text = g.constant(tokens(RHYME)?);
    let starts = (text.const_shape().map_or(0, |s| s[0] as i64) - CONTEXT).max(1);
    let key = g.key(seed).fold_in(g.state(STEPS, DType::U64, ()));
    let first = key.randint(0, starts, [BATCH, 1], DType::I64);
    let places = &first + g.iota([BATCH, CONTEXT], 1, DType::I64);
    let (now, next) = (text.take(&places, 0), text.take(&(&places + 1), 0));
    let logits = network.logits(&now, &g.iota([CONTEXT], 0, DType::I64), causal);
    let loss = logits.cross_entropy_with(&next, &CrossEntropy::new());
    let named: Vec<(&str, &Tensor)> = network
        .names
        .iter()
        .map(String::as_str)
        .zip(&network.parameters)
        .collect();
    optimizer.minimize(&loss, &named);
    g.output("loss", &loss);
    Ok(g.compile(&CompileOptions::default())?)
}

/// What follows each character of a text, without a cache.
fn record_whole() -> Outcome<Executable> {
    let g = Graph::new("whole");
    let n = g.symbol("n", 1..=CONTEXT);
    let text = g.input("text", DType::I64, (1, &n));
    let logits = Network::new(&g).logits(&text, &g.iota((&n,), 0, DType::I64), causal);
    g.output("logits", &logits.select_index(0, 0));
    Ok(g.compile(&CompileOptions::default())?)
}

/// The name of a cache.
fn cache_name(layer: usize, what: &str) -> String {
    format!("cache.{layer}.{what}")
}

const CACHE: [i64; 4] = [1, HEADS, CONTEXT, WIDTH / HEADS];

/// What follows the next character, whose keys and values are appended to those of all before it.
fn record_decode() -> Outcome<Executable> {
    let g = Graph::new("decode");
    let character = g.input("character", DType::I64, [1, 1]);
    let network = Network::new(&g);
    let position = g.cache(&cache_name(0, "k"), DType::F32, CACHE, 2).length().unsqueeze(0);
    let logits = network.logits(&character, &position, |layer, q, k, v| {
        let keys = g.cache(&cache_name(layer, "k"), DType::F32, CACHE, 2).append(&k);
        let values = g.cache(&cache_name(layer, "v"), DType::F32, CACHE, 2).append(&v);
        let counts = g.iota([CONTEXT], 0, DType::I64).lt(keys.length());
        q.attention(keys.values(), values.values(), &Attention::new().mask(&counts))
    });
    let logits = logits.reshape([-1]);
    g.output("logits", &logits);
    g.output("next", &logits.argmax(0));
    Ok(g.compile(&CompileOptions::default())?)
}

/// The bytes that the steps of a call move, and how many of the steps are copies.
fn moved(executable: &Executable) -> (i64, usize) {
    let steps = &executable.plan().steps;
    let launched = steps
        .iter()
        .flat_map(|s| s.launches())
        .filter_map(|l| l.bytes.as_const());
    let copies = steps.iter().filter(|s| matches!(s, tlc::ir::plan::Step::Copy { .. }));
    (launched.sum(), copies.count())
}

/// What was found.
struct Report {
    /// Characters that were decoded, and those of them that are the rhyme's.
    decoded: usize,
    right: usize,
    /// The largest difference of a logit from that without a cache.
    off: f32,
    /// Copies among the steps of a token.
    copies: usize,
}

fn run() -> Outcome<Report> {
    let seed = 1;
    let optimizer: Groups = format!("adamw:lr=warmup(20,cosine(0.004,{TRAINING_STEPS})),wd=0.01").parse()?;
    let start = Instant::now();
    let (init, train, whole, decode) = (
        record_init(seed)?,
        record_train(&optimizer, seed)?,
        record_whole()?,
        record_decode()?,
    );
    println!(
        "recorded and compiled four graphs in {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );

    let start = Instant::now();
    let mut state = State::new();
    init.run_with(&mut state, &inputs![])?;
    let names: Vec<String> = declared().into_iter().map(|(name, ..)| name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    optimizer.prepare(&mut state, &names)?;
    let mut loss = f32::NAN;
    for _ in 0..TRAINING_STEPS {
        loss = train.run_with(&mut state, &inputs![])?["loss"].as_scalar()?;
    }
    println!(
        "trained for {TRAINING_STEPS} steps in {:.1} s, last loss {loss:.3}",
        start.elapsed().as_secs_f64()
    );

    state.freeze(|name| names.contains(&name));
    let (bytes, copies) = moved(&decode);
    let cache: usize = 2 * LAYERS * CACHE.iter().product::<i64>() as usize * 4;
    let parameters: usize = names.iter().map(|name| state[*name].size_bytes()).sum();
    println!(
        "a token: {copies} copies, kernels move {bytes} bytes; the parameters have {parameters}, the caches {cache}"
    );
    let (mut decoded, mut right, mut off) = (0, 0, 0.0f32);
    let start = Instant::now();
    for prompt in PROMPTS {
        let mut decoder = state.share();
        for layer in 0..LAYERS {
            let shape = CACHE.map(|n| n as usize);
            decoder.insert_cache(&cache_name(layer, "k"), DType::F32, &shape)?;
            decoder.insert_cache(&cache_name(layer, "v"), DType::F32, &shape)?;
        }
        let begin = RHYME.find(prompt).ok_or("a prompt that is not in the rhyme")?;
        let expected = tokens(&RHYME[begin..begin + CONTEXT as usize])?;
        let mut text = tokens(prompt)?;
        let mut logits: Vec<f32> = Vec::new();
        for at in 0..CONTEXT as usize {
            let out = decode.run_with(&mut decoder, &inputs![&[[text[at]]]])?;
            logits.extend(out["logits"].as_slice::<f32>()?);
            if at + 1 == text.len() && text.len() < CONTEXT as usize {
                text.push(out["next"].as_scalar()?);
            }
        }
        let alphabet = alphabet();
        let decoded_text: String = text.iter().map(|&t| alphabet[t as usize]).collect();
        println!(
            "{prompt:?} goes on\n    {}",
            decoded_text[prompt.len()..].replace('\n', "\n    ")
        );
        decoded += text.len() - prompt.len();
        right += text
            .iter()
            .zip(&expected)
            .skip(prompt.len())
            .filter(|(t, e)| t == e)
            .count();
        let at_once = whole.run_with(&mut decoder, &inputs![&text])?;
        let at_once = at_once["logits"].as_slice::<f32>()?;
        let difference = at_once.iter().zip(&logits).map(|(a, b)| (a - b).abs());
        off = difference.fold(off, f32::max);
    }
    let each = start.elapsed().as_secs_f64() / (PROMPTS.len() * CONTEXT as usize) as f64;
    println!(
        "{right} of {decoded} characters are the rhyme's, {:.0} us a token",
        each * 1e6
    );
    println!("largest difference from the logits without a cache: {off:.1e}");
    Ok(Report {
        decoded,
        right,
        off,
        copies,
    })
}

impl Report {
    fn good(&self) -> bool {
        self.right * 20 >= self.decoded * 19 && self.off < 1e-3 && self.copies == 0
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(report) if report.good() => ExitCode::SUCCESS,
        Ok(_) => {
            eprintln!(
                "error: the text is not the rhyme, the logits are not those without a cache, or a cache was copied"
            );
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
    #[test]
    fn the_rhyme_is_decoded_without_a_copy() {
        let report = super::run().expect("it runs");
        assert!(
            report.good(),
            "{} of {}, off by {}, {} copies",
            report.right,
            report.decoded,
            report.off,
            report.copies
        );
    }
}
