//! A GPU's driver that is none: kernels run on the CPU, and streams do what was put on them as late as
//! they can and in any order that events allow, so that a dependency that is missing shows.
//!
//! It is as strict as a real one. Each rule has a test in `emulator_rules` that breaks it.
//!
//! | rule | what breaks it |
//! |---|---|
//! | a copy whose host memory is not page-locked waits for all that its stream was given | a caller that goes on behind a hung kernel |
//! | a launch has 1 to 2^31 - 1 blocks and 1 to 1024 threads | refused |
//! | a launch has no more threads than the kernel was compiled for (`__launch_bounds__`) | refused |
//! | registers x threads are at most 65,536, the registers as the CUBIN says | refused |
//! | dynamic shared memory beyond 48 KB must be asked for when the function is found | refused |
//! | static and dynamic shared memory are at most 227 KB on sm_90, else 99 KB, as on the GPUs since sm_80 that have least | refused |
//! | a stream that captures is not waited for, asked, ended, or given a graph or a copy that blocks; the capture is lost | refused, and so is the capture's end |
//! | a stream captures once; an event of the outside is not waited for inside, nor one of a capture that has ended | refused |
//! | each stream that joined a capture is waited for before the capture ends | refused |
//! | an event is waited for, and its time read, only when it was recorded; times only outside captures | refused |
//! | an event is recorded on a stream of its GPU; a kernel runs where it was loaded | panics |
//! | addresses are of memory that is there, of this GPU or, where it is read, of a peer | panics |
//! | a stream ends with nothing left to do | panics |
//! | a kernel is begun early only straight behind another kernel of its stream, on a GPU of sm_90 or later | refused |
//! | each thread of a kernel that is begun early waits for the one before it (the shim) | the kernel fails |
//! | vector accesses are aligned (the shim's sanitiser) | the kernel fails |
//! | the library may have no way, refuse some, and choose by alignment and room; each way sums in another order | other bits |
//! | a way of the library computes what is aligned as much as what it was asked for, or more | panics |
//! | partial sums stay in the room that was given, which they fill | other bytes |
//! | what fails while it runs fails every later call, after closing and opening as well | refused |

mod code;
mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use partition::unstable::ir::DType;
use partition::unstable::run::cuda::{
    Activation, Algorithm, Begin, Driver, Event, Fault, FaultKind, Function, Gemm, GemmArgs, GpuInfo, Graph,
    HostPointer, HostWork, Launch, Machine, Module, Outcome, Pointer, Side, Stream,
};

pub(crate) use code::{CpuToolchain, Limits};
pub(crate) use queue::Choice;
use queue::{Memory, Op, State};

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Bytes of a GPU; zero for any number.
    pub(crate) memory: u64,
    /// Bytes of page-locked memory; zero for any number.
    pub(crate) host_memory: u64,
    /// The launch that is refused, from 1.
    pub(crate) refuse: u64,
    /// The kernel that fails while it runs, from 1, of all that run, those of graphs as well.
    pub(crate) fail: u64,
    /// Likewise the kernel that never ends.
    pub(crate) hang: u64,
    /// Likewise the copy that never ends.
    pub(crate) hang_copy: u64,
    /// Likewise the event that is never reached.
    pub(crate) hang_record: u64,
    /// Code cannot be loaded.
    pub(crate) image: bool,
    /// The driver has no graphs of kernels that are begun early.
    pub(crate) no_early_graphs: bool,
}

/// The library of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// It is not there.
    None,
    /// It has no way of computing anything.
    Empty,
    /// It has three ways, of which so many are refused when they are asked for.
    Ways {
        /// Those that are refused, from the first on.
        refused: u8,
        /// Whether it sums up operands.
        sums: bool,
    },
}

impl Library {
    pub(crate) const WHOLE: Self = Self::Ways { refused: 0, sums: true };
}

/// Ways of the library.
const WAYS: u8 = 3;
/// Dynamic shared memory that a launch may have without asking, and shared memory that it may have at all, in bytes.
const SHARED: u32 = 48 << 10;
const fn most_shared(capability: (u32, u32)) -> u32 {
    if capability.0 == 9 { 227 << 10 } else { 99 << 10 }
}
/// Registers of a multiprocessor; a launch takes those of a warp in pieces of 256.
const REGISTERS: u32 = 65_536;
const MOST_BLOCKS: u32 = (1 << 31) - 1;

