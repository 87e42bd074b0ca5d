//! Data that goes into a call, or becomes a constant.
//!
//! Invariants: an [`Input`] borrows what lies in C order and copies nothing else than arrays in another order; its elements are
//! aligned. Elements without a shape (slices, vectors) get it from the graph's declaration when a call is made, never before.

use std::cell::Cell;
use std::fmt;

use ndarray::{Array, ArrayBase, ArrayView, Dimension};
use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::plan::{Plan, PlanInput};
use tlc_ir::tensor::TensorError;
use tlc_ir::{DType, HostTensor};
use tlc_runtime::driver::{DeviceTensor, ResidentInput, RunError, TensorView};
use tlc_runtime::memory::AllocError;

use super::output::Output;
use crate::datum::Datum;

/// Extents that are kept without memory of their own.
pub(super) type Shape = SmallVec<[usize; 4]>;

/// Data for an input of a call, or for a constant of a graph: made with `From`, or by [`inputs!`](crate::inputs).
///
/// | from | shape | copied |
/// |---|---|---|
/// | a scalar | `[]` | yes |
/// | `&[T]`, `&Vec<T>`, `&[T; N]` | from the graph, see below | no |
/// | `Vec<T>`, `[T; N]` | from the graph, see below | no: taken over |
/// | nested arrays, `&[[T; N]; M]` | `[M, N]` | no |
/// | `&Array`, `ArrayView`, `&ArrayView`, `ArcArray`, … | the array's | only if it is not in C order |
/// | `Array` | the array's | only if it is not in C order |
/// | [`&HostTensor`](HostTensor), [`&Output`](Output) | the tensor's | no |
/// | [`Output`] | the tensor's | no: given away, see [`Executable::run_donating`](super::Executable::run_donating) |
/// | [`TensorView`], [`Input::bytes`] | as given | no |
/// | [`&DeviceTensor`](DeviceTensor) | the tensor's | no: for [`Executable::run_on_device`](super::Executable::run_on_device) alone |
/// | [`DeviceTensor`] | the tensor's | no: given away to [`Executable::run_on_device`](super::Executable::run_on_device) |
///
/// Element types are those of [`Datum`]; the dtype must be the one that the graph declares, nothing is converted.
///
/// **Elements without a shape** take that of the input they are for: an input of one axis has as many elements as are given;
/// with more axes, extents are known if they are numbers, sizes that
/// [`CompileOptions::symbols`](super::CompileOptions::symbols) gives, or sizes that another input has shown (one with a shape,
/// or one before it in the list); at most one is then left, and follows from the number of elements. As a constant they are a
/// vector.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs};
///
/// let g = Graph::new("scaled_rows");
/// let n = g.symbol("n", 1..=100);
/// let x = g.input("x", DType::F32, (&n, 2));
/// let k = g.input("k", DType::F32, ());
/// g.output("y", &(&x * &k));
/// let scaled = g.compile(&CompileOptions::default())?;
/// let y = scaled.run(&inputs![&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], 10.0f32])?;
/// assert_eq!(y["y"].shape(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Input<'a> {
    dtype: DType,
    extents: Extents<'a>,
    data: Data<'a>,
}

enum Extents<'a> {
    Borrowed(&'a [usize]),
    Own(Shape),
    /// The graph says.
    Flat,
}

