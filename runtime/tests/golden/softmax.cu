typedef int i32;
typedef unsigned int u32;
typedef float f32;
static __device__ __forceinline__ f32 max_f32(f32 a, f32 b) { return a != a ? a : (b > a || b != b) ? b : a; }
static __device__ __forceinline__ u32 shl_u32(u32 a, u32 b) {
    return b >= 32 ? (u32)0 : (u32)((u32)a << (int)b);
}
static __device__ __forceinline__ u32 shr_u32(u32 a, u32 b) {
    return b >= 32 ? (u32)0 : (u32)(a >> (int)b);
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
    f32 r9;
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
                const f32 v20 = fmaf(v19, 1.442695f, 12582912.0f);
                const f32 v21 = v20 - 12582912.0f;
                const f32 v22 = fmaf(v21, (-0.69314575f), v19);
                const f32 v23 = fmaf(v21, (-1.4286068e-6f), v22);
                const f32 v24 = fmaf(0.0013840563f, v23, 0.008369354f);
                const f32 v25 = fmaf(v24, v23, 0.041668084f);
                const f32 v26 = fmaf(v25, v23, 0.16666515f);
                const f32 v27 = fmaf(v26, v23, 0.49999994f);
                const f32 v28 = fmaf(v27, v23, 1.0f);
                const f32 v29 = fmaf(v28, v23, 1.0f);
                const i32 v30 = (i32)__float_as_int(v20);
                const u32 v31 = (u32)v30;
                const u32 v32 = shl_u32(v31, 23u);
                const i32 v33 = (i32)v32;
                const i32 v34 = (i32)__float_as_int(v29);
                const i32 v35 = (i32)((u32)v34 + (u32)v33);
                const f32 v36 = __int_as_float((i32)v35);
                const i32 v37 = (i32)__float_as_int(v19);
                const i32 v38 = (i32)(v37 & 2147483647);
                const bool v39 = 1118699520 < v38;
                r9 = v36;
                if (v39) {
                    const bool v40 = 12583041.0f < v20;
                    const f32 v41 = v40 ? 12583041.0f : v20;
                    const bool v42 = v41 < 12582760.0f;
                    const f32 v43 = v42 ? 12582760.0f : v41;
                    const i32 v44 = (i32)__float_as_int(v20);
                    const i32 v45 = (i32)__float_as_int(v43);
                    const bool v46 = v44 == v45;
                    const f32 v47 = v43 - 12582760.0f;
                    const f32 v48 = v46 ? v29 : v47;
                    const u32 v49 = (u32)v45;
                    const u32 v50 = shr_u32(v49, 1u);
                    const i32 v51 = (i32)v50;
                    const u32 v52 = (u32)v51;
                    const u32 v53 = shl_u32(v52, 23u);
                    const i32 v54 = (i32)v53;
                    const u32 v55 = (u32)v45;
                    const u32 v56 = shl_u32(v55, 23u);
                    const i32 v57 = (i32)v56;
                    const i32 v58 = (i32)((u32)v57 - (u32)v54);
                    const i32 v59 = (i32)((u32)1065353216 + (u32)v54);
                    const f32 v60 = __int_as_float((i32)v59);
                    const i32 v61 = (i32)((u32)1065353216 + (u32)v58);
                    const f32 v62 = __int_as_float((i32)v61);
                    const f32 v63 = v48 * v60;
                    const f32 v64 = v63 * v62;
                    const f32 v65 = v39 ? v64 : v36;
                    r9 = v65;
                }
                const f32 v66 = r9;
                shared2[t6 + k7 * 256] = v66;
                const f32 v67 = r6;
                const f32 v68 = v67 + v66;
                r6 = v68;
            }
        }
        const f32 v69 = r6;
        shared7[t6] = v69;
    }
    __syncthreads();
    if ((int)threadIdx.x < 16) {
        const int t8 = threadIdx.x;
        r8 = 0.0f;
        #pragma unroll
        for (int k9 = 0; k9 < 16; ++k9) {
            const f32 v70 = shared7[t8 + k9 * 16];
            const f32 v71 = r8;
            const f32 v72 = v71 + v70;
            r8 = v72;
        }
        const f32 v73 = r8;
        shared7[t8] = v73;
    }
    __syncthreads();
    #pragma unroll
    for (int k10 = 0; k10 < 16; ++k10) {
        const f32 v74 = shared7[k10];
        const f32 v75 = r1;
        const f32 v76 = v75 + v74;
        r1 = v76;
    }
    const f32 v77 = r1;
    {
        const int t11 = threadIdx.x;
        for (int k12 = 0; k12 < 4; ++k12) {
            const i32 v78 = t11 + k12 * 256;
            const i32 v79 = 1000;
            const bool v80 = v78 < v79;
            if (v80) {
                const f32 v81 = shared2[t11 + k12 * 256];
                const f32 v82 = v81 / v77;
                p1[b0 * 1000 + t11 + k12 * 256] = v82;
            }
        }
    }
}
