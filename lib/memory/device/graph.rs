//! CUDA graphs. In: work captured from a stream, or a kernel. Out: a graph that can be launched again and again. Guarantee: a
//! capture that is dropped is ended, so that its stream can be used again; a kernel that is launched again allocates nothing.

use super::error::DeviceError;
use super::gpu::Device;
use super::kernels::Function;
use super::stream::Stream;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec};
use std::ffi::c_void;
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
        graph.instantiate(device)?;
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
    fn instantiate(&mut self, device: &Device) -> Result<(), DeviceError> {
        // SAFETY: the graph is whole, and has no executable yet.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        device.check("cuGraphInstantiate", result)
    }

    /// Puts the captured work on `stream`.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        let _current = stream.device().enter()?;
        // SAFETY: instantiated when it was made; the stream is live.
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
        // SAFETY: made once and destroyed once, in their context; null handles are left alone.
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

// SAFETY: handles may be used from any thread.
unsafe impl Send for Graph {}
// SAFETY: launches are calls of the driver, which locks.
unsafe impl Sync for Graph {}

/// A launch that is repeated on streams without priority: a graph of one kernel, which costs the host half as much as a launch
/// and reaches the device sooner. Made where no kernel of the job waits, since making it may wait for the device.
#[derive(Debug)]
pub(super) struct KernelGraph(Graph);

impl KernelGraph {
    /// A launch of `grid` (blocks, threads) with one argument.
    ///
    /// # Safety
    /// `argument` must be what the function takes.
    pub(super) unsafe fn new(
        device: &Device,
        function: Function,
        (blocks, threads): (u32, u32),
        argument: &[u8],
    ) -> Result<Self, DeviceError> {
        let stream = Stream::new(device)?;
        let _current = device.enter()?;
        let nothing = std::ptr::null_mut();
        let mut graph = Graph { graph: nothing, executable: std::ptr::null_mut(), device: Some(device.clone()) };
        // SAFETY: the pointer is to a live handle.
        device.check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph.graph, 0) })?;
        let mut arguments = [argument.as_ptr() as *mut c_void];
        let node = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.0,
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut place = std::ptr::null_mut();
        // SAFETY: the graph was made just now; the driver copies the argument, whose size it knows from the function.
        let result = unsafe { sys::cuGraphAddKernelNode_v2(&mut place, graph.graph, std::ptr::null(), 0, &node) };
        device.check("cuGraphAddKernelNode", result)?;
        graph.instantiate(device)?;
        // SAFETY: instantiated just now; the stream is live, and what is on it goes on when it is dropped.
        let result = unsafe { sys::cuGraphUpload(graph.executable, stream.handle()) };
        device.check("cuGraphUpload", result)?;
        Ok(Self(graph))
    }

    /// Whether one may be launched on `stream`: a graph's kernel has its own priority, not the stream's.
    pub(super) fn allows(stream: &Stream) -> Result<bool, DeviceError> {
        Ok(stream.priority()? == 0)
    }

    /// Puts the kernel on `stream`.
    ///
    /// # Safety
    /// All that the argument points to must be mapped until it has run.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.0.launch(stream)
    }
}
