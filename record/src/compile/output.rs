//! Results of a call, and memory of the caller that they are written to.
//!
//! Invariants: results lie in C order. Memory of the caller is written directly where it is elements in C order; bools, whose
//! bytes the compiler of Rust trusts to be 0 or 1, and arrays in another order are written from memory of the pool when the
//! call is done.

use std::fmt;
use std::ops::{Deref, DerefMut, Index};
use std::sync::Arc;

use ndarray::{ArrayBase, ArrayView, ArrayViewMut, DataMut, Dimension, IxDyn};
use tlc_ir::{DType, Element, HostTensor};
use tlc_runtime::driver::{Destination, OutputTensor, TensorView};
use tlc_runtime::memory::{AllocError, BufferPool, PooledBuffer};

use super::input::Shape;
use super::print;
use crate::datum::{Datum, Memory};

/// A result or a state was asked for as something that it is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{name}`: expected {expected}, found {found}")]
pub struct WrongType {
    /// What it is: `output` or `state`.
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// What was asked for.
    pub expected: String,
    /// What it is.
    pub found: String,
}

/// Why the value of a state's [`Entry`](super::Entry) cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is of another type than was asked for.
    #[error(transparent)]
    Type(#[from] WrongType),
    /// It is on a device, from which it could not be fetched.
    #[error("state `{name}` cannot be fetched: {message}")]
    Fetch {
        /// Its name.
        name: String,
        /// Why.
        message: String,
    },
}

/// A named result, in memory of a pool that it returns to when it is dropped.
///
/// It prints as NumPy prints an array, its name and type before it:
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs};
///
/// let g = Graph::new("outer");
/// let x = g.input("x", DType::F32, [3]);
/// g.output("y", &x.outer(&x));
/// let outputs = g.compile(&CompileOptions::default())?.run(&inputs![&[1.0f32, 2.5, -3.0]])?;
/// assert_eq!(
///     outputs["y"].to_string(),
///     "y: f32[3, 3]\n\
///      [[ 1.    2.5  -3.  ]\n \
///       [ 2.5   6.25 -7.5 ]\n \
///       [-3.   -7.5   9.  ]]"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Output {
    /// The output's name.
    pub name: String,
    pub(super) tensor: OutputTensor,
}

impl Output {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn typed(&self) -> Typed<'_> {
        Typed {
            what: "output",
            name: &self.name,
            view: self.view(),
        }
    }

    /// The elements in C order.
    ///
    /// # Errors
    /// If `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], WrongType> {
        self.typed().as_slice()
    }

    /// The only element of a result of rank 0, or of extents that are all 1.
    ///
    /// # Errors
    /// If `T` is not the element type, or there are more elements or none.
    pub fn as_scalar<T: Element>(&self) -> Result<T, WrongType> {
        self.typed().as_scalar()
    }

    /// A view as an `ndarray` array of that element type and dimension: `as_array::<f32, Ix2>()`, or `IxDyn` for any number
    /// of axes.
    ///
    /// ```
    /// use ndarray::{Ix2, array};
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("transpose");
    /// let x = g.input("x", DType::I32, [2, 2]);
    /// g.output("y", &x.transpose());
    /// let outputs = g.compile(&CompileOptions::default())?.run(&inputs![&array![[1, 2], [3, 4]]])?;
    /// assert_eq!(outputs["y"].as_array::<i32, Ix2>()?, array![[1, 3], [2, 4]]);
    /// assert!(outputs["y"].as_array::<f32, Ix2>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If `T` is not the element type, or the result has another number of axes.
    pub fn as_array<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>, WrongType> {
        self.typed().as_array()
    }

    /// The element bytes, native-endian.
    pub fn bytes(&self) -> &[u8] {
        self.tensor.bytes()
    }

    /// The dtype, extents and bytes.
    pub fn view(&self) -> TensorView<'_> {
        self.tensor.view()
    }

    /// A copy as a host tensor.
    pub fn to_host(&self) -> HostTensor {
        HostTensor::from_bytes(self.dtype(), self.shape(), self.bytes()).expect("the buffer fits its shape")
    }
}

/// A named value, to be seen as what it is.
pub(super) struct Typed<'a> {
    pub what: &'static str,
    pub name: &'a str,
    pub view: TensorView<'a>,
}

impl<'a> Typed<'a> {
    fn type_text(&self) -> String {
        format!("{}{:?}", self.view.dtype, self.view.shape)
    }

    fn wrong(&self, expected: String) -> WrongType {
        WrongType {
            what: self.what,
            name: self.name.to_string(),
            expected,
            found: self.type_text(),
        }
    }

