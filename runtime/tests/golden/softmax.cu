typedef int i32;
typedef unsigned int u32;
typedef float f32;
struct __align__(16) f32x4 { f32 e[4]; };
static __device__ __forceinline__ f32 max_f32(f32 a, f32 b) {
    f32 r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
static __device__ __forceinline__ u32 shl_u32(u32 a, u32 b) {
    return b >= 32 ? (u32)0 : (u32)((u32)a << (int)b);
}
static __device__ __forceinline__ u32 shr_u32(u32 a, u32 b) {
    return b >= 32 ? (u32)0 : (u32)(a >> (int)b);
}

extern "C" __global__ void __launch_bounds__(256, 4) softmax(const f32* __restrict__ p0, f32* __restrict__ p1) {
    __align__(16) f32 a2[4];
    __align__(16) f32 a3[4];
    __shared__ __align__(16) f32 shared5[8];
    __align__(16) f32 a6[1];
    __shared__ __align__(16) f32 shared8[8];
    __align__(16) f32 a9[1];
    const int b0 = blockIdx.x;
    {
        const int w1 = threadIdx.x / 32;
        {
            const int t2 = threadIdx.x % 32;
            const i32 v0 = w1 * 32 + t2;
            const bool v1 = v0 < 250;
            f32 r0 = __uint_as_float(0xff800000u);
            if (v1) {
                const f32x4 v2 = ((const f32x4*)p0)[b0 * 250 + w1 * 32 + t2];
                const f32 v3 = v2.e[0];
                const f32 v4 = v2.e[1];
                const f32 v5 = v2.e[2];
                const f32 v6 = v2.e[3];
                f32x4 v7;
                v7.e[0] = v3;
                v7.e[1] = v4;
                v7.e[2] = v5;
                v7.e[3] = v6;
                *(f32x4*)&a2[0] = v7;
                const f32 v8 = max_f32(__uint_as_float(0xff800000u), v3);
                const f32 v9 = max_f32(__uint_as_float(0xff800000u), v4);
                const f32 v10 = max_f32(__uint_as_float(0xff800000u), v5);
                const f32 v11 = max_f32(__uint_as_float(0xff800000u), v6);
                const f32 v12 = max_f32(__uint_as_float(0xff800000u), v8);
                const f32 v13 = max_f32(v12, v9);
                const f32 v14 = max_f32(v13, v10);
                const f32 v15 = max_f32(v14, v11);
                r0 = v15;
            }
            a6[0] = r0;
        }
        {
            f32 all = a6[0];
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 16);
                all = max_f32(all, other);
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 8);
                all = max_f32(all, other);
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 4);
                all = max_f32(all, other);
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 2);
                all = max_f32(all, other);
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 1);
                all = max_f32(all, other);
            }
            a6[0] = all;
        }
        {
            const int t3 = threadIdx.x % 32;
            const i32 v16 = t3;
            const bool v17 = v16 < 1;
            const f32 v18 = a6[0];
            if (v17) shared5[w1] = v18;
        }
    }
    __syncthreads();
    const f32 v19 = shared5[0];
    const f32 v20 = max_f32(__uint_as_float(0xff800000u), v19);
    const f32 v21 = shared5[1];
    const f32 v22 = max_f32(v20, v21);
    const f32 v23 = shared5[2];
    const f32 v24 = max_f32(v22, v23);
    const f32 v25 = shared5[3];
    const f32 v26 = max_f32(v24, v25);
    const f32 v27 = shared5[4];
    const f32 v28 = max_f32(v26, v27);
    const f32 v29 = shared5[5];
    const f32 v30 = max_f32(v28, v29);
    const f32 v31 = shared5[6];
    const f32 v32 = max_f32(v30, v31);
    const f32 v33 = shared5[7];
    const f32 v34 = max_f32(v32, v33);
    {
        const int w4 = threadIdx.x / 32;
        {
            const int t5 = threadIdx.x % 32;
            const i32 v35 = w4 * 32 + t5;
            const bool v36 = v35 < 250;
            f32 r1 = (-0.0f);
            if (v36) {
                const f32x4 v37 = *(f32x4*)&a2[0];
                const f32 v38 = v37.e[0];
                const f32 v39 = v37.e[1];
                const f32 v40 = v37.e[2];
                const f32 v41 = v37.e[3];
                const f32 v42 = v38 - v34;
                const f32 v43 = v39 - v34;
                const f32 v44 = v40 - v34;
                const f32 v45 = v41 - v34;
                const f32 v46 = fmaf(v42, 1.442695f, 12582912.0f);
                const f32 v47 = fmaf(v43, 1.442695f, 12582912.0f);
                const f32 v48 = fmaf(v44, 1.442695f, 12582912.0f);
                const f32 v49 = fmaf(v45, 1.442695f, 12582912.0f);
                const f32 v50 = v46 - 12582912.0f;
                const f32 v51 = v47 - 12582912.0f;
                const f32 v52 = v48 - 12582912.0f;
                const f32 v53 = v49 - 12582912.0f;
                const f32 v54 = fmaf(v50, (-0.69314575f), v42);
                const f32 v55 = fmaf(v51, (-0.69314575f), v43);
                const f32 v56 = fmaf(v52, (-0.69314575f), v44);
                const f32 v57 = fmaf(v53, (-0.69314575f), v45);
                const f32 v58 = fmaf(v50, (-1.4286068e-6f), v54);
                const f32 v59 = fmaf(v51, (-1.4286068e-6f), v55);
                const f32 v60 = fmaf(v52, (-1.4286068e-6f), v56);
                const f32 v61 = fmaf(v53, (-1.4286068e-6f), v57);
                const f32 v62 = fmaf(0.0013840563f, v58, 0.008369354f);
                const f32 v63 = fmaf(0.0013840563f, v59, 0.008369354f);
                const f32 v64 = fmaf(0.0013840563f, v60, 0.008369354f);
                const f32 v65 = fmaf(0.0013840563f, v61, 0.008369354f);
                const f32 v66 = fmaf(v62, v58, 0.041668084f);
                const f32 v67 = fmaf(v63, v59, 0.041668084f);
                const f32 v68 = fmaf(v64, v60, 0.041668084f);
                const f32 v69 = fmaf(v65, v61, 0.041668084f);
                const f32 v70 = fmaf(v66, v58, 0.16666515f);
                const f32 v71 = fmaf(v67, v59, 0.16666515f);
                const f32 v72 = fmaf(v68, v60, 0.16666515f);
                const f32 v73 = fmaf(v69, v61, 0.16666515f);
                const f32 v74 = fmaf(v70, v58, 0.49999994f);
                const f32 v75 = fmaf(v71, v59, 0.49999994f);
                const f32 v76 = fmaf(v72, v60, 0.49999994f);
                const f32 v77 = fmaf(v73, v61, 0.49999994f);
                const f32 v78 = fmaf(v74, v58, 1.0f);
                const f32 v79 = fmaf(v75, v59, 1.0f);
                const f32 v80 = fmaf(v76, v60, 1.0f);
                const f32 v81 = fmaf(v77, v61, 1.0f);
                const f32 v82 = fmaf(v78, v58, 1.0f);
                const f32 v83 = fmaf(v79, v59, 1.0f);
                const f32 v84 = fmaf(v80, v60, 1.0f);
                const f32 v85 = fmaf(v81, v61, 1.0f);
                const i32 v86 = (i32)__float_as_int(v46);
                const i32 v87 = (i32)__float_as_int(v47);
                const i32 v88 = (i32)__float_as_int(v48);
                const i32 v89 = (i32)__float_as_int(v49);
                const u32 v90 = (u32)v86;
                const u32 v91 = (u32)v87;
                const u32 v92 = (u32)v88;
                const u32 v93 = (u32)v89;
                const u32 v94 = shl_u32(v90, 23u);
                const u32 v95 = shl_u32(v91, 23u);
                const u32 v96 = shl_u32(v92, 23u);
                const u32 v97 = shl_u32(v93, 23u);
                const i32 v98 = (i32)v94;
                const i32 v99 = (i32)v95;
                const i32 v100 = (i32)v96;
                const i32 v101 = (i32)v97;
                const i32 v102 = (i32)__float_as_int(v82);
                const i32 v103 = (i32)__float_as_int(v83);
                const i32 v104 = (i32)__float_as_int(v84);
                const i32 v105 = (i32)__float_as_int(v85);
                const i32 v106 = (i32)((u32)v102 + (u32)v98);
                const i32 v107 = (i32)((u32)v103 + (u32)v99);
                const i32 v108 = (i32)((u32)v104 + (u32)v100);
                const i32 v109 = (i32)((u32)v105 + (u32)v101);
                const f32 v110 = __int_as_float((i32)v106);
                const f32 v111 = __int_as_float((i32)v107);
                const f32 v112 = __int_as_float((i32)v108);
                const f32 v113 = __int_as_float((i32)v109);
                const i32 v114 = (i32)__float_as_int(v42);
                const i32 v115 = (i32)__float_as_int(v43);
                const i32 v116 = (i32)__float_as_int(v44);
                const i32 v117 = (i32)__float_as_int(v45);
                const i32 v118 = (i32)(v114 & 2147483647);
                const i32 v119 = (i32)(v115 & 2147483647);
                const i32 v120 = (i32)(v116 & 2147483647);
                const i32 v121 = (i32)(v117 & 2147483647);
                const bool v122 = 1118699520 < v118;
                const bool v123 = 1118699520 < v119;
                const bool v124 = 1118699520 < v120;
                const bool v125 = 1118699520 < v121;
                const bool v126 = v122 | v123;
                const bool v127 = v126 | v124;
                const bool v128 = v127 | v125;
                f32 r2 = v110;
                f32 r3 = v111;
                f32 r4 = v112;
                f32 r5 = v113;
                if (v128) {
                    const bool v129 = 12583041.0f < v46;
                    const bool v130 = 12583041.0f < v47;
                    const bool v131 = 12583041.0f < v48;
                    const bool v132 = 12583041.0f < v49;
                    const f32 v133 = v129 ? 12583041.0f : v46;
                    const f32 v134 = v130 ? 12583041.0f : v47;
                    const f32 v135 = v131 ? 12583041.0f : v48;
                    const f32 v136 = v132 ? 12583041.0f : v49;
                    const bool v137 = v133 < 12582760.0f;
                    const bool v138 = v134 < 12582760.0f;
                    const bool v139 = v135 < 12582760.0f;
                    const bool v140 = v136 < 12582760.0f;
                    const f32 v141 = v137 ? 12582760.0f : v133;
                    const f32 v142 = v138 ? 12582760.0f : v134;
                    const f32 v143 = v139 ? 12582760.0f : v135;
                    const f32 v144 = v140 ? 12582760.0f : v136;
                    const i32 v145 = (i32)__float_as_int(v46);
                    const i32 v146 = (i32)__float_as_int(v47);
                    const i32 v147 = (i32)__float_as_int(v48);
                    const i32 v148 = (i32)__float_as_int(v49);
                    const i32 v149 = (i32)__float_as_int(v141);
                    const i32 v150 = (i32)__float_as_int(v142);
                    const i32 v151 = (i32)__float_as_int(v143);
                    const i32 v152 = (i32)__float_as_int(v144);
                    const bool v153 = v145 == v149;
                    const bool v154 = v146 == v150;
                    const bool v155 = v147 == v151;
                    const bool v156 = v148 == v152;
                    const f32 v157 = v141 - 12582760.0f;
                    const f32 v158 = v142 - 12582760.0f;
                    const f32 v159 = v143 - 12582760.0f;
                    const f32 v160 = v144 - 12582760.0f;
                    const f32 v161 = v153 ? v82 : v157;
                    const f32 v162 = v154 ? v83 : v158;
                    const f32 v163 = v155 ? v84 : v159;
                    const f32 v164 = v156 ? v85 : v160;
                    const u32 v165 = (u32)v149;
                    const u32 v166 = (u32)v150;
                    const u32 v167 = (u32)v151;
                    const u32 v168 = (u32)v152;
                    const u32 v169 = shr_u32(v165, 1u);
                    const u32 v170 = shr_u32(v166, 1u);
                    const u32 v171 = shr_u32(v167, 1u);
                    const u32 v172 = shr_u32(v168, 1u);
                    const i32 v173 = (i32)v169;
                    const i32 v174 = (i32)v170;
                    const i32 v175 = (i32)v171;
                    const i32 v176 = (i32)v172;
                    const u32 v177 = (u32)v173;
                    const u32 v178 = (u32)v174;
                    const u32 v179 = (u32)v175;
                    const u32 v180 = (u32)v176;
                    const u32 v181 = shl_u32(v177, 23u);
                    const u32 v182 = shl_u32(v178, 23u);
                    const u32 v183 = shl_u32(v179, 23u);
                    const u32 v184 = shl_u32(v180, 23u);
                    const i32 v185 = (i32)v181;
                    const i32 v186 = (i32)v182;
                    const i32 v187 = (i32)v183;
                    const i32 v188 = (i32)v184;
                    const u32 v189 = (u32)v149;
                    const u32 v190 = (u32)v150;
                    const u32 v191 = (u32)v151;
                    const u32 v192 = (u32)v152;
                    const u32 v193 = shl_u32(v189, 23u);
                    const u32 v194 = shl_u32(v190, 23u);
                    const u32 v195 = shl_u32(v191, 23u);
                    const u32 v196 = shl_u32(v192, 23u);
                    const i32 v197 = (i32)v193;
                    const i32 v198 = (i32)v194;
                    const i32 v199 = (i32)v195;
                    const i32 v200 = (i32)v196;
                    const i32 v201 = (i32)((u32)v197 - (u32)v185);
                    const i32 v202 = (i32)((u32)v198 - (u32)v186);
                    const i32 v203 = (i32)((u32)v199 - (u32)v187);
                    const i32 v204 = (i32)((u32)v200 - (u32)v188);
                    const i32 v205 = (i32)((u32)1065353216 + (u32)v185);
                    const i32 v206 = (i32)((u32)1065353216 + (u32)v186);
                    const i32 v207 = (i32)((u32)1065353216 + (u32)v187);
                    const i32 v208 = (i32)((u32)1065353216 + (u32)v188);
                    const f32 v209 = __int_as_float((i32)v205);
                    const f32 v210 = __int_as_float((i32)v206);
                    const f32 v211 = __int_as_float((i32)v207);
                    const f32 v212 = __int_as_float((i32)v208);
                    const i32 v213 = (i32)((u32)1065353216 + (u32)v201);
                    const i32 v214 = (i32)((u32)1065353216 + (u32)v202);
                    const i32 v215 = (i32)((u32)1065353216 + (u32)v203);
                    const i32 v216 = (i32)((u32)1065353216 + (u32)v204);
                    const f32 v217 = __int_as_float((i32)v213);
                    const f32 v218 = __int_as_float((i32)v214);
                    const f32 v219 = __int_as_float((i32)v215);
                    const f32 v220 = __int_as_float((i32)v216);
                    const f32 v221 = v161 * v209;
                    const f32 v222 = v162 * v210;
                    const f32 v223 = v163 * v211;
                    const f32 v224 = v164 * v212;
                    const f32 v225 = v221 * v217;
                    const f32 v226 = v222 * v218;
                    const f32 v227 = v223 * v219;
                    const f32 v228 = v224 * v220;
                    const f32 v229 = v122 ? v225 : v110;
                    const f32 v230 = v123 ? v226 : v111;
                    const f32 v231 = v124 ? v227 : v112;
                    const f32 v232 = v125 ? v228 : v113;
                    r2 = v229;
                    r3 = v230;
                    r4 = v231;
                    r5 = v232;
                }
                f32x4 v233;
                v233.e[0] = r2;
                v233.e[1] = r3;
                v233.e[2] = r4;
                v233.e[3] = r5;
                *(f32x4*)&a3[0] = v233;
                const f32 v234 = (-0.0f) + r2;
                const f32 v235 = (-0.0f) + r3;
                const f32 v236 = (-0.0f) + r4;
                const f32 v237 = (-0.0f) + r5;
                const f32 v238 = (-0.0f) + v234;
                const f32 v239 = v238 + v235;
                const f32 v240 = v239 + v236;
                const f32 v241 = v240 + v237;
                r1 = v241;
            }
            a9[0] = r1;
        }
        {
            f32 all = a9[0];
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 16);
                all = all + other;
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 8);
                all = all + other;
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 4);
                all = all + other;
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 2);
                all = all + other;
            }
            {
                const f32 other = (f32)__shfl_xor_sync(0xffffffffu, all, 1);
                all = all + other;
            }
            a9[0] = all;
        }
        {
            const int t6 = threadIdx.x % 32;
            const i32 v242 = t6;
            const bool v243 = v242 < 1;
            const f32 v244 = a9[0];
            if (v243) shared8[w4] = v244;
        }
    }
    __syncthreads();
    const f32 v245 = shared8[0];
    const f32 v246 = 0.0f + v245;
    const f32 v247 = shared8[1];
    const f32 v248 = v246 + v247;
    const f32 v249 = shared8[2];
    const f32 v250 = v248 + v249;
    const f32 v251 = shared8[3];
    const f32 v252 = v250 + v251;
    const f32 v253 = shared8[4];
    const f32 v254 = v252 + v253;
    const f32 v255 = shared8[5];
    const f32 v256 = v254 + v255;
    const f32 v257 = shared8[6];
    const f32 v258 = v256 + v257;
    const f32 v259 = shared8[7];
    const f32 v260 = v258 + v259;
    {
        const int t7 = threadIdx.x;
        const i32 v261 = t7;
        const bool v262 = v261 < 250;
        if (v262) {
            const f32x4 v263 = *(f32x4*)&a3[0];
            const f32 v264 = v263.e[0];
            const f32 v265 = v263.e[1];
            const f32 v266 = v263.e[2];
            const f32 v267 = v263.e[3];
            const f32 v268 = v264 / v260;
            const f32 v269 = v265 / v260;
            const f32 v270 = v266 / v260;
            const f32 v271 = v267 / v260;
            f32x4 v272;
            v272.e[0] = v268;
            v272.e[1] = v269;
            v272.e[2] = v270;
            v272.e[3] = v271;
            ((f32x4*)p1)[b0 * 250 + t7] = v272;
        }
    }
}
