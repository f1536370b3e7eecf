//! TensorBoard event files: scalars over steps, and the plan as a graph coloured by device.
//!
//! An event file is a TFRecord file of `Event` messages (TensorFlow's `event.proto`, `summary.proto`,
//! `graph.proto`); the few fields that are needed are written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::data::masked_crc32c;
use crate::error::{Error, Result};
use crate::escape::escaped;
use crate::plan::{Action, Launch, Plan};

/// An event file that is being written. Each event reaches the system as it is written, so that
/// TensorBoard shows a run while it goes on.
#[derive(Debug)]
pub struct Events {
    file: File,
    path: PathBuf,
}

impl Events {
    /// Makes a new event file in a folder, which is made where it is not there. Files of earlier runs
    /// stay, as TensorBoard expects: a run that is resumed goes on in a file of its own.
    ///
    /// Error: it cannot be made.
    pub fn create(folder: &Path) -> Result<Self> {
        let io = |error| Error::io(folder.display().to_string(), error);
        fs::create_dir_all(folder).map_err(io)?;
        let seconds = now() as u64;
        let pid = std::process::id();
        for number in 0..10_000u32 {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.partition.{pid}.{number}"));
            match File::create_new(&path) {
                Ok(file) => {
                    let mut events = Self { file, path };
                    events.write(0, &bytes_field(3, b"brain.Event:2"))?;
                    return Ok(events);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io(error)),
            }
        }
        Err(io(std::io::ErrorKind::AlreadyExists.into()))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes values at a step; tags with `/` are shown in groups. Error: the file cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut one = bytes_field(1, escaped(tag).as_bytes());
            one.extend(fixed32_field(2, (*value as f32).to_bits()));
            summary.extend(bytes_field(1, &one));
        }
        self.write(step, &bytes_field(5, &summary))
    }

    /// Writes what a plan launches as a graph: each launch with its device, by which TensorBoard colours
    /// it, and what it reads. Error: the file cannot be written.
    pub fn graph(&mut self, plan: &Plan) -> Result<()> {
        self.write(0, &bytes_field(4, &graph_def(plan)))
    }

    fn write(&mut self, step: u64, what: &[u8]) -> Result<()> {
        let mut event = vec![1 << 3 | 1];
        event.extend(now().to_le_bytes());
        event.extend(varint_field(2, step));
        event.extend(what);
        let length = (event.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked_crc32c(&length).to_le_bytes());
        record.extend(&event);
        record.extend(masked_crc32c(&event).to_le_bytes());
        let written = self.file.write_all(&record);
        written.map_err(|error| Error::io(self.path.display().to_string(), error))
    }
}

/// Seconds since 1970: what TensorBoard orders runs by.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// A `GraphDef` of the launches of a plan. O(steps + operands).
fn graph_def(plan: &Plan) -> Vec<u8> {
    let heroes: BTreeMap<&str, &str> =
        plan.kernels.iter().map(|kernel| (kernel.id.as_str(), kernel.hero.as_str())).collect();
    let names = names(plan);
    let writers = writers(plan);
    let ids: BTreeMap<u64, usize> = plan.steps.iter().enumerate().map(|(at, step)| (step.id, at)).collect();
    let mut out = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        let Action::Launch(launch) = &step.action else { continue };
        let hero = launch.kernel.as_deref().and_then(|kernel| heroes.get(kernel)).copied();
        let mut node = bytes_field(1, names[number].as_bytes());
        node.extend(bytes_field(2, hero.unwrap_or("launch").as_bytes()));
        for source in sources(plan, number, launch, &writers, &ids) {
            node.extend(bytes_field(3, names[source].as_bytes()));
        }
        node.extend(bytes_field(4, escaped(&step.device).as_bytes()));
        let value = bytes_field(2, escaped(&launch.nodes.join(", ")).as_bytes());
        let attribute = [bytes_field(1, b"computes"), bytes_field(2, &value)].concat();
        node.extend(bytes_field(5, &attribute));
        out.extend(bytes_field(1, &node));
    }
    // Any producer that TensorBoard takes.
    out.extend(bytes_field(4, &varint_field(1, 1)));
    out
}

/// A unique name for each launch: that of the last node it computes.
fn names(plan: &Plan) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let name = |step: &crate::plan::Step| {
        let Action::Launch(launch) = &step.action else { return String::new() };
        let last = launch.nodes.last().map_or("launch", String::as_str);
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-/>".contains(c);
        let mut name: String = last.chars().map(|c| if fits(c) { c } else { '_' }).collect();
        name = name.trim_matches('/').to_owned();
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            name.insert(0, 'n');
        }
        if let Some(microbatch) = launch.microbatch {
            name += &format!("_m{microbatch}");
        }
        if !taken.insert(name.clone()) {
            name += &format!("_{}", step.id);
            taken.insert(name.clone());
        }
        name
    };
    plan.steps.iter().map(name).collect()
}

/// The launch that made what each buffer holds, through copies and views, at its last write.
fn writers(plan: &Plan) -> BTreeMap<&str, Vec<usize>> {
    let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, step) in plan.steps.iter().enumerate() {
        match &step.action {
            Action::Launch(launch) => {
                launch.writes.iter().for_each(|buffer| writers.entry(buffer).or_default().push(number));
            }
            Action::Copy(copy) => {
                let made = writers.get(copy.from.as_str()).and_then(|made| made.last()).copied();
                writers.entry(&copy.to).or_default().extend(made);
            }
        }
    }
    writers
}

/// The launches whose results a launch reads, each once; in a plan of a cost graph, those that it
/// waits for.
fn sources(
    plan: &Plan,
    number: usize,
    launch: &Launch,
    writers: &BTreeMap<&str, Vec<usize>>,
    ids: &BTreeMap<u64, usize>,
) -> Vec<usize> {
    let mut sources = BTreeSet::new();
    if plan.buffers.is_empty() {
        let waits = plan.steps[number].after.iter().filter_map(|id| ids.get(id).copied());
        sources.extend(waits.filter(|&at| matches!(plan.steps[at].action, Action::Launch(_))));
    }
    for buffer in &launch.reads {
        let made = writers.get(buffer.as_str());
        sources.extend(made.and_then(|made| made.iter().rev().find(|&&made| made < number)).copied());
    }
    sources.into_iter().collect()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn varint_field(number: u8, value: u64) -> Vec<u8> {
    [vec![number << 3], varint(value)].concat()
}

fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn fixed32_field(number: u8, bits: u32) -> Vec<u8> {
    [vec![number << 3 | 5], bits.to_le_bytes().to_vec()].concat()
}
