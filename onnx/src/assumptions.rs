//! What an import assumes where the sizes of a call decide the rank of a value: a `Squeeze` without axes, an `If` on a size whose branches
//! have results of different ranks, as tracing makes of `x.squeeze(-1)`.
//!
//! Likewise where a branch is no model for the sizes at hand, and a value that is given decides that it is not taken.
//!
//! A graph is for one rank, so one of the two is assumed, under a guard: that which holds for most sizes, or, where the rest of the model does
//! not fit it, the other. Then the model is imported again from its beginning, since what was recorded before fits the first. Of several assumptions
//! one at a time is turned, starting from those under which the import got furthest.
//!
//! Invariant: questions have numbers in the order in which they are asked, and an import that is given the same answers to the first of them
//! asks the same next one.

use rustc_hash::FxHashMap;
use tlc_ir::DType;
use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;

use tlc_record::Graph;
use tlc_record::dim::Dim;

/// How often a model is imported at most because a question has to be answered first, and with another answer.
const MAX_ANSWERED: usize = 256;
const MAX_OTHERS: usize = 64;
/// A size that is no special case of anything; the next symbol's is larger by a step.
const USUAL_SIZE: (i64, i64) = (1009, 24);

/// A comparison of two sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Equal,
    Less,
}

/// An answer to the question of that number.
#[derive(Clone, Copy, Debug)]
struct Assumption {
    question: usize,
    holds: bool,
    /// Whether a value says so.
    is_known: bool,
}

/// What has been assumed, in the order of the questions.
#[derive(Clone, Debug, Default)]
pub(super) struct Assumptions {
    made: Vec<Assumption>,
    /// How many questions this attempt has asked.
    asked: usize,
    /// What has to be assumed before what has been recorded of that question.
    open: Option<Assumption>,
    /// How many attempts there were because a question had to be answered first, and with another answer.
    answered: usize,
    others: usize,
    /// Under which the import got furthest.
    best: Vec<Assumption>,
    /// How many nodes that were.
    nodes: usize,
    /// How many of the best are left to be tried the other way.
    left: usize,
    /// By the expression that is 1 where it holds: a comparison of sizes.
    comparisons: FxHashMap<IndexExpr, (Comparison, Dim, Dim)>,
}

impl Assumptions {
    /// The number of the next question.
    fn ask(&mut self) -> usize {
        self.asked += 1;
        self.asked - 1
    }

    fn answer(&self, question: usize) -> Option<bool> {
        self.made.iter().find(|a| a.question == question).map(|a| a.holds)
    }

    /// The assumptions for another attempt after one that failed behind so many nodes, if there are any left to try: of those under which the
    /// import got furthest one is turned, the last at first.
    pub(super) fn next_attempt(mut self, nodes: usize) -> Option<Assumptions> {
        self.asked = 0;
        self.comparisons.clear();
        if let Some(open) = self.open.take() {
            self.answered += 1;
            if self.answered > MAX_ANSWERED {
                return None;
            }
            self.made.retain(|a| a.question < open.question);
            self.made.push(open);
            return Some(self);
        }
        self.others += 1;
        if self.others > MAX_OTHERS {
            return None;
        }
        if nodes > self.nodes {
            (self.nodes, self.left) = (nodes, self.made.len());
            self.best = std::mem::take(&mut self.made);
        }
        while self.left > 0 {
            self.left -= 1;
            if !self.best[self.left].is_known {
                self.made = self.best.clone();
                self.made[self.left].holds ^= true;
                return Some(self);
            }
        }
        None
    }

    /// 1 where the comparison holds, else 0.
    pub(super) fn truth(&mut self, graph: &Graph, comparison: Comparison, a: &Dim, b: &Dim) -> Dim {
        let truth = match comparison {
            Comparison::Equal => Dim::from(1) - (a - b).max(b - a).min(1),
            Comparison::Less => (b - a).max(0).min(1),
        };
        let truth = graph.simplify(truth.expr());
        if truth.as_const().is_none() {
            self.comparisons
                .insert(truth.clone(), (comparison, a.clone(), b.clone()));
        }
        truth.into()
    }

    /// A condition of sizes, 1 where it holds and else 0, of which the import may have to assume whether it holds; its number, and what is assumed
    /// of it, if anything is. `None` where no guard can say so.
    pub(super) fn question(&mut self, graph: &Graph, condition: &Dim) -> Option<(usize, Option<bool>)> {
        let question = self.ask();
        let answer = self.answer(question);
        match answer {
            Some(holds) if !self.guard(graph, condition, holds) => None,
            answer => Some((question, answer)),
        }
    }

