//! Elementwise operations and conversions.

use tlc_formats::onnx::write::Attribute;
use tlc_formats::onnx::write::element;
use tlc_ir::DType;
use tlc_ir::ScalarOp;
use tlc_ir::graph::NodeId;

use super::{Outcome, Writer};

impl Writer<'_, '_> {
    pub(super) fn map(&mut self, id: NodeId, op: ScalarOp) -> Outcome<String> {
        use ScalarOp::*;
        let operands = self.operands(id);
        let dtype = self.ty(operands[operands.len() - 1]).dtype;
        let (bool, unsigned) = (dtype == DType::Bool, dtype.is_int() && !dtype.is_signed_int());
        let names = self.broadcast(operands)?;
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let x = all[0];
        let y = all.get(1).copied().unwrap_or_default();
        if dtype == DType::BF16
            && matches!(
                op,
                Round | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh
            )
        {
            self.shared.needs(22);
        }
        Ok(match op {
            Neg if unsigned => {
                let zero = self.number(0.0, dtype);
                self.emit("Sub", &[&zero, x])
            }
            Neg => self.emit("Neg", &all),
            Abs => self.emit("Abs", &all),
            Sign => self.emit("Sign", &all),
            Not if bool => self.emit("Not", &all),
            Not => self.emit("BitwiseNot", &all),
            Floor => self.emit("Floor", &all),
            Ceil => self.emit("Ceil", &all),
            Round => self.emit("Round", &all),
            Trunc => {
                let zero = self.number(0.0, dtype);
                let below = self.emit("Less", &[x, &zero]);
                let (up, down) = (self.emit("Ceil", &[x]), self.emit("Floor", &[x]));
                self.emit("Where", &[&below, &up, &down])
            }
            Sqrt => self.emit("Sqrt", &all),
            Rsqrt | Expm1 | Log2 | Log1p => {
                // A formula rounds more than once: that of a narrow type is computed in its accumulator.
                let wide = dtype.accumulator();
                let x = self.cast(x, dtype, wide);
                let y = match op {
                    Rsqrt => {
                        let root = self.emit("Sqrt", &[&x]);
                        self.emit("Reciprocal", &[&root])
                    }
                    Expm1 => self.expm1(&x, wide),
                    Log2 => {
                        let log = self.emit("Log", &[&x]);
                        let two = self.number(std::f64::consts::LN_2, wide);
                        self.emit("Div", &[&log, &two])
                    }
                    _ => self.log1p(&x, wide),
                };
                self.cast(&y, wide, dtype)
            }
            Exp => self.emit("Exp", &all),
            Exp2 => {
                let two = self.number(2.0, dtype);
                self.emit("Pow", &[&two, x])
            }
            Log => self.emit("Log", &all),
            Sin => self.emit("Sin", &all),
            Cos => self.emit("Cos", &all),
            Tan => self.emit("Tan", &all),
            Asin => self.emit("Asin", &all),
            Acos => self.emit("Acos", &all),
            Atan => self.emit("Atan", &all),
            Sinh => self.emit("Sinh", &all),
            Cosh => self.emit("Cosh", &all),
            Tanh => self.emit("Tanh", &all),
            Asinh => self.emit("Asinh", &all),
            Acosh => self.emit("Acosh", &all),
            Atanh => self.emit("Atanh", &all),
            Erf => self.emit("Erf", &all),
            Add => self.emit("Add", &all),
            Sub => self.emit("Sub", &all),
            Mul => self.emit("Mul", &all),
            Div => self.emit("Div", &all),
            Rem => self.fmod(x, y),
            Mod if dtype.is_float() => {
                // The remainder with the divisor's sign, by that with the dividend's.
                let zero = self.number(0.0, dtype);
                let rest = self.fmod(x, y);
                let shifted = self.emit("Add", &[&rest, y]);
                let (a, b) = (self.emit("Less", &[&rest, &zero]), self.emit("Less", &[y, &zero]));
                let other = self.emit("Xor", &[&a, &b]);
                let moved = self.emit("Where", &[&other, &shifted, &rest]);
                // A zero has the divisor's sign, too.
                let minus = self.number(-0.0, dtype);
                let signed = self.emit("Where", &[&b, &minus, &zero]);
                let none = self.emit("Equal", &[&rest, &zero]);
                self.emit("Where", &[&none, &signed, &moved])
            }
            Mod => self.emit("Mod", &all),
            Pow => self.emit("Pow", &all),
            Atan2 => {
                return Err("ONNX has no angle of a point (Atan takes the quotient, which loses the quadrant)".into());
            }
            Max | Or if bool => self.emit("Or", &all),
            Min | And if bool => self.emit("And", &all),
            Xor if bool => self.emit("Xor", &all),
            Max => self.emit("Max", &all),
            Min => self.emit("Min", &all),
            And => self.emit("BitwiseAnd", &all),
            Or => self.emit("BitwiseOr", &all),
            Xor => self.emit("BitwiseXor", &all),
            Shl => self.shift("LEFT", x, y, dtype),
            Shr if dtype.is_signed_int() => {
                // The complement of a negative number is none, and shifts in what its own complement is.
                let zero = self.number(0.0, dtype);
                let below = self.emit("Less", &[x, &zero]);
                let flipped = self.emit("BitwiseNot", &[x]);
                let from = self.emit("Where", &[&below, &flipped, x]);
                let shifted = self.shift("RIGHT", &from, y, dtype);
                let back = self.emit("BitwiseNot", &[&shifted]);
                self.emit("Where", &[&below, &back, &shifted])
            }
            Shr => self.shift("RIGHT", x, y, dtype),
            Eq => self.emit("Equal", &all),
            Ne => {
                let same = self.emit("Equal", &all);
                self.emit("Not", &[&same])
            }
            Lt | Le if bool => {
                let no = self.emit("Not", &[x]);
                self.emit(if op == Lt { "And" } else { "Or" }, &[&no, y])
            }
            Lt => self.emit("Less", &all),
            Le => self.emit("LessOrEqual", &all),
            // ONNX Runtime has no Where of truths.
            Select if bool => {
                let no = self.emit("Not", &[x]);
                let (a, b) = (self.emit("And", &[x, all[1]]), self.emit("And", &[&no, all[2]]));
                self.emit("Or", &[&a, &b])
            }
            Select => self.carried(&all[1..], dtype, |this, v| this.emit("Where", &[x, &v[0], &v[1]])),
            Dot4 => return Err("ONNX has no product of the bytes of words".into()),
            Fma => return Err("ONNX has no product and sum of one rounding".into()),
        })
    }

