//! CUDA graphs. In: work captured from a stream. Out: a graph that can be launched again and again. Guarantee: a capture
//! that is dropped is ended, so that its stream can be used again.

use super::error::DeviceError;
use super::gpu::Device;
use super::stream::Stream;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec};
use std::fmt;

/// A capture that is under way.
#[derive(Debug)]
pub struct Capture<'a> {
    stream: Option<&'a Stream>,
}

/// Captured work, ready to be launched.
pub struct Graph {
    graph: CUgraph,
    executable: CUgraphExec,
    /// Its context must outlive it.
    device: Option<Device>,
}

impl<'a> Capture<'a> {
    /// Captures what is put on `stream` from now on, instead of running it.
    pub fn begin(stream: &'a Stream) -> Result<Self, DeviceError> {
        let _current = stream.device().enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        let result = unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) };
        stream.device().check("cuStreamBeginCapture", result)?;
        Ok(Self { stream: Some(stream) })
    }

    /// Ends the capture.
    pub fn end(mut self) -> Result<Graph, DeviceError> {
        let stream = self.stream.take();
        let mut graph = Graph { graph: std::ptr::null_mut(), executable: std::ptr::null_mut(), device: None };
        let Some(stream) = stream else { return Ok(graph) };
        let device = stream.device();
        graph.device = Some(device.clone());
        let _current = device.enter()?;
        // SAFETY: the stream is live and captures; the pointer is to a live handle.
        device.check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream.handle(), &mut graph.graph) })?;
        // SAFETY: the graph was made just now.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut graph.executable, graph.graph, 0) };
        device.check("cuGraphInstantiate", result)?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream
            && let Ok(_current) = stream.device().enter()
        {
            let mut graph = std::ptr::null_mut();
            // SAFETY: ends what `begin` began; what was captured is thrown away.
            unsafe {
                let _ = sys::cuStreamEndCapture(stream.handle(), &mut graph);
                if !graph.is_null() {
                    let _ = sys::cuGraphDestroy(graph);
                }
            }
        }
    }
}

impl Graph {
    /// Puts the captured work on `stream`.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        let _current = stream.device().enter()?;
        // SAFETY: instantiated by `end`; the stream is live.
        let result = unsafe { sys::cuGraphLaunch(self.executable, stream.handle()) };
        stream.device().check("cuGraphLaunch", result)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _current = self.device.as_ref().and_then(|device| device.enter().ok());
        // SAFETY: made by `end` and destroyed once, in their context; null handles are left alone.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
