//! What the runtime asks of a GPU's driver: memory, streams, events, modules, launches, graphs.
//!
//! Two implementations: NVIDIA's driver (`native`), and in the tests one that runs kernels on the CPU
//! in any order that streams and events allow. Work is put on streams and done later, in the order of
//! each stream; streams wait for one another by events alone. While a stream captures, what is put on
//! it, and on every stream that waits for an event of it, becomes a graph and is not done.
//!
//! Contains `unsafe` declarations: what hands addresses to the driver.

use std::sync::Arc;
use std::time::Duration;

pub use crate::emit::Launch;
pub use crate::error::FaultKind;
pub use crate::kernel::program::{Activation, Gemm, Side};

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it means to a program.
    pub kind: FaultKind,
    /// The driver's own name of the call and its code.
    pub message: String,
}

/// What a call of the driver gives.
pub type Outcome<T> = std::result::Result<T, Fault>;

/// Bytes on a device: their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pointer(pub u64);

/// Bytes of the host that devices copy from and to on their own (page-locked): their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPointer(pub u64);

impl Pointer {
    /// So many bytes further.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The power of two that it is a multiple of, up to 16, the widest access of a thread: what is beyond follows from
    /// where a plan puts a buffer, and may not decide how it is computed.
    pub fn alignment(self) -> u32 {
        1 << self.0.trailing_zeros().min(4)
    }
}

impl HostPointer {
    /// So many bytes further.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            /// The number of the GPU that it is of.
            pub gpu: u32,
            /// The driver's name for it.
            pub id: u64,
        }
    };
}

handle!(
    /// Work that is done in order.
    Stream
);
handle!(
    /// A point in a stream that others wait for.
    Event
);
handle!(
    /// Loaded code.
    Module
);
handle!(
    /// A kernel of a module.
    Function
);
handle!(
    /// Captured work, ready to be put on a stream as a whole.
    Graph
);

/// A GPU as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its name.
    pub name: String,
    /// Its compute capability, major and minor.
    pub capability: (u32, u32),
}

impl GpuInfo {
    /// What kernels are compiled for.
    pub fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }

    /// Whether kernels may be begun before those before them have ended.
    pub fn begins_early(&self) -> bool {
        self.capability >= (9, 0)
    }
}

/// What a matrix product of the library reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmArgs {
    /// The left operand.
    pub left: Pointer,
    /// The right operand.
    pub right: Pointer,
    /// What is added to each row, where the product has a bias.
    pub bias: Option<Pointer>,
    /// The matrix that is added, where there is one.
    pub addend: Option<Pointer>,
    /// The result.
    pub out: Pointer,
    /// The sums of an operand, where they are written.
    pub sums: Option<Pointer>,
    /// Where partial sums may be kept while the product runs.
    pub partial: Span,
}

impl GemmArgs {
    /// What all that the product reads and writes is a multiple of, up to 16.
    pub fn alignment(&self) -> u32 {
        let operands = [self.left, self.right, self.out].into_iter();
        let others = [self.bias, self.addend, self.sums].into_iter().flatten();
        operands.chain(others).map(Pointer::alignment).min().unwrap_or(1)
    }
}

/// Bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where they begin.
    pub at: Pointer,
    /// How many there are.
    pub bytes: u64,
}

/// A way of computing a product, as the library describes it: bytes that it takes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithm(pub Vec<u8>);

/// When a kernel may be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// When all is done that is before it on its stream.
    Behind,
    /// While the kernel just before it on its stream still runs, whose end it waits for itself before it touches any
    /// memory (programmatic dependent launch). Nothing but a kernel of [`Driver::launch`] may be just before it, and the
    /// GPU must be able to ([`GpuInfo::begins_early`]).
    Early,
}

/// What a host does when a stream comes to it. It may not call the driver.
pub type HostWork = Arc<dyn Fn() + Send + Sync>;

/// See the module's documentation. Numbers of GPUs are the driver's; every call may come from any thread.
pub trait Driver: Send + Sync {
    /// How many GPUs there are.
    fn count(&self) -> Outcome<u32>;

    /// Opens a GPU for what follows, and says what it is. May be called again.
    fn open(&self, gpu: u32) -> Outcome<GpuInfo>;

    /// Gives back what one call of [`Driver::open`] took.
    fn close(&self, gpu: u32);

    /// Free and all bytes of a GPU.
    fn memory(&self, gpu: u32) -> Outcome<(u64, u64)>;

    /// Lets work on one GPU read and write another one's memory. False where it cannot.
    fn peers(&self, gpu: u32, other: u32) -> Outcome<bool>;

    /// Memory of a GPU, not initialised, at a multiple of 256.
    fn allocate(&self, gpu: u32, bytes: u64) -> Outcome<Pointer>;