    fn fmod(&mut self, x: &str, y: &str) -> String {
        self.with("Mod", &[x, y], vec![("fmod", Attribute::Int(1))])
    }

    /// `tanh(x / 2) (e^x + 1)`, which keeps the digits of small arguments and is right at the infinities.
    fn expm1(&mut self, x: &str, dtype: DType) -> String {
        let (half, one) = (self.number(0.5, dtype), self.number(1.0, dtype));
        let halved = self.emit("Mul", &[x, &half]);
        let tanh = self.emit("Tanh", &[&halved]);
        let exp = self.emit("Exp", &[x]);
        let more = self.emit("Add", &[&exp, &one]);
        self.emit("Mul", &[&tanh, &more])
    }

    /// `ln(u) x / (u - 1)` with `u = 1 + x` rounded (Kahan), `x` where `u` is 1, and `ln(u)` where nothing was rounded.
    fn log1p(&mut self, x: &str, dtype: DType) -> String {
        let (zero, one) = (self.number(0.0, dtype), self.number(1.0, dtype));
        let u = self.emit("Add", &[x, &one]);
        let d = self.emit("Sub", &[&u, &one]);
        let log = self.emit("Log", &[&u]);
        let ratio = self.emit("Div", &[x, &d]);
        let mended = self.emit("Mul", &[&log, &ratio]);
        let nothing = self.emit("Equal", &[&d, &zero]);
        let small = self.emit("Where", &[&nothing, x, &mended]);
        let exact = self.emit("Equal", &[&d, x]);
        // Zero keeps its sign: it is its own logarithm.
        let kept = self.emit("Where", &[&exact, &log, &small]);
        self.emit("Where", &[&nothing, x, &kept])
    }

    /// ONNX shifts unsigned integers only. A negative count is a very large one then.
    fn shift(&mut self, direction: &str, x: &str, y: &str, dtype: DType) -> String {
        let bits = match dtype {
            DType::I8 => DType::U8,
            DType::I16 => DType::U16,
            DType::I32 => DType::U32,
            DType::I64 => DType::U64,
            other => other,
        };
        let (x, y) = (self.cast(x, dtype, bits), self.cast(y, dtype, bits));
        let way = vec![("direction", Attribute::Text(direction.to_string()))];
        let shifted = self.with("BitShift", &[&x, &y], way);
        self.cast(&shifted, bits, dtype)
    }

    pub(super) fn convert(&mut self, id: NodeId, to: DType) -> Outcome<String> {
        let operand = self.operands(id)[0];
        let x = self.value(operand)?;
        Ok(self.converted(&x, self.ty(operand).dtype, to))
    }

    /// A value in another type, as `convert` says. A float beyond the range of a larger integer, or NaN, is left to what runs
    /// the model: what ONNX's casts make of those is open.
    pub(super) fn converted(&mut self, x: &str, from: DType, to: DType) -> String {
        use DType::*;
        let narrow = matches!(to, I4 | U4 | I2 | U2 | I8 | U8 | I16 | U16);
        if narrow && from.is_any_float() {
            // What is too large is open in ONNX, and saturates here: that is what quantization lives by.
            let wide = if from == F64 { F64 } else { F32 };
            let x = self.cast(x, from, wide);
            let (lo, hi) = (
                self.number(to.lowest().as_f64(), wide),
                self.number(to.highest().as_f64(), wide),
            );
            let x = self.emit("Clip", &[&x, &lo, &hi]);
            return self.cast(&x, wide, to);
        }
        if to == F8E8M0FNU && from != to {
            self.shared.see(to);
            let how = vec![
                ("to", Attribute::Int(element(to))),
                ("round_mode", Attribute::Text("nearest".into())),
            ];
            return self.with("Cast", &[x], how);
        }
        self.cast(x, from, to)
    }

    pub(super) fn bitcast(&mut self, id: NodeId, to: DType) -> Outcome<String> {
        let operand = self.operands(id)[0];
        let from = self.ty(operand).dtype;
        let bits = |d: DType| if d == DType::Bool { 8 } else { d.value_bits() };
        if bits(from) != bits(to) || from == DType::Bool || to == DType::Bool {
            return Err(format!("ONNX's BitCast takes no {from} for {to}"));
        }
        let x = self.value(operand)?;
        self.shared.needs(26);
        Ok(self.with("BitCast", &[&x], vec![("to", Attribute::Int(element(to)))]))
    }
}
