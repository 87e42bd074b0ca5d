"""Drives the simulated driver as any program does: opened by its name, called through its C entry points."""

import ctypes
import sys

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 to, .param .u64 from, .param .u32 len)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [len];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    add.s64 %rd5, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    add.f32 %f2, %f1, %f1;
    st.global.f32 [%rd5], %f2;
DONE:
    ret;
}
"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        sys.exit(f"{name} returned {result}")


device = ctypes.c_int()
context, module, function, stream = (ctypes.c_void_p() for _ in range(4))
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadDataEx", ctypes.byref(module), PTX, 0, None, None)
call("cuModuleGetFunction", ctypes.byref(function), module, b"twice")
call("cuStreamCreate", ctypes.byref(stream), 1)
len_ = 1000
values = (ctypes.c_float * len_)(*range(len_))
results = (ctypes.c_float * len_)()
source, target = ctypes.c_uint64(), ctypes.c_uint64()
call("cuMemAlloc_v2", ctypes.byref(source), ctypes.c_size_t(4 * len_))
call("cuMemAlloc_v2", ctypes.byref(target), ctypes.c_size_t(4 * len_))
call("cuMemcpyHtoDAsync_v2", source, values, ctypes.c_size_t(4 * len_), stream)
count = ctypes.c_uint32(len_)
arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(a) for a in (target, source, count)))
call("cuLaunchKernel", function, 8, 1, 1, 128, 1, 1, 0, stream, arguments, None)
call("cuMemcpyDtoHAsync_v2", results, target, ctypes.c_size_t(4 * len_), stream)
call("cuStreamSynchronize", stream)
assert list(results) == [2.0 * i for i in range(len_)], list(results)[:8]
call("cuMemFree_v2", source)
call("cuMemFree_v2", target)
print("the simulated driver doubled", len_, "numbers")
