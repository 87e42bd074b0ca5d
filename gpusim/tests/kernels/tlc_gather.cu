// A kernel of tlc itself, as `tlc emit --what cuda` prints it: rows of a table of 32 by 24.
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
static __device__ __forceinline__ i64 clamp_index(i64 x, i64 last) {
    x = x < last ? x : last;
    return x > 0 ? x : 0;
}

extern "C" __global__ void __launch_bounds__(256) encoder_0(
    const i64* __restrict__ p0,
    const f32* __restrict__ p1,
    f32* __restrict__ p2,
    long long s0
) {
    const int n0 = (int)s0;
    const int x0 = min(32, n0);
    const int b1 = blockIdx.x;
    if ((int)threadIdx.x < min(256, x0 * 24 - b1 * 256)) {
        const int t2 = threadIdx.x;
        const int x3 = b1 * 256 + t2;
        const i64 v0 = p0[x3 / 24];
        const bool v1 = v0 < 0LL;
        const i64 v2 = (i64)((u64)v0 + (u64)32LL);
        const i64 v3 = v1 ? v2 : v0;
        const bool v4 = 0LL <= v3;
        const bool v5 = v3 < 32LL;
        const bool v6 = v4 & v5;
        const int c4 = (int)clamp_index(v3, 31);
        const f32 v7 = v6 ? p1[c4 * 24 + x3 % 24] : 0.0f;
        p2[x3] = v7;
    }
}

