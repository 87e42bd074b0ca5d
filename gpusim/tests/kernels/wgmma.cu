// Products of four warps (`wgmma`), in each layout of their operands in shared memory.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

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
struct Bf64 {
  static constexpr int N = 64;
  template <int S, int TA, int TB> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, %35, 1, %36, %37;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "l"(a),"l"(b),"r"(adds),"n"(S),"n"(TA),"n"(TB));
  }
  template <int S, int TA, int TB> static DEVICE void mul(float* d, const u32* a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, %38, 1, %39;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(b),"r"(adds),"n"(S),"n"(TB));
  }
};
struct Bf256 {
  static constexpr int N = 256;
  template <int S, int TA, int TB> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, p, %131, 1, %132, %133;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63]),"+f"(d[64]),"+f"(d[65]),"+f"(d[66]),"+f"(d[67]),"+f"(d[68]),"+f"(d[69]),"+f"(d[70]),"+f"(d[71]),"+f"(d[72]),"+f"(d[73]),"+f"(d[74]),"+f"(d[75]),"+f"(d[76]),"+f"(d[77]),"+f"(d[78]),"+f"(d[79]),"+f"(d[80]),"+f"(d[81]),"+f"(d[82]),"+f"(d[83]),"+f"(d[84]),"+f"(d[85]),"+f"(d[86]),"+f"(d[87]),"+f"(d[88]),"+f"(d[89]),"+f"(d[90]),"+f"(d[91]),"+f"(d[92]),"+f"(d[93]),"+f"(d[94]),"+f"(d[95]),"+f"(d[96]),"+f"(d[97]),"+f"(d[98]),"+f"(d[99]),"+f"(d[100]),"+f"(d[101]),"+f"(d[102]),"+f"(d[103]),"+f"(d[104]),"+f"(d[105]),"+f"(d[106]),"+f"(d[107]),"+f"(d[108]),"+f"(d[109]),"+f"(d[110]),"+f"(d[111]),"+f"(d[112]),"+f"(d[113]),"+f"(d[114]),"+f"(d[115]),"+f"(d[116]),"+f"(d[117]),"+f"(d[118]),"+f"(d[119]),"+f"(d[120]),"+f"(d[121]),"+f"(d[122]),"+f"(d[123]),"+f"(d[124]),"+f"(d[125]),"+f"(d[126]),"+f"(d[127]) : "l"(a),"l"(b),"r"(adds),"n"(S),"n"(TA),"n"(TB));
  }
};
struct Half24 {
  static constexpr int N = 24;
  template <int S, int TA, int TB> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, %12, %13, p, %15, 1, %16, %17;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]) : "l"(a),"l"(b),"r"(adds),"n"(S),"n"(TA),"n"(TB));
  }
  template <int S, int TA, int TB> static DEVICE void mul(float* d, const u32* a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %17, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, p, %18, 1, %19;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(b),"r"(adds),"n"(S),"n"(TB));
  }
};
struct Tf16 {
  static constexpr int N = 16;
  template <int S> static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, %11, 1;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]) : "l"(a),"l"(b),"r"(adds),"n"(S));
  }
  template <int S> static DEVICE void mul(float* d, const u32* a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, %14, 1;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(b),"r"(adds),"n"(S));
  }
};

// Where sixteen bytes are of a matrix of R rows and K columns, in shared memory; T: rows are along m or n, and come in units of eight.
template <int R, int K, int T, int L> DEVICE u32 place(int row, int unit) {
  if (!T) return L ? unit / 8 * (R * 128) + row * 128 + ((unit ^ row) & 7) * 16 : unit * (R * 16) + row * 16;
  return L ? unit / 8 * (K * 128) + row * 128 + ((unit ^ row) & 7) * 16 : unit * (K * 16) + row * 16;
}
// The descriptor of a part of it: rows from one on, all columns of a step.
template <int R, int K, int T, int L> DEVICE u64 part(u32 at, int row, int step) {
  if (!T) return L ? descriptor(at + step / 4 * (R * 128) + step % 4 * 32 + row * 128, 16, 1024, 1)
                   : descriptor(at + step * 2 * (R * 16) + row * 16, R * 16, 128, 0);
  return L ? descriptor(at + row / 64 * (K * 128) + step * 2048, K * 128, 1024, 1)
           : descriptor(at + row / 8 * (K * 16) + step * 256, 128, K * 16, 0);
}
// A matrix from global to shared memory: its rows are those of memory, or its columns if T.
template <int R, int K, int T, int L> DEVICE void fill(char* to, const u16* from) {
  constexpr int ROWS = T ? K : R, UNITS = (T ? R : K) / 8;
  for (int i = threadIdx.x; i < ROWS * UNITS; i += blockDim.x) {
    int row = i / UNITS, unit = i % UNITS;
    *(uint4*)(to + place<R, K, T, L>(row, unit)) = *(const uint4*)(from + row * UNITS * 8 + unit * 8);
  }
}