    /// The elements in C order.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], WrongType> {
        let wrong = || self.wrong(format!("elements of {}", T::DTYPE));
        if T::DTYPE != self.view.dtype {
            return Err(wrong());
        }
        bytemuck::checked::try_cast_slice(self.view.data).map_err(|_| wrong())
    }

    /// The only element.
    pub fn as_scalar<T: Element>(&self) -> Result<T, WrongType> {
        match self.as_slice::<T>() {
            Ok(&[value]) => Ok(value),
            _ => Err(self.wrong(format!("one element of {}", T::DTYPE))),
        }
    }

    /// The elements as an array.
    pub fn as_array<T: Element, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>, WrongType> {
        let array = ArrayView::from_shape(IxDyn(self.view.shape), self.as_slice::<T>()?);
        let array = array.ok().and_then(|a| a.into_dimensionality().ok());
        array.ok_or_else(|| match D::NDIM {
            Some(axes) => self.wrong(format!("{} of {axes} axes", T::DTYPE)),
            None => self.wrong(format!("an array of {}", T::DTYPE)),
        })
    }
}

impl fmt::Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.name, self.type_text(), print::array(&self.view))
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.typed().fmt(f)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The results of a call, in the order in which the graph names them; by position and by name.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs};
///
/// let g = Graph::new("extrema");
/// let x = g.input("x", DType::F32, [3]);
/// g.output("least", &x.min(0));
/// g.output("most", &x.max(0));
/// let outputs = g.compile(&CompileOptions::default())?.run(&inputs![&[2.0f32, -1.0, 5.0]])?;
/// assert_eq!(outputs["most"].as_scalar::<f32>()?, 5.0);
/// assert_eq!(outputs[0].name, "least");
/// assert!(outputs.named("mean").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Outputs(pub(super) Vec<Output>);

impl Outputs {
    /// The result of that name.
    pub fn named(&self, name: &str) -> Option<&Output> {
        self.0.iter().find(|o| o.name == name)
    }

    /// Takes the result at a position out; those behind it move up.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, position: usize) -> Output {
        self.0.remove(position)
    }

    /// Takes the last result out.
    pub fn pop(&mut self) -> Option<Output> {
        self.0.pop()
    }

    /// The results as a vector.
    pub fn into_vec(self) -> Vec<Output> {
        self.0
    }
}

impl Deref for Outputs {
    type Target = [Output];
    fn deref(&self) -> &[Output] {
        &self.0
    }
}

impl DerefMut for Outputs {
    fn deref_mut(&mut self) -> &mut [Output] {
        &mut self.0
    }
}

impl Index<usize> for Outputs {
    type Output = Output;
    fn index(&self, position: usize) -> &Output {
        &self.0[position]
    }
}

/// The result of that name; panics if there is none, see [`Outputs::named`].
impl Index<&str> for Outputs {
    type Output = Output;
    fn index(&self, name: &str) -> &Output {
        self.named(name).unwrap_or_else(|| {
            let names: Vec<&str> = self.iter().map(|o| o.name.as_str()).collect();
            panic!("no output `{name}`; expected {}", names.join(", "))
        })
    }
}

impl IntoIterator for Outputs {
    type Item = Output;
    type IntoIter = std::vec::IntoIter<Output>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Outputs {
    type Item = &'a Output;
    type IntoIter = std::slice::Iter<'a, Output>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Memory of the caller for one result: made with `From`, or by [`outputs!`](crate::outputs), from `&mut [T]`, `&mut Vec<T>`,
/// `&mut [T; N]`, one `&mut T`, arrays and mutable views of `ndarray`, and `&mut HostTensor`.
///
/// The element type must be the result's. A slice must have as many elements as the result, an array its shape; where data
/// decides the size, those of the largest (see [`Executable::output_shapes`](super::Executable::output_shapes)). Elements in C
/// order are written where they are; `bool` and arrays in another order from memory of the pool, when the call is done.
pub struct OutputMut<'a> {
    dtype: DType,
    /// Of an array.
    shape: Option<Shape>,
    memory: Memory<'a>,
    /// Where the call writes, if not to the caller's memory.
    staged: Option<PooledBuffer>,
}

/// Makes an array of [`OutputMut`]s: `outputs![&mut y, &mut z]`.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs, outputs};
///
/// let g = Graph::new("sign");
/// let x = g.input("x", DType::F32, [3]);
/// g.output("positive", &x.gt(0.0));
/// g.output("twice", &(&x * 2.0));
/// let sign = g.compile(&CompileOptions::default())?;
/// let (mut positive, mut twice) = ([false; 3], ndarray::Array1::<f32>::zeros(3));
/// sign.run_into(&inputs![&[1.0f32, -1.0, 3.0]], &mut outputs![&mut positive, &mut twice])?;
/// assert_eq!(positive, [true, false, true]);
/// assert_eq!(twice, ndarray::arr1(&[2.0, -2.0, 6.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! outputs {
    ($($value:expr),* $(,)?) => { [$($crate::OutputMut::from($value)),*] };
}

