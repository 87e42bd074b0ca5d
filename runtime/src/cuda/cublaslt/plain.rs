//! The kernel of tlc's own that multiplies where the library has no algorithm for a shape: a thread for each result, which adds up its terms
//! in their order. It is made when the shape is first seen, and is there so that nothing is refused; it is not fast.

use std::ffi::c_void;
use std::sync::Arc;

use tlc_ir::DType;
use tlc_ir::target::EmitterId;
use tlc_ir::text::{no_data, parse_module};

use super::super::compile::{Function, Loaded, Wanted, load};
use super::super::context::Context;
use super::super::library::Handle;
use super::shape::{Layout, Places, Shape};
use crate::device::ToLoad;
use crate::error::RunError;

/// Threads of a block.
const THREADS: u64 = 256;

/// The kernel of a shape, loaded.
pub(in super::super) struct PlainProduct {
    function: Function,
    blocks: u32,
    swapped: bool,
    // The function is in it.
    _loaded: Vec<Loaded>,
}

impl Layout {
    /// Elements from the first to one past the last of a stack of so many.
    fn extent(&self, batch: u64) -> u64 {
        let matrix = (self.columns - 1) * self.leading.unsigned_abs() + self.rows;
        (batch - 1) * self.stack.unsigned_abs() + matrix
    }

    /// Where the element of a row and a column of what is multiplied is.
    fn element(&self, row: &str, column: &str, entry: &str) -> String {
        let [down, across] = match self.turned {
            false => [row, column],
            true => [column, row],
        };
        format!("{}*{entry} + {}*{across} + {down}", self.stack, self.leading)
    }
}

impl Shape {
    /// How many results there are.
    fn results(&self) -> u64 {
        let result = &self.layouts[2];
        u64::from(self.batch.unsigned_abs()) * result.rows * result.columns
    }

    /// The kernel, as its text: what it multiplies lies by columns, as for the library.
    fn text(&self) -> String {
        let batch = u64::from(self.batch.unsigned_abs());
        let [a, b, d] = &self.layouts;
        let dtype = self.dtype;
        let sum = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let number = format!("{THREADS}*i0 + i1");
        let (row, column) = (
            format!("mod({number}, {})", d.rows),
            format!("mod(div({number}, {}), {})", d.rows, d.columns),
        );
        let entry = format!("div({number}, {})", d.rows * d.columns);
        let terms = if a.turned { a.rows } else { a.columns };
        // A conversion to the same type is none.
        let (widened, factors, [product, whole], narrowed, value) = match dtype == sum {
            true => (String::new(), "%4, %5", [6, 7], String::new(), "%7"),
            false => (
                format!("        %6: {sum} = convert %4\n        %7: {sum} = convert %5\n"),
                "%6, %7",
                [8, 9],
                format!("      %10: {dtype} = convert %9\n"),
                "%10",
            ),
        };
        format!(
            "kernel @plain(p0: {dtype}[{}] read, p1: {dtype}[{}] read, p2: {dtype}[{}] write) {{
  scratch r0: {sum}[1] thread
  for i0 in 0..{} block {{
    for i1 in 0..{THREADS} thread {{
      %0: i64 = index {number}
      %1: i64 = const {}
      %2: bool = lt %0, %1
      %3: {sum} = const 0.0
      store r0[0], %3
      for i2 in 0..{terms} serial {{
        %4: {dtype} = load p0[{}] if %2
        %5: {dtype} = load p1[{}] if %2
{widened}        %{product}: {sum} = mul {factors}
        accumulate add r0[0] with %{product}
      }}
      %{whole}: {sum} = load r0[0]
{narrowed}      store p2[{}], {value} if %2
    }}
  }}
}}
",
            a.extent(batch),
            b.extent(batch),
            d.extent(batch),
            self.results().div_ceil(THREADS),
            self.results(),
            a.element(&row, "i2", &entry),
            b.element("i2", &column, &entry),
            d.element(&row, &column, &entry),
        )
    }
}

impl PlainProduct {
    /// Makes the kernel of a shape.
    ///
    /// # Errors
    /// If it cannot be compiled or loaded.
    pub(in super::super) fn new(context: &Arc<Context>, shape: &Shape) -> Result<PlainProduct, RunError> {
        let broken = |message: String| RunError::Device {
            device: context.properties().title(),
            message,
        };
        let parsed = parse_module(&shape.text(), &mut no_data);
        let parsed = parsed.map_err(|e| broken(format!("a bug in tlc: {}", e[0])))?;
        let [(_, kernel)] = &parsed.kernels[..] else {
            return Err(broken("a bug in tlc: a product is one kernel".into()));
        };
        let blocks = u32::try_from(shape.results().div_ceil(THREADS)).ok();
        let blocks = blocks.filter(|b| *b <= i32::MAX as u32);
        let blocks = blocks.ok_or_else(|| broken("a product has more results than a grid has threads".into()))?;
        let wanted = ToLoad {
            kernel,
            emitter: EmitterId::default(),
            in_place: false,
        };
        let (loaded, mut functions) = load(context, &[Wanted::Kernel(wanted)], 1)?;
        let function = functions.pop();
        Ok(PlainProduct {
            function: function.ok_or_else(|| broken("a bug in tlc: a kernel is no function".into()))?,
            blocks,
            swapped: shape.swapped,
            _loaded: loaded,
        })
    }