pub(crate) struct Emulator {
    gpus: u32,
    peers: bool,
    library: Library,
    capability: (u32, u32),
    faults: Faults,
    state: Mutex<State>,
}

/// What a machine of such GPUs is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub(crate) gpus: u32,
    /// Whether GPUs read one another's memory.
    pub(crate) peers: bool,
    pub(crate) library: Library,
    pub(crate) capability: (u32, u32),
    pub(crate) choice: Choice,
    pub(crate) faults: Faults,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            gpus: 1,
            peers: true,
            library: Library::None,
            capability: (9, 0),
            choice: Choice::Random(1),
            faults: Faults::default(),
        }
    }
}

impl Emulator {
    pub(crate) fn new(build: Build) -> Arc<Self> {
        Arc::new(Self {
            gpus: build.gpus,
            peers: build.peers,
            library: build.library,
            capability: build.capability,
            faults: build.faults,
            state: Mutex::new(State::new(build.choice, build.faults)),
        })
    }

    /// A machine with this driver.
    pub(crate) fn machine(self: &Arc<Self>, toolchain: &Arc<CpuToolchain>) -> Machine {
        Machine { driver: Arc::clone(self) as Arc<dyn Driver>, toolchain: Arc::clone(toolchain) as _ }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held of the driver, by kind; empty where everything was given back.
    pub(crate) fn held(&self) -> Vec<String> {
        self.lock().held()
    }

    /// Graphs that were launched, and kernels and products that ran.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let state = self.lock();
        (state.graphs_launched, state.kernels_run, state.products_run)
    }

    /// Launches of kernels that are begun early.
    pub(crate) fn early(&self) -> u64 {
        self.lock().early
    }

    /// Launches that were asked for, and copies that ran.
    pub(crate) fn asked_and_copied(&self) -> (u64, u64) {
        let state = self.lock();
        (state.launches, state.copies_run)
    }

    /// How often somebody waited, without an end, for what never ends.
    pub(crate) fn waits(&self) -> u64 {
        self.lock().waits
    }

    /// What streams came to, in order: graphs (G) and events (R).
    pub(crate) fn order(&self) -> String {
        self.lock().order.clone()
    }

    /// Most bytes for partial sums that a product had.
    pub(crate) fn room(&self) -> u64 {
        self.lock().room
    }

    /// Bytes of each allocation on a GPU, in order.
    pub(crate) fn allocations(&self) -> Vec<(u32, u64)> {
        self.lock().allocated.clone()
    }

    fn put(&self, stream: Stream, op: Op) -> Outcome<()> {
        self.lock().put(stream.id, op)
    }
}

fn fault<T>(kind: FaultKind, message: &str) -> Outcome<T> {
    Err(Fault::new(kind, message))
}

impl Driver for Emulator {
    fn count(&self) -> Outcome<u32> {
        Ok(self.gpus)
    }

    fn open(&self, gpu: u32) -> Outcome<GpuInfo> {
        if gpu >= self.gpus {
            return fault(FaultKind::NoDevice, "open");
        }
        let mut state = self.lock();
        state.usable()?;
        *state.open.entry(gpu).or_default() += 1;
        Ok(GpuInfo { name: "emulated".to_owned(), capability: self.capability })
    }

    fn close(&self, gpu: u32) {
        let mut state = self.lock();
        *state.open.get_mut(&gpu).unwrap() -= 1;
        state.open.retain(|_, users| *users > 0);
    }

    fn memory(&self, gpu: u32) -> Outcome<(u64, u64)> {
        let used = self.lock().used(Some(gpu));
        let all = if self.faults.memory > 0 { self.faults.memory } else { 80_000_000_000 };
        Ok((all.saturating_sub(used), all))
    }

    fn peers(&self, gpu: u32, other: u32) -> Outcome<bool> {
        if self.peers {
            self.lock().peers.insert((gpu, other));
        }
        Ok(self.peers)
    }

    fn allocate(&self, gpu: u32, bytes: u64) -> Outcome<Pointer> {
        let mut state = self.lock();
        state.usable()?;
        assert!(bytes > 0 && state.open.contains_key(&gpu));
        if self.faults.memory > 0 && state.used(Some(gpu)) + bytes > self.faults.memory {
            return fault(FaultKind::OutOfMemory, "allocate");
        }
        state.allocated.push((gpu, bytes));
        Ok(Pointer(state.allocate(Some(gpu), bytes)))
    }

