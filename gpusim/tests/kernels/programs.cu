// Programs of the kinds that people write, for the simulator's tests.
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void grid_stride(const float* x, const float* y, float* z, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) z[i] = 2.5f * x[i] + y[i];
}

extern "C" __global__ void vectors(const float4* x, float4* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float4 v = x[i];
    y[i] = make_float4(v.x * 2.0f, v.y * 2.0f, v.z * 2.0f, v.w * 2.0f);
  }
}

extern "C" __global__ void reduce(const float* x, float* out, int n) {
  __shared__ float partial[256];
  float sum = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) sum += x[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) {
    if (threadIdx.x < k) partial[threadIdx.x] += partial[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void reduce_warps(const int* x, int* out, int n) {
  __shared__ int partial[32];
  int sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  for (int k = 16; k > 0; k >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, k);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    int v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    v = __reduce_add_sync(0xffffffffu, v);
    if (threadIdx.x == 0) *out = v;
  }
}

__device__ unsigned int finished_blocks;

// Each block adds up a part; the last one to finish adds up the parts.
extern "C" __global__ void reduce_last_block(const int* x, volatile int* partial, int* out, int n) {
  __shared__ int sum;
  __shared__ bool last;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  int mine = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += x[i];
  atomicAdd(&sum, mine);
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(&finished_blocks, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int total = 0;
    for (int b = 0; b < gridDim.x; b++) total += partial[b];
    *out = total;
    finished_blocks = 0;
  }
}

// An inclusive scan of up to 1024 elements.
extern "C" __global__ void scan(const int* x, int* y, int n) {
  __shared__ int buffer[2][1024];
  int t = threadIdx.x, from = 0;
  buffer[0][t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int k = 1; k < 1024; k *= 2) {
    buffer[1 - from][t] = buffer[from][t] + (t >= k ? buffer[from][t - k] : 0);
    from = 1 - from;
    __syncthreads();
  }
  if (t < n) y[t] = buffer[from][t];
}

extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8)
    if (r + k < rows && c < columns) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * columns + c];
  __syncthreads();
  int c2 = blockIdx.y * 32 + threadIdx.x, r2 = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8)
    if (r2 + k < columns && c2 < rows) y[(r2 + k) * rows + c2] = tile[threadIdx.x][threadIdx.y + k];
}

extern "C" __global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[16][16], bs[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    as[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0;
    bs[threadIdx.y][threadIdx.x] = t + threadIdx.y < k && column < n ? b[(t + threadIdx.y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) sum = fmaf(as[threadIdx.y][i], bs[i][threadIdx.x], sum);
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char* x, u32* bins, int n) {
  __shared__ u32 mine[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (mine[i]) atomicAdd(&bins[i], mine[i]);
}

__device__ __forceinline__ void copy_16(void* to, const void* from) {
  u32 shared = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from));
}

// Tiles come in by asynchronous copies, one ahead of the one that is worked on.
extern "C" __global__ void double_buffered(const float4* x, float* y, int tiles) {
  __shared__ float4 buffer[2][64];
  int t = threadIdx.x;
  copy_16(&buffer[0][t], &x[t]);
  asm volatile("cp.async.commit_group;");
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) copy_16(&buffer[(i + 1) & 1][t], &x[(i + 1) * 64 + t]);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    float4 v = buffer[i & 1][63 - t];
    y[i * 64 + t] = v.x + v.y + v.z + v.w;
    __syncthreads();
  }
}

// C = A B for one tile of 16 by 8 by 16 of bf16, A by rows, B by columns.
extern "C" __global__ void tensor_bf16(const unsigned short* a, const unsigned short* b, float* c) {
  __shared__ __align__(16) unsigned short as[16 * 16], bs[8 * 16];
  int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) as[i] = a[i];
  for (int i = lane; i < 128; i += 32) bs[i] = b[i];
  __syncwarp();
  u32 a0, a1, a2, a3, b0, b1;
  u32 at = (u32)__cvta_generic_to_shared(&as[(lane % 16) * 16 + lane / 16 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3) : "r"(at));
  u32 bt = (u32)__cvta_generic_to_shared(&bs[(lane % 8) * 16 + lane / 8 % 2 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(bt));
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  int row = lane / 4, column = lane % 4 * 2;
  c[row * 8 + column] = d0;
  c[row * 8 + column + 1] = d1;
  c[(row + 8) * 8 + column] = d2;
  c[(row + 8) * 8 + column + 1] = d3;
}

