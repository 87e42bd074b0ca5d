//! The einsum expression language: text in, canonical labels out.
//!
//! Invariants of an [`EinsumSpec`] that [`parse`] returns:
//!
//! * Labels are numbered `0..label_count()` by first appearance, reading the operands from left to right; so two
//!   expressions that differ only in the names of their labels (or in `...` against letters) have equal
//!   [`operands`](EinsumSpec::operands) and [`output`](EinsumSpec::output).
//! * The output is always explicit and never repeats a label, and each of its labels occurs in an operand.
//! * There is one label per axis: `operands[k].len()` is the rank of operand `k`. An ellipsis has been replaced by the
//!   labels of the axes it stands for, aligned at its right end over operands whose ellipses have different ranks.
//! * A label repeated within one operand is a diagonal; it is kept as it was written.
//!
//! The language is NumPy's (`np.einsum`, the C implementation behind `optimize=False`; recorded in
//! `ir/tests/einsum_numpy.txt`), with one extension: NumPy's labels are the ASCII letters, ours are all characters but
//! space, `,`, `.`, `-` and `>`, as in opt_einsum (recorded in `ir/tests/einsum_labels.txt`). Its generated labels are
//! consecutive code points from `À` on, of which `×` and `÷` are no letters.
//!
//! ```text
//! expression = operand { "," operand } [ "->" output ]
//! operand    = { label } [ "..." ] { label }            output = the same
//! ```
//!
//! Spaces (no other blank) may stand anywhere but inside `...` and `->`. Without `->` the output is the ellipsis axes
//! followed by the labels that occur once, in code point order (upper case before lower case).

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// The number of a label in an [`EinsumSpec`].
pub type Label = u16;

/// The most labels an expression may have.
pub const MAX_LABELS: usize = Label::MAX as usize + 1;

/// A contraction in canonical form. See the [module documentation](self) for what holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EinsumSpec {
    /// One label per axis, for each operand.
    pub operands: Vec<Vec<Label>>,
    /// One label per axis of the result.
    pub output: Vec<Label>,
    /// How each label was written, indexed by label.
    pub label_names: Vec<LabelName>,
}

/// How a label was written in the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabelName {
    /// A character.
    Letter(char),
    /// An axis of the ellipsis, counted from the left of the broadcast ellipsis (0 is the outermost axis).
    Ellipsis(Label),
}

impl fmt::Display for LabelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabelName::Letter(c) => write!(f, "`{c}`"),
            LabelName::Ellipsis(k) => write!(f, "axis {k} of `...`"),
        }
    }
}

/// A half-open range of bytes in the expression. It may be empty (an empty operand); it always lies on char boundaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        Span { start, end }
    }

    /// The same range counted in chars of `expr`, which must be the expression that was parsed: columns for a caret.
    pub fn char_range(&self, expr: &str) -> Range<usize> {
        let chars_before = |byte: usize| expr.char_indices().take_while(|&(at, _)| at < byte).count();
        chars_before(self.start)..chars_before(self.end)
    }
}

/// Where in an expression a subscript list stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The operand of that index.
    Operand(usize),
    /// Right of `->`.
    Output,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Operand(k) => write!(f, "operand {k}"),
            Place::Output => f.write_str("the output"),
        }
    }
}

