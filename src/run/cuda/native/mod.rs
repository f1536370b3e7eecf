//! NVIDIA's driver, loaded at run time.
//!
//! Contains `unsafe`: calls of the driver. Handles come from the driver and are ended once, by who holds
//! them (`resources`); addresses are what callers of the unsafe methods promise.

mod blas;

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::result::{self, DriverError, ctx, device, event, function, graph, module, stream};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::driver::{
    Algorithm, Begin, Driver, Event, Fault, FaultKind, Function, Gemm, GemmArgs, GpuInfo, Graph, HostPointer,
    HostWork, Launch, Module, Outcome, Pointer, Stream,
};
use blas::Blas;

/// The driver. Fault: there is none, or it does not start.
pub fn native() -> Outcome<Arc<dyn Driver>> {
    // SAFETY: loads the driver's library, whose initialisers are trusted.
    if !unsafe { sys::is_culib_present() } {
        return Err(Fault::new(FaultKind::NoDriver, "its library, libcuda, was not found"));
    }
    match result::init() {
        Ok(()) => Ok(Arc::new(Native::default())),
        // The library may be there without a device or its kernel module.
        Err(error) => Err(Fault::new(FaultKind::NoDriver, fault("cuInit", error).message)),
    }
}

/// Page-locked memory that every context may use.
const PORTABLE: u32 = 1;
/// Dynamic shared memory that a kernel may have without asking, in bytes.
const SHARED: u32 = 48 << 10;

/// An opened GPU.
#[derive(Clone, Copy)]
struct Open {
    context: sys::CUcontext,
    device: sys::CUdevice,
    users: u32,
}

#[derive(Default)]
struct Native {
    open: Mutex<BTreeMap<u32, Open>>,
    /// By stream and address: what streams and graphs call, kept until the stream ends.
    works: Mutex<BTreeMap<(u64, usize), Box<HostWork>>>,
    blas: Mutex<BTreeMap<u32, Option<Blas>>>,
}

// SAFETY: the driver may be called from any thread; each call sets the context that it needs.
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A driver's error in the terms of a program.
fn fault(call: &str, error: DriverError) -> Fault {
    use CUresult as Code;
    let kind = match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => FaultKind::OutOfMemory,
        Code::CUDA_ERROR_NOT_INITIALIZED
        | Code::CUDA_ERROR_STUB_LIBRARY
        | Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | Code::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => FaultKind::NoDriver,
        Code::CUDA_ERROR_NO_DEVICE | Code::CUDA_ERROR_INVALID_DEVICE => FaultKind::NoDevice,
        Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            FaultKind::Launch
        }
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
        | Code::CUDA_ERROR_MISALIGNED_ADDRESS
        | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Code::CUDA_ERROR_INVALID_PC
        | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Code::CUDA_ERROR_ASSERT
        | Code::CUDA_ERROR_LAUNCH_FAILED => FaultKind::Kernel,
        Code::CUDA_ERROR_LAUNCH_TIMEOUT | Code::CUDA_ERROR_TIMEOUT => FaultKind::Hung,
        Code::CUDA_ERROR_INVALID_IMAGE
        | Code::CUDA_ERROR_NO_BINARY_FOR_GPU
        | Code::CUDA_ERROR_INVALID_SOURCE
        | Code::CUDA_ERROR_INVALID_PTX
        | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | Code::CUDA_ERROR_NOT_FOUND => FaultKind::Image,
        Code::CUDA_ERROR_NOT_SUPPORTED
        | Code::CUDA_ERROR_NOT_PERMITTED
        | Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        | Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => FaultKind::Unsupported,
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE
        | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Code::CUDA_ERROR_ECC_UNCORRECTABLE
        | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | Code::CUDA_ERROR_DEINITIALIZED => FaultKind::Lost,
        _ => FaultKind::Other,
    };
    Fault::new(kind, format!("{call}: {:?}", error.0))
}

/// Names a call in what it may fail with.
trait Named<T> {
    fn named(self, call: &str) -> Outcome<T>;
}

impl<T> Named<T> for Result<T, DriverError> {
    fn named(self, call: &str) -> Outcome<T> {
        self.map_err(|error| fault(call, error))
    }
}

impl Native {
    /// Makes a GPU's context the thread's own.
    fn enter(&self, gpu: u32) -> Outcome<Open> {
        let open = lock(&self.open).get(&gpu).copied();
        let open = open.ok_or_else(|| Fault::new(FaultKind::NoDevice, format!("GPU {gpu} is not open")))?;
        // SAFETY: the context was retained and not yet released.
        unsafe { ctx::set_current(open.context) }.named("cuCtxSetCurrent")?;
        Ok(open)
    }
}

