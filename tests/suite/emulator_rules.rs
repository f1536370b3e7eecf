//! What the emulated driver and the shim are strict about: each rule of their headers, broken once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use partition::unstable::emit::{Kernel, Template};
use partition::unstable::ir::DType;
use partition::unstable::kernel::program::Strides;
use partition::unstable::run::cuda::{
    Activation, Begin, Driver, Fault, FaultKind, Function, Gemm, GemmArgs, HostPointer, Launch, Module,
    Outcome, Pointer, Span, Stream, Toolchain,
};

use crate::emulator::{Build, CpuToolchain, Emulator, Faults, Library, Limits};

const ONE: Launch = Launch { grid: 1, block: [64, 1], shared: 0 };

/// A GPU that is open, with a stream and some memory.
struct Bench {
    toolchain: Arc<CpuToolchain>,
    emulator: Arc<Emulator>,
    stream: Stream,
    memory: Pointer,
}

const BYTES: u64 = 4096;

impl Bench {
    /// None without a C++ compiler.
    fn new(build: Build) -> Option<Self> {
        Some(Self::with(CpuToolchain::shared()?, build))
    }

    fn with(toolchain: Arc<CpuToolchain>, build: Build) -> Self {
        let emulator = Emulator::new(build);
        emulator.open(0).unwrap();
        let stream = emulator.stream(0).unwrap();
        let memory = emulator.allocate(0, BYTES).unwrap();
        Self { toolchain, emulator, stream, memory }
    }

    fn kernel(&self, name: &str, text: &str, launch: Launch) -> (Module, Outcome<Function>) {
        let kernel = Kernel {
            name: name.to_owned(),
            text: text.to_owned(),
            template: Some(Template::ProductGroups),
            launch,
            args: vec![],
        };
        let image = self.toolchain.compile(&[&kernel], "sm_90", &|_, _| {}).unwrap().remove(0);
        let module = self.emulator.load(0, &image).unwrap();
        (module, self.emulator.function(module, name, launch))
    }

    fn launch(&self, function: Function, launch: Launch) -> Outcome<()> {
        // SAFETY: the kernels of these tests keep to the memory, or are to be found out.
        unsafe { self.emulator.launch(self.stream, function, launch, &[self.memory], Begin::Behind) }
    }

    fn launch_early(&self, function: Function, launch: Launch) -> Outcome<()> {
        // SAFETY: as above.
        unsafe { self.emulator.launch(self.stream, function, launch, &[self.memory], Begin::Early) }
    }

    /// Runs a kernel that these lines are the body of; `a` is its argument.
    fn run(&self, name: &str, body: &str, launch: Launch) -> Outcome<()> {
        let text = format!(
            "extern \"C\" __global__ void __launch_bounds__({}) {name}(float* a) {{\n{body}\n}}\n",
            launch.block[0]
        );
        let (_, function) = self.kernel(name, &text, launch);
        self.launch(function?, launch)?;
        self.emulator.finish(self.stream)
    }
}

/// What a call is refused with.
fn refusal<T>(outcome: Outcome<T>) -> (FaultKind, String) {
    let Fault { kind, message } = outcome.err().expect("it is not refused");
    (kind, message)
}

fn says<T>(outcome: Outcome<T>, part: &str) {
    let (_, message) = refusal(outcome);
    assert!(message.contains(part), "{message}");
}

const NOTHING: &str = "a[threadIdx.x] = 1.0f;";

