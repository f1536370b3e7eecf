//! GGUF files: models of each architecture with the library's outputs of the same weights, blocks of every type
//! as the `gguf` package unpacks them (both stored by `scripts/gguf_models.py`), damaged files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partition::unstable::ir::{BlockFormat, DType, Tensor};
use partition::unstable::load::weights::Arrays;

const MODELS: [&str; 25] = [
    "gemma",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt2",
    "granite",
    "llama",
    "llama_3",
    "llama_f16",
    "llama_linear",
    "llama_mixed",
    "llama_mixed_tied",
    "llama_q4_0",
    "llama_q8_0",
    "llama_tied_bf16",
    "mixtral",
    "olmo2",
    "phi3",
    "phi3_part",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "smollm3",
    "starcoder2",
];

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

fn run(model: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).arg("run").arg(model).args(more).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_computes_what_the_library_does_with_its_weights() {
    for name in MODELS {
        let io = stored(&format!("{name}.io.npz"));
        let arrays = ["--inputs", text(&io), "--expect", text(&io), "--rtol", "1e-5", "--atol", "2e-5"];
        let out = run(&stored(&format!("{name}.gguf")), &arrays);
        let told = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{name}: {told}");
        assert!(!told.contains("does not take"), "{name}: {told}");
    }
}

#[test]
fn blocks_are_what_the_format_says() {
    let packed = Arrays::open(&stored("blocks.gguf")).unwrap();
    let expected = Arrays::open(&stored("blocks.npz")).unwrap();
    let lattices =
        ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "tq1_0", "tq2_0"].into_iter();
    let kept = ["f32", "f16", "bf16"].into_iter().chain(lattices);
    let kept = kept.chain(BlockFormat::WHOLE.iter().map(|format| format.name()));
    assert_eq!(packed.names().iter().map(String::as_str).collect::<BTreeSet<_>>(), kept.collect());
    for name in packed.names() {
        let tensor = packed.get(name).unwrap().unwrap();
        let own = expected.get(name).unwrap().unwrap();
        assert_eq!(tensor.dims(), own.dims(), "{name}");
        let (one, other) = (numbers(&tensor), own.to_f32().unwrap());
        let apart = one.iter().zip(&other).map(|(one, other)| (one - other).abs() / other.abs().max(1e-3));
        assert!(apart.fold(0.0, f32::max) < 1e-6, "{name}");
    }
}

/// Elements as f32, halves included.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    let of_f16 = |bits: u16| {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
        let size = if exponent == 0 {
            fraction * 2f32.powi(-14)
        } else {
            (1.0 + fraction) * 2f32.powi(exponent - 15)
        };
        if bits >> 15 == 1 { -size } else { size }
    };
    let halves = || tensor.bytes().chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match tensor.dtype() {
        DType::F16 => halves().map(of_f16).collect(),
        DType::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        _ => tensor.to_f32().unwrap(),
    }
}

