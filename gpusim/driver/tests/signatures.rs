//! The entry points have the signatures and numbers that NVIDIA's header has, as `cudarc` translates it.

use std::any::type_name;

use cudarc::driver::sys;
use tlc_gpusim_driver as ours;

/// A parameter or result: its size and alignment, and how many pointers lead to it.
#[derive(PartialEq, Eq, Debug)]
struct Kind {
    size: usize,
    align: usize,
    pointers: String,
}

impl Kind {
    fn of<T>() -> Kind {
        let name = type_name::<T>();
        let is_pointer = |w: &&str| w.starts_with('*');
        let pointers: Vec<&str> = name.split(' ').take_while(is_pointer).collect();
        Kind {
            size: size_of::<T>(),
            align: align_of::<T>(),
            pointers: pointers.join(" "),
        }
    }
}

trait Signature {
    fn kinds() -> Vec<Kind>;
}

macro_rules! signatures {
    ($($t:ident)*) => {
        impl<Out, $($t),*> Signature for unsafe extern "C" fn($($t),*) -> Out {
            fn kinds() -> Vec<Kind> {
                vec![Kind::of::<Out>(), $(Kind::of::<$t>()),*]
            }
        }
        impl<Out, $($t),*> Signature for unsafe fn($($t),*) -> Out {
            fn kinds() -> Vec<Kind> {
                vec![Kind::of::<Out>(), $(Kind::of::<$t>()),*]
            }
        }
    };
}
signatures!();
signatures!(A);
signatures!(A B);
signatures!(A B C);
signatures!(A B C D);
signatures!(A B C D E);
signatures!(A B C D E F);
signatures!(A B C D E F G);
signatures!(A B C D E F G H I J K);
signatures!(A B C D E F G H I J K L);

fn kinds<F: Signature>(_: F) -> Vec<Kind> {
    F::kinds()
}

macro_rules! same {
    ($name:ident $(, $t:tt)*) => {
        let mine: unsafe extern "C" fn($($t),*) -> _ = ours::$name;
        let theirs: unsafe fn($($t),*) -> _ = sys::$name;
        assert_eq!(kinds(mine), kinds(theirs), stringify!($name));
    };
}

