//! The recording: a cheap, shared handle on a graph that grows as operations are called.
//!
//! Invariants:
//! - Recording never panics and never fails at the call: a refused operation leaves a poisoned [`Tensor`] and an [`Error`]
//!   in the graph. [`Graph::finish`] returns all of them.
//! - The handle is `Send + Sync`; clones share one recording. Order of recording is order of locking, so a graph recorded
//!   by one thread is deterministic.

pub(crate) mod interleaved;
pub(crate) mod scope;
pub(crate) mod states;
mod tensor;

use std::ops::RangeBounds;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tlc_ir::graph::{DEFAULT_SYMBOL_MAX, HostFunction, NodeId, NodeKind, Origin, TensorType};
use tlc_ir::{DType, Graph as IrGraph, IndexExpr, Scalar, ScalarOp, SymId};

use crate::dim::{Dim, IntoShape};
use crate::error::{Error, Errors};
use crate::streams::{self, INCREMENT, LAST_SHIFT, MIX, Streams};
use scope::{Step, record, record_printing, refuse, refuse_expecting};
pub use tensor::Tensor;

/// A recording in progress. Cloning gives another handle on the same recording.
#[derive(Clone)]
pub struct Graph {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    ir: IrGraph,
    errors: Vec<Error>,
    /// What stays between calls.
    states: Vec<states::Declared>,
    /// Their numbers by their names.
    state_numbers: rustc_hash::FxHashMap<String, usize>,
    /// What caches must have room for.
    appends: Vec<states::Append>,
    /// Inputs and states by which something was differentiated that does not depend on them, by name.
    unreached: Vec<String>,
    /// The names of the first so many outputs, of all that there were when a name was last looked up.
    output_names: (rustc_hash::FxHashSet<String>, usize),
    /// Shared with the bodies of the graph's loops.
    streams: Arc<Mutex<Streams>>,
    seed: Seed,
    /// The key of random numbers under that seed, once one was drawn.
    key: Option<NodeId>,
    /// What overlap-adds made of several tensors, for the next one along another axis.
    interleaved: rustc_hash::FxHashMap<NodeId, interleaved::Interleaved<NodeId>>,
    /// What calls whose results' size data decides returned, by function (without its symbol) and operands.
    counted: rustc_hash::FxHashMap<(HostFunction, Vec<NodeId>), Vec<NodeId>>,
    /// In the body of a loop: what it is the body of.
    around: Option<Around>,
    /// What is recorded now is this node, or this tensor, of an imported model.
    within: Option<Origin>,
}

/// What the key of random numbers follows from.
#[derive(Clone, Copy, Default)]
enum Seed {
    /// In a body the key of the graph around it, elsewhere 0.
    #[default]
    Inherited,
    Number(u64),
    Value(NodeId),
}

/// The graph around a body, and what the body reads of it.
struct Around {
    graph: Graph,
    /// The number of the iteration, in the body of a loop.
    number: Option<NodeId>,
    /// Values outside, and the inputs of the body that they are, in order.
    captures: Vec<(NodeId, NodeId)>,
}

impl State {
    /// Whether an output has that name. Outputs are only ever added, so that each is looked at once.
    fn has_output(&mut self, name: &str) -> bool {
        let (names, known) = &mut self.output_names;
        let outputs = self.ir.outputs();
        names.extend(outputs[*known..].iter().map(|o| o.name.clone()));
        *known = outputs.len();
        names.contains(name)
    }

    /// Where what is recorded now comes from.
    fn origin(&self) -> Origin {
        match (scope::made_of(), &self.within) {
            (Some(origin), _) => origin,
            (None, Some(origin)) => origin.clone(),
            (None, None) => scope::origin(),
        }
    }
}

/// Errors kept; what follows is only consequence or repetition.
const MAX_ERRORS: usize = 100;

impl Default for Graph {
    fn default() -> Graph {
        Graph::new("main")
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        write!(f, "Graph({:?}, {} nodes)", state.ir.name, state.ir.len())
    }
}