enum Data<'a> {
    Bytes(&'a [u8]),
    /// Of a type that has no value for some bytes, and not looked at yet.
    Unchecked(&'a [u8]),
    Host(&'a HostTensor),
    /// One element: the first bytes.
    Scalar([u64; 1]),
    Owned(Box<dyn Bytes + Send + Sync + 'a>),
    OwnedHost(Box<HostTensor>),
    /// A result of an earlier call, given away.
    Result(Box<Output>),
    /// In the memory of a device: lent, or given away.
    Device(&'a DeviceTensor),
    GivenDevice(Box<DeviceTensor>),
    /// A copy of so many bytes was needed, and there was no memory for it.
    NoMemory(usize),
}

/// Elements in C order, of a type that is forgotten.
trait Bytes {
    fn bytes(&self) -> &[u8];
}

impl<T: Datum> Bytes for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// Makes an array of [`Input`]s: `inputs![&a, 2.0f32]` by position, `inputs!["a" => &a, "k" => 2.0f32]` by name.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs};
///
/// let g = Graph::new("axpy");
/// let (k, x, y) = (g.input("k", DType::F32, ()), g.input("x", DType::F32, [2]), g.input("y", DType::F32, [2]));
/// g.output("z", &(&k * &x + &y));
/// let axpy = g.compile(&CompileOptions::default())?;
/// let (x, y) = (vec![1.0f32, 2.0], ndarray::arr1(&[10.0f32, 20.0]));
/// let by_position = axpy.run(&inputs![2.0f32, &x, &y])?;
/// let by_name = axpy.run_named(&inputs!["y" => &y, "x" => &x, "k" => 2.0f32])?;
/// assert_eq!(by_position["z"].as_slice::<f32>()?, by_name[0].as_slice::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! inputs {
    ($($name:expr => $value:expr),+ $(,)?) => { [$(($name, $crate::Input::from($value))),+] };
    ($($value:expr),* $(,)?) => { [$($crate::Input::from($value)),*] };
}

impl<'a> Input<'a> {
    /// Elements of any dtype as native-endian bytes in C order, aligned to the elements. Bools are 0 or 1; of a type of less
    /// than a byte, the bits above the value are 0. Whether that holds, and the bytes are as many as the shape says, is checked by the call.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, Input};
    ///
    /// let g = Graph::new("not");
    /// g.output("y", &g.input("x", DType::Bool, [2]).logical_not());
    /// let not = g.compile(&CompileOptions::default())?;
    /// assert_eq!(not.run(&[Input::bytes(DType::Bool, &[2], &[0, 1])])?["y"].bytes(), [1, 0]);
    /// let error = not.run(&[Input::bytes(DType::Bool, &[2], &[1, 7])]).unwrap_err();
    /// assert_eq!(error.to_string(), "input `x`: element 1 of bool is 7, expected at most 1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Input<'a> {
        Input {
            dtype,
            extents: Extents::Borrowed(shape),
            data: match largest_byte(dtype) {
                Some(_) => Data::Unchecked(bytes),
                None => Data::Bytes(bytes),
            },
        }
    }

    fn flat<T: Datum>(data: &'a [T]) -> Input<'a> {
        Input {
            dtype: T::DTYPE,
            extents: Extents::Flat,
            data: Data::Bytes(bytemuck::cast_slice(data)),
        }
    }

    fn shaped<T: Datum>(shape: &[usize], data: &'a [T]) -> Input<'a> {
        Input {
            dtype: T::DTYPE,
            extents: Extents::Own(shape.into()),
            data: Data::Bytes(bytemuck::cast_slice(data)),
        }
    }

    fn owned<T: Datum>(extents: Extents<'a>, data: Vec<T>) -> Input<'a> {
        Input {
            dtype: T::DTYPE,
            extents,
            data: Data::Owned(Box::new(data)),
        }
    }

    /// A copy in C order.
    fn copied<T: Datum>(shape: &[usize], elements: impl ExactSizeIterator<Item = T>) -> Input<'a> {
        let mut data = Vec::new();
        match data.try_reserve_exact(elements.len()) {
            Ok(()) => {
                data.extend(elements);
                Input::owned(Extents::Own(shape.into()), data)
            }
            Err(_) => Input {
                dtype: T::DTYPE,
                extents: Extents::Own(shape.into()),
                data: Data::NoMemory(elements.len().saturating_mul(T::DTYPE.bytes())),
            },
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents; `None` if the graph says.
    pub fn shape(&self) -> Option<&[usize]> {
        match &self.extents {
            Extents::Borrowed(shape) => Some(shape),
            Extents::Own(shape) => Some(shape),
            Extents::Flat => None,
        }
    }

    /// The element bytes, native-endian; none where memory for a copy was refused, or a device has them.
    fn data(&self) -> &[u8] {
        match &self.data {
            Data::Bytes(bytes) | Data::Unchecked(bytes) => bytes,
            Data::Host(tensor) => tensor.aligned_bytes(),
            Data::OwnedHost(tensor) => tensor.aligned_bytes(),
            Data::Scalar(word) => &bytemuck::bytes_of(word)[..self.dtype.bytes()],
            Data::Owned(data) => data.bytes(),
            Data::Result(output) => output.bytes(),
            Data::NoMemory(_) | Data::Device(_) | Data::GivenDevice(_) => &[],
        }
    }

    /// The element bytes of a value of that name, in the host's memory.
    ///
    /// # Errors
    /// If they are elsewhere, or memory for a copy was refused.
    pub(super) fn host_data(&self, name: &str) -> Result<&[u8], RunError> {
        match self.data {
            Data::NoMemory(bytes) => Err(AllocError { bytes }.into()),
            Data::Device(_) | Data::GivenDevice(_) => Err(RunError::OnDevice { name: name.to_string() }),
            Data::Unchecked(bytes) => {
                has_values(name, self.dtype, bytes)?;
                Ok(bytes)
            }
            _ => Ok(self.data()),
        }
    }

    fn elements(&self) -> usize {
        self.data().len() / self.dtype.bytes()
    }

    /// The data, lent.
    pub fn borrowed(&self) -> Input<'_> {
        let extents = match self.shape() {
            Some(shape) => Extents::Borrowed(shape),
            None => Extents::Flat,
        };
        let data = match self.data {
            Data::NoMemory(bytes) => Data::NoMemory(bytes),
            Data::Device(tensor) => Data::Device(tensor),
            Data::GivenDevice(ref tensor) => Data::Device(tensor),
            Data::Unchecked(bytes) => Data::Unchecked(bytes),
            _ => Data::Bytes(self.data()),
        };
        Input {
            dtype: self.dtype,
            extents,
            data,
        }
    }

    /// The data as a host tensor, shared where it is one, else copied. Elements without a shape are a vector.
    ///
    /// # Errors
    /// If the bytes do not fit the shape, or memory is refused.
    pub fn to_host(&self) -> Result<HostTensor, TensorError> {
        match &self.data {
            Data::Host(tensor) => Ok((*tensor).clone()),
            Data::OwnedHost(tensor) => Ok((**tensor).clone()),
            Data::NoMemory(bytes) => Err(TensorError::OutOfMemory { bytes: *bytes }),
            // There are fewer elements here than the shape says: an error.
            _ => HostTensor::from_bytes(self.dtype, self.shape().unwrap_or(&[self.elements()]), self.data()),
        }
    }

    /// Whether it is these elements; elements without a shape are those of any shape.
    #[doc(hidden)]
    pub fn is_same(&self, tensor: &HostTensor) -> bool {
        self.dtype == tensor.dtype()
            && self.shape().is_none_or(|s| s == tensor.shape())
            && self.data() == tensor.bytes()
    }

    /// The result that was given away, if it is one.
    pub(super) fn take_result(&mut self) -> Option<Output> {
        match std::mem::replace(&mut self.data, Data::Bytes(&[])) {
            Data::Result(output) => Some(*output),
            data => {
                self.data = data;
                None
            }
        }
    }

    /// The data in that shape, where it is. What was given away is taken out.
    pub(super) fn take_resident<'v>(&'v mut self, shape: &'v [usize]) -> ResidentInput<'v> {
        if let Data::GivenDevice(_) = self.data
            && let Data::GivenDevice(tensor) = std::mem::replace(&mut self.data, Data::Bytes(&[]))
        {
            return ResidentInput::Donated(*tensor);
        }
        match &self.data {
            Data::Device(tensor) => ResidentInput::Lent(tensor),
            _ => {
                let own = self.shape();
                ResidentInput::Host(self.view_as(own.unwrap_or(shape)))
            }
        }
    }

    /// The data in that shape.
    pub(super) fn view_as<'v>(&'v self, shape: &'v [usize]) -> TensorView<'v> {
        TensorView {
            dtype: self.dtype,
            shape,
            data: self.data(),
        }
    }
}

/// The largest byte of an element, of a type that does not use them all.
fn largest_byte(dtype: DType) -> Option<u8> {
    match dtype {
        DType::Bool => Some(1),
        d if d.value_bits() < 8 => Some((1 << d.value_bits()) - 1),
        _ => None,
    }
}

/// An error if a byte is no element of that type.
fn has_values(name: &str, dtype: DType, bytes: &[u8]) -> Result<(), RunError> {
    let Some(most) = largest_byte(dtype) else { return Ok(()) };
    // Most often there is none, which is found faster than where.
    if bytes.iter().copied().max() <= Some(most) {
        return Ok(());
    }
    let at = bytes.iter().position(|&b| b > most).unwrap_or_default();
    Err(RunError::InputValue {
        name: name.to_string(),
        dtype,
        at,
        found: bytes[at],
        most,
    })
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape() {
            Some(shape) => write!(f, "Input({}{shape:?})", self.dtype),
            None => write!(f, "Input({} elements of {})", self.elements(), self.dtype),
        }
    }
}

impl<'a> From<&'a DeviceTensor> for Input<'a> {
    fn from(tensor: &'a DeviceTensor) -> Self {
        Input {
            dtype: tensor.dtype(),
            extents: Extents::Borrowed(tensor.shape()),
            data: Data::Device(tensor),
        }
    }
}

/// A tensor given away: see [`Executable::run_on_device`](super::Executable::run_on_device).
impl From<DeviceTensor> for Input<'_> {
    fn from(tensor: DeviceTensor) -> Self {
        Input {
            dtype: tensor.dtype(),
            extents: Extents::Own(tensor.shape().into()),
            data: Data::GivenDevice(Box::new(tensor)),
        }
    }
}

/// A result given away: see [`Executable::run_donating`](super::Executable::run_donating).
impl From<Output> for Input<'_> {
    fn from(output: Output) -> Self {
        Input {
            dtype: output.dtype(),
            extents: Extents::Own(output.shape().into()),
            data: Data::Result(Box::new(output)),
        }
    }
}

impl<'a> From<&'a Output> for Input<'a> {
    fn from(output: &'a Output) -> Self {
        Input {
            dtype: output.dtype(),
            extents: Extents::Borrowed(output.shape()),
            data: Data::Bytes(output.bytes()),
        }
    }
}