    /// Assumes what holds of the condition for most sizes, and returns it. `None` if no guard can say so.
    pub(super) fn assume(&mut self, graph: &Graph, question: usize, condition: &Dim) -> Option<bool> {
        let holds = usually(graph, condition);
        self.made.push(Assumption {
            question,
            holds,
            is_known: false,
        });
        self.guard(graph, condition, holds).then_some(holds)
    }

    /// The model has to be imported again, with an answer to the question.
    pub(super) fn assume_first(&mut self, graph: &Graph, question: usize, condition: &Dim) {
        let holds = usually(graph, condition);
        self.open.get_or_insert(Assumption {
            question,
            holds,
            is_known: false,
        });
    }

    /// A condition that values of inputs decide; its number, and whether what it was found to be is to be relied on. `None` in bodies of
    /// loops, where it differs from iteration to iteration.
    pub(super) fn question_of_data(&mut self, graph: &Graph) -> Option<(usize, bool)> {
        if graph.is_body() {
            return None;
        }
        let question = self.ask();
        Some((question, self.answer(question).is_some()))
    }

    /// The model has to be imported again, and what the condition is found to be is to be relied on.
    pub(super) fn rely_on(&mut self, question: usize, holds: bool) {
        self.open.get_or_insert(Assumption {
            question,
            holds,
            is_known: true,
        });
    }

    /// Records that calls keep to what is assumed; whether that can be recorded.
    fn guard(&self, graph: &Graph, condition: &Dim, holds: bool) -> bool {
        let negated = Dim::from(1) - condition;
        let known = |of: &Dim| self.comparisons.get(&graph.simplify(of.expr())).cloned();
        let compared = known(condition)
            .map(|c| (c, holds))
            .or_else(|| known(&negated).map(|c| (c, !holds)));
        match compared {
            Some(((Comparison::Equal, a, b), true)) => becomes_equal(graph, &a, &b),
            Some(((Comparison::Equal, a, b), false)) => becomes_other(graph, &a, &b),
            Some(((Comparison::Less, a, b), true)) => becomes_nonnegative(graph, &(b - a - 1)),
            Some(((Comparison::Less, a, b), false)) => becomes_nonnegative(graph, &(a - b)),
            None if holds => becomes_nonnegative(graph, &(condition - 1)),
            None => becomes_nonnegative(graph, &(Dim::from(0) - condition)),
        }
    }
}

/// Whether the condition holds for most sizes.
fn usually(graph: &Graph, condition: &Dim) -> bool {
    graph.with_ir(|ir| {
        let (first, step) = USUAL_SIZE;
        let sizes: Vec<i64> = (0..ir.symbols().len() as i64).map(|i| first + i * step).collect();
        condition.expr().eval_symbols(&sizes) == Some(1)
    })
}

/// Whether the expression is never negative, under a guard if need be: a slice that starts behind its operand's only element where
/// it is.
pub(super) fn becomes_nonnegative(graph: &Graph, d: &Dim) -> bool {
    if graph.with_ir(|ir| d.expr().interval(ir)).lo >= 0 {
        return true;
    }
    let below = (Dim::from(0) - d).max(0);
    has_element(graph, &1.into(), &below)
}

/// Whether such a range has the element at that place, under a guard if need be.
fn has_element(graph: &Graph, extent: &Dim, place: &Dim) -> bool {
    let slice = View::Slice {
        start: [place.expr().clone()].into_iter().collect(),
        step: [1].into_iter().collect(),
        size: [IndexExpr::ONE].into_iter().collect(),
    };
    let range = graph.iota_1d(extent.expr(), DType::I64);
    range.and_then(|range| range.view(slice)).is_ok()
}

/// Whether two extents are equal, under a guard if need be: a reshape from one to the other.
fn becomes_equal(graph: &Graph, a: &Dim, b: &Dim) -> bool {
    let all = graph.iota_1d(a.expr(), DType::I64);
    let shape = [b.expr().clone()].into_iter().collect();
    all.and_then(|all| all.view(View::Reshape(shape))).is_ok()
}

/// Whether two sizes differ, under a guard if need be.
fn becomes_other(graph: &Graph, a: &Dim, b: &Dim) -> bool {
    let apart = a - b;
    match graph.with_ir(|ir| apart.expr().interval(ir)).lo {
        0.. => has_element(graph, &apart, &0.into()),
        _ => has_element(graph, &(&apart * &apart), &0.into()),
    }
}
