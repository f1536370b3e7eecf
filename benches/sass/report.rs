//! The table that `benches/results/sass.md` is, and what is over its budget.

use std::fmt::Write;

use partition::unstable::ir::Op;

use crate::cases::{Case, Must};
use crate::machine::{GPUS, Predicted};
use crate::warp::Accesses;
use crate::{ARCHITECTURES, Read, Swept, is_early, spills};

/// Models whose kernels are swept, and those beside them with `--all`.
pub(crate) const MODELS: [&str; 4] =
    ["onnx/s_bert.onnx", "onnx/s_llama.onnx", "onnx/s_resnet_hf.onnx", "onnx/s_sd_unet.onnx"];
pub(crate) const LARGE: &[&str] = &[
    "onnx/s_autoencoder_convt.onnx",
    "onnx/s_gpt2.onnx",
    "onnx/s_lstm.onnx",
    "onnx/s_mixtral.onnx",
    "onnx/s_mobilenet_v2.onnx",
    "onnx/s_t5_encoder.onnx",
    "onnx/s_vit.onnx",
    "hf/gpt2.config.json",
    "hf/bert_base.config.json",
];

/// The width by which most bytes go.
fn width(accesses: &Accesses) -> u32 {
    let [narrow, eight, sixteen] = accesses.widths;
    match (narrow, eight, sixteen) {
        (n, e, s) if s >= n && s >= e => 16,
        (n, e, _) if e >= n => 8,
        _ => (accesses.bytes / accesses.requests.max(1) / 32).clamp(1, 4) as u32,
    }
}

fn largest(read: &Read) -> f64 {
    read.kernel.args.iter().map(|arg| arg.elements).max().unwrap_or(1) as f64
}

/// Instructions of all threads for each element of the largest operand.
fn each(read: &Read) -> f64 {
    let warps = f64::from(read.launched.threads.div_ceil(32)) * f64::from(read.launched.blocks);
    read.run.instructions as f64 * warps * 32.0 / largest(read)
}

fn ratio(accesses: &Accesses) -> f64 {
    if accesses.least == 0 { 1.0 } else { accesses.units as f64 / accesses.least as f64 }
}

fn per_tensor(read: &Read) -> Option<f64> {
    let count = read.run.units[crate::warp::Unit::Tensor as usize];
    (count > 0).then(|| read.run.instructions as f64 / count as f64)
}

fn limit(predicted: &Predicted) -> &'static str {
    let all = [
        ("issue", predicted.issue),
        (predicted.unit.0, predicted.unit.1),
        ("memory", predicted.memory),
        ("latency", predicted.latency),
    ];
    all.into_iter().max_by(|x, y| x.1.total_cmp(&y.1)).map_or("", |one| one.0)
}

/// A case's predicted time, the least that it takes, and what a copy of its bytes takes where it has no products.
struct Times {
    predicted: f64,
    roofline: f64,
    copied: Option<f64>,
}

/// The kernels of a case, and their times by GPU.
fn whole<'a>(case: &Case, number: usize, reads: &'a [Read]) -> (Vec<&'a Read>, Vec<Times>) {
    let own: Vec<&Read> = reads.iter().filter(|read| read.case == number).collect();
    let times = (0..GPUS.len())
        .map(|gpu| {
            let predicted: f64 = own.iter().map(|read| read.predicted[gpu].total).sum();
            let bytes = boundary(case) as f64;
            let operations: f64 = own.iter().map(|read| read.launched.operations).sum();
            let tensor = own.iter().any(|read| read.launched.is_tensor);
            let peak = if tensor { GPUS[gpu].halves } else { GPUS[gpu].floats };
            let roofline = (bytes / GPUS[gpu].bandwidth).max(operations / peak) * 1e6;
            let copied = (operations == 0.0).then(|| GPUS[gpu].copied(bytes));
            Times { predicted, roofline, copied }
        })
        .collect();
    (own, times)
}

/// Bytes of what a case reads and makes. Of a table that is gathered from, no more than is made.
fn boundary(case: &Case) -> u64 {
    let size = |value| case.graph.ty(value).bytes().map_or(0, |bytes| bytes.get());
    let made: u64 = case.graph.outputs().iter().map(|(_, value)| size(*value)).sum();
    let inputs = case.graph.inputs().iter().map(|(_, value)| size(*value));
    if case.is_step {
        // Parameters and caches.
        let params = case.graph.node_ids().filter(|&node| matches!(case.graph.node(node).op, Op::Param(_)));
        let params = params.map(|node| size(case.graph.node(node).first_result));
        return made + params.sum::<u64>() + inputs.sum::<u64>();
    }
    let read: u64 = if case.name.starts_with("gather") {
        inputs.map(|bytes| bytes.min(made)).sum()
    } else {
        inputs.sum()
    };
    made + read * u64::from(case.must.reads.unwrap_or(1))
}

