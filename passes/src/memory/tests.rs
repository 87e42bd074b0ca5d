use super::*;

fn random(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn some_blocks(state: &mut u64, count: usize, steps: usize) -> Vec<Block> {
    let blocks = (0..count).map(|slot| {
        let first = random(state) % steps;
        Block {
            owner: Owner::Slot(slot),
            bytes: (random(state) % 5) as u64 * ALIGNMENT,
            first,
            last: (first + random(state) % 6).min(steps - 1),
        }
    });
    blocks.collect()
}

/// First fit by its definition.
fn first_fit_by_definition(blocks: &[Block], order: &[usize]) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut peak = 0;
    for &i in order {
        let b = &blocks[i];
        if b.bytes == 0 {
            continue;
        }
        let meets = |&&p: &&usize| blocks[p].last >= b.first && blocks[p].first <= b.last;
        let free = |at: u64| {
            let beyond = |&p: &usize| offsets[p] >= at + b.bytes || offsets[p] + blocks[p].bytes <= at;
            placed.iter().filter(meets).all(beyond)
        };
        let at = (0..).step_by(ALIGNMENT as usize).find(|&at| free(at)).unwrap();
        offsets[i] = at;
        peak = peak.max(at + b.bytes);
        placed.push(i);
    }
    (peak, offsets)
}

#[test]
fn both_searches_find_what_first_fit_is_defined_to_find() {
    let mut state = 1;
    for _ in 0..300 {
        let steps = 1 + random(&mut state) % 20;
        let count = random(&mut state) % 40;
        let blocks = some_blocks(&mut state, count, steps);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&i| (blocks[i].first, i));
        let expected = first_fit_by_definition(&blocks, &order);
        assert_eq!(first_fit(&blocks, &order, steps), Some(expected.clone()));
        assert_eq!(first_fit_by_birth(&blocks, steps), expected);
        order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), i));
        let expected = first_fit_by_definition(&blocks, &order);
        assert_eq!(first_fit(&blocks, &order, steps), Some(expected));
    }
}

/// So many overlap that they are gone through in the order of their offsets, from some block on.
#[test]
fn first_fit_among_many_lifetimes_that_overlap_is_as_defined() {
    let mut state = 7;
    for longest in [20, 60, 200] {
        let steps = 200;
        let mut blocks = some_blocks(&mut state, 400, steps);
        for b in &mut blocks {
            b.bytes *= 1 + (random(&mut state) % 3) as u64;
            b.last = (b.first + random(&mut state) % longest).min(steps - 1);
        }
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        for _ in 0..2 {
            let expected = first_fit_by_definition(&blocks, &order);
            assert_eq!(first_fit(&blocks, &order, steps), Some(expected));
            order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), i));
        }
    }
}

/// Values that derivatives read, the first one last, and short-lived ones between them: runs that all overlap, some with gaps.
#[test]
fn first_fit_among_nested_lifetimes_is_as_defined() {
    let (mut state, steps) = (3, 600);
    let mut blocks = some_blocks(&mut state, 500, steps);
    for (k, b) in blocks.iter_mut().enumerate() {
        b.bytes = (1 + random(&mut state) % 9) as u64 * ALIGNMENT;
        if k % 3 > 0 {
            (b.first, b.last) = (k / 2, steps - 1 - k / 2);
        }
    }
    let length = |i: usize| (blocks[i].last - blocks[i].first) as u64;
    let sorted = |key: &dyn Fn(usize) -> std::cmp::Reverse<u64>| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|&i| (key(i), i));
        order
    };
    let by_bytes = sorted(&|i| std::cmp::Reverse(blocks[i].bytes));
    let by_length = sorted(&|i| std::cmp::Reverse(length(i)));
    for order in [(0..blocks.len()).collect(), by_bytes, by_length] {
        let expected = first_fit_by_definition(&blocks, &order);
        assert_eq!(first_fit(&blocks, &order, steps), Some(expected));
    }
}

#[test]
fn a_search_among_lifetimes_that_all_overlap_is_given_up() {
    let count = 40_000;
    let blocks: Vec<Block> = (0..count)
        .map(|slot| Block {
            owner: Owner::Slot(slot),
            bytes: ALIGNMENT,
            first: slot,
            last: 2 * count - 1 - slot,
        })
        .collect();
    let order: Vec<usize> = (0..count).collect();
    assert_eq!(first_fit(&blocks, &order, 2 * count), None);
    let (peak, _) = first_fit_by_birth(&blocks, 2 * count);
    assert_eq!(peak, lower_bound(&blocks, 2 * count));
}
