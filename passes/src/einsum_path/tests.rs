use super::greedy::SplitMix64;
use super::*;

/// An einsum expression of letters and the extent of each letter.
struct Case {
    operands: Vec<Vec<Label>>,
    output: Vec<Label>,
    extents: Vec<u64>,
    names: Vec<char>,
}

fn case(expr: &str, extent: impl Fn(char) -> u64) -> Case {
    let ranks: Vec<usize> = expr
        .split("->")
        .next()
        .unwrap_or("")
        .split(',')
        .map(|operand| operand.chars().count())
        .collect();
    let spec = tlc_ir::einsum::parse(expr, &ranks).expect("a valid expression");
    let names = spec.letters();
    let extents = names.iter().map(|&name| extent(name)).collect();
    Case {
        operands: spec.operands,
        output: spec.output,
        extents,
        names,
    }
}

impl Case {
    fn solve(&self, options: &PathOptions) -> Result<ContractionPath, PathError> {
        let path = contraction_path(&self.operands, &self.output, &self.extents, options)?;
        verify(self, &path);
        Ok(path)
    }

    fn path(&self) -> ContractionPath {
        self.solve(&PathOptions::default()).expect("a path")
    }
}

fn limited(limit: f64) -> PathOptions {
    PathOptions {
        max_intermediate: Some(limit),
        ..PathOptions::default()
    }
}

fn size(labels: &[Label], extents: &[u64]) -> f64 {
    labels.iter().map(|&l| extents[l as usize] as f64).product()
}

/// Replays a path by the meaning of einsum and checks everything that it says.
fn verify(case: &Case, path: &ContractionPath) {
    let n = case.operands.len();
    assert_eq!((path.operand_count, path.steps.len()), (n, n - 1));
    let mut tensors: Vec<Option<Vec<Label>>> = case.operands.iter().cloned().map(Some).collect();
    let mut flops = 0.0;
    for reduction in &path.reductions {
        let labels = tensors[reduction.operand].as_mut().expect("an operand");
        flops += size(labels, &case.extents);
        for label in &reduction.summed {
            let holders = case.operands.iter().filter(|o| o.contains(label)).count();
            assert!(holders == 1 && !case.output.contains(label));
        }
        labels.retain(|label| !reduction.summed.contains(label));
        assert_eq!(*labels, reduction.kept);
    }
    let mut largest = 0.0f64;
    for (k, step) in path.steps.iter().enumerate() {
        let (a, b) = step.operands;
        assert!(a < b, "the smaller number first");
        let lhs = tensors[a].take().expect("a living tensor");
        let rhs = tensors[b].take().expect("a living tensor");
        assert_eq!((&lhs, &rhs), (&step.lhs, &step.rhs));
        let mut pair = lhs;
        pair.extend(rhs.iter().filter(|l| !step.lhs.contains(l)));
        let mut kept = pair.clone();
        kept.retain(|l| case.output.contains(l) || tensors.iter().flatten().any(|t| t.contains(l)));
        let mut result = step.result.clone();
        result.sort_unstable();
        kept.sort_unstable();
        assert_eq!(result, kept, "step {k} keeps what is needed later and nothing else");
        assert_eq!(step.flops, 2.0 * size(&pair, &case.extents));
        assert_eq!(step.elements, size(&kept, &case.extents));
        flops += step.flops;
        if k + 2 < n {
            largest = largest.max(step.elements);
        } else {
            assert_eq!(step.result, case.output);
        }
        tensors.push(Some(step.result.clone()));
    }
    assert!((flops - path.flops).abs() <= 1e-9 * flops);
    assert_eq!(largest, path.largest_intermediate);
}

/// The least flops over all orders under a limit, and the least limit, by trying every order of pairs.
fn brute_force(tensors: &[Vec<Label>], case: &Case, limit: f64) -> (f64, f64) {
    if tensors.len() == 1 {
        return (0.0, 0.0);
    }
    let (mut best, mut least) = (f64::INFINITY, f64::INFINITY);
    for a in 0..tensors.len() {
        for b in a + 1..tensors.len() {
            let mut rest: Vec<Vec<Label>> = tensors.to_vec();
            let (y, x) = (rest.remove(b), rest.remove(a));
            let mut pair = x.clone();
            pair.extend(y.iter().filter(|l| !x.contains(l)));
            let step = 2.0 * size(&pair, &case.extents);
            pair.retain(|l| case.output.contains(l) || rest.iter().any(|t| t.contains(l)));
            let made = if rest.is_empty() {
                0.0
            } else {
                size(&pair, &case.extents)
            };
            rest.push(pair);
            let (flops, largest) = brute_force(&rest, case, limit);
            least = least.min(largest.max(made));
            if made <= limit {
                best = best.min(step + flops);
            }
        }
    }
    (best, least)
}

