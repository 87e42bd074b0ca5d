//! The asynchronous products of four warps, as NVRTC compiles kernels that have them, against plain loops; and what is found of
//! those that are broken.

mod broken;
mod products;

use half::{bf16, f16};
use tlc_gpusim::{Device, Launch, Module, Options, Report, Schedule};

/// The schedules that every kernel runs at.
pub(crate) const SCHEDULES: [(Schedule, u64); 4] = [
    (Schedule::RoundRobin, 0),
    (Schedule::Random, 7),
    (Schedule::Random, 8),
    (Schedule::Adversarial, 0),
];

/// How elements of operands are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Bf16,
    F16,
    Tf32,
}

impl Kept {
    /// The bytes of numbers, and the numbers that they are then.
    pub(crate) fn keep(self, numbers: &[f32]) -> (Vec<u8>, Vec<f64>) {
        let narrow = |v: f32| match self {
            Kept::Bf16 => (bf16::from_f32(v).to_le_bytes().to_vec(), bf16::from_f32(v).to_f64()),
            Kept::F16 => (f16::from_f32(v).to_le_bytes().to_vec(), f16::from_f32(v).to_f64()),
            Kept::Tf32 => (
                v.to_le_bytes().to_vec(),
                f64::from(f32::from_bits(v.to_bits() & !0x1fff)),
            ),
        };
        let (bytes, values): (Vec<_>, Vec<_>) = numbers.iter().map(|&v| narrow(v)).unzip();
        (bytes.concat(), values)
    }
}

/// Small numbers without a pattern, of at most 8 bits: their products and sums are exact in f32.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 57) as f32
    };
    (0..len).map(|_| (next() - 64.0) / 16.0).collect()
}

/// A device and what is launched on it.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) options: Options,
}

impl Bench {
    pub(crate) fn new(schedule: Schedule, seed: u64) -> Bench {
        let options = Options {
            schedule,
            seed,
            patience: 300_000,
            ..Options::default()
        };
        Bench {
            device: Device::default(),
            options,
        }
    }

    pub(crate) fn input(&mut self, bytes: &[u8]) -> u64 {
        let at = self.device.allocate(bytes.len() as u64).unwrap();
        self.device.write(at, bytes).unwrap();
        at
    }

    pub(crate) fn output(&mut self, len: usize) -> u64 {
        self.device.allocate(4 * len as u64).unwrap()
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * len];
        self.device.read(at, &mut bytes).unwrap();
        bytes
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn run(&mut self, module: &Module, kernel: &str, launch: &Launch) -> Report {
        self.device.launch(module, kernel, launch, &self.options).unwrap()
    }
}
