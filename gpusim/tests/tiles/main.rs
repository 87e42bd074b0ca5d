//! Copies of whole tiles and the barriers that count their bytes, as NVRTC compiles kernels that have them, against plain loops; and
//! what is found of those that are broken.

mod boxes;
mod broken;
mod products;

use tlc_gpusim::{Argument, Device, Launch, Module, Options, Report, Schedule, Swizzle, TensorMap};

pub(crate) const TILES: &str = include_str!("../kernels/tiles.sm_90a.ptx");

/// The schedules that every kernel runs at; of arrivals too.
pub(crate) const SCHEDULES: [(Schedule, u64); 6] = [
    (Schedule::RoundRobin, 0),
    (Schedule::RoundRobin, 1),
    (Schedule::Random, 7),
    (Schedule::Random, 8),
    (Schedule::Random, 9),
    (Schedule::Adversarial, 0),
];

/// Numbers without a pattern.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20
    }

    /// A number from one to another, that included.
    pub(crate) fn within(&mut self, first: i64, last: i64) -> i64 {
        first + (self.next() % (last - first + 1) as u64) as i64
    }
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

    pub(crate) fn output(&mut self, bytes: usize) -> u64 {
        self.device.allocate(bytes as u64).unwrap()
    }

    pub(crate) fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.device.read(at, &mut found).unwrap();
        found
    }

    pub(crate) fn floats(&self, at: u64, len: usize) -> Vec<f32> {
        let bytes = self.read(at, 4 * len);
        bytes
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn run(&mut self, module: &Module, kernel: &str, launch: &Launch) -> Report {
        self.device.launch(module, kernel, launch, &self.options).unwrap()
    }
}

/// A map as an argument.
pub(crate) fn argument(map: &TensorMap) -> Argument {
    Argument(map.encode().unwrap().to_vec())
}

/// A dense matrix of elements of so many bytes, in tiles of rows by columns.
pub(crate) fn matrix(address: u64, element_bytes: u32, (rows, columns): (u64, u64), tile: (u32, u32)) -> TensorMap {
    let swizzle = if tile.1 * element_bytes == 128 {
        Swizzle::Bytes128
    } else {
        Swizzle::None
    };
    TensorMap {
        address,
        element_bytes,
        sizes: vec![columns, rows],
        strides: vec![columns * u64::from(element_bytes)],
        tile: vec![tile.1, tile.0],
        swizzle,
    }
}
