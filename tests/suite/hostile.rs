//! Small files that ask for much memory or time, in every way in which the program reads a file: what it
//! holds is bounded by a small multiple of the file and of what the model needs.
//!
//! The files of `../shared/corpus/hostile.tar.xz`, and some that are made here.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::write_npz;

use crate::cli::Folder;
use crate::shared;
use crate::sweep::Share;

/// Address space in KiB, seconds of one processor, and seconds in all, so that a wait is found as well.
const ADDRESSES: u64 = 8 << 20;
const PROCESSOR: u64 = 20;
const WALL: Duration = Duration::from_secs(120);

/// Resident memory, in KiB; and where there are a thousand physical devices, with a route for each pair, in the
/// plan and in the check of it.
const RESIDENT: u64 = 500_000;
const RESIDENT_ROUTES: u64 = 800_000;

/// How a run ended.
struct Ended {
    /// None where it was killed.
    code: Option<i32>,
    stderr: String,
    /// The most memory that was resident, in KiB.
    peak: u64,
}

/// Runs the program in a folder, confined.
fn confined(folder: &Folder, args: &[&str]) -> Ended {
    let said = folder.path("stderr");
    let limits = format!("ulimit -v {ADDRESSES} && ulimit -t {PROCESSOR} && exec \"$0\" \"$@\"");
    let mut child = Command::new("sh")
        .args(["-c", &limits, env!("CARGO_BIN_EXE_partition")])
        .args(args)
        .current_dir(folder.path(""))
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&said).expect("writable"))
        .spawn()
        .expect("there is a shell");
    let (start, mut peak) = (Instant::now(), 0);
    let status = loop {
        peak = peak.max(resident(child.id()));
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if start.elapsed() > WALL => {
                child.kill().expect("a child");
                child.wait().expect("a child");
                panic!("{args:?} does not end");
            }
            None => std::thread::sleep(Duration::from_millis(3)),
        }
    };
    let stderr = String::from_utf8_lossy(&fs::read(&said).expect("there")).into_owned();
    fs::remove_file(&said).expect("there");
    Ended { code: status.code(), stderr, peak }
}

/// The high-water mark of a process's memory; 0 where it is gone, or still a copy of this one.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let name = status.lines().find_map(|line| line.strip_prefix("Name:")).unwrap_or_default().trim();
    if !["sh", "dash", "bash", "partition"].contains(&name) {
        return 0;
    }
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// A run that ends by itself, in little memory: with a result, or with an error of one line.
fn ends(folder: &Folder, args: &[&str]) -> Ended {
    ends_within(folder, args, RESIDENT)
}

/// As [`ends`], in so many KiB.
fn ends_within(folder: &Folder, args: &[&str], most: u64) -> Ended {
    let ended = confined(folder, args);
    let Ended { code, stderr, peak } = &ended;
    println!("{peak:>7} KiB, exit {code:?}: {args:?}: {}", stderr.lines().next().unwrap_or_default());
    assert!(matches!(code, Some(0..=3)), "{args:?}: {code:?}: {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("allocation"), "{args:?}: {stderr}");
    assert!(*peak < most, "{args:?}: {peak} KiB");
    if *code != Some(0) {
        let error = stderr.lines().find(|line| !line.starts_with("note: ")).unwrap_or_default();
        assert!(error.starts_with("error: "), "{args:?}: {stderr}");
    }
    ended
}

/// As [`ends`], with exit code 1 or 2 and all of `parts` in the error.
fn refused(folder: &Folder, args: &[&str], parts: &[&str]) {
    let Ended { code, stderr, .. } = ends(folder, args);
    assert!(matches!(code, Some(1 | 2)), "{args:?}: {code:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: {part} is missing in {stderr}");
    }
}

/// As [`ends`], with exit code 0.
fn done(folder: &Folder, args: &[&str]) {
    let Ended { code, stderr, .. } = ends(folder, args);
    assert_eq!(code, Some(0), "{args:?}: {stderr}");
}

/// `y = x + w`, and `y = x w` with a batch.
const ADD: &str = r#"{"partition_model":1,"name":"t","inputs":[{"name":"x","type":"f32[4]"}],
    "params":[{"name":"w","type":"f32[4]"}],"nodes":[{"name":"y","op":"add","inputs":["x","w"]}],"outputs":["y"]}"#;
