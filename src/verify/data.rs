//! Made-up inputs: functions of an input's name and a seed, so that a graph and a number say what a case is.

use tlc_ir::rng::Rng;
use tlc_ir::tensor::TensorError;
use tlc_ir::{DType, HostTensor, Scalar};

/// Random elements: uniform in [-1, 1) for floats, 0 to 9 for integers, either for bool.
///
/// # Errors
/// If the tensor cannot be allocated.
pub fn random(name: &str, dtype: DType, shape: &[usize], seed: u64) -> Result<HostTensor, TensorError> {
    let mut tensor = HostTensor::zeros(dtype, shape)?;
    let start = name.bytes().fold(seed, |s, b| Rng::new(s ^ u64::from(b)).bits());
    let mut rng = Rng::new(start);
    let unit = |rng: &mut Rng| rng.unit() * 2.0 - 1.0;
    if let Some(all) = tensor.as_mut_slice::<f32>() {
        // 24 bits, so that the largest value stays below 1.
        all.iter_mut()
            .for_each(|x| *x = (rng.bits() >> 40) as f32 * (2.0 / (1u32 << 24) as f32) - 1.0);
    } else if let Some(all) = tensor.as_mut_slice::<f64>() {
        all.iter_mut().for_each(|x| *x = unit(&mut rng));
    } else {
        let value = |rng: &mut Rng| match dtype {
            DType::Bool => Scalar::from_bool(rng.bits() & 1 == 1),
            d if d.is_any_float() => Scalar::from_f64(d, unit(rng)),
            d => Scalar::from_i64(d, (rng.bits() % 10) as i64),
        };
        for i in 0..tensor.len() {
            tensor.set(i, value(&mut rng));
        }
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_data_depends_on_name_and_seed_only() {
        let made = |name, seed| random(name, DType::F32, &[100], seed).unwrap();
        assert_eq!(made("x", 1), made("x", 1));
        assert_ne!(made("x", 1), made("x", 2));
        assert_ne!(made("x", 1), made("y", 1));
        let all = made("x", 1);
        assert!(all.as_slice::<f32>().unwrap().iter().all(|v| (-1.0..1.0).contains(v)));
    }
}
