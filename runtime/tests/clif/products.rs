//! Naive nests around sums of products, ways to schedule them, and the comparison of what they compute.

use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::{Report, verify};
use tlc_ir::kernel::{Kernel, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Precision, Scalar, ScalarOp, VarId};
use tlc_passes::directive::{Directive, DirectiveRefusal};
use tlc_passes::schedule::apply;
use tlc_passes::tree::loop_body;

use crate::contract::{agreed, arguments, parse, tensors};

pub fn done(kernel: &mut Kernel, directive: Directive) -> Vec<VarId> {
    apply(kernel, &directive).unwrap_or_else(|e| panic!("{directive}: {e}\n{kernel}"))
}

/// Why a directive does not apply.
pub fn refusal(kernel: &Kernel, directive: Directive) -> DirectiveRefusal {
    let mut after = kernel.clone();
    let refusal = apply(&mut after, &directive).expect_err(&format!("{directive}\n{kernel}"));
    assert_eq!(after, *kernel, "{directive} refuses, but changes the kernel");
    refusal
}

/// How a nest over rows, columns and a sum, the loops before the last three variables `i0`, `i1` and `i2`, is scheduled.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows and columns of a tile.
    pub tile: [i64; 2],
    pub scope: Scope,
    /// Steps of the sum that are packed together, if it is cut.
    pub steps: Option<i64>,
    /// Steps of the sum that are one block.
    pub block: i64,
    /// Whether each operand is packed, turned.
    pub packed: [Option<bool>; 2],
    pub padded: bool,
}

impl Plan {
    pub fn of(rows: i64, columns: i64) -> Plan {
        Plan {
            tile: [rows, columns],
            scope: Scope::Cache,
            steps: None,
            block: 4,
            packed: [None; 2],
            padded: false,
        }
    }

    pub fn apply(&self, kernel: &Kernel, [outer, inner, sum]: [VarId; 3]) -> Kernel {
        let mut k = kernel.clone();
        let [rows, columns] = self.tile;
        let rows_of = done(
            &mut k,
            Directive::Block {
                var: outer,
                factor: rows,
            },
        );
        let columns_of = done(
            &mut k,
            Directive::Block {
                var: inner,
                factor: columns,
            },
        );
        done(
            &mut k,
            Directive::Interchange {
                outer: rows_of[1],
                inner: columns_of[0],
            },
        );
        self.apply_inside(&k, [rows_of[1], columns_of[1], sum])
    }

    /// As [`Self::apply`], for loops that are no longer than a tile.
    pub fn apply_inside(&self, kernel: &Kernel, [outer, inner, sum]: [VarId; 3]) -> Kernel {
        let mut k = kernel.clone();
        let [rows, columns] = self.tile;
        let made = done(
            &mut k,
            Directive::TileSum {
                outer,
                inner,
                sum,
                rows,
                columns,
                scope: self.scope,
            },
        );
        let [.., m, n, step, _, _] = made[..] else {
            panic!("{made:?}")
        };
        let mut step = step;
        if let Some(factor) = self.steps {
            let steps = done(&mut k, Directive::Block { var: step, factor });
            step = steps[1];
            for outer in [n, m] {
                done(&mut k, Directive::Interchange { outer, inner: steps[0] });
            }
        }
        for (side, packed) in self.packed.iter().enumerate() {
            if let Some(turned) = *packed {
                let pack = Directive::Pack {
                    var: m,
                    value: factors(&k, step)[side],
                    scope: Scope::Cache,
                    turned,
                    padded: self.padded,
                };
                done(&mut k, pack);
            }
        }
        let contract = Directive::Contract {
            outer: m,
            inner: n,
            sum: step,
            rows,
            columns,
            block: self.block,
            precision: Precision::Exact,
        };
        done(&mut k, contract);
        assert_eq!(contractions(&k), 1, "{k}");
        k
    }
}

/// The factors of the products that a loop adds up.
pub fn factors(kernel: &Kernel, sum: VarId) -> [ValueId; 2] {
    let body = loop_body(&kernel.body, sum).unwrap();
    let product = body.iter().rev().find_map(|s| match s {
        Stmt::Let {
            op: Op::Map(ScalarOp::Mul, factors),
            ..
        } => Some([factors[0], factors[1]]),
        _ => None,
    });
    product.unwrap()
}

pub fn contractions(kernel: &Kernel) -> usize {
    kernel.statements().filter(|s| matches!(s, Stmt::Contract(_))).count()
}

/// Compares a kernel with the naive nest it was made of: the same integers, and floats that are as near as their sums allow.
pub fn same_as_naive(naive: &Kernel, kernel: &Kernel, symbols: &[i64]) {
    let proven = Report::default();
    assert_eq!(verify(naive), proven, "{naive}");
    assert_eq!(verify(kernel), proven, "{kernel}");
    same_results(naive, kernel, symbols);
}

pub fn same_results(naive: &Kernel, kernel: &Kernel, symbols: &[i64]) {
    assert_eq!(parse(&kernel.to_string()), *kernel);
    let arguments = arguments(naive, symbols, 11);
    let mut expected = tensors(naive, &arguments);
    interpret(naive, &mut expected, symbols).unwrap_or_else(|e| panic!("{e}\n{naive}"));
    let found = agreed(kernel, symbols, &arguments);
    for (p, (e, f)) in expected.iter().zip(&found).enumerate() {
        for (i, f) in f.iter().enumerate() {
            let e = e.get(i);
            assert!(
                near(e, *f),
                "p{p}[{i}]: {e}, found {f} for {symbols:?}\n{naive}\n{kernel}"
            );
        }
    }
}