    fn free(&self, _: u32, memory: Pointer) {
        self.lock().memory.remove(&memory.0).unwrap();
    }

    fn allocate_host(&self, bytes: u64) -> Outcome<HostPointer> {
        let mut state = self.lock();
        state.usable()?;
        if self.faults.host_memory > 0 && state.used(None) + bytes > self.faults.host_memory {
            return fault(FaultKind::OutOfHostMemory, "allocate_host");
        }
        Ok(HostPointer(state.allocate(None, bytes)))
    }

    fn free_host(&self, memory: HostPointer) {
        self.lock().memory.remove(&memory.0).unwrap();
    }

    fn stream(&self, gpu: u32) -> Outcome<Stream> {
        let mut state = self.lock();
        let id = state.next();
        state.streams.insert(id, queue::Queue::default());
        Ok(Stream { gpu, id })
    }

    fn end_stream(&self, stream: Stream) {
        let mut state = self.lock();
        let queue = state.streams.remove(&stream.id).unwrap();
        assert!(queue.is_idle() || state.has_failed(), "a stream ends with work left");
    }

    fn event(&self, gpu: u32) -> Outcome<Event> {
        let mut state = self.lock();
        let id = state.next();
        state.events.insert(id, queue::Point::default());
        Ok(Event { gpu, id })
    }

    fn end_event(&self, event: Event) {
        self.lock().events.remove(&event.id).unwrap();
    }

    fn record(&self, event: Event, stream: Stream) -> Outcome<()> {
        assert_eq!(event.gpu, stream.gpu, "an event is recorded on a stream of its GPU");
        self.lock().record(stream.id, event.id)
    }

    fn wait(&self, stream: Stream, event: Event) -> Outcome<()> {
        self.lock().wait(stream.id, event.id)
    }

    fn elapsed(&self, from: Event, to: Event) -> Outcome<Duration> {
        let state = self.lock();
        assert_eq!(from.gpu, to.gpu);
        Ok(Duration::from_micros(state.time(to.id)?.saturating_sub(state.time(from.id)?)))
    }

    fn is_done(&self, stream: Stream) -> Outcome<bool> {
        self.lock().advance(stream.id, 3)
    }

    fn finish(&self, stream: Stream) -> Outcome<()> {
        self.lock().finish(stream.id)
    }

    fn load(&self, gpu: u32, image: &[u8]) -> Outcome<Module> {
        let mut state = self.lock();
        let code = state.libraries.load(image).filter(|_| !self.faults.image);
        let Some(code) = code else { return fault(FaultKind::Image, "load") };
        let id = state.next();
        state.modules.insert(id, Arc::new(code));
        Ok(Module { gpu, id })
    }

    fn unload(&self, module: Module) {
        let mut state = self.lock();
        state.modules.remove(&module.id).unwrap();
        state.functions.retain(|_, function| function.module != module.id);
    }

    fn function(&self, module: Module, name: &str, launch: Launch) -> Outcome<Function> {
        let mut state = self.lock();
        state.usable()?;
        let limits = state.modules[&module.id].limits(name);
        if launch.shared > SHARED && limits.shared + launch.shared > most_shared(self.capability) {
            return fault(FaultKind::Launch, "more shared memory than a block may have is asked for");
        }
        let id = state.next();
        let known = queue::Known {
            module: module.id,
            name: name.to_owned(),
            limits,
            shared: launch.shared.max(SHARED),
        };
        state.functions.insert(id, known);
        Ok(Function { gpu: module.gpu, id })
    }

    fn begin_capture(&self, stream: Stream) -> Outcome<()> {
        self.lock().begin_capture(stream.id)
    }

    fn end_capture(&self, stream: Stream) -> Outcome<Graph> {
        let id = self.lock().end_capture(stream.id)?;
        Ok(Graph { gpu: stream.gpu, id })
    }