/// Bytes of a stored file, changed.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> tempfile::NamedTempFile {
    let mut bytes = fs::read(stored("llama_q4_0.gguf")).unwrap();
    change(&mut bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

/// Opens every array of a file.
fn read_all(path: &Path) -> Result<(), String> {
    let arrays = Arrays::open(path).map_err(|error| error.to_string())?;
    for name in arrays.names() {
        arrays.get(name).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Where a text stands in a stored file.
fn place(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).unwrap()
}

#[test]
fn a_file_that_is_cut_off_is_an_error_wherever() {
    let whole = fs::metadata(stored("llama_q4_0.gguf")).unwrap().len() as usize;
    for length in (0..2000).step_by(7).chain([whole - 40, whole - 4000]) {
        let file = changed(|bytes| bytes.truncate(length));
        assert!(read_all(file.path()).is_err(), "{length} of {whole} bytes");
    }
    assert_eq!(read_all(changed(|_| ()).path()), Ok(()));
}

#[test]
fn counts_and_offsets_beyond_the_file_are_refused() {
    let fault = |change: &dyn Fn(&mut Vec<u8>)| read_all(changed(|bytes| change(bytes)).path()).unwrap_err();
    let huge = (u64::MAX / 2).to_le_bytes();
    assert!(fault(&|bytes| bytes[8..16].copy_from_slice(&huge)).contains("tensors are beyond its bytes"));
    assert!(fault(&|bytes| bytes[16..24].copy_from_slice(&huge)).contains("keys are beyond its bytes"));
    assert!(fault(&|bytes| bytes[4] = 9).contains("version 9 is not read"));
    assert!(fault(&|bytes| bytes[4..8].reverse()).contains("big-endian"));
    // A tensor: its name, a count of axes, the axes, a type, an offset.
    let behind = |bytes: &[u8]| place(bytes, b"output_norm.weight") + 18;
    let axis = |bytes: &mut Vec<u8>| {
        let at = behind(bytes) + 4;
        bytes[at..at + 8].copy_from_slice(&huge);
    };
    assert!(fault(&axis).contains("overflow"));
    let offset = |bytes: &mut Vec<u8>| {
        let at = behind(bytes) + 4 + 8 + 4;
        bytes[at..at + 8].copy_from_slice(&huge);
    };
    assert!(fault(&offset).contains("are beyond its"));
    let kind = |bytes: &mut Vec<u8>| {
        let at = behind(bytes) + 4 + 8;
        bytes[at] = 15;
    };
    assert!(fault(&kind).contains("element type 15 (Q8_K) is not read"));
}

#[test]
fn what_a_file_says_and_the_program_does_not_know_is_named() {
    let fault = |from: &[u8], to: &[u8]| {
        let file = changed(|bytes| {
            let at = place(bytes, from);
            bytes[at..at + to.len()].copy_from_slice(to);
        });
        let out = run(file.path(), &[]);
        assert!(!out.status.success());
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(fault(b"llama", b"mamba").contains("general.architecture: mamba is not supported"));
    let line = fault(b"llama.context_length", b"llama.expert___count");
    assert!(line.contains("llama.expert___count: this key is not known"), "{line}");
}

/// The stored file with one more key.
fn with_key(key: &str, kind: u32, value: [u8; 4]) -> tempfile::NamedTempFile {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (number, string) = (kind.to_le_bytes(), 8u32.to_le_bytes());
    let mut more = [&text(key)[..], &number, &value, &text("general.description"), &string].concat();
    // What follows stays aligned.
    let left = 32 - (more.len() + 8) % 32;
    more.extend(text(&"x".repeat(left)));
    changed(|bytes| {
        let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 2;
        bytes[16..24].copy_from_slice(&count.to_le_bytes());
        bytes.splice(24..24, more);
    })
}

#[test]
fn keys_that_change_nothing_are_told_by_their_numbers() {
    const WHOLE: u32 = 4;
    const REAL: u32 = 6;
    let planned = |key: &str, kind: u32, value: [u8; 4]| {
        let out = run(with_key(key, kind, value).path(), &["--init", "seed=1"]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let factor = "llama.rope.scaling.attn_factor";
    for (key, kind, neutral, other) in [
        (factor, REAL, 1.0f32.to_le_bytes(), 0.5f32.to_le_bytes()),
        ("llama.expert_used_count", WHOLE, 0u32.to_le_bytes(), 2u32.to_le_bytes()),
    ] {
        let (is_read, told) = planned(key, kind, neutral);
        assert!(is_read, "{key}: {told}");
        let (is_read, told) = planned(key, kind, other);
        assert!(!is_read && told.contains(&format!("{key}: this key is not known")), "{key}: {told}");
    }
    let (is_read, told) = planned("llama.rope.scaling.yarn_beta_fast", REAL, 16f32.to_le_bytes());
    assert!(is_read, "{told}");
}

#[test]
fn one_of_several_files_of_a_model_is_no_model() {
    let out = run(with_key("split.count", 4, [4, 0, 0, 0]).path(), &[]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && told.contains("one of 4 files that a model is split into"), "{told}");
}

#[test]
fn only_the_head_is_read_to_plan() {
    let file = changed(|bytes| {
        let length = bytes.len();
        bytes.truncate(length - 4000);
    });
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg(file.path())
        .args(["-d", "cpu", "--dim", "batch=1", "--dim", "sequence=4"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
