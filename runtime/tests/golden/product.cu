typedef unsigned int u32;
typedef unsigned short f16;
typedef float f32;
struct __align__(8) f32x2 { f32 e[2]; };
static __device__ __forceinline__ void copy_async_16(void* to, const void* from, int read) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(read) : "memory");
}
static __device__ __forceinline__ void multiply_f16(f32* d, const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void load_left(unsigned (&r)[4], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
static __device__ __forceinline__ void load_right_turned(unsigned (*r)[2], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0][0]), "=r"(r[0][1]), "=r"(r[1][0]), "=r"(r[1][1]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
static __device__ __forceinline__ f16 f16_of_f32(f32 x) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
struct __align__(4) f16x2 { f16 e[2]; };
static __device__ __forceinline__ u32 round_pair_f16(f32 low, f32 high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
static __device__ __forceinline__ void store_quad(void* to, unsigned v0, unsigned v1, unsigned v2, unsigned v3) {
    const unsigned all = 0xffffffffu, q = threadIdx.x % 4;
    const bool odd = q & 1, upper = q & 2;
    const unsigned a = odd ? v1 : v0, b = __shfl_xor_sync(all, odd ? v0 : v1, 1);
    const unsigned c = odd ? v3 : v2, d = __shfl_xor_sync(all, odd ? v2 : v3, 1);
    const unsigned x0 = odd ? b : a, x1 = odd ? a : b, y0 = odd ? d : c, y1 = odd ? c : d;
    const unsigned s0 = __shfl_xor_sync(all, upper ? x0 : y0, 2), s1 = __shfl_xor_sync(all, upper ? x1 : y1, 2);
    const uint4 group = {upper ? s0 : x0, upper ? s1 : x1, upper ? y0 : s0, upper ? y1 : s1};
    *(uint4*)((char*)to + 12 * q) = group;
}

extern "C" __global__ void __launch_bounds__(128, 1) product(const f16* __restrict__ p0, const f16* __restrict__ p1, f16* __restrict__ p2) {
    __align__(16) f32 a0[32];
    __shared__ __align__(16) f16 shared1[4608];
    __shared__ __align__(16) f16 shared2[4608];
    __shared__ __align__(16) f16 shared3[4608];
    __shared__ __align__(16) f16 shared4[4608];
    const int b0 = blockIdx.x;
    {
        const int w1 = threadIdx.x / 32;
        {
            f32x2 v0;
            v0.e[0] = 0.0f;
            v0.e[1] = 0.0f;
            *(f32x2*)&a0[0] = v0;
            f32x2 v1;
            v1.e[0] = 0.0f;
            v1.e[1] = 0.0f;
            *(f32x2*)&a0[2] = v1;
            f32x2 v2;
            v2.e[0] = 0.0f;
            v2.e[1] = 0.0f;
            *(f32x2*)&a0[4] = v2;
            f32x2 v3;
            v3.e[0] = 0.0f;
            v3.e[1] = 0.0f;
            *(f32x2*)&a0[6] = v3;
            f32x2 v4;
            v4.e[0] = 0.0f;
            v4.e[1] = 0.0f;
            *(f32x2*)&a0[8] = v4;
            f32x2 v5;
            v5.e[0] = 0.0f;
            v5.e[1] = 0.0f;
            *(f32x2*)&a0[10] = v5;
            f32x2 v6;
            v6.e[0] = 0.0f;
            v6.e[1] = 0.0f;
            *(f32x2*)&a0[12] = v6;
            f32x2 v7;
            v7.e[0] = 0.0f;
            v7.e[1] = 0.0f;
            *(f32x2*)&a0[14] = v7;
            f32x2 v8;
            v8.e[0] = 0.0f;
            v8.e[1] = 0.0f;
            *(f32x2*)&a0[16] = v8;
            f32x2 v9;
            v9.e[0] = 0.0f;
            v9.e[1] = 0.0f;
            *(f32x2*)&a0[18] = v9;
            f32x2 v10;
            v10.e[0] = 0.0f;
            v10.e[1] = 0.0f;
            *(f32x2*)&a0[20] = v10;
            f32x2 v11;
            v11.e[0] = 0.0f;
            v11.e[1] = 0.0f;
            *(f32x2*)&a0[22] = v11;
            f32x2 v12;
            v12.e[0] = 0.0f;
            v12.e[1] = 0.0f;
            *(f32x2*)&a0[24] = v12;
            f32x2 v13;
            v13.e[0] = 0.0f;
            v13.e[1] = 0.0f;
            *(f32x2*)&a0[26] = v13;
            f32x2 v14;
            v14.e[0] = 0.0f;
            v14.e[1] = 0.0f;
            *(f32x2*)&a0[28] = v14;
            f32x2 v15;
            v15.e[0] = 0.0f;
            v15.e[1] = 0.0f;
            *(f32x2*)&a0[30] = v15;
        }
    }
    {
        const int t3 = threadIdx.x;
        const int x4 = (t3 >> 3);
        const int x5 = t3 * 8 + x4 * 8;
        const int x6 = x4 * 192 + (t3 & 7) * 8;
        for (int k7 = 0; k7 < 4; ++k7) {
            copy_async_16(&shared1[x5 + k7 * 1152], &p0[x6 + k7 * 3072], 16);
        }
    }
    {
        const int t8 = threadIdx.x;
        const int x9 = (t8 >> 3);
        const int x10 = t8 * 8 + x9 * 8;
        const int x11 = b0 * 64 + x9 * 128 + (t8 & 7) * 8;
        for (int k12 = 0; k12 < 4; ++k12) {
            copy_async_16(&shared2[x10 + k12 * 1152], &p1[x11 + k12 * 2048], 16);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    {
        const int t13 = threadIdx.x;
        const int x14 = (t13 >> 3);
        const int x15 = t13 * 8 + x14 * 8;
        const int x16 = x14 * 192 + (t13 & 7) * 8;
        for (int k17 = 0; k17 < 4; ++k17) {
            copy_async_16(&shared3[x15 + k17 * 1152], &p0[x16 + k17 * 3072 + 64], 16);
        }
    }
    {
        const int t18 = threadIdx.x;
        const int x19 = (t18 >> 3);
        const int x20 = t18 * 8 + x19 * 8;
        const int x21 = b0 * 64 + x19 * 128 + (t18 & 7) * 8;
        for (int k22 = 0; k22 < 4; ++k22) {
            copy_async_16(&shared4[x20 + k22 * 1152], &p1[x21 + k22 * 2048 + 8192], 16);
        }
    }
    {
        const int w23 = threadIdx.x / 32;
        {
            const int lane = threadIdx.x % 32;
            const f16* left = &shared1[(w23 >> 1) * 2304] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            const f16* right = &shared2[(w23 & 1) * 32] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            #pragma unroll
            for (int k = 0; k < 64; k += 16) {
                unsigned a[2][4], b[4][2];
                #pragma unroll
                for (int i = 0; i < 2; i += 1) load_left(a[i], left + i * 1152 + k * 1);
                #pragma unroll
                for (int i = 0; i < 4; i += 2) load_right_turned(&b[i], right + i * 8 + k * 72);
                #pragma unroll
                for (int i = 0; i < 2; i += 1)
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_f16(a0 + (i * 4 + j) * 4, a[i], b[j]);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    {
        const int t24 = threadIdx.x;
        const int x25 = (t24 >> 3);
        const int x26 = t24 * 8 + x25 * 8;
        const int x27 = x25 * 192 + (t24 & 7) * 8;
        for (int k28 = 0; k28 < 4; ++k28) {
            copy_async_16(&shared1[x26 + k28 * 1152], &p0[x27 + k28 * 3072 + 128], 16);
        }
    }
    {
        const int t29 = threadIdx.x;
        const int x30 = (t29 >> 3);
        const int x31 = t29 * 8 + x30 * 8;
        const int x32 = b0 * 64 + x30 * 128 + (t29 & 7) * 8;
        for (int k33 = 0; k33 < 4; ++k33) {
            copy_async_16(&shared2[x31 + k33 * 1152], &p1[x32 + k33 * 2048 + 16384], 16);
        }
    }
    {
        const int w34 = threadIdx.x / 32;
        {
            const int lane = threadIdx.x % 32;
            const f16* left = &shared3[(w34 >> 1) * 2304] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            const f16* right = &shared4[(w34 & 1) * 32] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            #pragma unroll
            for (int k = 0; k < 64; k += 16) {
                unsigned a[2][4], b[4][2];
                #pragma unroll
                for (int i = 0; i < 2; i += 1) load_left(a[i], left + i * 1152 + k * 1);
                #pragma unroll
                for (int i = 0; i < 4; i += 2) load_right_turned(&b[i], right + i * 8 + k * 72);
                #pragma unroll
                for (int i = 0; i < 2; i += 1)
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_f16(a0 + (i * 4 + j) * 4, a[i], b[j]);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    {
        const int w35 = threadIdx.x / 32;
        {
            const int lane = threadIdx.x % 32;
            const f16* left = &shared1[(w35 >> 1) * 2304] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            const f16* right = &shared2[(w35 & 1) * 32] + (lane % 8 + lane / 8 % 2 * 8) * 72 + lane / 16 * 8;
            #pragma unroll
            for (int k = 0; k < 64; k += 16) {
                unsigned a[2][4], b[4][2];
                #pragma unroll
                for (int i = 0; i < 2; i += 1) load_left(a[i], left + i * 1152 + k * 1);
                #pragma unroll
                for (int i = 0; i < 4; i += 2) load_right_turned(&b[i], right + i * 8 + k * 72);
                #pragma unroll
                for (int i = 0; i < 2; i += 1)
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_f16(a0 + (i * 4 + j) * 4, a[i], b[j]);
            }
        }
    }
    {
        const int w36 = threadIdx.x / 32;
        {
            const int t37 = threadIdx.x % 32;
            const f32x2 v16 = *(f32x2*)&a0[0];
            const f32 v17 = v16.e[0];
            const f32 v18 = v16.e[1];
            const f16 v19 = f16_of_f32((f32)v17);
            const f16 v20 = f16_of_f32((f32)v18);
            const int x38 = b0 * 64 + (w36 >> 1) * 4096 + (t37 >> 2) * 128 + (w36 & 1) * 32 + (t37 & 3) * 2;
            f16x2 v21;
            *(u32*)&v21.e[0] = round_pair_f16(v17, v18);
            const f32x2 v22 = *(f32x2*)&a0[2];
            const f32 v23 = v22.e[0];
            const f32 v24 = v22.e[1];
            const f16 v25 = f16_of_f32((f32)v23);
            const f16 v26 = f16_of_f32((f32)v24);
            f16x2 v27;
            *(u32*)&v27.e[0] = round_pair_f16(v23, v24);
            const f32x2 v28 = *(f32x2*)&a0[4];
            const f32 v29 = v28.e[0];
            const f32 v30 = v28.e[1];
            const f16 v31 = f16_of_f32((f32)v29);
            const f16 v32 = f16_of_f32((f32)v30);
            f16x2 v33;
            *(u32*)&v33.e[0] = round_pair_f16(v29, v30);
            const f32x2 v34 = *(f32x2*)&a0[6];
            const f32 v35 = v34.e[0];
            const f32 v36 = v34.e[1];
            const f16 v37 = f16_of_f32((f32)v35);
            const f16 v38 = f16_of_f32((f32)v36);
            f16x2 v39;
            *(u32*)&v39.e[0] = round_pair_f16(v35, v36);
            const f32x2 v40 = *(f32x2*)&a0[8];
            const f32 v41 = v40.e[0];
            const f32 v42 = v40.e[1];
            const f16 v43 = f16_of_f32((f32)v41);
            const f16 v44 = f16_of_f32((f32)v42);
            f16x2 v45;
            *(u32*)&v45.e[0] = round_pair_f16(v41, v42);
            const f32x2 v46 = *(f32x2*)&a0[10];
            const f32 v47 = v46.e[0];
            const f32 v48 = v46.e[1];
            const f16 v49 = f16_of_f32((f32)v47);
            const f16 v50 = f16_of_f32((f32)v48);
            f16x2 v51;
            *(u32*)&v51.e[0] = round_pair_f16(v47, v48);
            const f32x2 v52 = *(f32x2*)&a0[12];
            const f32 v53 = v52.e[0];
            const f32 v54 = v52.e[1];
            const f16 v55 = f16_of_f32((f32)v53);
            const f16 v56 = f16_of_f32((f32)v54);
            f16x2 v57;
            *(u32*)&v57.e[0] = round_pair_f16(v53, v54);
            store_quad(&p2[x38], *(unsigned*)&v21, *(unsigned*)&v33, *(unsigned*)&v45, *(unsigned*)&v57);
            const f32x2 v58 = *(f32x2*)&a0[14];
            const f32 v59 = v58.e[0];
            const f32 v60 = v58.e[1];
            const f16 v61 = f16_of_f32((f32)v59);
            const f16 v62 = f16_of_f32((f32)v60);
            f16x2 v63;
            *(u32*)&v63.e[0] = round_pair_f16(v59, v60);
            store_quad(&p2[x38 + 1024], *(unsigned*)&v27, *(unsigned*)&v39, *(unsigned*)&v51, *(unsigned*)&v63);
            const f32x2 v64 = *(f32x2*)&a0[16];
            const f32 v65 = v64.e[0];
            const f32 v66 = v64.e[1];
            const f16 v67 = f16_of_f32((f32)v65);
            const f16 v68 = f16_of_f32((f32)v66);
            f16x2 v69;
            *(u32*)&v69.e[0] = round_pair_f16(v65, v66);
            const f32x2 v70 = *(f32x2*)&a0[18];
            const f32 v71 = v70.e[0];
            const f32 v72 = v70.e[1];
            const f16 v73 = f16_of_f32((f32)v71);
            const f16 v74 = f16_of_f32((f32)v72);
            f16x2 v75;
            *(u32*)&v75.e[0] = round_pair_f16(v71, v72);
            const f32x2 v76 = *(f32x2*)&a0[20];
            const f32 v77 = v76.e[0];
            const f32 v78 = v76.e[1];
            const f16 v79 = f16_of_f32((f32)v77);
            const f16 v80 = f16_of_f32((f32)v78);
            f16x2 v81;
            *(u32*)&v81.e[0] = round_pair_f16(v77, v78);
            const f32x2 v82 = *(f32x2*)&a0[22];
            const f32 v83 = v82.e[0];
            const f32 v84 = v82.e[1];
            const f16 v85 = f16_of_f32((f32)v83);
            const f16 v86 = f16_of_f32((f32)v84);
            f16x2 v87;
            *(u32*)&v87.e[0] = round_pair_f16(v83, v84);
            const f32x2 v88 = *(f32x2*)&a0[24];
            const f32 v89 = v88.e[0];
            const f32 v90 = v88.e[1];
            const f16 v91 = f16_of_f32((f32)v89);
            const f16 v92 = f16_of_f32((f32)v90);
            f16x2 v93;
            *(u32*)&v93.e[0] = round_pair_f16(v89, v90);
            const f32x2 v94 = *(f32x2*)&a0[26];
            const f32 v95 = v94.e[0];
            const f32 v96 = v94.e[1];
            const f16 v97 = f16_of_f32((f32)v95);
            const f16 v98 = f16_of_f32((f32)v96);
            f16x2 v99;
            *(u32*)&v99.e[0] = round_pair_f16(v95, v96);
            const f32x2 v100 = *(f32x2*)&a0[28];
            const f32 v101 = v100.e[0];
            const f32 v102 = v100.e[1];
            const f16 v103 = f16_of_f32((f32)v101);
            const f16 v104 = f16_of_f32((f32)v102);
            f16x2 v105;
            *(u32*)&v105.e[0] = round_pair_f16(v101, v102);
            store_quad(&p2[x38 + 2048], *(unsigned*)&v69, *(unsigned*)&v81, *(unsigned*)&v93, *(unsigned*)&v105);
            const f32x2 v106 = *(f32x2*)&a0[30];
            const f32 v107 = v106.e[0];
            const f32 v108 = v106.e[1];
            const f16 v109 = f16_of_f32((f32)v107);
            const f16 v110 = f16_of_f32((f32)v108);
            f16x2 v111;
            *(u32*)&v111.e[0] = round_pair_f16(v107, v108);
            store_quad(&p2[x38 + 3072], *(unsigned*)&v75, *(unsigned*)&v87, *(unsigned*)&v99, *(unsigned*)&v111);
        }
    }
}