impl<'a> From<&'a Input<'_>> for Input<'a> {
    fn from(input: &'a Input<'_>) -> Self {
        input.borrowed()
    }
}

impl<'a> From<TensorView<'a>> for Input<'a> {
    fn from(v: TensorView<'a>) -> Self {
        Input::bytes(v.dtype, v.shape, v.data)
    }
}

impl<'a> From<&'a HostTensor> for Input<'a> {
    fn from(tensor: &'a HostTensor) -> Self {
        Input {
            dtype: tensor.dtype(),
            extents: Extents::Borrowed(tensor.shape()),
            data: Data::Host(tensor),
        }
    }
}

impl From<HostTensor> for Input<'_> {
    fn from(tensor: HostTensor) -> Self {
        Input {
            dtype: tensor.dtype(),
            extents: Extents::Own(tensor.shape().into()),
            data: Data::OwnedHost(Box::new(tensor)),
        }
    }
}

impl<T: Datum> From<T> for Input<'_> {
    fn from(value: T) -> Self {
        let mut word = [0u64];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut word);
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Input {
            dtype: T::DTYPE,
            extents: Extents::Borrowed(&[]),
            data: Data::Scalar(word),
        }
    }
}

impl<'a, T: Datum> From<&'a [T]> for Input<'a> {
    fn from(data: &'a [T]) -> Self {
        Input::flat(data)
    }
}