    fn drop_capture(&self, stream: Stream) {
        self.lock().drop_capture(stream.id);
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Outcome<()> {
        self.lock().launch_graph(stream.id, graph.id)
    }

    fn end_graph(&self, graph: Graph) {
        self.lock().graphs.remove(&graph.id).unwrap();
    }

    fn algorithms(&self, _: u32, gemm: &Gemm, args: &GemmArgs) -> Outcome<Vec<Algorithm>> {
        let Library::Ways { sums, .. } = self.library else { return Ok(vec![]) };
        if !sums && gemm.sums.is_some() {
            return Ok(vec![]);
        }
        // What it guesses follows from what it was told, as it lies: from the alignment of all it reads and writes,
        // as far as callers tell it, and from the room for partial sums.
        let aligned = args.alignment() as u8;
        let first = (aligned.trailing_zeros() as u8 + u8::from(args.partial.bytes > 0)) % WAYS;
        Ok((0..WAYS).map(|way| Algorithm(vec![(first + way) % WAYS, way, aligned])).collect())
    }

    fn library(&self, _: u32) -> Option<String> {
        (self.library != Library::None).then(|| "emulated".to_owned())
    }

    unsafe fn launch(
        &self,
        stream: Stream,
        function: Function,
        launch: Launch,
        args: &[Pointer],
        begin: Begin,
    ) -> Outcome<()> {
        let mut state = self.lock();
        state.launches += 1;
        if state.launches == self.faults.refuse {
            return fault(FaultKind::Launch, "launch");
        }
        assert_eq!(stream.gpu, function.gpu, "a kernel runs on the GPU on which it was loaded");
        for arg in args {
            state.within(Memory::Gpu(stream.gpu), arg.0, 0);
        }
        let known = state.functions[&function.id].clone();
        if let Some(message) = refused(launch, &known, most_shared(self.capability)) {
            return fault(FaultKind::Launch, message);
        }
        let (code, name) = (Arc::clone(&state.modules[&known.module]), known.name);
        let args = args.iter().map(|arg| arg.0).collect();
        let early = begin == Begin::Early;
        if early && self.capability < (9, 0) {
            return fault(FaultKind::Unsupported, "a kernel is begun early on a GPU that cannot");
        }
        if early && !state.is_behind_kernel(stream.id) {
            return fault(FaultKind::Other, "a kernel is begun early behind what is none");
        }
        state.early += u64::from(early);
        state.put(stream.id, Op::Kernel { code, name, launch, args, early })
    }

    unsafe fn multiply(
        &self,
        stream: Stream,
        gemm: &Gemm,
        algorithm: &Algorithm,
        args: &GemmArgs,
    ) -> Outcome<()> {
        let &[way, place, aligned] = &algorithm.0[..] else { panic!("no algorithm of this library") };
        assert!(way < WAYS);
        assert!(args.alignment() >= u32::from(aligned), "a way is for operands that are aligned more");
        if matches!(self.library, Library::Ways { refused, .. } if place < refused) {
            return fault(FaultKind::Unsupported, "the library refuses");
        }
        self.lock().within(Memory::Gpu(stream.gpu), args.partial.at.0, args.partial.bytes);
        assert_eq!(args.bias.is_some(), gemm.bias);
        assert_eq!(args.addend.is_some(), gemm.addend.is_some());
        assert_eq!(args.sums.is_some(), gemm.sums.is_some());
        // What the library documents of sums: nothing else behind the product.
        let plain = !gemm.bias && gemm.addend.is_none() && gemm.activation == Activation::None;
        assert!(gemm.sums.is_none() || plain && gemm.batch == 1);
        let wider = gemm.dtype.is_half() && gemm.made == DType::F32 && plain && gemm.sums.is_none();
        assert!(gemm.made == gemm.dtype || wider);
        self.put(stream, Op::Product { gemm: gemm.clone(), way, args: *args })
    }

    unsafe fn upload(&self, stream: Stream, to: Pointer, from: HostPointer, bytes: u64) -> Outcome<()> {
        let mut state = self.lock();
        state.within(Memory::Gpu(stream.gpu), to.0, bytes);
        state.copy_of_host(stream.id, from.0, Op::Copy { to: to.0, from: from.0, bytes })
    }

    unsafe fn download(&self, stream: Stream, to: HostPointer, from: Pointer, bytes: u64) -> Outcome<()> {
        let mut state = self.lock();
        state.within(Memory::Gpu(stream.gpu), from.0, bytes);
        state.copy_of_host(stream.id, to.0, Op::Copy { to: to.0, from: from.0, bytes })
    }

    unsafe fn copy(&self, stream: Stream, to: Pointer, from: Pointer, bytes: u64) -> Outcome<()> {
        let mut state = self.lock();
        state.within(Memory::Gpu(stream.gpu), to.0, bytes);
        state.within(Memory::Peer(stream.gpu), from.0, bytes);
        state.put(stream.id, Op::Copy { to: to.0, from: from.0, bytes })
    }

    fn host(&self, stream: Stream, work: HostWork) -> Outcome<()> {
        self.put(stream, Op::Host(work))
    }
}

/// Why a launch is refused; none where it is not.
fn refused(launch: Launch, known: &queue::Known, most_shared: u32) -> Option<&'static str> {
    let threads = launch.block[0].saturating_mul(launch.block[1]);
    let warps = threads.div_ceil(32);
    let registers = (known.limits.registers * 32).next_multiple_of(256).saturating_mul(warps);
    [
        (launch.grid == 0 || launch.grid > MOST_BLOCKS, "no or too many blocks"),
        (threads == 0 || threads > 1024, "no or too many threads"),
        (threads > known.limits.threads, "more threads than the kernel was compiled for"),
        (registers > REGISTERS, "more registers than a multiprocessor has"),
        (launch.shared > known.shared, "more dynamic shared memory than was asked for"),
        (
            known.limits.shared.saturating_add(launch.shared) > most_shared,
            "more shared memory than a block may have",
        ),
    ]
    .into_iter()
    .find_map(|(holds, message)| holds.then_some(message))
}