fn random_case(random: &mut SplitMix64, operands: usize, labels: usize, max_extent: u64) -> Case {
    let mut below = |n: usize| (random.next() % n.max(1) as u64) as usize;
    let mut case = Case {
        operands: vec![Vec::new(); operands],
        output: Vec::new(),
        extents: Vec::new(),
        names: vec![],
    };
    for label in 0..labels as Label {
        case.extents.push(1 + below(max_extent as usize) as u64);
        // Mostly two holders, at times one, three or more.
        let holders = [1, 2, 2, 2, 2, 2, 3, 4][below(8)].min(operands);
        for _ in 0..holders {
            let operand = &mut case.operands[below(operands)];
            if !operand.contains(&label) {
                operand.push(label);
            }
        }
        if below(4) == 0 {
            case.output.push(label);
        }
    }
    case
}

#[test]
fn exact_search_equals_brute_force() {
    let mut random = SplitMix64(1);
    let (mut refused, mut changed) = (0, 0);
    for round in 0..900 {
        let operands = 1 + round % 6;
        let case = random_case(&mut random, operands, 1 + round % 9, 6);
        let path = case.path();
        assert_eq!(path.method, Method::Exact);
        let mut reduced = case.operands.clone();
        let mut sums = 0.0;
        for reduction in &path.reductions {
            reduced[reduction.operand].clone_from(&reduction.kept);
            sums += reduction.flops;
        }
        let (flops, least) = brute_force(&reduced, &case, f64::INFINITY);
        assert_eq!(path.flops, flops + sums);
        // Limits between the least possible and what the unlimited path takes.
        let free = path.largest_intermediate;
        changed += usize::from(free > least);
        for limit in [least, (least + free) / 2.0, free - 1.0, least - 1.0]
            .into_iter()
            .filter(|&limit| limit >= 0.0)
        {
            match case.solve(&limited(limit)) {
                Ok(limited) => {
                    assert!(limited.largest_intermediate <= limit);
                    assert_eq!(limited.flops, brute_force(&reduced, &case, limit).0 + sums);
                }
                Err(error) => {
                    refused += 1;
                    assert!(limit < least);
                    assert_eq!(
                        error,
                        PathError::MemoryLimit {
                            limit,
                            smallest: least,
                            proven: true
                        }
                    );
                }
            }
        }
    }
    assert!(
        refused >= 200 && changed >= 15,
        "{refused} refused, {changed} changed by a limit"
    );
}

/// The heuristic, where the exact search would have a result.
fn heuristic(case: &Case, limit: f64, effort: Effort) -> Option<ContractionPath> {
    let path = case.path();
    let mut reduced = case.operands.clone();
    path.reductions
        .iter()
        .for_each(|r| reduced[r.operand].clone_from(&r.kept));
    let network = Network::new(&reduced, &case.output, &case.extents);
    let options = PathOptions {
        effort,
        ..limited(limit)
    };
    let (merges, method) = search(&network, limit, &options).ok()?;
    let uses = check(&case.operands, &case.output, &case.extents).expect("a valid case");
    let found = describe(
        &reduced,
        &case.output,
        &case.extents,
        path.reductions,
        uses,
        &merges,
        method,
    );
    verify(case, &found);
    Some(found)
}

#[test]
fn the_heuristic_is_within_two_percent_of_exact_on_ten_operands() {
    let mut random = SplitMix64(2);
    let (mut worst, mut optimal, mut found, mut rounds) = (1.0f64, 0, 0, 0);
    for round in 0..120 {
        let operands = 8 + round % 3;
        let case = random_case(&mut random, operands, operands + round % 12, 12);
        let exact = case.path();
        let free = heuristic(&case, f64::INFINITY, Effort::Balanced).expect("without limit there is a path");
        let sums: f64 = exact.reductions.iter().map(|r| r.flops).sum();
        let ratio = (free.flops - sums) / (exact.flops - sums).max(1.0);
        worst = worst.max(ratio);
        optimal += usize::from(ratio <= 1.0 + 1e-12);
        // Under a limit that a path can just keep.
        rounds += 1;
        let Err(PathError::MemoryLimit { smallest, .. }) = case.solve(&limited(-1.0)) else {
            panic!("no path fits")
        };
        found += usize::from(heuristic(&case, smallest, Effort::Balanced).is_some());
    }
    assert!(worst <= 1.02, "worst {worst}");
    assert!(optimal * 100 >= rounds * 95, "{optimal} of {rounds} optimal");
    assert!(
        found * 100 >= rounds * 95,
        "{found} of {rounds} found under the least limit"
    );
}

