typedef int i32;
typedef float f32;

extern "C" __global__ void __launch_bounds__(128, 8) column_sum(const f32* __restrict__ p0, f32* __restrict__ p1) {
    __shared__ __align__(16) f32 shared0[16];
    __shared__ __align__(16) f32 shared2[128];
    const int b0 = blockIdx.x;
    const int x1 = min(16, 700 - b0 * 16);
    if ((int)threadIdx.x < x1) {
        const int t2 = threadIdx.x;
        shared0[t2] = 0.0f;
    }
    {
        const int t3 = threadIdx.x;
        const int x4 = (t3 & 15);
        const i32 v0 = x4;
        const i32 v1 = x1;
        const bool v2 = v0 < v1;
        if (v2) {
            const int x5 = b0 * 16 + x4 + (t3 >> 4) * 700;
            f32 r0 = (-0.0f);
            for (int k6 = 0; k6 < 5; ++k6) {
                const f32 v3 = p0[x5 + k6 * 5600];
                const f32 v4 = r0 + v3;
                r0 = v4;
            }
            shared2[t3] = r0;
        }
    }
    __syncthreads();
    if ((int)threadIdx.x < x1) {
        const int t7 = threadIdx.x;
        const f32 v5 = shared2[t7];
        const f32 v6 = shared0[t7];
        const f32 v7 = v6 + v5;
        shared0[t7] = v7;
        const f32 v8 = shared2[t7 + 16];
        const f32 v9 = shared0[t7];
        const f32 v10 = v9 + v8;
        shared0[t7] = v10;
        const f32 v11 = shared2[t7 + 32];
        const f32 v12 = shared0[t7];
        const f32 v13 = v12 + v11;
        shared0[t7] = v13;
        const f32 v14 = shared2[t7 + 48];
        const f32 v15 = shared0[t7];
        const f32 v16 = v15 + v14;
        shared0[t7] = v16;
        const f32 v17 = shared2[t7 + 64];
        const f32 v18 = shared0[t7];
        const f32 v19 = v18 + v17;
        shared0[t7] = v19;
        const f32 v20 = shared2[t7 + 80];
        const f32 v21 = shared0[t7];
        const f32 v22 = v21 + v20;
        shared0[t7] = v22;
        const f32 v23 = shared2[t7 + 96];
        const f32 v24 = shared0[t7];
        const f32 v25 = v24 + v23;
        shared0[t7] = v25;
        const f32 v26 = shared2[t7 + 112];
        const f32 v27 = shared0[t7];
        const f32 v28 = v27 + v26;
        shared0[t7] = v28;
    }
    __syncthreads();
    if ((int)threadIdx.x < x1) {
        const int t8 = threadIdx.x;
        const f32 v29 = shared0[t8];
        p1[b0 * 16 + t8] = v29;
    }
}