#[test]
fn every_entry_point_has_the_signature_of_the_real_one() {
    same!(cuDevicePrimaryCtxRetain, _, _);
    same!(cuDevicePrimaryCtxRelease_v2, _);
    same!(cuCtxSetCurrent, _);
    same!(cuCtxGetCurrent, _);
    same!(cuCtxGetDevice, _);
    same!(cuCtxSynchronize);
    same!(cuCtxEnablePeerAccess, _, _);
    same!(cuMemcpyHtoD_v2, _, _, _);
    same!(cuMemcpyDtoH_v2, _, _, _);
    same!(cuMemcpyDtoD_v2, _, _, _);
    same!(cuMemcpyHtoDAsync_v2, _, _, _, _);
    same!(cuMemcpyDtoHAsync_v2, _, _, _, _);
    same!(cuMemcpyDtoDAsync_v2, _, _, _, _);
    same!(cuMemcpyAsync, _, _, _, _);
    same!(cuMemcpyPeerAsync, _, _, _, _, _, _);
    same!(cuMemsetD8Async, _, _, _, _);
    same!(cuMemsetD32Async, _, _, _, _);
    same!(cuInit, _);
    same!(cuDriverGetVersion, _);
    same!(cuDeviceGetCount, _);
    same!(cuDeviceGet, _, _);
    same!(cuDeviceGetName, _, _, _);
    same!(cuDeviceTotalMem_v2, _, _);
    same!(cuDeviceGetUuid_v2, _, _);
    same!(cuDeviceGetAttribute, _, _, _);
    same!(cuDeviceCanAccessPeer, _, _, _);
    same!(cuGetErrorName, _, _);
    same!(cuGetErrorString, _, _);
    same!(cuEventCreate, _, _);
    same!(cuEventDestroy_v2, _);
    same!(cuEventRecord, _, _);
    same!(cuEventSynchronize, _);
    same!(cuEventQuery, _);
    same!(cuEventElapsedTime_v2, _, _, _);
    same!(cuStreamBeginCapture_v2, _, _);
    same!(cuStreamEndCapture, _, _);
    same!(cuStreamIsCapturing, _, _);
    same!(cuStreamGetCaptureInfo_v3, _, _, _, _, _, _, _);
    same!(cuGraphInstantiateWithFlags, _, _, _);
    same!(cuGraphLaunch, _, _);
    same!(cuGraphExecDestroy, _);
    same!(cuGraphDestroy, _);
    same!(cuGraphAddChildGraphNode, _, _, _, _, _);
    same!(cuGraphExecChildGraphNodeSetParams, _, _, _);
    same!(cuStreamUpdateCaptureDependencies_v2, _, _, _, _, _);
    same!(cuGraphGetNodes, _, _, _);
    same!(cuGraphNodeGetType, _, _);
    same!(cuGraphKernelNodeGetParams_v2, _, _);
    same!(cuGraphExecKernelNodeSetParams_v2, _, _, _);
    same!(cuGraphExecMemcpyNodeSetParams, _, _, _, _);
    same!(cuGraphDebugDotPrint, _, _, _);
    same!(cuLaunchKernel, _, _, _, _, _, _, _, _, _, _, _);
    same!(cuMemAlloc_v2, _, _);
    same!(cuMemFree_v2, _);
    same!(cuMemGetInfo_v2, _, _);
    same!(cuMemHostAlloc, _, _, _);
    same!(cuMemFreeHost, _);
    same!(cuModuleLoadData, _, _);
    same!(cuModuleLoadDataEx, _, _, _, _, _);
    same!(cuModuleUnload, _);
    same!(cuModuleGetFunction, _, _, _);
    same!(cuFuncGetAttribute, _, _, _);
    same!(cuFuncSetAttribute, _, _, _);
    same!(cuOccupancyMaxActiveBlocksPerMultiprocessor, _, _, _, _);
    same!(cuDeviceGetDefaultMemPool, _, _);
    same!(cuMemPoolCreate, _, _);
    same!(cuMemPoolDestroy, _);
    same!(cuMemPoolSetAttribute, _, _, _);
    same!(cuMemPoolGetAttribute, _, _, _);
    same!(cuMemPoolSetAccess, _, _, _);
    same!(cuMemPoolTrimTo, _, _);
    same!(cuMemAllocAsync, _, _, _);
    same!(cuMemAllocFromPoolAsync, _, _, _, _);
    same!(cuMemFreeAsync, _, _);
    same!(cuGetExportTable, _, _);
    same!(cuGetProcAddress_v2, _, _, _, _, _);
    same!(cuStreamCreate, _, _);
    same!(cuStreamCreateWithPriority, _, _, _);
    same!(cuStreamDestroy_v2, _);
    same!(cuStreamSynchronize, _);
    same!(cuStreamQuery, _);
    same!(cuStreamWaitEvent, _, _, _);
    same!(cuTensorMapEncodeTiled, _, _, _, _, _, _, _, _, _, _, _, _);
}

#[test]
fn structures_have_the_sizes_of_the_real_ones() {
    assert_eq!(size_of::<ours::CUmemPoolProps>(), size_of::<sys::CUmemPoolProps>());
    let (mine, theirs) = (
        size_of::<ours::CUDA_KERNEL_NODE_PARAMS>(),
        size_of::<sys::CUDA_KERNEL_NODE_PARAMS>(),
    );
    assert_eq!(mine, theirs);
    let (mine, theirs) = (Kind::of::<ours::CUtensorMap>(), Kind::of::<sys::CUtensorMap>());
    assert_eq!(mine, theirs);
    assert_eq!(size_of::<ours::CUDA_MEMCPY3D>(), size_of::<sys::CUDA_MEMCPY3D>());
    assert_eq!(
        std::mem::offset_of!(ours::CUDA_MEMCPY3D, WidthInBytes),
        std::mem::offset_of!(sys::CUDA_MEMCPY3D, WidthInBytes)
    );
}

