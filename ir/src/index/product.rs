//! Which products of sums stay products.

use super::{IndexExpr, IndexNode, prove};

/// The most terms that a product of sums over symbols is distributed into. The volume of a tensor whose every axis has a symbolic
/// extent and padding has 2^rank.
const MAX_TERMS: usize = 64;

/// The terms of a sum, its constant among them; 1 for what is no sum.
fn terms_of(e: &IndexExpr) -> usize {
    match e {
        IndexExpr::Const(_) => 1,
        IndexExpr::Node(n) => match &**n {
            IndexNode::Sum { terms, constant, .. } => terms.len() + usize::from(*constant != 0),
            _ => 1,
        },
    }
}

/// Sums with the most terms first, then the other factors in their order. So the first two sums of a product that is not
/// distributed have too many terms together, and what rebuilds or parses it from left to right gets the same.
pub(super) fn sort_factors(factors: &mut [IndexExpr]) {
    factors.sort_by(|a, b| terms_of(b).cmp(&terms_of(a)).then_with(|| a.cmp(b)));
}

/// The most terms that a product of sums over loop variables is distributed into: what is affine in a variable must be seen to be.
const MAX_VARIABLE_TERMS: usize = 1 << 12;

/// Whether some term has sums among its factors.
fn has_kept(e: &IndexExpr) -> bool {
    let kept = |t: &IndexExpr| match t {
        IndexExpr::Const(_) => false,
        IndexExpr::Node(n) => matches!(&**n, IndexNode::Product(factors) if terms_of(&factors[0]) > 1),
    };
    match e {
        IndexExpr::Const(_) => false,
        IndexExpr::Node(n) => match &**n {
            IndexNode::Sum { terms, .. } => terms.iter().any(|(t, _)| kept(t)),
            _ => kept(e),
        },
    }
}

/// Whether the product of `a`, of `m` terms, and `b`, of `n`, keeps sums as factors: where it would have too many terms, or copy what
/// was kept before.
pub(super) fn stays_factored(a: &IndexExpr, m: usize, b: &IndexExpr, n: usize) -> bool {
    let many = |most: usize| m > 1 && n > 1 && m.saturating_mul(n) > most;
    if many(MAX_VARIABLE_TERMS) {
        return true;
    }
    (many(MAX_TERMS) || n > 1 && has_kept(a) || m > 1 && has_kept(b))
        && !(m > 1 && a.has_vars())
        && !(n > 1 && b.has_vars())
}

/// The product of factors, sums among them, each without the number that all of its terms share.
pub(super) fn factored(operands: [&IndexExpr; 2]) -> IndexExpr {
    let mut factors = Vec::new();
    let mut coefficient = 1i64;
    for e in operands {
        let (terms, constant) = e.linear();
        match &terms[..] {
            [(t, c)] if constant == 0 => {
                coefficient = coefficient.saturating_mul(*c);
                factors.extend(t.factors());
            }
            _ => {
                let content = terms.iter().fold(constant.saturating_abs(), |g, t| prove::gcd(g, t.1));
                let content = if terms[0].1 < 0 { -content } else { content };
                coefficient = coefficient.saturating_mul(content);
                let terms = terms.into_iter().map(|(t, c)| (t, c / content)).collect();
                factors.push(IndexExpr::from_linear(terms, constant / content));
            }
        }
    }
    sort_factors(&mut factors);
    IndexExpr::node(IndexNode::Product(factors)).mul_const(coefficient)
}
