//! Boxes of any size at any place, inside of their tensor and beyond its edges, of all permutations.

use std::collections::BTreeSet;

use tlc_gpusim::{Argument, Launch, Module, Swizzle, TensorMap};

use crate::{Bench, Dice, SCHEDULES, TILES, argument};

/// The most bytes that a tensor of the tests has.
const TENSOR: usize = 1 << 16;

/// A tensor, its bytes, and a place in it.
struct Case {
    map: TensorMap,
    data: Vec<u8>,
    at: Vec<i64>,
}

fn case(dice: &mut Dice, rank: usize) -> Case {
    let element_bytes = 1 << dice.within(0, 3);
    let swizzle = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128][dice.within(0, 3) as usize];
    let most = 256 * element_bytes / 16;
    let row = swizzle
        .span()
        .unwrap_or_else(|| 16 * dice.within(1, i64::from(most.min(20))) as u32);
    // A row has at most 256 elements.
    let (row, swizzle) = if row > 256 * element_bytes {
        (16, Swizzle::None)
    } else {
        (row, swizzle)
    };
    let mut tile = vec![row / element_bytes];
    let mut sizes = vec![dice.within(1, 2 * i64::from(tile[0])) as u64];
    let mut strides = Vec::new();
    let mut bytes = (sizes[0] * u64::from(element_bytes)).next_multiple_of(16);
    for _ in 1..rank {
        bytes += 16 * dice.within(0, 2) as u64;
        strides.push(bytes);
        tile.push(dice.within(1, 8) as u32);
        sizes.push(dice.within(1, 9) as u64);
        bytes *= sizes[sizes.len() - 1];
    }
    assert!(bytes as usize <= TENSOR, "{bytes}");
    let at = sizes
        .iter()
        .zip(&tile)
        .map(|(&size, &tile)| dice.within(-i64::from(tile) - 1, size as i64 + 1))
        .collect();
    let map = TensorMap {
        address: 0,
        element_bytes,
        sizes,
        strides,
        tile,
        swizzle,
    };
    let data = (0..bytes).map(|_| dice.next() as u8).collect();
    Case { map, data, at }
}

/// Where in shared memory, from a multiple of 1024, a byte of a tile is.
fn permuted(swizzle: Swizzle, byte: usize) -> usize {
    let (piece, line) = (byte / 16, byte / 128);
    let piece = match swizzle {
        Swizzle::None => piece,
        Swizzle::Bytes32 => piece ^ (line % 2),
        Swizzle::Bytes64 => piece ^ (line % 4),
        Swizzle::Bytes128 => piece ^ (line % 8),
    };
    piece * 16 + byte % 16
}

/// The bytes of a tile, and the addresses in the tensor that it reads.
fn plain(case: &Case) -> (Vec<u8>, BTreeSet<usize>) {
    let Case { map, data, at } = case;
    let width = map.element_bytes as usize;
    let mut found = vec![0; map.tile_bytes() as usize];
    let mut read = BTreeSet::new();
    for element in 0..found.len() / width {
        let (mut rest, mut from, mut is_inside) = (element, 0, true);
        for (i, &extent) in map.tile.iter().enumerate() {
            let index = at[i] + (rest % extent as usize) as i64;
            rest /= extent as usize;
            is_inside &= (0..map.sizes[i] as i64).contains(&index);
            let stride = if i == 0 { width as u64 } else { map.strides[i - 1] };
            from += index * stride as i64;
        }
        for byte in 0..width {
            if is_inside {
                read.insert(from as usize + byte);
                found[permuted(map.swizzle, element * width + byte)] = data[from as usize + byte];
            }
        }
    }
    (found, read)
}

fn check(case: &mut Case, module: &Module, kernel: &str, (schedule, seed): (tlc_gpusim::Schedule, u64)) {
    let mut bench = Bench::new(schedule, seed);
    bench.options.footprint = true;
    case.map.address = bench.input(&case.data);
    let bytes = case.map.tile_bytes() as usize;
    let out = bench.output(bytes.next_multiple_of(4));
    let mut launch = Launch::new(1, 64)
        .shared(1024 + bytes as u32)
        .arg(argument(&case.map))
        .arg(out)
        .arg(bytes as u32);
    for &at in &case.at {
        launch = launch.arg(at as i32);
    }
    let report = bench.run(module, kernel, &launch);
    let what = format!(
        "{kernel} of {:?} at {:?}, {schedule:?} {seed}: {report}",
        case.map, case.at
    );
    assert!(report.is_clean(), "{what}");
    let (expected, read) = plain(case);
    let found = bench.read(out, bytes);
    // The words that the kernel reads are all of a tile but what is no whole word, of which there is none.
    assert!(bytes.is_multiple_of(4) && found == expected, "{what}");
    let rounds = if kernel == "spelled" { 2 } else { 1 };
    let sectors: BTreeSet<usize> = read.iter().map(|at| (case.map.address as usize + at) / 32).collect();
    let loads = report.counters.global_loads;
    assert_eq!(report.counters.tile_copies, rounds, "{what}");
    assert_eq!(report.counters.phases, rounds, "{what}");
    assert_eq!(loads.sectors, rounds * sectors.len() as u64, "{what}");
    assert_eq!(loads.bytes, rounds * read.len() as u64, "{what}");
    assert_eq!(loads.requests, if read.is_empty() { 0 } else { rounds }, "{what}");
    let touched: u64 = report.footprint.reads.iter().map(|(start, end)| end - start).sum();
    assert_eq!(touched, read.len() as u64, "{what}");
}