pub fn near(a: Scalar, b: Scalar) -> bool {
    let (x, y) = (a.as_f64(), b.as_f64());
    let within = match a.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => 2e-4,
        DType::F16 | DType::BF16 => 0.05,
        _ => 0.0,
    };
    a == b || (x.is_nan() && y.is_nan()) || (x - y).abs() <= within * (1.0 + x.abs())
}

pub const ROWS: VarId = VarId(0);
pub const COLUMNS: VarId = VarId(1);
pub const SUM: VarId = VarId(2);

/// A naive nest around a sum of products.
#[derive(Clone)]
pub struct Nest<'t> {
    pub params: &'t str,
    pub symbols: &'t str,
    /// Loops around.
    pub around: &'t str,
    pub extents: [&'t str; 3],
    pub accumulator: &'t str,
    /// Before the sum, from `%10`.
    pub before: &'t str,
    /// Statements that define the factors `%1` and `%2`, others from `%20`.
    pub factors: &'t str,
    /// What is done with the sum `%5`, from `%30`.
    pub behind: &'t str,
}

impl Nest<'_> {
    pub fn kernel(&self) -> Kernel {
        let [m, n, k] = self.extents;
        let Nest {
            params,
            symbols,
            around,
            accumulator,
            before,
            factors,
            behind,
            ..
        } = self;
        let zero = if accumulator.starts_with('f') { "0.0" } else { "0" };
        let close = "}".repeat(around.matches('{').count());
        parse(&numbered(&format!(
            "\
kernel ({params}) {symbols} {{
  scratch r0: {accumulator}[1] register
  {around}
  for i0 in 0..{m} serial {{
    for i1 in 0..{n} serial {{
      {before}
      %0: {accumulator} = const {zero}
      store r0[0], %0
      for i2 in 0..{k} serial {{
        {factors}
        %3: {accumulator} = mul %1, %2
        accumulate add r0[0] with %3
      }}
      %5: {accumulator} = load r0[0]
      {behind}
    }}
  }}
  {close}
}}
"
        )))
    }
}

/// The text with values numbered in the order in which they come.
pub fn numbered(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    let mut known: Vec<&str> = Vec::new();
    for part in parts {
        let (name, rest) = part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()));
        let number = known.iter().position(|k| *k == name).unwrap_or_else(|| {
            known.push(name);
            known.len() - 1
        });
        out += &format!("%{number}{rest}");
    }
    out
}

/// `p2[m, n] = p0[m, k] * p1[k, n]` of any sizes.
pub const PRODUCT: Nest<'_> = Nest {
    params: "p0: f32[s0*s2] read, p1: f32[s1*s2] read, p2: f32[s0*s1] write",
    symbols: "where s0 in 0..=100, s1 in 0..=100, s2 in 0..=100",
    around: "",
    extents: ["s0", "s1", "s2"],
    accumulator: "f32",
    before: "",
    factors: "%1: f32 = load p0[s2*i0 + i2]
        %2: f32 = load p1[s1*i2 + i1]",
    behind: "store p2[s1*i0 + i1], %5",
};

/// Sizes on, below and above what tiles are, and empty ones.
pub const SIZES: [[i64; 3]; 8] = [
    [16, 16, 16],
    [1, 1, 1],
    [3, 17, 5],
    [17, 3, 33],
    [33, 16, 1],
    [16, 33, 3],
    [4, 5, 0],
    [0, 7, 3],
];

/// Every way to pack the operands of a tile, or not.
pub fn ways(rows: i64, columns: i64) -> Vec<Plan> {
    let plain = Plan::of(rows, columns);
    vec![
        plain.clone(),
        Plan {
            steps: Some(8),
            block: 3,
            ..plain.clone()
        },
        Plan {
            packed: [Some(false), None],
            ..plain.clone()
        },
        Plan {
            steps: Some(4),
            packed: [Some(true), Some(false)],
            ..plain.clone()
        },
        Plan {
            steps: Some(16),
            packed: [Some(false), Some(true)],
            ..plain.clone()
        },
        Plan {
            steps: Some(4),
            packed: [Some(true), Some(false)],
            padded: true,
            ..plain
        },
    ]
}

/// A nest in every way, for every symbol value.
pub fn every_way(nest: &Nest<'_>, vars: [VarId; 3], tile: [i64; 2], sizes: &[&[i64]]) {
    let naive = nest.kernel();
    for way in ways(tile[0], tile[1]) {
        let kernel = way.apply(&naive, vars);
        for symbols in sizes {
            same_as_naive(&naive, &kernel, symbols);
        }
    }
}

pub const LOOPS: [VarId; 3] = [ROWS, COLUMNS, SUM];

/// The directive for a tile in cache.
pub fn tile_sum([outer, inner, sum]: [VarId; 3], [rows, columns]: [i64; 2]) -> Directive {
    Directive::TileSum {
        outer,
        inner,
        sum,
        rows,
        columns,
        scope: Scope::Cache,
    }
}
