//! The normal distribution between two bounds.

use std::f64::consts::FRAC_1_SQRT_2;

use tlc_ir::DType;

use crate::graph::Tensor;
use crate::graph::scope::{Step, refuse_expecting};

/// `P(X <= x)` of a normal number, with a small relative error far below zero too.
fn below(x: f64) -> f64 {
    libm::erfc(-x * FRAC_1_SQRT_2) / 2.0
}

/// A normal distribution of mean 0 and variance 1, of which only what is between two bounds is left.
///
/// Invariant: `lo < hi`, and the probability between them is not 0. Bounds that are both above zero are held mirrored, because
/// probabilities close to 0 have more digits than those close to 1.
pub(super) struct Truncated {
    lo: f64,
    hi: f64,
    mirrored: bool,
}

impl Truncated {
    pub(super) fn between(lo: f64, hi: f64) -> Step<Truncated> {
        // A NaN is in no order.
        if lo.partial_cmp(&hi) != Some(std::cmp::Ordering::Less) {
            return refuse_expecting(format!("the bounds {lo} and {hi}"), "the lower one first");
        }
        let (lower, upper, mirrored) = if lo > 0.0 { (-hi, -lo, true) } else { (lo, hi, false) };
        if below(upper) - below(lower) < f64::MIN_POSITIVE {
            return refuse_expecting(
                format!("the bounds {lo} and {hi}, between which no normal number is"),
                "one of them at most 37 deviations off",
            );
        }
        Ok(Truncated {
            lo: lower,
            hi: upper,
            mirrored,
        })
    }

    /// The dtype to compute in, at least `wide`: f32 has no numbers for the probabilities of a tail far out.
    pub(super) fn dtype(&self, wide: DType) -> DType {
        match below(self.hi) < 1e-30 {
            true => DType::F64,
            false => wide,
        }
    }

    /// What is above a part `u` of the distribution, of f32 or f64 and in (0, 1].
    pub(super) fn quantile(&self, u: &Tensor) -> Step {
        let (lo, hi) = (below(self.lo), below(self.hi));
        let (least, most) = match u.dtype() {
            DType::F64 => (f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0),
            _ => (f32::MIN_POSITIVE.into(), 1.0 - f64::from(f32::EPSILON) / 2.0),
        };
        let p = (u * (hi - lo) + lo).clamp(least, most);
        let x = normal_quantile(&p).clamp(self.lo, self.hi);
        Ok(if self.mirrored { -x } else { x })
    }
}

