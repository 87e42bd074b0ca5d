//! Values that stay between calls: what executables with states read and update.
//!
//! Invariants:
//! - An entry's bytes are those of its type, in C order, in memory of its own, which calls update in place. Only frozen entries share
//!   memory, and nothing writes it.
//! - They are where calls read and set them: on a device from the first call there on, and in the host's memory where somebody looks at them.
//! - A call either takes place, or leaves every entry as it was, or marks the state torn; a torn state is neither called with nor saved.

use std::fmt;
use std::ops::Index;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use ndarray::{ArrayView, Dimension};
use rustc_hash::FxHashMap;
use tlc_ir::plan::{Plan, PlanState};
use tlc_ir::{DType, Element, HostTensor};
use tlc_runtime::device::Queued;
use tlc_runtime::driver::{
    Description, PackedForms, RunError, Sources, StateBytes, StateMemory, StateView, Stopped, TensorView,
};

use super::input::Input;
use super::output::{ReadError, Typed};

/// Named values that stay between calls: the parameters of a model that is trained and what its optimizer remembers, the cache of a
/// decoder, running statistics.
///
/// A graph reads them with [`Graph::state`](crate::Graph::state) and gives them new values with [`Graph::set`](crate::Graph::set);
/// [`Executable::run_with`](super::Executable::run_with) runs it on a state, which any number of executables may share. They are updated
/// where they are: a step neither copies nor allocates them.
///
/// An executable on a GPU keeps what it reads and sets there, so that its calls copy inputs and outputs alone; an entry is fetched when it
/// is looked at, saved, or used by an executable on another device. Its memory on the GPU is given back with the entry.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, State, inputs};
///
/// // y = w x, trained on pairs of x and y by steps down the squared error's gradient.
/// let g = Graph::new("train");
/// let (x, y) = (g.input("x", DType::F64, [3]), g.input("y", DType::F64, [3]));
/// let w = g.state("w", DType::F64, ());
/// let loss = (&w * &x - &y).square().mean(..);
/// let slope = tlc::grad(&loss, &[&w]).remove(0);
/// g.set("w", &(&w - slope * 0.05));
/// let train = g.compile(&CompileOptions::default())?;
///
/// let mut state = State::new();
/// state.insert("w", 0.0)?;
/// for _ in 0..50 {
///     train.run_with(&mut state, &inputs![&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0]])?;
/// }
/// assert!((state["w"].as_scalar::<f64>()? - 2.0).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct State {
    entries: Vec<Entry>,
    numbers: FxHashMap<String, usize>,
    /// The failure that left it half written.
    torn: Option<String>,
    /// Memory for calls, kept from one to the next.
    spare: Spare,
}

/// A value of a [`State`]. It prints as an [`Output`](super::Output) does.
pub struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Taken out during a call.
    data: Option<Arc<StateMemory>>,
    /// It stays so: what was packed of the value would be wrong for another.
    frozen: bool,
    /// It was frozen in a torn state, so that what it holds may be half written.
    half_written: bool,
    /// What calls have made of a frozen value, in the same hands as `data`.
    packed: Arc<PackedForms>,
}

/// What a call needs of each of a plan's states.
#[derive(Default)]
struct Spare {
    /// The entries that they are.
    numbers: Vec<usize>,
    lent: Vec<Lent>,
    views: Vec<StateView<'static>>,
    /// Those of them that sizes follow from.
    read: Vec<Description<'static>>,
}

/// Memory of an entry during a call.
struct Lent {
    data: Arc<StateMemory>,
    /// Whether the call may write it.
    own: bool,
}

/// The same memory for views that live otherwise: a vector is collected in place.
fn recycled<A, B>(mut views: Vec<A>) -> Vec<B> {
    views.clear();
    views
        .into_iter()
        .map(|_| -> B { unreachable!("the vector is empty") })
        .collect()
}