#[test]
fn a_copy_of_memory_that_is_not_locked_waits_for_its_stream() {
    let faults = Faults { hang: 1, ..Faults::default() };
    let Some(bench) = Bench::new(Build { faults, ..Build::default() }) else { return };
    let (_, function) =
        bench.kernel("hangs", &format!("extern \"C\" __global__ void hangs(float* a) {{ {NOTHING} }}"), ONE);
    bench.launch(function.unwrap(), ONE).unwrap();
    let locked = bench.emulator.allocate_host(64).unwrap();
    // SAFETY: all have so many bytes.
    unsafe {
        bench.emulator.download(bench.stream, locked, bench.memory, 64).unwrap();
        assert_eq!(bench.emulator.waits(), 0);
        let plain = [0u8; 64];
        says(
            bench.emulator.upload(bench.stream, bench.memory, HostPointer(plain.as_ptr() as u64), 64),
            "never ends",
        );
    }
    assert_eq!(bench.emulator.waits(), 1);
}

#[test]
fn launches_that_a_gpu_cannot_have_are_refused() {
    let Some(bench) = Bench::new(Build::default()) else { return };
    let text =
        format!("extern \"C\" __global__ void __launch_bounds__(64) bounded(float* a) {{ {NOTHING} }}");
    let (_, function) = bench.kernel("bounded", &text, ONE);
    let function = function.unwrap();
    bench.launch(function, ONE).unwrap();
    for (launch, part) in [
        (Launch { grid: 0, ..ONE }, "blocks"),
        (Launch { grid: 1 << 31, ..ONE }, "blocks"),
        (Launch { block: [0, 1], ..ONE }, "threads"),
        (Launch { block: [64, 17], ..ONE }, "threads"),
        (Launch { block: [96, 1], ..ONE }, "compiled for"),
        (Launch { shared: (48 << 10) + 4, ..ONE }, "asked for"),
    ] {
        assert_eq!(refusal(bench.launch(function, launch)).0, FaultKind::Launch);
        says(bench.launch(function, launch), part);
    }
    // What is asked for may be launched, up to what blocks may have.
    for (capability, most) in [((8, 6), 99 << 10), ((9, 0), 227 << 10)] {
        let bench = Bench::new(Build { capability, ..Build::default() }).unwrap();
        let (module, _) = bench.kernel("bounded", &text, ONE);
        let wide = Launch { shared: most, ..ONE };
        bench.launch(bench.emulator.function(module, "bounded", wide).unwrap(), wide).unwrap();
        let more = Launch { shared: most + 4, ..ONE };
        says(bench.emulator.function(module, "bounded", more), "shared memory");
    }
}

#[test]
fn a_launch_has_no_more_registers_and_shared_memory_than_there_is() {
    let wide = Launch { block: [512, 1], ..ONE };
    for (registers, shared, launch, part) in [
        (128, 0, wide, None),
        (129, 0, wide, Some("registers")),
        (255, 0, Launch { block: [256, 1], ..ONE }, None),
        (255, 0, Launch { block: [288, 1], ..ONE }, Some("registers")),
        (32, 180 << 10, Launch { shared: 48 << 10, ..ONE }, Some("shared memory")),
    ] {
        let limits = Limits { threads: 1024, registers, shared };
        let Some(toolchain) = CpuToolchain::limited(limits) else { return };
        let bench = Bench::with(toolchain, Build::default());
        let text = format!("extern \"C\" __global__ void many(float* a) {{ {NOTHING} }}");
        let function = bench.kernel("many", &text, launch).1.unwrap();
        match part {
            None => bench.launch(function, launch).unwrap(),
            Some(part) => says(bench.launch(function, launch), part),
        }
    }
}

