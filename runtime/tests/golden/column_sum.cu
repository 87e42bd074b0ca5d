typedef float f32;

extern "C" __global__ void __launch_bounds__(256) column_sum(const f32* __restrict__ p0, f32* __restrict__ p1) {
    __shared__ f32 shared0[256];
    f32 r1;
    const int b0 = blockIdx.x;
    if ((int)threadIdx.x < min(256, 700 - b0 * 256)) {
        const int t1 = threadIdx.x;
        shared0[t1] = 0.0f;
    }
    __syncthreads();
    if ((int)threadIdx.x < min(256, 700 - b0 * 256)) {
        const int t2 = threadIdx.x;
        r1 = 0.0f;
        for (int k3 = 0; k3 < 40; ++k3) {
            const f32 v0 = p0[k3 * 700 + b0 * 256 + t2];
            const f32 v1 = r1;
            const f32 v2 = v1 + v0;
            r1 = v2;
        }
        const f32 v3 = r1;
        const f32 v4 = shared0[t2];
        const f32 v5 = v4 + v3;
        shared0[t2] = v5;
    }
    __syncthreads();
    if ((int)threadIdx.x < min(256, 700 - b0 * 256)) {
        const int t4 = threadIdx.x;
        const f32 v6 = shared0[t4];
        p1[b0 * 256 + t4] = v6;
    }
}