    /// Gives a stream the product.
    ///
    /// # Safety
    /// The stream is one of the context, and the places hold matrices of the kernel's shape, which nothing else touches meanwhile.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(in super::super) unsafe fn give(
        &self,
        context: &Context,
        places: &Places,
        stream: Handle,
    ) -> Result<(), RunError> {
        let [left, right, result] = places.matrices;
        let mut values = match self.swapped {
            true => [right, left, result],
            false => [left, right, result],
        };
        let mut params = values.each_mut().map(|v| std::ptr::from_mut(v).cast::<c_void>());
        // SAFETY: the function has a pointer for each matrix, as the emitter writes them; the caller promises what they point to.
        context.call("cuLaunchKernel", |d| unsafe {
            (d.cuLaunchKernel)(
                self.function.handle,
                self.blocks,
                1,
                1,
                THREADS as u32,
                1,
                1,
                self.function.dynamic_shared_bytes,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use tlc_ir::HostTensor;
    use tlc_ir::kernel::interp::interpret;
    use tlc_ir::kernel::verify::verify;

    use super::*;

    fn layout(rows: u64, columns: u64, gap: i64, stack: i64, turned: bool) -> Layout {
        Layout {
            rows,
            columns,
            leading: rows as i64 + gap,
            stack,
            turned,
            alignment: 4,
        }
    }

    /// Every way that matrices lie: the text is a valid kernel that means the product, whose last block is not full.
    #[test]
    fn the_kernel_is_the_product() {
        let [m, n, k] = [9u64, 31, 5];
        for (turns, batch) in [([false; 2], 1), ([true, false], 3), ([false, true], 2), ([true; 2], 1)] {
            let a = match turns[0] {
                true => layout(k, m, 2, 90, true),
                false => layout(m, k, 1, 60, false),
            };
            let b = match turns[1] {
                true => layout(n, k, 0, 200, true),
                false => layout(k, n, 3, 0, false),
            };
            let shape = |dtype| Shape {
                dtype,
                layouts: [a, b, layout(m, n, 1, 400, false)],
                swapped: false,
                batch,
                workspace_bytes: 0,
                epilogue: 1,
            };
            let parsed = |dtype| {
                let text = shape(dtype).text();
                let mut module = parse_module(&text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
                let kernel = module.kernels.remove(0).1;
                let report = verify(&kernel);
                assert!(report.errors.is_empty(), "{:?}\n{text}", report.errors);
                kernel
            };
            for dtype in [DType::F64, DType::F16, DType::BF16] {
                parsed(dtype);
            }
            let kernel = parsed(DType::F32);
            let entries = batch.unsigned_abs().into();
            let filled = |l: &Layout, seed: usize| {
                let values: Vec<f32> = (0..l.extent(entries) as usize)
                    .map(|i| ((i * 7 + seed) % 13) as f32 - 6.0)
                    .collect();
                HostTensor::from_slice(&[values.len()], &values).expect("as many")
            };
            let unwritten = vec![f32::NAN; shape(DType::F32).layouts[2].extent(entries) as usize];
            let result = HostTensor::from_slice(&[unwritten.len()], &unwritten).expect("as many");
            let mut buffers = [filled(&a, 1), filled(&b, 2), result];
            interpret(&kernel, &mut buffers, &[]).expect("it runs");
            let [left, right, found] = buffers.each_ref().map(|t| t.as_slice::<f32>().expect("f32"));
            let at = |l: &Layout, [row, column]: [u64; 2], entry: u64| {
                let [down, across] = if l.turned { [column, row] } else { [row, column] };
                (entry * l.stack as u64 + across * l.leading as u64 + down) as usize
            };
            let d = shape(DType::F32).layouts[2];
            let mut written = 0;
            for entry in 0..entries {
                for row in 0..m {
                    for column in 0..n {
                        let term = |t: u64| left[at(&a, [row, t], entry)] * right[at(&b, [t, column], entry)];
                        let expected: f32 = (0..k).map(term).sum();
                        assert_eq!(found[at(&d, [row, column], entry)], expected, "{row} {column} {entry}");
                        written += 1;
                    }
                }
            }
            // What lies between results is left alone.
            assert_eq!(found.iter().filter(|v| !v.is_nan()).count(), written);
        }
    }
}
