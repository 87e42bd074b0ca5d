//! Capturing graphs, and launching them.

use std::sync::Arc;

use super::{Driver, State};
use crate::capture::{Capture, Captured, Exec, Graph, Node, append, chains, ends, order, replace};
use crate::clock::Clock;
use crate::history::{Access, Stamp};
use crate::result::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_ILLEGAL_STATE,
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUresult,
};
use crate::work::Work;
use tlc_gpusim::Launch;

/// The arguments of a node as a program is given them: pointers to bytes that live as long as the graph.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    // The pointers lead into these.
    _bytes: Vec<Box<[u8]>>,
    pointers: Box<[u64]>,
}

impl State {
    /// Adds a node to the graph that a stream captures.
    pub(super) fn capture_node(
        &mut self,
        handle: u64,
        captured: &Captured,
        what: &str,
        work: Work,
    ) -> Result<(), CUresult> {
        let node = Node {
            handle: self.handle(),
            what: what.into(),
            work,
            after: captured.after.clone(),
            part_of: None,
        };
        let capture = self.captures.get_mut(&captured.id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if capture.is_invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        capture.nodes.push(node);
        let last = capture.nodes.len() - 1;
        if let Some(at) = self.streams.get_mut(&handle).and_then(|s| s.capture.as_mut()) {
            at.after = vec![last];
        }
        Ok(())
    }

    /// An error if a stream captures, which makes the capture worthless.
    pub(crate) fn refuse_if_capturing(&mut self, handle: u64) -> Result<(), CUresult> {
        let stream = self.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let Some(captured) = &stream.capture else { return Ok(()) };
        if let Some(capture) = self.captures.get_mut(&captured.id) {
            capture.is_invalid = true;
        }
        Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    }

    /// Makes a stream wait for what an event captured: from then on it is of that capture.
    pub(crate) fn join_capture(&mut self, handle: u64, event: &Captured) -> Result<(), CUresult> {
        if !self.captures.contains_key(&event.id) {
            return Err(CUDA_ERROR_CAPTURED_EVENT);
        }
        let stream = self.streams.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let Some(at) = &mut stream.capture else {
            stream.capture = Some(event.clone());
            return Ok(());
        };
        if at.id != event.id {
            return Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        for &node in &event.after {
            if !at.after.contains(&node) {
                at.after.push(node);
            }
        }
        Ok(())
    }

    /// Pointers to the arguments of a node.
    pub(crate) fn kept_arguments(&mut self, node: u64, launch: &Launch) -> *const u64 {
        let kept = self.kept.entry(node).or_insert_with(|| {
            let bytes: Vec<Box<[u8]>> = launch.arguments.iter().map(|a| a.0.clone().into()).collect();
            let pointers = bytes.iter().map(|b| b.as_ptr() as usize as u64).collect();
            Kept {
                _bytes: bytes,
                pointers,
            }
        });
        kept.pointers.as_ptr()
    }
}

impl Driver {
    /// Begins to capture a stream.
    pub(crate) fn begin_capture(&self, stream: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        if stream <= 2 {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let stream = state.stream(&self.machine, stream)?;
        let id = state.handle();
        let at = state.streams.get_mut(&stream).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if at.capture.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        self.machine.gpus[at.gpu].failure()?;
        at.capture = Some(Captured { id, after: Vec::new() });
        let capture = Capture {
            origin: stream,
            nodes: Vec::new(),
            asked: Vec::new(),
            is_invalid: false,
        };
        state.captures.insert(id, capture);
        Ok(())
    }

    /// Ends a capture: the graph's handle.
    pub(crate) fn end_capture(&self, stream: u64) -> Result<u64, CUresult> {
        let mut state = self.state();
        let stream = state.stream(&self.machine, stream)?;
        let captured = state.streams.get(&stream).and_then(|s| s.capture.clone());
        let captured = captured.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let origin = state.captures.get(&captured.id).map(|c| c.origin);
        if origin != Some(stream) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let capture = state.captures.remove(&captured.id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for other in state.streams.values_mut() {
            if other.capture.as_ref().is_some_and(|c| c.id == captured.id) {
                other.capture = None;
            }
        }
        if capture.is_invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        // Whatever another stream was given must be before the end of this one.
        let mut is_last = vec![true; capture.nodes.len()];
        for &before in capture.nodes.iter().flat_map(|n| &n.after) {
            is_last[before] = false;
        }
        let is_joined = |(node, &last): (usize, &bool)| !last || captured.after.contains(&node);
        if !is_last.iter().enumerate().all(is_joined) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        let new = state.handle();
        state.graphs.insert(new, Graph { nodes: capture.nodes });
        Ok(new)
    }

    /// Adds a graph to another, which may be one that is captured, behind nodes of it: the new node's handle.
    pub(crate) fn add_child(&self, graph: u64, after: &[u64], child: u64) -> Result<u64, CUresult> {
        let mut state = self.state();
        let child = state.graphs.get(&child).map(|g| g.nodes.clone());
        let child = child
            .filter(|nodes| !nodes.is_empty())
            .ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let handle = state.handle();
        // Those of the nodes within lie between this handle and the next.
        for _ in 0..child.len() {
            let _ = state.handle();
        }
        let State { captures, graphs, .. } = &mut *state;
        let captured = captures.get_mut(&graph).map(|c| &mut c.nodes);
        let nodes = captured.or_else(|| graphs.get_mut(&graph).map(|g| &mut g.nodes));
        let nodes = nodes.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let mut behind = Vec::new();
        for &of in after {
            let found = ends(nodes, of);
            if found.is_empty() {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
            behind.extend(found);
        }
        append(nodes, &child, &behind, handle);
        Ok(handle)
    }

    /// Has the next node of a stream that captures be behind others, beside those that it would be behind or in their place.
    pub(crate) fn set_dependencies(&self, stream: u64, nodes: &[u64], adds: bool) -> Result<(), CUresult> {
        let mut state = self.state();
        let stream = state.stream(&self.machine, stream)?;
        let State { captures, streams, .. } = &mut *state;
        let at = streams.get_mut(&stream).and_then(|s| s.capture.as_mut());
        let at = at.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = captures.get(&at.id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let mut after = if adds { at.after.clone() } else { Vec::new() };
        for &of in nodes {
            let found = ends(&capture.nodes, of);
            if found.is_empty() {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
            after.extend(found);
        }
        after.sort_unstable();
        after.dedup();
        at.after = after;
        Ok(())
    }

    /// Has the graph within an executable one do what another graph does.
    pub(crate) fn change_child(&self, exec: u64, node: u64, child: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        let State { execs, graphs, .. } = &mut *state;
        let exec = execs.get_mut(&exec).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let child = graphs.get(&child).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        replace(&mut exec.nodes, node, &child.nodes).ok_or(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    }

    /// Makes a graph executable on a device: its handle.
    pub(crate) fn instantiate(&self, gpu: usize, graph: u64) -> Result<u64, CUresult> {
        let mut state = self.state();
        let nodes = state.graphs.get(&graph).map(|g| g.nodes.clone());
        let nodes = nodes.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (chain_of, count) = chains(&nodes);
        let host = state.host.clone();
        let opened: Vec<usize> = (0..count).map(|_| state.lines.open(&host)).collect();
        let exec = Exec {
            gpu,
            lines: chain_of.iter().map(|&c| opened[c]).collect(),
            nodes,
            opened,
            last: None,
            launches: 0,
        };
        let new = state.handle();
        state.execs.insert(new, exec);
        Ok(new)
    }

    pub(crate) fn destroy_graph(&self, graph: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        let graph = state.graphs.remove(&graph).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for node in graph.nodes {
            state.kept.remove(&node.handle);
        }
        Ok(())
    }

    pub(crate) fn destroy_exec(&self, exec: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        let exec = state.execs.remove(&exec).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        exec.opened.into_iter().for_each(|line| state.lines.close(line));
        Ok(())
    }

    /// Launches a graph in a stream.
    pub(crate) fn launch_graph(&self, handle: u64, stream: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        let state = &mut *state;
        let stream = state.stream(&self.machine, stream)?;
        let mut exec = state.execs.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let is_of = state.streams.get(&stream).map(|s| (s.gpu, s.capture.is_some()));
        let launched = match is_of {
            // A graph in a graph.
            Some((_, true)) => Err(CUDA_ERROR_NOT_SUPPORTED),
            Some((gpu, false)) if gpu == exec.gpu => {
                exec.launches += 1;
                // One launch of it is done before the next.
                let last = exec.last.take();
                let last = last.as_ref().map(|(ticket, clock)| (ticket, clock));
                let seed = self.machine.settings.seed;
                let make = |stamp: &Stamp, lines: &mut _| expand(&exec, stamp, lines, seed);
                state.enqueue_made(&self.machine, stream, "cuGraphLaunch", make, last)
            }
            Some(_) | None => Err(CUDA_ERROR_INVALID_HANDLE),
        };
        if let Ok(ticket) = &launched {
            let clock = state.streams.get(&stream).map(|s| s.clock.clone());
            exec.last = Some((ticket.clone(), clock.unwrap_or_default()));
        }
        state.execs.insert(handle, exec);
        launched.map(|_| ())
    }
}

/// The operations of a launch of a graph, each with what its edges put before it; and what is known when all are done.
fn expand(exec: &Exec, stamp: &Stamp, lines: &mut crate::clock::Lines, seed: u64) -> (Work, Clock) {
    let mut clocks: Vec<Clock> = Vec::with_capacity(exec.nodes.len());
    let mut steps: Vec<(Work, Stamp)> = Vec::with_capacity(exec.nodes.len());
    let mut all = stamp.clock.clone();
    for (index, node) in exec.nodes.iter().enumerate() {
        let mut clock = stamp.clock.clone();
        for &before in &node.after {
            clock.learn(&clocks[before]);
        }
        let line = exec.lines[index];
        let count = lines.next(line);
        clock.set(line, count);
        let label: Arc<str> = format!("{}, node {index} of {}", node.what, stamp.access.label).into();
        let access = Access { line, count, label };
        all.learn(&clock);
        clocks.push(clock.clone());
        steps.push((node.work.clone(), Stamp { access, clock }));
    }
    if seed != 0 {
        let order = order(&exec.nodes, seed ^ exec.launches);
        steps = order.into_iter().map(|i| steps[i].clone()).collect();
    }
    (Work::Graph(steps), all)
}