/// Why an expression, or the shapes it is applied to, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EinsumError {
    /// There is nothing to contract.
    #[error("einsum without operands; expected at least one")]
    NoOperands,
    /// A `,` in the output, or a `>` without `-`.
    #[error("unexpected {found:?} in {place}; expected {expected}")]
    UnexpectedChar {
        /// What stands there.
        found: char,
        /// Where it stands.
        place: Place,
        /// What could stand there.
        expected: &'static str,
        /// The character.
        at: Span,
    },
    /// One or two dots.
    #[error("{found:?} in {place}; expected an ellipsis, `...`, without blanks")]
    BrokenEllipsis {
        /// The dots that were found.
        found: String,
        /// Where they stand.
        place: Place,
        /// The dots.
        at: Span,
    },
    /// Two ellipses in one subscript list.
    #[error("a second `...` in {place}; expected at most one")]
    SecondEllipsis {
        /// Where it stands.
        place: Place,
        /// The second ellipsis.
        at: Span,
    },
    /// A `-` without `>`.
    #[error("`-` followed by {}; expected `->`, without blanks", match .found { Some(c) => format!("{c:?}"), None => "the end".to_owned() })]
    BrokenArrow {
        /// What follows the `-`, or `None` at the end.
        found: Option<char>,
        /// The `-`.
        at: Span,
    },
    /// Two arrows.
    #[error("a second `->`; expected at most one")]
    SecondArrow {
        /// The second arrow.
        at: Span,
    },
    /// The expression names another number of operands than there are.
    #[error("the expression has {expected} operand(s), found {found}")]
    OperandCount {
        /// In the expression.
        expected: usize,
        /// Given.
        found: usize,
        /// The first superfluous subscript list, or the empty range at the end of the operands where one is missing.
        at: Span,
    },
    /// An operand's rank does not fit its subscripts.
    #[error(
        "operand {operand} has rank {found}, but its subscripts stand for {}{expected} ax{}",
        if *.ellipsis { "at least " } else { "" },
        if *.expected == 1 { "is" } else { "es" }
    )]
    Rank {
        /// The operand.
        operand: usize,
        /// The number of letters in its subscripts.
        expected: usize,
        /// Whether the subscripts have an ellipsis too.
        ellipsis: bool,
        /// The operand's rank.
        found: usize,
        /// The operand's subscripts.
        at: Span,
    },
    /// A label twice in the output.
    #[error("label `{label}` appears twice in the output; expected distinct labels")]
    OutputRepeatsLabel {
        /// The label.
        label: char,
        /// Its first occurrence in the output.
        first: Span,
        /// Its second occurrence in the output.
        at: Span,
    },
    /// An output label that no operand has.
    #[error("output label `{label}` appears in no operand")]
    OutputLabelUnknown {
        /// The label.
        label: char,
        /// Its occurrence in the output.
        at: Span,
    },
    /// Ellipsis axes have no place in the output (NumPy does not sum them).
    #[error("the ellipsis stands for {rank} ax{}, but the output has no `...`", if *.rank == 1 { "is" } else { "es" })]
    OutputLacksEllipsis {
        /// The number of ellipsis axes.
        rank: usize,
        /// The output's subscripts.
        at: Span,
    },
    /// More than [`MAX_LABELS`] labels.
    #[error("the expression needs {found} labels; at most {MAX_LABELS} are supported")]
    TooManyLabels {
        /// The number of labels.
        found: usize,
    },
    /// [`broadcast_extents`] was given another number of shapes than operands.
    #[error("the expression has {expected} operand(s), found {found} shape(s)")]
    ShapeCount {
        /// Operands of the spec.
        expected: usize,
        /// Shapes given.
        found: usize,
    },
    /// [`broadcast_extents`] was given a shape of another rank than it parsed.
    #[error("operand {operand} has {expected} label(s), found a shape of rank {found}")]
    ShapeRank {
        /// The operand.
        operand: usize,
        /// Its number of labels.
        expected: usize,
        /// The rank of its shape.
        found: usize,
    },
    /// The axes of a diagonal differ (here 1 does not broadcast, as in NumPy).
    #[error(
        "operand {operand}: axes {first_axis} and {axis} share label {label}, but their extents are {expected} and {found}"
    )]
    DiagonalExtent {
        /// The label.
        label: LabelName,
        /// The operand.
        operand: usize,
        /// The first axis with this label.
        first_axis: usize,
        /// The axis that differs.
        axis: usize,
        /// The extent of the first axis.
        expected: usize,
        /// The extent of the axis that differs.
        found: usize,
    },
    /// One label, two extents, neither of them 1.
    #[error(
        "operand {operand}, axis {axis}: label {label} has extent {found}, but {expected} in operand {first_operand}, axis {first_axis}"
    )]
    LabelExtent {
        /// The label.
        label: LabelName,
        /// The offending operand.
        operand: usize,
        /// The offending axis.
        axis: usize,
        /// Its extent.
        found: usize,
        /// The operand that gave the label its extent.
        first_operand: usize,
        /// The axis of that operand.
        first_axis: usize,
        /// The extent that the label had.
        expected: usize,
    },
}

impl EinsumError {
    /// The place in the expression that the error is about, where there is one.
    pub fn span(&self) -> Option<Span> {
        match *self {
            EinsumError::UnexpectedChar { at, .. }
            | EinsumError::BrokenEllipsis { at, .. }
            | EinsumError::SecondEllipsis { at, .. }
            | EinsumError::BrokenArrow { at, .. }
            | EinsumError::SecondArrow { at }
            | EinsumError::OperandCount { at, .. }
            | EinsumError::Rank { at, .. }
            | EinsumError::OutputRepeatsLabel { at, .. }
            | EinsumError::OutputLabelUnknown { at, .. }
            | EinsumError::OutputLacksEllipsis { at, .. } => Some(at),
            EinsumError::NoOperands
            | EinsumError::TooManyLabels { .. }
            | EinsumError::ShapeCount { .. }
            | EinsumError::ShapeRank { .. }
            | EinsumError::DiagonalExtent { .. }
            | EinsumError::LabelExtent { .. } => None,
        }
    }
}

