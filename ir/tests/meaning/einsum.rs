//! The einsum language: parity with NumPy and opt_einsum on recorded tables, errors and their places.

use tlc_ir::einsum::{EinsumError, EinsumSpec, LabelName, Place, Span, broadcast_extents, parse};

/// Undoes Python's `json.dumps` of an ASCII string.
fn json_string(text: &str) -> String {
    let mut result = String::new();
    let mut chars = text[1..text.len() - 1].chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match chars.next().expect("an escape") {
            'n' => result.push('\n'),
            't' => result.push('\t'),
            'r' => result.push('\r'),
            'b' => result.push('\u{8}'),
            'f' => result.push('\u{c}'),
            'u' => {
                let digits: String = chars.by_ref().take(4).collect();
                result.push(char::from_u32(u32::from_str_radix(&digits, 16).expect("hex")).expect("a char"));
            }
            other => result.push(other),
        }
    }
    result
}

fn shape(text: &str) -> Vec<usize> {
    if text == "-" {
        Vec::new()
    } else {
        text.split('x').map(|n| n.parse().expect("an extent")).collect()
    }
}

/// The shape of the result.
fn evaluate(expr: &str, shapes: &[Vec<usize>]) -> Result<Vec<usize>, EinsumError> {
    let ranks: Vec<usize> = shapes.iter().map(Vec::len).collect();
    let spec = parse(expr, &ranks)?;
    check_invariants(&spec, &ranks);
    let extents = broadcast_extents(&spec, shapes)?;
    Ok(spec.output_shape(&extents))
}

fn check_invariants(spec: &EinsumSpec, ranks: &[usize]) {
    assert_eq!(spec.operands.iter().map(Vec::len).collect::<Vec<_>>(), ranks);
    let mut next = 0;
    for &label in spec.operands.iter().flatten() {
        assert!(label <= next, "{spec}: labels are numbered by first appearance");
        next += u16::from(label == next);
    }
    assert_eq!(usize::from(next), spec.label_count());
    for (k, label) in spec.output.iter().enumerate() {
        assert!(*label < next && !spec.output[..k].contains(label));
    }
    let again = parse(&spec.to_string(), ranks).expect("a printed spec parses");
    assert_eq!(
        (&again.operands, &again.output),
        (&spec.operands, &spec.output),
        "{spec}"
    );
}

/// NumPy takes an extent of 0 for "not seen yet", so it builds a diagonal of extent 1 that reads outside of its operand.
const NUMPY_BUGS: &[&str] = &["\"ii->i\"\t0x1\tok 1"];

#[test]
fn accepts_and_refuses_what_numpy_does() {
    let table = include_str!("../einsum_numpy.txt");
    let (mut accepted, mut refused, mut differing) = (0, 0, Vec::new());
    for line in table.lines().filter(|l| !l.starts_with('#') && !NUMPY_BUGS.contains(l)) {
        let mut fields = line.splitn(3, '\t');
        let mut field = || fields.next().expect("three fields");
        let expr = json_string(field());
        let shapes: Vec<Vec<usize>> = field().split(' ').map(shape).collect();
        let verdict = field();
        let ours = evaluate(&expr, &shapes);
        let same = match (verdict.strip_prefix("ok "), &ours) {
            (Some(expected), Ok(found)) => {
                accepted += 1;
                shape(expected) == *found
            }
            // NumPy's labels are letters; what others mean is in the table of opt_einsum.
            (None, _) if expr.contains(|c: char| !c.is_ascii_alphabetic() && !" ,.->".contains(c)) => true,
            (None, Err(error)) => {
                refused += 1;
                if let Some(at) = error.span() {
                    assert!(expr.get(at.start..at.end).is_some(), "{line}: {error:?}");
                }
                true
            }
            _ => false,
        };
        if !same {
            differing.push(format!("{line}\n    ours: {ours:?}"));
        }
    }
    assert!(
        differing.is_empty(),
        "{} cases differ:\n{}",
        differing.len(),
        differing.join("\n")
    );
    assert!(
        accepted > 300 && refused > 150,
        "the table is shorter than it was: {accepted} + {refused}"
    );
}