#[test]
fn what_a_capture_does_not_bear_is_refused_and_the_capture_lost() {
    let Some(bench) = Bench::new(Build::default()) else { return };
    let (driver, stream) = (&bench.emulator, bench.stream);
    let outside = driver.event(0).unwrap();
    let other = driver.stream(0).unwrap();
    driver.record(outside, other).unwrap();
    driver.begin_capture(stream).unwrap();
    let graph = driver.end_capture(stream).unwrap();
    let plain = [0u8; 64];
    let calls: [(&str, &dyn Fn() -> Outcome<()>); 6] = [
        ("waited for", &|| driver.finish(stream)),
        ("waited for", &|| driver.is_done(stream).map(drop)),
        ("begins to capture", &|| driver.begin_capture(stream)),
        ("graph", &|| driver.launch_graph(graph, stream)),
        ("outside", &|| driver.wait(stream, outside)),
        // SAFETY: both have so many bytes.
        ("blocks", &|| unsafe {
            driver.upload(stream, bench.memory, HostPointer(plain.as_ptr() as u64), 64)
        }),
    ];
    for (part, call) in calls {
        driver.begin_capture(stream).unwrap();
        says(call(), part);
        says(driver.end_capture(stream), "lost");
        // The stream is of use again.
        driver.finish(stream).unwrap();
    }
    // Streams that joined are waited for, and what was recorded in a capture means nothing behind it.
    let inside = driver.event(0).unwrap();
    driver.begin_capture(stream).unwrap();
    driver.record(inside, stream).unwrap();
    says(driver.elapsed(inside, inside), "event of a capture");
    driver.finish(other).unwrap();
    driver.wait(other, inside).unwrap();
    driver.host(other, Arc::new(|| {})).unwrap();
    says(driver.end_capture(stream), "not waited for");
    says(driver.wait(stream, inside), "capture that has ended");
}

#[test]
fn an_event_that_was_not_recorded_means_nothing() {
    let Some(bench) = Bench::new(Build::default()) else { return };
    let (driver, stream) = (&bench.emulator, bench.stream);
    let event = driver.event(0).unwrap();
    says(driver.wait(stream, event), "never recorded");
    says(driver.elapsed(event, event), "never recorded");
    driver.record(event, stream).unwrap();
    says(driver.elapsed(event, event), "not reached");
    driver.finish(stream).unwrap();
    driver.elapsed(event, event).unwrap();
}

/// Whether it panics.
fn panics(what: impl FnOnce()) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = catch_unwind(AssertUnwindSafe(what)).is_err();
    std::panic::set_hook(hook);
    panicked
}

#[test]
fn memory_events_and_kernels_are_of_the_gpu_that_uses_them() {
    let Some(bench) = Bench::new(Build { gpus: 2, ..Build::default() }) else { return };
    let (driver, stream) = (&bench.emulator, bench.stream);
    driver.open(1).unwrap();
    let far = driver.allocate(1, 64).unwrap();
    let event = driver.event(1).unwrap();
    let foreign = driver.stream(1).unwrap();
    let text = format!("extern \"C\" __global__ void near(float* a) {{ {NOTHING} }}");
    let function = bench.kernel("near", &text, ONE).1.unwrap();
    // SAFETY: what is not of this GPU is found out before it is used.
    unsafe {
        assert!(panics(|| driver.launch(stream, function, ONE, &[far], Begin::Behind).unwrap()));
        assert!(panics(|| driver.launch(foreign, function, ONE, &[far], Begin::Behind).unwrap()));
        assert!(panics(|| driver.copy(stream, bench.memory, far, 64).unwrap()));
        assert!(panics(|| driver.copy(stream, bench.memory, bench.memory.offset(64), BYTES).unwrap()));
        assert!(driver.peers(0, 1).unwrap());
        driver.copy(stream, bench.memory, far, 64).unwrap();
    }
    assert!(panics(|| driver.record(event, stream).unwrap()));
    assert!(panics(|| driver.end_stream(stream)), "work is left");
    driver.free(1, far);
    assert!(panics(|| driver.free(1, far)));
}