impl Graph {
    /// An empty recording of that name.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph::from_ir(IrGraph::new(name))
    }

    /// A recording that goes on from a graph of the graph language, whose values are [`Graph::tensor`]s. Its random numbers are
    /// not known here: ones that are drawn from here on may have the stream of some that are there.
    #[doc(hidden)]
    pub fn from_ir(ir: IrGraph) -> Graph {
        let state = State { ir, ..State::default() };
        Graph {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The value of that node; none of a node that is not there, or has several results.
    #[doc(hidden)]
    pub fn tensor(&self, node: NodeId) -> Option<Tensor> {
        let state = self.lock();
        if node.index() >= state.ir.len() || state.ir.node(node).kind.is_tuple() {
            return None;
        }
        let ty = state.ir.ty(node).clone();
        drop(state);
        Some(Tensor::new(self.clone(), node, ty))
    }

    fn inner(&self) -> Graph {
        let inner = Graph::new("body");
        for (name, lo, hi) in self.symbol_ranges() {
            inner.symbol(&name, lo..=hi);
        }
        inner
    }

    /// An empty recording of the body of a loop of this graph, with its symbols, and its first input: the iteration's number.
    pub(crate) fn body(&self) -> (Graph, Tensor) {
        let inner = self.inner();
        let number = inner.input("i", DType::I64, ());
        let mut state = inner.lock();
        state.streams = Arc::clone(&self.lock().streams);
        state.around = number.id().map(|number| Around {
            graph: self.clone(),
            number: Some(number),
            captures: Vec::new(),
        });
        drop(state);
        (inner, number)
    }

    /// An empty recording of the body of a region of this graph, with its symbols.
    pub(crate) fn region_body(&self) -> Graph {
        let inner = self.inner();
        let streams = Arc::clone(&self.lock().streams);
        let mut state = inner.lock();
        state.streams = streams;
        state.around = Some(Around {
            graph: self.clone(),
            number: None,
            captures: Vec::new(),
        });
        drop(state);
        inner
    }

    /// Takes over what was refused in a body; returns whether anything was.
    pub(crate) fn takes_errors(&self, body: &Graph) -> bool {
        let errors = body.errors();
        let any = !errors.is_empty();
        // What mixes the body with the graph around it was reported to both.
        let known = self.errors();
        let new = errors.into_iter().filter(|e| !known.contains(e));
        new.for_each(|e| self.report(e));
        any
    }

    /// In a body: the graph around it.
    pub(crate) fn around(&self) -> Option<Graph> {
        self.lock().around.as_ref().map(|a| a.graph.clone())
    }

    /// Whether this is the body of a loop or a region, in which data decides no size.
    #[doc(hidden)]
    pub fn is_body(&self) -> bool {
        self.lock().around.is_some()
    }

    /// Refuses a size that data decides in a body.
    pub(crate) fn outside_of_bodies(&self) -> Step<()> {
        match self.is_body() {
            true => refuse_expecting("data decides a size in a body", "sizes that are known before it"),
            false => Ok(()),
        }
    }

    /// In a body: a tensor of the graph around it, as each iteration sees it.
    pub(crate) fn capture(&self, outer: &Tensor) -> Step {
        let mut state = self.lock();
        let (Some(around), Some(id)) = (&state.around, outer.id()) else {
            return Ok(Tensor::poisoned(self, outer.dtype()));
        };
        let known = around.captures.iter().find(|(o, _)| *o == id).map(|c| c.1);
        let name = format!("capture{}", around.captures.len());
        let added = match known {
            Some(inner) => Ok(inner),
            None => {
                let origin = state.origin();
                state.ir.add_input(&name, outer.ty().clone(), origin)
            }
        };
        if let (None, Ok(inner), Some(around)) = (known, &added, &mut state.around) {
            around.captures.push((id, *inner));
        }
        drop(state);
        self.wrap(added)
    }

    /// In a body: what it reads of the graph around it, in the order of the inputs that it reads them as.
    pub(crate) fn captured(&self) -> Vec<Tensor> {
        let state = self.lock();
        let Some(around) = &state.around else {
            return Vec::new();
        };
        let wrap = |(outer, _): &(NodeId, NodeId)| around.graph.wrap(Ok(*outer)).ok();
        around.captures.iter().filter_map(wrap).collect()
    }

    /// Enters the body of a loop of this graph, for the streams of random numbers.
    #[doc(hidden)]
    pub fn enter_loop(&self) -> streams::Entered {
        let streams = Arc::clone(&self.lock().streams);
        streams.lock().unwrap_or_else(PoisonError::into_inner).enter_loop()
    }

    // A panic while locked leaves an append-only graph that is still well formed, so poisoning is no reason to stop.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the body of a loop in the other graph, or of one inside it.
    pub(crate) fn is_inside(&self, other: &Graph) -> bool {
        self.around().is_some_and(|g| g.is(other) || g.is_inside(other))
    }

    /// Whether this is the body of a loop: not that of a function, nor a graph that nothing is around.
    pub(crate) fn is_loop_body(&self) -> bool {
        self.lock().around.as_ref().is_some_and(|a| a.number.is_some())
    }

    /// True if both handles share one recording.
    pub fn is(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// A named size, any value of `range` (`1..=64`; an open end is 2^31, an open start 0). Naming it again narrows the
    /// range.
    ///
    /// # Errors
    /// A range that holds no size.
    #[track_caller]
    pub fn symbol(&self, name: &str, range: impl RangeBounds<i64>) -> Dim {
        use std::ops::Bound::*;
        let lo = match range.start_bound() {
            Included(&v) => v,
            Excluded(&v) => v.saturating_add(1),
            Unbounded => 0,
        };
        let hi = match range.end_bound() {
            Included(&v) => v,
            Excluded(&v) => v.saturating_sub(1),
            Unbounded => DEFAULT_SYMBOL_MAX,
        };
        let mut state = self.lock();
        let sym = state.ir.add_symbol(name, lo, hi);
        let declared = &state.ir.symbols()[sym.0 as usize];
        if declared.lo < 0 || declared.lo > declared.hi {
            let problem = format!("the range {}..={} of {name} holds no size", declared.lo, declared.hi);
            state.errors.push(Error {
                op: "symbol".into(),
                operands: vec![],
                problem,
                expected: Some("a range of sizes, 0 or more".into()),
                origin: Origin::Source(Location::caller()),
            });
        }
        Dim(sym.into())
    }

    /// A run-time operand.
    ///
    /// # Errors
    /// A name that another input has, a negative extent, one that data decides, more elements than memory can address.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        let ty = TensorType { dtype, shape };
        let text = || vec![format!("{name}: {}", self.type_text(&ty))];
        let body = || {
            self.known_before_calls(&ty)?;
            let mut state = self.lock();
            let origin = state.origin();
            let added = state.ir.add_input(name, ty.clone(), origin);
            drop(state);
            self.wrap(added)
        };
        record_printing(self, "input", &[], &text, body, |p| p)
    }

    /// That no extent of what a call is given is one that data decides.
    pub(crate) fn known_before_calls(&self, ty: &TensorType) -> Step<()> {
        match self.with_ir(|ir| ty.shape.iter().any(|d| ir.is_data_bound(d))) {
            true => refuse_expecting("data decides an extent", "sizes that are known before the call"),
            false => Ok(()),
        }
    }

    /// Names a result.
    ///
    /// # Errors
    /// A name that another output has.
    #[track_caller]
    pub fn output(&self, name: &str, tensor: &Tensor) {
        let body = || {
            let mut state = self.lock();
            if !name.is_empty() && state.has_output(name) {
                return refuse(format!("the name `{name}` is taken by another output"));
            }
            if let Some(id) = tensor.id() {
                state.ir.add_output(name, id);
            }
            Ok(())
        };
        record(self, "output", &[tensor], &[], body, |_| ())
    }

    /// Errors so far, first to last (at most 100).
    pub fn errors(&self) -> Vec<Error> {
        self.lock().errors.clone()
    }

    /// Whether everything recorded so far is well formed.
    ///
    /// # Errors
    /// Every error so far.
    pub fn check(&self) -> Result<(), Errors> {
        let errors = self.errors();
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Errors::new(errors))
        }
    }

    /// The recorded graph, in the graph language.
    ///
    /// # Errors
    /// Every error of the recording.
    pub fn finish(&self) -> Result<IrGraph, Errors> {
        self.check()?;
        Ok(self.lock().ir.snapshot())
    }

    /// The part of the graph that `outputs` need, as a graph of its own: all inputs, the nodes needed, and these outputs.
    ///
    /// # Errors
    /// Every error of the recording; an output of another graph.
    #[track_caller]
    pub fn extract(&self, outputs: &[(&str, &Tensor)]) -> Result<IrGraph, Errors> {
        self.check()?;
        if let Some((name, _)) = outputs.iter().find(|(_, t)| !t.graph().is(self)) {
            return Err(Errors::new(vec![Error {
                op: "extract".into(),
                operands: vec![],
                problem: format!("output `{name}` is a tensor of another graph"),
                expected: Some("tensors recorded here".into()),
                origin: Origin::Source(Location::caller()),
            }]));
        }
        let state = self.lock();
        let from = &state.ir;
        let mut needed = vec![false; from.len()];
        from.inputs().iter().for_each(|i| needed[i.index()] = true);
        let roots = || outputs.iter().filter_map(|(name, t)| Some((*name, t.id()?)));
        roots().for_each(|(_, id)| needed[id.index()] = true);
        let binders = from.binders();
        for i in (0..from.len()).rev() {
            if needed[i] {
                from.visit_needs(NodeId(i as u32), &binders, &mut |o| needed[o.index()] = true);
            }
        }
        let mut to = IrGraph::new(from.name.clone());
        to.adopt_symbols(from);
        let mut moved = vec![NodeId(0); from.len()];
        for (id, node) in from.nodes().filter(|(id, _)| needed[id.index()]) {
            let operands: Vec<NodeId> = node.operands.iter().map(|o| moved[o.index()]).collect();
            let added = match &node.kind {
                NodeKind::Input { name, ty, .. } => to.add_input(name, ty.clone(), node.origin.clone()),
                kind => to.add(kind.clone(), &operands, node.origin.clone()),
            };
            moved[id.index()] = added.map_err(|e| Errors::new(vec![e]))?;
        }
        roots().for_each(|(name, id)| to.add_output(name, moved[id.index()]));
        Ok(to)
    }

    /// The seed of the random numbers recorded from here on, in place of [`Graph::rng_key_input`]'s key; those recorded before
    /// keep the one they had. 0 if never called, and in the body of a loop the one of the graph around it: see
    /// [`crate::ops::random`].
    pub fn seed(&self, seed: u64) {
        self.set_seed(Seed::Number(seed));
    }

    /// Makes the key of random numbers recorded from here on a run-time input of that name, `u64[]`, so that each call can
    /// draw others. Returns the input.
    #[track_caller]
    pub fn rng_key_input(&self, name: &str) -> Tensor {
        let key = self.input(name, DType::U64, ());
        self.seed_by(&key);
        key
    }

    /// As [`Graph::seed`], with a key (`u64[]`) of this graph.
    pub(crate) fn seed_by(&self, key: &Tensor) {
        if let Some(id) = key.id() {
            self.set_seed(Seed::Value(id));
        }
    }

    fn set_seed(&self, seed: Seed) {
        let mut state = self.lock();
        state.seed = seed;
        state.key = None;
    }

    /// Runs `f`, whose random numbers have that seed; those recorded after it have the one of before.
    #[doc(hidden)]
    pub fn with_seed<T>(&self, seed: u64, f: impl FnOnce() -> T) -> T {
        let before = {
            let state = self.lock();
            (state.seed, state.key)
        };
        self.seed(seed);
        let result = f();
        let mut state = self.lock();
        (state.seed, state.key) = before;
        result
    }

    /// The key of random numbers that are recorded now: in a body it differs from iteration to iteration.
    pub(crate) fn random_key(&self) -> Step {
        let state = self.lock();
        if let Some(key) = state.key {
            drop(state);
            return self.wrap(Ok(key));
        }
        let (seed, around) = (state.seed, state.around.as_ref().map(|a| (a.graph.clone(), a.number)));
        drop(state);
        let number = |seed: u64| self.node(NodeKind::Const(Scalar::from_bits(DType::U64, seed)), &[]);
        let base = match (seed, &around) {
            (Seed::Number(seed), _) => number(seed)?,
            (Seed::Value(id), _) => self.wrap(Ok(id))?,
            (Seed::Inherited, Some((graph, _))) => self.capture(&graph.random_key()?)?,
            (Seed::Inherited, None) => number(0)?,
        };
        let key = match around {
            Some((_, Some(iteration))) => folded(&base, &self.wrap(Ok(iteration))?)?,
            Some((_, None)) | None => base,
        };
        self.lock().key = key.id();
        Ok(key)
    }

    /// A stream that no other draw of this graph or of its loops has.
    pub(crate) fn next_stream(&self) -> u32 {
        let streams = Arc::clone(&self.lock().streams);
        streams.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Adds a node. A poisoned operand gives a poisoned result.
    pub(crate) fn node(&self, kind: NodeKind, operands: &[&Tensor]) -> Step {
        if !operands.iter().all(|t| t.graph().is(self)) {
            return Err(scope::mixed(operands.iter().map(|t| t.graph()).chain([self])));
        }
        let mut ids = tlc_ir::graph::Operands::new();
        for t in operands {
            match t.id() {
                Some(id) => ids.push(id),
                None => return Ok(Tensor::poisoned(self, t.dtype())),
            }
        }
        let mut state = self.lock();
        let origin = state.origin();
        let added = state.ir.add(kind, &ids, origin);
        drop(state);
        self.wrap(added)
    }

    /// Adds a node of several results, and projections of all.
    pub(crate) fn tuple(&self, kind: NodeKind, operands: &[&Tensor], results: usize) -> Step<Vec<Tensor>> {
        let tuple = self.node(kind, operands)?;
        (0..results as u32)
            .map(|k| self.node(NodeKind::Project(k), &[&tuple]))
            .collect()
    }

    /// Adds a call of a function that binds a size of at most `upper`, and projections of all its results. The same function of the same
    /// operands is the same call: its results' extents are equal.
    pub(crate) fn counted(
        &self,
        (name, upper): (&str, IndexExpr),
        function: impl Fn(SymId) -> HostFunction,
        operands: &[&Tensor],
        results: usize,
    ) -> Step<Vec<Tensor>> {
        let ids: Option<Vec<NodeId>> = operands.iter().map(|t| t.id()).collect();
        let key = ids.map(|ids| (function(SymId(u32::MAX)), ids));
        let known = key.as_ref().and_then(|key| self.lock().counted.get(key).cloned());
        if let Some(known) = known {
            return known.into_iter().map(|id| self.wrap(Ok(id))).collect();
        }
        let count = self.lock().ir.add_data_symbol(name, upper);
        let made = self.tuple(NodeKind::Call(function(count)), operands, results)?;
        if let (Some(key), Some(made)) = (key, made.iter().map(Tensor::id).collect()) {
            self.lock().counted.insert(key, made);
        }
        Ok(made)
    }

    /// Names and ranges of the symbols, in their order.
    pub(crate) fn symbol_ranges(&self) -> Vec<(String, i64, i64)> {
        let state = self.lock();
        let all = state.ir.symbols().iter();
        all.map(|s| (s.name.clone(), s.lo, s.hi)).collect()
    }

    fn wrap(&self, added: Result<NodeId, Error>) -> Step {
        let id = added.map_err(|e| (e.problem, e.expected))?;
        let ty = self.lock().ir.ty(id).clone();
        Ok(Tensor::new(self.clone(), id, ty))
    }

    pub(crate) fn report(&self, error: Error) {
        let errors = &mut self.lock().errors;
        if errors.len() < MAX_ERRORS {
            errors.push(error);
        }
    }

    /// From here on nodes come from that node or tensor of an imported model. Returns the one before.
    #[doc(hidden)]
    pub fn set_within(&self, origin: Option<Origin>) -> Option<Origin> {
        std::mem::replace(&mut self.lock().within, origin)
    }

    /// Runs `f` on the graph recorded so far.
    pub fn with_ir<R>(&self, f: impl FnOnce(&IrGraph) -> R) -> R {
        f(&self.lock().ir)
    }

    pub(crate) fn dim_text(&self, dim: &IndexExpr) -> String {
        self.lock().ir.dim_text(dim)
    }

    pub(crate) fn shape_text(&self, shape: &[IndexExpr]) -> String {
        self.lock().ir.shape_text(shape)
    }

    pub(crate) fn type_text(&self, ty: &TensorType) -> String {
        self.lock().ir.type_text(ty)
    }

    /// True if the two extents cannot be the same number.
    pub(crate) fn differ(&self, a: &IndexExpr, b: &IndexExpr) -> bool {
        if a == b {
            return false;
        }
        let i = (a.clone() - b.clone()).interval(&self.lock().ir);
        i.lo > 0 || i.hi < 0
    }

    /// The least that the expression can be, as far as the symbols' ranges say.
    pub(crate) fn least(&self, e: &IndexExpr) -> i64 {
        e.interval(&self.lock().ir).lo
    }

    /// The expression without the divisions, minima and maxima that the symbols' ranges decide.
    #[doc(hidden)]
    pub fn simplify(&self, e: &IndexExpr) -> IndexExpr {
        e.simplify(&self.lock().ir)
    }
}

/// The key (`u64[]`) of an iteration (`i64[]`) of a loop in whose surroundings it is `key`: another one for each iteration.
pub(crate) fn folded(key: &Tensor, iteration: &Tensor) -> Step {
    let constant = |v: u64| key.graph().node(NodeKind::Const(Scalar::from_u64(DType::U64, v)), &[]);
    let shifted = |z: &Tensor, shift: u32| z.map2(ScalarOp::Xor, &z.map2(ScalarOp::Shr, &constant(shift.into())?)?);
    let mut mixed = key.clone();
    for (shift, factor) in MIX {
        mixed = shifted(&mixed, shift)?.map2(ScalarOp::Mul, &constant(factor)?)?;
    }
    let ordinal = iteration.to(DType::U64)?.map2(ScalarOp::Add, &constant(1)?)?;
    shifted(&mixed, LAST_SHIFT)?.map2(ScalarOp::Add, &ordinal.map2(ScalarOp::Mul, &constant(INCREMENT)?)?)
}
