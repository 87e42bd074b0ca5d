//! The instructions of AVX2, FMA and F16C.
//!
//! An operation that AVX-512 has too is chosen by the name of its EVEX form (`opcodes.rs`), on every level; here is the VEX form that it
//! is written in where there is no other, which does the same on all lanes. What only this level uses is listed by width behind it.
//!
//! Invariant: code for this level has no instruction of AVX-512, neither by its EVEX prefix nor on a mask register.

use std::fmt::{self, Write};

use iced_x86::Code;

use super::opcodes::Codes;

macro_rules! forms {
    (memory { $($folding:ident $folded:ident,)* } registers { $($evex:ident $vex:ident,)* }) => {
        /// The instruction that this level has for one: its VEX form, or itself if it is none of AVX-512.
        pub(super) fn form(code: Code) -> Option<Code> {
            match code {
                $(Code::$folding => Some(Code::$folded),)*
                $(Code::$evex => Some(Code::$vex),)*
                other => (!is_avx512(other)).then_some(other),
            }
        }

        /// Whether the last vector that an instruction reads may be in memory as well as in a register.
        pub(super) fn takes_memory(code: Code) -> bool {
            matches!(code, $(Code::$folding)|*) || own_takes_memory(code)
        }
    };
}

macro_rules! codes {
    (memory { $($folding:ident: $fx:ident $fy:ident,)* } registers { $($name:ident: $x:ident $y:ident,)* }) => {
        $(pub(super) const $folding: Codes = [Code::$fx, Code::$fy, Code::INVALID];)*
        $(pub(super) const $name: Codes = [Code::$x, Code::$y, Code::INVALID];)*

        /// As [`takes_memory`], of the instructions that only this level uses.
        fn own_takes_memory(code: Code) -> bool {
            matches!(code, $(Code::$fx | Code::$fy)|*)
        }
    };
}

/// Whether an instruction is one of AVX-512, by its name.
fn is_avx512(code: Code) -> bool {
    /// The beginning of a text.
    #[derive(Default)]
    struct Beginning {
        bytes: [u8; 5],
        length: usize,
    }
    impl Write for Beginning {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            for (place, b) in self.bytes[self.length..].iter_mut().zip(s.bytes()) {
                *place = b;
                self.length += 1;
            }
            Ok(())
        }
    }
    let mut name = Beginning::default();
    let written = write!(name, "{code:?}");
    written.is_err() || name.bytes == *b"EVEX_" || name.bytes == *b"VEX_K"
}

