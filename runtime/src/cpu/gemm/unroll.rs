//! Loops written out.

/// Repeats a block for each number below a constant of at most 8, written out: arrays that the block indexes stay in
/// registers, also where the compiler is asked for small code and leaves loops as they are, or has enough of unrolling.
macro_rules! unroll {
    ($i:ident < $n:ident $body:block) => {
        unroll!(@ $i $n $body 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $n:ident $body:block $($number:literal)*) => {
        $(if $number < $n {
            let $i: usize = $number;
            $body
        })*
    };
}

pub(super) use unroll;
