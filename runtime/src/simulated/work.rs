//! What a queue is given, and how it is done.

use tlc_ir::kernel::interp::{Buffers, interpret_on};
use tlc_ir::{DType, Scalar};

use super::World;
use crate::binding::product::{BoundMatrix, BoundProduct, StridedDim};
use crate::device::Mark;

/// Where bytes are.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Host(*mut u8),
    /// Number of a device, and an address there.
    On(usize, usize),
}

// SAFETY: who gives a job promises that its memory of the host stays until the job is done.
unsafe impl Send for Place {}

pub(super) enum Job {
    Launch {
        kernel: usize,
        args: Vec<usize>,
        symbols: Vec<i64>,
    },
    Multiply(Box<Product>),
    Copy {
        from: Place,
        to: Place,
        bytes: usize,
    },
    Fill {
        at: usize,
        byte: u8,
        bytes: usize,
    },
    Wait(Mark),
}

/// A product whose operands have addresses.
pub(super) struct Product {
    dtype: DType,
    batch: Vec<usize>,
    extents: [usize; 3],
    /// Left, right, result.
    matrices: [(BoundMatrix, usize); 3],
}

impl Product {
    pub(super) fn of(p: &BoundProduct, slots: &[*mut u8]) -> Product {
        let at = |m: &BoundMatrix| (m.clone(), slots[m.slot].addr());
        Product {
            dtype: p.dtype,
            batch: p.batch.clone(),
            extents: [p.m, p.n, p.k],
            matrices: [at(&p.lhs), at(&p.rhs), at(&p.dst)],
        }
    }
}

/// Elements from an address to the end of the buffer that it is in.
struct Elements {
    start: *mut u8,
    dtype: DType,
    len: usize,
}

impl Elements {
    fn get(&self, index: usize) -> Option<Scalar> {
        let width = self.dtype.bytes();
        if index >= self.len {
            return None;
        }
        let mut raw = [0u8; 8];
        // SAFETY: the element lies in the buffer.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(index * width), raw.as_mut_ptr(), width) };
        if cfg!(target_endian = "big") {
            raw.rotate_right(8 - width);
        }
        Some(Scalar::from_bits(self.dtype, u64::from_ne_bytes(raw)))
    }

    fn put(&self, index: usize, value: Scalar) -> Option<()> {
        let width = self.dtype.bytes();
        if index >= self.len || value.dtype() != self.dtype {
            return None;
        }
        let mut raw = value.bits().to_ne_bytes();
        if cfg!(target_endian = "big") {
            raw.rotate_left(8 - width);
        }
        // SAFETY: as in `get`; whoever calls has the world to itself.
        unsafe { std::ptr::copy_nonoverlapping(raw.as_ptr(), self.start.add(index * width), width) };
        Some(())
    }
}

/// The arguments of a kernel.
struct Args(Vec<Elements>);

impl Buffers for Args {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn dtype(&self, param: usize) -> DType {
        self.0[param].dtype
    }
    fn len(&self, param: usize) -> usize {
        self.0[param].len
    }
    fn load(&self, param: usize, index: usize) -> Scalar {
        let of = &self.0[param];
        // The interpreter keeps to the elements that there are.
        of.get(index).unwrap_or_else(|| Scalar::from_bits(of.dtype, 0))
    }
    fn store(&mut self, param: usize, index: usize, value: Scalar) {
        let _ = self.0[param].put(index, value);
    }
}

impl World {
    /// Where bytes are, if one buffer of a device has them.
    fn find(&mut self, device: usize, at: usize, bytes: usize) -> Result<(*mut u8, usize), String> {
        let memory = device.checked_sub(1).and_then(|d| self.memories.get_mut(d));
        memory
            .and_then(|m| m.find(at, bytes))
            .ok_or_else(|| format!("{bytes} bytes at {at:#x} are not in a buffer of device {device}"))
    }

