//! Recurrent networks: a loop over time whose body is one step of the cell.
//!
//! What does not depend on the state, the product of the whole sequence with W and both biases, is computed before the loop;
//! an iteration is the product of the state with R and what is elementwise around it.

use tlc_ir::DType;

use super::quantization::in_bytes;
use crate::call::{Answer, Call};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::repeat::Iteration;
use tlc_record::{concat, einsum, stack};

/// A function of `activations` with its settings.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: f64,
    beta: f64,
}

impl Activation {
    fn apply(&self, x: &Tensor) -> Tensor {
        let (alpha, beta) = (self.alpha, self.beta);
        match self.name.as_str() {
            "relu" => x.relu(),
            "tanh" => x.tanh(),
            "sigmoid" => x.sigmoid(),
            "affine" => alpha * x + beta,
            "leakyrelu" => x.gt(0).select(x, alpha * x),
            "thresholdedrelu" => x.ge(alpha).select(x, 0),
            "scaledtanh" => alpha * (beta * x).tanh(),
            "hardsigmoid" => (alpha * x + beta).hard_tanh(0.0, 1.0),
            "elu" => x.elu(alpha),
            "softsign" => x.softsign(),
            // `activations` knows no other.
            _ => x.softplus(),
        }
    }
}

/// Which settings a function takes, with what they are unless given.
fn defaults(name: &str) -> Option<(Option<f64>, Option<f64>)> {
    Some(match name {
        "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (None, None),
        "affine" => (Some(1.0), Some(0.0)),
        "leakyrelu" => (Some(0.01), None),
        "thresholdedrelu" => (Some(1.0), None),
        "scaledtanh" => (Some(1.0), Some(1.0)),
        "hardsigmoid" => (Some(0.2), Some(0.5)),
        "elu" => (Some(1.0), None),
        _ => return None,
    })
}

/// What a cell's step computes: from the carried values, whose first is h, and the step's part of the input.
struct Cell<'c> {
    /// Rows of W and R for each unit.
    gates: i64,
    /// Carried values.
    states: usize,
    /// Functions of a direction unless given.
    functions: &'c [&'c str],
}

/// The new carried values: of an iteration, the direction, the old ones and the input's part.
type CellStep<'s> = dyn Fn(&mut Iteration, usize, &[Tensor], &Tensor) -> Vec<Tensor> + 's;

/// Of weights in bytes: by direction, one number or one for each row of them.
struct Bytes {
    scale: Tensor,
    zero: Tensor,
}

impl Bytes {
    /// Operands `at` and the one behind it.
    fn new(c: &Call<'_, '_, '_>, at: usize, directions: i64, rows: i64) -> Outcome<Bytes> {
        let shaped = |t: Tensor, name: &str| match t.rank() {
            1 => of_shape(name, &t.unsqueeze(1), &[Some(directions), Some(1)]),
            _ => of_shape(name, &t, &[Some(directions), Some(rows)]),
        };
        Ok(Bytes {
            scale: shaped(c.tensor(at)?, "a scale")?,
            zero: shaped(c.tensor(at + 1)?, "a zero point")?,
        })
    }
}

/// Weights of a direction, and what their numbers stand for if they are bytes.
#[derive(Clone, Copy)]
struct Weights<'n> {
    all: &'n Tensor,
    bytes: Option<&'n Bytes>,
    direction: i64,
}

impl Weights<'_> {
    /// `x @ W^T` of a whole sequence. If weights are bytes, so is `x`, by its range, and sums are of integers.
    fn times_input(&self, x: &Tensor) -> Tensor {
        self.times("tbi,gi->tbg", x, |own| own)
    }

    /// `h @ R^T` in a step.
    fn times_state(&self, i: &mut Iteration, h: &Tensor) -> Tensor {
        self.times("bh,gh->bg", h, |own| i.capture(&own))
    }

    /// A product with the weights, as `seen` sees them.
    fn times(&self, equation: &str, x: &Tensor, seen: impl Fn(Tensor) -> Tensor) -> Tensor {
        let of = |t: &Tensor| seen(t.select_index(0, self.direction));
        let own = of(self.all);
        let Some(bytes) = self.bytes else {
            return einsum(equation, &[x, &own]);
        };
        let x = in_bytes(x);
        let differences = x.y.cast(DType::I32) - x.zero.cast(DType::I32);
        let weights = own.cast(DType::I32) - of(&bytes.zero).cast(DType::I32).unsqueeze(1);
        einsum(equation, &[&differences, &weights]).cast(DType::F32) * (x.scale * of(&bytes.scale))
    }
}

