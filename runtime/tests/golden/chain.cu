typedef float f32;
static __device__ __forceinline__ f32 max_f32(f32 a, f32 b) {
    f32 r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

extern "C" __global__ void __launch_bounds__(256, 4) chain(
    const f32* __restrict__ p0,
    const f32* __restrict__ p1,
    const f32* __restrict__ p2,
    f32* __restrict__ p3
) {
    const int b0 = blockIdx.x;
    if (b0 * 256 + (int)threadIdx.x < 3000) {
        const int t1 = threadIdx.x;
        const int x2 = b0 * 256 + t1;
        const f32 v0 = p0[x2];
        const f32 v1 = p1[x2];
        const f32 v2 = p2[x2];
        const f32 v3 = v1 * v2;
        const f32 v4 = v0 + v3;
        const f32 v5 = max_f32(v4, 0.0f);
        p3[x2] = v5;
    }
}