impl Entry {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether no call may set it; see [`State::freeze`].
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// How many bytes the elements take.
    pub fn size_bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |d| d.bytes())
    }

    /// How many bytes it takes in the memory of GPUs.
    pub fn device_bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |d| d.device_bytes())
    }

    fn typed(&self) -> Result<Typed<'_>, ReadError> {
        let view = self.view().map_err(|e| ReadError::Fetch {
            name: self.name.clone(),
            message: e.to_string(),
        })?;
        Ok(Typed {
            what: "state",
            name: &self.name,
            view,
        })
    }

    /// Copies that calls have made of a frozen value, each once, in layouts in which products on the host read it where it lies, and their bytes.
    /// Whoever shares the entry shares them, and they go with its memory.
    pub fn packed(&self) -> (usize, usize) {
        (self.packed.count(), self.packed.bytes())
    }

    /// The elements in C order; those that are on a GPU alone are fetched, and stay in the host's memory until a call there sets the entry.
    ///
    /// # Errors
    /// If `T` is not the element type, or they cannot be fetched.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ReadError> {
        Ok(self.typed()?.as_slice()?)
    }

    /// The only element of a value of rank 0, or of extents that are all 1.
    ///
    /// # Errors
    /// If `T` is not the element type, or there are more elements or none, or it cannot be fetched.
    pub fn as_scalar<T: Element>(&self) -> Result<T, ReadError> {
        Ok(self.typed()?.as_scalar()?)
    }

    /// A view as an `ndarray` array, as [`Output::as_array`](super::Output::as_array).
    ///
    /// # Errors
    /// If `T` is not the element type, or the value has another number of axes, or it cannot be fetched.
    pub fn as_array<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>, ReadError> {
        Ok(self.typed()?.as_array()?)
    }

    /// The element bytes, native-endian, fetched as [`Entry::as_slice`] does.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub fn bytes(&self) -> Result<&[u8], RunError> {
        self.data.as_ref().map_or(Ok(&[]), |d| d.on_host())
    }

    /// The dtype, extents and bytes.
    ///
    /// # Errors
    /// As [`Entry::bytes`].
    pub fn view(&self) -> Result<TensorView<'_>, RunError> {
        Ok(TensorView {
            dtype: self.dtype,
            shape: &self.shape,
            data: self.bytes()?,
        })
    }

    /// A copy as a host tensor; nothing else stays in the host's memory of what is on a GPU.
    ///
    /// # Errors
    /// If memory for it is refused, or it cannot be fetched.
    pub fn to_host(&self) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(self.dtype, &self.shape)?;
        if let Some(data) = &self.data {
            data.read_into(tensor.bytes_mut())?;
        }
        Ok(tensor)
    }

    /// The bytes where they are, to be read while nothing writes them.
    pub(super) fn shared(&self) -> Option<Arc<StateMemory>> {
        self.data.clone()
    }

    /// What it is, wherever it is.
    pub(super) fn description(&self) -> Description<'_> {
        Description::new(self.dtype, &self.shape, self.size_bytes())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.typed() {
            Ok(typed) => typed.fmt(f),
            Err(e) => write!(f, "{}: {}{:?} ({e})", self.name, self.dtype, self.shape),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl State {
    /// No entries.
    pub fn new() -> State {
        State::default()
    }

    /// Gives an entry a value, which is copied; one that is there already may become one of another type. Elements without a shape are a
    /// vector.
    ///
    /// ```
    /// let mut state = tlc::State::new();
    /// state.insert("b", [1.0f32, 2.0])?;
    /// state.insert("step", 0u64)?;
    /// assert_eq!(state["b"].to_string(), "b: f32[2]\n[1. 2.]");
    /// assert!(state.insert("w", [[1.0f32, 2.0], [3.0, 4.0]]).is_ok());
    /// assert_eq!(state.iter().map(|e| e.name()).collect::<Vec<_>>(), ["b", "step", "w"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A frozen entry; bytes that are not those of the shape; memory that is refused. The state is then as it was.
    pub fn insert<'a>(&mut self, name: &str, value: impl Into<Input<'a>>) -> Result<(), RunError> {
        let value = value.into();
        let data = value.host_data(name)?;
        let (dtype, elements) = (value.dtype(), [data.len() / value.dtype().bytes()]);
        self.put(name, dtype, value.shape().unwrap_or(&elements), data)
    }

    /// Enters an empty cache of that type, capacity included, as [`Graph::cache`](crate::Graph::cache) reads it: zeros, and `NAME.length`.
    ///
    /// # Errors
    /// As [`State::insert`].
    pub fn insert_cache(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), RunError> {
        self.insert(name, &HostTensor::zeros(dtype, shape)?)?;
        self.insert(&crate::graph::states::length_name(name), 0i64)
    }

    fn put(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<(), RunError> {
        let expected = tlc_ir::tensor::element_count(shape).and_then(|n| n.checked_mul(dtype.bytes()));
        if expected != Some(bytes.len()) {
            return Err(RunError::InputBytes {
                name: name.to_string(),
                shape: shape.to_vec(),
                dtype,
                expected: expected.unwrap_or(usize::MAX),
                align: dtype.bytes(),
                found: bytes.len(),
            });
        }
        let known = self.numbers.get(name).map(|&at| &mut self.entries[at]);
        if known.as_ref().is_some_and(|e| e.frozen) {
            return Err(RunError::StateShared { name: name.to_string() });
        }
        // In place, where there is room for it.
        if let Some(entry) = known
            && entry.size_bytes() == bytes.len()
            && let Some(memory) = entry.data.as_mut().and_then(Arc::get_mut)
        {
            memory.overwrite(bytes)?;
            entry.dtype = dtype;
            entry.shape = shape.to_vec();
            return Ok(());
        }
        let data = Arc::new(StateMemory::of(bytes)?);
        self.enter(name, dtype, shape.to_vec(), data);
        Ok(())
    }

    /// Puts an entry in place of the one of its name, or behind all others.
    fn enter(&mut self, name: &str, dtype: DType, shape: Vec<usize>, data: Arc<StateMemory>) {
        let entry = Entry {
            name: name.to_string(),
            dtype,
            shape,
            data: Some(data),
            frozen: false,
            half_written: false,
            packed: Arc::default(),
        };
        match self.numbers.get(name) {
            Some(&at) => self.entries[at] = entry,
            None => {
                self.numbers.insert(name.to_string(), self.entries.len());
                self.entries.push(entry);
            }
        }
    }

    /// The entry of that name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.numbers.get(name).map(|&at| &self.entries[at])
    }

    /// Takes an entry out; returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(at) = self.numbers.remove(name) else {
            return false;
        };
        self.entries.remove(at);
        self.numbers.values_mut().filter(|n| **n > at).for_each(|n| *n -= 1);
        true
    }

    /// Takes all entries out. A torn state is whole again.
    pub fn clear(&mut self) {
        *self = State::new();
    }

    /// The entries, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all entries; those that are shared count here as well.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(Entry::size_bytes).sum()
    }

    /// Bytes that the entries take in the memory of GPUs.
    pub fn device_bytes(&self) -> u64 {
        self.entries.iter().map(Entry::device_bytes).sum()
    }

    /// Whether a call failed in the middle of writing entries: what they hold is anything. Such a state takes no calls until it is loaded
    /// ([`State::load`]) or cleared.
    pub fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Lets no call set the entries that `which` names, from here on. They may then be shared. Calls on processors keep copies of those that
    /// products would otherwise copy piece by piece in every call ([`Entry::packed`]), which is faster and takes their bytes once
    /// more; [`CompileOptions::max_memory_bytes`](super::CompileOptions::max_memory_bytes) limits that, and
    /// [`Executable::memory_with`](super::Executable::memory_with) says how many bytes they are.
    pub fn freeze(&mut self, which: impl Fn(&str) -> bool) {
        let torn = self.is_torn();
        for e in self.entries.iter_mut().filter(|e| which(&e.name)) {
            // Of those that were frozen before it was torn, the call that failed has written none.
            e.half_written |= torn && !e.frozen;
            e.frozen = true;
        }
    }

    /// A state of its own that has this one's frozen entries, in the same memory: eight decoders have one set of weights, and each a cache
    /// of its own. It is torn as well if any of them was frozen while this one was torn.
    ///
    /// ```
    /// let mut weights = tlc::State::new();
    /// weights.insert("w", vec![1.0f32; 1000])?;
    /// weights.insert("length", 0i64)?;
    /// weights.freeze(|name| name == "w");
    /// let mut decoder = weights.share();
    /// decoder.insert("length", 7i64)?;
    /// assert_eq!(decoder["w"].bytes()?.as_ptr(), weights["w"].bytes()?.as_ptr());
    /// assert_eq!(decoder.len(), 2);
    /// assert!(decoder.insert("w", 1.0f32).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(&self) -> State {
        let mut other = State::new();
        for e in self.entries.iter().filter(|e| e.frozen) {
            if let Some(data) = e.shared() {
                other.enter(&e.name, e.dtype, e.shape.clone(), data);
                if let Some(&at) = other.numbers.get(&e.name) {
                    other.entries[at].packed = Arc::clone(&e.packed);
                }
                if e.half_written {
                    other.torn.clone_from(&self.torn);
                }
            }
        }
        other.freeze(|_| true);
        other
    }

    pub(super) fn whole(&self) -> Result<(), RunError> {
        match &self.torn {
            None => Ok(()),
            Some(cause) => Err(RunError::StateTorn { cause: cause.clone() }),
        }
    }

    /// Puts the values of another in place of all of these. Entries that were here keep their order; others come behind them.
    pub(super) fn replace(&mut self, mut other: State) {
        let place = |e: &Entry| self.numbers.get(&e.name).copied().unwrap_or(usize::MAX);
        other.entries.sort_by_key(place);
        let numbered = other.entries.iter().enumerate();
        other.numbers = numbered.map(|(at, e)| (e.name.clone(), at)).collect();
        *self = other;
    }

    /// Those of the plan's states that it reads, each with its declaration.
    pub(super) fn read<'s>(&'s self, plan: &'s Plan) -> impl Iterator<Item = (&'s PlanState, &'s Entry)> + Clone {
        let read = plan.states.iter().filter(|s| s.read);
        read.filter_map(|s| Some((s, self.get(&s.name)?)))
    }

    /// Whether a state of a plan has memory on a device.
    pub(super) fn is_on(&self, state: &PlanState, device: &Arc<dyn Queued>) -> bool {
        let data = self.get(&state.name).and_then(|e| e.data.as_ref());
        data.is_some_and(|d| d.is_on(device))
    }

    /// Whether all states of a plan are there; an error if one that it reads is not.
    pub(super) fn has_what_is_read(&self, plan: &Plan) -> Result<bool, RunError> {
        let mut complete = true;
        for s in plan.states.iter().filter(|s| !self.numbers.contains_key(&s.name)) {
            if s.read {
                return Err(RunError::StateMissing {
                    name: s.name.clone(),
                    expected: super::type_text(plan, &s.ty),
                });
            }
            complete = false;
        }
        Ok(complete)
    }

    /// Calls `f` with what sizes follow from: inputs, and those of the plan's states that it reads.
    pub(super) fn with_sources<R>(
        &mut self,
        plan: &Plan,
        inputs: &[TensorView<'_>],
        f: impl FnOnce(&State, Sources<'_>) -> R,
    ) -> R {
        let mut read: Vec<Description<'_>> = std::mem::take(&mut self.spare.read);
        read.extend(self.read(plan).map(|(_, entry)| entry.description()));
        let result = f(self, Sources::new(inputs, &read));
        self.spare.read = recycled(read);
        result
    }

    /// Runs a call of a plan with its states. `shapes` are those of all of them, where some are not there yet.
    pub(super) fn lend<R>(
        &mut self,
        plan: &Plan,
        shapes: &[Vec<usize>],
        call: impl FnOnce(&mut [StateView<'_>]) -> Result<R, Stopped>,
    ) -> Result<R, RunError> {
        let known = self.entries.len();
        for (declared, shape) in plan.states.iter().zip(shapes) {
            if self.get(&declared.name).is_none() {
                let (name, dtype) = (&declared.name, declared.ty.dtype);
                let bytes = tlc_ir::tensor::element_count(shape).and_then(|n| n.checked_mul(dtype.bytes()));
                let Some(bytes) = bytes else {
                    self.forget_from(known);
                    return Err(RunError::Overflow { name: name.clone() });
                };
                // Memory for it is found where the call has it.
                self.enter(name, dtype, shape.clone(), Arc::new(StateMemory::zeros(bytes)));
            }
        }
        let mut spare = std::mem::take(&mut self.spare);
        spare.numbers.clear();
        spare.lent.clear();
        for declared in &plan.states {
            let Some(&at) = self.numbers.get(&declared.name) else {
                continue;
            };
            let entry = &mut self.entries[at];
            if let Some(mut data) = entry.data.take() {
                spare.numbers.push(at);
                let own = declared.set.is_some() && !entry.frozen && Arc::get_mut(&mut data).is_some();
                spare.lent.push(Lent { data, own });
            }
        }
        let mut views = recycled(std::mem::take(&mut spare.views));
        for (at, lent) in spare.numbers.iter().zip(&mut spare.lent) {
            let entry = &self.entries[*at];
            let data = match (lent.own, entry.frozen) {
                (true, _) => StateBytes::Own(Arc::get_mut(&mut lent.data).expect("nobody else's")),
                (false, false) => StateBytes::Shared(&lent.data),
                (false, true) => StateBytes::Frozen {
                    memory: &lent.data,
                    packed: &entry.packed,
                },
            };
            views.push(StateView {
                dtype: entry.dtype,
                shape: &entry.shape,
                data,
            });
        }
        // What was lent comes back whatever happens.
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut views)));
        spare.views = recycled(views);
        for (at, lent) in spare.numbers.iter().zip(spare.lent.drain(..)) {
            self.entries[*at].data = Some(lent.data);
        }
        self.spare = spare;
        let result = result.unwrap_or_else(|panic| {
            self.torn = Some("it panicked".into());
            resume_unwind(panic)
        });
        result.map_err(|stopped| {
            let older = |s: &PlanState| s.set.is_some() && self.numbers.get(&s.name).is_some_and(|&at| at < known);
            if stopped.torn && plan.states.iter().any(older) {
                self.torn = Some(stopped.error.to_string());
            }
            self.forget_from(known);
            stopped.error
        })
    }

    /// Takes out the entries from that number on.
    fn forget_from(&mut self, number: usize) {
        for entry in self.entries.drain(number..) {
            self.numbers.remove(&entry.name);
        }
    }
}