const PRODUCT: &str = r#"{"partition_model":1,"name":"t","inputs":[{"name":"x","type":"f32[batch,4]"}],
    "params":[{"name":"w","type":"f32[4,2]","init":"glorot_uniform"}],
    "nodes":[{"name":"y","op":"matmul","inputs":["x","w"]}],"outputs":["y"]}"#;

/// A folder with models and data that the ways below name.
fn folder() -> Folder {
    let folder = Folder::new();
    fs::write(folder.path("add.json"), ADD).expect("writable");
    fs::write(folder.path("product.json"), PRODUCT).expect("writable");
    let array = |rows: u64, columns: u64| {
        let values: Vec<f32> = (0..rows * columns).map(|value| value as f32 / 100.0).collect();
        Tensor::from_f32(vec![rows, columns], &values).expect("of these sizes")
    };
    let records = [("x".to_owned(), array(16, 4)), ("y".to_owned(), array(16, 2))];
    write_npz(&folder.path("records.npz"), &records).expect("writable");
    folder
}

/// The ways in which the program reads a file.
const WAYS: &[&str] = &[
    "FILE --devices cpu -o out.json",
    "check FILE",
    "run FILE --init seed=1",
    "run add.json --weights FILE",
    "run add.json --init seed=1 --inputs FILE",
    "train FILE --data records.npz --loss mse --batch 4",
    "train product.json --data FILE --loss mse --batch 4",
    "train product.json --data records.npz --loss mse --batch 4 --weights FILE",
    "add.json --devices FILE",
];

fn every_way(folder: &Folder, file: &str, mut run: impl FnMut(&Folder, &[&str])) {
    for way in WAYS {
        let args: Vec<&str> = way.split(' ').map(|word| if word == "FILE" { file } else { word }).collect();
        run(folder, &args);
    }
}

/// Files of the corpus that are sound, at least in some way.
const SOUND: &[&str] = &[
    "attrbomb", "b.json", "const", "d.npz", "m24", "m4", "nasty", "ok", "plan", "repro", "small", "tn",
    "x.npz",
];

fn the_hostile_files_of_the_corpus(share: Share) {
    let Some(archive) = shared::file("corpus/hostile.tar.xz") else { return };
    let folder = folder();
    let unpacked = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(folder.path("")).status();
    assert!(unpacked.expect("there is tar").success());
    let entries = fs::read_dir(folder.path("hostile")).expect("unpacked");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().into_string().expect("text")).collect();
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    for name in share.among(&names) {
        let file = format!("hostile/{name}");
        let sound = SOUND.iter().any(|sound| name.starts_with(sound)) || name.ends_with(".onnx");
        every_way(&folder, &file, |folder, args| {
            let code = ends(folder, args).code;
            assert!(sound || matches!(code, Some(1 | 2)), "{args:?}: {code:?}");
        });
    }
}

#[test]
fn one_number_stands_for_many() {
    let folder = folder();
    let model = |elements: u64| {
        let constant = format!(r#"{{"name":"c","type":"f32[{elements}]","values":1.5}}"#);
        format!(
            r#"{{"partition_model":1,"name":"t","inputs":[{{"name":"x","type":"f32[4]"}}],"constants":[{constant}],
            "nodes":[{{"name":"s","op":"slice","inputs":["c"],"starts":[0],"sizes":[4]}},
            {{"name":"y","op":"add","inputs":["x","s"]}}],"outputs":["y"]}}"#
        )
    };
    let inputs =
        [("x".to_owned(), Tensor::from_f32(vec![4], &[0.0, 1.0, 2.0, 3.0]).expect("of these sizes"))];
    write_npz(&folder.path("in.npz"), &inputs).expect("writable");
    let expected =
        [("y".to_owned(), Tensor::from_f32(vec![4], &[1.5, 2.5, 3.5, 4.5]).expect("of these sizes"))];
    write_npz(&folder.path("out.npz"), &expected).expect("writable");
    for elements in [4, 1 << 16, (1 << 16) + 1, 1 << 28, 1 << 40] {
        fs::write(folder.path("model.json"), model(elements)).expect("writable");
        done(&folder, &["run", "model.json", "--inputs", "in.npz", "--expect", "out.npz"]);
    }
}

