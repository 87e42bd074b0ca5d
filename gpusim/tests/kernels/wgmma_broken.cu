// Kernels of asynchronous products that are each broken once, and right without BROKEN.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

#ifdef BROKEN
#define IF_BROKEN(...) __VA_ARGS__
#define IF_RIGHT(...)
#else
#define IF_BROKEN(...)
#define IF_RIGHT(...) __VA_ARGS__
#endif

extern __shared__ __align__(1024) char shared[];

DEVICE u32 at_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy16(u32 to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
DEVICE u64 descriptor(u32 at, u32 leading, u32 stride, u64 layout) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | layout << 62;
}
struct Bf8 {
  static constexpr int N = 8;
  template <int S, int TA, int TB> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, %7, 1, %8, %9;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]) : "l"(a),"l"(b),"r"(adds),"n"(S),"n"(TA),"n"(TB));
  }
  template <int S, int TA, int TB> static DEVICE void mul(float* d, const u32* a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, %10, 1, %11;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(b),"r"(adds),"n"(S),"n"(TB));
  }
};
struct Bf16 {
  static constexpr int N = 16;
  template <int S, int TA, int TB> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, %11, 1, %12, %13;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]) : "l"(a),"l"(b),"r"(adds),"n"(S),"n"(TA),"n"(TB));
  }
};

// A of 64 by 16 and B of 16 by 8 behind it, rows along k, in shared memory without a permutation.
DEVICE void fill(const u16* A, const u16* B) {
  for (int i = threadIdx.x; i < 128; i += blockDim.x) *(uint4*)(shared + i % 2 * 1024 + i / 2 * 16) = ((const uint4*)A)[i];
  if (threadIdx.x < 16) *(uint4*)(shared + 2048 + threadIdx.x % 2 * 128 + threadIdx.x / 2 * 16) = ((const uint4*)B)[threadIdx.x];
}
DEVICE u64 left() { return descriptor(at_shared(shared), 1024, 128, 0); }
DEVICE u64 right() { return descriptor(at_shared(shared) + 2048, 128, 128, 0); }
DEVICE void ready(const u16* A, const u16* B) {
  fill(A, B);
  fence_proxy();
  __syncthreads();
}
DEVICE void store(float* C, const float* d) {
  for (int i = 0; i < 4; i++) C[threadIdx.x * 4 + i] = d[i];
}
DEVICE void multiply(float* d, int adds) { Bf8::mul<1, 0, 0>(d, left(), right(), adds); }
#define KERNEL(name) extern "C" __global__ void name(const u16* A, const u16* B, float* C)

