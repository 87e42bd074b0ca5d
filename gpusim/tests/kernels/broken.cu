// Each kernel is broken once where BROKEN is defined, and right where it is not.
typedef unsigned int u32;
typedef unsigned long long u64;
#ifdef BROKEN
#define IF_BROKEN(a, b) a
#else
#define IF_BROKEN(a, b) b
#endif

extern "C" __global__ void missing_barrier(const int* x, int* y) {
  __shared__ int s[128];
  s[threadIdx.x] = x[threadIdx.x];
  IF_BROKEN(, __syncthreads();)
  y[threadIdx.x] = s[127 - threadIdx.x];
}

extern "C" __global__ void missing_second_barrier(int* y) {
  __shared__ int s[64];
  for (int i = 0; i < 3; i++) {
    s[threadIdx.x] = i + threadIdx.x;
    __syncthreads();
    y[i * 64 + threadIdx.x] = s[(threadIdx.x + 40) % 64];
    IF_BROKEN(, __syncthreads();)
  }
}

extern "C" __global__ void missing_syncwarp(int* y) {
  __shared__ int s[32];
  s[threadIdx.x] = threadIdx.x;
  IF_BROKEN(, __syncwarp();)
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}

extern "C" __global__ void same_element(int* y) {
  IF_BROKEN(y[threadIdx.x / 2], y[threadIdx.x]) = threadIdx.x;
}

extern "C" __global__ void counter_without_atomic(volatile int* unused, int* y) {
  IF_BROKEN(*y = *y + 1, atomicAdd(y, 1));
}

extern "C" __global__ void blocks_without_fence(int* data, int* flag, int* y) {
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *data = 42;
      IF_BROKEN(, __threadfence();)
      atomicExch(flag, 1);
    }
  } else if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0) == 0) {}
    __threadfence();
    *y = *data;
  }
}

extern "C" __global__ void past_the_end(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i IF_BROKEN(<=, <) n) y[i] = x[i];
}

extern "C" __global__ void shared_past_the_end(int* y) {
  __shared__ int s[32];
  s[threadIdx.x IF_BROKEN(+ 1, )] = threadIdx.x * 3;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x / 2 + 1];
}

extern "C" __global__ void unwritten_shared(int* y) {
  __shared__ int s[64];
  IF_BROKEN(if (threadIdx.x != 5), ) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void unwritten_global(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x IF_BROKEN(+ 1, )]; }

extern "C" __global__ void unwritten_vector(const int4* x, int* y) {
  int4 v = x[threadIdx.x];
  y[threadIdx.x] = v.x + v.y + v.z IF_BROKEN(+ v.w, );
}

extern "C" __global__ void misaligned_vector(const float* x, float4* y) {
  y[threadIdx.x] = *(const float4*)(x + 4 * threadIdx.x IF_BROKEN(+ 1, ));
}

extern "C" __global__ void divergent_barrier(int* y) {
  __shared__ int s[64];
  s[threadIdx.x] = 1;
#ifdef BROKEN
  if (threadIdx.x < 40) __syncthreads();
#else
  __syncthreads();
#endif
  y[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void wrong_mask(int* y) {
  int v = threadIdx.x;
  if (threadIdx.x < 16) v = __shfl_xor_sync(IF_BROKEN(0xffffffffu, 0xffffu), v, 1);
  y[threadIdx.x] = v;
}

extern "C" __global__ void unequal_barriers(int* y) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
  else asm volatile("bar.sync %0, 64;" ::"n"(IF_BROKEN(2, 1)));
  y[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void missing_wait(const int* x, int* y) {
  __shared__ int s[32];
  u32 at = (u32)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(x + threadIdx.x));
  asm volatile("cp.async.commit_group;");
  IF_BROKEN(, asm volatile("cp.async.wait_group 0;");)
  __syncthreads();
  y[threadIdx.x] = s[31 - threadIdx.x];
}

extern "C" __global__ void waits_forever(volatile int* flag, int* y) {
  IF_BROKEN(, *flag = 1;)
  while (*flag == 0) {}
  y[threadIdx.x] = 1;
}

