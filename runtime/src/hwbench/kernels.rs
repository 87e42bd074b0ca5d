//! The loops that [`super::HwBench`] times, in three builds: AVX-512, AVX2 with FMA, and portable.
//!
//! Invariants: a build is chosen only where the processor has its features ([`Kernels::best`]). Arrays start at a
//! multiple of 64 bytes and are a multiple of [`BLOCK_BYTES`] long. A loop does what its name says and nothing else:
//! no index arithmetic beyond a counter, no dependence between neighbouring operations that the processor would wait
//! for, and a result that leaves the function, so that the compiler cannot drop the work.

/// Array lengths are multiples of this many bytes.
pub(super) const BLOCK_BYTES: usize = 512;

const BLOCK_FLOATS: usize = BLOCK_BYTES / 4;

/// One build's loops. Lengths are in `f32` elements.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub name: &'static str,
    /// Whether the `_nt` loops really store past the caches.
    pub has_non_temporal: bool,
    read: unsafe fn(*const f32, usize) -> f32,
    copy: [unsafe fn(*mut f32, *const f32, usize); 2],
    triad: [unsafe fn(*mut f32, *const f32, *const f32, usize); 2],
    fma_f32: unsafe fn(u64) -> f32,
    fma_f64: unsafe fn(u64) -> f64,
    /// Floating-point operations in one round of `fma_f32`, and of `fma_f64`.
    flops_per_round: [u64; 2],
    /// By [`Xmm`].
    xmm: [unsafe fn(u64, &[f32; 64]) -> f32; 5],
}

/// A loop of 128-bit instructions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Xmm {
    /// A quarter multiplications, a quarter multiply-adds, half additions.
    Arithmetic,
    /// Half of them loads.
    Mixed,
    /// Multiply-adds.
    Multiply,
    /// Divisions.
    Divide,
    /// Divisions with [`MULTIPLIES_BESIDE`] multiply-adds each, which do not count.
    DivideBeside,
}

/// Multiply-adds beside each division of [`Xmm::DivideBeside`]: enough that they, not the division, take the time.
pub(super) const MULTIPLIES_BESIDE: u64 = 16;

impl Xmm {
    /// Instructions that count, in one round.
    fn per_round(self) -> u64 {
        match self {
            Xmm::Arithmetic | Xmm::Mixed | Xmm::Multiply => 24,
            Xmm::Divide => 4,
            Xmm::DivideBeside => 2,
        }
    }
}

/// What a bandwidth loop does.
#[derive(Clone, Copy)]
pub(super) enum Access {
    Read,
    Copy,
    Triad,
}

impl Kernels {
    /// The build with the widest vectors that this processor has.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("fma") {
                return avx512::KERNELS;
            }
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                return avx2::KERNELS;
            }
        }
        portable::KERNELS
    }

    /// Passes `passes` times over `arrays`, each `floats` long: reads the first, copies the second to the first, or
    /// sets the first to the second plus a multiple of the third.
    ///
    /// # Safety
    ///
    /// As many arrays as the access takes must be valid for reads (the first for writes, unless it is only read) of
    /// `floats` elements, disjoint, aligned to 64 bytes, touched by no other thread, and `floats` a multiple of 128.
    pub(super) unsafe fn pass(&self, access: Access, nt: bool, arrays: [*mut f32; 3], floats: usize, passes: u64) {
        debug_assert!(floats.is_multiple_of(BLOCK_FLOATS));
        let [a, b, c] = arrays;
        let nt = usize::from(nt);
        for _ in 0..passes {
            // SAFETY: the caller vouches for the arrays; `best` chose loops that this processor has.
            unsafe {
                match access {
                    Access::Read => {
                        std::hint::black_box((self.read)(a, floats));
                    }
                    Access::Copy => (self.copy[nt])(a, b, floats),
                    Access::Triad => (self.triad[nt])(a, b, c, floats),
                }
            }
        }
    }

    /// Does `rounds` rounds of independent f32 multiply-adds; returns how many floating-point operations that were.
    pub(super) fn fma_f32(&self, rounds: u64) -> u64 {
        // SAFETY: `best` chose loops that this processor has.
        std::hint::black_box(unsafe { (self.fma_f32)(rounds) });
        rounds * self.flops_per_round[0]
    }

    /// Does `rounds` rounds of independent f64 multiply-adds; returns how many floating-point operations that were.
    pub(super) fn fma_f64(&self, rounds: u64) -> u64 {
        // SAFETY: `best` chose loops that this processor has.
        std::hint::black_box(unsafe { (self.fma_f64)(rounds) });
        rounds * self.flops_per_round[1]
    }

    /// Does `rounds` rounds of independent 128-bit instructions; returns how many of those that count that were.
    pub(super) fn xmm(&self, rounds: u64, which: Xmm) -> u64 {
        #[repr(align(64))]
        struct Data([f32; 64]);
        let data = Data([1.0; 64]);
        let run = self.xmm[which as usize];
        // SAFETY: `best` chose loops that this processor has.
        std::hint::black_box(unsafe { run(rounds, std::hint::black_box(&data.0)) });
        rounds * which.per_round()
    }
}