/// Which number a normal one is below with probability `p`: algorithm AS 241 (Wichura, "The percentage points of the normal
/// distribution", Applied Statistics 37, 1988), whose relative error is about 1e-16.
fn normal_quantile(p: &Tensor) -> Tensor {
    const CENTRE: [[f64; 8]; 2] = [
        [
            3.387_132_872_796_366_5,
            133.141_667_891_784_38,
            1_971.590_950_306_551_3,
            13_731.693_765_509_46,
            45_921.953_931_549_87,
            67_265.770_927_008_7,
            33_430.575_583_588_13,
            2_509.080_928_730_122_7,
        ],
        [
            1.0,
            42.313_330_701_600_91,
            687.187_007_492_057_9,
            5_394.196_021_424_751,
            21_213.794_301_586_597,
            39_307.895_800_092_71,
            28_729.085_735_721_943,
            5_226.495_278_852_854,
        ],
    ];
    const NEAR: [[f64; 8]; 2] = [
        [
            1.423_437_110_749_683_5,
            4.630_337_846_156_546,
            5.769_497_221_460_691,
            3.647_848_324_763_204_5,
            1.270_458_252_452_368_4,
            0.241_780_725_177_450_6,
            0.022_723_844_989_269_184,
            0.000_774_545_014_278_341_4,
        ],
        [
            1.0,
            2.053_191_626_637_759,
            1.676_384_830_183_803_8,
            0.689_767_334_985_1,
            0.148_103_976_427_480_08,
            0.015_198_666_563_616_457,
            0.000_547_593_808_499_534_5,
            1.050_750_071_644_416_9e-9,
        ],
    ];
    const FAR: [[f64; 8]; 2] = [
        [
            6.657_904_643_501_103,
            5.463_784_911_164_114,
            1.784_826_539_917_291_3,
            0.296_560_571_828_504_87,
            0.026_532_189_526_576_124,
            0.001_242_660_947_388_078_4,
            2.711_555_568_743_487_6e-5,
            2.010_334_399_292_288_1e-7,
        ],
        [
            1.0,
            0.599_832_206_555_888,
            0.136_929_880_922_735_8,
            0.014_875_361_290_850_615,
            0.000_786_869_131_145_613_3,
            1.846_318_317_510_054_8e-5,
            1.421_511_758_316_446e-7,
            2.044_263_103_389_939_7e-15,
        ],
    ];
    let ratio = |r: &Tensor, of: &[[f64; 8]; 2]| {
        let polynomial = |c: &[f64; 8]| c[..6].iter().rev().fold(r * c[7] + c[6], |sum, k| sum * r + *k);
        polynomial(&of[0]) / polynomial(&of[1])
    };
    let q = p - 0.5;
    let centre = &q * ratio(&(0.180625 - q.square()), &CENTRE);
    let r = (-p.minimum(1.0 - p).log()).sqrt();
    let tail = r.le(5.0).select(ratio(&(&r - 1.6), &NEAR), ratio(&(&r - 5.0), &FAR));
    let tail = q.lt(0.0).select(-&tail, &tail);
    q.abs().le(0.425).select(centre, tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    #[test]
    fn quantiles_are_those_of_60_digits() {
        // Roots of `ln(erfc(-x / √2) / 2) = ln(p)` by mpmath with 60 digits, rounded to f64.
        let known = [
            (1.0e-300, -37.047_096_299_361_2),
            (1.0e-100, -21.273_453_560_965_326),
            (1.0e-20, -9.262_340_089_798_407),
            (1.0e-11, -6.706_023_155_495_136),
            (1.4e-11, -6.656_723_091_518_184),
            (1.0e-10, -6.361_340_902_404_057),
            (1.0e-5, -4.264_890_793_922_825),
            (0.001, -3.090_232_306_167_813_6),
            (0.02425, -1.972_961_051_311_885),
            (0.075, -1.439_531_470_938_456),
            (0.1, -1.281_551_565_544_600_4),
            (0.3, -0.524_400_512_708_040_8),
            (0.5, 0.0),
            (0.7, 0.524_400_512_708_040_7),
            (0.925, 1.439_531_470_938_456_1),
            (0.999, 3.090_232_306_167_813),
            (0.999_999_999_999_090_5, 7.047_700_256_664_409),
        ];
        let g = Graph::default();
        for (p, x) in known {
            let eval = |dtype| {
                let found = normal_quantile(&g.scalar(p, dtype)).cast(DType::F64).eval();
                found.expect("it compiles").as_scalar::<f64>().expect("a number")
            };
            let found = eval(DType::F64);
            assert!((found - x).abs() <= 4e-16 * x.abs(), "{p}: {found}, expected {x}");
            // What f32 can say of p: it has no smaller numbers, and ends 2^-24 below 1.
            if p > 1e-37 && p < 0.999 {
                let found = eval(DType::F32);
                assert!(
                    (found - x).abs() <= 2e-6 * x.abs().max(0.1),
                    "{p} in f32: {found}, expected {x}"
                );
            }
        }
    }

    #[test]
    fn a_tail_that_f32_has_no_probabilities_for_is_computed_in_f64() {
        let dtype = |lo, hi| Truncated::between(lo, hi).map(|t| t.dtype(DType::F32)).ok();
        assert_eq!(dtype(-20.0, -15.0), Some(DType::F64));
        assert_eq!(dtype(15.0, f64::INFINITY), Some(DType::F64));
        assert_eq!(dtype(-20.0, -5.0), Some(DType::F32));
        assert_eq!(dtype(37.0, 38.0), Some(DType::F64));
        assert_eq!(dtype(38.0, 39.0), None);
        assert_eq!(dtype(f64::NAN, 1.0), None);
    }
}