impl<'a> OutputMut<'a> {
    /// Elements of any dtype as native-endian bytes in C order, aligned to the elements.
    pub fn bytes(dtype: DType, bytes: &'a mut [u8]) -> OutputMut<'a> {
        OutputMut::new(dtype, None, Memory::Direct(bytes))
    }

    fn new(dtype: DType, shape: Option<Shape>, memory: Memory<'a>) -> OutputMut<'a> {
        OutputMut {
            dtype,
            shape,
            memory,
            staged: None,
        }
    }

    /// Takes memory for what the call cannot write directly.
    pub(super) fn stage(&mut self, pool: &Arc<BufferPool>) -> Result<(), AllocError> {
        let elements = match &self.memory {
            Memory::Direct(_) => return Ok(()),
            Memory::Bools(bools) => bools.len(),
            Memory::Strided(array) => array.elements(),
        };
        self.staged = Some(pool.take(elements.saturating_mul(self.dtype.bytes()))?);
        Ok(())
    }

    /// Gives that memory back; a call that was right has written it.
    pub(super) fn land(&mut self, written: bool) {
        let Some(staged) = self.staged.take().filter(|_| written) else {
            return;
        };
        match &mut self.memory {
            Memory::Direct(_) => {}
            Memory::Bools(bools) => bools
                .iter_mut()
                .zip(staged.as_slice())
                .for_each(|(b, byte)| *b = *byte != 0),
            Memory::Strided(array) => array.assign_bytes(staged.as_slice()),
        }
    }
}

impl Destination for OutputMut<'_> {
    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }

    fn shape(&self) -> Option<&[usize]> {
        self.shape.as_deref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&mut self.staged, &mut self.memory) {
            (Some(staged), _) => staged.as_mut_slice(),
            (None, Memory::Direct(bytes)) => bytes,
            (None, _) => &mut [],
        }
    }
}

impl fmt::Debug for OutputMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Some(shape) => write!(f, "OutputMut({}{shape:?})", self.dtype),
            None => write!(f, "OutputMut(elements of {})", self.dtype),
        }
    }
}

impl<'a, T: Datum> From<&'a mut [T]> for OutputMut<'a> {
    fn from(elements: &'a mut [T]) -> Self {
        OutputMut::new(T::DTYPE, None, T::memory(elements))
    }
}

impl<'a, T: Datum> From<&'a mut Vec<T>> for OutputMut<'a> {
    fn from(elements: &'a mut Vec<T>) -> Self {
        elements.as_mut_slice().into()
    }
}

impl<'a, T: Datum, const N: usize> From<&'a mut [T; N]> for OutputMut<'a> {
    fn from(elements: &'a mut [T; N]) -> Self {
        elements.as_mut_slice().into()
    }
}

impl<'a, T: Datum> From<&'a mut T> for OutputMut<'a> {
    fn from(element: &'a mut T) -> Self {
        std::slice::from_mut(element).into()
    }
}

impl<'a, T: Datum, D: Dimension + 'a> From<ArrayViewMut<'a, T, D>> for OutputMut<'a> {
    fn from(array: ArrayViewMut<'a, T, D>) -> Self {
        let shape = Some(Shape::from(array.shape()));
        let memory = match array.is_standard_layout() {
            true => T::memory(array.into_slice().unwrap_or_default()),
            false => Memory::Strided(Box::new(array)),
        };
        OutputMut::new(T::DTYPE, shape, memory)
    }
}

impl<'a, T: Datum, S: DataMut<Elem = T>, D: Dimension + 'a> From<&'a mut ArrayBase<S, D>> for OutputMut<'a> {
    fn from(array: &'a mut ArrayBase<S, D>) -> Self {
        array.view_mut().into()
    }
}

impl<'a> From<&'a mut HostTensor> for OutputMut<'a> {
    fn from(tensor: &'a mut HostTensor) -> Self {
        let (dtype, shape) = (tensor.dtype(), Shape::from(tensor.shape()));
        OutputMut::new(dtype, Some(shape), Memory::Direct(tensor.bytes_mut()))
    }
}