KERNEL(read_before_wait) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  IF_BROKEN(store(C, d);)
  wait<0>();
  IF_RIGHT(store(C, d);)
}
KERNEL(wait_for_too_few) {
  ready(A, B);
  float d[4], e[4];
  fence();
  multiply(d, 0);
  commit();
  multiply(e, 0);
  commit();
  wait<1>();
  IF_BROKEN(store(C + 1024, e);)
  store(C, d);
  wait<0>();
  IF_RIGHT(store(C + 1024, e);)
}
KERNEL(accumulator_written) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  for (int i = 0; i < 4; i++) asm volatile("add.f32 %0, %0, 0f3F800000;" : "+f"(d[i]));
  IF_BROKEN(wait<0>();)
  store(C, d);
}
KERNEL(operand_written) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  u32 a[4];
  for (int i = 0; i < 4; i++) asm volatile("add.u32 %0, %1, 1;" : "=r"(a[i]) : "r"(threadIdx.x));
  fence();
  Bf8::mul<1, 0, 0>(d, a, right(), 0);
  commit();
  IF_RIGHT(wait<0>();)
  for (int i = 0; i < 4; i++) asm volatile("add.u32 %0, %0, 1;" : "+r"(a[i]));
  IF_BROKEN(wait<0>();)
  fence();
  Bf8::mul<1, 0, 0>(d, a, right(), 1);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(chain_of_two_shapes) {
  ready(A, B);
  float d[8];
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  Bf16::mul<1, 0, 0>(d, left(), left(), 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(result_as_operand) {
  ready(A, B);
  float d[4], e[4];
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  Bf8::mul<1, 0, 0>(e, (const u32*)d, right(), 0);
  commit();
  wait<0>();
  store(C, e);
}
KERNEL(no_fence) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  IF_RIGHT(fence();)
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(accumulator_after_fence) {
  ready(A, B);
  float d[4];
  IF_BROKEN(fence();)
  for (int i = 0; i < 4; i++) d[i] = A[threadIdx.x];
  IF_RIGHT(asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])); fence();)
  multiply(d, 1);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(operand_after_fence) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  u32 a[4] = {threadIdx.x, 1, 2, 3};
  IF_BROKEN(fence();)
  for (int i = 0; i < 4; i++) asm volatile("add.u32 %0, %0, 1;" : "+r"(a[i]));
  IF_RIGHT(fence();)
  Bf8::mul<1, 0, 0>(d, a, right(), 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(scaled_without_fence) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  for (int i = 0; i < 4; i++) asm volatile("mul.f32 %0, %0, 0f40000000;" : "+f"(d[i]));
  IF_RIGHT(fence();)
  multiply(d, 1);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(no_proxy_fence) {
  fill(A, B);
  IF_RIGHT(fence_proxy();)
  __syncthreads();
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(proxy_fence_behind_barrier) {
  fill(A, B);
  IF_RIGHT(fence_proxy();)
  __syncthreads();
  if (threadIdx.x < 32) { IF_BROKEN(fence_proxy();) }
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(proxy_fence_before_copies_arrive) {
  copy16(at_shared(shared) + threadIdx.x % 2 * 1024 + threadIdx.x / 2 * 16, A + threadIdx.x * 8);
  if (threadIdx.x < 16) copy16(at_shared(shared) + 2048 + threadIdx.x % 2 * 128 + threadIdx.x / 2 * 16, B + threadIdx.x * 8);
  copy_commit();
  IF_BROKEN(fence_proxy();)
  copy_wait<0>();
  IF_RIGHT(fence_proxy();)
  __syncthreads();
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(no_barrier) {
  fill(A, B);
  fence_proxy();
  IF_RIGHT(__syncthreads();)
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(overwritten) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  __syncthreads();
  if (threadIdx.x == 40) *(u32*)(shared + 2048) = 0;
  __syncthreads();
  IF_BROKEN(wait<0>();)
  store(C, d);
}
KERNEL(overwritten_by_a_copy) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  __syncthreads();
  if (threadIdx.x == 40) copy16(at_shared(shared) + 64, A);
  IF_BROKEN(wait<0>();)
  copy_commit();
  copy_wait<0>();
  store(C, d);
}
KERNEL(overwritten_without_barrier) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  IF_RIGHT(__syncthreads();)
  if (threadIdx.x == 40) *(u32*)(shared + 2048) = 0;
  store(C, d);
}
KERNEL(three_warps) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  IF_BROKEN(if (threadIdx.x / 32 != 2)) {
    fence();
    multiply(d, 0);
    commit();
    wait<0>();
  }
  store(C, d);
}
KERNEL(warps_differ) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  fence();
  multiply(d, 0);
  IF_BROKEN(if (threadIdx.x < 32) multiply(d, 1); else) multiply(d, 1);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(lanes_elsewhere) {
  ready(A, B);
  float d[4] = {0, 0, 0, 0};
  IF_BROKEN(if (threadIdx.x != 77)) {
    fence();
    multiply(d, 0);
    commit();
    wait<0>();
  }
  store(C, d);
}
KERNEL(descriptors_differ) {
  ready(A, B);
  float d[4];
  fence();
  Bf8::mul<1, 0, 0>(d, left(), right() IF_BROKEN(+ (threadIdx.x % 32 == 3)), 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(never_waits) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  IF_RIGHT(wait<0>();)
  C[threadIdx.x] = 1;
}
KERNEL(not_committed) {
  ready(A, B);
  float d[4];
  fence();
  multiply(d, 0);
  IF_RIGHT(commit();)
  wait<0>();
  IF_BROKEN(commit();)
  C[threadIdx.x] = 1;
}
KERNEL(past_the_end) {
  ready(A, B);
  float d[4];
  fence();
  Bf8::mul<1, 0, 0>(d, left(), right() IF_BROKEN(+ 8), 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(never_written) {
  if (threadIdx.x IF_BROKEN(!= 5) IF_RIGHT(< 128)) *(uint4*)(shared + threadIdx.x % 2 * 1024 + threadIdx.x / 2 * 16) = ((const uint4*)A)[threadIdx.x];
  if (threadIdx.x < 16) *(uint4*)(shared + 2048 + threadIdx.x * 16) = ((const uint4*)B)[threadIdx.x];
  fence_proxy();
  __syncthreads();
  float d[4];
  fence();
  multiply(d, 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(permuted_at_no_multiple) {
  for (int i = threadIdx.x; i < 1024; i += 128) ((uint4*)shared)[i] = make_uint4(0, 0, 0, 0);
  fence_proxy();
  __syncthreads();
  float d[4];
  fence();
  Bf8::mul<1, 0, 0>(d, descriptor(at_shared(shared) IF_BROKEN(+ 128), 16, 1024, 1), descriptor(at_shared(shared) + 8192, 16, 1024, 1), 0);
  commit();
  wait<0>();
  store(C, d);
}
KERNEL(unknown_layout) {
  ready(A, B);
  float d[4];
  fence();
  Bf8::mul<1, 0, 0>(d, left(), right() IF_BROKEN(| 2ull << 62), 0);
  commit();
  wait<0>();
  store(C, d);
}
