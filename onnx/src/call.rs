//! One node while it is imported: its operands, attributes and version, as the functions of `operators/` ask for them.

use tlc_formats::onnx::{Attribute, AttributeKind, Node};
use tlc_ir::{DType, HostTensor};

use super::fold::is_decided_by_data;
use super::refusal::{Outcome, invalid, unsupported};
use super::scope::Importer;
use super::value::Value;
use tlc_record::Graph;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// What an operator returns: its results, in order.
pub(super) type Answer = Outcome<Vec<Value>>;

/// One result.
pub(super) fn one(value: impl Into<Value>) -> Answer {
    Ok(vec![value.into()])
}

/// A node being imported.
pub(super) struct Call<'i, 'o, 'a> {
    pub(super) importer: &'i mut Importer<'o, 'a>,
    pub(super) node: Node<'a>,
    /// The version of the operator set that it is of.
    pub(super) version: i64,
    pub(super) inputs: Vec<Option<Value>>,
    /// How many results are named.
    pub(super) outputs: usize,
}

impl<'a> Call<'_, '_, 'a> {
    /// The graph being recorded.
    pub(super) fn graph(&self) -> Graph {
        self.importer.graph.clone()
    }

    /// Operand `i`, if it is given.
    pub(super) fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i).and_then(Option::as_ref)
    }

    /// Operand `i`, which must be given.
    pub(super) fn required(&self, i: usize) -> Outcome<&Value> {
        self.value(i).map_or_else(
            || {
                invalid(format!(
                    "operand {i} is missing; expected it, found {} operands",
                    self.inputs.len()
                ))
            },
            Ok,
        )
    }

    /// Operand `i` as a tensor.
    pub(super) fn tensor(&self, i: usize) -> Outcome<Tensor> {
        self.required(i)?.tensor(&self.importer.graph)
    }

    /// Operand `i` as a tensor, if it is given.
    pub(super) fn optional(&self, i: usize) -> Outcome<Option<Tensor>> {
        self.value(i).map(|v| v.tensor(&self.importer.graph)).transpose()
    }

    /// All operands.
    pub(super) fn tensors(&self) -> Outcome<Vec<Tensor>> {
        (0..self.inputs.len()).map(|i| self.tensor(i)).collect()
    }

    /// The elements of operand `i`, which must be known now.
    pub(super) fn elements(&mut self, i: usize) -> Outcome<HostTensor> {
        let value = self.required(i)?.clone();
        self.importer.elements(&value, &format!("operand {i}"))
    }

    /// The numbers of operand `i`, if it is given; they must be known now.
    pub(super) fn input_ints(&mut self, i: usize) -> Outcome<Option<Vec<i64>>> {
        let Some(value) = self.value(i) else {
            return Ok(None);
        };
        if let Value::Sizes(s) = value
            && !s.dtype.is_float()
            && let Some(numbers) = s.numbers()
        {
            return Ok(Some(numbers));
        }
        let data = self.elements(i)?;
        if data.dtype().is_float() {
            return invalid(format!("operand {i} of {}; expected integers", data.dtype()));
        }
        Ok(Some((0..data.len()).map(|k| data.get(k).as_i64()).collect()))
    }

    /// The floats of operand `i`, if it is given; they must be known now.
    pub(super) fn input_floats(&mut self, i: usize) -> Outcome<Option<Vec<f64>>> {
        if self.value(i).is_none() {
            return Ok(None);
        }
        let data = self.elements(i)?;
        Ok(Some((0..data.len()).map(|k| data.get(k).as_f64()).collect()))
    }

    /// The sizes in operand `i`, as numbers or expressions over the graph's symbols.
    pub(super) fn input_dims(&mut self, i: usize) -> Outcome<Option<Vec<Dim>>> {
        if let Some(Value::Sizes(s)) = self.value(i)
            && !s.dtype.is_float()
        {
            return Ok(Some(s.dims.clone()));
        }
        let numbers = self.input_ints(i)?;
        Ok(numbers.map(|all| all.into_iter().map(Dim::from).collect()))
    }

    /// Operand `i`, if values that come with each call decide it.
    pub(super) fn decided_by_data(&self, i: usize) -> Option<Tensor> {
        match self.value(i) {
            Some(Value::Tensor(tensor, None)) => is_decided_by_data(tensor).then(|| tensor.clone()),
            _ => None,
        }
    }

    /// The attribute of that name: the node's, or, in a function, the call's.
    pub(super) fn attribute(&self, name: &str) -> Option<Attribute<'a>> {
        let found = self.node.attributes().find(|a| a.name() == name)?;
        self.importer.resolved(found).ok()?
    }

    fn of_kind(&self, name: &str, kind: AttributeKind) -> Outcome<Option<Attribute<'a>>> {
        match self.attribute(name) {
            Some(a) if a.kind() != kind => invalid(format!("attribute {name} holds {:?}; expected {kind:?}", a.kind())),
            found => Ok(found),
        }
    }

    /// An integer attribute, if it is given.
    pub(super) fn maybe_int(&self, name: &str) -> Outcome<Option<i64>> {
        Ok(self.of_kind(name, AttributeKind::Int)?.map(Attribute::int))
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str, otherwise: i64) -> Outcome<i64> {
        Ok(self.maybe_int(name)?.unwrap_or(otherwise))
    }

    /// An attribute that is 0 or 1.
    pub(super) fn flag(&self, name: &str, otherwise: bool) -> Outcome<bool> {
        Ok(self.int(name, otherwise.into())? != 0)
    }

    /// A float attribute, if it is given.
    pub(super) fn maybe_float(&self, name: &str) -> Outcome<Option<f64>> {
        Ok(self.of_kind(name, AttributeKind::Float)?.map(|a| a.float().into()))
    }

    /// A float attribute.
    pub(super) fn float(&self, name: &str, otherwise: f32) -> Outcome<f64> {
        Ok(self.maybe_float(name)?.unwrap_or(otherwise.into()))
    }

    /// A list of integers, if it is given.
    pub(super) fn ints(&self, name: &str) -> Outcome<Option<Vec<i64>>> {
        Ok(self.of_kind(name, AttributeKind::Ints)?.map(|a| a.ints().collect()))
    }

    /// A list of floats, if it is given.
    pub(super) fn floats(&self, name: &str) -> Outcome<Option<Vec<f64>>> {
        let found = self.of_kind(name, AttributeKind::Floats)?;
        Ok(found.map(|a| a.floats().map(f64::from).collect()))
    }

    /// A text attribute.
    pub(super) fn text(&self, name: &str, otherwise: &str) -> Outcome<String> {
        let found = self.of_kind(name, AttributeKind::Text)?;
        Ok(found.map_or(otherwise.into(), |a| String::from_utf8_lossy(a.bytes()).into_owned()))
    }

    /// A list of texts, if it is given.
    pub(super) fn texts(&self, name: &str) -> Outcome<Option<Vec<String>>> {
        let found = self.of_kind(name, AttributeKind::Texts)?;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        Ok(found.map(|a| a.texts().map(text).collect()))
    }

    /// An attribute that names an element type.
    pub(super) fn dtype(&self, name: &str) -> Outcome<Option<DType>> {
        let number = self.maybe_int(name)?;
        Ok(number.map(tlc_formats::onnx::dtype).transpose()?)
    }

    /// Axes: an attribute before opset `since`, an operand from then on.
    pub(super) fn axes(&mut self, i: usize, since: i64) -> Outcome<Option<Vec<i64>>> {
        match self.version < since {
            true => self.ints("axes"),
            false => self.input_ints(i),
        }
    }

    /// An axis counted from the end where negative, as one counted from 0.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Outcome<usize> {
        match tlc_record::dim::resolve_axis(axis, rank) {
            Some(axis) => Ok(axis),
            None => invalid(format!(
                "axis {axis} of a tensor of rank {rank}; expected an axis of it"
            )),
        }
    }

    /// The one result of an operator's function on other operands.
    pub(super) fn with_inputs(
        &mut self,
        inputs: Vec<Option<Value>>,
        run: impl FnOnce(&mut Self) -> Answer,
    ) -> Outcome<Tensor> {
        match &self.all_with_inputs(inputs, run)?[..] {
            [y] => y.tensor(&self.importer.graph),
            others => unsupported(format!("{} results; supported is one", others.len())),
        }
    }

    /// All results of an operator's function on other operands.
    pub(super) fn all_with_inputs(
        &mut self,
        inputs: Vec<Option<Value>>,
        run: impl FnOnce(&mut Self) -> Answer,
    ) -> Answer {
        let all = std::mem::replace(&mut self.inputs, inputs);
        let results = run(self);
        self.inputs = all;
        results
    }

    /// Refuses more results than the operator's function makes.
    pub(super) fn at_most_outputs(&self, n: usize) -> Outcome<()> {
        match self.outputs > n {
            true => unsupported(format!("{} results; supported are {n}", self.outputs)),
            false => Ok(()),
        }
    }
}

impl Call<'_, '_, '_> {
    /// The one size in operand `i`, if it is carried as an expression.
    pub(super) fn input_dims_if_carried(&self, i: usize) -> Option<Dim> {
        match self.value(i) {
            Some(Value::Sizes(s)) if s.dims.len() == 1 => Some(s.dims[0].clone()),
            _ => None,
        }
    }

    /// The one whole number in operand `i`, if it is carried or a constant.
    pub(super) fn input_whole(&self, i: usize) -> Option<Dim> {
        if let Some(Value::Tensor(_, Some(data))) = self.value(i) {
            let data = Some(data).filter(|d| d.len() == 1)?.host().ok()?;
            let number = data.get(0).as_f64();
            let whole = number.trunc() == number && number.abs() < (1 << 24) as f64;
            return whole.then(|| Dim::from(number as i64));
        }
        self.input_dims_if_carried(i)
    }
}