#[test]
fn labels_are_numbered_by_first_appearance() {
    let spec = parse("kj,ji->ik", &[2, 2]).unwrap();
    assert_eq!(spec.operands, [[0, 1], [1, 2]]);
    assert_eq!(spec.output, [2, 0]);
    assert_eq!(spec.label_names, ['k', 'j', 'i'].map(LabelName::Letter));
    let renamed = parse(" ba , a c -> c b", &[2, 2]).unwrap();
    assert_eq!((renamed.operands, renamed.output), (spec.operands, spec.output));
}

#[test]
fn implicit_output_is_sorted_by_code_point_after_the_ellipsis() {
    let spec = parse("b...A,a", &[4, 1]).unwrap();
    assert_eq!(spec.operands, [vec![0, 1, 2, 3], vec![4]]);
    assert_eq!(spec.output, [1, 2, 3, 4, 0]);
    assert_eq!(spec.to_string(), "bBCA,a->BCAab");
}

#[test]
fn ellipses_of_different_ranks_align_at_the_right() {
    let spec = parse("...ij,...jk->...ik", &[3, 4]).unwrap();
    assert_eq!(spec.operands, [vec![0, 1, 2], vec![3, 0, 2, 4]]);
    assert_eq!(spec.output, [3, 0, 1, 4]);
    assert_eq!(spec.label_names[0], LabelName::Ellipsis(1));
    assert_eq!(spec.label_names[3], LabelName::Ellipsis(0));
}

#[test]
fn labels_are_the_characters_that_opt_einsum_takes() {
    let (mut accepted, mut refused) = (0, 0);
    for line in include_str!("../einsum_labels.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let fields: Vec<&str> = line.split('\t').collect();
        let [code, pattern, shapes, verdict] = fields[..] else {
            panic!("{line}")
        };
        let label = char::from_u32(u32::from_str_radix(code, 16).expect("hex")).expect("a char");
        let expr = pattern.replace('?', &label.to_string());
        let shapes: Vec<Vec<usize>> = shapes.split(' ').map(shape).collect();
        match (verdict.strip_prefix("ok "), evaluate(&expr, &shapes)) {
            (Some(expected), Ok(found)) if shape(expected) == found => accepted += 1,
            (None, Err(_)) => refused += 1,
            (_, ours) => panic!("{line}\n    ours: {ours:?}"),
        }
    }
    assert!(accepted > 600 && refused > 8, "{accepted} + {refused}");
}

#[test]
fn any_letter_is_a_label() {
    let spec = parse("αβ,βжé字->αж字é", &[2, 4]).unwrap();
    assert_eq!(spec.operands, [vec![0, 1], vec![1, 2, 3, 4]]);
    assert_eq!(spec.output, [0, 2, 4, 3]);
    let implicit = parse("жaα", &[3]).unwrap();
    assert_eq!(implicit.to_string(), "жaα->aαж");
}

#[test]
fn errors_point_at_the_offending_text() {
    let cases: &[(&str, &[usize], &str, &str)] = &[
        (
            "ij,j>->i",
            &[2, 2],
            ">",
            "unexpected '>' in operand 1; expected a label, `...`, `,`, `->` or the end",
        ),
        (
            "ij->i,",
            &[2],
            ",",
            "unexpected ',' in the output; expected a label, `...` or the end",
        ),
        (
            "α..β",
            &[2],
            "..",
            "\"..\" in operand 0; expected an ellipsis, `...`, without blanks",
        ),
        (
            "i...j...",
            &[2],
            "...",
            "a second `...` in operand 0; expected at most one",
        ),
        (
            "αβ- >α",
            &[2],
            "-",
            "`-` followed by ' '; expected `->`, without blanks",
        ),
        (
            "ij-",
            &[2],
            "-",
            "`-` followed by the end; expected `->`, without blanks",
        ),
        ("i->i->i", &[1], "->", "a second `->`; expected at most one"),
        ("ij,jk->ik", &[2], "jk", "the expression has 2 operand(s), found 1"),
        ("ij->i", &[2, 2], "", "the expression has 1 operand(s), found 2"),
        (
            "ij,jkl->ik",
            &[2, 2],
            "jkl",
            "operand 1 has rank 2, but its subscripts stand for 3 axes",
        ),
        (
            "...i",
            &[0],
            "...i",
            "operand 0 has rank 0, but its subscripts stand for at least 1 axis",
        ),
        (
            "αβ->αα",
            &[2],
            "α",
            "label `α` appears twice in the output; expected distinct labels",
        ),
        ("ij->ik", &[2], "k", "output label `k` appears in no operand"),
        (
            "...i->i",
            &[3],
            "i",
            "the ellipsis stands for 2 axes, but the output has no `...`",
        ),
    ];
    for &(expr, ranks, text, message) in cases {
        let error = parse(expr, ranks).expect_err(expr);
        assert_eq!(error.to_string(), message, "{expr}");
        let at = error.span().expect(expr);
        assert_eq!(&expr[at.start..at.end], text, "{expr}");
    }
}

