//! The network: a transformer encoder (Devlin et al., "BERT", arXiv:1810.04805) whose outputs are averaged over the words of
//! a sentence and scaled to length 1 (Reimers and Gurevych, "Sentence-BERT", arXiv:1908.10084).

use tlc::formats::safetensors::Views;
use tlc::{Attention, DType, Dim, Graph, Tensor, keep};

use crate::Outcome;

/// Numbers in an embedding.
pub const WIDTH: usize = 384;
/// The most words in a sentence: as many as there are embeddings of positions.
pub const MAX_WORDS: i64 = 512;
const LAYERS: usize = 6;
const HEADS: i64 = 12;
const EPSILON: f64 = 1e-12;

/// The weights of the file as constants of a graph.
struct Weights<'a> {
    graph: &'a Graph,
    views: &'a Views<'a>,
}

impl Weights<'_> {
    fn get(&self, name: &str) -> Outcome<Tensor> {
        Ok(self.graph.constant(self.views.get(name)?.to_host()?))
    }

    /// `x @ weight.T + bias`.
    fn linear(&self, name: &str, x: &Tensor) -> Outcome<Tensor> {
        let (w, b) = (self.get(&format!("{name}.weight"))?, self.get(&format!("{name}.bias"))?);
        Ok(x.linear(&w, Some(&b)))
    }

    fn layer_norm(&self, name: &str, x: &Tensor) -> Outcome<Tensor> {
        let (w, b) = (self.get(&format!("{name}.weight"))?, self.get(&format!("{name}.bias"))?);
        Ok(x.layer_norm(Some(&w), Some(&b), EPSILON))
    }

    /// Words attend to one another; `seen: bool[batch, 1, 1, words]` hides what only fills up.
    fn attention(&self, name: &str, x: &Tensor, seen: &Tensor) -> Outcome<Tensor> {
        let (batch, words) = (x.dim(0), x.dim(1));
        let heads = |part: &str| -> Outcome<Tensor> {
            let y = self.linear(&format!("{name}.self.{part}"), x)?;
            let split = y.reshape((&batch, &words, HEADS, WIDTH as i64 / HEADS));
            Ok(split.permute([0, 2, 1, 3]))
        };
        let (q, k, v) = (heads("query")?, heads("key")?, heads("value")?);
        let mixed = q.attention(&k, &v, &Attention::new().mask(seen));
        let joined = mixed.permute([0, 2, 1, 3]).reshape((&batch, &words, WIDTH));
        self.linear(&format!("{name}.output.dense"), &joined)
    }

    fn layer(&self, name: &str, x: &Tensor, seen: &Tensor) -> Outcome<Tensor> {
        let mixed = self.attention(&format!("{name}.attention"), x, seen)?;
        let x = self.layer_norm(&format!("{name}.attention.output.LayerNorm"), &(x + mixed))?;
        let wide = self.linear(&format!("{name}.intermediate.dense"), &x)?.gelu();
        let y = self.linear(&format!("{name}.output.dense"), &wide)?;
        self.layer_norm(&format!("{name}.output.LayerNorm"), &(x + y))
    }
}

/// `tokens: i64[batch, words]` and `seen: bool[batch, words]` to `embedding: f32[batch, WIDTH]`.
pub fn encoder(views: &Views<'_>) -> Outcome<Graph> {
    let g = Graph::new("encoder");
    let weights = Weights { graph: &g, views };
    let (batch, words) = (g.symbol("batch", 1..=4096), g.symbol("words", 1..=MAX_WORDS));
    let tokens = g.input("tokens", DType::I64, (&batch, &words));
    let seen = g.input("seen", DType::Bool, (&batch, &words));

    let kinds = weights.get("embeddings.token_type_embeddings.weight")?;
    let positions = weights.get("embeddings.position_embeddings.weight")?;
    let x = weights.get("embeddings.word_embeddings.weight")?.embedding(&tokens);
    let x = x + kinds.select_index(0, 0) + positions.narrow(0, 0, &words);
    let mut x = weights.layer_norm("embeddings.LayerNorm", &x)?;
    let keys = seen.reshape((&batch, 1, 1, &words));
    for i in 0..LAYERS {
        x = weights.layer(&format!("encoder.layer.{i}"), &x, &keys)?;
    }

    let counted = seen.unsqueeze(2).cast(DType::F32);
    let mean = (x * &counted).sum(1) / counted.sum(1).maximum(1e-9);
    g.output("embedding", &(&mean / mean.norm(keep(-1)).maximum(1e-12)));
    Ok(g)
}

/// `queries: f32[q, WIDTH]` and `sentences: f32[n, WIDTH]` to the `count` nearest of each query: `cosine: f32[q, count]` and
/// `nearest: i64[q, count]`.
pub fn nearest(count: usize) -> Graph {
    let g = Graph::new("nearest");
    let (q, n): (Dim, Dim) = (g.symbol("q", 1..=4096), g.symbol("n", count as i64..=1 << 20));
    let queries = g.input("queries", DType::F32, (&q, WIDTH));
    let sentences = g.input("sentences", DType::F32, (&n, WIDTH));
    let (cosine, places) = queries.matmul(&sentences.t()).top_k(count, -1, true);
    g.output("cosine", &cosine);
    g.output("nearest", &places);
    g
}