/// A network's operands and settings, times first.
struct Network {
    /// `[time, batch, input]`.
    x: Tensor,
    /// By direction, `[gates * hidden, input]`.
    w: Tensor,
    /// By direction, `[gates * hidden, hidden]`.
    r: Tensor,
    /// What the numbers of `w` and `r` stand for, if they are bytes.
    bytes: Option<[Bytes; 2]>,
    /// By direction, `[2 * gates * hidden]`.
    b: Option<Tensor>,
    /// By direction, `[batch, hidden]`; one for each carried value.
    initial: Vec<Option<Tensor>>,
    /// `[batch]`.
    lengths: Option<Tensor>,
    hidden: i64,
    /// For each direction, whether it goes backward.
    reverse: Vec<bool>,
    /// For each direction, its functions.
    functions: Vec<Vec<Activation>>,
    clip: Option<f64>,
    batch_first: bool,
    dtype: DType,
}

impl Network {
    /// `in_bytes`: whether W and R are bytes in the order of `[input, gates * hidden]`, with scales and zero points from operand 8 on.
    fn new(c: &Call<'_, '_, '_>, cell: &Cell<'_>, in_bytes: bool) -> Outcome<Network> {
        let dtype = c.tensor(0)?.dtype();
        if !dtype.is_float() {
            return invalid(format!("operand 0 of {dtype}; expected floats"));
        }
        let batch_first = match c.int("layout", 0)? {
            0 => false,
            1 => true,
            other => return invalid(format!("layout {other}; expected 0 or 1")),
        };
        let reverse = match c.text("direction", "forward")?.to_lowercase().as_str() {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => {
                return invalid(format!(
                    "direction `{other}`; expected forward, reverse or bidirectional"
                ));
            }
        };
        let wide = |t: Tensor| t.cast(dtype.accumulator());
        let ranked = |i: usize, rank: usize| -> Outcome<Option<Tensor>> {
            match c.optional(i)? {
                Some(t) if t.rank() != rank => invalid(format!("operand {i} of rank {}; expected {rank}", t.rank())),
                found => Ok(found),
            }
        };
        let given = |i: usize, rank: usize| match ranked(i, rank)? {
            Some(t) => Ok(wide(t)),
            None => c.tensor(i),
        };
        let weights = |i: usize| match ranked(i, 3)? {
            Some(t) if in_bytes => Ok(t.permute([0, 2, 1])),
            _ => given(i, 3),
        };
        let (x, mut w, mut r) = (given(0, 3)?, weights(1)?, weights(2)?);
        let hidden = match (r.dim(2).as_const(), c.maybe_int("hidden_size")?) {
            (Some(size), given) if given.is_none_or(|g| g == size) && size > 0 => size,
            (Some(size), Some(given)) => return invalid(format!("hidden_size {given}; expected {size}, as R has")),
            (Some(size), None) => return invalid(format!("a hidden state of {size}; expected at least 1")),
            (None, Some(given)) if given > 0 => given,
            (None, Some(given)) => return invalid(format!("hidden_size {given}; expected at least 1")),
            (None, None) => return unsupported("a symbolic hidden size; expected a number, or hidden_size"),
        };
        let directions = reverse.len() as i64;
        let rows = cell.gates * hidden;
        w = of_shape("W", &w, &[Some(directions), Some(rows), None])?;
        r = of_shape("R", &r, &[Some(directions), Some(rows), Some(hidden)])?;
        let bytes = match in_bytes {
            true => Some([
                Bytes::new(c, 8, directions, rows)?,
                Bytes::new(c, 10, directions, rows)?,
            ]),
            false => None,
        };
        let b = match ranked(3, 2)?.map(wide) {
            Some(b) => Some(of_shape("B", &b, &[Some(directions), Some(2 * rows)])?),
            None => None,
        };
        let swap = |t: Tensor| if batch_first { t.swap_axes(0, 1) } else { t };
        let mut initial = Vec::new();
        for k in 0..cell.states {
            initial.push(match ranked(5 + k, 3)? {
                Some(t) => {
                    let name = format!("operand {}", 5 + k);
                    Some(of_shape(
                        &name,
                        &swap(wide(t)),
                        &[Some(directions), None, Some(hidden)],
                    )?)
                }
                None => None,
            });
        }
        let x = swap(x);
        // Their number is that of the batch, said in front of the loop: there it may be a guard.
        let lengths = ranked(4, 1)?.map(|t| t.broadcast_to([x.dim(1)]));
        Ok(Network {
            x,
            w,
            r,
            bytes,
            b,
            initial,
            lengths,
            hidden,
            functions: functions(c, cell.functions, reverse.len())?,
            reverse,
            clip: c.maybe_float("clip")?.filter(|v| *v > 0.0),
            batch_first,
            dtype,
        })
    }