/// `v0,v0 v1,v1 v2,...` with a vector at the end.
fn chain(count: usize, extent: impl Fn(usize) -> u64) -> Case {
    let mut operands: Vec<Vec<Label>> = (0..count as Label - 1).map(|k| vec![k, k + 1]).collect();
    operands.push(vec![count as Label - 1]);
    Case {
        operands,
        output: vec![0],
        extents: (0..count).map(extent).collect(),
        names: Vec::new(),
    }
}

#[test]
fn a_chain_that_ends_in_a_vector_is_contracted_from_the_right() {
    for count in [2, 3, 9, 10, 11, 12, 40, 100, 300] {
        let path = chain(count, |_| 64).path();
        assert_eq!(path.flops, 2.0 * 4096.0 * (count - 1) as f64, "{count} operands");
        let right_to_left: Vec<_> = (0..count - 1)
            .map(|k| match k {
                0 => (count - 2, count - 1),
                _ => (count - 2 - k, count + k - 1),
            })
            .collect();
        assert_eq!(path.pairs(), right_to_left);
    }
}

#[test]
fn a_shuffled_chain_of_varied_matrices_is_optimal() {
    let mut random = SplitMix64(3);
    let extents: Vec<u64> = (0..60).map(|_| 1 + random.next() % 200).collect();
    let mut case = chain(60, |k| extents[k]);
    case.operands[59].push(60);
    case.extents.push(77);
    case.output.push(60);
    let straight = case.path();
    // The matrix-chain table of a textbook.
    let dims: Vec<f64> = case.extents.iter().map(|&e| e as f64).collect();
    let mut table = vec![vec![0.0f64; 61]; 61];
    for length in 2..=60 {
        for i in 0..=60 - length {
            let j = i + length;
            let cost = |k: usize| table[i][k] + table[k][j] + 2.0 * dims[i] * dims[k] * dims[j];
            table[i][j] = (i + 1..j).map(cost).fold(f64::INFINITY, f64::min);
        }
    }
    assert!(
        straight.flops <= table[0][60],
        "outer products may be better, nothing is worse"
    );
    for k in (1..60).rev() {
        case.operands.swap(k, (random.next() % (k as u64 + 1)) as usize);
    }
    assert!(case.path().flops <= table[0][60]);
}

#[test]
fn peers_network_of_ten() {
    let case = case("pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->", |c| {
        if "pqrst".contains(c) { 16 } else { 64 }
    });
    let path = case.path();
    assert_eq!(path.method, Method::Exact);
    // Two matrix product states: six products of 16 * 16 * 64 * 64 around the two ends, two of 16 * 64 * 64 * 64 for the
    // site in the middle, and the trace over p and e.
    let (end, middle) = (2.0 * 16.0 * 16.0 * 64.0 * 64.0, 2.0 * 16.0 * 64.0 * 64.0 * 64.0);
    assert_eq!(path.flops, 6.0 * end + 2.0 * middle + 2.0 * 16.0 * 64.0);
    assert_eq!(path.largest_intermediate, 16.0 * 64.0 * 64.0);
    assert_eq!(path.naive_flops, 10.0 * 16f64.powi(5) * 64f64.powi(8));
    assert!(path.speedup() > 1e13);
}

#[test]
fn reference_networks() {
    let path = case("ijk,kl,lm->ijm", |c| [32, 64, 256, 256, 128]["ijklm".find(c).unwrap()]).path();
    assert_eq!(path.pairs(), [(1, 2), (0, 3)]);
    let path = case("abcd,cdef,efgh->abgh", |_| 16).path();
    assert_eq!(path.flops, 2.0 * 2.0 * 16f64.powi(6));
    // A hyperedge lives until its last use.
    let path = case("ai,bi,ci->abc", |_| 8).path();
    assert_eq!(path.steps[0].result.len(), 3);
    let path = case("bij,bjk,bkl->bil", |_| 8).path();
    assert!(
        path.steps.iter().all(|step| step.result[0] == 0),
        "a batch label comes first"
    );
}

#[test]
fn outer_products_are_considered() {
    // (u v) first is an outer product of 4 elements; either with M first is 2 * 4 * 1000.
    let path = case("i,j,ijk->k", |c| if c == 'k' { 1000 } else { 2 }).path();
    assert_eq!(path.pairs(), [(0, 1), (2, 3)]);
}