#[test]
fn columns_count_chars() {
    let expr = "αβ,β>";
    let at = parse(expr, &[2, 2]).unwrap_err().span().unwrap();
    assert_eq!((at, at.char_range(expr)), (Span { start: 7, end: 8 }, 4..5));
    let second = parse("αβ->ββ", &[2]).unwrap_err();
    let EinsumError::OutputRepeatsLabel { first, at, .. } = second else {
        panic!("{second:?}")
    };
    assert_eq!((first.char_range("αβ->ββ"), at.char_range("αβ->ββ")), (4..5, 5..6));
}

#[test]
fn no_operands_is_an_error() {
    assert_eq!(parse("", &[]), Err(EinsumError::NoOperands));
    assert_eq!(parse("i", &[]), Err(EinsumError::NoOperands));
    assert!(matches!(
        parse(">", &[]),
        Err(EinsumError::UnexpectedChar {
            place: Place::Operand(0),
            ..
        })
    ));
}

#[test]
fn absurd_ranks_are_refused_without_allocating() {
    assert!(matches!(
        parse("...", &[usize::MAX]),
        Err(EinsumError::TooManyLabels { .. })
    ));
    assert_eq!(parse("...i", &[65_536]).unwrap().label_count(), 65_536);
    assert_eq!(
        parse("...i", &[65_537]),
        Err(EinsumError::TooManyLabels { found: 65_537 })
    );
    let repeated = "i".repeat(70_000);
    assert_eq!(parse(&repeated, &[70_000]).unwrap().label_count(), 1);
}

#[test]
fn extents_name_the_offending_axis() {
    let spec = parse("ij,jk->ik", &[2, 2]).unwrap();
    let error = broadcast_extents(&spec, &[vec![2, 3], vec![4, 5]]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operand 1, axis 0: label `j` has extent 4, but 3 in operand 0, axis 1"
    );
    assert_eq!(broadcast_extents(&spec, &[vec![2, 1], vec![4, 5]]), Ok(vec![2, 4, 5]));
    assert_eq!(
        broadcast_extents(&spec, &[vec![2, 4]]),
        Err(EinsumError::ShapeCount { expected: 2, found: 1 })
    );
    assert_eq!(
        broadcast_extents(&spec, &[vec![2, 4], vec![4]]),
        Err(EinsumError::ShapeRank {
            operand: 1,
            expected: 2,
            found: 1
        })
    );
    let diagonal = parse("ii,...i", &[2, 2]).unwrap();
    let error = broadcast_extents(&diagonal, &[vec![3, 1], vec![2, 3]]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operand 0: axes 0 and 1 share label `i`, but their extents are 3 and 1"
    );
    let ellipsis = parse("...i,...i,...i", &[2, 2, 2]).unwrap();
    let error = broadcast_extents(&ellipsis, &[vec![1, 3], vec![4, 3], vec![5, 1]]).unwrap_err();
    let message = "operand 2, axis 0: label axis 0 of `...` has extent 5, but 4 in operand 1, axis 0";
    assert_eq!(error.to_string(), message);
}