impl<'a, T: Datum> From<&'a Vec<T>> for Input<'a> {
    fn from(data: &'a Vec<T>) -> Self {
        Input::flat(data)
    }
}

impl<'a, T: Datum, const N: usize> From<&'a [T; N]> for Input<'a> {
    fn from(data: &'a [T; N]) -> Self {
        Input::flat(data)
    }
}

impl<T: Datum> From<Vec<T>> for Input<'_> {
    fn from(data: Vec<T>) -> Self {
        Input::owned(Extents::Flat, data)
    }
}

impl<T: Datum, const N: usize> From<[T; N]> for Input<'_> {
    fn from(data: [T; N]) -> Self {
        Input::owned(Extents::Flat, data.to_vec())
    }
}

impl<'a, T: Datum, const N: usize, const M: usize> From<&'a [[T; N]; M]> for Input<'a> {
    fn from(data: &'a [[T; N]; M]) -> Self {
        Input::shaped(&[M, N], data.as_flattened())
    }
}

impl<T: Datum, const N: usize, const M: usize> From<[[T; N]; M]> for Input<'_> {
    fn from(data: [[T; N]; M]) -> Self {
        Input::owned(Extents::Own([M, N][..].into()), data.as_flattened().to_vec())
    }
}

impl<'a, T: Datum, const N: usize, const M: usize, const K: usize> From<&'a [[[T; N]; M]; K]> for Input<'a> {
    fn from(data: &'a [[[T; N]; M]; K]) -> Self {
        Input::shaped(&[K, M, N], data.as_flattened().as_flattened())
    }
}

