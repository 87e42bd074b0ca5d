//! Entry points by name.

use std::ffi::{c_char, c_int, c_ulonglong, c_void};

use super::{entry, put, put_if, text};
use crate::result::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUresult};

/// The entry point of exactly that name.
fn exact(name: &str) -> Option<*const ()> {
    Some(match name {
        "cuCtxEnablePeerAccess" => super::cuCtxEnablePeerAccess as *const (),
        "cuCtxGetCurrent" => super::cuCtxGetCurrent as *const (),
        "cuCtxGetDevice" => super::cuCtxGetDevice as *const (),
        "cuCtxSetCurrent" => super::cuCtxSetCurrent as *const (),
        "cuCtxSynchronize" => super::cuCtxSynchronize as *const (),
        "cuDeviceCanAccessPeer" => super::cuDeviceCanAccessPeer as *const (),
        "cuDeviceGet" => super::cuDeviceGet as *const (),
        "cuDeviceGetAttribute" => super::cuDeviceGetAttribute as *const (),
        "cuDeviceGetCount" => super::cuDeviceGetCount as *const (),
        "cuDeviceGetDefaultMemPool" => super::cuDeviceGetDefaultMemPool as *const (),
        "cuDeviceGetName" => super::cuDeviceGetName as *const (),
        "cuDeviceGetUuid_v2" => super::cuDeviceGetUuid_v2 as *const (),
        "cuDevicePrimaryCtxRelease_v2" => super::cuDevicePrimaryCtxRelease_v2 as *const (),
        "cuDevicePrimaryCtxRetain" => super::cuDevicePrimaryCtxRetain as *const (),
        "cuDeviceTotalMem_v2" => super::cuDeviceTotalMem_v2 as *const (),
        "cuDriverGetVersion" => super::cuDriverGetVersion as *const (),
        "cuEventCreate" => super::cuEventCreate as *const (),
        "cuEventDestroy_v2" => super::cuEventDestroy_v2 as *const (),
        "cuEventElapsedTime" => super::cuEventElapsedTime as *const (),
        "cuEventElapsedTime_v2" => super::cuEventElapsedTime_v2 as *const (),
        "cuEventQuery" => super::cuEventQuery as *const (),
        "cuEventRecord" => super::cuEventRecord as *const (),
        "cuEventSynchronize" => super::cuEventSynchronize as *const (),
        "cuFuncGetAttribute" => super::cuFuncGetAttribute as *const (),
        "cuFuncSetAttribute" => super::cuFuncSetAttribute as *const (),
        "cuGetExportTable" => cuGetExportTable as *const (),
        "cuGetErrorName" => super::cuGetErrorName as *const (),
        "cuGetErrorString" => super::cuGetErrorString as *const (),
        "cuGetProcAddress_v2" => cuGetProcAddress_v2 as *const (),
        "cuGraphAddChildGraphNode" => super::cuGraphAddChildGraphNode as *const (),
        "cuGraphDebugDotPrint" => super::cuGraphDebugDotPrint as *const (),
        "cuGraphDestroy" => super::cuGraphDestroy as *const (),
        "cuGraphExecDestroy" => super::cuGraphExecDestroy as *const (),
        "cuGraphExecChildGraphNodeSetParams" => super::cuGraphExecChildGraphNodeSetParams as *const (),
        "cuGraphExecKernelNodeSetParams_v2" => super::cuGraphExecKernelNodeSetParams_v2 as *const (),
        "cuGraphExecMemcpyNodeSetParams" => super::cuGraphExecMemcpyNodeSetParams as *const (),
        "cuGraphGetNodes" => super::cuGraphGetNodes as *const (),
        "cuGraphInstantiateWithFlags" => super::cuGraphInstantiateWithFlags as *const (),
        "cuGraphKernelNodeGetParams_v2" => super::cuGraphKernelNodeGetParams_v2 as *const (),
        "cuGraphLaunch" => super::cuGraphLaunch as *const (),
        "cuGraphNodeGetType" => super::cuGraphNodeGetType as *const (),
        "cuInit" => super::cuInit as *const (),
        "cuLaunchKernel" => super::cuLaunchKernel as *const (),
        "cuMemAllocAsync" => super::cuMemAllocAsync as *const (),
        "cuMemAllocFromPoolAsync" => super::cuMemAllocFromPoolAsync as *const (),
        "cuMemAlloc_v2" => super::cuMemAlloc_v2 as *const (),
        "cuMemFreeAsync" => super::cuMemFreeAsync as *const (),
        "cuMemFreeHost" => super::cuMemFreeHost as *const (),
        "cuMemFree_v2" => super::cuMemFree_v2 as *const (),
        "cuMemGetInfo_v2" => super::cuMemGetInfo_v2 as *const (),
        "cuMemHostAlloc" => super::cuMemHostAlloc as *const (),
        "cuMemPoolCreate" => super::cuMemPoolCreate as *const (),
        "cuMemPoolDestroy" => super::cuMemPoolDestroy as *const (),
        "cuMemPoolGetAttribute" => super::cuMemPoolGetAttribute as *const (),
        "cuMemPoolSetAccess" => super::cuMemPoolSetAccess as *const (),
        "cuMemPoolSetAttribute" => super::cuMemPoolSetAttribute as *const (),
        "cuMemPoolTrimTo" => super::cuMemPoolTrimTo as *const (),
        "cuMemcpyAsync" => super::cuMemcpyAsync as *const (),
        "cuMemcpyDtoDAsync_v2" => super::cuMemcpyDtoDAsync_v2 as *const (),
        "cuMemcpyDtoD_v2" => super::cuMemcpyDtoD_v2 as *const (),
        "cuMemcpyDtoHAsync_v2" => super::cuMemcpyDtoHAsync_v2 as *const (),
        "cuMemcpyDtoH_v2" => super::cuMemcpyDtoH_v2 as *const (),
        "cuMemcpyHtoDAsync_v2" => super::cuMemcpyHtoDAsync_v2 as *const (),
        "cuMemcpyHtoD_v2" => super::cuMemcpyHtoD_v2 as *const (),
        "cuMemcpyPeerAsync" => super::cuMemcpyPeerAsync as *const (),
        "cuMemsetD32Async" => super::cuMemsetD32Async as *const (),
        "cuMemsetD8Async" => super::cuMemsetD8Async as *const (),
        "cuModuleGetFunction" => super::cuModuleGetFunction as *const (),
        "cuModuleLoadData" => super::cuModuleLoadData as *const (),
        "cuModuleLoadDataEx" => super::cuModuleLoadDataEx as *const (),
        "cuModuleUnload" => super::cuModuleUnload as *const (),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" => {
            super::cuOccupancyMaxActiveBlocksPerMultiprocessor as *const ()
        }
        "cuStreamBeginCapture_v2" => super::cuStreamBeginCapture_v2 as *const (),
        "cuStreamCreate" => super::cuStreamCreate as *const (),
        "cuStreamCreateWithPriority" => super::cuStreamCreateWithPriority as *const (),
        "cuStreamDestroy_v2" => super::cuStreamDestroy_v2 as *const (),
        "cuStreamEndCapture" => super::cuStreamEndCapture as *const (),
        "cuStreamGetCaptureInfo_v3" => super::cuStreamGetCaptureInfo_v3 as *const (),
        "cuStreamIsCapturing" => super::cuStreamIsCapturing as *const (),
        "cuStreamQuery" => super::cuStreamQuery as *const (),
        "cuStreamSynchronize" => super::cuStreamSynchronize as *const (),
        "cuStreamUpdateCaptureDependencies_v2" => super::cuStreamUpdateCaptureDependencies_v2 as *const (),
        "cuStreamWaitEvent" => super::cuStreamWaitEvent as *const (),
        "cuTensorMapEncodeTiled" => super::cuTensorMapEncodeTiled as *const (),
        "tlcSimLibraryCall" => super::tlcSimLibraryCall as *const (),
        "tlcSimProduct" => super::tlcSimProduct as *const (),
        "tlcSimReport" => super::tlcSimReport as *const (),
        "tlcSimSlots" => super::tlcSimSlots as *const (),
        _ => return None,
    })
}

