//! Graphs: captured, launched again, changed; and edges that are missing.

use super::*;

/// What a stream captures, made executable.
pub(crate) fn captured(stream: Handle, work: impl FnOnce()) -> Handle {
    let graph = graph(stream, work);
    // SAFETY: the pointers are ours, here and in all that follows.
    let exec = handle(|to| unsafe { cuGraphInstantiateWithFlags(to, graph, 0) });
    ok(cuGraphDestroy(graph));
    exec
}

fn graph(stream: Handle, work: impl FnOnce()) -> Handle {
    ok(cuStreamBeginCapture_v2(stream, 1));
    // SAFETY: see above.
    assert_eq!(made(|to| unsafe { cuStreamIsCapturing(stream, to) }), 1);
    work();
    // SAFETY: see above.
    handle(|to| unsafe { cuStreamEndCapture(stream, to) })
}

fn nodes(graph: Handle) -> Vec<Handle> {
    // SAFETY: see above.
    let count = made(|count| unsafe { cuGraphGetNodes(graph, null_mut(), count) });
    let mut nodes = vec![null_mut(); count];
    let mut room = count;
    // SAFETY: see above.
    ok(unsafe { cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut room) });
    assert_eq!(room, count);
    nodes
}

#[test]
fn what_was_captured_is_done_at_each_launch() {
    cases(
        "graphs::what_was_captured_is_done_at_each_launch",
        &[("run", &[])],
        |_| {
            let p = Program::new();
            let a = stream();
            let (x, y) = (filled(&counted()), filled(&counted()));
            let host = Pinned::new(&counted());
            let exec = captured(a, || {
                ok(p.next(y, x, a));
                ok(p.next(x, y, a));
                // SAFETY: the ranges are ours.
                ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, x, host.bytes(), a) });
            });
            assert_eq!(read(x, LEN), counted(), "to capture does nothing");
            for round in 1..=3 {
                ok(cuGraphLaunch(exec, a));
                ok(cuStreamSynchronize(a));
                assert_eq!(host.get(), plus(2 * round));
            }
            ok(cuGraphExecDestroy(exec));
            assert_eq!(cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_HANDLE);
            clean();
        },
    );
}

#[test]
fn nodes_are_listed_and_changed() {
    cases("graphs::nodes_are_listed_and_changed", &[("run", &[])], |_| {
        let p = Program::new();
        let a = stream();
        let (x, y, other) = (filled(&counted()), filled(&counted()), filled(&plus(100)));
        let (host, second) = (Pinned::new(&counted()), Pinned::new(&counted()));
        let graph = graph(a, || {
            ok(p.next(y, x, a));
            // SAFETY: the ranges are ours.
            ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, y, host.bytes(), a) });
        });
        let nodes = nodes(graph);
        // SAFETY: the pointers are ours, here and below.
        let kinds: Vec<u32> = nodes
            .iter()
            .map(|&n| made(|to| unsafe { cuGraphNodeGetType(n, to) }))
            .collect();
        assert_eq!(kinds, [0, 1]);
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        let exec = handle(|to| unsafe { cuGraphInstantiateWithFlags(to, graph, 0) });
        let mut params = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::uninit();
        // SAFETY: as above; it is written where the call succeeds.
        let mut params = unsafe {
            ok(cuGraphKernelNodeGetParams_v2(nodes[0], params.as_mut_ptr()));
            params.assume_init()
        };
        assert_eq!(
            (params.gridDimX, params.blockDimX, params.func),
            (8, 128, p.function("next"))
        );
        // SAFETY: the arguments live as long as the graph, and the second is an address.
        let arguments = unsafe { std::slice::from_raw_parts(params.kernelParams, 3) };
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        assert_eq!(unsafe { arguments[1].cast::<u64>().read() }, x);
        let mut changed = [arguments[0], (&raw const other).cast_mut().cast(), arguments[2]];
        params.kernelParams = changed.as_mut_ptr();
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        ok(unsafe { cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &raw const params) });
        ok(cuGraphLaunch(exec, a));
        ok(cuStreamSynchronize(a));
        assert_eq!(host.get(), plus(101));
        // The copy goes elsewhere.
        let mut copy = CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: 2,
            srcHost: null_mut(),
            srcDevice: y,
            srcArray: null_mut(),
            reserved0: null_mut(),
            srcPitch: 0,
            srcHeight: 0,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: 1,
            dstHost: second.at,
            dstDevice: 0,
            dstArray: null_mut(),
            reserved1: null_mut(),
            dstPitch: 0,
            dstHeight: 0,
            WidthInBytes: second.bytes(),
            Height: 1,
            Depth: 1,
        };
        // SAFETY: as above.
        unsafe {
            let context = handle(|to| cuCtxGetCurrent(to));
            ok(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &raw const copy, context));
            ok(cuGraphLaunch(exec, a));
            ok(cuStreamSynchronize(a));
            assert_eq!(second.get(), plus(101));
            copy.Height = 2;
            let refused = cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &raw const copy, context);
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
            let refused = cuGraphExecKernelNodeSetParams_v2(exec, nodes[1], &raw const params);
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
        let file = std::env::temp_dir().join(format!("tlc-gpusim-{}.dot", std::process::id()));
        let path = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: as above.
        ok(unsafe { cuGraphDebugDotPrint(graph, path.as_ptr(), 0) });
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.contains("n0 -> n1") && text.contains("launch of `next`"), "{text}");
        clean();
    });
}

