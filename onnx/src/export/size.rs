//! Sizes: index expressions as small integer tensors of the model.

use tlc_formats::onnx::write::Attribute;
use tlc_ir::DType;
use tlc_ir::Scalar;
use tlc_ir::graph::TensorType;
use tlc_ir::index::{IndexExpr, IndexNode};

use super::{Outcome, Writer};

/// What is known of a symbol's value.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Nothing: no input's shape determines it.
    Nothing,
    /// An extent of a value: `(shape[axis] - offset) / factor`.
    Extent {
        value: String,
        axis: usize,
        offset: i64,
        factor: i64,
    },
    /// It is that value, `i64[1]`.
    Value(String),
    /// It is that number.
    Number(i64),
}

/// What an input's extent determines of the symbols.
pub(super) fn learn(symbols: &mut [Known], d: &IndexExpr, value: &str, axis: usize) {
    let (terms, offset) = d.linear();
    let [(IndexExpr::Node(term), factor)] = &terms[..] else {
        return;
    };
    let IndexNode::Sym(s) = **term else { return };
    let Some(known) = symbols.get_mut(s.0 as usize) else {
        return;
    };
    // The plainest place is used.
    let plain = *factor == 1 && offset == 0;
    let better = match known {
        Known::Nothing => *factor > 0,
        Known::Extent {
            offset: o, factor: f, ..
        } => plain && (*o, *f) != (0, 1),
        _ => false,
    };
    if better {
        *known = Known::Extent {
            value: value.to_string(),
            axis,
            offset,
            factor: *factor,
        };
    }
}

impl Writer<'_, '_> {
    /// The expression with the numbers that are known in the place of their symbols.
    pub(super) fn plain(&self, e: &IndexExpr) -> IndexExpr {
        if e.as_const().is_some() || !self.symbols.iter().any(|s| matches!(s, Known::Number(_))) {
            return e.clone();
        }
        e.replace(&mut |n| match n {
            IndexNode::Sym(s) => match self.symbols.get(s.0 as usize) {
                Some(Known::Number(n)) => Some(IndexExpr::Const(*n)),
                _ => None,
            },
            _ => None,
        })
    }

    /// The constant that an expression is.
    pub(super) fn constant(&self, e: &IndexExpr) -> Option<i64> {
        self.plain(e).as_const()
    }

    /// The value of an expression, `i64[1]`.
    pub(super) fn size(&mut self, e: &IndexExpr) -> Outcome<String> {
        let e = self.plain(e);
        let IndexExpr::Node(node) = &e else {
            let n = e.as_const().unwrap_or_default();
            return Ok(self.vector(&[n]));
        };
        if let Some(name) = self.sizes.get(&e) {
            return Ok(name.clone());
        }
        let name = match &**node {
            IndexNode::Sym(s) => self.symbol(s.0 as usize)?,
            IndexNode::Var(_) => return Err("a size over a loop variable; a bug".into()),
            IndexNode::Sum { terms, constant, .. } => {
                let mut sum: Option<String> = None;
                for (term, factor) in terms {
                    let mut part = self.size(term)?;
                    let minus = *factor == -1 && sum.is_some();
                    if *factor != 1 && !minus {
                        let factor = self.vector(&[*factor]);
                        part = self.emit("Mul", &[&part, &factor]);
                    }
                    sum = Some(match sum {
                        None => part,
                        Some(sum) => self.emit(if minus { "Sub" } else { "Add" }, &[&sum, &part]),
                    });
                }
                let sum = sum.ok_or("a sum of nothing; a bug")?;
                match *constant {
                    0 => sum,
                    n => {
                        let (op, n) = if n < 0 && n != i64::MIN {
                            ("Sub", -n)
                        } else {
                            ("Add", n)
                        };
                        let n = self.vector(&[n]);
                        self.emit(op, &[&sum, &n])
                    }
                }
            }
            IndexNode::Product(factors) => {
                let mut product: Option<String> = None;
                for factor in factors {
                    let factor = self.size(factor)?;
                    product = Some(match product {
                        None => factor,
                        Some(product) => self.emit("Mul", &[&product, &factor]),
                    });
                }
                product.ok_or("a product of nothing; a bug")?
            }
            IndexNode::FloorDiv(a, b) => {
                let negative = a.interval(self.graph).lo < 0;
                let (mut a, b) = (self.size(a)?, self.size(b)?);
                if negative {
                    // ONNX rounds toward zero: what is divided is made a multiple of the divisor, which is positive.
                    let rest = self.emit("Mod", &[&a, &b]);
                    a = self.emit("Sub", &[&a, &rest]);
                }
                self.emit("Div", &[&a, &b])
            }
            IndexNode::Mod(a, b) => self.pair("Mod", a, b)?,
            IndexNode::Min(a, b) => self.pair("Min", a, b)?,
            IndexNode::Max(a, b) => self.pair("Max", a, b)?,
        };
        self.sizes.insert(e, name.clone());
        Ok(name)
    }