#[test]
fn what_failed_fails_everything_behind_it_after_closing_as_well() {
    let faults = Faults { fail: 1, ..Faults::default() };
    let Some(bench) = Bench::new(Build { faults, ..Build::default() }) else { return };
    let driver = &bench.emulator;
    let (module, host) = (bench.run("fails", NOTHING, ONE), driver.allocate_host(8));
    assert_eq!(refusal(module).0, FaultKind::Kernel);
    assert_eq!(refusal(host).0, FaultKind::Kernel);
    let event = driver.event(0).unwrap();
    for _ in 0..2 {
        assert_eq!(refusal(driver.allocate(0, 8)).0, FaultKind::Kernel);
        assert_eq!(refusal(driver.record(event, bench.stream)).0, FaultKind::Kernel);
        assert_eq!(refusal(driver.is_done(bench.stream)).0, FaultKind::Kernel);
        assert_eq!(refusal(driver.begin_capture(bench.stream)).0, FaultKind::Kernel);
        assert_eq!(refusal(driver.open(0)).0, FaultKind::Kernel);
    }
    driver.close(0);
    assert_eq!(refusal(driver.open(0)).0, FaultKind::Kernel);
}

fn gemm(inner: i64) -> Gemm {
    let square = Strides { batch: 0, row: 16, column: 1 };
    Gemm {
        dtype: DType::F32,
        made: DType::F32,
        batch: 1,
        rows: 16,
        columns: 16,
        inner,
        left: square,
        right: square,
        out: square,
        bias: false,
        addend: None,
        activation: Activation::None,
        sums: None,
    }
}

#[test]
fn the_librarys_ways_differ_and_follow_from_alignment_and_room() {
    let bench = |library| Bench::new(Build { library, ..Build::default() });
    let Some(own) = bench(Library::WHOLE) else { return };
    let at = |bytes: u64| own.memory.offset(bytes);
    let args = |out: u64, room: u64| GemmArgs {
        left: at(0),
        right: at(1024),
        bias: None,
        addend: None,
        out: at(out),
        sums: None,
        partial: Span { at: at(3072), bytes: room },
    };
    let ways = |args: &GemmArgs| own.emulator.algorithms(0, &gemm(16), args).unwrap();
    let plain = ways(&args(2048, 0));
    assert_eq!(ways(&args(2048 + 16, 0)), plain);
    assert_ne!(ways(&args(2048 + 8, 0)), plain);
    assert_ne!(ways(&args(2048, 256)), plain);
    assert!(panics(|| {
        let skewed = args(2048 + 8, 0);
        // SAFETY: that the way is none for these operands is found out before they are used.
        unsafe { own.emulator.multiply(own.stream, &gemm(16), &plain[0], &skewed).unwrap() }
    }));
    // Each sums in another order, and fills the room for partial sums.
    let values: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32).exp2().recip() + i as f32).collect();
    let mut results = Vec::new();
    for way in &plain {
        // SAFETY: the memory is this process's own, and no stream runs.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), at(0).0 as *mut u8, 2048);
            own.emulator.multiply(own.stream, &gemm(16), way, &args(2048, 256)).unwrap();
            own.emulator.finish(own.stream).unwrap();
            results.push(std::slice::from_raw_parts(at(2048).0 as *const u8, 1024).to_vec());
            assert_eq!(std::slice::from_raw_parts(at(3072).0 as *const u8, 256), [0xee; 256]);
        }
    }
    assert!(results[0] != results[1] && results[1] != results[2] && results[0] != results[2]);
    let beyond = GemmArgs { partial: Span { at: at(BYTES - 64), bytes: 256 }, ..args(2048, 0) };
    assert!(panics(|| {
        // SAFETY: the room is outside the memory, which is found out before it is used.
        unsafe { own.emulator.multiply(own.stream, &gemm(16), &plain[0], &beyond).unwrap() }
    }));
    for library in [Library::None, Library::Empty] {
        let bench = bench(library).unwrap();
        assert!(bench.emulator.algorithms(0, &gemm(16), &args(2048, 0)).unwrap().is_empty());
        assert_eq!(bench.emulator.library(0).is_some(), library == Library::Empty);
    }
    let refusing = bench(Library::Ways { refused: 1, sums: true }).unwrap();
    let ways = refusing.emulator.algorithms(0, &gemm(16), &args(2048, 0)).unwrap();
    // SAFETY: it is refused before anything is used.
    says(
        unsafe { refusing.emulator.multiply(refusing.stream, &gemm(16), &ways[0], &args(2048, 0)) },
        "refuses",
    );
}