    fn clipped(&self, x: Tensor) -> Tensor {
        match self.clip {
            Some(limit) => x.clamp(-limit, limit),
            None => x,
        }
    }

    /// Runs a cell over time in each direction: `step` returns the new carried values from the old ones, the input's part
    /// `[batch, gates * hidden]` and what it captures. The results are Y and the last of each carried value.
    fn run(&self, biased: &dyn Fn(&Tensor) -> Tensor, step: &CellStep<'_>) -> Vec<Tensor> {
        let graph = self.x.graph().clone();
        let (time, batch) = (self.x.dim(0), self.x.dim(1));
        let mut all = Vec::new();
        let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); self.initial.len()];
        for (d, &reverse) in self.reverse.iter().enumerate() {
            let weights = Weights {
                all: &self.w,
                bytes: self.bytes.as_ref().map(|[w, _]| w),
                direction: d as i64,
            };
            let mut input = weights.times_input(&self.x);
            if let Some(b) = &self.b {
                input += biased(&b.select_index(0, d as i64));
            }
            let mut l = graph.repeat(&time);
            for start in &self.initial {
                let shape = [batch.clone(), Dim::from(self.hidden)];
                let first = match start {
                    Some(t) => t.select_index(0, d as i64).broadcast_to(shape),
                    None => graph.zeros(shape, self.x.dtype()),
                };
                l = l.carry(&first);
            }
            l = match reverse {
                true => l.slice_reversed(&input, 0),
                false => l.slice(&input, 0),
            };
            // The time of each iteration, in the direction of the walk.
            let times = graph.iota([time.clone()], 0, DType::I64);
            if self.lengths.is_some() {
                l = match reverse {
                    true => l.slice_reversed(&times, 0),
                    false => l.slice(&times, 0),
                };
            }
            let results = l.record(|i| {
                let (old, now) = (i.carried.clone(), i.slices[0].clone());
                let mut new = step(i, d, &old, &now);
                let mut y = new[0].clone();
                if let Some(lengths) = &self.lengths {
                    let inside = i.capture(lengths).gt(&i.slices[1]).unsqueeze(1);
                    y = inside.select(&y, 0);
                    for (new, old) in new.iter_mut().zip(&old) {
                        *new = inside.select(&*new, old);
                    }
                }
                match reverse {
                    true => i.stack_reversed(&y, 0),
                    false => i.stack(&y, 0),
                }
                new
            });
            let (states, y) = results.split_at(self.initial.len());
            all.extend(y.iter().cloned());
            last.iter_mut().zip(states).for_each(|(to, s)| to.push(s.clone()));
        }
        let y = stack(&all.iter().collect::<Vec<_>>(), 1);
        let mut results = vec![match self.batch_first {
            true => y.permute([2, 0, 1, 3]),
            false => y,
        }];
        for states in last {
            let axis = i64::from(self.batch_first);
            results.push(stack(&states.iter().collect::<Vec<_>>(), axis));
        }
        results.iter().map(|t| t.cast(self.dtype)).collect()
    }
}

