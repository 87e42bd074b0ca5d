typedef float f32;

extern "C" __global__ void __launch_bounds__(256, 4) column_sum(const f32* __restrict__ p0, f32* __restrict__ p1) {
    __shared__ __align__(16) f32 shared0[256];
    const int b0 = blockIdx.x;
    const int x1 = min(256, 700 - b0 * 256);
    if ((int)threadIdx.x < x1) {
        const int t2 = threadIdx.x;
        shared0[t2] = 0.0f;
    }
    __syncthreads();
    if ((int)threadIdx.x < x1) {
        const int t3 = threadIdx.x;
        const int x4 = b0 * 256 + t3;
        f32 r0 = 0.0f;
        for (int k5 = 0; k5 < 40; ++k5) {
            const f32 v0 = p0[x4 + k5 * 700];
            const f32 v1 = r0 + v0;
            r0 = v1;
        }
        const f32 v2 = shared0[t3];
        const f32 v3 = v2 + r0;
        shared0[t3] = v3;
    }
    __syncthreads();
    if ((int)threadIdx.x < x1) {
        const int t6 = threadIdx.x;
        const f32 v4 = shared0[t6];
        p1[b0 * 256 + t6] = v4;
    }
}