impl EinsumSpec {
    /// The number of labels.
    pub fn label_count(&self) -> usize {
        self.label_names.len()
    }

    /// A distinct letter for each label: the one that was written, and for ellipsis axes letters that were not,
    /// from `A` on.
    pub fn letters(&self) -> Vec<char> {
        let mut taken: Vec<char> = Vec::new();
        for name in &self.label_names {
            if let LabelName::Letter(c) = name {
                taken.push(*c);
            }
        }
        taken.sort_unstable();
        let mut spare = ('A'..=char::MAX).filter(|c| c.is_alphabetic() && taken.binary_search(c).is_err());
        let letter = |name: &LabelName| match name {
            LabelName::Letter(c) => *c,
            // Unicode has more than 130,000 letters, so 65,536 labels never run out of them.
            LabelName::Ellipsis(_) => spare.next().unwrap_or('?'),
        };
        self.label_names.iter().map(letter).collect()
    }

    /// The shape of the result, given the extent of each label (as [`broadcast_extents`] returns them).
    pub fn output_shape(&self, extents: &[usize]) -> Vec<usize> {
        self.output.iter().map(|&l| extents[usize::from(l)]).collect()
    }
}

/// Prints the expression without blanks, with an explicit output and with [letters](EinsumSpec::letters) in place of
/// ellipses; parsing it again gives the same operands and output.
impl fmt::Display for EinsumSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = self.letters();
        let text = |labels: &[Label]| labels.iter().map(|&l| letters[usize::from(l)]).collect::<String>();
        for (k, operand) in self.operands.iter().enumerate() {
            let comma = if k == 0 { "" } else { "," };
            write!(f, "{comma}{}", text(operand))?;
        }
        write!(f, "->{}", text(&self.output))
    }
}

/// One subscript list as written.
struct Subscripts {
    items: SmallVec<[(Item, Span); 8]>,
    span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Letter(char),
    Ellipsis,
}

impl Subscripts {
    fn starting_at(byte: usize) -> Self {
        Subscripts {
            items: SmallVec::new(),
            span: Span::new(byte, byte),
        }
    }

    fn has_ellipsis(&self) -> bool {
        self.items.iter().any(|&(item, _)| item == Item::Ellipsis)
    }

    fn letter_count(&self) -> usize {
        self.items.len() - usize::from(self.has_ellipsis())
    }
}

/// The grammar alone: operands and, after `->`, the output.
fn parse_syntax(expr: &str) -> Result<(Vec<Subscripts>, Option<Subscripts>), EinsumError> {
    let mut operands: Vec<Subscripts> = Vec::new();
    let mut in_output = false;
    let mut current = Subscripts::starting_at(0);
    let mut chars = expr.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        let place = if in_output {
            Place::Output
        } else {
            Place::Operand(operands.len())
        };
        let end = start + c.len_utf8();
        match c {
            ' ' => {}
            '.' => {
                let mut end = end;
                while end - start < 3 && chars.next_if(|&(_, c)| c == '.').is_some() {
                    end += 1;
                }
                let at = Span::new(start, end);
                if end - start < 3 {
                    return Err(EinsumError::BrokenEllipsis {
                        found: expr[start..end].to_owned(),
                        place,
                        at,
                    });
                }
                if current.has_ellipsis() {
                    return Err(EinsumError::SecondEllipsis { place, at });
                }
                current.items.push((Item::Ellipsis, at));
            }
            ',' if !in_output => {
                current.span.end = start;
                operands.push(std::mem::replace(&mut current, Subscripts::starting_at(end)));
            }
            '-' => match chars.next() {
                Some((_, '>')) if in_output => {
                    return Err(EinsumError::SecondArrow {
                        at: Span::new(start, end + 1),
                    });
                }
                Some((_, '>')) => {
                    current.span.end = start;
                    operands.push(std::mem::replace(&mut current, Subscripts::starting_at(end + 1)));
                    in_output = true;
                }
                other => {
                    let found = other.map(|(_, c)| c);
                    return Err(EinsumError::BrokenArrow {
                        found,
                        at: Span::new(start, end),
                    });
                }
            },
            ',' | '>' => {
                let expected = match in_output {
                    true => "a label, `...` or the end",
                    false => "a label, `...`, `,`, `->` or the end",
                };
                return Err(EinsumError::UnexpectedChar {
                    found: c,
                    place,
                    expected,
                    at: Span::new(start, end),
                });
            }
            label => current.items.push((Item::Letter(label), Span::new(start, end))),
        }
    }
    current.span.end = expr.len();
    if in_output {
        Ok((operands, Some(current)))
    } else {
        operands.push(current);
        Ok((operands, None))
    }
}

