//! Biases of attention by the distance of a key from its query, of the domain `com.microsoft`.

use tlc_ir::{DType, HostTensor};

use super::fused_attention::heads;
use crate::call::{Answer, Call, one};
use crate::refusal::{invalid, unsupported};
use tlc_record::dim::Dim;

/// The farthest distance that has a bucket of its own.
const MAX_DISTANCE: i64 = 1 << 20;

/// For each distance up to the farthest, its bucket: small ones have one of their own, the others share them by their logarithm.
fn buckets(count: i64, farthest: i64) -> Vec<i64> {
    let exact = count / 2;
    // In floats as the operator is defined, whose rounding decides some of them.
    let steps = (farthest as f32 / exact as f32).ln();
    let bucket = |distance: i64| match distance < exact {
        true => distance,
        false => {
            let step = (distance as f32 / exact as f32).ln() / steps * (count - exact) as f32;
            (exact + step as i64).min(count - 1)
        }
    };
    (0..=farthest).map(bucket).collect()
}

/// A learned bias for each head and each bucket of distances, `[1, heads, queries, keys]`.
pub(super) fn by_bucket(c: &mut Call<'_, '_, '_>) -> Answer {
    let table = c.tensor(0)?;
    let (Some(queries), Some(keys)) = (c.input_whole(1), c.input_whole(2)) else {
        return unsupported("lengths that data decides; expected constants, or ones that follow from shapes");
    };
    let (count, heads) = match table.shape().as_slice() {
        [count, heads] => match count.as_const() {
            Some(n @ 4..=0xffff) => (n, heads.clone()),
            _ => return unsupported(format!("a table of {}; expected 4 to 65535 buckets", table.type_text())),
        },
        _ => return invalid(format!("a table of rank {}; expected 2", table.rank())),
    };
    let farthest = c.int("max_distance", 0)?;
    let both = c.flag("is_bidirectional", false)?;
    let own = if both { count / 2 } else { count };
    if farthest <= own / 2 || farthest > MAX_DISTANCE {
        return invalid(format!(
            "max_distance {farthest}; expected more than {} and at most {MAX_DISTANCE}",
            own / 2
        ));
    }
    let graph = c.graph();
    let buckets = buckets(own, farthest);
    let buckets = graph.constant(HostTensor::from_slice(&[buckets.len()], &buckets)?);
    let query = graph.iota([queries, 1.into()], 0, DType::I64);
    let key = graph.iota([Dim::from(1), keys], 1, DType::I64);
    let ahead = key - query;
    let distance = if both { ahead.abs() } else { (-&ahead).maximum(0) };
    let mut bucket = buckets.take_from_start(&distance.minimum(farthest), 0);
    if both {
        bucket += ahead.gt(0).select(own, graph.scalar(0, DType::I64));
    }
    // The table's elements lie head by head.
    let by_head = table.reshape([heads, count.into()]);
    one(by_head.take_from_start(&bucket, 1).unsqueeze(0))
}

/// A bias that gates, which follow from the query, make larger or smaller.
pub(super) fn gated(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.value(6).is_some() {
        return unsupported("tokens without their padding in operand 6 (token_offset); expected none");
    }
    let heads = heads(c, "num_heads")?;
    let (x, bias, weight) = (c.tensor(0)?, c.tensor(1)?, c.tensor(3)?);
    let (rank, of_weight) = (x.rank(), weight.rank());
    if rank != 3 || of_weight != 2 {
        return invalid(format!(
            "a query of rank {rank} with a weight of rank {of_weight}; expected 3 and 2"
        ));
    }
    let query = super::attention::apart(&(x + bias), heads)?;
    if query.is_poisoned() {
        return one(query);
    }
    let gates = query.matmul(&weight) + c.tensor(4)?;
    let mut shape = query.shape()[..3].to_vec();
    shape.extend([Dim::from(2), weight.dim(1) / 2]);
    let gates = gates.reshape(shape).sum(-1).sigmoid();
    let [first, second] = [0, 1].map(|at| gates.narrow(-1, at, 1));
    one((first * (second * c.tensor(5)? - 1.0) + 2.0) * c.tensor(2)?)
}