impl<T: Datum, const N: usize, const M: usize, const K: usize> From<[[[T; N]; M]; K]> for Input<'_> {
    fn from(data: [[[T; N]; M]; K]) -> Self {
        let elements = data.as_flattened().as_flattened();
        Input::owned(Extents::Own([K, M, N][..].into()), elements.to_vec())
    }
}

impl<'a, T: Datum, S: ndarray::Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for Input<'a> {
    fn from(a: &'a ArrayBase<S, D>) -> Self {
        match a.as_slice() {
            Some(data) => Input {
                dtype: T::DTYPE,
                extents: Extents::Borrowed(a.shape()),
                data: Data::Bytes(bytemuck::cast_slice(data)),
            },
            None => Input::copied(a.shape(), a.iter().copied()),
        }
    }
}

impl<'a, T: Datum, D: Dimension> From<ArrayView<'a, T, D>> for Input<'a> {
    fn from(a: ArrayView<'a, T, D>) -> Self {
        match a.to_slice() {
            Some(data) => Input::shaped(a.shape(), data),
            None => Input::copied(a.shape(), a.iter().copied()),
        }
    }
}

impl<T: Datum, D: Dimension> From<Array<T, D>> for Input<'_> {
    fn from(a: Array<T, D>) -> Self {
        if !a.is_standard_layout() {
            return Input::copied(a.shape(), a.iter().copied());
        }
        let (shape, len) = (Shape::from(a.shape()), a.len());
        // An array that was cut out of a larger one lies somewhere in its memory.
        match a.into_raw_vec_and_offset() {
            (data, None | Some(0)) if data.len() == len => Input::owned(Extents::Own(shape), data),
            (data, start) => Input::copied(&shape, data[start.unwrap_or(0)..][..len].iter().copied()),
        }
    }
}

/// Inputs of a call by name: `(name, data)`.
pub type Named<'n, 'a> = (&'n str, Input<'a>);

/// The inputs in the order that a graph declares them.
///
/// # Errors
/// A name that the graph does not have, one given twice, an input without data.
#[doc(hidden)]
pub fn in_order<'i, 'a>(
    names: impl ExactSizeIterator<Item = &'i str> + Clone,
    given: &'i [Named<'_, 'a>],
) -> Result<Vec<&'i Input<'a>>, RunError> {
    for (k, (name, _)) in given.iter().enumerate() {
        if !names.clone().any(|n| n == *name) {
            return Err(RunError::UnknownInput {
                name: (*name).to_string(),
                expected: names.map(str::to_string).collect(),
            });
        }
        if given[..k].iter().any(|(n, _)| n == name) {
            let name = (*name).to_string();
            return Err(RunError::RepeatedInput { name });
        }
    }
    let mut inputs = Vec::with_capacity(names.len());
    for name in names {
        let Some((_, input)) = given.iter().find(|(n, _)| *n == name) else {
            let name = name.to_string();
            return Err(RunError::MissingInput { name });
        };
        inputs.push(input);
    }
    Ok(inputs)
}

/// Inputs whose views lie on the stack.
const FEW: usize = 8;

