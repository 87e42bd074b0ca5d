//! Graphs of a GPU: what queues are given is captured, or held against what was captured before.
//!
//! Invariant: one thread at a time records or changes what was recorded, as [`Recorder`] asks for.

use std::ffi::c_void;

use smallvec::SmallVec;

use super::super::graph::{Differs, Graph, Node, Operation, forget};
use super::super::library::{Code, Handle, Library};
use super::{CAPTURE_MODE, Gpu, Last, PORTABLE, State};
use crate::device::{KernelHandle, RECORDED, Recorder};
use crate::error::RunError;

impl Gpu {
    /// Gives a queue an operation that a recording may have. What was recorded is given again only to change it.
    pub(super) fn give_operation(
        &self,
        state: &mut State,
        queue: u32,
        operation: impl FnOnce() -> Operation,
        name: &'static str,
        f: impl FnOnce(&Library, Handle) -> Code,
    ) -> Result<(), RunError> {
        if queue < RECORDED {
            return self.give(state, queue, name, f);
        }
        if state.amended.is_some() {
            return self.amend_next(state, operation());
        }
        self.give(state, queue, name, f)?;
        let operation = operation();
        let handle = match operation {
            Operation::Fixed(_) => std::ptr::null_mut(),
            Operation::Kernel { .. } | Operation::Copy { .. } | Operation::Product(..) => {
                self.last_node(state, queue)?
            }
        };
        state.noted.push(Node { handle, operation });
        Ok(())
    }

    /// The node of what a queue that is recorded was given last: what comes next there would be after it.
    fn last_node(&self, state: &mut State, queue: u32) -> Result<Handle, RunError> {
        let stream = self.queue(state, queue)?.stream;
        match self.recorded_so_far(stream)?.1[..] {
            [node] => Ok(node),
            _ => Err(self.failed("what was recorded has no node of its own".into())),
        }
    }

    /// The graph that a stream captures, and the nodes that come before the next.
    pub(super) fn recorded_so_far(&self, stream: Handle) -> Result<(Handle, SmallVec<[Handle; 4]>), RunError> {
        let (mut status, mut graph) = (0, std::ptr::null_mut());
        let (mut after, mut count) = (std::ptr::null::<Handle>(), 0);
        let null = std::ptr::null_mut::<c_void>();
        // SAFETY: valid places for the results that are asked for; the others may be null.
        self.context.call("cuStreamGetCaptureInfo_v3", |d| unsafe {
            (d.cuStreamGetCaptureInfo_v3)(
                stream,
                &mut status,
                null.cast(),
                &mut graph,
                &mut after,
                null.cast(),
                &mut count,
            )
        })?;
        let nodes = match after.is_null() {
            true => &[],
            // SAFETY: the driver says that there are so many, which it keeps until the stream is given something else.
            false => unsafe { std::slice::from_raw_parts(after, count) },
        };
        Ok((graph, SmallVec::from_slice(nodes)))
    }

    /// Holds an operation against the one that was recorded.
    pub(super) fn amend_next(&self, state: &mut State, operation: Operation) -> Result<(), RunError> {
        let State {
            recordings,
            kernels,
            products,
            amended: Some((recording, next, same)),
            ..
        } = state
        else {
            return Ok(());
        };
        // SAFETY: whoever gives the operation promises what it touches, and to wait before that goes.
        let mut captured = |shape: &_, places: &_| unsafe { products.captured(&self.context, shape, places) };
        let changed = recordings
            .get_mut(recording)
            .ok_or(Differs::Operation)
            .and_then(|graph| graph.change(*next, operation, &self.context, kernels, &mut captured));
        *next += 1;
        changed.map_err(|e| {
            *same = false;
            match e {
                Differs::Refused(e) => e,
                Differs::Operation => self.failed("what was recorded is another operation".into()),
            }
        })
    }
}

impl Recorder for Gpu {
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, RunError> {
        let mut start = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        self.context.call("cuMemHostAlloc", |d| unsafe {
            (d.cuMemHostAlloc)(&mut start, bytes.max(1), PORTABLE)
        })?;
        Ok(start.cast())
    }

    unsafe fn release_host(&self, start: *mut u8) {
        // What fails here failed before.
        // SAFETY: it was allocated here, and the caller promises that nothing touches it.
        let _ = self
            .context
            .quietly("cuMemFreeHost", |d| unsafe { (d.cuMemFreeHost)(start.cast()) });
    }

    fn record(&self, queue: u32) -> Result<(), RunError> {
        // SAFETY: the stream is of this context and alive.
        self.give(
            &mut self.state(),
            queue,
            "cuStreamBeginCapture_v2",
            |d, stream| unsafe { (d.cuStreamBeginCapture_v2)(stream, CAPTURE_MODE) },
        )
    }

    fn recorded(&self, queue: u32, kernels: Option<(KernelHandle, KernelHandle)>) -> Result<u64, RunError> {
        let mut graph: Handle = std::ptr::null_mut();
        let mut state = self.state();
        // SAFETY: a valid place for the result, and a stream of this context.
        let ended = self.give(&mut state, queue, "cuStreamEndCapture", |d, stream| unsafe {
            (d.cuStreamEndCapture)(stream, &mut graph)
        });
        let nodes = std::mem::take(&mut state.noted);
        let State {
            queues, free_recorded, ..
        } = &mut *state;
        for queue in queues.range_mut(RECORDED..).map(|q| q.1) {
            free_recorded.extend(queue.marks.drain(..).map(|m| m.1));
            queue.last = None;
        }
        drop(state);
        ended?;
        let mut exec: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result, and a graph that was captured.
        let made = self.context.call("cuGraphInstantiateWithFlags", |d| unsafe {
            (d.cuGraphInstantiateWithFlags)(&mut exec, graph, 0)
        });
        if let Err(e) = made {
            forget(&self.context, graph);
            return Err(e);
        }
        let mut state = self.state();
        state.recorded += 1;
        let number = state.recorded;
        let kernels = kernels.map(|(first, last)| (first.0, last.0));
        let made = Graph {
            captured: graph,
            exec,
            kernels,
            nodes,
        };
        state.recordings.insert(number, made);
        Ok(number)
    }

    fn amend(&self, recording: u64) {
        self.state().amended = Some((recording, 0, true));
    }

    fn amended(&self) -> Result<(), RunError> {
        let mut state = self.state();
        for queue in state.queues.range_mut(RECORDED..).map(|q| q.1) {
            queue.last = None;
        }
        let Some((recording, count, same)) = state.amended.take() else {
            return Ok(());
        };
        let known = state.recordings.get(&recording).map(|g| g.nodes.len());
        match same && known == Some(count) {
            true => Ok(()),
            false => Err(self.failed("what was recorded are other operations".into())),
        }
    }

    unsafe fn replay(&self, queue: u32, recording: u64) -> Result<(), RunError> {
        let mut state = self.state();
        let Some(exec) = state.recordings.get(&recording).map(|g| g.exec) else {
            return Err(self.failed("a bug in tlc: there is no such recording".into()));
        };
        self.queue(&mut state, queue)?.last = Some(Last::Recording(recording));
        // SAFETY: the graph is alive, and the caller promises what it touches.
        self.give(&mut state, queue, "cuGraphLaunch", |d, stream| unsafe {
            (d.cuGraphLaunch)(exec, stream)
        })
    }

    fn forget(&self, recording: u64) {
        let known = self.state().recordings.remove(&recording);
        if let Some(graph) = known {
            self.destroy(&graph);
        }
    }
}
