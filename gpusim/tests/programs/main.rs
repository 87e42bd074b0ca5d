//! Programs in CUDA C++ as NVRTC compiles them, launched on the simulator and compared with plain Rust, at every schedule and
//! with every check.

mod collective;
mod elementwise;
mod matrix;

use tlc_gpusim::{Device, Launch, Module, Options, Report, Schedule};

/// The texts that NVRTC made, for an architecture before and one after its change of compiler.
pub(crate) const TEXTS: [&str; 2] = [
    include_str!("../kernels/programs.sm_80.ptx"),
    include_str!("../kernels/programs.sm_100.ptx"),
];

pub(crate) trait Plain: Copy {
    fn bytes(values: &[Self]) -> Vec<u8>;
    fn values(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! plain {
    ($($t:ty),*) => {
        $(impl Plain for $t {
            fn bytes(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            fn values(bytes: &[u8]) -> Vec<Self> {
                bytes.chunks_exact(size_of::<$t>()).map(|c| <$t>::from_le_bytes(c.try_into().unwrap())).collect()
            }
        })*
    };
}
plain!(u8, u16, u32, i32, f32, f64);

/// A device with a module.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) module: Module,
    pub(crate) options: Options,
}

impl Bench {
    pub(crate) fn input<T: Plain>(&mut self, values: &[T]) -> u64 {
        let bytes = T::bytes(values);
        let at = self.device.allocate(bytes.len() as u64).unwrap();
        self.device.write(at, &bytes).unwrap();
        at
    }

    pub(crate) fn output<T: Plain>(&mut self, len: usize) -> u64 {
        self.device.allocate((len * size_of::<T>()) as u64).unwrap()
    }

    pub(crate) fn read<T: Plain>(&self, at: u64, len: usize) -> Vec<T> {
        let mut bytes = vec![0; len * size_of::<T>()];
        self.device.read(at, &mut bytes).unwrap();
        T::values(&bytes)
    }

    /// Launches, and expects nothing to be wrong.
    pub(crate) fn run(&mut self, kernel: &str, launch: &Launch) -> Report {
        let report = self.device.launch(&self.module, kernel, launch, &self.options).unwrap();
        assert!(report.is_clean(), "{report}");
        report
    }
}

/// Runs a test for both texts at three schedules.
pub(crate) fn everywhere(test: impl Fn(&mut Bench)) {
    for text in TEXTS {
        for (schedule, seed) in [
            (Schedule::RoundRobin, 0),
            (Schedule::Random, 7),
            (Schedule::Adversarial, 0),
        ] {
            let module = Module::parse(text).unwrap();
            let options = Options {
                schedule,
                seed,
                ..Options::default()
            };
            test(&mut Bench {
                device: Device::default(),
                module,
                options,
            });
        }
    }
}

/// Numbers without a pattern, from -1 to 1.
pub(crate) fn floats(count: usize, seed: u64) -> Vec<f32> {
    integers(count, seed)
        .into_iter()
        .map(|v| (v >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// Bits without a pattern.
pub(crate) fn integers(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    };
    (0..count).map(|_| next()).collect()
}
