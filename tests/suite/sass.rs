//! What `scripts/sass_check` reads of machine code, on kernels whose numbers are known: loops, widths, strides, conflicts of
//! shared memory, spills. Skipped where NVRTC or the disassembler is not found, unless `PARTITION_REQUIRE_NVRTC=1`.

use std::path::PathBuf;

use partition::unstable::emit::nvrtc::nvrtc;

#[allow(dead_code, reason = "the program that reads has more uses for it")]
#[path = "../../benches/sass/listing.rs"]
mod listing;
#[allow(dead_code, reason = "the program that reads has more uses for it")]
#[path = "../../benches/sass/machine.rs"]
mod machine;
#[path = "../../benches/sass/value.rs"]
mod value;
#[allow(dead_code, reason = "the program that reads has more uses for it")]
#[path = "../../benches/sass/warp.rs"]
mod warp;

use listing::Code;
use warp::{Launch, Run};

/// `cuobjdump` beside NVRTC's library; none, with a line that says so.
fn disassembler() -> Option<PathBuf> {
    let required = std::env::var_os("PARTITION_REQUIRE_NVRTC").is_some_and(|value| value == "1");
    let library = std::env::var_os("PARTITION_NVRTC").map(PathBuf::from);
    let found = library.and_then(|folder| Some(folder.parent()?.join("bin/cuobjdump")));
    let found = found.filter(|path| path.exists() && nvrtc().is_ok());
    assert!(found.is_some() || !required, "cuobjdump is not beside NVRTC");
    if found.is_none() {
        println!("skipped: no NVRTC, or no cuobjdump beside it");
    }
    found
}

/// The code of a kernel with these lines as its body, for sm_90; `a` is what it reads, `b` what it writes.
fn code(disassembler: &std::path::Path, body: &str) -> Code {
    let source = format!(
        "extern \"C\" __global__ void __launch_bounds__(128) k(const float* __restrict__ a, float* b) {{\n{body}\n}}"
    );
    let image = nvrtc().unwrap().cubin(&source, "k", "sm_90").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image).unwrap();
    listing::listed(disassembler, file.path()).unwrap()
}

fn followed(code: &Code) -> Run {
    followed_by(code, 0)
}

/// What that warp of a block does.
fn followed_by(code: &Code, warp: u32) -> Run {
    let launch = Launch { grid: 64, block: [128, 1], number: 32, warp, arguments: 0x210 };
    warp::run(code, launch, machine::GPUS[0].latencies)
}

#[test]
fn warps_that_do_different_things_are_followed_each() {
    let Some(tool) = disassembler() else { return };
    let two = "if (threadIdx.x < 32) b[blockIdx.x * 128 + threadIdx.x] = 1.0f;\n\
               else for (int i = 0; i < 100; ++i) b[(blockIdx.x * 100 + i) * 128 + threadIdx.x] = 2.0f;";
    let code = code(&tool, two);
    let [one, other] = [0, 2].map(|warp| followed_by(&code, warp));
    assert_eq!((one.stores.requests, other.stores.requests), (1, 100));
    let all = Run::average(&[(one.clone(), 1), (other.clone(), 3)]);
    assert_eq!((all.stores.requests, all.stores.bytes), (301 / 4, 301 * 128 / 4));
    assert_eq!(all.cycles, one.cycles.max(other.cycles));
    assert_eq!(all.instructions, (one.instructions + 3 * other.instructions) / 4);
}

#[test]
fn loops_and_widths_are_read_as_they_run() {
    let Some(tool) = disassembler() else { return };
    let narrow = "float s = 0; for (int i = threadIdx.x; i < 12800; i += 128) s += a[blockIdx.x * 12800 + i];\n\
                  b[blockIdx.x * 128 + threadIdx.x] = s;";
    let run = followed(&code(&tool, narrow));
    assert_eq!((run.loads.requests, run.loads.bytes, run.loads.widths[0]), (100, 12_800, 12_800), "{run:?}");
    // 128 bytes of a warp are four sectors, and nothing is wasted.
    assert_eq!((run.loads.units, run.loads.least, run.guesses), (400, 400, 0), "{run:?}");
    let wide = "const float4* from = (const float4*)a + blockIdx.x * 128 + threadIdx.x;\n\
                float4 x = *from; ((float4*)b)[blockIdx.x * 128 + threadIdx.x] = x;";
    let run = followed(&code(&tool, wide));
    assert_eq!((run.loads.widths[2], run.stores.widths[2], run.loads.requests), (512, 512, 1), "{run:?}");
}