/// The entry of that name; panics if there is none, see [`State::get`].
impl Index<&str> for State {
    type Output = Entry;
    fn index(&self, name: &str) -> &Entry {
        self.get(name).unwrap_or_else(|| {
            let names: Vec<&str> = self.iter().map(Entry::name).collect();
            panic!("no state `{name}`; expected {}", names.join(", "))
        })
    }
}

impl fmt::Debug for State {
    /// The names and types of its entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self
            .iter()
            .map(|e| format!("{}: {}{:?}", e.name, e.dtype, e.shape))
            .collect();
        let torn = if self.is_torn() { ", torn" } else { "" };
        write!(f, "State({}{torn})", entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use tlc_ir::TensorType;
    use tlc_ir::plan::SlotId;

    use super::*;

    #[test]
    fn a_call_that_panics_gives_back_what_it_was_lent_and_leaves_it_torn() {
        let mut state = State::new();
        state.insert("w", [1.0f32, 2.0]).expect("memory");
        let plan = Plan {
            states: vec![PlanState {
                name: "w".into(),
                ty: TensorType::new(DType::F32, [2]),
                slot: SlotId(0),
                read: true,
                set: Some(SlotId(0)),
            }],
            ..Plan::default()
        };
        let call = |state: &mut State| {
            state.lend(&plan, &[], |views| -> Result<(), Stopped> {
                assert_eq!(views.len(), 1);
                panic!("in the middle")
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(|| call(&mut state))).is_err());
        assert!(state.is_torn());
        assert_eq!(state["w"].as_slice::<f32>().expect("floats"), [1.0, 2.0]);
        assert!(state.whole().is_err());
    }
}
