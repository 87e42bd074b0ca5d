//! Tensors in the memory of a device, and calls that leave results there.
//!
//! Invariant: the code for such calls is compiled once, by the first of them, from the same graph and options as the rest.

use std::ops::{Deref, Index};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tlc_ir::Graph as IrGraph;
use tlc_ir::plan::DeviceId;
use tlc_runtime::cuda::{self, PoolUse};
use tlc_runtime::driver::{DeviceTensor, RunError, TensorView};

use super::input::{self, Input};
use super::{BuildError, Compiler, Device, Executable, Version};

impl Device {
    /// Copies data of the host to the device. Elements without a shape are a vector.
    ///
    /// # Errors
    /// If the device is the processor or cannot be used, or has no memory for it.
    pub fn upload<'a>(self, data: impl Into<Input<'a>>) -> Result<DeviceTensor, RunError> {
        let Device::Cuda(ordinal) = self else {
            return Err(RunError::NoDevice);
        };
        let tensor = data.into().to_host()?;
        let view = TensorView {
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            data: tensor.aligned_bytes(),
        };
        DeviceTensor::upload(&cuda::shared(ordinal)?, view)
    }

    /// What this process has of the memory of a GPU, and how much of it is idle.
    ///
    /// # Errors
    /// If the device is the processor or cannot be used.
    pub fn pool_use(self) -> Result<PoolUse, RunError> {
        self.context()?.pool_use()
    }

    /// Gives the memory of a GPU back that is kept for the next call, so that others may have it; whether there was any. It goes back by
    /// itself where memory runs out and with the last executable.
    ///
    /// # Errors
    /// If the device is the processor or cannot be used.
    pub fn release_idle_memory(self) -> Result<bool, RunError> {
        self.context()?.release_idle_memory()
    }

    fn context(self) -> Result<Arc<cuda::Context>, RunError> {
        match self {
            Device::Cpu => Err(RunError::NoDevice),
            Device::Cuda(ordinal) => Ok(cuda::open(ordinal)?),
        }
    }
}

/// The results of [`Executable::run_on_device`], in the order in which the graph names them; by position and by name.
#[derive(Debug)]
pub struct DeviceOutputs {
    names: Vec<String>,
    tensors: Vec<DeviceTensor>,
}

impl DeviceOutputs {
    /// The result of that name.
    pub fn named(&self, name: &str) -> Option<&DeviceTensor> {
        self.tensors.get(self.names.iter().position(|n| n == name)?)
    }

    /// Takes the result at a position out; those behind it move up.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, position: usize) -> DeviceTensor {
        self.names.remove(position);
        self.tensors.remove(position)
    }

    /// The results as a vector.
    pub fn into_vec(self) -> Vec<DeviceTensor> {
        self.tensors
    }
}

impl Deref for DeviceOutputs {
    type Target = [DeviceTensor];
    fn deref(&self) -> &[DeviceTensor] {
        &self.tensors
    }
}

impl Index<&str> for DeviceOutputs {
    type Output = DeviceTensor;
    /// The result of that name.
    ///
    /// # Panics
    /// If there is none.
    fn index(&self, name: &str) -> &DeviceTensor {
        match self.named(name) {
            Some(tensor) => tensor,
            None => panic!("no output is called `{name}`; expected {}", self.names.join(", ")),
        }
    }
}

/// What calls whose tensors stay on the device are compiled from, and the code for them.
pub(super) struct Resident {
    compiler: Compiler,
    graph: IrGraph,
    version: OnceLock<Result<Version, BuildError>>,
}

impl Resident {
    pub(super) fn new(compiler: &Compiler, graph: &IrGraph) -> Resident {
        let mut compiler = compiler.clone();
        compiler.options.caller = DeviceId(1);
        Resident {
            compiler,
            graph: graph.clone(),
            version: OnceLock::new(),
        }
    }

    fn version(&self) -> Result<&Version, RunError> {
        let version = self.version.get_or_init(|| {
            let threads = self.compiler.machine.threads.threads();
            self.compiler
                .version(&self.graph, self.compiler.decide(&self.graph, threads)?, threads)
        });
        version
            .as_ref()
            .map_err(|e| RunError::Resident { message: e.to_string() })
    }
}

impl Executable {
    /// Waits for all calls whose results stay on the GPU.
    ///
    /// # Errors
    /// If one of them failed.
    pub fn synchronize(&self) -> Result<(), RunError> {
        let resident = self.resident.as_ref().and_then(|r| r.version.get());
        match resident {
            Some(Ok(version)) => version.inner.synchronize(),
            _ => Ok(()),
        }
    }

    /// As [`Executable::run`], with results that stay in the memory of the GPU that the graph was compiled for. Inputs may be there as well,
    /// lent or given away: an output is computed in the memory of an input that is given away where the plan allows it (see
    /// [`tlc_ir::Plan::donations`]). What the host gives is copied. The first such call compiles the code for them.
    ///
    /// ```no_run
    /// use tlc::{CompileOptions, DType, Device, Graph, inputs};
    ///
    /// let g = Graph::new("decay");
    /// let (x, k) = (g.input("x", DType::F32, [4]), g.input("k", DType::F32, ()));
    /// g.output("y", &(&x * &k));
    /// let device = Device::cuda(0);
    /// let decay = g.compile(&CompileOptions { device, ..CompileOptions::default() })?;
    /// let mut state = device.upload(&[8.0f32, 4.0, 2.0, 1.0])?;
    /// for _ in 0..3 {
    ///     // Given away: `y` is computed where `x` was.
    ///     state = decay.run_on_device(inputs![state, 0.5f32])?.remove(0);
    /// }
    /// assert_eq!(state.to_host()?.as_slice::<f32>(), Some(&[1.0, 0.5, 0.25, 0.125][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Where all of the graph is computed on the GPU, the call returns before that is done: results may be given to other calls at once, which
    /// come behind it, and who reads one waits ([`DeviceTensor::to_host`], [`DeviceTensor::synchronize`], or [`Executable::synchronize`] for
    /// all). What the GPU fails in is an error there, and of calls behind it. Loops, sizes that data decides and what the host computes are
    /// waited for as before.
    ///
    /// # Errors
    /// As [`Executable::run`]; if the graph was compiled for the processor alone; if an input is in the memory of another device. What
    /// was given away is gone all the same.
    pub fn run_on_device<'a>(&self, inputs: impl IntoIterator<Item = Input<'a>>) -> Result<DeviceOutputs, RunError> {
        if !self.states().is_empty() {
            let expected = self.states().len();
            return Err(RunError::StateCount { expected, found: 0 });
        }
        let resident = self.resident.as_ref().ok_or(RunError::NoDevice)?;
        let version = resident.version()?;
        let plan = version.inner.plan();
        let mut inputs: Vec<Input<'a>> = inputs.into_iter().collect();
        let mut extents: SmallVec<[usize; 32]> = SmallVec::new();
        input::infer(plan, (&self.symbols, &|_| {}), &inputs, true, &mut |n| extents.push(n))?;
        let residents = input::residents(plan, &mut inputs, &extents);
        let limit = resident.compiler.options.max_memory_bytes;
        if let Some(limit) = limit.filter(|_| !plan.symbols.is_empty()) {
            version.inner.resident_memory(&residents)?.within(limit)?;
        }
        let tensors = version.inner.run_resident(residents)?;
        Ok(DeviceOutputs {
            names: plan.outputs.iter().map(|o| o.name.clone()).collect(),
            tensors,
        })
    }
}
