//! Timed runs of a compiled model: what `bench` and `profile` share.

use std::time::{Duration, Instant};

use std::sync::Arc;
use tlc::explain::step_costs_of_call;

use tlc::runtime::memory::{AlignedBuffer, AllocError, HUGE_PAGE_BYTES};
use tlc::{Device, DeviceTensor, Executable, HostTensor, Input, LoopTime, OutputMut, RunError, Specialize, StepTime};
use tlc_ir::DType;
use tlc_ir::tensor::BytesOwner;
use tlc_passes::devices::Devices;

use crate::args::ModelArgs;
use crate::data::{InputSpec, Source, inputs};
use crate::failure::{Code, Failure};
use crate::run::check_memory;
use crate::session::{Model, Session};

/// Calls, and the most time, in which an executable is to find that sizes recur, and then whether the version for them is faster.
const CALLS_TO_SETTLE: u32 = 24;
const MOST_SETTLING: Duration = Duration::from_secs(10);

/// A compiled model with its data and buffers for its results.
pub struct Prepared {
    /// The model.
    pub model: Model,
    /// What the inputs' shapes say of the plan's symbols; `None` where data decides.
    pub sizes: Vec<Option<i64>>,
    /// The executable.
    pub executable: Executable,
    /// How long compiling took.
    pub compile: Duration,
    inputs: Vec<HostTensor>,
    outputs: Vec<(DType, AlignedBuffer)>,
}

impl Prepared {
    /// Compiles a model and makes its data: random where no file is given.
    pub fn new(
        session: &Session,
        args: &ModelArgs,
        specs: &[InputSpec],
        specialize: Specialize,
    ) -> Result<Prepared, Failure> {
        let model = session.model_for(args, specs)?;
        let inputs = inputs(session, &model.file, &model.graph, specs, Some(Source::Random))?;
        let start = Instant::now();
        let executable = session.compile_with(&model, specialize)?;
        let compile = start.elapsed();
        check_memory(session, &model.file, &executable, &inputs)?;
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let shapes = executable
            .output_shapes(&given)
            .map_err(|e| Failure::run(&model.file, &e))?;
        let sizes = executable.sizes(&given).map_err(|e| Failure::run(&model.file, &e))?;
        drop(given);
        let no_memory = |e: AllocError| Failure::at(Code::Limit, &model.file, e.to_string());
        let types = executable.plan().outputs.iter().map(|o| o.ty.dtype);
        let made = types.zip(&shapes).map(|(dtype, shape)| {
            let elements: usize = shape.iter().product();
            Ok((dtype, AlignedBuffer::zeroed(elements * dtype.bytes())?))
        });
        let outputs = made.collect::<Result<_, _>>().map_err(no_memory)?;
        let inputs = inputs
            .into_iter()
            .map(on_huge_pages)
            .collect::<Result<_, _>>()
            .map_err(no_memory)?;
        Ok(Prepared {
            model,
            sizes,
            executable,
            compile,
            inputs,
            outputs,
        })
    }

    /// Calls `body` with what a run takes.
    fn with<R>(
        &mut self,
        body: impl FnOnce(&Executable, &[Input<'_>], &mut [OutputMut<'_>]) -> Result<R, RunError>,
    ) -> Result<R, Failure> {
        let inputs: Vec<Input<'_>> = self.inputs.iter().map(Input::from).collect();
        let mut outputs: Vec<OutputMut<'_>> = self
            .outputs
            .iter_mut()
            .map(|(dtype, buffer)| OutputMut::bytes(*dtype, buffer.as_mut_slice()))
            .collect();
        let result = body(&self.executable, &inputs, &mut outputs);
        // Calls of the same sizes have a version made for them, which may be found to be wrong.
        if let Some(broken) = self.executable.broken() {
            return Err(crate::bug::saved(&self.model.file, &broken));
        }
        result.map_err(|e| Failure::run(&self.model.file, &e))
    }

    /// Nanoseconds of a warm call: samples of about a millisecond or one call each, for about `time`. Where a version for these sizes is made, once it
    /// was measured.
    pub fn samples(&mut self, time: Duration) -> Result<Vec<f64>, Failure> {
        let versions_after = self.compile + self.compile / 4;
        self.with(|executable, inputs, outputs| {
            executable.run_into(inputs, outputs)?;
            executable.place_constants();
            if executable.has_symbolic_sizes() {
                let begin = Instant::now();
                let mut calls = 0;
                while begin.elapsed() < MOST_SETTLING && (calls < CALLS_TO_SETTLE || begin.elapsed() < versions_after) {
                    executable.run_into(inputs, outputs)?;
                    calls += 1;
                }
                executable.wait_for_specializations();
                let begin = Instant::now();
                calls = 0;
                while begin.elapsed() < MOST_SETTLING && calls < CALLS_TO_SETTLE {
                    executable.run_into(inputs, outputs)?;
                    calls += 1;
                }
            }
            sampled(time, || executable.run_into(inputs, outputs), || Ok(()))
        })
    }