thread_local! {
    /// Memory for the views of many inputs, kept from call to call.
    static SPARE: Cell<(Vec<TensorView<'static>>, Vec<usize>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// The same memory for views that live otherwise: a vector is collected in place.
fn recycled<'b>(mut views: Vec<TensorView<'_>>) -> Vec<TensorView<'b>> {
    views.clear();
    views
        .into_iter()
        .map(|_| -> TensorView<'b> { unreachable!("the vector is empty") })
        .collect()
}

/// Shows declared extents and the actual ones of what is known beside the inputs: states.
pub(super) type StateExtents<'t> = &'t dyn Fn(&mut dyn FnMut(&[IndexExpr], &[usize]));

/// Calls `f` with views of the inputs of a call. Allocates nothing once it was called on the thread with so many.
pub(super) fn with_views<'a, I: AsRef<Input<'a>>, R>(
    plan: &Plan,
    (given, of_states): (&[(String, i64)], StateExtents<'_>),
    inputs: &[I],
    f: impl FnOnce(&[TensorView<'_>]) -> Result<R, RunError>,
) -> Result<R, RunError> {
    if inputs.len() <= FEW {
        let mut extents: SmallVec<[usize; 4 * FEW]> = SmallVec::new();
        infer(plan, (given, of_states), inputs, false, &mut |n| extents.push(n))?;
        let mut views = [TensorView::EMPTY; FEW];
        let views = &mut views[..inputs.len()];
        let mut all = view_all(plan, inputs, &extents);
        views.fill_with(|| all.next().unwrap_or(TensorView::EMPTY));
        return f(views);
    }
    let (views, mut extents) = SPARE.take();
    extents.clear();
    let mut views = recycled(views);
    let result = infer(plan, (given, of_states), inputs, false, &mut |n| extents.push(n)).and_then(|()| {
        views.extend(view_all(plan, inputs, &extents));
        f(&views)
    });
    SPARE.set((recycled(views), extents));
    result
}

/// The inputs of a call, wherever they are. What was given away is taken out.
pub(super) fn residents<'v>(plan: &Plan, inputs: &'v mut [Input<'_>], extents: &'v [usize]) -> Vec<ResidentInput<'v>> {
    let mut rest = extents;
    let residents = inputs.iter_mut().enumerate().map(|(k, input)| {
        let flat = input.shape().is_none();
        let axes = if flat { plan.inputs[k].ty.shape.len() } else { 0 };
        let (own, behind) = rest.split_at(axes);
        rest = behind;
        input.take_resident(own)
    });
    residents.collect()
}

/// Views of the inputs; `extents` are those of the inputs that come without a shape, one input after another.
#[inline]
fn view_all<'v, 'a: 'v, I: AsRef<Input<'a>>>(
    plan: &'v Plan,
    inputs: &'v [I],
    mut extents: &'v [usize],
) -> impl Iterator<Item = TensorView<'v>> {
    inputs.iter().enumerate().map(move |(k, input)| {
        let input = input.as_ref();
        let shape = input.shape().unwrap_or_else(|| {
            let (shape, rest) = extents.split_at(plan.inputs[k].ty.shape.len());
            extents = rest;
            shape
        });
        input.view_as(shape)
    })
}

/// Appends the extents of the inputs that come without a shape; `on_device` says whether inputs may be in the memory of a device.
pub(super) fn infer<'a, I: AsRef<Input<'a>>>(
    plan: &Plan,
    known_beside: (&[(String, i64)], StateExtents<'_>),
    inputs: &[I],
    on_device: bool,
    append: &mut impl FnMut(usize),
) -> Result<(), RunError> {
    let mut sizes: Option<SmallVec<[Option<i64>; 8]>> = None;
    for (k, input) in inputs.iter().enumerate() {
        let input = input.as_ref();
        match input.data {
            Data::NoMemory(bytes) => return Err(AllocError { bytes }.into()),
            Data::Device(_) | Data::GivenDevice(_) if !on_device => {
                let name = plan.inputs.get(k).map(|i| i.name.clone()).unwrap_or_default();
                return Err(RunError::OnDevice { name });
            }
            Data::Unchecked(bytes) => {
                let name = plan.inputs.get(k).map_or("", |i| i.name.as_str());
                has_values(name, input.dtype, bytes)?;
            }
            _ => {}
        }
        if input.shape().is_some() {
            continue;
        }
        // Too many inputs: the call says so.
        let Some(declared) = plan.inputs.get(k) else {
            return Err(RunError::InputCount {
                expected: plan.inputs.len(),
                found: inputs.len(),
            });
        };
        let elements = input.elements();
        if declared.ty.shape.len() == 1 {
            append(elements);
            continue;
        }
        let sizes = sizes.get_or_insert_with(|| known(plan, known_beside, inputs));
        let shape = shape_of(&declared.ty.shape, elements, sizes).ok_or_else(|| untold(plan, declared, elements))?;
        shape.into_iter().for_each(&mut *append);
    }
    Ok(())
}

/// The size that an extent is, if it is one.
fn symbol(extent: &IndexExpr) -> Option<usize> {
    match extent {
        IndexExpr::Node(node) => match **node {
            IndexNode::Sym(s) => Some(s.0 as usize),
            _ => None,
        },
        IndexExpr::Const(_) => None,
    }
}

/// The sizes that are known without looking at the number of elements, by symbol.
fn known<'a, I: AsRef<Input<'a>>>(
    plan: &Plan,
    (given, of_states): (&[(String, i64)], StateExtents<'_>),
    inputs: &[I],
) -> SmallVec<[Option<i64>; 8]> {
    let named = |name: &str| given.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    let fixed = |s: &tlc_ir::graph::Symbol| (s.lo == s.hi).then_some(s.lo);
    let mut sizes: SmallVec<_> = plan.symbols.iter().map(|s| named(&s.name).or(fixed(s))).collect();
    for (declared, input) in plan.inputs.iter().zip(inputs) {
        let input = input.as_ref();
        let one_axis = [input.elements()];
        let shape = match input.shape() {
            Some(shape) => shape,
            None if declared.ty.shape.len() == 1 => &one_axis,
            None => continue,
        };
        bind(&declared.ty.shape, shape, &mut sizes);
    }
    of_states(&mut |declared, shape| bind(declared, shape, &mut sizes));
    sizes
}

fn bind(declared: &[IndexExpr], shape: &[usize], sizes: &mut [Option<i64>]) {
    for (extent, &n) in declared.iter().zip(shape) {
        if let Some(s) = symbol(extent) {
            sizes[s].get_or_insert(n as i64);
        }
    }
}

/// The extents of so many elements, if they follow; sizes that follow from them are noted.
fn shape_of(declared: &[IndexExpr], elements: usize, sizes: &mut [Option<i64>]) -> Option<Shape> {
    let value = |extent: &IndexExpr, sizes: &[Option<i64>]| {
        let mut all = true;
        extent.visit_atoms(&mut |atom| {
            if let IndexNode::Sym(s) = atom {
                all &= sizes[s.0 as usize].is_some();
            }
        });
        let values: SmallVec<[i64; 8]> = sizes.iter().map(|s| s.unwrap_or(0)).collect();
        all.then(|| extent.eval_symbols(&values)).flatten()
    };
    let mut open = declared.iter().filter(|e| value(e, sizes).is_none());
    let (first, second) = (open.next(), open.next());
    if let Some(extent) = first {
        let symbol = symbol(extent)?;
        let product = |p: usize, e: &IndexExpr| match value(e, sizes) {
            Some(n) => p.checked_mul(usize::try_from(n).ok()?),
            None => Some(p),
        };
        let rest = declared.iter().try_fold(1usize, product)?;
        if second.is_some() || rest == 0 || !elements.is_multiple_of(rest) {
            return None;
        }
        sizes[symbol] = i64::try_from(elements / rest).ok();
    }
    let shape: Shape = declared
        .iter()
        .map(|e| usize::try_from(value(e, sizes)?).ok())
        .collect::<Option<_>>()?;
    (tlc_ir::tensor::element_count(&shape) == Some(elements)).then_some(shape)
}

fn untold(plan: &Plan, declared: &PlanInput, elements: usize) -> RunError {
    let text = |e: &IndexExpr| e.display(&|s| plan.symbols[s.0 as usize].name.clone()).to_string();
    let extents: Vec<String> = declared.ty.shape.iter().map(text).collect();
    RunError::InputElements {
        name: declared.name.clone(),
        expected: format!("{}[{}]", declared.ty.dtype, extents.join(", ")),
        found: elements,
    }
}

impl<'a> AsRef<Input<'a>> for Input<'a> {
    fn as_ref(&self) -> &Input<'a> {
        self
    }
}