/// An operand of that shape, `None` for any extent. Where it has symbols, a guard says that they are these numbers.
fn of_shape(name: &str, t: &Tensor, expected: &[Option<i64>]) -> Outcome<Tensor> {
    let own = t.shape();
    let same = |(own, expected): (&Dim, &Option<i64>)| match (own.as_const(), expected) {
        (Some(own), Some(expected)) => own == *expected,
        _ => true,
    };
    if own.len() != expected.len() || !own.iter().zip(expected).all(same) {
        let text = |n: Option<i64>| n.map_or("?".into(), |n| n.to_string());
        let list = |all: Vec<Option<i64>>| all.into_iter().map(text).collect::<Vec<String>>().join(", ");
        let (own, expected) = (own.iter().map(Dim::as_const).collect(), expected.to_vec());
        return invalid(format!(
            "{name} of shape [{}]; expected [{}]",
            list(own),
            list(expected)
        ));
    }
    let wanted = own
        .iter()
        .zip(expected)
        .map(|(own, n)| n.map_or(own.clone(), Dim::from));
    let wanted: Vec<Dim> = wanted.collect();
    Ok(match wanted == own {
        true => t.clone(),
        false => t.broadcast_to(wanted),
    })
}

/// The functions of each direction.
fn functions(c: &Call<'_, '_, '_>, default: &[&str], directions: usize) -> Outcome<Vec<Vec<Activation>>> {
    let names = match c.texts("activations")? {
        Some(names) => names,
        None => default.repeat(directions).iter().map(|s| s.to_string()).collect(),
    };
    if names.len() != default.len() * directions {
        return invalid(format!(
            "{} activations; expected {}",
            names.len(),
            default.len() * directions
        ));
    }
    let mut alphas = c.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = c.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut all = Vec::new();
    for name in names {
        let name = name.to_lowercase();
        let Some((alpha, beta)) = defaults(&name) else {
            return invalid(format!("activation `{name}`; expected one of ONNX's"));
        };
        // Values are for the functions that take them, in order.
        let pick = |default: Option<f64>, given: &mut dyn Iterator<Item = f64>| match default {
            Some(v) => given.next().unwrap_or(v),
            None => 0.0,
        };
        let (alpha, beta) = (pick(alpha, &mut alphas), pick(beta, &mut betas));
        all.push(Activation { name, alpha, beta });
    }
    Ok(all.chunks(default.len()).map(<[Activation]>::to_vec).collect())
}

/// `h @ R^T`, R captured.
fn times_r(i: &mut Iteration, h: &Tensor, r: &Tensor) -> Tensor {
    let r = i.capture(r);
    einsum("bh,gh->bg", &[h, &r])
}

pub(super) fn rnn(c: &mut Call<'_, '_, '_>) -> Answer {
    let cell = Cell {
        gates: 1,
        states: 1,
        functions: &["Tanh"],
    };
    let n = Network::new(c, &cell, false)?;
    let both = |b: &Tensor| b.narrow(0, 0, n.hidden) + b.narrow(0, n.hidden, n.hidden);
    let results = n.run(&both, &|i, d, old, x| {
        let sum = x + times_r(i, &old[0], &n.r.select_index(0, d as i64));
        vec![n.functions[d][0].apply(&n.clipped(sum))]
    });
    Ok(results.into_iter().map(Into::into).collect())
}