/// All kernels of a step in one line.
fn of_step(case: &Case, own: &[&Read], times: &[Times]) -> String {
    let kernels = own.len();
    let few = own.iter().filter(|read| read.launched.blocks < 132).count();
    format!(
        "| {} ({kernels} kernels, {few} of fewer than 132 blocks) | | | | | | | | | | {} | {} |",
        case.name,
        shares(&times[0]),
        shares(&times[1])
    )
}

/// What a step's kernels take on an H100, those of equal code in one line, in the order of the first of each.
fn of_kernels<'a>(out: &mut String, case: &Case, own: impl Iterator<Item = &'a Read>) {
    let mut kinds: Vec<(&Read, usize)> = Vec::new();
    for read in own {
        match kinds.iter_mut().find(|(known, _)| known.kernel.text == read.kernel.text) {
            Some((_, count)) => *count += 1,
            None => kinds.push((read, 1)),
        }
    }
    let _ = writeln!(
        out,
        "\n## {}\n\nPredicted on an H100.\n\n| kernel | how many | registers | blocks x threads | bound by | us each | us all |\n| --- | ---: | ---: | ---: | --- | ---: | ---: |",
        case.name
    );
    for (read, count) in kinds {
        let (launched, predicted) = (&read.launched, &read.predicted[0]);
        let _ = writeln!(
            out,
            "| {} | {count} | {} | {} x {} | {} | {:.2} | {:.1} |",
            read.kernel.name.rsplit_once('_').map_or(read.kernel.name.as_str(), |(name, _)| name),
            launched.registers,
            launched.blocks,
            launched.threads,
            limit(predicted),
            predicted.total,
            predicted.total * count as f64,
        );
    }
}

/// The predicted time, and its shares of the least and of a copy.
fn shares(times: &Times) -> String {
    let of = |least: f64| format!("{:.2}", least / times.predicted);
    let copied = times.copied.map_or("-".to_owned(), of);
    format!("{:.1} | {} | {copied}", times.predicted, of(times.roofline))
}

pub(crate) fn table(cases: &[Case], reads: &[Read], corpus: &[Swept], version: &(i32, i32)) -> String {
    let mut out = String::from(HEAD);
    let _ = writeln!(out, "NVRTC {}.{}; columns of code are of sm_90.\n", version.0, version.1);
    out.push_str("| case | registers | blocks x threads | waves | load | store | instructions an element | per MMA | bank passes | bound by | predicted H100, us | of the roofline | of a copy | predicted H200, us | of the roofline | of a copy |\n");
    out.push_str(
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (number, case) in cases.iter().enumerate() {
        let (own, times) = whole(case, number, reads);
        if case.is_step {
            let _ = writeln!(out, "{}", of_step(case, &own, &times));
            continue;
        }
        for (part, read) in own.iter().enumerate() {
            let first = part == 0;
            let registers: Vec<String> = read.codes.iter().map(|code| code.registers.to_string()).collect();
            let name = if own.len() == 1 {
                case.name.clone()
            } else {
                format!("{} ({} of {})", case.name, part + 1, own.len())
            };
            let dash = |count: u64, text: String| if count == 0 { "-".to_owned() } else { text };
            let shown = |gpu: usize| match first {
                true => shares(&times[gpu]),
                false => format!("({:.1}) | | ", read.predicted[gpu].total),
            };
            let marks = if read.run.cut { " (not to its end)" } else { "" };
            let _ = writeln!(
                out,
                "| {name}{marks} | {} | {} x {} | {:.1} | {} | {} | {:.1} | {} | {} | {} | {} | {} |",
                registers.join(", "),
                read.launched.blocks,
                read.launched.threads,
                read.predicted[0].waves,
                dash(read.run.loads.bytes, width(&read.run.loads).to_string()),
                dash(read.run.stores.bytes, width(&read.run.stores).to_string()),
                each(read),
                per_tensor(read).map_or("-".to_owned(), |count| format!("{count:.1}")),
                dash(read.run.shared.bytes, format!("{:.2}", ratio(&read.run.shared))),
                limit(&read.predicted[0]),
                shown(0),
                shown(1),
            );
        }
    }
    for (number, case) in cases.iter().enumerate().filter(|(_, case)| case.is_step) {
        of_kernels(&mut out, case, reads.iter().filter(|read| read.case == number));
    }
    if !corpus.is_empty() {
        out.push_str("\n## Models of the corpus\n\nBoth architectures; a kernel that spills keeps registers in memory.\n\n| model | kernels | most registers | spill |\n| --- | ---: | ---: | ---: |\n");
        for one in corpus {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                one.name,
                one.kernels,
                one.registers,
                one.spills.len()
            );
        }
    }
    out
}