    /// Does a job of a device.
    pub(super) fn run(&mut self, device: usize, job: Job) -> Result<(), String> {
        if !matches!(job, Job::Wait(_)) {
            self.jobs += 1;
            if self.fails_at.take_if(|at| *at < self.jobs).is_some() {
                return Err("it fails as it was asked to".into());
            }
        }
        match job {
            Job::Wait(_) => Ok(()),
            Job::Fill { at, byte, bytes } => {
                let (start, _) = self.find(device, at, bytes)?;
                // SAFETY: the bytes lie in one buffer, and the world is locked.
                unsafe { std::ptr::write_bytes(start, byte, bytes) };
                Ok(())
            }
            Job::Copy { from, to, bytes } => {
                match (from, to) {
                    (Place::Host(_), Place::On(..)) => self.moved.up += bytes as u64,
                    (Place::On(..), Place::Host(_)) => self.moved.down += bytes as u64,
                    _ => {}
                }
                let mut pointer = |place: Place| match place {
                    Place::Host(at) => Ok(at),
                    Place::On(device, at) => self.find(device, at, bytes).map(|found| found.0),
                };
                let (from, to) = (pointer(from)?, pointer(to)?);
                // SAFETY: what a device has lies in one buffer, what the host has is promised to whoever gave the job; the world is
                // locked.
                unsafe { std::ptr::copy(from, to, bytes) };
                Ok(())
            }
            Job::Launch { kernel, args, symbols } => {
                let params = self.kernels[kernel].params.clone();
                let mut buffers = Vec::with_capacity(params.len());
                for (param, at) in params.iter().zip(args) {
                    let len = param.len.eval_symbols(&symbols).unwrap_or(-1);
                    let len = usize::try_from(len).map_err(|_| format!("parameter of length {len}"))?;
                    let start = match len {
                        // Nothing has no place.
                        0 => std::ptr::null_mut(),
                        _ => self.find(device, at, len.saturating_mul(param.dtype.bytes()))?.0,
                    };
                    buffers.push(Elements {
                        start,
                        dtype: param.dtype,
                        len,
                    });
                }
                interpret_on(&self.kernels[kernel], &mut Args(buffers), &symbols).map_err(|e| e.to_string())
            }
            Job::Multiply(p) => self.multiply(device, &p),
        }
    }

    fn multiply(&mut self, device: usize, p: &Product) -> Result<(), String> {
        if p.matrices.iter().any(|(m, _)| !m.windowed.is_empty()) {
            return Err("windows over axes that end are multiplied by the host alone".into());
        }
        let [m, n, k] = p.extents;
        let entries: usize = p.batch.iter().product();
        if entries == 0 || m == 0 || n == 0 {
            return Ok(());
        }
        let width = p.dtype.bytes();
        let mut elements = Vec::new();
        for (number, (_, at)) in p.matrices.iter().enumerate() {
            // Sums over nothing read nothing.
            let (start, left) = match number < 2 && k == 0 {
                true => (std::ptr::null_mut(), 0),
                false => self.find(device, *at, width)?,
            };
            elements.push(Elements {
                start,
                dtype: p.dtype,
                len: left / width,
            });
        }
        let outside = || "a product leaves its buffer".to_string();
        let index = |matrix: usize, entry: isize, row: usize, column: usize| {
            let m = &p.matrices[matrix].0;
            let at = m.offset + entry + walked(&m.row, row) + walked(&m.column, column);
            usize::try_from(at).map_err(|_| outside())
        };
        for entry in 0..entries {
            let mut left = entry;
            let mut at = [0isize; 3];
            for axis in (0..p.batch.len()).rev() {
                let position = (left % p.batch[axis]) as isize;
                left /= p.batch[axis];
                for (at, (matrix, _)) in at.iter_mut().zip(&p.matrices) {
                    *at += position * matrix.batch[axis];
                }
            }
            for i in 0..m {
                for j in 0..n {
                    let mut sum = 0.0;
                    for t in 0..k {
                        let x = elements[0].get(index(0, at[0], i, t)?).ok_or_else(outside)?;
                        let y = elements[1].get(index(1, at[1], t, j)?).ok_or_else(outside)?;
                        sum += x.as_f64() * y.as_f64();
                    }
                    let value = Scalar::from_f64(p.dtype, sum);
                    elements[2].put(index(2, at[2], i, j)?, value).ok_or_else(outside)?;
                }
            }
        }
        Ok(())
    }
}

/// Elements from the first to one of that number.
fn walked(dims: &[StridedDim], mut number: usize) -> isize {
    let mut sum = 0;
    for (place, dim) in dims.iter().enumerate().rev() {
        let here = if place == 0 { number } else { number % dim.extent.max(1) };
        sum += here as isize * dim.stride;
        number /= dim.extent.max(1);
    }
    sum
}