/// The loops of one vector width, written once for both.
#[cfg(target_arch = "x86_64")]
macro_rules! x86_kernels {
    (
        $module:ident, $features:literal, $bytes:literal, $f32s:ident, $f64s:ident,
        $load:ident, $store:ident, $stream:ident, $set:ident, $zero:ident, $add:ident, $fma:ident,
        $store_f64:ident, $set_f64:ident, $fma_f64:ident
    ) => {
        mod $module {
            use super::{BLOCK_FLOATS, Kernels, xmm};
            use std::arch::x86_64::*;

            const LANES: usize = $bytes / 4;
            const VECTORS: usize = BLOCK_FLOATS / LANES;
            /// Enough independent sums to cover two units with four cycles of latency each.
            const SUMS: usize = 12;
            /// Multiply-adds of each sum in one round.
            const DEPTH: usize = 8;

            pub(super) const KERNELS: Kernels = Kernels {
                name: stringify!($module),
                has_non_temporal: true,
                read,
                copy: [copy::<false>, copy::<true>],
                triad: [triad::<false>, triad::<true>],
                fma_f32,
                fma_f64,
                flops_per_round: [(2 * DEPTH * SUMS * LANES) as u64, (DEPTH * SUMS * LANES) as u64],
                xmm: xmm::LOOPS,
            };

            #[target_feature(enable = $features)]
            unsafe fn read(a: *const f32, floats: usize) -> f32 {
                let mut sums = [$zero(); VECTORS];
                let mut i = 0;
                while i < floats {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: `i + BLOCK_FLOATS <= floats`, the array's length, and it is aligned.
                        *sum = $add(*sum, unsafe { $load(a.add(i + j * LANES)) });
                    }
                    i += BLOCK_FLOATS;
                }
                total(sums)
            }

            #[target_feature(enable = $features)]
            unsafe fn copy<const NT: bool>(a: *mut f32, b: *const f32, floats: usize) {
                let mut i = 0;
                while i < floats {
                    for j in 0..VECTORS {
                        // SAFETY: as in `read`, for both arrays.
                        unsafe { put::<NT>(a.add(i + j * LANES), $load(b.add(i + j * LANES))) };
                    }
                    i += BLOCK_FLOATS;
                }
                if NT {
                    _mm_sfence();
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn triad<const NT: bool>(a: *mut f32, b: *const f32, c: *const f32, floats: usize) {
                let scale = $set(0.5);
                let mut i = 0;
                while i < floats {
                    for j in 0..VECTORS {
                        let at = i + j * LANES;
                        // SAFETY: as in `read`, for all three arrays.
                        unsafe { put::<NT>(a.add(at), $fma($load(c.add(at)), scale, $load(b.add(at)))) };
                    }
                    i += BLOCK_FLOATS;
                }
                if NT {
                    _mm_sfence();
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn put<const NT: bool>(a: *mut f32, value: $f32s) {
                // SAFETY: the caller vouches for the place and its alignment.
                unsafe {
                    if NT {
                        $stream(a.cast(), value)
                    } else {
                        $store(a, value)
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn fma_f32(rounds: u64) -> f32 {
                let (scale, shift) = (std::hint::black_box($set(0.5)), std::hint::black_box($set(0.25)));
                let mut sums = [$zero(); SUMS];
                for _ in 0..rounds {
                    for _ in 0..DEPTH {
                        for sum in &mut sums {
                            *sum = $fma(*sum, scale, shift);
                        }
                    }
                }
                total(sums)
            }

            #[target_feature(enable = $features)]
            unsafe fn fma_f64(rounds: u64) -> f64 {
                let (scale, shift) = (
                    std::hint::black_box($set_f64(0.5)),
                    std::hint::black_box($set_f64(0.25)),
                );
                let mut sums = [shift; SUMS];
                for _ in 0..rounds {
                    for _ in 0..DEPTH {
                        for sum in &mut sums {
                            *sum = $fma_f64(*sum, scale, shift);
                        }
                    }
                }
                let mut lanes = [0.0f64; LANES / 2];
                let mut total = 0.0;
                for sum in sums {
                    // SAFETY: the array is as long as the vector; the store asks for no alignment.
                    unsafe { $store_f64(lanes.as_mut_ptr(), sum) };
                    total += lanes.iter().sum::<f64>();
                }
                total
            }

            /// One lane of the vectors' sum; all lanes are computed. A sum over lanes would take longer than a pass
            /// over half a first-level cache.
            #[inline]
            #[target_feature(enable = $features)]
            fn total<const N: usize>(sums: [$f32s; N]) -> f32 {
                #[repr(align(64))]
                struct Lanes([f32; LANES]);
                let mut lanes = Lanes([0.0; LANES]);
                let sum = sums.into_iter().fold($zero(), |total, sum| $add(total, sum));
                // SAFETY: the array is as long as the vector, and aligned.
                unsafe { $store(lanes.0.as_mut_ptr(), sum) };
                std::hint::black_box(&lanes).0[0]
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
x86_kernels!(
    avx512,
    "avx512f,fma",
    64,
    __m512,
    __m512d,
    _mm512_load_ps,
    _mm512_store_ps,
    _mm512_stream_ps,
    _mm512_set1_ps,
    _mm512_setzero_ps,
    _mm512_add_ps,
    _mm512_fmadd_ps,
    _mm512_storeu_pd,
    _mm512_set1_pd,
    _mm512_fmadd_pd
);

#[cfg(target_arch = "x86_64")]
x86_kernels!(
    avx2,
    "avx2,fma",
    32,
    __m256,
    __m256d,
    _mm256_load_ps,
    _mm256_store_ps,
    _mm256_stream_ps,
    _mm256_set1_ps,
    _mm256_setzero_ps,
    _mm256_add_ps,
    _mm256_fmadd_ps,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd
);

/// 128-bit loops, instruction by instruction, so that nobody fuses or reorders them. The sources are constants, so all
/// are independent but for each multiply-add, which also reads what the multiplication before it wrote.
#[cfg(target_arch = "x86_64")]
mod xmm {
    use std::arch::asm;

    pub(super) const LOOPS: [unsafe fn(u64, &[f32; 64]) -> f32; 5] =
        [arithmetic, mixed, multiply, divide, divide_beside];

    /// A loop over instructions on registers alone: sources in `xmm14` and `xmm15`, results in the others.
    macro_rules! register_loop {
        ($(#[$doc:meta])* $name:ident: $($instruction:literal),+) => {
            $(#[$doc])*
            #[target_feature(enable = "avx,fma")]
            unsafe fn $name(rounds: u64, data: &[f32; 64]) -> f32 {
                if rounds == 0 {
                    return data[0];
                }
                // SAFETY: changes only the registers named, and reads nothing but the two vectors at `data`.
                unsafe {
                    asm!(
                        "vmovups xmm14, [{data}]",
                        "vmovups xmm15, [{data} + 16]",
                        "2:",
                        $($instruction,)+
                        "dec {rounds}",
                        "jnz 2b",
                        data = in(reg) data.as_ptr(),
                        rounds = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(readonly, nostack),
                    );
                }
                data[1]
            }
        };
    }

    register_loop! {
        /// A quarter multiplications, a quarter multiply-adds, half additions: what fused chains are made of.
        arithmetic:
        "vmulps xmm0, xmm14, xmm15", "vaddps xmm1, xmm14, xmm15", "vmulps xmm2, xmm14, xmm15",
        "vaddps xmm3, xmm14, xmm15", "vmulps xmm4, xmm14, xmm15", "vaddps xmm5, xmm14, xmm15",
        "vmulps xmm6, xmm14, xmm15", "vaddps xmm7, xmm14, xmm15", "vmulps xmm8, xmm14, xmm15",
        "vaddps xmm9, xmm14, xmm15", "vmulps xmm10, xmm14, xmm15", "vaddps xmm11, xmm14, xmm15",
        "vfmadd213ps xmm0, xmm14, xmm15", "vaddps xmm1, xmm14, xmm15", "vfmadd213ps xmm2, xmm14, xmm15",
        "vaddps xmm3, xmm14, xmm15", "vfmadd213ps xmm4, xmm14, xmm15", "vaddps xmm5, xmm14, xmm15",
        "vfmadd213ps xmm6, xmm14, xmm15", "vaddps xmm7, xmm14, xmm15", "vfmadd213ps xmm8, xmm14, xmm15",
        "vaddps xmm9, xmm14, xmm15", "vfmadd213ps xmm10, xmm14, xmm15", "vaddps xmm11, xmm14, xmm15"
    }

    register_loop! {
        /// Multiply-adds alone.
        multiply:
        "vfmadd213ps xmm0, xmm14, xmm15", "vfmadd213ps xmm1, xmm14, xmm15", "vfmadd213ps xmm2, xmm14, xmm15",
        "vfmadd213ps xmm3, xmm14, xmm15", "vfmadd213ps xmm4, xmm14, xmm15", "vfmadd213ps xmm5, xmm14, xmm15",
        "vfmadd213ps xmm6, xmm14, xmm15", "vfmadd213ps xmm7, xmm14, xmm15", "vfmadd213ps xmm8, xmm14, xmm15",
        "vfmadd213ps xmm9, xmm14, xmm15", "vfmadd213ps xmm10, xmm14, xmm15", "vfmadd213ps xmm11, xmm14, xmm15",
        "vfmadd213ps xmm0, xmm14, xmm15", "vfmadd213ps xmm1, xmm14, xmm15", "vfmadd213ps xmm2, xmm14, xmm15",
        "vfmadd213ps xmm3, xmm14, xmm15", "vfmadd213ps xmm4, xmm14, xmm15", "vfmadd213ps xmm5, xmm14, xmm15",
        "vfmadd213ps xmm6, xmm14, xmm15", "vfmadd213ps xmm7, xmm14, xmm15", "vfmadd213ps xmm8, xmm14, xmm15",
        "vfmadd213ps xmm9, xmm14, xmm15", "vfmadd213ps xmm10, xmm14, xmm15", "vfmadd213ps xmm11, xmm14, xmm15"
    }

    register_loop! {
        /// Divisions alone.
        divide:
        "vdivps xmm0, xmm14, xmm15", "vdivps xmm1, xmm14, xmm15", "vdivps xmm2, xmm14, xmm15",
        "vdivps xmm3, xmm14, xmm15"
    }

    register_loop! {
        /// A division after every sixteen multiply-adds.
        divide_beside:
        "vfmadd213ps xmm0, xmm14, xmm15", "vfmadd213ps xmm1, xmm14, xmm15", "vfmadd213ps xmm2, xmm14, xmm15",
        "vfmadd213ps xmm3, xmm14, xmm15", "vfmadd213ps xmm4, xmm14, xmm15", "vfmadd213ps xmm5, xmm14, xmm15",
        "vfmadd213ps xmm6, xmm14, xmm15", "vfmadd213ps xmm7, xmm14, xmm15", "vdivps xmm12, xmm14, xmm15",
        "vfmadd213ps xmm8, xmm14, xmm15", "vfmadd213ps xmm9, xmm14, xmm15", "vfmadd213ps xmm10, xmm14, xmm15",
        "vfmadd213ps xmm11, xmm14, xmm15", "vfmadd213ps xmm0, xmm14, xmm15", "vfmadd213ps xmm1, xmm14, xmm15",
        "vfmadd213ps xmm2, xmm14, xmm15", "vfmadd213ps xmm3, xmm14, xmm15", "vfmadd213ps xmm4, xmm14, xmm15",
        "vfmadd213ps xmm5, xmm14, xmm15", "vfmadd213ps xmm6, xmm14, xmm15", "vfmadd213ps xmm7, xmm14, xmm15",
        "vfmadd213ps xmm8, xmm14, xmm15", "vfmadd213ps xmm9, xmm14, xmm15", "vfmadd213ps xmm10, xmm14, xmm15",
        "vfmadd213ps xmm11, xmm14, xmm15", "vdivps xmm13, xmm14, xmm15", "vfmadd213ps xmm0, xmm14, xmm15",
        "vfmadd213ps xmm1, xmm14, xmm15", "vfmadd213ps xmm2, xmm14, xmm15", "vfmadd213ps xmm3, xmm14, xmm15",
        "vfmadd213ps xmm4, xmm14, xmm15", "vfmadd213ps xmm5, xmm14, xmm15", "vfmadd213ps xmm6, xmm14, xmm15",
        "vfmadd213ps xmm7, xmm14, xmm15"
    }
    /// Half loads, half arithmetic (a multiplication or an addition of what was loaded).
    #[target_feature(enable = "avx,fma")]
    pub(super) unsafe fn mixed(rounds: u64, data: &[f32; 64]) -> f32 {
        if rounds == 0 {
            return data[0];
        }
        // SAFETY: changes only the registers named, and reads nothing but the 192 bytes at `data`.
        unsafe {
            asm!(
                "vmovups xmm15, [{data}]",
                "2:",
                "vmovups xmm0, [{data}]", "vmulps xmm6, xmm0, xmm15",
                "vmovups xmm1, [{data} + 16]", "vaddps xmm7, xmm1, xmm15",
                "vmovups xmm2, [{data} + 32]", "vmulps xmm8, xmm2, xmm15",
                "vmovups xmm3, [{data} + 48]", "vaddps xmm9, xmm3, xmm15",
                "vmovups xmm4, [{data} + 64]", "vmulps xmm10, xmm4, xmm15",
                "vmovups xmm5, [{data} + 80]", "vaddps xmm11, xmm5, xmm15",
                "vmovups xmm0, [{data} + 96]", "vmulps xmm6, xmm0, xmm15",
                "vmovups xmm1, [{data} + 112]", "vaddps xmm7, xmm1, xmm15",
                "vmovups xmm2, [{data} + 128]", "vmulps xmm8, xmm2, xmm15",
                "vmovups xmm3, [{data} + 144]", "vaddps xmm9, xmm3, xmm15",
                "vmovups xmm4, [{data} + 160]", "vmulps xmm10, xmm4, xmm15",
                "vmovups xmm5, [{data} + 176]", "vaddps xmm11, xmm5, xmm15",
                "dec {rounds}",
                "jnz 2b",
                data = in(reg) data.as_ptr(),
                rounds = inout(reg) rounds => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm15") _,
                options(readonly, nostack),
            );
        }
        data[1]
    }
}

/// Plain loops that the compiler vectorizes as far as the target's baseline allows. No stores past the caches, and a
/// multiply-add is a multiplication and an addition.
mod portable {
    use super::{BLOCK_FLOATS, Kernels, MULTIPLIES_BESIDE};
    use std::hint::black_box;
    use std::slice::{from_raw_parts, from_raw_parts_mut};

    const SUMS: usize = 32;
    const DEPTH: usize = 8;
    const XMM: usize = 6;

    pub(super) const KERNELS: Kernels = Kernels {
        name: "portable",
        has_non_temporal: false,
        read,
        copy: [copy, copy],
        triad: [triad, triad],
        fma_f32,
        fma_f64,
        flops_per_round: [(2 * DEPTH * SUMS) as u64, (2 * DEPTH * SUMS) as u64],
        xmm: [xmm_arithmetic, xmm_mixed, xmm_multiply, xmm_divide, xmm_divide_beside],
    };

    unsafe fn read(a: *const f32, floats: usize) -> f32 {
        // SAFETY: the caller vouches for the array.
        let a = unsafe { from_raw_parts(a, floats) };
        let mut sums = [0.0f32; BLOCK_FLOATS / 4];
        for block in a.chunks_exact(sums.len()) {
            for (sum, value) in sums.iter_mut().zip(block) {
                *sum += value;
            }
        }
        sums.iter().sum()
    }

    unsafe fn copy(a: *mut f32, b: *const f32, floats: usize) {
        // SAFETY: the caller vouches for the arrays.
        let (a, b) = unsafe { (from_raw_parts_mut(a, floats), from_raw_parts(b, floats)) };
        // Not `copy_from_slice`: that one may store past the caches.
        for (a, b) in a.iter_mut().zip(b) {
            *a = -*b;
        }
    }

    unsafe fn triad(a: *mut f32, b: *const f32, c: *const f32, floats: usize) {
        // SAFETY: the caller vouches for the arrays.
        let (a, b, c) = unsafe {
            (
                from_raw_parts_mut(a, floats),
                from_raw_parts(b, floats),
                from_raw_parts(c, floats),
            )
        };
        for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
            *a = b + 0.5 * c;
        }
    }

    unsafe fn fma_f32(rounds: u64) -> f32 {
        let (scale, shift) = (black_box(0.5f32), black_box(0.25f32));
        let mut sums = [0.0f32; SUMS];
        for _ in 0..rounds {
            for _ in 0..DEPTH {
                for sum in &mut sums {
                    *sum = *sum * scale + shift;
                }
            }
        }
        sums.iter().sum()
    }

    unsafe fn fma_f64(rounds: u64) -> f64 {
        let (scale, shift) = (black_box(0.5f64), black_box(0.25f64));
        let mut sums = [0.0f64; SUMS];
        for _ in 0..rounds {
            for _ in 0..DEPTH {
                for sum in &mut sums {
                    *sum = *sum * scale + shift;
                }
            }
        }
        sums.iter().sum()
    }

    /// Six vectors of four lanes; each round multiplies and adds twice.
    unsafe fn xmm_arithmetic(rounds: u64, data: &[f32; 64]) -> f32 {
        let (scale, shift) = (data[0], data[1]);
        let mut sums = [[0.0f32; 4]; XMM];
        for _ in 0..rounds {
            for _ in 0..2 {
                for lane in sums.as_flattened_mut() {
                    *lane = *lane * scale + shift;
                }
            }
        }
        sums.as_flattened().iter().sum()
    }

    /// Six vectors of four lanes; each round multiplies four times.
    unsafe fn xmm_multiply(rounds: u64, data: &[f32; 64]) -> f32 {
        let scale = black_box(data[0]);
        let mut products = [[0.5f32; 4]; XMM];
        for _ in 0..rounds {
            for _ in 0..4 {
                for lane in products.as_flattened_mut() {
                    *lane *= scale;
                }
            }
        }
        products.as_flattened().iter().sum()
    }

    /// Four vectors of four lanes; each round divides once.
    unsafe fn xmm_divide(rounds: u64, data: &[f32; 64]) -> f32 {
        let scale = black_box(data[0]);
        let mut quotients = [[0.5f32; 4]; 4];
        for _ in 0..rounds {
            for lane in quotients.as_flattened_mut() {
                *lane /= scale;
            }
        }
        quotients.as_flattened().iter().sum()
    }

    /// Eight vectors of four lanes that are multiplied four times a round, two that are divided once.
    unsafe fn xmm_divide_beside(rounds: u64, data: &[f32; 64]) -> f32 {
        let scale = black_box(data[0]);
        let mut products = [[0.5f32; 4]; 8];
        let mut quotients = [[0.5f32; 4]; 2];
        for _ in 0..rounds {
            for _ in 0..MULTIPLIES_BESIDE * 2 / 8 {
                for lane in products.as_flattened_mut() {
                    *lane *= scale;
                }
            }
            for lane in quotients.as_flattened_mut() {
                *lane /= scale;
            }
        }
        products.as_flattened().iter().sum::<f32>() + quotients.as_flattened().iter().sum::<f32>()
    }

    /// Six vectors of four lanes; each round loads and adds twice.
    unsafe fn xmm_mixed(rounds: u64, data: &[f32; 64]) -> f32 {
        let mut sums = [[0.0f32; 4]; XMM];
        for _ in 0..rounds {
            let data = black_box(data);
            for half in 0..2 {
                for (lane, value) in sums.as_flattened_mut().iter_mut().zip(&data[half * 4 * XMM..]) {
                    *lane += value;
                }
            }
        }
        sums.as_flattened().iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AlignedBuffer;

    fn builds() -> Vec<Kernels> {
        let mut all = vec![portable::KERNELS];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                all.push(avx2::KERNELS);
            }
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("fma") {
                all.push(avx512::KERNELS);
            }
        }
        all
    }

    #[test]
    fn every_build_touches_every_element_and_no_other() {
        let floats = 3 * BLOCK_FLOATS;
        for kernels in builds() {
            for nt in [false, true] {
                let mut buffers: Vec<_> = (0..3)
                    .map(|_| AlignedBuffer::zeroed(4 * floats + 64).unwrap())
                    .collect();
                let arrays: [*mut f32; 3] = std::array::from_fn(|i| buffers[i].as_mut_ptr().cast());
                for i in 0..floats + 16 {
                    // SAFETY: within the buffers.
                    unsafe {
                        *arrays[1].add(i) = i as f32 + 1.0;
                        *arrays[2].add(i) = 2.0;
                    }
                }
                for (access, expected) in [(Access::Copy, 0.0), (Access::Triad, 1.0)] {
                    // SAFETY: three arrays of more than `floats` elements, aligned, ours alone.
                    unsafe { kernels.pass(access, nt, arrays, floats, 2) };
                    for i in 0..floats + 16 {
                        // SAFETY: within the buffer.
                        let value = unsafe { *arrays[0].add(i) };
                        let wanted = if i < floats { i as f32 + 1.0 + expected } else { 0.0 };
                        // The portable copy changes the sign.
                        assert_eq!(value.abs(), wanted, "{} nt {nt} at {i}", kernels.name);
                    }
                }
                // SAFETY: as above; the third array holds twos.
                let sum = unsafe { (kernels.read)(arrays[2], floats) };
                // A vector build gives the sum of one lane.
                let lanes = match kernels.name {
                    "avx512" => 16.0,
                    "avx2" => 8.0,
                    _ => 1.0,
                };
                assert_eq!(sum * lanes, (floats * 2) as f32, "{}", kernels.name);
            }
        }
    }

    #[test]
    fn arithmetic_loops_count_their_work() {
        for kernels in builds() {
            assert_eq!(kernels.fma_f32(0), 0);
            assert_eq!(kernels.fma_f32(10), 10 * kernels.flops_per_round[0]);
            assert_eq!(kernels.fma_f64(3), 3 * kernels.flops_per_round[1]);
            for (which, each) in [
                (Xmm::Arithmetic, 24),
                (Xmm::Mixed, 24),
                (Xmm::Multiply, 24),
                (Xmm::Divide, 4),
                (Xmm::DivideBeside, 2),
            ] {
                assert_eq!(kernels.xmm(0, which), 0);
                assert_eq!(kernels.xmm(1000, which), 1000 * each);
            }
            // SAFETY: `builds` chose what this processor has. Each sum converges to 0.5.
            let sum = unsafe { (kernels.fma_f32)(10) };
            let sums = if kernels.name == "portable" { 32.0 } else { 12.0 };
            assert!((sum / sums - 0.5).abs() < 1e-3, "{} {sum}", kernels.name);
        }
    }
}