    /// As [`Prepared::samples`], of calls whose inputs and outputs stay in the memory of a GPU.
    pub fn resident_samples(&self, device: Device, time: Duration) -> Result<Vec<f64>, Failure> {
        let sampled = || {
            let uploaded = self.inputs.iter().map(|x| device.upload(x));
            let inputs: Vec<DeviceTensor> = uploaded.collect::<Result<_, _>>()?;
            let call = || self.executable.run_on_device(inputs.iter().map(Input::from)).map(drop);
            // The first compiles and finds memory, the second records.
            for _ in 0..2 {
                call()?;
            }
            // Calls return before they are done.
            sampled(time, call, || self.executable.synchronize())
        };
        sampled().map_err(|e| Failure::run(&self.model.file, &e))
    }

    /// Median nanoseconds of each step of a warm call, of those in loops too.
    pub fn steps(&mut self, time: Duration) -> Result<Times, Failure> {
        const MIN_RUNS: usize = 5;
        let (times, loops) = self.with(|executable, inputs, outputs| {
            executable.run_into(inputs, outputs)?;
            executable.place_constants();
            let mut times: Vec<StepTime> = Vec::new();
            let mut loops: Vec<Vec<LoopTime>> = Vec::new();
            let begin = Instant::now();
            while loops.len() < MIN_RUNS || (begin.elapsed() < time && loops.len() < 10_000 && times.len() < 10_000_000)
            {
                loops.push(executable.run_profiled(inputs, outputs, &mut times)?);
            }
            Ok((times, loops))
        })?;
        let calls: Vec<&[LoopTime]> = loops.iter().map(|l| &l[..]).collect();
        let loops = loop_medians(&calls);
        let mut per_step: Vec<Vec<f64>> = vec![Vec::new(); self.executable.plan().steps.len()];
        for t in times {
            if let Some(all) = per_step.get_mut(t.step) {
                all.push(t.ns as f64);
            }
        }
        Ok(Times {
            steps: per_step.into_iter().map(|mut all| median(&mut all)).collect(),
            loops,
        })
    }

    /// The least time of a call in nanoseconds, by the machine model, if every size is known. The iterations of loops are
    /// counted in a call. Transfers between the host and a device are left out of a call whose tensors stay on the device.
    pub fn floor_ns(&mut self, devices: &Devices, resident: bool) -> Result<Option<f64>, Failure> {
        let loops = self.with(|executable, views, buffers| executable.run_profiled(views, buffers, &mut Vec::new()))?;
        let costs = step_costs_of_call(self.executable.plan(), devices, &self.sizes, &loops);
        let counted = costs.iter().filter(|(_, c)| !resident || c.bound != "link");
        Ok(counted.map(|(_, c)| c.predicted_ns).sum())
    }
}

/// The tensor, copied to memory as results of calls and values between steps have it, if it is long: which pages it
/// happened to be read into moves a call that streams it by a third.
fn on_huge_pages(tensor: HostTensor) -> Result<HostTensor, AllocError> {
    let bytes = tensor.bytes();
    if bytes.len() < HUGE_PAGE_BYTES {
        return Ok(tensor);
    }
    let mut buffer = AlignedBuffer::zeroed(bytes.len())?;
    buffer.as_mut_slice().copy_from_slice(bytes);
    let owner: BytesOwner = Arc::new(buffer);
    Ok(HostTensor::from_owner(tensor.dtype(), tensor.shape(), &owner, 0).unwrap_or(tensor))
}

/// Nanoseconds of a call: samples of about a millisecond or one call each, for about `time`. Each ends when `wait` returns.
fn sampled(
    time: Duration,
    mut call: impl FnMut() -> Result<(), RunError>,
    wait: impl Fn() -> Result<(), RunError>,
) -> Result<Vec<f64>, RunError> {
    const SAMPLE_NS: f64 = 1e6;
    const MIN_SAMPLES: usize = 5;
    let start = Instant::now();
    call()?;
    wait()?;
    let once = start.elapsed().as_nanos().max(20) as f64;
    let calls = (SAMPLE_NS / once).clamp(1.0, 1e5) as u32;
    let mut samples = Vec::new();
    let begin = Instant::now();
    while samples.len() < MIN_SAMPLES || (begin.elapsed() < time && samples.len() < 100_000) {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        wait()?;
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    Ok(samples)
}

/// What the steps of a call took.
pub struct Times {
    /// Nanoseconds of each step.
    pub steps: Vec<f64>,
    /// Medians of what was measured in the loops.
    pub loops: Vec<LoopTime>,
}

/// The medians of what several calls measured in the same loops.
fn loop_medians(calls: &[&[LoopTime]]) -> Vec<LoopTime> {
    let middle = |of: &dyn Fn(&[LoopTime]) -> u64| {
        let mut all: Vec<u64> = calls.iter().map(|c| of(c)).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let first = calls.first().copied().unwrap_or_default();
    let one = |(k, one): (usize, &LoopTime)| LoopTime {
        step: one.step,
        iterations: middle(&|c| c[k].iterations),
        steps: (0..one.steps.len()).map(|s| middle(&|c| c[k].steps[s])).collect(),
        loops: loop_medians(&calls.iter().map(|c| &c[k].loops[..]).collect::<Vec<_>>()),
    };
    first.iter().enumerate().map(one).collect()
}

/// The median; 0 of nothing.
pub fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => 0.0,
        n if n % 2 == 1 => all[n / 2],
        n => (all[n / 2 - 1] + all[n / 2]) / 2.0,
    }
}
