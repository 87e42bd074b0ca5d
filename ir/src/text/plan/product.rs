//! Matrix products of a plan: operands of any strides, and what runs behind the result's lines.

use super::super::cursor::{Cursor, Parsed};
use super::super::expr::{dim, dims, dtype};
use super::super::lexer::TokenKind;
use super::{Names, PlanParser};
use crate::index::IndexExpr;
use crate::plan::{Epilogue, Gemm, GemmOperand, LibraryEpilogue, Lines, StridedDim, Strides, WindowedAxis};

/// How an axis of an operand of `gemm` is written.
enum Stride {
    One(IndexExpr),
    Dims(Vec<StridedDim>),
}

/// `stride`, or `[extent by stride, …]`.
fn stride(c: &mut Cursor<'_>, names: &mut Names) -> Parsed<Stride> {
    if !c.eat(TokenKind::LeftBracket) {
        return Ok(Stride::One(dim(c, names)?));
    }
    let dims = c.list(TokenKind::RightBracket, "gemm", |c| {
        let extent = dim(c, names)?;
        match c.eat_word("by") {
            true => Ok(StridedDim {
                extent,
                stride: dim(c, names)?,
            }),
            false => Err(c.unexpected("gemm", "`by`")),
        }
    });
    Ok(Stride::Dims(dims?))
}

/// `place 0 stride 1 dilation 12 before 12 extent h step w`: an axis that windows slide over.
fn windowed(c: &mut Cursor<'_>, names: &mut Names) -> Parsed<WindowedAxis> {
    let number = |c: &mut Cursor<'_>, word: &str, least: i64, most: i64| match c.eat_word(word) {
        true => c.integer("windows", least, most),
        false => Err(c.unexpected("windows", &format!("`{word}`"))),
    };
    let place = number(c, "place", 0, Strides::MAX_DIMS as i64)? as usize;
    let stride = number(c, "stride", 1, i64::MAX)?;
    let dilation = number(c, "dilation", 1, i64::MAX)?;
    let mut size = |c: &mut Cursor<'_>, word: &str| match c.eat_word(word) {
        true => dim(c, names),
        false => Err(c.unexpected("windows", &format!("`{word}`"))),
    };
    Ok(WindowedAxis {
        place,
        stride,
        dilation,
        before: size(c, "before")?,
        extent: size(c, "extent")?,
        step: size(c, "step")?,
    })
}

impl PlanParser<'_, '_, '_, '_> {
    /// `gemm f32 batch [b] m x n x k "label" lhs … rhs … dst … workspace … epilogue …`, behind the first word.
    pub(super) fn gemm(&mut self) -> Parsed<Gemm> {
        let mut product = self.product()?;
        if self.c.eat_word("epilogue") {
            product.epilogue = Some(Box::new(self.epilogue()?));
        }
        Ok(product)
    }

    /// A product without what is behind it.
    fn product(&mut self) -> Parsed<Gemm> {
        let dtype = dtype(self.c)?;
        self.word("batch", "gemm")?;
        let batch = dims(self.c, &mut self.names, "gemm")?;
        let m = dim(self.c, &mut self.names)?;
        self.word("x", "gemm")?;
        let n = dim(self.c, &mut self.names)?;
        self.word("x", "gemm")?;
        let k = dim(self.c, &mut self.names)?;
        let label = self.c.string("gemm")?;
        let lhs = self.operand("lhs", [&m, &k])?;
        let rhs = self.operand("rhs", [&k, &n])?;
        let dst = self.operand("dst", [&m, &n])?;
        let workspace = match self.c.eat_word("workspace") {
            true => Some(self.slot("gemm", TokenKind::Slot.describe())?),
            false => None,
        };
        Ok(Gemm {
            dtype,
            batch,
            m,
            n,
            k,
            lhs,
            rhs,
            dst,
            workspace,
            epilogue: None,
            label,
        })
    }

