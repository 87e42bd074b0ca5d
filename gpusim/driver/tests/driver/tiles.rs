//! Maps of tensors: what is refused, and kernels that get them by value, launched, captured and changed.

use super::*;

const TILES: &str = include_str!("tiles.ptx");

/// Words of a row, rows of the tensor and of a tile.
const COLUMNS: u64 = 32;
const ROWS: u64 = 30;
const TILE: usize = 8;

/// What `cuTensorMapEncodeTiled` is asked for.
#[derive(Clone, Debug)]
struct Asked {
    element: u32,
    rank: u32,
    address: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
    tile: Vec<u32>,
    steps: Vec<u32>,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
}

impl Asked {
    /// Words at an address.
    fn words(address: u64) -> Asked {
        Asked {
            element: 2,
            rank: 2,
            address,
            sizes: vec![COLUMNS, ROWS],
            strides: vec![4 * COLUMNS],
            tile: vec![COLUMNS as u32, TILE as u32],
            steps: vec![1, 1],
            interleave: 0,
            swizzle: 0,
            promotion: 2,
            fill: 0,
        }
    }

    fn encode(&self, to: *mut CUtensorMap) -> CUresult {
        // SAFETY: the lists are as long as they must be, and `to` is null or ours.
        unsafe {
            cuTensorMapEncodeTiled(
                to,
                self.element,
                self.rank,
                without_provenance_mut(self.address as usize),
                self.sizes.as_ptr(),
                self.strides.as_ptr(),
                self.tile.as_ptr(),
                self.steps.as_ptr(),
                self.interleave,
                self.swizzle,
                self.promotion,
                self.fill,
            )
        }
    }

    fn map(&self) -> CUtensorMap {
        made(|to| self.encode(to))
    }
}

/// The kernel of the tests.
fn function() -> Handle {
    let text = CString::new(TILES).unwrap();
    // SAFETY: the pointers are ours, and texts end with a zero byte.
    unsafe {
        let module = handle(|to| cuModuleLoadData(to, text.as_ptr().cast()));
        handle(|to| cuModuleGetFunction(to, module, c"tile".as_ptr()))
    }
}

fn launch(function: Handle, row: i32, map: &CUtensorMap, to: u64, stream: Handle) -> CUresult {
    let mut params: [*mut c_void; 3] = [
        (&raw const row).cast_mut().cast(),
        (&raw const *map).cast_mut().cast(),
        (&raw const to).cast_mut().cast(),
    ];
    let params = params.as_mut_ptr();
    // SAFETY: there is a pointer for each parameter, to a value of its size.
    unsafe { cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, null_mut()) }
}

/// What is in a tile that begins at a row of words that count from a number; zeros outside of the tensor.
fn tile(row: i64, first: u32) -> Vec<u32> {
    let word = |i: i64| {
        let at = row * COLUMNS as i64 + i;
        let is_inside = (0..(COLUMNS * ROWS) as i64).contains(&at);
        if is_inside { first + at as u32 } else { 0 }
    };
    (0..(TILE as u64 * COLUMNS) as i64).map(word).collect()
}