/// The labels seen so far. Letters are few, so a sorted list finds them.
#[derive(Default)]
struct Labels {
    names: Vec<LabelName>,
    /// Occurrences of each label over all operands.
    uses: Vec<usize>,
    by_letter: Vec<(char, Label)>,
    /// The label of each axis of the broadcast ellipsis, once it has appeared.
    ellipsis: Vec<Option<Label>>,
}

impl Labels {
    /// The caller has checked that labels do not run out.
    fn fresh(&mut self, name: LabelName) -> Label {
        self.names.push(name);
        self.uses.push(0);
        (self.names.len() - 1) as Label
    }

    fn use_letter(&mut self, letter: char) -> Label {
        let label = match self.by_letter.binary_search_by_key(&letter, |&(c, _)| c) {
            Ok(at) => self.by_letter[at].1,
            Err(at) => {
                let label = self.fresh(LabelName::Letter(letter));
                self.by_letter.insert(at, (letter, label));
                label
            }
        };
        self.uses[usize::from(label)] += 1;
        label
    }

    fn find_letter(&self, letter: char) -> Option<Label> {
        let at = self.by_letter.binary_search_by_key(&letter, |&(c, _)| c).ok()?;
        Some(self.by_letter[at].1)
    }

    fn use_ellipsis_axis(&mut self, axis: usize) -> Label {
        let label = self.ellipsis[axis].unwrap_or_else(|| self.fresh(LabelName::Ellipsis(axis as Label)));
        self.ellipsis[axis] = Some(label);
        label
    }

    /// Every axis of the broadcast ellipsis belongs to the operand whose ellipsis is longest, so all have appeared.
    fn ellipsis_labels(&self) -> impl Iterator<Item = Label> + '_ {
        self.ellipsis.iter().filter_map(|&label| label)
    }
}

/// Parses `expr` for operands of the given ranks.
///
/// # Errors
///
/// Any [`EinsumError`] that is not about extents. Syntax is checked first, then the number of operands, then ranks,
/// then the output; within each, the leftmost error is reported.
pub fn parse(expr: &str, operand_ranks: &[usize]) -> Result<EinsumSpec, EinsumError> {
    let (operands, output) = parse_syntax(expr)?;
    if operand_ranks.is_empty() {
        return Err(EinsumError::NoOperands);
    }
    if operands.len() != operand_ranks.len() {
        let at = match operands.get(operand_ranks.len()) {
            Some(superfluous) => superfluous.span,
            None => operands
                .last()
                .map_or(Span::new(0, 0), |last| Span::new(last.span.end, last.span.end)),
        };
        return Err(EinsumError::OperandCount {
            expected: operands.len(),
            found: operand_ranks.len(),
            at,
        });
    }
    let mut ellipsis_rank = 0;
    let mut label_bound = 0usize;
    for (operand, (subscripts, &rank)) in operands.iter().zip(operand_ranks).enumerate() {
        let (expected, ellipsis) = (subscripts.letter_count(), subscripts.has_ellipsis());
        if rank < expected || (rank > expected && !ellipsis) {
            return Err(EinsumError::Rank {
                operand,
                expected,
                ellipsis,
                found: rank,
                at: subscripts.span,
            });
        }
        ellipsis_rank = ellipsis_rank.max(rank - expected);
        label_bound += expected;
    }
    label_bound = label_bound.saturating_add(ellipsis_rank);
    if label_bound > MAX_LABELS {
        let mut letters: Vec<char> = Vec::new();
        for &(item, _) in operands.iter().flat_map(|o| &o.items) {
            if let Item::Letter(c) = item {
                letters.push(c);
            }
        }
        letters.sort_unstable();
        letters.dedup();
        let found = letters.len().saturating_add(ellipsis_rank);
        if found > MAX_LABELS {
            return Err(EinsumError::TooManyLabels { found });
        }
    }

    let mut labels = Labels {
        ellipsis: vec![None; ellipsis_rank],
        ..Labels::default()
    };
    let mut operand_labels = Vec::with_capacity(operands.len());
    for (subscripts, &rank) in operands.iter().zip(operand_ranks) {
        let mut list = Vec::with_capacity(rank);
        let own_rank = rank - subscripts.letter_count();
        for &(item, _) in &subscripts.items {
            match item {
                Item::Letter(c) => list.push(labels.use_letter(c)),
                Item::Ellipsis => {
                    list.extend((ellipsis_rank - own_rank..ellipsis_rank).map(|axis| labels.use_ellipsis_axis(axis)));
                }
            }
        }
        operand_labels.push(list);
    }

    let mut result = Vec::new();
    match output {
        None => {
            result.extend(labels.ellipsis_labels());
            result.extend(
                labels
                    .by_letter
                    .iter()
                    .map(|&(_, l)| l)
                    .filter(|&l| labels.uses[usize::from(l)] == 1),
            );
        }
        Some(output) => {
            let mut first_at: Vec<Option<Span>> = vec![None; labels.names.len()];
            for &(item, at) in &output.items {
                match item {
                    Item::Ellipsis => result.extend(labels.ellipsis_labels()),
                    Item::Letter(letter) => {
                        let Some(label) = labels.find_letter(letter) else {
                            return Err(EinsumError::OutputLabelUnknown { label: letter, at });
                        };
                        if let Some(first) = first_at[usize::from(label)].replace(at) {
                            return Err(EinsumError::OutputRepeatsLabel {
                                label: letter,
                                first,
                                at,
                            });
                        }
                        result.push(label);
                    }
                }
            }
            if ellipsis_rank > 0 && !output.has_ellipsis() {
                return Err(EinsumError::OutputLacksEllipsis {
                    rank: ellipsis_rank,
                    at: output.span,
                });
            }
        }
    }
    Ok(EinsumSpec {
        operands: operand_labels,
        output: result,
        label_names: labels.names,
    })
}