// The same of tf32, 16 by 8 by 8, straight from memory.
extern "C" __global__ void tensor_tf32(const float* a, const float* b, float* c) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  u32 x[4] = {__float_as_uint(a[g * 8 + t]), __float_as_uint(a[(g + 8) * 8 + t]), __float_as_uint(a[g * 8 + t + 4]),
              __float_as_uint(a[(g + 8) * 8 + t + 4])};
  u32 y[2] = {__float_as_uint(b[t * 8 + g]), __float_as_uint(b[(t + 4) * 8 + g])};
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  c[g * 8 + 2 * t] = d0;
  c[g * 8 + 2 * t + 1] = d1;
  c[(g + 8) * 8 + 2 * t] = d2;
  c[(g + 8) * 8 + 2 * t + 1] = d3;
}

extern "C" __global__ void collatz(const u32* x, u32* steps, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 v = x[i], count = 0;
  while (v != 1) {
    if (v & 1) v = 3 * v + 1;
    else v >>= 1;
    if (++count == 1000) break;
  }
  steps[i] = count;
}

// A row a block; any length.
extern "C" __global__ void softmax(const float* x, float* y, int columns) {
  extern __shared__ float shared[];
  const float* row = x + (u64)blockIdx.x * columns;
  float most = -__int_as_float(0x7f800000);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
  shared[threadIdx.x] = most;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + k]);
    __syncthreads();
  }
  most = shared[0];
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - most);
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + k];
    __syncthreads();
  }
  sum = shared[0];
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[(u64)blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}

extern "C" __global__ void half_arithmetic(const u32* x, const u32* y, u32* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 r;
  asm("{ .reg .b32 t; fma.rn.f16x2 t, %1, %2, %1; mul.f16x2 t, t, %2; max.NaN.f16x2 %0, t, %1; }" : "=r"(r) : "r"(x[i]), "r"(y[i]));
  z[i] = r;
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursive(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 12); }

extern "C" __global__ void sines(const float* x, float* y, const double* u, double* v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = sinf(x[i]) + logf(fabsf(x[i]) + 1.0f) + tanhf(x[i]) + powf(fabsf(x[i]), 0.3f);
  v[i] = exp(u[i]) + cos(u[i]) + sqrt(fabs(u[i])) + 1.0 / u[i];
}

// One thread at a time holds the lock, lanes of one warp among them.
extern "C" __global__ void spin_lock(int* lock, volatile int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *counter = *counter + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

__constant__ float weights[5] = {1, 4, 6, 4, 1};

extern "C" __global__ void stencil(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int k = -2; k <= 2; k++) {
    int j = min(max(i + k, 0), n - 1);
    sum += weights[k + 2] * x[j];
  }
  y[i] = sum / 16;
}

extern "C" __global__ void dispatch(const int* op, const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = x[i];
  switch (op[i]) {
    case 0: v = v * 7; break;
    case 1: v = v / 3; break;
    case 2: v = v % 5; break;
    case 3: v = v << 3; break;
    case 4: v = ~v; break;
    case 5: v = __popc(v) + __clz(v); break;
    case 6: v = (int)(((long long)v * v) >> 7); break;
    default: v = __brev(v);
  }
  y[i] = v;
}

extern "C" __global__ void compact(const int* x, int* y, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool keep = i < n && x[i] > 0;
  u32 votes = __ballot_sync(0xffffffffu, keep);
  int lane = threadIdx.x & 31, start = 0;
  if (lane == 0) start = atomicAdd(count, __popc(votes));
  start = __shfl_sync(0xffffffffu, start, 0);
  if (keep) y[start + __popc(votes & ((1u << lane) - 1))] = x[i];
}