pub(super) fn gru(c: &mut Call<'_, '_, '_>) -> Answer {
    let cell = Cell {
        gates: 3,
        states: 1,
        functions: &["Sigmoid", "Tanh"],
    };
    let n = Network::new(c, &cell, false)?;
    let before = c.flag("linear_before_reset", false)?;
    let size = n.hidden;
    // Applied to the state before it is reset, R's bias of the candidate is inside the product with the reset gate.
    let biased = |b: &Tensor| {
        let (w, r) = (b.narrow(0, 0, 3 * size), b.narrow(0, 3 * size, 3 * size));
        match before {
            true => {
                let zero = b.graph().zeros([size], b.dtype());
                w + concat(&[&r.narrow(0, 0, 2 * size), &zero], 0)
            }
            false => w + r,
        }
    };
    let results = n.run(&biased, &|i, d, old, x| {
        let h = &old[0];
        let r = n.r.select_index(0, d as i64);
        let [f, g] = [&n.functions[d][0], &n.functions[d][1]];
        let part = |t: &Tensor, k: i64| t.narrow(1, k * size, size);
        let candidate;
        let z;
        if before {
            let product = times_r(i, h, &r);
            z = f.apply(&n.clipped(part(x, 0) + part(&product, 0)));
            let reset = f.apply(&n.clipped(part(x, 1) + part(&product, 1)));
            let mut linear = part(&product, 2);
            if let Some(b) = &n.b {
                linear += i.capture(&b.select_index(0, d as i64).narrow(0, 5 * size, size));
            }
            candidate = part(x, 2) + reset * linear;
        } else {
            let gates = times_r(i, h, &r.narrow(0, 0, 2 * size));
            z = f.apply(&n.clipped(part(x, 0) + part(&gates, 0)));
            let reset = f.apply(&n.clipped(part(x, 1) + part(&gates, 1)));
            candidate = part(x, 2) + times_r(i, &(reset * h), &r.narrow(0, 2 * size, size));
        }
        let candidate = g.apply(&n.clipped(candidate));
        vec![(1.0 - &z) * candidate + z * h]
    });
    Ok(results.into_iter().map(Into::into).collect())
}

pub(super) fn lstm(c: &mut Call<'_, '_, '_>) -> Answer {
    lstm_of(c, false)
}

/// As ONNX Runtime's quantizer writes an LSTM: weights are bytes, and what they are multiplied with is put into bytes by its range, the
/// input as a whole and the state anew in each step.
pub(super) fn dynamic_lstm(c: &mut Call<'_, '_, '_>) -> Answer {
    if c.tensor(0)?.dtype() != DType::F32 {
        return invalid(format!("operand 0 of {}; expected f32", c.tensor(0)?.dtype()));
    }
    for i in [1, 2, 9, 11] {
        let dtype = c.required(i)?.dtype();
        if !matches!(dtype, DType::U8 | DType::I8) {
            return invalid(format!("operand {i} of {dtype}; expected u8 or i8"));
        }
    }
    if c.value(4).is_some() {
        return unsupported("lengths of sequences (operand 4) beside weights of bytes; expected none");
    }
    lstm_of(c, true)
}

fn lstm_of(c: &mut Call<'_, '_, '_>, in_bytes: bool) -> Answer {
    let cell = Cell {
        gates: 4,
        states: 2,
        functions: &["Sigmoid", "Tanh", "Tanh"],
    };
    let n = Network::new(c, &cell, in_bytes)?;
    let coupled = c.flag("input_forget", false)?;
    let size = n.hidden;
    let peepholes = match c.optional(7)?.map(|p| p.cast(n.x.dtype())) {
        Some(p) => Some(of_shape("P", &p, &[Some(n.reverse.len() as i64), Some(3 * size)])?),
        None => None,
    };
    let both = |b: &Tensor| b.narrow(0, 0, 4 * size) + b.narrow(0, 4 * size, 4 * size);
    let results = n.run(&both, &|i, d, old, x| {
        let (h, cell) = (&old[0], &old[1]);
        let [f, g, last] = [&n.functions[d][0], &n.functions[d][1], &n.functions[d][2]];
        let weights = Weights {
            all: &n.r,
            bytes: n.bytes.as_ref().map(|[_, r]| r),
            direction: d as i64,
        };
        let gates = x + weights.times_state(i, h);
        // W and R are ordered input, output, forget, cell; P input, output, forget.
        let part = |k: i64| gates.narrow(1, k * size, size);
        let peep = |sum: Tensor, k: i64, cell: &Tensor| match &peepholes {
            Some(p) => sum + i.capture(&p.select_index(0, d as i64).narrow(0, k * size, size)) * cell,
            None => sum,
        };
        let input = f.apply(&n.clipped(peep(part(0), 0, cell)));
        let forget = match coupled {
            true => 1.0 - &input,
            false => f.apply(&n.clipped(peep(part(2), 2, cell))),
        };
        let candidate = g.apply(&n.clipped(part(3)));
        let next = forget * cell + input * candidate;
        let output = f.apply(&n.clipped(peep(part(1), 1, &next)));
        vec![output * last.apply(&next), next]
    });
    Ok(results.into_iter().map(Into::into).collect())
}