/// Pipes and devices: nothing waits for a writer, or reads what never ends.
#[test]
fn only_regular_files_are_opened() {
    let folder = folder();
    let made = Command::new("mkfifo").arg(folder.path("pipe")).status().expect("there is mkfifo");
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero")).expect("writable");
    // A pipe as MODEL waits for its writer, as the shell's `<(command)` wants it; none of these do.
    let ways = [
        "run add.json --weights FILE",
        "run add.json --init seed=1 --inputs FILE",
        "run add.json --init seed=1 --expect FILE",
        "train product.json --data FILE:format=csv --loss mse --batch 4",
        "train product.json --data FILE:format=npz --loss mse --batch 4",
        "train product.json --data records.npz --loss mse --batch 4 --weights FILE",
        "add.json --devices cpu --score FILE",
        "add.json --devices cpu --from FILE",
        "diff FILE FILE",
    ];
    for (file, what) in [("pipe", "is a pipe"), ("zero", "is a device")] {
        for way in ways {
            let way = way.replace("FILE", file);
            refused(&folder, &way.split(' ').collect::<Vec<_>>(), &[file, what]);
        }
        let external = ADD.replace(
            "\"f32[4]\"}],\"nodes\"",
            &format!("\"f32[4]\",\"data\":{{\"file\":\"{file}\"}}}}],\"nodes\""),
        );
        assert_ne!(external, ADD);
        fs::write(folder.path("external.json"), external).expect("writable");
        // The link is refused for where it leads.
        let reason = if file == "pipe" { what } else { "is by a link outside of" };
        refused(&folder, &["run", "external.json"], &[file, reason]);
        done(&folder, &["add.json", "--devices", "cpu", "-o", "plan.json"]);
        let plan = fs::read_to_string(folder.path("plan.json")).expect("there");
        let path = folder.path("add.json").display().to_string();
        let told = if plan.contains(&path) { path } else { "add.json".to_owned() };
        fs::write(folder.path("plan.json"), plan.replace(&told, file)).expect("writable");
        refused(&folder, &["run", "plan.json", "--init", "seed=1"], &[what]);
    }
    // MODEL from a pipe that somebody writes.
    let pipe = folder.path("pipe");
    let writer = std::thread::spawn(move || fs::write(pipe, ADD));
    done(&folder, &["check", "pipe"]);
    writer.join().expect("no panic").expect("writable");
    // One that never ends is read as far as it takes to see that it is no model.
    let pipe = folder.path("pipe");
    let writer = std::thread::spawn(move || {
        let mut out = File::options().write(true).open(pipe).expect("writable");
        while out.write_all(b"yes\n").is_ok() {}
    });
    refused(&folder, &["check", "pipe"], &["no model of a known format"]);
    writer.join().expect("no panic");
}

long! {
    compressed_files_that_hold_far_more;
}

fn compressed_files_that_hold_far_more() {
    let folder = folder();
    for (name, start) in [("zeros", &b"\0"[..]), ("json", b"{\"a\":\""), ("spaces", b" ")] {
        let file = File::create(folder.path("bomb.gz")).expect("writable");
        let mut out = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        out.write_all(start).expect("writable");
        let piece = vec![if name == "zeros" { 0 } else { b' ' }; 1 << 20];
        (0..600).for_each(|_| out.write_all(&piece).expect("writable"));
        out.finish().expect("writable");
        every_way(&folder, "bomb.gz", |folder, args| refused(folder, args, &[]));
    }
}

/// The file holds one array; its directory names it ten thousand times.
#[test]
fn entries_of_an_archive_that_overlap() {
    let folder = folder();
    let zeros = Tensor::new(DType::U8, vec![1 << 20], vec![0; 1 << 20]).expect("of these sizes");
    write_npz(&folder.path("one.npz"), &[("w0000".to_owned(), zeros)]).expect("writable");
    let bytes = fs::read(folder.path("one.npz")).expect("there");
    let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").expect("a directory");
    let end = bytes.windows(4).position(|window| window == b"PK\x05\x06").expect("an end");
    let mut many = bytes[..directory].to_vec();
    for number in 0..10_000 {
        let entry = &bytes[directory..end];
        let name = entry.windows(5).position(|window| window == b"w0000").expect("its name");
        many.extend(&entry[..name]);
        many.extend(format!("w{number:04}").bytes());
        many.extend(&entry[name + 5..]);
    }
    let size = (many.len() - directory) as u32;
    let mut tail = bytes[end..].to_vec();
    tail[8..10].copy_from_slice(&10_000u16.to_le_bytes());
    tail[10..12].copy_from_slice(&10_000u16.to_le_bytes());
    tail[12..16].copy_from_slice(&size.to_le_bytes());
    many.extend(tail);
    fs::write(folder.path("overlap.npz"), &many).expect("writable");
    for args in [
        &["run", "add.json", "--weights", "overlap.npz"][..],
        &["run", "add.json", "--init", "seed=1", "--inputs", "overlap.npz"],
    ] {
        refused(&folder, args, &["overlap.npz", "the entries of the zip archive overlap"]);
    }
    checkpoint_with(&folder, &many);
}