/// The extent of each label when the operands have these shapes, indexed by label.
///
/// As in NumPy an extent of 1 broadcasts against any other extent (0 included) of the same label in *another* operand;
/// the axes of a diagonal must be equal (NumPy 2.4 lets a first axis of 0 pass with any other, and then reads outside of
/// the operand; that is refused here). The caller squeezes or expands the axes whose extent differs from the label's.
///
/// # Errors
///
/// [`EinsumError::ShapeCount`], [`EinsumError::ShapeRank`], [`EinsumError::DiagonalExtent`] and
/// [`EinsumError::LabelExtent`]; the first offending operand and axis, from the left.
pub fn broadcast_extents(spec: &EinsumSpec, shapes: &[Vec<usize>]) -> Result<Vec<usize>, EinsumError> {
    if shapes.len() != spec.operands.len() {
        return Err(EinsumError::ShapeCount {
            expected: spec.operands.len(),
            found: shapes.len(),
        });
    }
    // The extent of each label and the operand and axis that gave it.
    let mut known: Vec<Option<(usize, usize, usize)>> = vec![None; spec.label_count()];
    for (operand, (labels, shape)) in spec.operands.iter().zip(shapes).enumerate() {
        if labels.len() != shape.len() {
            return Err(EinsumError::ShapeRank {
                operand,
                expected: labels.len(),
                found: shape.len(),
            });
        }

        for (axis, (&label, &found)) in labels.iter().zip(shape).enumerate() {
            let name = spec.label_names[usize::from(label)];
            if let Some(first_axis) = labels[..axis].iter().position(|&l| l == label) {
                let expected = shape[first_axis];
                if expected != found {
                    return Err(EinsumError::DiagonalExtent {
                        label: name,
                        operand,
                        first_axis,
                        axis,
                        expected,
                        found,
                    });
                }
                continue;
            }
            let slot = &mut known[usize::from(label)];
            match *slot {
                Some((expected, first_operand, first_axis)) if expected != found && expected != 1 && found != 1 => {
                    return Err(EinsumError::LabelExtent {
                        label: name,
                        operand,
                        axis,
                        found,
                        first_operand,
                        first_axis,
                        expected,
                    });
                }
                Some((expected, ..)) if expected != 1 || found == 1 => {}
                _ => *slot = Some((found, operand, axis)),
            }
        }
    }
    // Every label occurs in an operand, so each has an extent.
    Ok(known.into_iter().map(|k| k.map_or(1, |(extent, ..)| extent)).collect())
}