/// The entry point of a name without its version: the newest.
fn newest(name: &str) -> Option<*const ()> {
    let versions = ["_v3", "_v2", ""];
    versions.iter().find_map(|v| exact(&format!("{name}{v}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    to: *mut *mut c_void,
    _version: c_int,
    _flags: c_ulonglong,
    status: *mut c_int,
) -> CUresult {
    entry("cuGetProcAddress_v2", || {
        // SAFETY: the manual's contract for the caller's pointers, here and below.
        let name = unsafe { text(symbol) }?;
        if to.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let found = newest(&name);
        let address = found.map_or(std::ptr::null_mut(), |f| f.cast_mut().cast());
        // `CU_GET_PROC_ADDRESS_SUCCESS` or `_SYMBOL_NOT_FOUND`.
        let state = if found.is_some() { 0 } else { 1 };
        // SAFETY: see above.
        unsafe {
            put(to, address)?;
            put_if(status, state);
        }
        found.map(|_| ()).ok_or(CUDA_ERROR_NOT_FOUND)
    })
}

/// Tables of entry points that NVIDIA does not document: there are none. NVRTC looks for one in a driver that is loaded, and takes it
/// for granted that there is this function.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _: *const [u8; 16]) -> CUresult {
    entry("cuGetExportTable", || {
        // SAFETY: the manual's contract for the caller's pointer.
        unsafe { put(table, std::ptr::null()) }?;
        Err(CUDA_ERROR_NOT_FOUND)
    })
}