/// A checkpoint's arrays are safetensors, whatever else has the right checksums.
fn checkpoint_with(folder: &Folder, weights: &[u8]) {
    let train = ["train", "product.json", "--data", "records.npz", "--loss", "mse", "--batch", "4"];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    done(folder, &with(&["--checkpoints", "kept"]));
    let step = fs::read_dir(folder.path("kept")).expect("there").map(|entry| entry.expect("readable").path());
    let step = step.filter(|path| path.is_dir()).max().expect("a checkpoint");
    let before = fs::read(step.join("weights.safetensors")).expect("there");
    fs::write(step.join("weights.safetensors"), weights).expect("writable");
    let sum = |bytes: &[u8]| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes));
    let manifest = fs::read_to_string(step.join("manifest.json")).expect("there");
    let manifest = manifest
        .trim_end()
        .replace(&sum(&before), &sum(weights))
        .replace(&format!("\"bytes\": {},", before.len()), &format!("\"bytes\": {},", weights.len()));
    let (head, _) = manifest.rsplit_once("\"digest\": \"").expect("a digest");
    let digest = sum(format!("{head}\"digest\": \"\"\n}}").as_bytes());
    let manifest = format!("{head}\"digest\": \"{digest}\"\n}}\n");
    fs::write(step.join("manifest.json"), manifest).expect("writable");
    refused(
        folder,
        &with(&["--checkpoints", "kept", "--resume", "--epochs", "2"]),
        &["weights.safetensors", "header"],
    );
}

/// What HDF5 files are made of, without checksums, which the reader does not compare.
#[derive(Default)]
struct Hdf5(Vec<u8>);

impl Hdf5 {
    fn new() -> Self {
        Self(vec![0; 48])
    }

    /// Adds an object's header and returns its address.
    fn object(&mut self, messages: &[(u8, Vec<u8>)]) -> u64 {
        let at = self.0.len() as u64;
        let mut body = Vec::new();
        for (kind, data) in messages {
            body.push(*kind);
            body.extend((data.len() as u16).to_le_bytes());
            body.push(0);
            body.extend(data);
        }
        self.0.extend(b"OHDR\x02\x02");
        self.0.extend((body.len() as u32).to_le_bytes());
        self.0.extend(body);
        self.0.extend([0; 4]);
        at
    }

    fn link(name: &str, to: u64) -> (u8, Vec<u8>) {
        let mut data = vec![1, 1];
        data.extend((name.len() as u16).to_le_bytes());
        data.extend(name.as_bytes());
        data.extend(to.to_le_bytes());
        (0x06, data)
    }

    /// One number, of f32.
    fn dataset(&mut self) -> u64 {
        let space = vec![2, 0, 0, 0];
        let ty = [&[0x11, 0x20, 31, 0, 4, 0, 0, 0][..], &[0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]].concat();
        let layout = vec![3, 0, 4, 0, 0, 0, 0, 0];
        self.object(&[(0x01, space), (0x03, ty), (0x08, layout)])
    }

    /// The file, with this root.
    fn finish(mut self, root: u64) -> Vec<u8> {
        let length = self.0.len() as u64;
        let mut start = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
        for address in [0, u64::MAX, length, root] {
            start.extend(address.to_le_bytes());
        }
        start.extend([0; 4]);
        self.0[..48].copy_from_slice(&start);
        self.0
    }
}