// C of M by N: each four warps have 64 rows. A in registers if RS.
template <class W, int M, int K, int TA, int TB, int L, int RS, int S> DEVICE void multiply(const u16* A, const u16* B, float* C) {
  constexpr int N = W::N;
  char *a = shared, *b = shared + M * K * 2;
  fill<M, K, TA, L>(a, A);
  fill<N, K, TB, L>(b, B);
  fence_proxy();
  __syncthreads();
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = threadIdx.x / 128 * 64;
  float d[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) d[i] = 0;
  u32 r[K / 16][4];
  if (RS) {
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int at = row + warp * 16 + lane / 4 + i % 2 * 8;
        r[k][i] = *(const u32*)(A + at * K + k * 16 + i / 2 * 8 + lane % 4 * 2);
      }
  }
  fence();
#pragma unroll
  for (int k = 0; k < K / 16; k++) {
    u64 right = part<N, K, TB, L>(at_shared(b), 0, k);
    if constexpr (RS) W::template mul<S, 0, TB>(d, r[k], right, k > 0);
    else W::template mul<S, TA, TB>(d, part<M, K, TA, L>(at_shared(a), row, k), right, k > 0);
  }
  commit();
  wait<0>();
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) C[(row + warp * 16 + lane / 4 + i / 2 * 8) * N + j * 8 + lane % 4 * 2 + i % 2] = d[j * 4 + i];
}
#define MULTIPLY(name, ...) \
  extern "C" __global__ void name(const u16* A, const u16* B, float* C) { multiply<__VA_ARGS__>(A, B, C); }
MULTIPLY(rows_rows, Bf64, 128, 64, 0, 0, 0, 0, 1)
MULTIPLY(rows_rows_permuted, Bf64, 128, 128, 0, 0, 1, 0, 1)
MULTIPLY(columns_columns, Bf64, 64, 32, 1, 1, 0, 0, 1)
MULTIPLY(columns_columns_permuted, Bf64, 128, 64, 1, 1, 1, 0, 1)
MULTIPLY(wide, Bf256, 64, 64, 0, 1, 1, 0, 1)
MULTIPLY(narrow_negative, Bf8, 64, 32, 0, 0, 0, 0, -1)
MULTIPLY(halves_in_registers, Half24, 128, 48, 0, 1, 0, 1, 1)
MULTIPLY(halves, Half24, 64, 32, 1, 0, 0, 0, 1)
MULTIPLY(registers_permuted, Bf64, 64, 64, 0, 1, 1, 1, 1)

// Numbers of f32 cut to tf32, eight at a time.
template <int RS> DEVICE void multiply_tf32(const float* A, const float* B, float* C) {
  char *a = shared, *b = shared + 64 * 32 * 4;
  for (int i = threadIdx.x; i < 64 * 8; i += 128) *(uint4*)(a + i % 8 * 1024 + i / 8 * 16) = ((const uint4*)A)[i];
  for (int i = threadIdx.x; i < 16 * 8; i += 128) *(uint4*)(b + i % 8 * 256 + i / 8 * 16) = ((const uint4*)B)[i];
  fence_proxy();
  __syncthreads();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float d[8];
  u32 r[4][4];
#pragma unroll
  for (int i = 0; i < 8; i++) d[i] = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) r[k][i] = ((const u32*)A)[(warp * 16 + lane / 4 + i % 2 * 8) * 32 + k * 8 + lane % 4 + i / 2 * 4];
  fence();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u64 right = descriptor(at_shared(b) + k * 512, 256, 128, 0);
    if constexpr (RS) Tf16::mul<1>(d, r[k], right, k > 0);
    else Tf16::mul<1>(d, descriptor(at_shared(a) + k * 2048, 1024, 128, 0), right, k > 0);
  }
  commit();
  wait<0>();
