//! Graphs: captured from streams, instantiated, launched, changed.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

use super::launch::{arguments, check_size};
use super::module::function;
use super::{CUdeviceptr, Handle, entry, handle, number, put, put_if, text};
use crate::capture::{Exec, Graph, Node, dot};
use crate::driver::Driver;
use crate::result::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
    CUresult,
};
use crate::work::{End, Work};
use tlc_gpusim::Launch;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) -> CUresult {
    entry("cuStreamBeginCapture_v2", || {
        if mode > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Driver::get()?.begin_capture(number(stream))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> CUresult {
    entry("cuStreamEndCapture", || {
        let ended = Driver::get()?.end_capture(number(stream));
        let found = ended.as_ref().map_or(0, |&g| g);
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(graph, handle(found)) }?;
        ended.map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_uint) -> CUresult {
    entry("cuStreamIsCapturing", || {
        let driver = Driver::get()?;
        let mut state = driver.state();
        let stream = state.stream(&driver.machine, number(stream))?;
        let captured = state.streams.get(&stream).and_then(|s| s.capture.as_ref());
        let is_invalid = captured.and_then(|c| state.captures.get(&c.id)).map(|c| c.is_invalid);
        let found = match is_invalid {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(status, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut c_uint,
    id: *mut c_ulonglong,
    graph: *mut Handle,
    dependencies: *mut *const Handle,
    edges: *mut *const c_void,
    count: *mut usize,
) -> CUresult {
    entry("cuStreamGetCaptureInfo_v3", || {
        let driver = Driver::get()?;
        let mut state = driver.state();
        let stream = state.stream(&driver.machine, number(stream))?;
        let captured = state.streams.get(&stream).and_then(|s| s.capture.clone());
        let known = captured.as_ref().and_then(|c| state.captures.get_mut(&c.id));
        let found = known.map(|capture| {
            // The caller may look at them until the stream is given something else.
            let after = captured.iter().flat_map(|c| &c.after);
            capture.asked = after.map(|&n| capture.nodes[n].known_as()).collect();
            capture.asked.dedup();
            (capture.is_invalid, capture.asked.as_ptr(), capture.asked.len())
        });
        let (is, at, nodes) = match found {
            None => (0, std::ptr::null(), 0),
            Some((false, at, nodes)) => (1, at, nodes),
            Some((true, ..)) => (2, std::ptr::null(), 0),
        };
        // SAFETY: the manual's contract for the caller's pointers, all but the first of which may be null.
        unsafe {
            put(status, is)?;
            put_if(id, captured.as_ref().map_or(0, |c| c.id));
            put_if(graph, captured.map_or(std::ptr::null_mut(), |c| handle(c.id)));
            put_if(dependencies, at.cast());
            put_if(edges, std::ptr::null());
            put_if(count, nodes);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(to: *mut Handle, graph: Handle, flags: c_ulonglong) -> CUresult {
    entry("cuGraphInstantiateWithFlags", || {
        let driver = Driver::get()?;
        let gpu = driver.current()?;
        // Of the flags, to free what the graph allocates, to upload it and to use priorities change nothing here; to launch it from
        // the device is not simulated.
        if to.is_null() || flags & !0b1011 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let new = driver.instantiate(gpu, number(graph))?;
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(to, handle(new)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> CUresult {
    entry("cuGraphLaunch", || {
        let driver = Driver::get()?;
        driver.current()?;
        driver.launch_graph(number(exec), number(stream))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> CUresult {
    entry("cuGraphExecDestroy", || Driver::get()?.destroy_exec(number(exec)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> CUresult {
    entry("cuGraphDestroy", || Driver::get()?.destroy_graph(number(graph)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> CUresult {
    entry("cuGraphGetNodes", || {
        let driver = Driver::get()?;
        let state = driver.state();
        let graph = state.graphs.get(&number(graph)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if count.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if nodes.is_null() {
            // SAFETY: the manual's contract for the caller's pointers, here and below.
            return unsafe { put(count, graph.nodes.len()) };
        }
        // SAFETY: see above.
        let room = unsafe { count.read_unaligned() };
        for i in 0..room {
            let node = graph.nodes.get(i).map_or(0, |n| n.handle);
            // SAFETY: `nodes` has `room` elements; those beyond the nodes become null.
            unsafe { nodes.add(i).write_unaligned(handle(node)) };
        }
        // SAFETY: see above.
        unsafe { put(count, room.min(graph.nodes.len())) }
    })
}

/// A node of any graph.
fn node(driver: &Driver, of: Handle) -> Result<Node, CUresult> {
    let state = driver.state();
    let mut nodes = state.graphs.values().flat_map(|g: &Graph| &g.nodes);
    let found = nodes.find(|n| n.handle == number(of));
    found.cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(of: Handle, kind: *mut c_uint) -> CUresult {
    entry("cuGraphNodeGetType", || {
        // `CU_GRAPH_NODE_TYPE_*`: kernel, copy, fill, host function, empty, memory freed.
        let found = match node(Driver::get()?, of)?.work {
            Work::Launch { .. } => 0,
            Work::Copy { .. } => 1,
            Work::Fill { .. } => 2,
            Work::Product(_) => 0,
            Work::Slots(_) => 3,
            Work::Mark | Work::Claim { .. } | Work::Graph(_) => 5,
            Work::Free { .. } => 11,
        };
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(kind, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddChildGraphNode(
    to: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    child: Handle,
) -> CUresult {
    entry("cuGraphAddChildGraphNode", || {
        // SAFETY: the manual's contract for the caller's pointers, here and below.
        let after = unsafe { handles(after, count) }?;
        let new = Driver::get()?.add_child(number(graph), &after, number(child))?;
        // SAFETY: see above.
        unsafe { put(to, handle(new)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecChildGraphNodeSetParams(exec: Handle, of: Handle, child: Handle) -> CUresult {
    entry("cuGraphExecChildGraphNodeSetParams", || {
        let driver = Driver::get()?;
        driver.current()?;
        driver.change_child(number(exec), number(of), number(child))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: Handle,
    nodes: *mut Handle,
    _edges: *const c_void,
    count: usize,
    flags: c_uint,
) -> CUresult {
    entry("cuStreamUpdateCaptureDependencies_v2", || {
        // `CU_STREAM_ADD_CAPTURE_DEPENDENCIES` and `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the manual's contract for the caller's pointer.
        let nodes = unsafe { handles(nodes, count) }?;
        Driver::get()?.set_dependencies(number(stream), &nodes, flags == 0)
    })
}

/// Handles of a caller.
///
/// # Safety
/// `at` is null or points to so many.
unsafe fn handles(at: *const Handle, count: usize) -> Result<Vec<u64>, CUresult> {
    match (at.is_null(), count) {
        (_, 0) => Ok(Vec::new()),
        (true, _) => Err(CUDA_ERROR_INVALID_VALUE),
        // SAFETY: the caller's promise.
        (false, _) => Ok((0..count)
            .map(|i| number(unsafe { at.add(i).read_unaligned() }))
            .collect()),
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: Handle,
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: Handle,
    pub ctx: Handle,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphKernelNodeGetParams_v2(of: Handle, params: *mut CUDA_KERNEL_NODE_PARAMS) -> CUresult {
    entry("cuGraphKernelNodeGetParams_v2", || {
        let driver = Driver::get()?;
        let Work::Launch { function, launch, .. } = node(driver, of)?.work else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let pointers = driver.state().kept_arguments(number(of), &launch);
        let found = CUDA_KERNEL_NODE_PARAMS {
            func: handle(function),
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            kernelParams: pointers as usize as *mut *mut c_void,
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(params, found) }
    })
}

/// Changes the node of an executable graph.
fn change(
    driver: &Driver,
    exec: Handle,
    of: Handle,
    with: impl FnOnce(&Work) -> Result<Work, CUresult>,
) -> Result<(), CUresult> {
    let mut state = driver.state();
    let exec: &mut Exec = state.execs.get_mut(&number(exec)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let node = exec.nodes.iter_mut().find(|n| n.handle == number(of));
    let node = node.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    node.work = with(&node.work)?;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: Handle,
    of: Handle,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    entry("cuGraphExecKernelNodeSetParams_v2", || {
        let driver = Driver::get()?;
        driver.current()?;
        if params.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: it is not null, so the caller promises that it is valid.
        let params = unsafe { params.read_unaligned() };
        let known = function(driver, params.func)?;
        let kernel = known.module.kernel(&known.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let launch = Launch {
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
            // SAFETY: the manual's contract for the caller's pointers.
            arguments: unsafe { arguments(&kernel, params.kernelParams, params.extra) }?,
        };
        check_size(&launch, &known, &kernel, &driver.machine.gpus[known.gpu].description)?;
        change(driver, exec, of, |old| match old {
            Work::Launch { .. } => Ok(Work::Launch {
                function: number(params.func),
                module: known.module,
                kernel: known.name,
                launch,
            }),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })
    })
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: c_uint,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: Handle,
    pub reserved0: *mut c_void,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: c_uint,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: Handle,
    pub reserved1: *mut c_void,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// The end of a copy whose memory is of a type: `CU_MEMORYTYPE_HOST`, `_DEVICE` or `_UNIFIED`.
fn end(driver: &Driver, kind: c_uint, host: u64, device: u64, offset: usize, bytes: u64) -> Result<End, CUresult> {
    let address = match kind {
        1 => host,
        2 | 4 => device,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let address = address.checked_add(offset as u64).filter(|&a| a != 0);
    let address = address.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let is_device = driver.machine.owner(address).is_some();
    match (is_device, kind) {
        (true, 2 | 4) if driver.machine.holds(address, bytes) => Ok(End::Device(address)),
        (false, 1 | 4) => Ok(End::Host(address, driver.state().is_pinned(address, bytes))),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecMemcpyNodeSetParams(
    exec: Handle,
    of: Handle,
    params: *const CUDA_MEMCPY3D,
    context: Handle,
) -> CUresult {
    entry("cuGraphExecMemcpyNodeSetParams", || {
        let driver = Driver::get()?;
        driver.current()?;
        if params.is_null() || context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: it is not null, so the caller promises that it is valid.
        let p = unsafe { params.read_unaligned() };
        let is_linear = p.Height == 1 && p.Depth == 1;
        let begins = [p.srcY, p.srcZ, p.srcLOD, p.dstY, p.dstZ, p.dstLOD]
            .iter()
            .all(|&n| n == 0);
        if !is_linear || !begins {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = p.WidthInBytes as u64;
        let host = p.srcHost as usize as u64;
        let from = end(driver, p.srcMemoryType, host, p.srcDevice, p.srcXInBytes, bytes)?;
        let host = p.dstHost as usize as u64;
        let to = end(driver, p.dstMemoryType, host, p.dstDevice, p.dstXInBytes, bytes)?;
        change(driver, exec, of, |old| match old {
            // As on a real device, where memory is may not change.
            Work::Copy { from: f, to: t, .. }
                if std::mem::discriminant(f) == std::mem::discriminant(&from)
                    && std::mem::discriminant(t) == std::mem::discriminant(&to) =>
            {
                Ok(Work::Copy { from, to, bytes })
            }
            Work::Copy { .. } => Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDebugDotPrint(graph: Handle, path: *const c_char, _flags: c_uint) -> CUresult {
    entry("cuGraphDebugDotPrint", || {
        let driver = Driver::get()?;
        // SAFETY: the manual's contract for the caller's pointer.
        let path = unsafe { text(path) }?;
        let state = driver.state();
        let graph = state.graphs.get(&number(graph)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        std::fs::write(path, dot(&graph.nodes)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
    })
}