#[test]
fn what_is_strided_or_meets_one_bank_shows() {
    let Some(tool) = disassembler() else { return };
    let strided = "b[blockIdx.x * 128 + threadIdx.x] = a[(blockIdx.x * 128 + threadIdx.x) * 64];";
    let run = followed(&code(&tool, strided));
    assert_eq!((run.loads.units, run.loads.least), (32, 4), "{run:?}");
    let shared = |index: &str| {
        format!(
            "__shared__ float t[4224]; t[{index}] = a[threadIdx.x]; __syncthreads();\n\
             b[blockIdx.x * 128 + threadIdx.x] = t[threadIdx.x * 7 % 128];"
        )
    };
    let even = followed(&code(&tool, &shared("threadIdx.x"))).shared;
    assert_eq!(even.units, even.least, "{even:?}");
    // Thirty-two words of one bank, and a row apart that is one word longer.
    let conflict = followed(&code(&tool, &shared("threadIdx.x % 32 * 32"))).shared;
    assert_eq!(conflict.units - conflict.least, 31, "{conflict:?}");
    let padded = followed(&code(&tool, &shared("threadIdx.x % 32 * 33"))).shared;
    assert_eq!(padded.units, padded.least, "{padded:?}");
}

#[test]
fn registers_that_are_kept_in_memory_show() {
    let Some(tool) = disassembler() else { return };
    // The compiler keeps an array of 64 in registers, and chooses among them.
    let indexed = "float t[512]; for (int i = 0; i < 512; ++i) t[i] = a[i * 128 + threadIdx.x];\n\
                   b[threadIdx.x] = t[(int)a[0] & 511] + t[(int)a[1] & 511];";
    let found = code(&tool, indexed);
    assert!(found.stack >= 256 && found.instructions.iter().any(|one| one.stem() == "LDL"));
    let plain = code(&tool, "b[threadIdx.x] = a[threadIdx.x] * 2.0f;");
    assert!(plain.stack == 0 && !plain.instructions.iter().any(|one| one.stem() == "LDL"));
}

#[test]
fn what_is_read_before_the_wait_shows() {
    let Some(tool) = disassembler() else { return };
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");";
    let before = format!("b[threadIdx.x] = 1.0f; {wait} b[threadIdx.x] = a[threadIdx.x] * 2.0f;");
    let early = |body: &str| code(&tool, body).too_early().map(|one| one.stem().to_owned());
    // The store, or the load that the compiler brings before it.
    assert!(early(&before).is_some());
    assert_eq!(early("b[threadIdx.x] = a[threadIdx.x] * 2.0f;").as_deref(), Some("LDG"));
    assert_eq!(early(&format!("{wait} b[threadIdx.x] = 1.0f;")), None);
}

#[test]
fn few_blocks_and_waste_cost_time() {
    let Some(tool) = disassembler() else { return };
    let run = followed(&code(
        &tool,
        "float s = 0; for (int i = threadIdx.x; i < 12800; i += 128) s += a[blockIdx.x * 12800 + i];\n\
         b[blockIdx.x * 128 + threadIdx.x] = s;",
    ));
    let of = |blocks: u32, bytes: u64| {
        let launched = machine::Launched {
            blocks,
            threads: 128,
            registers: 32,
            shared: 0,
            bytes,
            own: None,
            operations: 0.0,
            is_tensor: false,
        };
        machine::GPUS.map(|gpu| gpu.predicted(&launched, &run).total)
    };
    let [h100, h200] = of(13_200, 13_200 * 51_200);
    assert!(h200 < h100 && h100 > 13_200.0 * 51_200.0 / 3.35e6, "{h100} {h200}");
    // A tenth of the work in one block each is bound by how long a warp takes, not by its bytes.
    let [alone, _] = of(1, 51_200);
    assert!(alone > 10.0 * 51_200.0 / 3.35e6, "{alone}");
}