#[test]
fn results_and_attributes_have_the_numbers_of_the_real_ones() {
    use sys::CUresult as R;
    assert_eq!(R::CUDA_SUCCESS as u32, ours::CUDA_SUCCESS);
    assert_eq!(R::CUDA_ERROR_INVALID_VALUE as u32, ours::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(R::CUDA_ERROR_OUT_OF_MEMORY as u32, ours::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(R::CUDA_ERROR_NOT_INITIALIZED as u32, ours::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(R::CUDA_ERROR_DEINITIALIZED as u32, ours::CUDA_ERROR_DEINITIALIZED);
    assert_eq!(
        R::CUDA_ERROR_DEVICE_UNAVAILABLE as u32,
        ours::CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    assert_eq!(R::CUDA_ERROR_NO_DEVICE as u32, ours::CUDA_ERROR_NO_DEVICE);
    assert_eq!(R::CUDA_ERROR_INVALID_DEVICE as u32, ours::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(R::CUDA_ERROR_INVALID_IMAGE as u32, ours::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(R::CUDA_ERROR_INVALID_CONTEXT as u32, ours::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(
        R::CUDA_ERROR_NO_BINARY_FOR_GPU as u32,
        ours::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
    assert_eq!(
        R::CUDA_ERROR_ECC_UNCORRECTABLE as u32,
        ours::CUDA_ERROR_ECC_UNCORRECTABLE
    );
    assert_eq!(
        R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as u32,
        ours::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    );
    assert_eq!(R::CUDA_ERROR_INVALID_PTX as u32, ours::CUDA_ERROR_INVALID_PTX);
    assert_eq!(
        R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32,
        ours::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    );
    assert_eq!(R::CUDA_ERROR_INVALID_HANDLE as u32, ours::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(R::CUDA_ERROR_ILLEGAL_STATE as u32, ours::CUDA_ERROR_ILLEGAL_STATE);
    assert_eq!(R::CUDA_ERROR_NOT_FOUND as u32, ours::CUDA_ERROR_NOT_FOUND);
    assert_eq!(R::CUDA_ERROR_NOT_READY as u32, ours::CUDA_ERROR_NOT_READY);
    assert_eq!(R::CUDA_ERROR_ILLEGAL_ADDRESS as u32, ours::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(
        R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES as u32,
        ours::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    );
    assert_eq!(R::CUDA_ERROR_LAUNCH_TIMEOUT as u32, ours::CUDA_ERROR_LAUNCH_TIMEOUT);
    assert_eq!(
        R::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32,
        ours::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    );
    assert_eq!(R::CUDA_ERROR_ASSERT as u32, ours::CUDA_ERROR_ASSERT);
    assert_eq!(R::CUDA_ERROR_LAUNCH_FAILED as u32, ours::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(R::CUDA_ERROR_NOT_SUPPORTED as u32, ours::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    );
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_UNJOINED as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    );
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    );
    assert_eq!(
        R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as u32,
        ours::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    );
    assert_eq!(R::CUDA_ERROR_CAPTURED_EVENT as u32, ours::CUDA_ERROR_CAPTURED_EVENT);
    assert_eq!(
        R::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE as u32,
        ours::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    );
    assert_eq!(R::CUDA_ERROR_UNKNOWN as u32, ours::CUDA_ERROR_UNKNOWN);
    use sys::CUdevice_attribute_enum as A;
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32, 16);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE as u32, 38);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR as u32, 39);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING as u32, 41);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32, 75);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED as u32, 78);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR as u32, 81);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR as u32, 82);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY as u32, 83);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED as u32, 90);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH as u32, 95);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as u32, 97);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR as u32, 106);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK as u32, 111);
    assert_eq!(A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as u32, 115);
    use sys::CUfunction_attribute_enum as F;
    assert_eq!(F::CU_FUNC_ATTRIBUTE_NUM_REGS as u32, 4);
    assert_eq!(F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32, 8);
    use sys::CUgraphNodeType_enum as N;
    assert_eq!(N::CU_GRAPH_NODE_TYPE_KERNEL as u32, 0);
    assert_eq!(N::CU_GRAPH_NODE_TYPE_MEMCPY as u32, 1);
    assert_eq!(N::CU_GRAPH_NODE_TYPE_MEM_FREE as u32, 11);
    use sys::CUmemPool_attribute_enum as P;
    assert_eq!(P::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as u32, 4);
    assert_eq!(P::CU_MEMPOOL_ATTR_USED_MEM_HIGH as u32, 8);
    use sys::CUtensorMapDataType_enum as T;
    assert_eq!(T::CU_TENSOR_MAP_DATA_TYPE_UINT8 as u32, 0);
    assert_eq!(T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 as u32, 6);
    assert_eq!(T::CU_TENSOR_MAP_DATA_TYPE_FLOAT64 as u32, 8);
    assert_eq!(T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 as u32, 9);
    assert_eq!(T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ as u32, 10);
    use sys::CUtensorMapSwizzle_enum as S;
    assert_eq!(S::CU_TENSOR_MAP_SWIZZLE_NONE as u32, 0);
    assert_eq!(S::CU_TENSOR_MAP_SWIZZLE_128B as u32, 3);
    use sys::CUjit_option_enum as J;
    assert_eq!(J::CU_JIT_ERROR_LOG_BUFFER as u32, 5);
    assert_eq!(J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32, 6);
}
