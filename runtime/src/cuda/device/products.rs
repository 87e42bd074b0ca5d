//! Products of a GPU: given to the library, or recorded as graphs of their own.
//!
//! Invariants:
//! - What the library decides about a shape is kept, and decided before anything of that shape is captured. Where it has no algorithm, a
//!   kernel of tlc's own is compiled then.
//! - A product that is recorded is one node, a graph that a stream of its own captured: whichever kernels the library makes of it, that node alone
//!   changes when a matrix moves. What was captured is kept with the addresses that it is for, so that matrices which come back to where they
//!   were before change the node and nothing else.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::context::Context;
use super::super::cublaslt::{Multiplication, Places as At, PlainProduct, Refused, Shape};
use super::super::graph::{Node, Operation, forget};
use super::super::library::Handle;
use super::{CAPTURE_MODE, Gpu, STREAM_FLAGS, State};
use crate::binding::product::{BoundLibraryEpilogue, BoundMatrix, BoundProduct};
use crate::device::{Device, KernelHandle, Places, RECORDED};
use crate::error::RunError;

/// Shapes that a device keeps: one executable may see any number of sizes.
const MOST_SHAPES: usize = 256;
/// Graphs that it keeps of a shape, each for other addresses, and of all shapes together.
const MOST_GRAPHS: [usize; 2] = [256, 1024];
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;

/// What a device keeps of products.
#[derive(Default)]
pub(super) struct Products {
    known: FxHashMap<Shape, Decided>,
    /// How many graphs there are of them.
    graphs: usize,
    /// It captures products, and does nothing.
    stream: Option<Handle>,
}

/// A shape that the library has decided about.
struct Decided {
    by: By,
    /// What was captured for these addresses; what was asked for last is last.
    graphs: Vec<(At, Handle)>,
}

/// What computes a shape.
enum By {
    Library(Multiplication),
    Kernel(PlainProduct),
    /// The library computes the product, and not what is behind it.
    Apart,
}

// SAFETY: the handles are the driver's, which takes them on every thread.
unsafe impl Send for Decided {}

/// An error of the library's.
fn refused(context: &Context, message: String) -> RunError {
    RunError::Device {
        device: context.properties().title(),
        message,
    }
}

impl Products {
    /// The stream that captures products, to be destroyed with the device.
    pub(super) fn stream(&self) -> Option<Handle> {
        self.stream
    }

    /// Has the library decide about a shape, unless it has. Whether that is computed as a whole.
    fn decide(&mut self, context: &Arc<Context>, shape: Shape, at: &At) -> Result<bool, RunError> {
        if let Some(known) = self.known.get(&shape) {
            return Ok(!matches!(known.by, By::Apart));
        }
        let products = context.products()?;
        // With the context current on the thread, and an error if the device is lost.
        context.call("cublasLtMatmulAlgoGetHeuristic", |_| 0)?;
        let by = match Multiplication::new(products.library, products.handle, shape, at.bias) {
            Ok(decided) => By::Library(decided),
            Err(Refused::NoAlgorithm(why)) if shape.has_epilogue() => {
                tracing::debug!(
                    "cuBLASLt has no algorithm for a product with its epilogue ({why}): a kernel runs behind it"
                );
                By::Apart
            }
            Err(Refused::NoAlgorithm(why)) => {
                tracing::warn!("cuBLASLt has no algorithm for a product ({why}): a kernel of tlc's own computes it");
                By::Kernel(PlainProduct::new(context, &shape)?)
            }
            Err(Refused::Failed(message)) => return Err(refused(context, message)),
        };
        if self.known.len() >= MOST_SHAPES {
            self.forget(context);
            // Recordings have nodes of kernels.
            self.known.retain(|_, d| matches!(d.by, By::Kernel(_)));
        }
        let whole = !matches!(by, By::Apart);
        let decided = Decided { by, graphs: Vec::new() };
        self.known.insert(shape, decided);
        Ok(whole)
    }

    /// Gives back what was captured.
    pub(super) fn forget(&mut self, context: &Context) {
        let all = self.known.values_mut().flat_map(|d| d.graphs.drain(..));
        all.for_each(|(_, graph)| forget(context, graph));
        self.graphs = 0;
    }