#[test]
fn labels_of_one_operand_are_summed_first() {
    let path = case("ijx,jk,ky->i", |_| 10).path();
    let reductions: Vec<_> = path
        .reductions
        .iter()
        .map(|r| (r.operand, r.summed.len(), r.flops))
        .collect();
    assert_eq!(reductions, [(0, 1, 1000.0), (2, 1, 100.0)]);
    assert_eq!(path.flops, 1100.0 + 200.0 + 200.0);
}

#[test]
fn scalars_and_single_operands() {
    let path = case(",,->", |_| 1).path();
    assert_eq!((path.flops, path.steps.len(), path.output_elements), (4.0, 2, 1.0));
    let path = case("ij->ji", |_| 5).path();
    assert_eq!(
        (path.flops, path.steps.len(), path.naive_flops, path.speedup()),
        (0.0, 0, 0.0, 1.0)
    );
    let path = case("ij->i", |_| 5).path();
    assert_eq!((path.flops, path.reductions.len(), path.naive_flops), (25.0, 1, 25.0));
    let path = case(",ij,->ij", |_| 5).path();
    assert_eq!(path.pairs(), [(0, 2), (1, 3)]);
    let scalars: Vec<Vec<Label>> = vec![Vec::new(); 40];
    let path = contraction_path(&scalars, &[], &[], &PathOptions::default()).expect("a path");
    assert_eq!(path.flops, 78.0);
}

#[test]
fn zero_extents_cost_nothing() {
    let path = case("ij,jk,kl->il", |c| if c == 'j' { 0 } else { 5 }).path();
    assert_eq!(path.steps.len(), 2);
    assert!(path.flops <= 2.0 * 125.0);
    let path = case("ij,jk,kl->il", |_| 0).path();
    assert_eq!(
        (path.flops, path.naive_flops, path.naive_flops_log10),
        (0.0, 0.0, f64::NEG_INFINITY)
    );
    assert!(!path.to_string().contains("NaN"));
    let long = chain(30, |k| if k == 17 { 0 } else { u64::MAX }).operands;
    let extents: Vec<u64> = (0..30).map(|k| if k == 17 { 0 } else { u64::MAX }).collect();
    let path = contraction_path(&long, &[0], &extents, &PathOptions::default()).expect("a path");
    assert_eq!(path.naive_flops, 0.0);
}

#[test]
fn huge_extents_do_not_overflow() {
    let path = case("ab,bc,cd,de,ef,fg->ag", |_| u64::MAX).path();
    assert!(path.flops.is_finite() && path.flops > 1e57);
    let wide: Vec<Vec<Label>> = (0..20).map(|k| (k * 8..k * 8 + 16).collect()).collect();
    let extents = vec![u64::MAX; 168];
    let path = contraction_path(&wide, &[0], &extents, &PathOptions::default()).expect("a path");
    assert_eq!(path.naive_flops, 1e300);
    assert!((path.naive_flops_log10 - 168.0 * 64.0 * 2f64.log10() - 20f64.log10()).abs() < 1e-6);
    assert!(path.to_string().contains("e3237 flops"), "{path}");
}

#[test]
fn a_broken_memory_limit_names_the_least_limit() {
    let case = case("i,j,ijk->k", |c| if c == 'k' { 4 } else { 10 });
    assert_eq!(case.solve(&limited(40.0)).expect("a path").largest_intermediate, 40.0);
    let error = case.solve(&limited(39.0)).expect_err("no path");
    assert_eq!(
        error.to_string(),
        "no contraction order keeps every intermediate within 39 elements; the smallest achievable limit is 40"
    );
}

#[test]
fn the_heuristic_obeys_a_memory_limit() {
    let case = lattice(5, 5, 3);
    let free = case.path();
    let limit = free.largest_intermediate / 3.0;
    match case.solve(&limited(limit)) {
        Ok(path) => assert!(path.largest_intermediate <= limit && path.flops >= free.flops),
        Err(error) => assert!(matches!(error, PathError::MemoryLimit { proven: false, .. })),
    }
    let error = case.solve(&limited(1.0)).expect_err("one element is not enough");
    let PathError::MemoryLimit { smallest, proven, .. } = error else {
        panic!("{error}")
    };
    assert!(!proven && smallest >= 81.0);
    let path = case.solve(&limited(smallest)).expect("what was said to work works");
    assert!(path.largest_intermediate <= smallest);
}

/// A square lattice of tensors, a label for each edge, contracted to a scalar.
fn lattice(rows: usize, columns: usize, extent: u64) -> Case {
    let mut case = Case {
        operands: vec![Vec::new(); rows * columns],
        output: vec![],
        extents: vec![],
        names: vec![],
    };
    for row in 0..rows {
        for column in 0..columns {
            for (next_row, next_column) in [(row + 1, column), (row, column + 1)] {
                if next_row < rows && next_column < columns {
                    let label = case.extents.len() as Label;
                    case.extents.push(extent);
                    case.operands[row * columns + column].push(label);
                    case.operands[next_row * columns + next_column].push(label);
                }
            }
        }
    }
    case
}

