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
    __shared__ f32 shared2[1000];
    __shared__ f32 shared4[256];
    __shared__ f32 shared7[256];
    const int b0 = blockIdx.x;
    {
        const int t1 = threadIdx.x;
        const int x2 = b0 * 1000 + t1;
        f32 r0 = __uint_as_float(0xff800000u);
        for (int k3 = 0; k3 < 4; ++k3) {
            const i32 v0 = t1 + k3 * 256;
            const bool v1 = v0 < 1000;
            if (v1) {
                const f32 v2 = p0[x2 + k3 * 256];
                const f32 v3 = max_f32(r0, v2);
                r0 = v3;
            }
        }
        shared4[t1] = r0;
    }
    __syncthreads();
    if ((int)threadIdx.x < 16) {
        const int t4 = threadIdx.x;
        const f32 v4 = shared4[t4];
        const f32 v5 = max_f32(__uint_as_float(0xff800000u), v4);
        const f32 v6 = shared4[t4 + 16];
        const f32 v7 = max_f32(v5, v6);
        const f32 v8 = shared4[t4 + 32];
        const f32 v9 = max_f32(v7, v8);
        const f32 v10 = shared4[t4 + 48];
        const f32 v11 = max_f32(v9, v10);
        const f32 v12 = shared4[t4 + 64];
        const f32 v13 = max_f32(v11, v12);
        const f32 v14 = shared4[t4 + 80];
        const f32 v15 = max_f32(v13, v14);
        const f32 v16 = shared4[t4 + 96];
        const f32 v17 = max_f32(v15, v16);
        const f32 v18 = shared4[t4 + 112];
        const f32 v19 = max_f32(v17, v18);
        const f32 v20 = shared4[t4 + 128];
        const f32 v21 = max_f32(v19, v20);
        const f32 v22 = shared4[t4 + 144];
        const f32 v23 = max_f32(v21, v22);
        const f32 v24 = shared4[t4 + 160];
        const f32 v25 = max_f32(v23, v24);
        const f32 v26 = shared4[t4 + 176];
        const f32 v27 = max_f32(v25, v26);
        const f32 v28 = shared4[t4 + 192];
        const f32 v29 = max_f32(v27, v28);
        const f32 v30 = shared4[t4 + 208];
        const f32 v31 = max_f32(v29, v30);
        const f32 v32 = shared4[t4 + 224];
        const f32 v33 = max_f32(v31, v32);
        const f32 v34 = shared4[t4 + 240];
        const f32 v35 = max_f32(v33, v34);
        shared4[t4] = v35;
    }
    __syncthreads();
    const f32 v36 = shared4[0];
    const f32 v37 = max_f32(__uint_as_float(0xff800000u), v36);
    const f32 v38 = shared4[1];
    const f32 v39 = max_f32(v37, v38);
    const f32 v40 = shared4[2];
    const f32 v41 = max_f32(v39, v40);
    const f32 v42 = shared4[3];
    const f32 v43 = max_f32(v41, v42);
    const f32 v44 = shared4[4];
    const f32 v45 = max_f32(v43, v44);
    const f32 v46 = shared4[5];
    const f32 v47 = max_f32(v45, v46);
    const f32 v48 = shared4[6];
    const f32 v49 = max_f32(v47, v48);
    const f32 v50 = shared4[7];
    const f32 v51 = max_f32(v49, v50);
    const f32 v52 = shared4[8];
    const f32 v53 = max_f32(v51, v52);
    const f32 v54 = shared4[9];
    const f32 v55 = max_f32(v53, v54);
    const f32 v56 = shared4[10];
    const f32 v57 = max_f32(v55, v56);
    const f32 v58 = shared4[11];
    const f32 v59 = max_f32(v57, v58);
    const f32 v60 = shared4[12];
    const f32 v61 = max_f32(v59, v60);
    const f32 v62 = shared4[13];
    const f32 v63 = max_f32(v61, v62);
    const f32 v64 = shared4[14];
    const f32 v65 = max_f32(v63, v64);
    const f32 v66 = shared4[15];
    const f32 v67 = max_f32(v65, v66);
    {
        const int t5 = threadIdx.x;
        const int x6 = b0 * 1000 + t5;
        f32 r1 = 0.0f;
        for (int k7 = 0; k7 < 4; ++k7) {
            const i32 v68 = t5 + k7 * 256;
            const bool v69 = v68 < 1000;
            if (v69) {
                const int x8 = k7 * 256;
                const f32 v70 = p0[x6 + x8];
                const f32 v71 = v70 - v67;
                const f32 v72 = fmaf(v71, 1.442695f, 12582912.0f);
                const f32 v73 = v72 - 12582912.0f;
                const f32 v74 = fmaf(v73, (-0.69314575f), v71);
                const f32 v75 = fmaf(v73, (-1.4286068e-6f), v74);
                const f32 v76 = fmaf(0.0013840563f, v75, 0.008369354f);
                const f32 v77 = fmaf(v76, v75, 0.041668084f);
                const f32 v78 = fmaf(v77, v75, 0.16666515f);
                const f32 v79 = fmaf(v78, v75, 0.49999994f);
                const f32 v80 = fmaf(v79, v75, 1.0f);
                const f32 v81 = fmaf(v80, v75, 1.0f);
                const i32 v82 = (i32)__float_as_int(v72);
                const u32 v83 = (u32)v82;
                const u32 v84 = shl_u32(v83, 23u);
                const i32 v85 = (i32)v84;
                const i32 v86 = (i32)__float_as_int(v81);
                const i32 v87 = (i32)((u32)v86 + (u32)v85);
                const f32 v88 = __int_as_float((i32)v87);
                const i32 v89 = (i32)__float_as_int(v71);
                const i32 v90 = (i32)(v89 & 2147483647);
                const bool v91 = 1118699520 < v90;
                f32 r2 = v88;
                if (v91) {
                    const bool v92 = 12583041.0f < v72;
                    const f32 v93 = v92 ? 12583041.0f : v72;
                    const bool v94 = v93 < 12582760.0f;
                    const f32 v95 = v94 ? 12582760.0f : v93;
                    const i32 v96 = (i32)__float_as_int(v72);
                    const i32 v97 = (i32)__float_as_int(v95);
                    const bool v98 = v96 == v97;
                    const f32 v99 = v95 - 12582760.0f;
                    const f32 v100 = v98 ? v81 : v99;
                    const u32 v101 = (u32)v97;
                    const u32 v102 = shr_u32(v101, 1u);
                    const i32 v103 = (i32)v102;
                    const u32 v104 = (u32)v103;
                    const u32 v105 = shl_u32(v104, 23u);
                    const i32 v106 = (i32)v105;
                    const u32 v107 = (u32)v97;
                    const u32 v108 = shl_u32(v107, 23u);
                    const i32 v109 = (i32)v108;
                    const i32 v110 = (i32)((u32)v109 - (u32)v106);
                    const i32 v111 = (i32)((u32)1065353216 + (u32)v106);
                    const f32 v112 = __int_as_float((i32)v111);
                    const i32 v113 = (i32)((u32)1065353216 + (u32)v110);
                    const f32 v114 = __int_as_float((i32)v113);
                    const f32 v115 = v100 * v112;
                    const f32 v116 = v115 * v114;
                    const f32 v117 = v91 ? v116 : v88;
                    r2 = v117;
                }
                shared2[t5 + x8] = r2;
                const f32 v118 = r1 + r2;
                r1 = v118;
            }
        }
        shared7[t5] = r1;
    }
    __syncthreads();
    if ((int)threadIdx.x < 16) {
        const int t9 = threadIdx.x;
        const f32 v119 = shared7[t9];
        const f32 v120 = 0.0f + v119;
        const f32 v121 = shared7[t9 + 16];
        const f32 v122 = v120 + v121;
        const f32 v123 = shared7[t9 + 32];
        const f32 v124 = v122 + v123;
        const f32 v125 = shared7[t9 + 48];
        const f32 v126 = v124 + v125;
        const f32 v127 = shared7[t9 + 64];
        const f32 v128 = v126 + v127;
        const f32 v129 = shared7[t9 + 80];
        const f32 v130 = v128 + v129;
        const f32 v131 = shared7[t9 + 96];
        const f32 v132 = v130 + v131;
        const f32 v133 = shared7[t9 + 112];
        const f32 v134 = v132 + v133;
        const f32 v135 = shared7[t9 + 128];
        const f32 v136 = v134 + v135;
        const f32 v137 = shared7[t9 + 144];
        const f32 v138 = v136 + v137;
        const f32 v139 = shared7[t9 + 160];
        const f32 v140 = v138 + v139;
        const f32 v141 = shared7[t9 + 176];
        const f32 v142 = v140 + v141;
        const f32 v143 = shared7[t9 + 192];
        const f32 v144 = v142 + v143;
        const f32 v145 = shared7[t9 + 208];
        const f32 v146 = v144 + v145;
        const f32 v147 = shared7[t9 + 224];
        const f32 v148 = v146 + v147;
        const f32 v149 = shared7[t9 + 240];
        const f32 v150 = v148 + v149;
        shared7[t9] = v150;
    }
    __syncthreads();
    const f32 v151 = shared7[0];
    const f32 v152 = 0.0f + v151;
    const f32 v153 = shared7[1];
    const f32 v154 = v152 + v153;
    const f32 v155 = shared7[2];
    const f32 v156 = v154 + v155;
    const f32 v157 = shared7[3];
    const f32 v158 = v156 + v157;
    const f32 v159 = shared7[4];
    const f32 v160 = v158 + v159;
    const f32 v161 = shared7[5];
    const f32 v162 = v160 + v161;
    const f32 v163 = shared7[6];
    const f32 v164 = v162 + v163;
    const f32 v165 = shared7[7];
    const f32 v166 = v164 + v165;
    const f32 v167 = shared7[8];
    const f32 v168 = v166 + v167;
    const f32 v169 = shared7[9];
    const f32 v170 = v168 + v169;
    const f32 v171 = shared7[10];
    const f32 v172 = v170 + v171;
    const f32 v173 = shared7[11];
    const f32 v174 = v172 + v173;
    const f32 v175 = shared7[12];
    const f32 v176 = v174 + v175;
    const f32 v177 = shared7[13];
    const f32 v178 = v176 + v177;
    const f32 v179 = shared7[14];
    const f32 v180 = v178 + v179;
    const f32 v181 = shared7[15];
    const f32 v182 = v180 + v181;
    {
        const int t10 = threadIdx.x;
        const int x11 = b0 * 1000 + t10;
        for (int k12 = 0; k12 < 4; ++k12) {
            const i32 v183 = t10 + k12 * 256;
            const bool v184 = v183 < 1000;
            if (v184) {
                const int x13 = k12 * 256;
                const f32 v185 = shared2[t10 + x13];
                const f32 v186 = v185 / v182;
                p1[x11 + x13] = v186;
            }
        }
    }
}