    fn pair(&mut self, op: &'static str, a: &IndexExpr, b: &IndexExpr) -> Outcome<String> {
        let (a, b) = (self.size(a)?, self.size(b)?);
        Ok(self.emit(op, &[&a, &b]))
    }

    fn symbol(&mut self, index: usize) -> Outcome<String> {
        let known = self.symbols.get(index).cloned().unwrap_or(Known::Nothing);
        match known {
            Known::Value(name) => Ok(name),
            Known::Number(n) => Ok(self.vector(&[n])),
            Known::Extent {
                value,
                axis,
                offset,
                factor,
            } => {
                let mut name = self.extent(&value, axis);
                if offset != 0 {
                    // The model does not tell that the extent is at least the offset.
                    let (offset, zero) = (self.vector(&[offset]), self.vector(&[0]));
                    name = self.emit("Sub", &[&name, &offset]);
                    name = self.emit("Max", &[&name, &zero]);
                }
                if factor != 1 {
                    let factor = self.vector(&[factor]);
                    name = self.emit("Div", &[&name, &factor]);
                }
                Ok(name)
            }
            Known::Nothing => {
                let name = self.graph.symbols().get(index).map_or("", |s| &s.name);
                Err(format!(
                    "the size `{name}` is the extent of no input; expected --set {name}=N or an input of that extent"
                ))
            }
        }
    }

    /// The extent of a value, `i64[1]`.
    pub(super) fn extent(&mut self, value: &str, axis: usize) -> String {
        let (start, end) = (axis as i64, axis as i64 + 1);
        let part = vec![("start", Attribute::Int(start)), ("end", Attribute::Int(end))];
        self.with("Shape", &[value], part)
    }

    /// The value of an expression, `i64[]`.
    pub(super) fn count(&mut self, e: &IndexExpr) -> Outcome<String> {
        if let Some(n) = self.constant(e) {
            return Ok(self.scalar(Scalar::from_i64(DType::I64, n)));
        }
        let size = self.size(e)?;
        Ok(self.as_scalar(&size))
    }

    /// A value of one element and rank 1 with rank 0.
    pub(super) fn as_scalar(&mut self, value: &str) -> String {
        let axes = self.vector(&[0]);
        self.emit("Squeeze", &[value, &axes])
    }

    /// The values of expressions, `i64[n]`.
    pub(super) fn shape(&mut self, dims: &[IndexExpr]) -> Outcome<String> {
        let mut parts: Vec<String> = vec![];
        let mut numbers: Vec<i64> = vec![];
        for d in dims {
            match self.constant(d) {
                Some(n) => numbers.push(n),
                None => {
                    if !numbers.is_empty() {
                        parts.push(self.vector(&std::mem::take(&mut numbers)));
                    }
                    parts.push(self.size(d)?);
                }
            }
        }
        if parts.is_empty() || !numbers.is_empty() {
            parts.push(self.vector(&numbers));
        }
        if let [one] = &parts[..] {
            return Ok(one.clone());
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.with("Concat", &parts, vec![("axis", Attribute::Int(0))]))
    }

    /// The numbers from 0 on, `i64[n]`.
    pub(super) fn range(&mut self, n: &IndexExpr) -> Outcome<String> {
        let count = self.count(n)?;
        let (zero, one) = (self.number(0.0, DType::I64), self.number(1.0, DType::I64));
        Ok(self.emit("Range", &[&zero, &count, &one]))
    }

    /// What broadcasts to an iota of that type.
    pub(super) fn iota(&mut self, ty: &TensorType, axis: u8) -> Outcome<String> {
        let axis = axis as usize;
        let range = self.range(&ty.shape[axis])?;
        let behind = ty.rank() - axis - 1;
        let mut name = self.cast(&range, DType::I64, ty.dtype);
        if behind > 0 {
            let axes = self.vector(&(1..=behind as i64).collect::<Vec<_>>());
            name = self.emit("Unsqueeze", &[&name, &axes]);
        }
        Ok(name)
    }
}