    /// Gives a stream a product whose shape was decided about.
    ///
    /// # Safety
    /// As for [`Multiplication::give`], the context aside.
    unsafe fn give(&self, context: &Context, (shape, at): (&Shape, &At), stream: Handle) -> Result<(), RunError> {
        let Some(known) = self.known.get(shape) else {
            return Err(refused(
                context,
                "a bug in tlc: nothing was decided about a product".into(),
            ));
        };
        match &known.by {
            By::Library(multiplication) => {
                let products = context.products()?;
                context.call("cublasLtMatmul", |_| 0)?;
                // SAFETY: the context is current, and the caller promises the rest.
                let given = unsafe { multiplication.give(products.handle, at, stream) };
                given.map_err(|message| refused(context, message))
            }
            // SAFETY: the caller's promise.
            By::Kernel(kernel) => unsafe { kernel.give(context, at, stream) },
            By::Apart => Err(refused(
                context,
                "a bug in tlc: the library cannot compute an epilogue".into(),
            )),
        }
    }

    /// A graph of a product whose shape was decided about, which stays the products': a node that is made of it copies it.
    ///
    /// # Safety
    /// As for [`Multiplication::give`], when the graph is launched.
    pub(super) unsafe fn captured(&mut self, context: &Context, shape: &Shape, at: &At) -> Result<Handle, RunError> {
        if let Some(Decided { graphs, .. }) = self.known.get_mut(shape)
            && let Some(known) = graphs.iter().position(|g| g.0 == *at)
        {
            graphs[known..].rotate_left(1);
            return Ok(graphs[graphs.len() - 1].1);
        }
        // SAFETY: the caller's promise.
        let graph = unsafe { self.capture(context, shape, at) }?;
        let [most_of_shape, most] = MOST_GRAPHS;
        if self.graphs >= most {
            self.forget(context);
        }
        if let Some(Decided { graphs, .. }) = self.known.get_mut(shape) {
            if graphs.len() >= most_of_shape {
                forget(context, graphs.remove(0).1);
                self.graphs -= 1;
            }
            graphs.push((*at, graph));
            self.graphs += 1;
        }
        Ok(graph)
    }

    /// Captures a product.
    ///
    /// # Safety
    /// As for [`Products::captured`].
    unsafe fn capture(&self, context: &Context, shape: &Shape, at: &At) -> Result<Handle, RunError> {
        let Some(stream) = self.stream else {
            return Err(refused(context, "a bug in tlc: nothing captures products".into()));
        };
        // SAFETY: a stream of this context, which nothing else is given to.
        context.call("cuStreamBeginCapture_v2", |d| unsafe {
            (d.cuStreamBeginCapture_v2)(stream, CAPTURE_MODE)
        })?;
        // SAFETY: the caller's promise.
        let given = unsafe { self.give(context, (shape, at), stream) };
        let mut graph: Handle = std::ptr::null_mut();
        // Also if something failed: the capture is over.
        // SAFETY: a valid place for the result, and a stream that captures.
        let ended = context.call("cuStreamEndCapture", |d| unsafe {
            (d.cuStreamEndCapture)(stream, &mut graph)
        });
        match given.and(ended) {
            Ok(()) => Ok(graph),
            Err(e) => {
                if !graph.is_null() {
                    forget(context, graph);
                }
                Err(e)
            }
        }
    }
}

impl Gpu {
    /// Gives a queue a product, and what is behind it.
    ///
    /// # Safety
    /// As for [`Device::multiply`].
    pub(super) unsafe fn multiplied(
        &self,
        queue: u32,
        p: &BoundProduct,
        at: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        let Some(behind) = &p.epilogue else {
            // SAFETY: the caller's promise.
            return unsafe { self.product(queue, p, None, at) }.map(|_| ());
        };
        let Some(library) = &behind.library else {
            return Err(self.failed("a bug in tlc: the library does not compute what is behind a product".into()));
        };
        // SAFETY: the caller's promise, here and below: the kernel does what the library does.
        if p.k > 0 && unsafe { self.product(queue, p, Some(library), at) }? {
            return Ok(());
        }
        // SAFETY: see above.
        unsafe { self.product(queue, p, None, at) }?;
        self.launched(queue, &behind.launch, at)
    }

