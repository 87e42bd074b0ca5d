//! What is measured: a workload is one computation, written for tlc and for the libraries beside it.
//!
//! Inputs are numbers in -1..1 (0.5..1.5 where [`Workload::positive`] says so), the same for every library. Answers are
//! compared by their first output.
//!
//! The tolerance is derived. Two orders of summing `n` terms differ, with a probability of failure below 2n exp(-18), by at
//! most `2 * 6 * sqrt(n) * u * sum |terms|` (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, with lambda = 6), where `u`
//! is 2^-24 for f32 and 2^-53 for f64. A workload states `n` ([`Workload::roundings`], the longest chain of roundings on the
//! way to an output element; a transcendental function counts 16, as its error is up to 4 units) and `sum |terms|`
//! ([`Workload::magnitude`], for inputs of this size). Indices must be equal.

use candle_core::Tensor as Candle;

/// A library's own code over plain memory: inputs, output, threads.
pub type Native = Box<dyn Fn(&[&[u8]], &mut [u8], usize)>;
/// Records a graph: inputs to outputs.
pub type Record = Box<dyn Fn(&[tlc::Tensor]) -> Vec<tlc::Tensor>>;
/// The same in candle: inputs to the first output. Side outputs are computed as well.
pub type InCandle = Box<dyn Fn(&[Candle]) -> candle_core::Result<Candle>>;

/// One computation.
pub struct Workload {
    /// As in the table of peers.
    pub name: String,
    /// Shapes of the inputs.
    pub inputs: Vec<Vec<usize>>,
    /// Element type of inputs and outputs: f32 unless this is set.
    pub double: bool,
    /// Inputs (by position) that are 0.5..1.5.
    pub positive: Vec<usize>,
    /// Floating-point operations as the table of peers counts them: a multiply-add two, a transcendental 20.
    pub flops: f64,
    /// Longest chain of roundings.
    pub roundings: f64,
    /// Bound on the sum of absolute terms of an output element.
    pub magnitude: f64,
    /// For tlc.
    pub record: Record,
    /// For candle.
    pub candle: Option<InCandle>,
    /// For other libraries.
    pub native: Vec<(&'static str, Native)>,
}

impl Workload {
    /// A workload of one output, by tlc alone.
    pub fn new(name: &str, inputs: &[&[usize]], record: impl Fn(&[tlc::Tensor]) -> tlc::Tensor + 'static) -> Workload {
        Workload {
            name: name.to_owned(),
            inputs: inputs.iter().map(|s| s.to_vec()).collect(),
            double: false,
            positive: Vec::new(),
            flops: 0.0,
            roundings: 2.0,
            magnitude: 2.0,
            record: Box::new(move |t| vec![record(t)]),
            candle: None,
            native: Vec::new(),
        }
    }

    /// With its cost, and what the tolerance derives from.
    #[must_use]
    pub fn costs(mut self, flops: f64, roundings: f64, magnitude: f64) -> Workload {
        self.flops = flops;
        self.roundings = roundings;
        self.magnitude = magnitude;
        self
    }

    /// With candle beside.
    #[must_use]
    pub fn candle(mut self, f: impl Fn(&[Candle]) -> candle_core::Result<Candle> + 'static) -> Workload {
        self.candle = Some(Box::new(f));
        self
    }

    /// With another library beside, on f32.
    #[must_use]
    pub fn native(mut self, name: &'static str, f: impl Fn(&[&[f32]], &mut [f32], usize) + 'static) -> Workload {
        let f = move |inputs: &[&[u8]], out: &mut [u8], threads: usize| {
            let inputs: Vec<&[f32]> = inputs.iter().map(|i| bytemuck::cast_slice(i)).collect();
            f(&inputs, bytemuck::cast_slice_mut(out), threads);
        };
        self.native.push((name, Box::new(f)));
        self
    }

    /// With ndarray beside, on f32.
    #[must_use]
    pub fn ndarray(self, f: impl Fn(&[&[f32]], &mut [f32]) + 'static) -> Workload {
        self.native("ndarray", move |inputs, out, _| f(inputs, out))
    }

    /// The largest difference between two right answers.
    pub fn tolerance(&self) -> f64 {
        let unit = 2f64.powi(if self.double { -53 } else { -24 });
        2.0 * 6.0 * self.roundings.sqrt() * unit * self.magnitude
    }
}

/// Every workload; those over 32M elements or 10^11 operations only if `large`.
pub fn all(large: bool) -> Vec<Workload> {
    let mut out = crate::elementwise::all(large);
    out.extend(crate::reduce::all());
    out.extend(crate::linear::all(large));
    out.extend(crate::network::all(large));
    out
}