    /// `lines 1 by 768 launch …`, behind the word `epilogue`.
    fn epilogue(&mut self) -> Parsed<Epilogue> {
        self.word("lines", "epilogue")?;
        let iterations = dim(self.c, &mut self.names)?;
        self.word("by", "epilogue")?;
        let elements = dim(self.c, &mut self.names)?;
        let launch = self.launch()?;
        let library = match self.c.eat_word("library") {
            true => Some(self.library_epilogue()?),
            false => None,
        };
        let product = match self.c.eat_word("then") {
            true => Some(Box::new(self.product_behind()?)),
            false => None,
        };
        Ok(Epilogue {
            launch,
            lines: Lines { iterations, elements },
            library,
            product,
        })
    }

    /// `bias 1 relu result 2`, behind the word `library`.
    fn library_epilogue(&mut self) -> Parsed<LibraryEpilogue> {
        let bias = match self.c.eat_word("bias") {
            true => Some(self.parameter()?),
            false => None,
        };
        let rectified = self.c.eat_word("relu");
        self.word("result", "epilogue")?;
        let result = self.parameter()?;
        Ok(LibraryEpilogue {
            bias,
            rectified,
            result,
        })
    }

    /// The number of one of a kernel's parameters.
    fn parameter(&mut self) -> Parsed<u32> {
        self.c.integer("epilogue", 0, u32::MAX.into()).map(|n| n as u32)
    }

    /// `gemm …`, behind the word `then`: a product that has no epilogue.
    fn product_behind(&mut self) -> Parsed<Gemm> {
        self.word("gemm", "epilogue")?;
        let start = self.c.mark();
        let product = self.product()?;
        if self.c.at_word("epilogue") {
            let span = self.c.span_since(start);
            return Err(self.c.error(span, "an epilogue behind a second product; expected none"));
        }
        Ok(product)
    }

    /// `lhs $0 offset 0 strides [batch…, row, column]`, where a row or column of several dimensions is `[extent by stride, …]`, and
    /// `windows […]` behind it.
    fn operand(&mut self, which: &str, extents: [&IndexExpr; 2]) -> Parsed<GemmOperand> {
        self.c.anchor();
        self.word(which, "gemm")?;
        let slot = self.slot("gemm", TokenKind::Slot.describe())?;
        self.word("offset", "gemm")?;
        let offset = dim(self.c, &mut self.names)?;
        self.word("strides", "gemm")?;
        let start = self.c.mark();
        self.c.expect(TokenKind::LeftBracket, "gemm")?;
        let names = &mut self.names;
        let mut strides = self.c.list(TokenKind::RightBracket, "gemm", |c| stride(c, names))?;
        let (Some(column), Some(row)) = (strides.pop(), strides.pop()) else {
            let span = self.c.span_since(start);
            let message = "too few strides; expected those of the batch, of rows and of columns";
            return Err(self.c.error(span, message));
        };
        let straight = |s: Stride| match s {
            Stride::One(stride) => Some(stride),
            Stride::Dims(_) => None,
        };
        let Some(batch) = strides.into_iter().map(straight).collect() else {
            let span = self.c.span_since(start);
            return Err(self
                .c
                .error(span, "a batch axis of several dimensions; expected one stride"));
        };
        let walk = |s: Stride, extent: &IndexExpr| match s {
            Stride::One(stride) => Strides::straight(extent.clone(), stride),
            Stride::Dims(dims) => Strides { dims: dims.into() },
        };
        let (row, column) = (walk(row, extents[0]), walk(column, extents[1]));
        let windowed = match self.c.eat_word("windows") {
            true => {
                self.c.expect(TokenKind::LeftBracket, "windows")?;
                let names = &mut self.names;
                self.c
                    .list(TokenKind::RightBracket, "windows", |c| windowed(c, names))?
                    .into()
            }
            false => Default::default(),
        };
        Ok(GemmOperand {
            slot,
            offset,
            batch,
            row,
            column,
            windowed,
        })
    }
}