#[test]
fn a_lattice_gets_the_best_known_order() {
    let path = lattice(4, 12, 4).path();
    // What omeco's annealing and our thorough search find too; a sweep holds its width and one edge more.
    assert!(path.flops <= 714_784.0, "{}", path.flops);
    assert!(path.largest_intermediate <= 4f64.powi(5));
}

#[test]
fn many_operands_and_wide_hyperedges_are_bounded() {
    // 500 operands that all share one label.
    let operands: Vec<Vec<Label>> = (0..500).map(|k| vec![0, k + 1]).collect();
    let case = Case {
        operands,
        output: vec![0],
        extents: vec![7; 501],
        names: Vec::new(),
    };
    let path = case.path();
    // Each operand's own label is summed first, then 499 products of vectors.
    assert_eq!(path.flops, 500.0 * 49.0 + 499.0 * 14.0);
    let mut random = SplitMix64(9);
    let case = random_case(&mut random, 500, 700, 4);
    case.solve(&PathOptions {
        effort: Effort::Quick,
        ..PathOptions::default()
    })
    .expect("a path");
}

#[test]
fn equal_arguments_give_equal_paths() {
    let case = random_case(&mut SplitMix64(4), 40, 70, 5);
    assert_eq!(case.path(), case.path());
    let seeded = case
        .solve(&PathOptions {
            seed: 7,
            ..PathOptions::default()
        })
        .expect("a path");
    assert!(matches!(seeded.method, Method::Heuristic { operands: 40, .. }));
}

#[test]
fn malformed_problems_are_refused() {
    let solve = |operands: &[Vec<Label>], output: &[Label]| {
        contraction_path(operands, output, &[2, 3], &PathOptions::default()).expect_err("malformed")
    };
    assert_eq!(solve(&[], &[]), PathError::NoOperands);
    assert_eq!(
        solve(&[vec![0], vec![1, 1]], &[]),
        PathError::Diagonal { operand: 1, label: 1 }
    );
    assert_eq!(
        solve(&[vec![2]], &[]),
        PathError::LabelWithoutExtent { label: 2, extents: 2 }
    );
    assert_eq!(
        solve(&[vec![0]], &[9]),
        PathError::LabelWithoutExtent { label: 9, extents: 2 }
    );
    assert_eq!(solve(&[vec![0]], &[0, 0]), PathError::OutputRepeats { label: 0 });
    assert_eq!(solve(&[vec![0]], &[1]), PathError::OutputUnknown { label: 1 });
}

#[test]
fn the_report_names_steps_and_totals() {
    let three = case("ij,jk,kx->i", |_| 64);
    let report = three.path().report(&three.names).to_string();
    let expected = "\
naive                 5.03e7 flops
chosen                20480 flops, 2458 times fewer
largest intermediate  64 elements
method                exact

step  tensors  contraction  flops  elements
sum   #2       kx->k        4096
#3    #1 #2    jk,k->j      8192   64
#4    #0 #3    ij,j->i      8192   64
";
    assert_eq!(report, expected);
    let two = case("ij,jk->ik", |_| 64).path().to_string();
    assert!(two.contains("flops, as many\n"), "{two}");
    let one = case("ij->ji", |_| 3).path().to_string();
    assert!(one.ends_with("method                exact\n"), "{one}");
}

#[test]
fn thorough_search_is_exact_up_to_thirteen_operands() {
    let mut random = SplitMix64(11);
    for operands in 11..=13 {
        let case = random_case(&mut random, operands, 24, 9);
        let thorough = case
            .solve(&PathOptions {
                effort: Effort::Thorough,
                ..PathOptions::default()
            })
            .expect("a path");
        assert_eq!(thorough.method, Method::Exact);
        let balanced = case.path();
        assert!(matches!(balanced.method, Method::Heuristic { .. }));
        assert!(thorough.flops <= balanced.flops && balanced.flops <= 1.02 * thorough.flops);
    }
}

#[test]
fn more_effort_finds_no_dearer_path_on_a_lattice() {
    let case = lattice(7, 7, 2);
    let flops = |effort| {
        case.solve(&PathOptions {
            effort,
            ..PathOptions::default()
        })
        .expect("a path")
        .flops
    };
    let [quick, balanced] = [Effort::Quick, Effort::Balanced].map(flops);
    assert!(balanced <= quick);
}