#[test]
fn a_branch_that_waits_for_nothing_is_found() {
    let runs: [(&str, &[(&str, &str)]); 4] = [
        ("right", &[("TLC_SIM_SEED", "1")]),
        ("right", &[]),
        ("broken", &[("TLC_SIM_SEED", "1")]),
        ("broken", &[]),
    ];
    cases("graphs::a_branch_that_waits_for_nothing_is_found", &runs, |case| {
        let p = Program::new();
        let (a, b) = (stream(), stream());
        let (x, y, z) = (filled(&counted()), filled(&counted()), filled(&counted()));
        let exec = captured(a, || {
            if case == "broken" {
                after(b, a);
                ok(p.next(y, x, a));
            } else {
                ok(p.next(y, x, a));
                after(b, a);
            }
            ok(p.next(z, y, b));
            after(a, b);
        });
        ok(cuGraphLaunch(exec, a));
        let done = cuStreamSynchronize(a);
        if case == "broken" {
            assert_eq!(done, CUDA_ERROR_ILLEGAL_ADDRESS);
            assert_eq!(reported("unordered"), 1, "{}", report());
            assert!(
                report().contains("node 0 of") && report().contains("node 1 of"),
                "{}",
                report()
            );
        } else {
            ok(done);
            assert_eq!(read(z, LEN), plus(2));
            // Two launches of one graph are one after the other, in whichever streams.
            ok(cuGraphLaunch(exec, a));
            ok(cuGraphLaunch(exec, b));
            ok(cuCtxSynchronize());
            clean();
        }
    });
}

#[test]
fn captures_that_are_wrong_are_refused() {
    cases("graphs::captures_that_are_wrong_are_refused", &[("run", &[])], |_| {
        let p = Program::new();
        let (a, b) = (stream(), stream());
        let (x, y) = (filled(&counted()), filled(&counted()));
        let mut graph = null_mut();
        // SAFETY: the pointers are ours.
        unsafe {
            assert_eq!(cuStreamEndCapture(a, &raw mut graph), CUDA_ERROR_ILLEGAL_STATE);
            assert_eq!(
                cuStreamBeginCapture_v2(null_mut(), 0),
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            );
            // A branch that is not joined.
            ok(cuStreamBeginCapture_v2(a, 0));
            ok(p.next(y, x, a));
            after(b, a);
            ok(p.next(x, y, b));
            assert_eq!(
                cuStreamEndCapture(b, &raw mut graph),
                CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            );
            assert_eq!(
                cuStreamEndCapture(a, &raw mut graph),
                CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            );
            // Waits while capturing.
            ok(cuStreamBeginCapture_v2(a, 0));
            assert_eq!(cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            assert_eq!(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let mut at = 0;
            assert_eq!(
                cuMemAllocAsync(&raw mut at, 4, a),
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            );
            let outside = event();
            ok(cuEventRecord(outside, b));
            assert_eq!(cuStreamWaitEvent(a, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
            assert_eq!(
                cuStreamEndCapture(a, &raw mut graph),
                CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            );
            assert!(graph.is_null());
        }
        ok(cuCtxSynchronize());
        clean();
    });
}

/// A graph that is a node of another is done in its place, and changes without the rest; edges around it count.
#[test]
fn a_graph_is_a_node_of_another() {
    let seeds: [(&str, &[(&str, &str)]); 2] = [("in order", &[]), ("any order", &[("TLC_SIM_SEED", "3")])];
    cases("graphs::a_graph_is_a_node_of_another", &seeds, |_| {
        let p = Program::new();
        let (a, b) = (stream(), stream());
        let (x, y, z) = (filled(&counted()), filled(&counted()), filled(&counted()));
        let (w, other) = (filled(&counted()), filled(&plus(100)));
        let twice = |from: u64| {
            graph(b, || {
                ok(p.next(y, from, b));
                ok(p.next(z, y, b));
            })
        };
        let (child, moved) = (twice(x), twice(other));
        let shorter = graph(b, || ok(p.next(y, x, b)));
        let mut node = null_mut();
        let whole = graph(a, || {
            ok(p.next(x, w, a));
            let (mut status, mut of, mut after, mut count) = (0, null_mut(), std::ptr::null::<Handle>(), 0);
            // SAFETY: the pointers are ours, here and below; nodes are read before the stream is given anything.
            unsafe {
                let unasked = null_mut();
                ok(cuStreamGetCaptureInfo_v3(
                    a,
                    &raw mut status,
                    unasked,
                    &raw mut of,
                    &raw mut after,
                    null_mut(),
                    &raw mut count,
                ));
                assert_eq!(count, 1);
                ok(cuGraphAddChildGraphNode(&raw mut node, of, after, count, child));
                let mut last = node;
                ok(cuStreamUpdateCaptureDependencies_v2(
                    a,
                    &raw mut last,
                    std::ptr::null(),
                    1,
                    1,
                ));
            }
            ok(p.next(w, z, a));
        });
        // SAFETY: see above.
        let exec = handle(|to| unsafe { cuGraphInstantiateWithFlags(to, whole, 0) });
        // What was added is a copy.
        ok(cuGraphDestroy(child));
        ok(cuGraphDestroy(whole));
        for round in 1..=2 {
            ok(cuGraphLaunch(exec, a));
            ok(cuStreamSynchronize(a));
            assert_eq!(read(w, LEN), plus(4 * round));
        }
        ok(cuGraphExecChildGraphNodeSetParams(exec, node, moved));
        ok(cuGraphLaunch(exec, a));
        ok(cuStreamSynchronize(a));
        assert_eq!(read(w, LEN), plus(103));
        let refused = cuGraphExecChildGraphNodeSetParams(exec, node, shorter);
        assert_eq!(refused, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        assert_eq!(
            cuGraphExecChildGraphNodeSetParams(exec, wrong(), moved),
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
        );
        ok(cuGraphExecDestroy(exec));
        clean();
    });
}
