//! TfIdfVectorizer: how often each n-gram of a pool occurs in rows of integers.

use tlc_ir::{DType, HostTensor};

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// The most comparisons of a row's element.
const MAX_GRAMS: usize = 1 << 24;

/// The grams of one length.
struct Grams {
    length: usize,
    /// One gram behind the other.
    items: Vec<i64>,
    /// Columns of the result.
    columns: Vec<i64>,
}

fn pool(c: &Call<'_, '_, '_>) -> Outcome<Vec<Grams>> {
    if c.attribute("pool_strings").is_some() {
        return unsupported("n-grams of strings are not supported; expected pool_int64s");
    }
    let (Some(items), Some(counts), Some(columns)) = (
        c.ints("pool_int64s")?,
        c.ints("ngram_counts")?,
        c.ints("ngram_indexes")?,
    ) else {
        return invalid("no pool_int64s, ngram_counts or ngram_indexes; expected all");
    };
    let mut all = vec![];
    let mut first = 0;
    for (i, &start) in counts.iter().enumerate() {
        let (length, end) = (i + 1, counts.get(i + 1).copied().unwrap_or(items.len() as i64));
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let Some(part) = range.and_then(|(s, e)| items.get(s..e)) else {
            return invalid(format!(
                "ngram_counts {counts:?} for {} items; expected ascending starts",
                items.len()
            ));
        };
        let number = part.len() / length;
        let Some(own) = columns.get(first..first + number) else {
            return invalid(format!("{} ngram_indexes; expected one for each n-gram", columns.len()));
        };
        all.push(Grams {
            length,
            items: part[..number * length].to_vec(),
            columns: own.to_vec(),
        });
        first += number;
    }
    match columns.iter().find(|i| !(0..1 << 31).contains(*i)) {
        Some(i) => invalid(format!("an index of {i}; expected 0 or more")),
        None if columns.is_empty() || items.len() > MAX_GRAMS => invalid(format!(
            "{} n-grams of {} items; expected some, but fewer",
            columns.len(),
            items.len()
        )),
        None => Ok(all),
    }
}

/// How often each gram occurs in each row with that distance between its items.
fn occurrences(rows: &Tensor, grams: &Grams, distance: usize) -> Outcome<Tensor> {
    let graph = rows.graph();
    // One more, so that a row of nothing has a window, too.
    let reach = (grams.length - 1) * distance + 1;
    let behind = [(0, 0), (0, reach)];
    let inside = graph.full(rows.shape(), true, DType::Bool).pad(&behind, false);
    // [rows, starts, items]
    let windows = rows.pad(&behind, 0).window(1, grams.length, 1, distance);
    let whole = inside.window(1, grams.length, 1, distance).all(-1);
    let data = HostTensor::from_slice(&[grams.columns.len(), 1, grams.length], &grams.items);
    let data = data.or_else(|e| invalid(e.to_string()))?;
    let same = windows.unsqueeze(1).eq(graph.constant(data)).all(-1);
    Ok(same.logical_and(whole.unsqueeze(1)).sum(-1))
}

pub(super) fn tf_idf(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let grams = pool(c)?;
    let need = |name: &str, least: i64| match c.maybe_int(name)? {
        Some(n) if (least..1 << 16).contains(&n) => Ok(n as usize),
        other => invalid(format!("{name} {other:?}; expected {least} or more")),
    };
    let (shortest, longest) = (need("min_gram_length", 1)?, need("max_gram_length", 1)?);
    let skips = need("max_skip_count", 0)?;
    if !x.dtype().is_int() || x.rank() > 2 {
        return invalid(format!(
            "{} of rank {}; expected integers of rank 1 or 2",
            x.dtype(),
            x.rank()
        ));
    }
    let wide = x.cast(DType::I64);
    let rows = match x.rank() {
        0 => wide.reshape([1, 1]),
        1 => wide.unsqueeze(0),
        _ => wide,
    };
    let size = grams.iter().flat_map(|g| &g.columns).max().map_or(0, |m| m + 1);
    let mut counts = c.graph().zeros([rows.dim(0), size.into()], DType::I64);
    for grams in grams
        .iter()
        .filter(|g| (shortest..=longest).contains(&g.length) && !g.columns.is_empty())
    {
        // Skips make no difference to single items, which are counted once.
        let distances = if grams.length == 1 { 1 } else { skips + 1 };
        for distance in 1..=distances {
            let found = occurrences(&rows, grams, distance)?;
            counts = counts.scatter_add(1, &c.graph().constant(&grams.columns), &found);
        }
    }
    let weights = match c.floats("weights")? {
        Some(w) if w.len() as i64 >= size => {
            let w: Vec<f32> = w[..size as usize].iter().map(|&w| w as f32).collect();
            c.graph().constant(w)
        }
        Some(w) => return invalid(format!("{} weights; expected {size}", w.len())),
        None => c.graph().scalar(1.0, DType::F32),
    };
    let floats = counts.cast(DType::F32);
    let y = match c.text("mode", "TF")?.as_str() {
        "TF" => floats,
        "IDF" => counts.gt(0).select(weights, 0.0) + floats.zeros_like(),
        "TFIDF" => floats * weights,
        other => return invalid(format!("mode `{other}`; expected TF, IDF or TFIDF")),
    };
    let shape: Vec<Dim> = match x.rank() {
        2 => vec![x.dim(0), size.into()],
        _ => vec![size.into()],
    };
    one(y.reshape(shape))
}
