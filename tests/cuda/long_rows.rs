//! Rows that do not stay on the chip of a GPU: what waits for another result of its row comes in pieces, whatever the elements are.

use tlc_ir::DType;

/// The functions of rows, as graphs: a softmax of what is scaled and masked, with the logarithm of its sum; its logarithm, with the largest
/// element and where that is; a norm of a sum with weights; a norm by the squares alone, beside a variance.
pub fn functions(dtype: DType, rows: &str, n: usize) -> Vec<String> {
    let wide = if dtype == DType::F64 { "f64" } else { "f32" };
    let (x, all) = (dtype.name(), format!("[{rows}, {n}]"));
    let condition = match rows.parse::<usize>() {
        Ok(_) => "",
        Err(_) => " where r in 0..=1000000",
    };
    let spread = |name: &str, of: &str| {
        format!(
            "%{name}_1 = reshape {of} : {wide}[{rows}, 1]
             %{name} = expand %{name}_1 : {wide}{all}"
        )
    };
    let constant = |name: &str, value: &str, shape: &str| {
        format!(
            "%{name}_c = const {value} : {wide}[]
             %{name} = expand %{name}_c : {wide}{shape}"
        )
    };
    let row = format!("[{rows}]");
    let masked = format!(
        "graph @masked(%g: {x}{all}, %b: {x}[{n}]){condition} {{
           %x0 = convert %g : {wide}{all}
           {}
           %x1 = mul %x0, %scale : {wide}{all}
           %b1 = convert %b : {wide}[{n}]
           %b2 = expand %b1 : {wide}{all}
           %x = add %x1, %b2 : {wide}{all}
           %m = reduce max %x {{axes=[1]}} : {wide}{row}
           {}
           {}
           {}
           %size = abs %m : {wide}{row}
           %is = eq %size, %inf : bool{row}
           %shift = select %is, %zero, %m : {wide}{row}
           {}
           {}
           %d = sub %x, %me : {wide}{all}
           %e = exp %d : {wide}{all}
           %s = reduce add %e {{axes=[1]}} : {wide}{row}
           {}
           %q = div %e, %se : {wide}{all}
           %o = convert %q : {x}{all}
           %dl = sub %x, %shifts : {wide}{all}
           %el = exp %dl : {wide}{all}
           %sl = reduce add %el {{axes=[1]}} : {wide}{row}
           %l = log %sl : {wide}{row}
           %lse = add %l, %shift : {wide}{row}
           return %o, %lse
         }}",
        constant("scale", "0.125", &all),
        constant("inf", "inf", &row),
        constant("zero", "0.0", &row),
        "",
        spread("me", "%m"),
        spread("shifts", "%shift"),
        spread("se", "%s"),
    );
    let logarithm = format!(
        "graph @logarithm(%g: {x}{all}){condition} {{
           %x = convert %g : {wide}{all}
           %m = reduce max %x {{axes=[1]}} : {wide}{row}
           %p = reduce argmax %x {{axes=[1]}} : i64{row}
           {}
           %d = sub %x, %me : {wide}{all}
           %e = exp %d : {wide}{all}
           %s = reduce add %e {{axes=[1]}} : {wide}{row}
           %l = log %s : {wide}{row}
           {}
           %q = sub %d, %le : {wide}{all}
           %o = convert %q : {x}{all}
           return %o, %m, %p
         }}",
        spread("me", "%m"),
        spread("le", "%l"),
    );
    let norm = format!(
        "graph @norm(%g: {x}{all}, %h: {x}{all}, %w: {x}[{n}]){condition} {{
           %a = add %g, %h : {x}{all}
           %x = convert %a : {wide}{all}
           {}
           %s = reduce add %x {{axes=[1]}} : {wide}{row}
           %m = div %s, %n : {wide}{row}
           {}
           %d = sub %x, %me : {wide}{all}
           %d2 = mul %d, %d : {wide}{all}
           %v = reduce add %d2 {{axes=[1]}} : {wide}{row}
           %u = div %v, %n : {wide}{row}
           {}
           %t = add %u, %eps : {wide}{row}
           %k = rsqrt %t : {wide}{row}
           {}
           %y = mul %d, %ke : {wide}{all}
           %w1 = convert %w : {wide}[{n}]
           %w2 = expand %w1 : {wide}{all}
           %z = mul %y, %w2 : {wide}{all}
           %o = convert %z : {x}{all}
           return %o, %a
         }}",
        constant("n", &format!("{n}.0"), &row),
        spread("me", "%m"),
        constant("eps", "1e-5", &row),
        spread("ke", "%k"),
    );
    let squares = format!(
        "graph @squares(%g: {x}{all}){condition} {{
           %x = convert %g : {wide}{all}
           {}
           %x2 = mul %x, %x : {wide}{all}
           %q = reduce add %x2 {{axes=[1]}} : {wide}{row}
           %k = rsqrt %q : {wide}{row}
           {}
           %y = mul %x, %ke : {wide}{all}
           %o = convert %y : {x}{all}
           %s = reduce add %x {{axes=[1]}} : {wide}{row}
           %m = div %s, %n : {wide}{row}
           {}
           %d = sub %x, %me : {wide}{all}
           %d2 = mul %d, %d : {wide}{all}
           %v = reduce add %d2 {{axes=[1]}} : {wide}{row}
           return %o, %v
         }}",
        constant("n", &format!("{n}.0"), &row),
        spread("ke", "%k"),
        spread("me", "%m"),
    );
    vec![masked, logarithm, norm, squares]
}