fn raw<T>(id: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(id as usize)
}

fn stream_of(stream: Stream) -> sys::CUstream {
    raw(stream.id)
}

unsafe extern "C" fn call(work: *mut c_void) {
    // SAFETY: a `HostWork` that `Native::host` keeps until the stream ends.
    let work = unsafe { &*work.cast::<HostWork>() };
    work();
}

/// A launch that need not wait for the end of the kernel before it.
///
/// # Safety
///
/// As of [`Driver::launch`].
unsafe fn launch_early(
    stream: Stream,
    function: Function,
    launch: Launch,
    params: &mut [*mut c_void],
) -> Outcome<()> {
    let mut early = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: 1,
        sharedMemBytes: launch.shared,
        hStream: stream_of(stream),
        attrs: &raw mut early,
        numAttrs: 1,
    };
    // SAFETY: as the caller promises; configuration and arguments are read before the call returns.
    unsafe { sys::cuLaunchKernelEx(&config, raw(function.id), params.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .named("cuLaunchKernelEx")
}

impl Driver for Native {
    fn count(&self) -> Outcome<u32> {
        device::get_count().named("cuDeviceGetCount").map(|count| count.max(0) as u32)
    }

    fn open(&self, gpu: u32) -> Outcome<GpuInfo> {
        let ordinal = i32::try_from(gpu)
            .map_err(|_| Fault::new(FaultKind::NoDevice, format!("GPU {gpu} is no number of a device")))?;
        let handle = device::get(ordinal).named("cuDeviceGet")?;
        let name = device::get_name(handle).named("cuDeviceGetName")?;
        let attribute = |attribute| {
            // SAFETY: `handle` comes from `device::get`.
            unsafe { device::get_attribute(handle, attribute) }.named("cuDeviceGetAttribute")
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let mut open = lock(&self.open);
        if let Some(known) = open.get_mut(&gpu) {
            known.users += 1;
        } else {
            // SAFETY: `handle` comes from `device::get`; released in `close`.
            let context = unsafe { result::primary_ctx::retain(handle) }.named("cuDevicePrimaryCtxRetain")?;
            open.insert(gpu, Open { context, device: handle, users: 1 });
        }
        Ok(GpuInfo { name, capability: (major.max(0) as u32, minor.max(0) as u32) })
    }

    fn close(&self, gpu: u32) {
        let mut open = lock(&self.open);
        let Some(known) = open.get_mut(&gpu) else { return };
        known.users -= 1;
        if known.users == 0 {
            lock(&self.blas).remove(&gpu);
            // SAFETY: retained in `open`, and nothing uses it any more. There is nothing to do about a
            // failure.
            let _ = unsafe { result::primary_ctx::release(known.device) };
            open.remove(&gpu);
        }
    }

    fn memory(&self, gpu: u32) -> Outcome<(u64, u64)> {
        self.enter(gpu)?;
        let (free, all) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok((free as u64, all as u64))
    }

    fn peers(&self, gpu: u32, other: u32) -> Outcome<bool> {
        let (other, own) = (self.enter(other)?, self.enter(gpu)?);
        let mut can = 0;
        // SAFETY: both devices are open; the answer is written to an integer.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, own.device, other.device) }
            .result()
            .named("cuDeviceCanAccessPeer")?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the other context is open, and this one is the thread's own.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED | CUresult::CUDA_ERROR_TOO_MANY_PEERS => Ok(false),
            code => Err(fault("cuCtxEnablePeerAccess", DriverError(code))),
        }
    }

    fn allocate(&self, gpu: u32, bytes: u64) -> Outcome<Pointer> {
        self.enter(gpu)?;
        // SAFETY: the context is the thread's own.
        unsafe { result::malloc_sync(bytes as usize) }.named("cuMemAlloc").map(Pointer)
    }

    fn free(&self, gpu: u32, memory: Pointer) {
        if self.enter(gpu).is_ok() {
            // SAFETY: allocated on this GPU and given back once. There is nothing to do about a failure.
            let _ = unsafe { result::free_sync(memory.0) };
        }
    }

    fn allocate_host(&self, bytes: u64) -> Outcome<HostPointer> {
        let first = lock(&self.open).keys().next().copied();
        self.enter(first.unwrap_or(0))?;
        // SAFETY: a context is the thread's own.
        let memory = unsafe { result::malloc_host(bytes as usize, PORTABLE) };
        let memory = memory.named("cuMemHostAlloc").map_err(|mut fault| {
            if fault.kind == FaultKind::OutOfMemory {
                fault.kind = FaultKind::OutOfHostMemory;
            }
            fault
        })?;
        // SAFETY: so many bytes were just given.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, bytes as usize) };
        Ok(HostPointer(memory.expose_provenance() as u64))
    }

    fn free_host(&self, memory: HostPointer) {
        let first = lock(&self.open).keys().next().copied();
        if self.enter(first.unwrap_or(0)).is_ok() {
            // SAFETY: from `allocate_host`, given back once. There is nothing to do about a failure.
            let _ = unsafe { result::free_host(raw(memory.0)) };
        }
    }

    fn stream(&self, gpu: u32) -> Outcome<Stream> {
        self.enter(gpu)?;
        let made = stream::create(stream::StreamKind::NonBlocking).named("cuStreamCreate")?;
        Ok(Stream { gpu, id: made.expose_provenance() as u64 })
    }

    fn end_stream(&self, stream: Stream) {
        if self.enter(stream.gpu).is_ok() {
            // SAFETY: from `stream`, ended once. There is nothing to do about a failure.
            let _ = unsafe { stream::destroy(stream_of(stream)) };
        }
        lock(&self.works).retain(|key, _| key.0 != stream.id);
    }

    fn event(&self, gpu: u32) -> Outcome<Event> {
        self.enter(gpu)?;
        let made = event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).named("cuEventCreate")?;
        Ok(Event { gpu, id: made.expose_provenance() as u64 })
    }

    fn end_event(&self, event: Event) {
        if self.enter(event.gpu).is_ok() {
            // SAFETY: from `event`, ended once. There is nothing to do about a failure.
            let _ = unsafe { event::destroy(raw(event.id)) };
        }
    }

    fn record(&self, event: Event, stream: Stream) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: both are alive and of one context.
        unsafe { event::record(raw(event.id), stream_of(stream)) }.named("cuEventRecord")
    }

    fn wait(&self, stream: Stream, event: Event) -> Outcome<()> {
        self.enter(stream.gpu)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { stream::wait_event(stream_of(stream), raw(event.id), flags) }.named("cuStreamWaitEvent")
    }

    fn elapsed(&self, from: Event, to: Event) -> Outcome<Duration> {
        self.enter(from.gpu)?;
        // SAFETY: both are alive and of one context.
        let milliseconds = unsafe { event::elapsed(raw(from.id), raw(to.id)) }.named("cuEventElapsedTime")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn is_done(&self, stream: Stream) -> Outcome<bool> {
        self.enter(stream.gpu)?;
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(stream_of(stream)) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(fault("cuStreamQuery", DriverError(code))),
        }
    }

    fn finish(&self, stream: Stream) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: the stream is alive.
        unsafe { stream::synchronize(stream_of(stream)) }.named("cuStreamSynchronize")
    }

    fn load(&self, gpu: u32, image: &[u8]) -> Outcome<Module> {
        self.enter(gpu)?;
        // The driver reads as far as the header says, which source text may be shorter than.
        let image = [image, &[0; 64]].concat();
        // SAFETY: an image that a compiler made and a checksum vouches for.
        let made = unsafe { module::load_data(image.as_ptr().cast()) }.named("cuModuleLoadData")?;
        Ok(Module { gpu, id: made.expose_provenance() as u64 })
    }

    fn unload(&self, module: Module) {
        if self.enter(module.gpu).is_ok() {
            // SAFETY: from `load`, unloaded once. There is nothing to do about a failure.
            let _ = unsafe { module::unload(raw(module.id)) };
        }
    }

    fn function(&self, module: Module, name: &str, launch: Launch) -> Outcome<Function> {
        self.enter(module.gpu)?;
        let text = CString::new(name).map_err(|_| Fault::new(FaultKind::Image, "a name with a zero byte"))?;
        // SAFETY: the module is loaded.
        let found = unsafe { module::get_function(raw(module.id), text) }.named("cuModuleGetFunction")?;
        if launch.shared > SHARED {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            unsafe { function::set_function_attribute(found, most, launch.shared as i32) }
                .named("cuFuncSetAttribute")?;
        }
        Ok(Function { gpu: module.gpu, id: found.expose_provenance() as u64 })
    }

    fn begin_capture(&self, stream: Stream) -> Outcome<()> {
        self.enter(stream.gpu)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        unsafe { stream::begin_capture(stream_of(stream), mode) }.named("cuStreamBeginCapture")
    }

    fn end_capture(&self, stream: Stream) -> Outcome<Graph> {
        self.enter(stream.gpu)?;
        // SAFETY: the stream captures.
        let captured = unsafe { stream::end_capture(stream_of(stream)) }.named("cuStreamEndCapture")?;
        // SAFETY: the graph was just captured, and is ended once it is instantiated.
        let (made, ended) = unsafe {
            (graph::instantiate(captured, sys::CUgraphInstantiate_flags(0)), graph::destroy(captured))
        };
        ended.named("cuGraphDestroy")?;
        let made = made.named("cuGraphInstantiate")?;
        Ok(Graph { gpu: stream.gpu, id: made.expose_provenance() as u64 })
    }

    fn drop_capture(&self, stream: Stream) {
        if self.enter(stream.gpu).is_ok() {
            // SAFETY: the stream captures; what it gives is a graph of its own, or none where the capture is
            // not valid, which ends it as well.
            unsafe {
                if let Ok(captured) = stream::end_capture(stream_of(stream)) {
                    let _ = graph::destroy(captured);
                }
            }
        }
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: both are alive.
        unsafe { graph::launch(raw(graph.id), stream_of(stream)) }.named("cuGraphLaunch")
    }

    fn end_graph(&self, graph: Graph) {
        if self.enter(graph.gpu).is_ok() {
            // SAFETY: from `end_capture`, ended once. There is nothing to do about a failure.
            let _ = unsafe { graph::exec_destroy(raw(graph.id)) };
        }
    }

    fn algorithms(&self, gpu: u32, gemm: &Gemm, args: &GemmArgs) -> Outcome<Vec<Algorithm>> {
        self.enter(gpu)?;
        let mut blas = lock(&self.blas);
        let library = blas.entry(gpu).or_insert_with(Blas::open);
        Ok(library.as_ref().map_or_else(Vec::new, |library| library.algorithms(gemm, args)))
    }

    fn library(&self, gpu: u32) -> Option<String> {
        self.enter(gpu).ok()?;
        lock(&self.blas).entry(gpu).or_insert_with(Blas::open).as_ref().map(Blas::version)
    }

    unsafe fn launch(
        &self,
        stream: Stream,
        function: Function,
        launch: Launch,
        args: &[Pointer],
        begin: Begin,
    ) -> Outcome<()> {
        self.enter(stream.gpu)?;
        let mut values: Vec<u64> = args.iter().map(|pointer| pointer.0).collect();
        let mut params: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (grid, [x, y]) = (launch.grid, launch.block);
        if begin == Begin::Early {
            // SAFETY: as the caller promises.
            return unsafe { launch_early(stream, function, launch, &mut params) };
        }
        // SAFETY: as the caller promises; the arguments are read before the call returns.
        unsafe {
            result::launch_kernel(
                raw(function.id),
                (grid, 1, 1),
                (x, y, 1),
                launch.shared,
                stream_of(stream),
                &mut params,
            )
        }
        .named("cuLaunchKernel")
    }

    unsafe fn multiply(
        &self,
        stream: Stream,
        gemm: &Gemm,
        algorithm: &Algorithm,
        args: &GemmArgs,
    ) -> Outcome<()> {
        self.enter(stream.gpu)?;
        let mut blas = lock(&self.blas);
        let library = blas.entry(stream.gpu).or_insert_with(Blas::open);
        let library = library.as_ref();
        let library = library.ok_or_else(|| Fault::new(FaultKind::Unsupported, "cuBLASLt does not start"))?;
        // SAFETY: as the caller promises.
        unsafe { library.multiply(stream_of(stream), gemm, algorithm, args) }
    }

    unsafe fn upload(&self, stream: Stream, to: Pointer, from: HostPointer, bytes: u64) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: as the caller promises.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, raw(from.0), bytes as usize, stream_of(stream)) }
            .result()
            .named("cuMemcpyHtoDAsync")
    }

    unsafe fn download(&self, stream: Stream, to: HostPointer, from: Pointer, bytes: u64) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: as the caller promises.
        unsafe { sys::cuMemcpyDtoHAsync_v2(raw(to.0), from.0, bytes as usize, stream_of(stream)) }
            .result()
            .named("cuMemcpyDtoHAsync")
    }

    unsafe fn copy(&self, stream: Stream, to: Pointer, from: Pointer, bytes: u64) -> Outcome<()> {
        self.enter(stream.gpu)?;
        // SAFETY: as the caller promises; addresses of all GPUs and of the host are in one space.
        unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes as usize, stream_of(stream)) }
            .result()
            .named("cuMemcpyAsync")
    }

    fn host(&self, stream: Stream, work: HostWork) -> Outcome<()> {
        self.enter(stream.gpu)?;
        let key = (stream.id, Arc::as_ptr(&work).cast::<()>().addr());
        let kept =
            std::ptr::from_mut(lock(&self.works).entry(key).or_insert_with(|| Box::new(work)).as_mut());
        // SAFETY: the work is kept until the stream ends.
        unsafe { stream::launch_host_function(stream_of(stream), call, kept.cast()) }
            .named("cuLaunchHostFunc")
    }
}