codes! {
    memory {
        AND_NOT: VEX_Vpandn_xmm_xmm_xmmm128 VEX_Vpandn_ymm_ymm_ymmm256,
        EQUAL_B: VEX_Vpcmpeqb_xmm_xmm_xmmm128 VEX_Vpcmpeqb_ymm_ymm_ymmm256,
        EQUAL_W: VEX_Vpcmpeqw_xmm_xmm_xmmm128 VEX_Vpcmpeqw_ymm_ymm_ymmm256,
        EQUAL_D: VEX_Vpcmpeqd_xmm_xmm_xmmm128 VEX_Vpcmpeqd_ymm_ymm_ymmm256,
        EQUAL_Q: VEX_Vpcmpeqq_xmm_xmm_xmmm128 VEX_Vpcmpeqq_ymm_ymm_ymmm256,
        GREATER_B: VEX_Vpcmpgtb_xmm_xmm_xmmm128 VEX_Vpcmpgtb_ymm_ymm_ymmm256,
        GREATER_W: VEX_Vpcmpgtw_xmm_xmm_xmmm128 VEX_Vpcmpgtw_ymm_ymm_ymmm256,
        GREATER_D: VEX_Vpcmpgtd_xmm_xmm_xmmm128 VEX_Vpcmpgtd_ymm_ymm_ymmm256,
        GREATER_Q: VEX_Vpcmpgtq_xmm_xmm_xmmm128 VEX_Vpcmpgtq_ymm_ymm_ymmm256,
        COMPARE_PS: VEX_Vcmpps_xmm_xmm_xmmm128_imm8 VEX_Vcmpps_ymm_ymm_ymmm256_imm8,
        COMPARE_PD: VEX_Vcmppd_xmm_xmm_xmmm128_imm8 VEX_Vcmppd_ymm_ymm_ymmm256_imm8,
        BLEND_KNOWN_D: VEX_Vpblendd_xmm_xmm_xmmm128_imm8 VEX_Vpblendd_ymm_ymm_ymmm256_imm8,
        PACK_DW: VEX_Vpackssdw_xmm_xmm_xmmm128 VEX_Vpackssdw_ymm_ymm_ymmm256,
        PACK_WB: VEX_Vpacksswb_xmm_xmm_xmmm128 VEX_Vpacksswb_ymm_ymm_ymmm256,
        SHUFFLE_B: VEX_Vpshufb_xmm_xmm_xmmm128 VEX_Vpshufb_ymm_ymm_ymmm256,
        MULTIPLY_LOW_D: VEX_Vpmuludq_xmm_xmm_xmmm128 VEX_Vpmuludq_ymm_ymm_ymmm256,
    }
    registers {
        CHOOSE_B: VEX_Vpblendvb_xmm_xmm_xmmm128_xmm VEX_Vpblendvb_ymm_ymm_ymmm256_ymm,
        CHOOSE_PS: VEX_Vblendvps_xmm_xmm_xmmm128_xmm VEX_Vblendvps_ymm_ymm_ymmm256_ymm,
        CHOOSE_PD: VEX_Vblendvpd_xmm_xmm_xmmm128_xmm VEX_Vblendvpd_ymm_ymm_ymmm256_ymm,
        SIGNS_B: VEX_Vpmovmskb_r32_xmm VEX_Vpmovmskb_r32_ymm,
        SIGNS_PS: VEX_Vmovmskps_r32_xmm VEX_Vmovmskps_r32_ymm,
        SIGNS_PD: VEX_Vmovmskpd_r32_xmm VEX_Vmovmskpd_r32_ymm,
        MASKED_LOAD_D: VEX_Vpmaskmovd_xmm_xmm_m128 VEX_Vpmaskmovd_ymm_ymm_m256,
        MASKED_LOAD_Q: VEX_Vpmaskmovq_xmm_xmm_m128 VEX_Vpmaskmovq_ymm_ymm_m256,
        MASKED_STORE_D: VEX_Vpmaskmovd_m128_xmm_xmm VEX_Vpmaskmovd_m256_ymm_ymm,
        MASKED_STORE_Q: VEX_Vpmaskmovq_m128_xmm_xmm VEX_Vpmaskmovq_m256_ymm_ymm,
        GATHERED_D: VEX_Vgatherdps_xmm_vm32x_xmm VEX_Vgatherdps_ymm_vm32y_ymm,
        GATHERED_Q: VEX_Vgatherdpd_xmm_vm32x_xmm VEX_Vgatherdpd_ymm_vm32x_ymm,
    }
}

