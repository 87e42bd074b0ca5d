//! Caches: states of fixed capacity that grow along an axis from call to call.
//!
//! Invariants: a cache is two states, the elements and how many of them count; [`Cache::append`] alone sets them, and writes nothing but the
//! elements that are new. A call that would go beyond the capacity is refused before it runs.

use tlc_ir::DType;
use tlc_ir::graph::control::mentions_data;

use crate::dim::IntoShape;
use crate::graph::scope::{record, refuse_expecting};
use crate::graph::states::{Append, length_name};
use crate::graph::{Graph, Tensor};

/// A state that rows are appended to: the keys and values of a decoder, a history. See [`Graph::cache`].
#[derive(Clone, Debug)]
pub struct Cache {
    name: String,
    axis: i64,
    values: Tensor,
    length: Tensor,
}

impl Graph {
    /// The cache of that name as a call finds it: a state of that type and the state `NAME.length`, `i64[]`, which says how many elements
    /// along `axis` count; what lies behind them is anything. [`State::insert_cache`](crate::State::insert_cache) makes an empty one.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, State, inputs};
    ///
    /// let g = Graph::new("history");
    /// let x = g.input("x", DType::F32, [1]);
    /// let history = g.cache("history", DType::F32, [3], 0).append(&x);
    /// // The sum of what was seen so far.
    /// let counts = g.arange(0.0, 3.0, 1.0, DType::I64).lt(history.length());
    /// g.output("sum", &counts.select(history.values(), 0.0).sum(..));
    /// let step = g.compile(&CompileOptions::default())?;
    ///
    /// let mut state = State::new();
    /// state.insert_cache("history", DType::F32, &[3])?;
    /// for (x, sum) in [(1.0f32, 1.0f32), (2.0, 3.0), (4.0, 7.0)] {
    ///     assert_eq!(step.run_with(&mut state, &inputs![&[x]])?["sum"].as_scalar::<f32>()?, sum);
    /// }
    /// let full = step.run_with(&mut state, &inputs![&[8.0f32]]).unwrap_err();
    /// assert_eq!(full.to_string(), "the cache `history` has 3 of 3 elements, and 1 more would be appended");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Graph::state`]; an axis that the shape does not have.
    #[track_caller]
    pub fn cache(&self, name: &str, dtype: DType, shape: impl IntoShape, axis: i64) -> Cache {
        let shape = shape.into_shape();
        let body = || {
            let values = self.state(name, dtype, shape);
            values.axis(axis)?;
            let length = self.state(&length_name(name), DType::I64, ());
            Ok(Cache {
                name: name.to_string(),
                axis,
                values,
                length,
            })
        };
        record(self, "cache", &[], &[name.to_string()], body, |p| Cache {
            name: name.to_string(),
            axis,
            values: p.clone(),
            length: p,
        })
    }
}

impl Cache {
    /// All elements, the capacity's number along the axis; those at [`Cache::length`] and behind it are anything.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// How many elements along the axis count: `i64[]`.
    pub fn length(&self) -> &Tensor {
        &self.length
    }

    /// Appends rows, which have the cache's type but for the extent of the axis, and returns the cache as the call leaves it. The rows are
    /// all that is written: what was there is not copied.
    ///
    /// # Errors
    /// Rows of another type, or as many as data decides; a cache that is appended to already.
    #[track_caller]
    pub fn append(&self, rows: &Tensor) -> Cache {
        let graph = self.values.graph();
        let body = || {
            let axis = self.values.axis(self.axis)?;
            let same = |a: usize| a == axis || !graph.differ(&self.values.extents()[a], &rows.extents()[a]);
            let rank = self.values.rank();
            if rows.dtype() != self.values.dtype() || rows.rank() != rank || !(0..rank).all(same) {
                return refuse_expecting(
                    format!("{} appended to {}", rows.type_text(), self.values.type_text()),
                    format!("the same but for the extent of axis {axis}"),
                );
            }
            let count = rows.extents()[axis].clone();
            if graph.with_ir(|ir| mentions_data(ir.symbols(), &count)) {
                return refuse_expecting(
                    "data decides how many rows there are",
                    "a number that is known before the call, which is refused where they do not fit",
                );
            }
            let places = graph.iota_1d(&count, DType::I64)? + &self.length;
            let values = self.values.scatter_set(axis as i64, &places, rows);
            let length = &self.length + graph.dim_value(&rows.dim(axis as i64), DType::I64)?;
            graph.set(&self.name, &values);
            graph.set(&length_name(&self.name), &length);
            graph.appends(Append {
                cache: self.name.clone(),
                length: length_name(&self.name),
                capacity: self.values.extents()[axis].clone(),
                rows: count,
            });
            Ok(Cache {
                values,
                length,
                ..self.clone()
            })
        };
        record(graph, "append", &[&self.values, rows], &[], body, |p| Cache {
            values: p.clone(),
            length: p,
            ..self.clone()
        })
    }
}