mod children {
    use std::hash::{DefaultHasher, Hasher};

    use tlc_ir::rng::Rng;

    use super::*;
    use crate::rows::children::{check, check_of};

    /// Lengths at the edges of what registers and shared memory hold, and beyond.
    const LENGTHS: [usize; 12] = [
        4096, 4097, 12_288, 12_289, 16_385, 57_999, 58_112, 60_000, 65_536, 65_552, 100_000, 131_073,
    ];
    const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

    /// Few rows, of random kinds; each length in f32 and another type.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn few() {
        let mut bits = DefaultHasher::new();
        let mut rng = Rng::new(7);
        for (k, n) in LENGTHS.into_iter().enumerate() {
            for dtype in [DType::F32, FLOATS[1 + k % 3]] {
                let rows = 1 + rng.below(5);
                let all = functions(dtype, &rows.to_string(), n);
                check(&all[rng.below(all.len())], rows, &mut bits);
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Rows as many as a device of one multiprocessor needs.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn many() {
        let mut bits = DefaultHasher::new();
        for (k, n) in [60_000, 70_001, 131_073].into_iter().enumerate() {
            for (dtype, text) in [FLOATS[0], FLOATS[1 + k % 3]]
                .into_iter()
                .flat_map(|d| functions(d, "r", n).into_iter().map(move |t| (d, t)))
            {
                if dtype == DType::F32 || text.len() % 2 == k % 2 {
                    check(&text, 2, &mut bits);
                }
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Rows that are nothing, or nearly nothing, but minus infinity, from one piece on or but for one piece; the same with infinity and NaN.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_infinities() {
        let mut bits = DefaultHasher::new();
        let (none, much, nan) = (f64::NEG_INFINITY, f64::INFINITY, f64::NAN);
        for n in [65_536, 70_001] {
            let element = |row: usize, k: usize, n: usize| match row {
                0 => none,
                1 => [-0.5, none][usize::from(k < n / 2)],
                // The largest elements far below zero, others without any.
                2 => [none, -300.0][usize::from(k == n - 1)],
                3 => [none, much][usize::from(k == 5)],
                4 => [none, nan][usize::from(k == n / 2)],
                5 => much,
                6 => -0.0,
                _ => [1e30, -1e30][k % 2],
            };
            for text in functions(DType::F32, "r", n) {
                check_of(&text, 8, &element, &mut bits);
            }
        }
        println!("bits {:016x}", bits.finish());
    }
}