#pragma unroll
  for (int i = 0; i < 8; i++) C[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
extern "C" __global__ void tf32(const float* A, const float* B, float* C) { multiply_tf32<0>(A, B, C); }
extern "C" __global__ void tf32_in_registers(const float* A, const float* B, float* C) { multiply_tf32<1>(A, B, C); }

// C of 64 by 64 by block, of any k that is a multiple of 64: copies two steps ahead, one product under way.
extern "C" __global__ void pipeline(const u16* A, const u16* B, float* C, int K) {
  constexpr int STAGE = 16384;
  int N = gridDim.x * 64, first = blockIdx.x * 64, n = K / 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto fill = [&](int step) {
    char* to = shared + step % 4 * STAGE;
    for (int i = threadIdx.x; i < 512; i += 128) {
      copy16(at_shared(to + place<64, 64, 0, 1>(i / 8, i % 8)), A + i / 8 * K + step * 64 + i % 8 * 8);
      copy16(at_shared(to + 8192 + place<64, 64, 1, 1>(i / 8, i % 8)), B + (step * 64 + i / 8) * N + first + i % 8 * 8);
    }
  };
  float d[32];
#pragma unroll
  for (int i = 0; i < 32; i++) d[i] = 0;
  for (int i = 0; i < 2; i++) {
    if (i < n) fill(i);
    copy_commit();
  }
  for (int step = 0; step < n; step++) {
    copy_wait<1>();
    fence_proxy();
    __syncthreads();
    u32 a = at_shared(shared + step % 4 * STAGE);
    fence();
#pragma unroll
    for (int k = 0; k < 4; k++) Bf64::mul<1, 0, 1>(d, part<64, 64, 0, 1>(a, 0, k), part<64, 64, 1, 1>(a + 8192, 0, k), 1);
    commit();
    wait<1>();
    if (step + 2 < n) fill(step + 2);
    copy_commit();
  }
  wait<0>();
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) C[(warp * 16 + lane / 4 + i / 2 * 8) * N + first + j * 8 + lane % 4 * 2 + i % 2] = d[j * 4 + i];
}

DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE u32 pair(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Attention of 64 queries of 64 features to tiles of 64 keys; scores of the next tile are under way beside the values of this one.
extern "C" __global__ void attention(const u16* Q, const u16* K, const u16* V, float* O, int keys) {
  constexpr int TILE = 8192;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = keys / 64;
  u32 q = at_shared(shared), k0 = q + TILE, v0 = k0 + 2 * TILE;
  auto fill = [&](u32 to, const u16* from) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int x = i * 128 + threadIdx.x;
      copy16(to + place<64, 64, 0, 1>(x / 8, x % 8), from + x * 8);
    }
  };
  float acc[32], S[32], most[2] = {-1e30f, -1e30f}, sum[2] = {0, 0}, f[2];
  u32 p[4][4];
#pragma unroll
  for (int i = 0; i < 32; i++) acc[i] = 0;
  auto scores = [&](u32 k) {
#pragma unroll
    for (int j = 0; j < 4; j++) Bf64::mul<1, 0, 0>(S, part<64, 64, 0, 1>(q, 0, j), part<64, 64, 0, 1>(k, 0, j), j > 0);
  };
  auto values = [&](u32 v) {
#pragma unroll
    for (int j = 0; j < 4; j++) Bf64::mul<1, 0, 1>(acc, p[j], part<64, 64, 1, 1>(v, 0, j), 1);
  };
  auto weigh = [&]() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float x = most[h], part = 0;
#pragma unroll
      for (int j = 0; j < 16; j++) x = fmaxf(x, S[j / 2 * 4 + h * 2 + j % 2]);
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
      f[h] = exp2_of(most[h] - x);
      most[h] = x;
#pragma unroll
      for (int j = 0; j < 16; j++) part += S[j / 2 * 4 + h * 2 + j % 2] = exp2_of(S[j / 2 * 4 + h * 2 + j % 2] - x);
      sum[h] = sum[h] * f[h] + part;
    }
  };
  auto pack = [&]() {
#pragma unroll
    for (int j = 0; j < 16; j++) p[j / 4][j % 4] = pair(S[j * 2], S[j * 2 + 1]);
  };
  fill(q, Q);
  fill(k0, K);
  copy_commit();
  copy_wait<0>();
  fence_proxy();
  __syncthreads();
  fill(v0, V);
  if (n > 1) fill(k0 + TILE, K + 4096);
  copy_commit();
  fence();
  scores(k0);
  commit();
  wait<0>();
  weigh();
  pack();
  for (int t = 0; t + 1 < n; t++) {
    copy_wait<0>();
    fence_proxy();
    __syncthreads();
    fill(v0 + (t + 1) % 2 * TILE, V + (t + 1) * 4096);
    if (t + 2 < n) fill(k0 + t % 2 * TILE, K + (t + 2) * 4096);
    copy_commit();
    fence();
    scores(k0 + (t + 1) % 2 * TILE);
    commit();
    values(v0 + t % 2 * TILE);
    commit();
    wait<1>();
    weigh();
    wait<0>();
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] *= f[i / 2 % 2];
    pack();
  }
  copy_wait<0>();
  fence_proxy();
  __syncthreads();
  fence();
  values(v0 + (n - 1) % 2 * TILE);
  commit();
  wait<0>();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float x = sum[h];
    x += __shfl_xor_sync(~0u, x, 1);
    x += __shfl_xor_sync(~0u, x, 2);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      int row = warp * 16 + lane / 4 + h * 8, column = j / 2 * 8 + lane % 4 * 2 + j % 2;
      O[row * 64 + column] = acc[j / 2 * 4 + h * 2 + j % 2] / x;
    }
  }
}
