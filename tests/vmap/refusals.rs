//! What cannot be recorded over a batch: by name and source line, and nothing panics.

use tlc::{DType, Graph, Tensor, vmap};

fn error(g: &Graph) -> String {
    g.finish().expect_err("it is refused").to_string()
}

#[test]
fn sizes_that_each_example_would_decide() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    let y = vmap(&[(&x, Some(0))], |t| vec![t[0].unique(None, true).counts.sum(..)]);
    assert!(y[0].is_poisoned());
    let text = error(&g);
    assert!(text.contains("tests/vmap/refusals.rs"), "{text}");
    assert!(text.contains("size"), "{text}");
}

#[test]
fn operands_that_do_not_fit() {
    let g = Graph::default();
    let (x, y) = (g.input("x", DType::F32, [2, 3]), g.input("y", DType::F32, [4]));
    let same = |t: &[Tensor]| t.to_vec();
    assert!(vmap(&[(&x, Some(0)), (&y, Some(0))], same)[0].is_poisoned());
    assert!(
        error(&g).contains("operand 1 has 4 examples, those before it 2"),
        "{}",
        error(&g)
    );

    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    assert!(vmap(&[(&x, Some(2))], same)[0].is_poisoned());
    assert!(error(&g).contains("axis 2 of a tensor of rank 2"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    assert!(vmap(&[(&x, None)], same)[0].is_poisoned());
    assert!(
        error(&g).contains("no operand has an axis of examples"),
        "{}",
        error(&g)
    );

    let (g, other) = (Graph::default(), Graph::default());
    let (x, y) = (g.input("x", DType::F32, [2]), other.input("y", DType::F32, [2]));
    let _ = vmap(&[(&x, Some(0)), (&y, Some(0))], |t| vec![&t[0] + &t[1]]);
    assert!(
        error(&g).contains("operands recorded in different graphs"),
        "{}",
        error(&g)
    );
    assert!(vmap(&[], |_| vec![]).is_empty());
}

#[test]
fn what_the_function_may_not_do() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    assert!(vmap(&[(&x, Some(0))], |t| vec![t[0].reshape([7])])[0].is_poisoned());
    assert!(error(&g).contains("reshape"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    assert!(vmap(&[(&x, Some(0))], |t| vec![&t[0] + x.sum(0)])[0].is_poisoned());
    let text = error(&g);
    assert!(
        text.contains("operands of a function and of the graph around it, which are two graphs; expected what the function needs among its operands"),
        "{text}"
    );

    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]);
    assert!(vmap(&[(&x, Some(0))], |_| vec![x.clone()])[0].is_poisoned());
    assert!(error(&g).contains("a result of another graph"), "{}", error(&g));

    // What is poisoned before stays so, and says no more.
    let g = Graph::default();
    let x = g.input("x", DType::F32, [2, 3]).reshape([7]);
    assert!(vmap(&[(&x, Some(0))], |t| vec![t[0].exp()])[0].is_poisoned());
    assert_eq!(g.errors().len(), 1);
}