const HEAD: &str = "# What the machine code of kernels says

Nothing here was measured: no GPU was there. `scripts/sass_check` writes this file; `benches/sass/kernels.txt` holds the graphs and what each
must hold to, and `benches/sass/machine.rs` the model of the GPU with where its numbers are from. One warp of each kernel is followed through
its code, with addresses and counters but without data. A case of several kernels has the time of all in its first row, and that of each other
one in brackets; \"of the roofline\" is the least time that its inputs, outputs and operations take by the data sheet, over the predicted one,
\"of a copy\" the same of a copy of as many bytes at the measured rate, its launch included. Load and store: bytes of the accesses by which
most goes. Bank passes: of shared memory, for each that must be. Products of whole steps are by kernels of our own here, though the library computes what it can.

";

/// What is over its budget, in words.
pub(crate) fn faults(cases: &[Case], reads: &[Read], corpus: &[Swept]) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let (own, times) = whole(case, number, reads);
        for read in &own {
            if read.run.cut {
                faults.push(format!("{}: {} does not come to an end", case.name, read.kernel.name));
            }
            for (code, architecture) in read.codes.iter().zip(ARCHITECTURES) {
                if spills(code) && code.stack > case.must.spilled {
                    faults.push(format!(
                        "{}: {} spills on {architecture}, {} bytes a thread",
                        case.name, read.kernel.name, code.stack
                    ));
                }
                if is_early(code, architecture) {
                    faults.push(early(&case.name, &read.kernel.name));
                }
            }
        }
        faults.extend(
            over(&case.must, &own, &times).into_iter().map(|fault| format!("{}: {fault}", case.name)),
        );
    }
    for one in corpus {
        faults.extend(one.spills.iter().map(|kernel| format!("{}: {kernel} spills", one.name)));
        faults.extend(one.early.iter().map(|kernel| early(&one.name, kernel)));
    }
    faults
}

fn early(of: &str, kernel: &str) -> String {
    format!("{of}: {kernel} reads or writes memory before it waits for the kernel before it")
}

fn over(must: &Must, own: &[&Read], times: &[Times]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut least = |what: &str, budget: Option<f64>, found: f64| {
        if let Some(budget) = budget.filter(|&budget| found < budget) {
            faults.push(format!("{what} {found:.2}, at least {budget:.2}"));
        }
    };
    let Some(main) = own.first() else { return vec!["it has no kernel".to_owned()] };
    least("blocks", must.blocks.map(f64::from), f64::from(main.launched.blocks));
    least("bytes of a load", must.load.map(f64::from), f64::from(width(&main.run.loads)));
    let writer = own[own.len() - 1];
    least("bytes of a store", must.store.map(f64::from), f64::from(width(&writer.run.stores)));
    least("share of the roofline on an H100", must.h100, times[0].roofline / times[0].predicted);
    least("share of the roofline on an H200", must.h200, times[1].roofline / times[1].predicted);
    for (gpu, of) in ["H100", "H200"].into_iter().zip(times) {
        let share = of.copied.map_or(0.0, |copied| copied / of.predicted);
        least(&format!("share of a copy on an {gpu}"), must.copy, share);
    }
    let of_h100 = times[0].predicted;
    let mut most = |what: &str, budget: Option<f64>, found: f64| {
        if let Some(budget) = budget.filter(|&budget| found > budget) {
            faults.push(format!("{what} {found:.2}, at most {budget:.2}"));
        }
    };
    most("microseconds on an H100", must.micros, of_h100);
    most("instructions an element", must.instructions, own.iter().map(|read| each(read)).sum());
    let tensor = own.iter().filter_map(|read| per_tensor(read)).fold(0.0, f64::max);
    most("instructions an MMA", must.per_tensor, tensor);
    let passes = own.iter().map(|read| ratio(&read.run.shared)).fold(1.0, f64::max);
    most("passes over the banks", must.conflicts, passes);
    faults
}
