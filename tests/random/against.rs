//! What samples are held to: distribution functions in closed form, and their statistics.

use tlc::{DType, Tensor};

/// All elements, computed.
pub fn values(t: &Tensor) -> Vec<f64> {
    let host = t.cast(DType::F64).eval().unwrap_or_else(|e| panic!("{e}")).to_host();
    host.as_slice::<f64>().expect("f64").to_vec()
}

/// The normal distribution function.
pub fn normal_below(x: f64) -> f64 {
    libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) / 2.0
}

/// How far a sample's distribution function is from the one given, at most, times the root of its size: the statistic of Kolmogorov and Smirnov.
/// A sample that follows the distribution has more than 1.95 in one of 1000 cases.
pub fn kolmogorov(sample: &[f64], below: impl Fn(f64) -> f64) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = |(i, x): (usize, &f64)| {
        let at = below(*x);
        (at - i as f64 / n).abs().max((at - (i + 1) as f64 / n).abs())
    };
    sorted.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

/// Holds a sample to a distribution function.
pub fn follows(what: &str, sample: &[f64], below: impl Fn(f64) -> f64) {
    let found = kolmogorov(sample, below);
    assert!(found < 1.95, "{what}: {found} root-n distances from the distribution");
}

/// Mean and variance.
pub fn moments(v: &[f64]) -> (f64, f64) {
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    let variance = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64;
    (mean, variance)
}

/// Holds mean and deviation of a sample to within four standard errors. `kurtosis` is the fourth central moment over the
/// squared variance: 3 of a normal distribution, 9/5 of a uniform one.
pub fn has_moments(what: &str, sample: &[f64], mean: f64, std: f64, kurtosis: f64) {
    let n = sample.len() as f64;
    let (found, variance) = moments(sample);
    assert!(
        (found - mean).abs() <= 4.0 * std / n.sqrt(),
        "{what}: mean {found}, expected {mean}"
    );
    // The standard error of a variance is σ² √((kurtosis - 1) / n), that of a deviation half of it over σ.
    let error = std * ((kurtosis - 1.0) / n).sqrt() / 2.0;
    let found = variance.sqrt();
    assert!(
        (found - std).abs() <= 4.0 * error,
        "{what}: deviation {found}, expected {std}"
    );
}

/// The correlation of two samples of equal size.
pub fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let ((ma, va), (mb, vb)) = (moments(a), moments(b));
    let both = a.iter().zip(b).map(|(x, y)| (x - ma) * (y - mb)).sum::<f64>() / a.len() as f64;
    both / (va * vb).sqrt()
}
