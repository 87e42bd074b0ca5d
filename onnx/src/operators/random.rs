//! Random numbers. They are counter-based and a function of the graph's seed, or the node's where it gives one, so a run can
//! be repeated; they are not those of other implementations, which ONNX leaves open.

use tlc_ir::{DType, Scalar};

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::Value;
use tlc_record::Graph;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// Draws with the node's seed, if it gives one.
fn drawn(c: &Call<'_, '_, '_>, f: impl FnOnce(&Graph) -> Tensor) -> Outcome<Tensor> {
    let graph = c.graph();
    // Dropout alone counts its seeds in integers.
    let seed = match c.node.op_type() {
        "Dropout" => c.maybe_int("seed")?.map(|s| s as u64),
        _ => c.maybe_float("seed")?.map(f64::to_bits),
    };
    Ok(match seed {
        Some(seed) => graph.with_seed(seed, || f(&graph)),
        None => f(&graph),
    })
}

fn floats(dtype: DType) -> Outcome<DType> {
    match dtype.is_float() {
        true => Ok(dtype),
        false => invalid(format!("random numbers of {dtype}; expected floats")),
    }
}

/// The extents of the attribute `shape`.
fn shape(c: &Call<'_, '_, '_>) -> Outcome<Vec<i64>> {
    match c.ints("shape")? {
        None => invalid("no shape; expected one"),
        Some(shape) => match shape.iter().find(|d| !(0..1 << 40).contains(*d)) {
            Some(d) => invalid(format!("an extent of {d}; expected 0 or more")),
            None => Ok(shape),
        },
    }
}

fn uniform_over(c: &Call<'_, '_, '_>, shape: Vec<Dim>, dtype: DType) -> Answer {
    let (low, high) = (c.float("low", 0.0)?, c.float("high", 1.0)?);
    let wide = floats(dtype)?.accumulator();
    one(drawn(c, |g| (g.rand(shape, wide) * (high - low) + low).cast(dtype))?)
}

fn normal_over(c: &Call<'_, '_, '_>, shape: Vec<Dim>, dtype: DType) -> Answer {
    let (mean, scale) = (c.float("mean", 0.0)?, c.float("scale", 1.0)?);
    let wide = floats(dtype)?.accumulator();
    one(drawn(c, |g| (g.randn(shape, wide) * scale + mean).cast(dtype))?)
}

pub(super) fn uniform(c: &mut Call<'_, '_, '_>) -> Answer {
    let shape = shape(c)?.into_iter().map(Dim::from).collect();
    uniform_over(c, shape, c.dtype("dtype")?.unwrap_or(DType::F32))
}

pub(super) fn uniform_like(c: &mut Call<'_, '_, '_>) -> Answer {
    let like = c.required(0)?;
    let (shape, own) = (like.shape(), like.dtype());
    uniform_over(c, shape, c.dtype("dtype")?.unwrap_or(own))
}

pub(super) fn normal(c: &mut Call<'_, '_, '_>) -> Answer {
    let shape = shape(c)?.into_iter().map(Dim::from).collect();
    normal_over(c, shape, c.dtype("dtype")?.unwrap_or(DType::F32))
}

pub(super) fn normal_like(c: &mut Call<'_, '_, '_>) -> Answer {
    let like = c.required(0)?;
    let (shape, own) = (like.shape(), like.dtype());
    normal_over(c, shape, c.dtype("dtype")?.unwrap_or(own))
}

pub(super) fn bernoulli(c: &mut Call<'_, '_, '_>) -> Answer {
    let p = c.tensor(0)?;
    let dtype = c.dtype("dtype")?.unwrap_or(p.dtype());
    let wide = floats(p.dtype())?.accumulator();
    one(drawn(c, |g| g.rand(p.shape(), wide).lt(p.cast(wide)).cast(dtype))?)
}

/// Classes by their logarithmic weights: the first one at which the running sum of shares passes a uniform number.
pub(super) fn multinomial(c: &mut Call<'_, '_, '_>) -> Answer {
    let logs = c.tensor(0)?;
    let count = c.int("sample_size", 1)?;
    let dtype = c.dtype("dtype")?.unwrap_or(DType::I32);
    if logs.rank() != 2 || !(0..1 << 40).contains(&count) || !matches!(dtype, DType::I32 | DType::I64) {
        return invalid(format!(
            "{count} samples of {dtype} from weights of rank {}; expected i32 or i64 from [batch, classes]",
            logs.rank()
        ));
    }
    let wide = floats(logs.dtype())?.accumulator();
    let sums = logs.cast(wide).softmax(-1).cumsum(-1);
    let last = c.graph().dim_value(&(logs.dim(1) - 1), DType::I64);
    let last = last.or_else(|(problem, _)| invalid(problem))?;
    let shape = [logs.dim(0), count.into(), 1.into()];
    let uniform = drawn(c, |g| g.rand(shape, wide))?;
    let passed = sums.unsqueeze(1).le(uniform).sum(-1);
    one(passed.minimum(last).cast(dtype))
}

/// At inference the operand itself. While training, elements are zeroed and the others scaled.
pub(super) fn dropout(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if c.version < 7 && !c.flag("is_test", false)? {
        return unsupported("training before opset 7; expected is_test=1");
    }
    let graph = c.graph();
    // The mask was of the operand's type before opset 10.
    let mask_dtype = if c.version < 10 { x.dtype() } else { DType::Bool };
    let all = graph.full(x.shape(), Scalar::from_bool(true).convert(mask_dtype), mask_dtype);
    let inference = |all: Tensor| Ok(vec![Value::from(x.clone()), all.into()]);
    let Some(training) = c.value(2).filter(|_| c.version >= 12).cloned() else {
        return inference(all);
    };
    let ratio = match c.optional(1)? {
        Some(ratio) => ratio,
        None => graph.scalar(0.5, DType::F32),
    };
    let one_number = |t: &Tensor| t.elements().as_const() == Some(1);
    let training_tensor = c.tensor(2)?;
    if !one_number(&ratio) || !one_number(&training_tensor) || !ratio.dtype().is_float() {
        return invalid("a ratio or training_mode that is not one number; expected scalars");
    }
    let known = c.importer.constant(&training, "training_mode").ok();
    if known.is_some_and(|k| !k.get(0).as_bool()) {
        return inference(all);
    }
    let wide = x.dtype().accumulator();
    let ratio = ratio.reshape(()).cast(wide);
    let drops = drawn(c, |g| g.rand(x.shape(), wide))?.lt(&ratio);
    let kept = drops
        .logical_and(training_tensor.reshape(()).cast(DType::Bool))
        .logical_not();
    let scale = training_tensor
        .reshape(())
        .cast(DType::Bool)
        .select(1.0 / (1.0 - ratio), 1.0);
    let y = kept.select(x.cast(wide) * scale, 0.0).cast(x.dtype());
    Ok(vec![y.into(), kept.into()])
}
