//! What the library decides about a product, and the product itself.

use std::ffi::{c_uint, c_void};

use tlc_ir::DType;

use super::super::library::{Address, Handle};
use super::library::{Algorithm, Library, NOT_SUPPORTED, Proposal, Status, checked};
use super::shape::{Places, Shape};
use super::value;

/// What the library keeps of a shape, which goes with it.
pub(in super::super) struct Multiplication {
    library: &'static Library,
    shape: Shape,
    operation: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
    workspace_bytes: usize,
}

// SAFETY: the library's descriptions are memory of the host, which nothing changes once they are made.
unsafe impl Send for Multiplication {}

/// Why the library does not decide about a shape.
#[derive(Debug)]
pub(in super::super) enum Refused {
    /// It has no algorithm that may be used, for this reason.
    NoAlgorithm(String),
    /// It failed.
    Failed(String),
}

impl From<String> for Refused {
    fn from(message: String) -> Refused {
        Refused::Failed(message)
    }
}

/// Sets an attribute of something of the library's.
fn set<T>(
    call: &'static str,
    f: unsafe extern "C" fn(Handle, c_uint, *const c_void, usize) -> Status,
    (of, attribute): (Handle, u32),
    value: &T,
) -> Result<(), String> {
    // SAFETY: the handle is alive, and the value has the type that the attribute has in the library's manual.
    checked(call, unsafe {
        f(of, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    })
}

impl Multiplication {
    /// Describes a product to the library, and has it choose how to compute it.
    pub(in super::super) fn new(
        library: &'static Library,
        handle: Handle,
        shape: Shape,
        bias: Address,
    ) -> Result<Multiplication, Refused> {
        let types = shape.types();
        let [element, sum, scale] = types.ok_or_else(|| format!("cuBLASLt does not multiply {}", shape.dtype))?;
        let null: Handle = std::ptr::null_mut();
        // What is made so far goes if something fails.
        let mut made = Multiplication {
            library,
            shape,
            operation: null,
            layouts: [null; 3],
            algorithm: Algorithm::default(),
            workspace_bytes: 0,
        };
        // SAFETY: a valid place for the result, here and below.
        let created = unsafe { (library.cublasLtMatmulDescCreate)(&mut made.operation, sum, scale) };
        checked("cublasLtMatmulDescCreate", created)?;
        for (attribute, of) in value::TURNED.into_iter().zip(&shape.layouts) {
            let turned = &value::OPERATIONS[usize::from(of.turned)];
            let call = "cublasLtMatmulDescSetAttribute";
            set(
                call,
                library.cublasLtMatmulDescSetAttribute,
                (made.operation, attribute),
                turned,
            )?;
        }
        for (layout, of) in made.layouts.iter_mut().zip(&shape.layouts) {
            // SAFETY: see above.
            let created =
                unsafe { (library.cublasLtMatrixLayoutCreate)(layout, element, of.rows, of.columns, of.leading) };
            checked("cublasLtMatrixLayoutCreate", created)?;
            let call = "cublasLtMatrixLayoutSetAttribute";
            let f = library.cublasLtMatrixLayoutSetAttribute;
            set(call, f, (*layout, value::BATCH_COUNT), &shape.batch)?;
            set(call, f, (*layout, value::BATCH_OFFSET), &of.stack)?;
        }
        if shape.epilogue != value::NOTHING {
            let call = "cublasLtMatmulDescSetAttribute";
            let f = library.cublasLtMatmulDescSetAttribute;
            set(call, f, (made.operation, value::EPILOGUE), &shape.epilogue)?;
            made.add(bias)?;
        }
        made.choose(handle)?;
        Ok(made)
    }

    /// Says where the bias is, if one is added.
    fn add(&self, bias: Address) -> Result<(), String> {
        if self.shape.epilogue & value::ADD_BIAS == 0 {
            return Ok(());
        }
        let f = self.library.cublasLtMatmulDescSetAttribute;
        set(
            "cublasLtMatmulDescSetAttribute",
            f,
            (self.operation, value::BIAS),
            &bias,
        )
    }

    /// Has the library choose an algorithm.
    fn choose(&mut self, handle: Handle) -> Result<(), Refused> {
        let library = self.library;
        let mut preference: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        let created = unsafe { (library.cublasLtMatmulPreferenceCreate)(&mut preference) };
        checked("cublasLtMatmulPreferenceCreate", created)?;
        let proposed = self.proposal(handle, preference);
        // SAFETY: made above, destroyed once.
        let _ = unsafe { (library.cublasLtMatmulPreferenceDestroy)(preference) };
        let Proposal {
            algorithm,
            workspace_bytes,
            ..
        } = proposed?;
        for (attribute, most) in [(value::PARTS_OF_SUM, 1), (value::REDUCTION, 0)] {
            let (mut found, mut written) = (0u32, 0);
            let room = std::ptr::from_mut(&mut found).cast();
            // SAFETY: valid places for the results, of the type that these attributes have.
            let asked = unsafe {
                (library.cublasLtMatmulAlgoConfigGetAttribute)(
                    &algorithm,
                    attribute,
                    room,
                    size_of::<u32>(),
                    &mut written,
                )
            };
            checked("cublasLtMatmulAlgoConfigGetAttribute", asked)?;
            if found > most {
                return Err(Refused::NoAlgorithm("it offers only to add up parts of sums".into()));
            }
        }
        if workspace_bytes as u64 > self.shape.workspace_bytes {
            return Err(Refused::NoAlgorithm(format!(
                "it wants {workspace_bytes} bytes to work in, and was told of fewer"
            )));
        }
        self.algorithm = algorithm;
        self.workspace_bytes = workspace_bytes;
        Ok(())
    }

    fn proposal(&self, handle: Handle, preference: Handle) -> Result<Proposal, Refused> {
        let (library, shape) = (self.library, &self.shape);
        let call = "cublasLtMatmulPreferenceSetAttribute";
        let f = library.cublasLtMatmulPreferenceSetAttribute;
        set(call, f, (preference, value::MOST_WORKSPACE), &shape.workspace_bytes)?;
        set(call, f, (preference, value::REDUCTIONS), &0u32)?;
        let [first, second, result] = shape.layouts.map(|l| l.alignment);
        for (attribute, alignment) in value::ALIGNMENTS.into_iter().zip([first, second, result, result]) {
            set(call, f, (preference, attribute), &alignment)?;
        }
        let (mut proposal, mut count) = (Proposal::default(), 0);
        let [a, b, c] = self.layouts;
        // SAFETY: all handles are alive, and there are valid places for one result and their number.
        let asked = unsafe {
            (library.cublasLtMatmulAlgoGetHeuristic)(
                handle,
                self.operation,
                a,
                b,
                c,
                c,
                preference,
                1,
                &mut proposal,
                &mut count,
            )
        };
        if asked == NOT_SUPPORTED {
            return Err(Refused::NoAlgorithm("it does not support the product".into()));
        }
        checked("cublasLtMatmulAlgoGetHeuristic", asked)?;
        match (count, proposal.state) {
            (1, 0) => Ok(proposal),
            _ => Err(Refused::NoAlgorithm("it proposes none".into())),
        }
    }

    /// Gives a stream the product. No other thread does at once.
    ///
    /// # Safety
    /// The context of `handle` is current on the thread, the stream is one of it, and the places hold matrices of this shape and as much memory
    /// to work in as was said, which nothing else touches meanwhile.
    pub(in super::super) unsafe fn give(&self, handle: Handle, places: &Places, stream: Handle) -> Result<(), String> {
        // Factors of the product, and of what the result held before, which is not read.
        let (single, double) = ([1f32, 0.0], [1f64, 0.0]);
        let [one, zero]: [*const c_void; 2] = match self.shape.dtype {
            DType::F64 => double.each_ref().map(|v| std::ptr::from_ref(v).cast()),
            _ => single.each_ref().map(|v| std::ptr::from_ref(v).cast()),
        };
        let [left, right, result] = places
            .matrices
            .map(|at| std::ptr::without_provenance_mut::<c_void>(at as usize));
        let [a, b] = if self.shape.swapped {
            [right, left]
        } else {
            [left, right]
        };
        self.add(places.bias)?;
        let [first, second, of_result] = self.layouts;
        let workspace = std::ptr::without_provenance_mut(places.workspace as usize);
        // SAFETY: the descriptions are alive and agree with the algorithm; the caller promises the rest.
        let given = unsafe {
            (self.library.cublasLtMatmul)(
                handle,
                self.operation,
                one,
                a,
                first,
                b,
                second,
                zero,
                result,
                of_result,
                result,
                of_result,
                &self.algorithm,
                workspace,
                self.workspace_bytes,
                stream,
            )
        };
        checked("cublasLtMatmul", given)
    }
}

impl Drop for Multiplication {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
            // SAFETY: made in `new`, destroyed once.
            let _ = unsafe { (self.library.cublasLtMatrixLayoutDestroy)(layout) };
        }
        if !self.operation.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (self.library.cublasLtMatmulDescDestroy)(self.operation) };
        }
    }
}
