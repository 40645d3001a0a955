//! CUDA graphs. In: work captured from a stream, or a kernel. Out: a graph that can be launched again and again. Guarantee: a
//! capture that is dropped is ended, so that its stream can be used again; a kernel that is launched again allocates nothing.

use super::error::DeviceError;
use super::gpu::Device;
use super::kernels::Function;
use super::stream::Stream;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode};
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

/// A kernel that is launched again and again on streams of one priority: a graph of one node, which costs the host half as
/// much as a launch and reaches the device sooner.
#[derive(Debug)]
pub struct KernelGraph {
    graph: Graph,
    node: Node,
    priority: i32,
    function: Function,
    grid: (u32, u32),
    /// What the kernel takes.
    argument: Vec<u8>,
}

#[derive(Debug)]
struct Node(CUgraphNode);

// SAFETY: handles may be used from any thread; whoever changes a graph has it for himself.
unsafe impl Send for Graph {}
// SAFETY: launches are calls of the driver, which locks.
unsafe impl Sync for Graph {}
// SAFETY: as above.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl KernelGraph {
    /// A launch of `grid` (blocks, threads) with one argument.
    ///
    /// # Safety
    /// `argument` must be what the function takes.
    pub(super) unsafe fn new(
        device: &Device,
        function: Function,
        grid: (u32, u32),
        argument: &[u8],
        priority: i32,
    ) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let mut graph =
            Graph { graph: std::ptr::null_mut(), executable: std::ptr::null_mut(), device: Some(device.clone()) };
        // SAFETY: the pointer is to a live handle.
        device.check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph.graph, 0) })?;
        let mut kernel = [argument.as_ptr() as *mut c_void];
        let parameters = parameters(function, grid, &mut kernel);
        let mut node = std::ptr::null_mut();
        // SAFETY: the graph was made just now; the driver copies the argument, whose size it knows from the function.
        let result = unsafe { sys::cuGraphAddKernelNode_v2(&mut node, graph.graph, std::ptr::null(), 0, &parameters) };
        device.check("cuGraphAddKernelNode", result)?;
        let value = sys::CUlaunchAttributeValue { priority };
        // SAFETY: a node of this graph; the pointer is to a live value.
        let result = unsafe {
            let attribute = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            sys::cuGraphKernelNodeSetAttribute(node, attribute, &value)
        };
        device.check("cuGraphKernelNodeSetAttribute", result)?;
        graph.instantiate(device)?;
        Ok(Self { graph, node: Node(node), priority, function, grid, argument: argument.to_vec() })
    }

    /// Whether launches on `stream` have its priority there.
    pub(super) fn suits(&self, stream: &Stream) -> Result<bool, DeviceError> {
        Ok(stream.priority()? == self.priority)
    }

    /// What the next launches do, where it is something else.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    pub(super) unsafe fn set(
        &mut self,
        function: Function,
        grid: (u32, u32),
        argument: &[u8],
    ) -> Result<(), DeviceError> {
        if self.function == function && self.grid == grid && self.argument == argument {
            return Ok(());
        }
        let Some(device) = &self.graph.device else { return Ok(()) };
        let _current = device.enter()?;
        let mut kernel = [argument.as_ptr() as *mut c_void];
        let parameters = parameters(function, grid, &mut kernel);
        // SAFETY: a node of this graph; launches under way keep what they were given.
        let result = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.graph.executable, self.node.0, &parameters) };
        device.check("cuGraphExecKernelNodeSetParams", result)?;
        (self.function, self.grid) = (function, grid);
        self.argument.clear();
        self.argument.extend_from_slice(argument);
        Ok(())
    }

    /// Puts the kernel on `stream`.
    ///
    /// # Safety
    /// All that the argument points to must be mapped until it has run.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.graph.launch(stream)
    }
}

fn parameters(
    function: Function,
    (blocks, threads): (u32, u32),
    arguments: &mut [*mut c_void; 1],
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
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
    }
}