#[test]
fn any_box_of_two_and_three_dimensions() {
    let module = Module::parse(TILES).unwrap();
    let mut dice = Dice::new(1);
    for number in 0..150 {
        let schedule = SCHEDULES[number % SCHEDULES.len()];
        check(&mut case(&mut dice, 2), &module, "tile2", schedule);
        check(&mut case(&mut dice, 3), &module, "tile3", schedule);
    }
}

#[test]
fn other_spellings() {
    let module = Module::parse(TILES).unwrap();
    let mut dice = Dice::new(2);
    for schedule in SCHEDULES {
        check(&mut case(&mut dice, 2), &module, "spelled", schedule);
    }
    // What is not there is refused by name.
    for (from, to) in [
        (".2d.shared", ".6d.shared"),
        (".2d.shared", ".1d.shared"),
        (".mbarrier::complete_tx::bytes", ".bulk_group"),
        (
            ".mbarrier::complete_tx::bytes",
            ".mbarrier::complete_tx::bytes.multicast::cluster",
        ),
        (".shared::cluster.global", ".global.shared::cta"),
        ("mbarrier.arrive.expect_tx", "mbarrier.arrive.noComplete"),
        ("mbarrier.try_wait.parity", "mbarrier.arrive.parity"),
        (".target sm_90a", ".target sm_80"),
    ] {
        assert!(TILES.contains(from), "{from}");
        assert!(Module::parse(&TILES.replacen(from, to, 1)).is_err(), "{to}");
    }
}

#[test]
fn instructions_are_counted_alike_at_every_schedule() {
    let module = Module::parse(TILES).unwrap();
    let counts: Vec<u64> = SCHEDULES
        .iter()
        .map(|&(schedule, seed)| {
            let mut bench = Bench::new(schedule, seed);
            let mut case = case(&mut Dice::new(3), 2);
            case.map.address = bench.input(&case.data);
            let bytes = case.map.tile_bytes() as u32;
            let out = bench.output(bytes as usize);
            let launch = Launch::new(1, 64)
                .shared(1024 + bytes)
                .arg(argument(&case.map))
                .arg(out)
                .arg(bytes)
                .arg(0)
                .arg(0);
            bench.run(&module, "tile2", &launch).counters.lane_instructions()
        })
        .collect();
    assert!(counts.iter().all(|&c| c == counts[0]), "{counts:?}");
}

#[test]
fn maps_that_are_none() {
    let map = TensorMap {
        address: 1 << 35,
        element_bytes: 2,
        sizes: vec![64, 100],
        strides: vec![128],
        tile: vec![64, 64],
        swizzle: Swizzle::Bytes128,
    };
    assert!(map.encode().is_ok());
    type Change = fn(&mut TensorMap);
    let changes: [Change; 17] = [
        |m| m.address += 8,
        |m| m.element_bytes = 3,
        |m| m.element_bytes = 16,
        |m| m.sizes[1] = 0,
        |m| m.sizes[1] = (1 << 31) + 1,
        |m| m.strides[0] = 120,
        |m| m.strides[0] = 1 << 40,
        |m| m.strides = Vec::new(),
        |m| m.tile[1] = 0,
        |m| m.tile[1] = 257,
        |m| m.tile[0] = 72,
        |m| m.tile[0] = 60,
        |m| m.tile.push(1),
        |m| m.swizzle = Swizzle::Bytes64,
        |m| m.swizzle = Swizzle::Bytes32,
        |m| {
            m.sizes = Vec::new();
            m.strides = Vec::new();
            m.tile = Vec::new();
        },
        |m| {
            m.sizes = vec![64; 6];
            m.strides = vec![128; 5];
            m.tile = vec![8; 6];
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = map.clone();
        change(&mut changed);
        assert!(changed.encode().is_err(), "{number}: {changed:?}");
    }
    let large = TensorMap {
        sizes: vec![1 << 31; 5],
        strides: vec![(1 << 40) - 16; 4],
        tile: vec![64, 1, 1, 1, 256],
        ..map
    };
    assert!(large.encode().is_ok());
    assert_eq!(Argument(large.encode().unwrap().to_vec()).0.len(), 128);
}