#[test]
fn a_kernel_is_begun_early_only_behind_a_kernel_and_where_a_gpu_can() {
    let text =
        format!("extern \"C\" __global__ void follows(float* a) {{ follow_the_kernel_before(); {NOTHING} }}");
    let Some(bench) = Bench::new(Build::default()) else { return };
    let function = bench.kernel("follows", &text, ONE).1.unwrap();
    says(bench.launch_early(function, ONE), "behind what is none");
    bench.launch(function, ONE).unwrap();
    bench.launch_early(function, ONE).unwrap();
    bench.launch_early(function, ONE).unwrap();
    let event = bench.emulator.event(0).unwrap();
    bench.emulator.record(event, bench.stream).unwrap();
    says(bench.launch_early(function, ONE), "behind what is none");
    bench.emulator.finish(bench.stream).unwrap();
    assert_eq!(bench.emulator.early(), 2);
    // In a capture, behind what two streams did, or the host.
    let (driver, stream) = (&bench.emulator, bench.stream);
    driver.begin_capture(stream).unwrap();
    says(bench.launch_early(function, ONE), "behind what is none");
    bench.launch(function, ONE).unwrap();
    bench.launch_early(function, ONE).unwrap();
    driver.host(stream, Arc::new(|| {})).unwrap();
    says(bench.launch_early(function, ONE), "behind what is none");
    driver.drop_capture(stream);
    let older = Bench::new(Build { capability: (8, 0), ..Build::default() }).unwrap();
    let function = older.kernel("follows", &text, ONE).1.unwrap();
    older.launch(function, ONE).unwrap();
    assert_eq!(refusal(older.launch_early(function, ONE)).0, FaultKind::Unsupported);
}

#[test]
fn every_thread_of_a_kernel_that_is_begun_early_waits() {
    let early = |name: &str, body: &str| -> Option<Outcome<()>> {
        let bench = Bench::new(Build::default())?;
        let text = format!("extern \"C\" __global__ void {name}(float* a) {{ {body} }}");
        let function = bench.kernel(name, &text, ONE).1.unwrap();
        bench.launch(function, ONE).unwrap();
        bench.launch_early(function, ONE).unwrap();
        Some(bench.emulator.finish(bench.stream))
    };
    let Some(good) = early("waits", "follow_the_kernel_before(); a[threadIdx.x] = 1;") else { return };
    good.unwrap();
    for (name, body) in [
        ("never", "a[threadIdx.x] = 1;"),
        ("some", "if (threadIdx.x > 3) follow_the_kernel_before();"),
        (
            "with_barriers",
            "SHARED(float, s, 64); s[threadIdx.x] = 1; __syncthreads(); a[threadIdx.x] = s[0];",
        ),
    ] {
        let (kind, message) = refusal(early(name, body).unwrap());
        assert!(kind == FaultKind::Kernel && message.contains("does not wait"), "{name}: {message}");
    }
}

/// Runs a kernel of one block; what is wrong with it.
fn ran(name: &str, body: &str, threads: u32) -> Option<Outcome<()>> {
    let bench = Bench::new(Build::default())?;
    Some(bench.run(name, body, Launch { block: [threads, 1], ..ONE }))
}

#[test]
fn a_vector_that_is_not_aligned_fails_its_kernel() {
    let store = |at: u32| {
        format!("vec<4, float> v = {{{{1, 2, 3, 4}}}}; *(vec<4, float>*)(a + {at} + 4 * threadIdx.x) = v;")
    };
    let Some(good) = ran("aligned", &store(4), 8) else { return };
    good.unwrap();
    for at in [1, 2] {
        let (kind, message) = refusal(ran("skewed", &store(at), 8).unwrap());
        assert!(kind == FaultKind::Kernel && message.contains("misaligned"), "{message}");
    }
    says(
        ran("loaded", "vec<2, float> v = *(const vec<2, float>*)(a + 1); a[0] = v.v[0];", 1).unwrap(),
        "misaligned",
    );
}

