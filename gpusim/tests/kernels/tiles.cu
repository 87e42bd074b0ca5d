// Kernels that copy tiles of tensors to shared memory and wait for phases of barriers there.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

struct __align__(64) Map { char bytes[128]; };
extern __shared__ __align__(1024) char shared[];

DEVICE u32 at_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void begin(u32 bar, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
DEVICE void fence_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void expect(u32 bar, u32 bytes) { asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEVICE void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void arrive_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEVICE void wait_phase(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\nbra AGAIN%=;\nDONE%=:\n}" ::"r"(bar), "r"(parity) : "memory");
}
DEVICE void copy2(u32 to, const Map* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
DEVICE void copy3(u32 to, const Map* map, int x, int y, int z, u32 bar) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Rows of 128 bytes that are permuted, as copies of tiles put them there.
DEVICE u64 descriptor(u32 at, u32 leading) { return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62; }
struct Bf128Transposed {
  static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 1;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63]) : "l"(a),"l"(b),"r"(adds));
  }
};
struct Bf64 {
  static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "l"(a),"l"(b),"r"(adds));
  }
};
struct Bf64Transposed {
  static DEVICE void mul(float* d, const u32* a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(b),"r"(adds));
  }
};

// One tile, as it lies in shared memory: words of `bytes` bytes.
DEVICE void take(u32* out, u32 bytes) {
  for (u32 i = threadIdx.x; i < bytes / 4; i += blockDim.x) out[i] = ((const u32*)(shared + 1024))[i];
}
DEVICE void ready(u32 bar, u32 arrivals) {
  if (threadIdx.x == 0) {
    begin(bar, arrivals);
    fence_begun();
  }
  __syncthreads();
}
extern "C" __global__ void tile2(const __grid_constant__ Map map, u32* out, u32 bytes, int x, int y) {
  u32 bar = at_shared(shared), to = bar + 1024;
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
  ready(bar, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar, bytes);
    copy2(to, &map, x, y, bar);
  }
  wait_phase(bar, 0);
  take(out, bytes);
}
// The tile's bytes are expected behind the copy, and all threads arrive.
extern "C" __global__ void tile3(const __grid_constant__ Map map, u32* out, u32 bytes, int x, int y, int z) {
  u32 bar = at_shared(shared), to = bar + 1024;
  ready(bar, blockDim.x);
  if (threadIdx.x == 0) {
    copy3(to, &map, x, y, z, bar);
    expect(bar, bytes);
  }
  arrive(bar);
  wait_phase(bar, 0);
  take(out, bytes);
}
// The same by the other spellings: the state of an arrival, polling, generic addresses, and a barrier that begins twice.
extern "C" __global__ void spelled(const __grid_constant__ Map map, u32* out, u32 bytes, int x, int y) {
  u32 bar = at_shared(shared), to = bar + 1024;
  for (int round = 0; round < 2; round++) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(2 * blockDim.x) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.expect_tx.shared.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(bar), "l"(0ull) : "memory");
    }
    u64 state;
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(bar) : "memory");
    asm volatile("mbarrier.arrive.release.cta.b64 %0, [%1];" : "=l"(state) : "l"((u64)shared) : "memory");
    if (threadIdx.x % 2) {
      asm volatile("{\n.reg .pred p;\nAGAIN%=:\nmbarrier.test_wait.acquire.cta.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN%=;\n}" ::"r"(bar), "l"(state) : "memory");
    } else {
      asm volatile("{\n.reg .pred p;\nAGAIN%=:\nmbarrier.test_wait.parity.acquire.cta.shared.b64 p, [%0], %1;\n@!p bra AGAIN%=;\n}" ::"r"(bar), "r"(0) : "memory");
      asm volatile("{\n.reg .pred p;\nAGAIN%=:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1, 1000;\n@!p bra AGAIN%=;\n}" ::"r"(bar), "r"(0) : "memory");
    }
    take(out, bytes);
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
    __syncthreads();
  }
}