forms! {
    memory {
        EVEX_Vaddpd_xmm_k1z_xmm_xmmm128b64 VEX_Vaddpd_xmm_xmm_xmmm128,
        EVEX_Vaddpd_ymm_k1z_ymm_ymmm256b64 VEX_Vaddpd_ymm_ymm_ymmm256,
        EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32 VEX_Vaddps_xmm_xmm_xmmm128,
        EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32 VEX_Vaddps_ymm_ymm_ymmm256,
        EVEX_Vcvtdq2pd_xmm_k1z_xmmm64b32 VEX_Vcvtdq2pd_xmm_xmmm64,
        EVEX_Vcvtdq2pd_ymm_k1z_xmmm128b32 VEX_Vcvtdq2pd_ymm_xmmm128,
        EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32 VEX_Vcvtdq2ps_xmm_xmmm128,
        EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32 VEX_Vcvtdq2ps_ymm_ymmm256,
        EVEX_Vcvtpd2ps_xmm_k1z_xmmm128b64 VEX_Vcvtpd2ps_xmm_xmmm128,
        EVEX_Vcvtpd2ps_xmm_k1z_ymmm256b64 VEX_Vcvtpd2ps_xmm_ymmm256,
        EVEX_Vcvtph2ps_xmm_k1z_xmmm64 VEX_Vcvtph2ps_xmm_xmmm64,
        EVEX_Vcvtph2ps_ymm_k1z_xmmm128 VEX_Vcvtph2ps_ymm_xmmm128,
        EVEX_Vcvtps2pd_xmm_k1z_xmmm64b32 VEX_Vcvtps2pd_xmm_xmmm64,
        EVEX_Vcvtps2pd_ymm_k1z_xmmm128b32 VEX_Vcvtps2pd_ymm_xmmm128,
        EVEX_Vcvttpd2dq_xmm_k1z_xmmm128b64 VEX_Vcvttpd2dq_xmm_xmmm128,
        EVEX_Vcvttpd2dq_xmm_k1z_ymmm256b64 VEX_Vcvttpd2dq_xmm_ymmm256,
        EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32 VEX_Vcvttps2dq_xmm_xmmm128,
        EVEX_Vcvttps2dq_ymm_k1z_ymmm256b32 VEX_Vcvttps2dq_ymm_ymmm256,
        EVEX_Vdivpd_xmm_k1z_xmm_xmmm128b64 VEX_Vdivpd_xmm_xmm_xmmm128,
        EVEX_Vdivpd_ymm_k1z_ymm_ymmm256b64 VEX_Vdivpd_ymm_ymm_ymmm256,
        EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32 VEX_Vdivps_xmm_xmm_xmmm128,
        EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32 VEX_Vdivps_ymm_ymm_ymmm256,
        EVEX_Vfmadd213pd_xmm_k1z_xmm_xmmm128b64 VEX_Vfmadd213pd_xmm_xmm_xmmm128,
        EVEX_Vfmadd213pd_ymm_k1z_ymm_ymmm256b64 VEX_Vfmadd213pd_ymm_ymm_ymmm256,
        EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32 VEX_Vfmadd213ps_xmm_xmm_xmmm128,
        EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32 VEX_Vfmadd213ps_ymm_ymm_ymmm256,
        EVEX_Vfmadd231pd_xmm_k1z_xmm_xmmm128b64 VEX_Vfmadd231pd_xmm_xmm_xmmm128,
        EVEX_Vfmadd231pd_ymm_k1z_ymm_ymmm256b64 VEX_Vfmadd231pd_ymm_ymm_ymmm256,
        EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32 VEX_Vfmadd231ps_xmm_xmm_xmmm128,
        EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32 VEX_Vfmadd231ps_ymm_ymm_ymmm256,
        EVEX_Vinserti32x4_ymm_k1z_ymm_xmmm128_imm8 VEX_Vinserti128_ymm_ymm_xmmm128_imm8,
        EVEX_Vmaxpd_xmm_k1z_xmm_xmmm128b64 VEX_Vmaxpd_xmm_xmm_xmmm128,
        EVEX_Vmaxpd_ymm_k1z_ymm_ymmm256b64 VEX_Vmaxpd_ymm_ymm_ymmm256,
        EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32 VEX_Vmaxps_xmm_xmm_xmmm128,
        EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32 VEX_Vmaxps_ymm_ymm_ymmm256,
        EVEX_Vminpd_xmm_k1z_xmm_xmmm128b64 VEX_Vminpd_xmm_xmm_xmmm128,
        EVEX_Vminpd_ymm_k1z_ymm_ymmm256b64 VEX_Vminpd_ymm_ymm_ymmm256,
        EVEX_Vminps_xmm_k1z_xmm_xmmm128b32 VEX_Vminps_xmm_xmm_xmmm128,
        EVEX_Vminps_ymm_k1z_ymm_ymmm256b32 VEX_Vminps_ymm_ymm_ymmm256,
        EVEX_Vmovdqu16_xmm_k1z_xmmm128 VEX_Vmovdqu_xmm_xmmm128,
        EVEX_Vmovdqu16_ymm_k1z_ymmm256 VEX_Vmovdqu_ymm_ymmm256,
        EVEX_Vmovdqu32_xmm_k1z_xmmm128 VEX_Vmovdqu_xmm_xmmm128,
        EVEX_Vmovdqu32_ymm_k1z_ymmm256 VEX_Vmovdqu_ymm_ymmm256,
        EVEX_Vmovdqu64_xmm_k1z_xmmm128 VEX_Vmovdqu_xmm_xmmm128,
        EVEX_Vmovdqu64_ymm_k1z_ymmm256 VEX_Vmovdqu_ymm_ymmm256,
        EVEX_Vmovdqu8_xmm_k1z_xmmm128 VEX_Vmovdqu_xmm_xmmm128,
        EVEX_Vmovdqu8_ymm_k1z_ymmm256 VEX_Vmovdqu_ymm_ymmm256,
        EVEX_Vmovq_xmm_xmmm64 VEX_Vmovq_xmm_xmmm64,
        EVEX_Vmulpd_xmm_k1z_xmm_xmmm128b64 VEX_Vmulpd_xmm_xmm_xmmm128,
        EVEX_Vmulpd_ymm_k1z_ymm_ymmm256b64 VEX_Vmulpd_ymm_ymm_ymmm256,
        EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32 VEX_Vmulps_xmm_xmm_xmmm128,
        EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32 VEX_Vmulps_ymm_ymm_ymmm256,
        EVEX_Vpabsb_xmm_k1z_xmmm128 VEX_Vpabsb_xmm_xmmm128,
        EVEX_Vpabsb_ymm_k1z_ymmm256 VEX_Vpabsb_ymm_ymmm256,
        EVEX_Vpabsd_xmm_k1z_xmmm128b32 VEX_Vpabsd_xmm_xmmm128,
        EVEX_Vpabsd_ymm_k1z_ymmm256b32 VEX_Vpabsd_ymm_ymmm256,
        EVEX_Vpabsw_xmm_k1z_xmmm128 VEX_Vpabsw_xmm_xmmm128,
        EVEX_Vpabsw_ymm_k1z_ymmm256 VEX_Vpabsw_ymm_ymmm256,
        EVEX_Vpaddb_xmm_k1z_xmm_xmmm128 VEX_Vpaddb_xmm_xmm_xmmm128,
        EVEX_Vpaddb_ymm_k1z_ymm_ymmm256 VEX_Vpaddb_ymm_ymm_ymmm256,
        EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32 VEX_Vpdpbusd_xmm_xmm_xmmm128,
        EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32 VEX_Vpdpbusd_ymm_ymm_ymmm256,
        EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128 VEX_Vpmaddwd_xmm_xmm_xmmm128,
        EVEX_Vpmaddwd_ymm_k1z_ymm_ymmm256 VEX_Vpmaddwd_ymm_ymm_ymmm256,
        EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32 VEX_Vpaddd_xmm_xmm_xmmm128,
        EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32 VEX_Vpaddd_ymm_ymm_ymmm256,
        EVEX_Vpaddq_xmm_k1z_xmm_xmmm128b64 VEX_Vpaddq_xmm_xmm_xmmm128,
        EVEX_Vpaddq_ymm_k1z_ymm_ymmm256b64 VEX_Vpaddq_ymm_ymm_ymmm256,
        EVEX_Vpaddw_xmm_k1z_xmm_xmmm128 VEX_Vpaddw_xmm_xmm_xmmm128,
        EVEX_Vpaddw_ymm_k1z_ymm_ymmm256 VEX_Vpaddw_ymm_ymm_ymmm256,
        EVEX_Vpandd_xmm_k1z_xmm_xmmm128b32 VEX_Vpand_xmm_xmm_xmmm128,
        EVEX_Vpandd_ymm_k1z_ymm_ymmm256b32 VEX_Vpand_ymm_ymm_ymmm256,
        EVEX_Vpandq_xmm_k1z_xmm_xmmm128b64 VEX_Vpand_xmm_xmm_xmmm128,
        EVEX_Vpandq_ymm_k1z_ymm_ymmm256b64 VEX_Vpand_ymm_ymm_ymmm256,
        EVEX_Vpbroadcastb_xmm_k1z_xmmm8 VEX_Vpbroadcastb_xmm_xmmm8,
        EVEX_Vpbroadcastb_ymm_k1z_xmmm8 VEX_Vpbroadcastb_ymm_xmmm8,
        EVEX_Vpbroadcastd_xmm_k1z_xmmm32 VEX_Vpbroadcastd_xmm_xmmm32,
        EVEX_Vpbroadcastd_ymm_k1z_xmmm32 VEX_Vpbroadcastd_ymm_xmmm32,
        EVEX_Vpbroadcastq_xmm_k1z_xmmm64 VEX_Vpbroadcastq_xmm_xmmm64,
        EVEX_Vpbroadcastq_ymm_k1z_xmmm64 VEX_Vpbroadcastq_ymm_xmmm64,
        EVEX_Vpbroadcastw_xmm_k1z_xmmm16 VEX_Vpbroadcastw_xmm_xmmm16,
        EVEX_Vpbroadcastw_ymm_k1z_xmmm16 VEX_Vpbroadcastw_ymm_xmmm16,
        EVEX_Vpmaxsb_xmm_k1z_xmm_xmmm128 VEX_Vpmaxsb_xmm_xmm_xmmm128,
        EVEX_Vpmaxsb_ymm_k1z_ymm_ymmm256 VEX_Vpmaxsb_ymm_ymm_ymmm256,
        EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32 VEX_Vpmaxsd_xmm_xmm_xmmm128,
        EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32 VEX_Vpmaxsd_ymm_ymm_ymmm256,
        EVEX_Vpmaxsw_xmm_k1z_xmm_xmmm128 VEX_Vpmaxsw_xmm_xmm_xmmm128,
        EVEX_Vpmaxsw_ymm_k1z_ymm_ymmm256 VEX_Vpmaxsw_ymm_ymm_ymmm256,
        EVEX_Vpmaxub_xmm_k1z_xmm_xmmm128 VEX_Vpmaxub_xmm_xmm_xmmm128,
        EVEX_Vpmaxub_ymm_k1z_ymm_ymmm256 VEX_Vpmaxub_ymm_ymm_ymmm256,
        EVEX_Vpmaxud_xmm_k1z_xmm_xmmm128b32 VEX_Vpmaxud_xmm_xmm_xmmm128,
        EVEX_Vpmaxud_ymm_k1z_ymm_ymmm256b32 VEX_Vpmaxud_ymm_ymm_ymmm256,
        EVEX_Vpmaxuw_xmm_k1z_xmm_xmmm128 VEX_Vpmaxuw_xmm_xmm_xmmm128,
        EVEX_Vpmaxuw_ymm_k1z_ymm_ymmm256 VEX_Vpmaxuw_ymm_ymm_ymmm256,
        EVEX_Vpminsb_xmm_k1z_xmm_xmmm128 VEX_Vpminsb_xmm_xmm_xmmm128,
        EVEX_Vpminsb_ymm_k1z_ymm_ymmm256 VEX_Vpminsb_ymm_ymm_ymmm256,
        EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32 VEX_Vpminsd_xmm_xmm_xmmm128,
        EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32 VEX_Vpminsd_ymm_ymm_ymmm256,
        EVEX_Vpminsw_xmm_k1z_xmm_xmmm128 VEX_Vpminsw_xmm_xmm_xmmm128,
        EVEX_Vpminsw_ymm_k1z_ymm_ymmm256 VEX_Vpminsw_ymm_ymm_ymmm256,
        EVEX_Vpminub_xmm_k1z_xmm_xmmm128 VEX_Vpminub_xmm_xmm_xmmm128,
        EVEX_Vpminub_ymm_k1z_ymm_ymmm256 VEX_Vpminub_ymm_ymm_ymmm256,
        EVEX_Vpminud_xmm_k1z_xmm_xmmm128b32 VEX_Vpminud_xmm_xmm_xmmm128,
        EVEX_Vpminud_ymm_k1z_ymm_ymmm256b32 VEX_Vpminud_ymm_ymm_ymmm256,
        EVEX_Vpminuw_xmm_k1z_xmm_xmmm128 VEX_Vpminuw_xmm_xmm_xmmm128,
        EVEX_Vpminuw_ymm_k1z_ymm_ymmm256 VEX_Vpminuw_ymm_ymm_ymmm256,
        EVEX_Vpmovsxbd_xmm_k1z_xmmm32 VEX_Vpmovsxbd_xmm_xmmm32,
        EVEX_Vpmovsxbd_ymm_k1z_xmmm64 VEX_Vpmovsxbd_ymm_xmmm64,
        EVEX_Vpmovsxbq_xmm_k1z_xmmm16 VEX_Vpmovsxbq_xmm_xmmm16,
        EVEX_Vpmovsxbq_ymm_k1z_xmmm32 VEX_Vpmovsxbq_ymm_xmmm32,
        EVEX_Vpmovsxbw_xmm_k1z_xmmm64 VEX_Vpmovsxbw_xmm_xmmm64,
        EVEX_Vpmovsxbw_ymm_k1z_xmmm128 VEX_Vpmovsxbw_ymm_xmmm128,
        EVEX_Vpmovsxdq_xmm_k1z_xmmm64 VEX_Vpmovsxdq_xmm_xmmm64,
        EVEX_Vpmovsxdq_ymm_k1z_xmmm128 VEX_Vpmovsxdq_ymm_xmmm128,
        EVEX_Vpmovsxwd_xmm_k1z_xmmm64 VEX_Vpmovsxwd_xmm_xmmm64,
        EVEX_Vpmovsxwd_ymm_k1z_xmmm128 VEX_Vpmovsxwd_ymm_xmmm128,
        EVEX_Vpmovsxwq_xmm_k1z_xmmm32 VEX_Vpmovsxwq_xmm_xmmm32,
        EVEX_Vpmovsxwq_ymm_k1z_xmmm64 VEX_Vpmovsxwq_ymm_xmmm64,
        EVEX_Vpmovzxbd_xmm_k1z_xmmm32 VEX_Vpmovzxbd_xmm_xmmm32,
        EVEX_Vpmovzxbd_ymm_k1z_xmmm64 VEX_Vpmovzxbd_ymm_xmmm64,
        EVEX_Vpmovzxbq_xmm_k1z_xmmm16 VEX_Vpmovzxbq_xmm_xmmm16,
        EVEX_Vpmovzxbq_ymm_k1z_xmmm32 VEX_Vpmovzxbq_ymm_xmmm32,
        EVEX_Vpmovzxbw_xmm_k1z_xmmm64 VEX_Vpmovzxbw_xmm_xmmm64,
        EVEX_Vpmovzxbw_ymm_k1z_xmmm128 VEX_Vpmovzxbw_ymm_xmmm128,
        EVEX_Vpmovzxdq_xmm_k1z_xmmm64 VEX_Vpmovzxdq_xmm_xmmm64,
        EVEX_Vpmovzxdq_ymm_k1z_xmmm128 VEX_Vpmovzxdq_ymm_xmmm128,
        EVEX_Vpmovzxwd_xmm_k1z_xmmm64 VEX_Vpmovzxwd_xmm_xmmm64,
        EVEX_Vpmovzxwd_ymm_k1z_xmmm128 VEX_Vpmovzxwd_ymm_xmmm128,
        EVEX_Vpmovzxwq_xmm_k1z_xmmm32 VEX_Vpmovzxwq_xmm_xmmm32,
        EVEX_Vpmovzxwq_ymm_k1z_xmmm64 VEX_Vpmovzxwq_ymm_xmmm64,
        EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32 VEX_Vpmulld_xmm_xmm_xmmm128,
        EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32 VEX_Vpmulld_ymm_ymm_ymmm256,
        EVEX_Vpmullw_xmm_k1z_xmm_xmmm128 VEX_Vpmullw_xmm_xmm_xmmm128,
        EVEX_Vpmullw_ymm_k1z_ymm_ymmm256 VEX_Vpmullw_ymm_ymm_ymmm256,
        EVEX_Vpord_xmm_k1z_xmm_xmmm128b32 VEX_Vpor_xmm_xmm_xmmm128,
        EVEX_Vpord_ymm_k1z_ymm_ymmm256b32 VEX_Vpor_ymm_ymm_ymmm256,
        EVEX_Vpsllvd_xmm_k1z_xmm_xmmm128b32 VEX_Vpsllvd_xmm_xmm_xmmm128,
        EVEX_Vpsllvd_ymm_k1z_ymm_ymmm256b32 VEX_Vpsllvd_ymm_ymm_ymmm256,
        EVEX_Vpsllvq_xmm_k1z_xmm_xmmm128b64 VEX_Vpsllvq_xmm_xmm_xmmm128,
        EVEX_Vpsllvq_ymm_k1z_ymm_ymmm256b64 VEX_Vpsllvq_ymm_ymm_ymmm256,
        EVEX_Vpsravd_xmm_k1z_xmm_xmmm128b32 VEX_Vpsravd_xmm_xmm_xmmm128,
        EVEX_Vpsravd_ymm_k1z_ymm_ymmm256b32 VEX_Vpsravd_ymm_ymm_ymmm256,
        EVEX_Vpsrlvd_xmm_k1z_xmm_xmmm128b32 VEX_Vpsrlvd_xmm_xmm_xmmm128,
        EVEX_Vpsrlvd_ymm_k1z_ymm_ymmm256b32 VEX_Vpsrlvd_ymm_ymm_ymmm256,
        EVEX_Vpsrlvq_xmm_k1z_xmm_xmmm128b64 VEX_Vpsrlvq_xmm_xmm_xmmm128,
        EVEX_Vpsrlvq_ymm_k1z_ymm_ymmm256b64 VEX_Vpsrlvq_ymm_ymm_ymmm256,
        EVEX_Vpsubb_xmm_k1z_xmm_xmmm128 VEX_Vpsubb_xmm_xmm_xmmm128,
        EVEX_Vpsubb_ymm_k1z_ymm_ymmm256 VEX_Vpsubb_ymm_ymm_ymmm256,
        EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32 VEX_Vpsubd_xmm_xmm_xmmm128,
        EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32 VEX_Vpsubd_ymm_ymm_ymmm256,
        EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64 VEX_Vpsubq_xmm_xmm_xmmm128,
        EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64 VEX_Vpsubq_ymm_ymm_ymmm256,
        EVEX_Vpsubw_xmm_k1z_xmm_xmmm128 VEX_Vpsubw_xmm_xmm_xmmm128,
        EVEX_Vpsubw_ymm_k1z_ymm_ymmm256 VEX_Vpsubw_ymm_ymm_ymmm256,
        EVEX_Vpunpckhdq_ymm_k1z_ymm_ymmm256b32 VEX_Vpunpckhdq_ymm_ymm_ymmm256,
        EVEX_Vpunpckhqdq_ymm_k1z_ymm_ymmm256b64 VEX_Vpunpckhqdq_ymm_ymm_ymmm256,
        EVEX_Vpunpcklbw_xmm_k1z_xmm_xmmm128 VEX_Vpunpcklbw_xmm_xmm_xmmm128,
        EVEX_Vpunpcklbw_ymm_k1z_ymm_ymmm256 VEX_Vpunpcklbw_ymm_ymm_ymmm256,
        EVEX_Vpunpckldq_xmm_k1z_xmm_xmmm128b32 VEX_Vpunpckldq_xmm_xmm_xmmm128,
        EVEX_Vpunpckldq_ymm_k1z_ymm_ymmm256b32 VEX_Vpunpckldq_ymm_ymm_ymmm256,
        EVEX_Vpunpcklqdq_xmm_k1z_xmm_xmmm128b64 VEX_Vpunpcklqdq_xmm_xmm_xmmm128,
        EVEX_Vpunpcklqdq_ymm_k1z_ymm_ymmm256b64 VEX_Vpunpcklqdq_ymm_ymm_ymmm256,
        EVEX_Vpunpcklwd_xmm_k1z_xmm_xmmm128 VEX_Vpunpcklwd_xmm_xmm_xmmm128,
        EVEX_Vpunpcklwd_ymm_k1z_ymm_ymmm256 VEX_Vpunpcklwd_ymm_ymm_ymmm256,
        EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32 VEX_Vpxor_xmm_xmm_xmmm128,
        EVEX_Vpxord_ymm_k1z_ymm_ymmm256b32 VEX_Vpxor_ymm_ymm_ymmm256,
        EVEX_Vpxorq_xmm_k1z_xmm_xmmm128b64 VEX_Vpxor_xmm_xmm_xmmm128,
        EVEX_Vpxorq_ymm_k1z_ymm_ymmm256b64 VEX_Vpxor_ymm_ymm_ymmm256,
        EVEX_Vrndscalepd_xmm_k1z_xmmm128b64_imm8 VEX_Vroundpd_xmm_xmmm128_imm8,
        EVEX_Vrndscalepd_ymm_k1z_ymmm256b64_imm8 VEX_Vroundpd_ymm_ymmm256_imm8,
        EVEX_Vrndscaleps_xmm_k1z_xmmm128b32_imm8 VEX_Vroundps_xmm_xmmm128_imm8,
        EVEX_Vrndscaleps_ymm_k1z_ymmm256b32_imm8 VEX_Vroundps_ymm_ymmm256_imm8,
        EVEX_Vsqrtpd_xmm_k1z_xmmm128b64 VEX_Vsqrtpd_xmm_xmmm128,
        EVEX_Vsqrtpd_ymm_k1z_ymmm256b64 VEX_Vsqrtpd_ymm_ymmm256,
        EVEX_Vsqrtps_xmm_k1z_xmmm128b32 VEX_Vsqrtps_xmm_xmmm128,
        EVEX_Vsqrtps_ymm_k1z_ymmm256b32 VEX_Vsqrtps_ymm_ymmm256,
        EVEX_Vsubpd_xmm_k1z_xmm_xmmm128b64 VEX_Vsubpd_xmm_xmm_xmmm128,
        EVEX_Vsubpd_ymm_k1z_ymm_ymmm256b64 VEX_Vsubpd_ymm_ymm_ymmm256,
        EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32 VEX_Vsubps_xmm_xmm_xmmm128,
        EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32 VEX_Vsubps_ymm_ymm_ymmm256,
    }
    registers {
        EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8 VEX_Vcvtps2ph_xmmm128_ymm_imm8,
        EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8 VEX_Vcvtps2ph_xmmm64_xmm_imm8,
        EVEX_Vmovd_rm32_xmm VEX_Vmovd_rm32_xmm,
        EVEX_Vmovd_xmm_rm32 VEX_Vmovd_xmm_rm32,
        EVEX_Vmovdqu16_xmmm128_k1z_xmm VEX_Vmovdqu_xmmm128_xmm,
        EVEX_Vmovdqu16_ymmm256_k1z_ymm VEX_Vmovdqu_ymmm256_ymm,
        EVEX_Vmovdqu32_xmmm128_k1z_xmm VEX_Vmovdqu_xmmm128_xmm,
        EVEX_Vmovdqu32_ymmm256_k1z_ymm VEX_Vmovdqu_ymmm256_ymm,
        EVEX_Vmovdqu64_xmmm128_k1z_xmm VEX_Vmovdqu_xmmm128_xmm,
        EVEX_Vmovdqu64_ymmm256_k1z_ymm VEX_Vmovdqu_ymmm256_ymm,
        EVEX_Vmovdqu8_xmmm128_k1z_xmm VEX_Vmovdqu_xmmm128_xmm,
        EVEX_Vmovdqu8_ymmm256_k1z_ymm VEX_Vmovdqu_ymmm256_ymm,
        EVEX_Vmovq_rm64_xmm VEX_Vmovq_rm64_xmm,
        EVEX_Vmovq_xmm_rm64 VEX_Vmovq_xmm_rm64,
        EVEX_Vmovq_xmmm64_xmm VEX_Vmovq_xmmm64_xmm,
        EVEX_Vmovsd_xmm_k1z_m64 VEX_Vmovsd_xmm_m64,
        EVEX_Vmovss_xmm_k1z_m32 VEX_Vmovss_xmm_m32,
        EVEX_Vpextrb_r32m8_xmm_imm8 VEX_Vpextrb_r32m8_xmm_imm8,
        EVEX_Vpinsrb_xmm_xmm_r32m8_imm8 VEX_Vpinsrb_xmm_xmm_r32m8_imm8,
        EVEX_Vpextrw_r32m16_xmm_imm8 VEX_Vpextrw_r32m16_xmm_imm8,
        EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8 VEX_Vpslld_xmm_xmm_imm8,
        EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8 VEX_Vpslld_ymm_ymm_imm8,
        EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8 VEX_Vpsllq_xmm_xmm_imm8,
        EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8 VEX_Vpsllq_ymm_ymm_imm8,
        EVEX_Vpsllw_xmm_k1z_xmmm128_imm8 VEX_Vpsllw_xmm_xmm_imm8,
        EVEX_Vpsllw_ymm_k1z_ymmm256_imm8 VEX_Vpsllw_ymm_ymm_imm8,
        EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8 VEX_Vpsrad_xmm_xmm_imm8,
        EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8 VEX_Vpsrad_ymm_ymm_imm8,
        EVEX_Vpsraw_xmm_k1z_xmmm128_imm8 VEX_Vpsraw_xmm_xmm_imm8,
        EVEX_Vpsraw_ymm_k1z_ymmm256_imm8 VEX_Vpsraw_ymm_ymm_imm8,
        EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8 VEX_Vpsrld_xmm_xmm_imm8,
        EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8 VEX_Vpsrld_ymm_ymm_imm8,
        EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8 VEX_Vpsrlq_xmm_xmm_imm8,
        EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8 VEX_Vpsrlq_ymm_ymm_imm8,
        EVEX_Vpsrlw_xmm_k1z_xmmm128_imm8 VEX_Vpsrlw_xmm_xmm_imm8,
        EVEX_Vpsrlw_ymm_k1z_ymmm256_imm8 VEX_Vpsrlw_ymm_ymm_imm8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wide::opcodes;

    #[test]
    fn what_the_level_lacks_has_no_form() {
        assert_eq!(form(opcodes::ADD_PS[1]), Some(Code::VEX_Vaddps_ymm_ymm_ymmm256));
        for lacking in [
            opcodes::ADD_PS[2],
            opcodes::MULL_Q[0],
            opcodes::SCATTER_D[1],
            Code::VEX_Kmovq_kr_r64,
            Code::VEX_Kortestb_kr_kr,
        ] {
            assert_eq!(form(lacking), None, "{lacking:?}");
        }
        for own in [Code::VEX_Vpblendd_ymm_ymm_ymmm256_imm8, Code::Add_r64_rm64] {
            assert_eq!(form(own), Some(own));
        }
    }

    #[test]
    fn only_what_reads_a_vector_last_reads_the_stack() {
        for folding in [opcodes::FMADD213_PS[1], opcodes::AND_D[0], COMPARE_PD[1]] {
            assert!(takes_memory(folding), "{folding:?}");
        }
        // Stores, shifts by a constant, and choices, whose last operand is the mask.
        for registers in [opcodes::STORE_D[1], opcodes::SLL_D[0], CHOOSE_PS[1]] {
            assert!(!takes_memory(registers), "{registers:?}");
        }
    }
}
