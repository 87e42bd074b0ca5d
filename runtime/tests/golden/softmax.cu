typedef int i32;
typedef unsigned int u32;
typedef float f32;
static __device__ __forceinline__ f32 max_f32(f32 a, f32 b) { return a != a ? a : (b > a || b != b) ? b : a; }
static __device__ __forceinline__ u32 shl_u32(u32 a, u32 b) {
    return b >= 32 ? (u32)0 : (u32)((u32)a << (int)b);
}

extern "C" __global__ void __launch_bounds__(256) softmax(const f32* __restrict__ p0, f32* __restrict__ p1) {
    f32 r0;
    f32 r1;
    __shared__ f32 shared2[1000];
    f32 r3;
    __shared__ f32 shared4[256];
    f32 r5;
    f32 r6;
    __shared__ f32 shared7[256];
    f32 r8;
    const int b0 = blockIdx.x;
    r0 = __uint_as_float(0xff800000u);
    {
        const int t1 = threadIdx.x;
        r3 = __uint_as_float(0xff800000u);
        for (int k2 = 0; k2 < 4; ++k2) {
            const i32 v0 = t1 + k2 * 256;
            const i32 v1 = 1000;
            const bool v2 = v0 < v1;
            if (v2) {
                const f32 v3 = p0[b0 * 1000 + t1 + k2 * 256];
                const f32 v4 = r3;
                const f32 v5 = max_f32(v4, v3);
                r3 = v5;
            }
        }
        const f32 v6 = r3;
        shared4[t1] = v6;
    }
    __syncthreads();
    if ((int)threadIdx.x < 16) {
        const int t3 = threadIdx.x;
        r5 = __uint_as_float(0xff800000u);
        #pragma unroll
        for (int k4 = 0; k4 < 16; ++k4) {
            const f32 v7 = shared4[t3 + k4 * 16];
            const f32 v8 = r5;
            const f32 v9 = max_f32(v8, v7);
            r5 = v9;
        }
        const f32 v10 = r5;
        shared4[t3] = v10;
    }
    __syncthreads();
    #pragma unroll
    for (int k5 = 0; k5 < 16; ++k5) {
        const f32 v11 = shared4[k5];
        const f32 v12 = r0;
        const f32 v13 = max_f32(v12, v11);
        r0 = v13;
    }
    r1 = 0.0f;
    const f32 v14 = r0;
    {
        const int t6 = threadIdx.x;
        r6 = 0.0f;
        for (int k7 = 0; k7 < 4; ++k7) {
            const i32 v15 = t6 + k7 * 256;
            const i32 v16 = 1000;
            const bool v17 = v15 < v16;
            if (v17) {
                const f32 v18 = p0[b0 * 1000 + t6 + k7 * 256];
                const f32 v19 = v18 - v14;
                const bool v20 = 89.0f < v19;
                const f32 v21 = v20 ? 89.0f : v19;
                const bool v22 = v21 < (-104.5f);
                const f32 v23 = v22 ? (-104.5f) : v21;
                const f32 v24 = fmaf(v23, 1.442695f, 12583166.0f);
                const f32 v25 = v24 - 12583166.0f;
                const f32 v26 = fmaf(v25, (-0.69314575f), v23);
                const f32 v27 = fmaf(v25, (-1.4286068e-6f), v26);
                const f32 v28 = fmaf(0.0013840563f, v27, 0.008369354f);
                const f32 v29 = fmaf(v28, v27, 0.041668084f);
                const f32 v30 = fmaf(v29, v27, 0.16666515f);
                const f32 v31 = fmaf(v30, v27, 0.49999994f);
                const f32 v32 = fmaf(v31, v27, 1.0f);
                const f32 v33 = fmaf(v32, v27, 1.0f);
                const i32 v34 = (i32)__float_as_int(v24);
                const u32 v35 = (u32)v34;
                const u32 v36 = shl_u32(v35, 22u);
                const i32 v37 = (i32)v36;
                const i32 v38 = (i32)(v37 & (-8388608));
                const u32 v39 = (u32)v34;
                const u32 v40 = shl_u32(v39, 23u);
                const i32 v41 = (i32)v40;
                const i32 v42 = (i32)((u32)v41 - (u32)v38);
                const f32 v43 = __int_as_float((i32)v38);
                const f32 v44 = __int_as_float((i32)v42);
                const f32 v45 = v33 * v43;
                const f32 v46 = v45 * v44;
                shared2[t6 + k7 * 256] = v46;
                const f32 v47 = r6;
                const f32 v48 = v47 + v46;
                r6 = v48;
            }
        }
        const f32 v49 = r6;
        shared7[t6] = v49;
    }
    __syncthreads();
    if ((int)threadIdx.x < 16) {
        const int t8 = threadIdx.x;
        r8 = 0.0f;
        #pragma unroll
        for (int k9 = 0; k9 < 16; ++k9) {
            const f32 v50 = shared7[t8 + k9 * 16];
            const f32 v51 = r8;
            const f32 v52 = v51 + v50;
            r8 = v52;
        }
        const f32 v53 = r8;
        shared7[t8] = v53;
    }
    __syncthreads();
    #pragma unroll
    for (int k10 = 0; k10 < 16; ++k10) {
        const f32 v54 = shared7[k10];
        const f32 v55 = r1;
        const f32 v56 = v55 + v54;
        r1 = v56;
    }
    const f32 v57 = r1;
    {
        const int t11 = threadIdx.x;
        for (int k12 = 0; k12 < 4; ++k12) {
            const i32 v58 = t11 + k12 * 256;
            const i32 v59 = 1000;
            const bool v60 = v58 < v59;
            if (v60) {
                const f32 v61 = shared2[t11 + k12 * 256];
                const f32 v62 = v61 / v57;
                p1[b0 * 1000 + t11 + k12 * 256] = v62;
            }
        }
    }
}