#[test]
fn hdf5_files_whose_structures_are_shared() {
    let folder = folder();
    let mut sound = Hdf5::new();
    let dataset = sound.dataset();
    let root = sound.object(&[Hdf5::link("a", dataset), Hdf5::link("b", dataset)]);
    fs::write(folder.path("sound.h5"), sound.finish(root)).expect("writable");
    let arrays =
        partition::unstable::load::weights::Arrays::open(&folder.path("sound.h5")).expect("a sound file");
    assert_eq!(arrays.names(), ["a", "b"]);

    // Sixty groups in one another with long names, and in each many links to one dataset: paths of 30 kB.
    let mut paths = Hdf5::new();
    let mut inner = paths.dataset();
    let dataset = inner;
    for _ in 0..60 {
        let links = (0..300).map(|number| Hdf5::link(&number.to_string(), dataset));
        let links: Vec<_> = links.chain([Hdf5::link(&"n".repeat(1000), inner)]).collect();
        inner = paths.object(&links);
    }
    fs::write(folder.path("paths.h5"), paths.finish(inner)).expect("writable");

    // Many groups whose headers go on in one large block.
    let mut headers = Hdf5::new();
    let at = headers.0.len() as u64;
    headers.0.extend(b"OCHK");
    headers.0.extend(std::iter::repeat_n(0, 1 << 20));
    let goes_on = [at.to_le_bytes(), ((1u64 << 20) + 4).to_le_bytes()].concat();
    let groups: Vec<u64> = (0..3000).map(|_| headers.object(&[(0x10, goes_on.clone())])).collect();
    let links: Vec<_> =
        groups.iter().enumerate().map(|(number, &group)| Hdf5::link(&number.to_string(), group)).collect();
    let root = headers.object(&links);
    fs::write(folder.path("headers.h5"), headers.finish(root)).expect("writable");

    for file in ["paths.h5", "headers.h5"] {
        refused(&folder, &["run", "add.json", "--weights", file], &[file, "its structures overlap"]);
    }
}

/// Numbers in a file that stand for sizes.
#[test]
fn headers_that_promise_more_than_there_is() {
    let folder = folder();
    let npy = |shape: &str| {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.bytes());
        bytes
    };
    for shape in ["(99999999999,)", "(4294967296, 4294967296)", "(1, 0, 99999999999)", "(-1,)"] {
        let file = File::create(folder.path("sizes.npz")).expect("writable");
        let mut out = zip::ZipWriter::new(file);
        for name in ["x", "w", "y"] {
            out.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::DEFAULT).expect("writable");
            out.write_all(&npy(shape)).expect("writable");
        }
        out.finish().expect("writable");
        every_way(&folder, "sizes.npz", |folder, args| refused(folder, args, &[]));
    }
    let onnx: &[&[u8]] = &[
        b"\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x08\x08\x3a\xff\xff\xff\xff\x0f\x0a\xff\xff\xff\xff\x07",
        &[&b"\x08\x08\x3a\x80\x80\x80\x01"[..], &[0x2a, 0].repeat(1 << 20)].concat(),
    ];
    for bytes in onnx {
        fs::write(folder.path("lengths.onnx"), bytes).expect("writable");
        every_way(&folder, "lengths.onnx", |folder, args| refused(folder, args, &[]));
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested =
            format!("{{\"partition_model\":1,\"name\":{}{}}}", open.repeat(1 << 20), close.repeat(1 << 20));
        fs::write(folder.path("nested.json"), nested).expect("writable");
        every_way(&folder, "nested.json", |folder, args| refused(folder, args, &[]));
    }
    for number in ["1e999", "99999999999999999999999999", "-1", "18446744073709551615", "0.5"] {
        let model = ADD.replace("f32[4]", &format!("f32[{number}]"));
        fs::write(folder.path("number.json"), model).expect("writable");
        every_way(&folder, "number.json", |folder, args| refused(folder, args, &[]));
    }
}

sweep! {
    many_devices_for_one_node: one of 40;
    the_hostile_files_of_the_corpus: one of 3;
}

/// Many equal devices: tables are as long as there are devices, and limits of time hold.
fn many_devices_for_one_node(share: Share) {
    let folder = folder();
    let done = |args: &[&str]| {
        let Ended { code, stderr, .. } = ends_within(&folder, args, RESIDENT_ROUTES);
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
    };
    let objectives = ["transfer", "latency", "throughput"];
    let each = ["1024xcpu[8x1GB]", "1024xcpu[64x1MB]", "64xcpu[1024x1MB]", "1024xcuda[64x1MB]"]
        .into_iter()
        .flat_map(|devices| objectives.map(|objective| [devices, objective]));
    for [devices, objective] in share.among(each) {
        done(&["add.json", "--devices", devices, "--objective", objective, "-o", "plan.json"]);
        done(&["check", "plan.json"]);
    }
    let shown = folder.ok(&["add.json", "--devices", "1024xcpu[64x1MB]"]);
    assert!(shown.contains("cpu0.1 .. cpu1023.63  65535 alike"), "{shown}");
    assert!(shown.lines().count() < 20, "{shown}");
}