    /// Gives memory back.
    fn free(&self, gpu: u32, memory: Pointer);

    /// Memory of the host that is page-locked for every GPU, zeroed.
    fn allocate_host(&self, bytes: u64) -> Outcome<HostPointer>;

    /// Gives memory of the host back.
    fn free_host(&self, memory: HostPointer);

    /// A stream of a GPU, which waits for no other one.
    fn stream(&self, gpu: u32) -> Outcome<Stream>;

    /// Ends a stream, on which nothing is left to do.
    fn end_stream(&self, stream: Stream);

    /// An event that remembers its time.
    fn event(&self, gpu: u32) -> Outcome<Event>;

    /// Ends an event.
    fn end_event(&self, event: Event);

    /// Makes the event stand for all that was put on the stream so far.
    fn record(&self, event: Event, stream: Stream) -> Outcome<()>;

    /// What follows on the stream waits for what the event stands for at this moment.
    fn wait(&self, stream: Stream, event: Event) -> Outcome<()>;

    /// The time between two events that have happened, on one GPU.
    fn elapsed(&self, from: Event, to: Event) -> Outcome<Duration>;

    /// Whether all that was put on a stream is done. Error: that of work that failed.
    fn is_done(&self, stream: Stream) -> Outcome<bool>;

    /// Waits until all that was put on a stream is done. Error: that of work that failed.
    fn finish(&self, stream: Stream) -> Outcome<()>;

    /// Loads compiled code.
    fn load(&self, gpu: u32, image: &[u8]) -> Outcome<Module>;

    /// Unloads it.
    fn unload(&self, module: Module);

    /// A kernel by name, which will be launched so.
    fn function(&self, module: Module, name: &str, launch: Launch) -> Outcome<Function>;

    /// Begins to capture what is put on a stream.
    fn begin_capture(&self, stream: Stream) -> Outcome<()>;

    /// Ends what [`Driver::begin_capture`] began; every stream that joined has been waited for.
    fn end_capture(&self, stream: Stream) -> Outcome<Graph>;

    /// Ends what [`Driver::begin_capture`] began and did not become whole: nothing of it is kept.
    fn drop_capture(&self, stream: Stream);

    /// Puts a graph on a stream as a whole.
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Outcome<()>;

    /// Ends a graph.
    fn end_graph(&self, graph: Graph);

    /// Ways of computing a product of operands that lie so within the bytes for partial sums, best guess first; none
    /// where the library is not there or has none. They follow from [`GemmArgs::alignment`] alone of where
    /// operands lie, and compute any product of operands that are aligned as much: callers keep them for
    /// such.
    fn algorithms(&self, gpu: u32, gemm: &Gemm, args: &GemmArgs) -> Outcome<Vec<Algorithm>>;

    /// Name and version of the library of products; none where it is not there or does not start on the GPU.
    fn library(&self, gpu: u32) -> Option<String>;

    /// Puts a kernel on a stream; its arguments are addresses.
    ///
    /// # Safety
    ///
    /// When the stream comes to it, the addresses are of memory that the kernel may use as it does. One that begins
    /// early waits for the kernel before it first.
    unsafe fn launch(
        &self,
        stream: Stream,
        function: Function,
        launch: Launch,
        args: &[Pointer],
        begin: Begin,
    ) -> Outcome<()>;

    /// Puts a product on a stream. Fault: the library refuses this way of computing it, or what the driver's calls fail
    /// with.
    ///
    /// # Safety
    ///
    /// As of [`Driver::launch`], for the bytes that [`Gemm`] says.
    unsafe fn multiply(
        &self,
        stream: Stream,
        gemm: &Gemm,
        algorithm: &Algorithm,
        args: &GemmArgs,
    ) -> Outcome<()>;

    /// Puts a copy from the host on a stream.
    ///
    /// # Safety
    ///
    /// When the stream comes to it, both have so many bytes, which nobody else writes.
    unsafe fn upload(&self, stream: Stream, to: Pointer, from: HostPointer, bytes: u64) -> Outcome<()>;

    /// Puts a copy to the host on a stream.
    ///
    /// # Safety
    ///
    /// As of [`Driver::upload`].
    unsafe fn download(&self, stream: Stream, to: HostPointer, from: Pointer, bytes: u64) -> Outcome<()>;

    /// Puts a copy within a GPU, or between GPUs that are peers, on a stream.
    ///
    /// # Safety
    ///
    /// As of [`Driver::upload`].
    unsafe fn copy(&self, stream: Stream, to: Pointer, from: Pointer, bytes: u64) -> Outcome<()>;

    /// Puts work of the host on a stream; it is kept until the stream, or the graph, ends. Copies within the host are
    /// such work: put on a stream as a copy, they would make the caller wait for all that is before them.
    fn host(&self, stream: Stream, work: HostWork) -> Outcome<()>;
}