long! {
    threads_that_meet_in_shared_memory_without_a_barrier_fail_their_kernel;
    groups_that_do_not_heed_a_signal_fail_their_kernel;
    lanes_that_part_before_they_meet_fail_their_kernel;
}

fn threads_that_meet_in_shared_memory_without_a_barrier_fail_their_kernel() {
    let swap = |between: &str, other: &str| {
        format!(
            "SHARED(float, s, 64); const int t = threadIdx.x; s[t] = a[t];\n{between}\nconst float x = s[{other}]; a[t + 64] = x;"
        )
    };
    let Some(good) = ran("met", &swap("__syncthreads();", "63 - t"), 64) else { return };
    good.unwrap();
    for (name, body, threads) in [
        // Read behind a write, in one warp and across warps; both orders of threads would give what they read.
        ("early", swap("", "63 - t"), 64),
        ("early_warp", swap("", "31 - t"), 32),
        // An exchange of a warp orders nothing across warps.
        ("warp_only", swap("__syncwarp();", "63 - t"), 64),
        // Written behind a read that may not be over.
        ("over", "SHARED(float, s, 64); const int t = threadIdx.x; s[t] = a[t]; __syncthreads(); const float x = s[63 - t]; s[t] = x + 1; a[t] = x;".to_owned(), 64),
        // Written by two, the same value.
        ("twice", "SHARED(float, s, 4); s[0] = 1.0f; __syncthreads(); a[threadIdx.x] = s[0];".to_owned(), 64),
        // In dynamic memory.
        ("dynamic", "DYNAMIC_SHARED(bytes); float* s = (float*)bytes; s[threadIdx.x & 31] = 1.0f;".to_owned(), 64),
        // What a copy that is not waited for brings.
        ("later", "SHARED(u16, s, 1024); copy_later(s + threadIdx.x * 8, (const u16*)a + threadIdx.x * 8, true); copies_end(); copies_wait<0>(); a[threadIdx.x] = s[(63 - threadIdx.x) * 8];".to_owned(), 64),
    ] {
        let bench = Bench::new(Build::default()).unwrap();
        let launch = Launch { block: [threads, 1], shared: if name == "dynamic" { 256 } else { 0 }, ..ONE };
        let (kind, message) = refusal(bench.run(name, &body, launch));
        assert!(kind == FaultKind::Kernel && message.contains("meet at byte"), "{name}: {message}");
    }
    // What is in order: within a warp behind an exchange, each its own, all reading.
    for (name, body) in [
        ("exchanged", swap("__syncwarp();", "31 - t")),
        ("own", swap("", "t")),
        (
            "all_read",
            "SHARED(float, s, 1); if (threadIdx.x == 0) s[0] = 2.0f; __syncthreads(); a[threadIdx.x] = s[0];"
                .to_owned(),
        ),
    ] {
        ran(name, &body, 32).unwrap().unwrap();
    }
}

/// Three turns at one place, which one group fills and the other empties; `begin`, and what each does before and after.
fn turns(begin: &str, [before_filling, before_emptying, after]: [&str; 3]) -> String {
    format!(
        "SHARED(u64, signals, 2); SHARED(u16, s, 1024); const Places<1> places(signals); const int t = threadIdx.x;\n\
         {begin}\n\
         if (t < 128) for (int turn = 0; turn < 3; ++turn) {{ {before_filling} copy_later(s + t * 8, (const u16*)a + t * 8, true); places.fill(turn); }}\n\
         else for (int turn = 0; turn < 3; ++turn) {{ {before_emptying} a[t] = s[(255 - t) * 8]; __syncwarp(); {after} }}"
    )
}