// C of M by N is A of M by K times B of K by N, in tiles of 128 by 128: all warps multiply, the first thread asks for copies.
extern "C" __global__ void __launch_bounds__(256) product(const __grid_constant__ Map A, const __grid_constant__ Map B, float* C, int N, int K) {
  constexpr int STAGES = 3, LEFT = 128 * 128, STAGE = 2 * LEFT;
  u32 bars = at_shared(shared), base = bars + 1024;
  int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  int row = blockIdx.y * 128, column = blockIdx.x * 128, steps = K / 64;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) begin(bars + 8 * i, 1);
    fence_begun();
  }
  __syncthreads();
  auto fill = [&](int step) {
    u32 stage = step % STAGES, a = base + stage * STAGE, b = a + LEFT, bar = bars + 8 * stage;
    arrive_expect(bar, STAGE);
    copy2(a, &A, step * 64, row, bar);
    for (int j = 0; j < 2; j++) copy2(b + j * 8192, &B, column + j * 64, step * 64, bar);
  };
  if (threadIdx.x == 0)
    for (int i = 0; i < STAGES && i < steps; i++) fill(i);
  float d[64];
  for (int i = 0; i < 64; i++) d[i] = 0;
  for (int step = 0; step < steps; step++) {
    u32 stage = step % STAGES, a = base + stage * STAGE, b = a + LEFT;
    wait_phase(bars + 8 * stage, step / STAGES & 1);
    fence();
    for (int k = 0; k < 4; k++)
      Bf128Transposed::mul(d, descriptor(a + group * 8192 + k * 32, 16), descriptor(b + k * 2048, 8192), 1);
    commit();
    wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && step + STAGES < steps) fill(step + STAGES);
  }
  for (int i = 0; i < 64; i++)
    C[(row + group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + column + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// The same product by threads of their own that ask for copies, and barriers that say which stages are free.
extern "C" __global__ void __launch_bounds__(288) specialized(const __grid_constant__ Map A, const __grid_constant__ Map B, float* C, int N, int K) {
  constexpr int STAGES = 2, LEFT = 128 * 128, STAGE = 2 * LEFT;
  u32 full = at_shared(shared), empty = full + 128, base = full + 1024;
  int row = blockIdx.y * 128, column = blockIdx.x * 128, steps = K / 64;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) begin(full + 8 * i, 1), begin(empty + 8 * i, 2);
    fence_begun();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    if (threadIdx.x == 256)
      for (int step = 0; step < steps; step++) {
        u32 stage = step % STAGES, a = base + stage * STAGE, bar = full + 8 * stage;
        wait_phase(empty + 8 * stage, step / STAGES + 1 & 1);
        arrive_expect(bar, STAGE);
        copy2(a, &A, step * 64, row, bar);
        for (int j = 0; j < 2; j++) copy2(a + LEFT + j * 8192, &B, column + j * 64, step * 64, bar);
      }
    return;
  }
  int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float d[64];
  for (int i = 0; i < 64; i++) d[i] = 0;
  for (int step = 0; step < steps; step++) {
    u32 stage = step % STAGES, a = base + stage * STAGE, b = a + LEFT;
    wait_phase(full + 8 * stage, step / STAGES & 1);
    fence();
    for (int k = 0; k < 4; k++)
      Bf128Transposed::mul(d, descriptor(a + group * 8192 + k * 32, 16), descriptor(b + k * 2048, 8192), 1);
    commit();
    wait<0>();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    if (threadIdx.x % 128 == 0) arrive(empty + 8 * stage);
  }
  for (int i = 0; i < 64; i++)
    C[(row + group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + column + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}

DEVICE u32 pair(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
DEVICE float power(float x) {
  float d;
  asm("ex2.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
// Attention of 64 rows to tiles of 64 keys, 64 features each; a block of threads a head in y.
extern "C" __global__ void __launch_bounds__(128) attention(const __grid_constant__ Map Q, const __grid_constant__ Map K, const __grid_constant__ Map V, float* O, int length, float scale) {
  constexpr int STAGES = 2, TILE = 64 * 128;
  u32 bars = at_shared(shared), q = bars + 1024, keys = q + TILE, values = keys + STAGES * TILE;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 64, head = blockIdx.y * length, tiles = length / 64;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + 2 * STAGES; i++) begin(bars + 8 * i, 1);
    fence_begun();
  }
  __syncthreads();
  auto fill = [&](const Map* map, u32 to, int at, u32 bar) {
    arrive_expect(bar, TILE);
    copy2(to, map, 0, head + at, bar);
  };
  if (threadIdx.x == 0) {
    fill(&Q, q, row, bars);
    for (int i = 0; i < STAGES && i < tiles; i++) {
      fill(&K, keys + i * TILE, i * 64, bars + 8 + 16 * i);
      fill(&V, values + i * TILE, i * 64, bars + 16 + 16 * i);
    }
  }
  float sum[32], scores[32], most[2] = {-1e30f, -1e30f}, weight[2] = {0, 0}, factor[2];
  u32 weights[4][4];
  for (int i = 0; i < 32; i++) sum[i] = 0;
  const float unit = scale * 1.4426950408889634f;
  wait_phase(bars, 0);
  for (int tile = 0; tile < tiles; tile++) {
    u32 stage = tile % STAGES, parity = tile / STAGES & 1, k = keys + stage * TILE, v = values + stage * TILE, bar = bars + 8 + 16 * stage;
    wait_phase(bar, parity);
    fence();
    for (int j = 0; j < 4; j++) Bf64::mul(scores, descriptor(q + j * 32, 16), descriptor(k + j * 32, 16), j > 0);
    commit();
    wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && tile + STAGES < tiles) fill(&K, k, (tile + STAGES) * 64, bar);
    for (int h = 0; h < 2; h++) {
      float top = most[h];
      for (int j = 0; j < 8; j++) top = fmaxf(top, fmaxf(scores[j * 4 + h * 2], scores[j * 4 + h * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      factor[h] = power((most[h] - top) * unit);
      most[h] = top;
      weight[h] *= factor[h];
      for (int j = 0; j < 16; j++) {
        float& score = scores[j / 2 * 4 + h * 2 + j % 2];
        score = power((score - top) * unit);
        weight[h] += score;
      }
    }
    for (int j = 0; j < 4; j++)
      for (int i = 0; i < 4; i++) weights[j][i] = pair(scores[j * 8 + i * 2], scores[j * 8 + i * 2 + 1]);
    for (int j = 0; j < 32; j++) sum[j] *= factor[j / 2 % 2];
    wait_phase(bar + 8, parity);
    fence();
    for (int j = 0; j < 4; j++) Bf64Transposed::mul(sum, weights[j], descriptor(v + j * 2048, TILE), 1);
    commit();
    wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && tile + STAGES < tiles) fill(&V, v, (tile + STAGES) * 64, bar + 8);
  }
  for (int h = 0; h < 2; h++) {
    float all = weight[h];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    int to = head + row + warp * 16 + lane / 4 + 8 * h;
    for (int j = 0; j < 16; j++) O[to * 64 + j / 2 * 8 + lane % 4 * 2 + j % 2] = sum[j / 2 * 4 + h * 2 + j % 2] / all;
  }
}
