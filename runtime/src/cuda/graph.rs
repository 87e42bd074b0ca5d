//! Graphs that were recorded, and the operations that their nodes are.
//!
//! Invariants:
//! - A graph has its operations in the order that queues were given them, each with its node. Given again, each is held against the one
//!   that was recorded: a node changes where addresses do, and nothing else may differ.
//! - What was captured lives as long as what is launched, for nodes are named by it.

use std::ffi::c_uint;

use smallvec::SmallVec;

use super::compile::Function;
use super::context::Context;
use super::cublaslt;
use super::library::{Address, CopyParams, Handle, KernelParams};
use super::tensor_maps::Given;
use crate::error::RunError;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const MEMORY_TYPES: [c_uint; 2] = [1, 2];

/// An end of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// In the host's memory.
    Host(u64),
    /// In the device's.
    Device(Address),
}

/// What a queue was given while it was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// A launch of the kernel of that number.
    Kernel {
        kernel: u64,
        blocks: u32,
        threads: u32,
        /// Addresses of its buffers, then its symbols.
        values: SmallVec<[u64; 8]>,
    },
    /// A copy.
    Copy { from: End, to: End, bytes: usize },
    /// A product of the library's, which is a graph of its own: the kernels in it are the library's.
    Product(cublaslt::Shape, cublaslt::Places),
    /// Something else, which these numbers tell from others. It may not change.
    Fixed(Vec<u64>),
}

/// An operation that was recorded.
#[derive(Debug)]
pub(super) struct Node {
    /// The node of the graph; of an operation that may not change it is not needed.
    pub(super) handle: Handle,
    pub(super) operation: Operation,
}

/// A graph that can be launched.
pub(super) struct Graph {
    /// What was captured.
    pub(super) captured: Handle,
    pub(super) exec: Handle,
    /// The first and the last kernel in it, by number.
    pub(super) kernels: Option<(u64, u64)>,
    pub(super) nodes: Vec<Node>,
}

/// Why a node is not made another.
pub(super) enum Differs {
    /// It is another operation, not the same at other addresses.
    Operation,
    /// The driver refused.
    Refused(RunError),
}

impl Graph {
    /// Has the operation of that number be this one. `captured` has a graph of a product.
    ///
    /// # Errors
    /// If it differs in more than addresses, or the driver refuses.
    pub(super) fn change(
        &mut self,
        number: usize,
        to: Operation,
        context: &Context,
        functions: &[Function],
        captured: &mut dyn FnMut(&cublaslt::Shape, &cublaslt::Places) -> Result<Handle, RunError>,
    ) -> Result<(), Differs> {
        let Graph { exec, nodes, .. } = self;
        let node = nodes.get_mut(number).ok_or(Differs::Operation)?;
        if node.operation == to {
            return Ok(());
        }
        match (&node.operation, &to) {
            (
                Operation::Kernel {
                    kernel,
                    blocks,
                    threads,
                    values,
                },
                Operation::Kernel {
                    kernel: other,
                    values: new,
                    ..
                },
            ) if kernel == other && values.len() == new.len() => {
                let same_size =
                    matches!(&to, Operation::Kernel { blocks: b, threads: t, .. } if (b, t) == (blocks, threads));
                let function = functions.get(*kernel as usize).filter(|_| same_size);
                let function = function.ok_or(Differs::Operation)?;
                let values = new.iter().copied().collect();
                let mut given = Given::new(context, function, values).map_err(Differs::Refused)?;
                let mut pointers = given.places();
                let params = KernelParams {
                    function: function.handle,
                    grid: [*blocks, 1, 1],
                    block: [*threads, 1, 1],
                    shared_bytes: function.dynamic_shared_bytes,
                    values: pointers.as_mut_ptr(),
                    extra: std::ptr::null_mut(),
                    kernel: std::ptr::null_mut(),
                    context: std::ptr::null_mut(),
                };
                // SAFETY: the graph and what it was captured as are alive; the function has as many parameters as when it was recorded, and
                // the driver copies them before it returns.
                let done = context.call("cuGraphExecKernelNodeSetParams_v2", |d| unsafe {
                    (d.cuGraphExecKernelNodeSetParams_v2)(*exec, node.handle, &params)
                });
                done.map_err(Differs::Refused)?;
            }
            (
                Operation::Copy { from, to: end, bytes },
                Operation::Copy {
                    from: new_from,
                    to: new_to,
                    bytes: new_bytes,
                },
            ) if bytes == new_bytes && same_memory(from, new_from) && same_memory(end, new_to) => {
                let params = copy_params(*new_from, *new_to, *bytes);
                // SAFETY: as above; the addresses are of the memory that is said, with so many bytes, as whoever gives the operation says.
                let done = context.call("cuGraphExecMemcpyNodeSetParams", |d| unsafe {
                    (d.cuGraphExecMemcpyNodeSetParams)(*exec, node.handle, &params, context.handle())
                });
                done.map_err(Differs::Refused)?;
            }
            (Operation::Product(shape, _), Operation::Product(new_shape, places)) if shape == new_shape => {
                let child = captured(shape, places).map_err(Differs::Refused)?;
                // SAFETY: the graph is alive, and what it was captured as; the driver copies what the other graph has.
                let done = context.call("cuGraphExecChildGraphNodeSetParams", |d| unsafe {
                    (d.cuGraphExecChildGraphNodeSetParams)(*exec, node.handle, child)
                });
                done.map_err(Differs::Refused)?;
            }
            _ => return Err(Differs::Operation),
        }
        node.operation = to;
        Ok(())
    }

    /// Gives it back. What fails here failed before.
    ///
    /// # Safety
    /// Nothing of it runs any longer, and it is not destroyed again.
    pub(super) unsafe fn destroy(&self, context: &Context) {
        // SAFETY: the caller's promise.
        let _ = context.quietly("cuGraphExecDestroy", |d| unsafe { (d.cuGraphExecDestroy)(self.exec) });
        // SAFETY: the caller's promise.
        let _ = context.quietly("cuGraphDestroy", |d| unsafe { (d.cuGraphDestroy)(self.captured) });
    }
}

/// Gives a graph back that was captured and never launched. What fails here failed before.
pub(super) fn forget(context: &Context, graph: Handle) {
    // SAFETY: whoever captured it has no other use for it.
    let _ = context.quietly("cuGraphDestroy", |d| unsafe { (d.cuGraphDestroy)(graph) });
}

/// Whether both are in the memory of the same machine: a node of a graph stays with it.
fn same_memory(a: &End, b: &End) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn copy_params(from: End, to: End, bytes: usize) -> CopyParams {
    let [host, device] = MEMORY_TYPES;
    let of = |end: End| match end {
        End::Host(at) => (host, at as usize, 0),
        End::Device(at) => (device, 0, at),
    };
    let ((src_type, src_host, src_device), (dst_type, dst_host, dst_device)) = (of(from), of(to));
    CopyParams {
        src_type,
        src_host: std::ptr::without_provenance(src_host),
        src_device,
        src_pitch: bytes,
        src_height: 1,
        dst_type,
        dst_host: std::ptr::without_provenance_mut(dst_host),
        dst_device,
        dst_pitch: bytes,
        dst_height: 1,
        width_bytes: bytes,
        height: 1,
        depth: 1,
        ..CopyParams::default()
    }
}