    /// Gives a queue a product with an epilogue of the library's or none. Whether there is an algorithm for both in one; a product alone is
    /// always computed.
    ///
    /// # Safety
    /// As for [`Device::multiply`].
    unsafe fn product(
        &self,
        queue: u32,
        p: &BoundProduct,
        behind: Option<&BoundLibraryEpilogue>,
        at: &Places<'_, KernelHandle>,
    ) -> Result<bool, RunError> {
        let results = p.entries() * p.m * p.n;
        let address = |slot: usize| at.slots[slot].addr() as u64;
        if results == 0 {
            return Ok(true);
        }
        if p.k == 0 {
            let to = std::ptr::without_provenance_mut(address(p.dst.slot) as usize);
            // SAFETY: the caller's promise; a product's result is the whole of its slot.
            return unsafe { self.fill(queue, to, 0, results * p.dtype.bytes()) }.map(|()| true);
        }
        let first = |matrix: &BoundMatrix, slot: usize| {
            let offset = matrix.offset as i64 * p.dtype.bytes() as i64;
            address(slot).wrapping_add_signed(offset)
        };
        let result = behind.map_or(p.dst.slot, |b| b.result);
        let places = At {
            matrices: [
                first(&p.lhs, p.lhs.slot),
                first(&p.rhs, p.rhs.slot),
                first(&p.dst, result),
            ],
            workspace: p.workspace.map_or(0, |w| address(w.slot)),
            bias: behind.and_then(|b| b.bias).map_or(0, |(slot, _)| address(slot)),
        };
        let Some(shape) = Shape::of(p, behind) else {
            return match behind {
                Some(_) => Ok(false),
                None => Err(self.failed("a bug in tlc: the library cannot take a product that it was given".into())),
            };
        };
        let mut state = self.state();
        if !state.products.decide(&self.context, shape, &places)? {
            return Ok(false);
        }
        let operation = Operation::Product(shape, places);
        if queue >= RECORDED && state.amended.is_some() {
            return self.amend_next(&mut state, operation).map(|()| true);
        }
        if state.products.stream.is_none() {
            // Before anything is recorded: then the driver may refuse.
            let mut made: Handle = std::ptr::null_mut();
            // SAFETY: a valid place for the result.
            self.context.call("cuStreamCreate", |d| unsafe {
                (d.cuStreamCreate)(&mut made, STREAM_FLAGS)
            })?;
            state.products.stream = Some(made);
        }
        let stream = self.ready(&mut state, queue)?;
        if queue < RECORDED {
            // SAFETY: the caller's promise; the shape is that of the slots.
            return unsafe { state.products.give(&self.context, (&shape, &places), stream) }.map(|()| true);
        }
        // SAFETY: the caller's promise, which a recording passes on.
        let child = unsafe { state.products.captured(&self.context, &shape, &places) }?;
        let node = self.appended(&mut state, queue, child);
        state.noted.push(Node {
            handle: node?,
            operation,
        });
        Ok(true)
    }

    /// Makes a graph the next node of what a queue records.
    fn appended(&self, state: &mut State, queue: u32, child: Handle) -> Result<Handle, RunError> {
        let stream = self.queue(state, queue)?.stream;
        let (graph, after) = self.recorded_so_far(stream)?;
        let mut node: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result; the graph is being captured, the nodes are of it, and the driver copies the child.
        self.context.call("cuGraphAddChildGraphNode", |d| unsafe {
            (d.cuGraphAddChildGraphNode)(&mut node, graph, after.as_ptr(), after.len(), child)
        })?;
        let mut last = node;
        // SAFETY: a stream that captures, and a node of what it captures.
        self.context.call("cuStreamUpdateCaptureDependencies_v2", |d| unsafe {
            (d.cuStreamUpdateCaptureDependencies_v2)(stream, &mut last, std::ptr::null(), 1, SET_DEPENDENCIES)
        })?;
        Ok(node)
    }
}