/// A product, element by element, of the bytes that it says: the ways of the library divide each sum into as many
/// parts, which they add up in f32 (in f64 where the elements are), and keep in the room that they are given.
///
/// # Safety
///
/// The addresses are of memory that long.
pub(crate) unsafe fn product(gemm: &Gemm, way: u8, args: &GemmArgs) {
    use crate::run_ops::{decode, encode};
    let size = |dtype: DType| dtype.size() as usize;
    // Partial sums go where they may: whoever else has these bytes finds others.
    // SAFETY: as the caller promises.
    unsafe { std::ptr::write_bytes(args.partial.at.0 as *mut u8, 0xee, args.partial.bytes as usize) };
    let parts = 1 + i64::from(way);
    let rounded = |sum: f64| if gemm.dtype == DType::F64 { sum } else { f64::from(sum as f32) };
    let write = |dtype: DType, base: u64, element: i64, value: f64| {
        let bytes = encode(&crate::reference::Array::new(dtype, &[1], vec![value]));
        let to = (base as usize + element as usize * size(dtype)) as *mut u8;
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size(dtype)) };
    };
    let read = |base: u64, element: i64| {
        let at = (base as usize + element as usize * size(gemm.dtype)) as *const u8;
        // SAFETY: as the caller promises.
        decode(gemm.dtype, unsafe { std::slice::from_raw_parts(at, size(gemm.dtype)) })[0]
    };
    for b in 0..gemm.batch {
        for m in 0..gemm.rows {
            for n in 0..gemm.columns {
                let mut sum = 0.0;
                for part in 0..parts {
                    let mut own = 0.0;
                    for k in (part..gemm.inner).step_by(parts as usize) {
                        let (x, y) = (gemm.left, gemm.right);
                        let term = read(args.left.0, b * x.batch + m * x.row + k * x.column)
                            * read(args.right.0, b * y.batch + k * y.row + n * y.column);
                        own = rounded(own + term);
                    }
                    sum = rounded(sum + own);
                }
                sum += args.bias.map_or(0.0, |bias| read(bias.0, n));
                if let (Some(addend), Some(lies)) = (args.addend, gemm.addend) {
                    sum += read(addend.0, b * lies.batch + m * lies.row + n * lies.column);
                }
                let value = match gemm.activation {
                    Activation::None => sum,
                    Activation::Relu => sum.max(0.0),
                    Activation::GeluTanh => {
                        0.5 * sum
                            * (1.0
                                + ((2.0 / std::f64::consts::PI).sqrt() * (sum + 0.044715 * sum.powi(3)))
                                    .tanh())
                    }
                };
                let at = b * gemm.out.batch + m * gemm.out.row + n * gemm.out.column;
                write(gemm.made, args.out.0, at, value);
            }
        }
    }
    let (count, base, [along, inner]) = match gemm.sums {
        None => return,
        Some(Side::Left) => (gemm.rows, args.left.0, [gemm.left.row, gemm.left.column]),
        Some(Side::Right) => (gemm.columns, args.right.0, [gemm.right.column, gemm.right.row]),
    };
    for i in 0..count {
        let sum = (0..gemm.inner).map(|k| read(base, i * along + k * inner)).sum();
        write(gemm.dtype, args.sums.unwrap().0, i, sum);
    }
}