fn groups_that_do_not_heed_a_signal_fail_their_kernel() {
    let begin = "if (t == 0) places.begin(128, 1); __syncthreads();";
    let [filling, emptying, after] =
        ["places.wait_emptied(turn);", "places.wait_filled(turn);", "places.empty(turn);"];
    let Some(good) = ran("heeded", &turns(begin, [filling, emptying, after]), 256) else { return };
    good.unwrap();
    let meet = "meet at byte";
    let never = "not all threads come to a barrier, a shuffle or a signal";
    for (name, begin, group, said) in [
        ("not_filled", begin, [filling, "", after], meet),
        // What is filled too often is not noticed by its phase.
        ("not_emptied", begin, ["", emptying, after], never),
        ("never_emptied", begin, [filling, emptying, ""], never),
        ("no_barrier", "if (t == 0) places.begin(128, 1);", [filling, emptying, after], meet),
        ("not_begun", "__syncthreads();", [filling, emptying, after], "has not begun"),
        ("too_many", "if (t == 0) places.begin(129, 1); __syncthreads();", [filling, emptying, after], never),
        (
            "begun_twice",
            "if (t == 0) { places.begin(128, 1); places.begin(128, 1); } __syncthreads();",
            [filling, emptying, after],
            "begins twice",
        ),
    ] {
        let (kind, message) = refusal(ran(name, &turns(begin, group), 256).unwrap());
        assert!(kind == FaultKind::Kernel && message.contains(said), "{name}: {message}");
    }
}

fn lanes_that_part_before_they_meet_fail_their_kernel() {
    let product = "float sum[4] = {0, 0, 0, 0}; const u32 x[4] = {0, 0, 0, 0}; mma<0>(sum, x, x, bf16()); a[threadIdx.x] = sum[0];";
    let Some(good) = ran("together", product, 32) else { return };
    good.unwrap();
    let half = |body: &str| format!("if (threadIdx.x < 16) {{ {body} }}");
    let rows = "SHARED(u16, s, 512); u32 to[4]; matrices<false>(to, s); a[threadIdx.x] = (float)to[0];";
    for (name, body, threads, parts) in [
        ("half_mma", half(product), 32, ["mma", "its end"]),
        ("half_ldmatrix", half(rows), 32, ["ldmatrix", "its end"]),
        ("half_sync", half("__syncwarp();"), 32, ["__syncwarp", "its end"]),
        ("short_mma", product.to_owned(), 16, ["a warp of 16 threads", "mma"]),
        ("short_ldmatrix", rows.to_owned(), 16, ["a warp of 16 threads", "ldmatrix"]),
        ("part", "__syncwarp(0xffffu);".to_owned(), 32, ["__syncwarp", "a part of a warp"]),
        (
            "two_ways",
            "if (threadIdx.x < 16) __syncwarp(); else __shfl_xor_sync(~0u, 1, 1);".to_owned(),
            32,
            ["__syncwarp", "a shuffle"],
        ),
        (
            "barrier",
            "if (threadIdx.x < 16) __syncwarp(); else __syncthreads();".to_owned(),
            32,
            ["__syncwarp", "a barrier"],
        ),
        (
            "absent",
            "a[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 16);".to_owned(),
            16,
            ["a shuffle", "not there"],
        ),
        (
            "wide",
            "SHARED(float, s, 13000); s[threadIdx.x] = 1.0f; a[threadIdx.x] = s[threadIdx.x];".to_owned(),
            32,
            ["48 KB", "static"],
        ),
    ] {
        let (kind, message) = refusal(ran(name, &body, threads).unwrap());
        let told = parts.iter().all(|part| message.contains(part));
        assert!(kind == FaultKind::Kernel && told, "{name}: {message}");
    }
}