#[test]
fn tiles_are_copied() {
    cases("tiles::tiles_are_copied", &[("run", &[])], |_| {
        context();
        let function = function();
        let (x, y) = (filled(&counted()), filled(&plus(5000)));
        let out = alloc(TILE * COLUMNS as usize);
        let (a, stream) = (Asked::words(x).map(), stream());
        for row in [0, 7, 25, -3, 30] {
            ok(launch(function, row, &a, out, stream));
            ok(cuStreamSynchronize(stream));
            assert_eq!(read(out, TILE * COLUMNS as usize), tile(row.into(), 0));
        }
        // A graph has the map by value, until it is given another.
        let mut node = null_mut();
        let exec = {
            let map = Asked::words(x).map();
            ok(cuStreamBeginCapture_v2(stream, 1));
            ok(launch(function, 2, &map, out, stream));
            // SAFETY: the pointers are ours, here and below.
            unsafe {
                let graph = handle(|to| cuStreamEndCapture(stream, to));
                let mut count = 1;
                ok(cuGraphGetNodes(graph, &raw mut node, &raw mut count));
                handle(|to| cuGraphInstantiateWithFlags(to, graph, 0))
            }
        };
        ok(cuGraphLaunch(exec, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(read(out, TILE * COLUMNS as usize), tile(2, 0));
        let mut params = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::uninit();
        // SAFETY: as above; it is written where the call succeeds.
        let mut params = unsafe {
            ok(cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()));
            params.assume_init()
        };
        let b = Asked::words(y).map();
        // SAFETY: the arguments live as long as the graph, and the second is a map.
        unsafe {
            let arguments = std::slice::from_raw_parts(params.kernelParams, 3);
            assert_eq!(
                arguments[1].cast::<[u8; 128]>().read(),
                (&raw const a).cast::<[u8; 128]>().read()
            );
            let mut changed = [arguments[0], (&raw const b).cast_mut().cast(), arguments[2]];
            params.kernelParams = changed.as_mut_ptr();
            ok(cuGraphExecKernelNodeSetParams_v2(exec, node, &raw const params));
        }
        ok(cuGraphLaunch(exec, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(read(out, TILE * COLUMNS as usize), tile(2, 5000));
        clean();
    });
}

#[test]
fn tiles_are_ordered_with_the_rest() {
    cases("tiles::tiles_are_ordered_with_the_rest", &[("run", &[])], |_| {
        context();
        let function = function();
        let x = filled(&counted());
        let out = alloc(TILE * COLUMNS as usize);
        let (map, a, b) = (Asked::words(x).map(), stream(), stream());
        ok(launch(function, 0, &map, out, a));
        // Behind the tile's rows, and among them.
        let behind = x + TILE as u64 * 4 * COLUMNS;
        ok(cuMemsetD32Async(behind, 1, 1, b));
        ok(cuStreamSynchronize(a));
        ok(cuStreamSynchronize(b));
        clean();
        ok(launch(function, 0, &map, out, a));
        ok(cuMemsetD32Async(behind - 4, 1, 1, b));
        let _ = (cuStreamSynchronize(a), cuStreamSynchronize(b));
        assert_eq!(reported("found"), 1, "{}", report());
    });
}

#[test]
fn maps_that_nobody_encoded() {
    cases("tiles::maps_that_nobody_encoded", &[("run", &[])], |_| {
        context();
        let function = function();
        let out = alloc(TILE * COLUMNS as usize);
        ok(launch(function, 0, &CUtensorMap::default(), out, stream()));
        let _ = cuCtxSynchronize();
        let report = report();
        assert!(report.contains("the map of the tensor was never encoded"), "{report}");
    });
}

#[test]
fn what_the_manual_refuses_is_refused() {
    let environments: [(&str, &[(&str, &str)]); 2] = [("h200", &[]), ("a100", &[("TLC_SIM_DEVICE", "a100")])];
    cases("tiles::what_the_manual_refuses_is_refused", &environments, |case| {
        context();
        let words = Asked::words(alloc(LEN));
        let mut map = CUtensorMap::default();
        if case == "a100" {
            assert_eq!(words.encode(&raw mut map), CUDA_ERROR_NOT_SUPPORTED);
            return;
        }
        ok(words.encode(&raw mut map));
        assert_ne!(map, CUtensorMap::default());
        assert_eq!(words.encode(null_mut()), CUDA_ERROR_INVALID_VALUE);
        let mut maps = [map; 2];
        let at = maps.as_mut_ptr();
        ok(words.encode(at.wrapping_byte_add(64)));
        assert_eq!(words.encode(at.wrapping_byte_add(32)), CUDA_ERROR_INVALID_VALUE);
        let invalid: [fn(&mut Asked); 18] = [
            |a| a.element = 16,
            |a| a.rank = 0,
            |a| a.rank = 6,
            |a| a.address += 8,
            |a| a.sizes[0] = 0,
            |a| a.sizes[1] = (1 << 31) + 1,
            |a| a.strides[0] = 120,
            |a| a.strides[0] = 1 << 40,
            |a| a.tile[0] = 0,
            |a| a.tile[1] = 257,
            |a| a.tile[0] = 30,
            |a| a.steps[1] = 0,
            |a| a.steps[1] = 9,
            |a| a.interleave = 3,
            |a| a.swizzle = 2,
            |a| a.swizzle = 7,
            |a| a.promotion = 4,
            |a| a.fill = 2,
        ];
        for (number, change) in invalid.iter().enumerate() {
            let mut asked = words.clone();
            change(&mut asked);
            assert_eq!(
                asked.encode(&raw mut map),
                CUDA_ERROR_INVALID_VALUE,
                "{number}: {asked:?}"
            );
        }
        let unsupported: [fn(&mut Asked); 6] = [
            |a| a.element = 11,
            |a| a.steps[1] = 2,
            |a| a.interleave = 1,
            |a| a.swizzle = 4,
            |a| a.fill = 1,
            |a| a.element = 15,
        ];
        for (number, change) in unsupported.iter().enumerate() {
            let mut asked = words.clone();
            change(&mut asked);
            assert_eq!(
                asked.encode(&raw mut map),
                CUDA_ERROR_NOT_SUPPORTED,
                "{number}: {asked:?}"
            );
        }
        for (swizzle, columns) in [(1, 8), (2, 16), (3, 32)] {
            let mut asked = words.clone();
            asked.swizzle = swizzle;
            asked.tile[0] = columns;
            ok(asked.encode(&raw mut map));
        }
        // The step of the first dimension means nothing.
        let mut asked = words;
        asked.steps[0] = 2;
        ok(asked.encode(&raw mut map));
        clean();
    });
}
