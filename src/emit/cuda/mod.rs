//! Prints a kernel program as CUDA C.
//!
//! The generated text names what the hand-written parts of `kernels/` define; [`Kernel::source`] puts
//! them before it, so that NVRTC compiles it without any header.

mod attention;
mod columns;
mod heroes;
mod map;
mod patches;
mod products;
mod rows;
mod scatter;
mod transposes;
mod unaligned;
mod writer;

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Report, Result};
use crate::escape::in_comment;
use crate::ir::DType;
use crate::kernel::program::{Arg, Body, Expr, ExprId, Place, Program};

const PRELUDE: &str = include_str!("../../../kernels/prelude.cuh");
const ELEMENTARY: &str = include_str!("../../../kernels/elementary.cuh");
const PRODUCT: &str = include_str!("../../../kernels/product.cuh");
const TENSOR: &str = include_str!("../../../kernels/tensor.cuh");
const PRODUCT_GROUPS: &str = include_str!("../../../kernels/product_groups.cuh");
const CONVOLUTION: &str = include_str!("../../../kernels/convolution.cuh");
const PATCHES: &str = include_str!("../../../kernels/patches.cuh");
const ATTENTION: &str = include_str!("../../../kernels/attention.cuh");
const ATTENTION_TENSOR: &str = include_str!("../../../kernels/attention_tensor.cuh");
const GROUPS: &str = include_str!("../../../kernels/groups.cuh");
const ATTENTION_GROUPS: &str = include_str!("../../../kernels/attention_groups.cuh");
const SCATTER: &str = include_str!("../../../kernels/scatter.cuh");
const RECURRENT: &str = include_str!("../../../kernels/recurrent.cuh");

/// Most blocks along x.
const MAX_BLOCKS: i64 = 0x7fff_ffff;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks; at least one.
    pub grid: u32,
    /// Threads of a block along x and y.
    pub block: [u32; 2],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
}

/// Hand-written parts that a kernel includes beside the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Template {
    /// Matrix products.
    Product,
    /// The same by groups of threads.
    ProductGroups,
    /// Convolutions of few channels.
    Patches,
    /// Convolutions of f32, straight from their images.
    Windows,
    /// Rows that are updated in order.
    Scatter,
    /// Recurrent layers.
    Recurrent,
    /// Attention, row by row.
    Attention,
    /// Attention in tiles on tensor cores.
    AttentionTensor,
    /// The same by groups of threads.
    AttentionGroups,
}

impl Template {
    /// The parts' text, in order.
    pub const fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Product => &[TENSOR, PRODUCT],
            Self::ProductGroups => &[TENSOR, PRODUCT, GROUPS, PRODUCT_GROUPS],
            Self::Patches => &[TENSOR, PATCHES],
            Self::Windows => &[CONVOLUTION],
            Self::Scatter => &[SCATTER],
            Self::Recurrent => &[RECURRENT],
            Self::Attention => &[ATTENTION],
            Self::AttentionTensor => &[TENSOR, ATTENTION, ATTENTION_TENSOR],
            Self::AttentionGroups => &[TENSOR, ATTENTION, ATTENTION_TENSOR, GROUPS, ATTENTION_GROUPS],
        }
    }

    /// Whether its code is for one generation of GPUs alone, and for none after it.
    const fn is_of_its_generation(self) -> bool {
        matches!(self, Self::AttentionGroups | Self::ProductGroups)
    }
}

/// A kernel in CUDA C.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The name of the entry: what it computes, and a hash of its text.
    pub name: String,
    /// The generated text, without the parts that it includes.
    pub text: String,
    /// What it includes beside the prelude.
    pub template: Option<Template>,
    /// How it is launched.
    pub launch: Launch,
    /// Its arguments, in order: pointers to their first elements.
    pub args: Vec<Arg>,
}

impl Kernel {
    /// All that a compiler needs.
    pub fn source(&self) -> String {
        module(&[self])
    }

    /// What it is compiled for where it runs on a GPU of an architecture: `sm_90a` on an `sm_90` for what Hopper alone has.
    pub fn architecture(&self, of: &str) -> String {
        let of_its_generation = self.template.is_some_and(Template::is_of_its_generation);
        if of_its_generation && !of.ends_with('a') { format!("{of}a") } else { of.to_owned() }
    }
}

/// Several kernels as one source, with what they include.
pub fn module(kernels: &[&Kernel]) -> String {
    let mut templates: Vec<Template> = kernels.iter().filter_map(|kernel| kernel.template).collect();
    templates.sort_unstable();
    templates.dedup();
    let mut parts: Vec<&str> = Vec::new();
    for &part in templates.iter().flat_map(|template| template.parts()) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    let mut text = format!("{PRELUDE}\n{ELEMENTARY}");
    for part in parts.into_iter().chain(kernels.iter().map(|kernel| kernel.text.as_str())) {
        text.push('\n');
        text.push_str(part);
    }
    text
}

/// What a GPU gives a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gives {
    /// Most dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Copies to shared memory that nobody waits for, and tensor cores that take halves in pieces of sixteen: since sm_80.
    pub tensor_cores: bool,
    /// Products by groups of 128 threads, and blocks with 227 KiB of shared memory: of sm_90 alone.
    pub groups: bool,
}

/// Most dynamic shared memory of a block whose GPU has products by groups of threads, in bytes.
pub(super) const GROUPS_SHARED: u32 = 227 << 10;

impl Gives {
    /// What all GPUs since sm_80 give, sm_86 and sm_89 no more.
    pub const SM_80: Self = Self { shared: 99 << 10, tensor_cores: true, groups: false };

    /// What GPUs of an architecture such as `sm_75` give (CUDA C++ Programming Guide, "Technical Specifications per Compute
    /// Capability").
    pub fn of(architecture: &str) -> Self {
        // `sm_90a` is an sm_90. What has no number gives what all have.
        let digits =
            architecture.strip_prefix("sm_").unwrap_or("").trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse().unwrap_or(0u32) {
            0..70 => Self { shared: 48 << 10, tensor_cores: false, groups: false },
            70..75 => Self { shared: 96 << 10, tensor_cores: false, groups: false },
            75..80 => Self { shared: 64 << 10, tensor_cores: false, groups: false },
            90 => Self { groups: true, ..Self::SM_80 },
            80.. => Self::SM_80,
        }
    }

    /// What two kinds of GPUs both give.
    pub fn both(self, other: Self) -> Self {
        Self {
            shared: self.shared.min(other.shared),
            tensor_cores: self.tensor_cores && other.tensor_cores,
            groups: self.groups && other.groups,
        }
    }
}

/// As [`kernel_within`], for GPUs since sm_80.
pub fn kernel(program: &Program) -> Result<Option<Kernel>> {
    kernel_within(program, Gives::SM_80)
}

/// A program as CUDA C. None where there is nothing to do: a result without elements. A form that takes more than GPUs
/// give gives way to one that takes less.
///
/// Errors: more blocks than a launch may have, or a recurrent layer whose state takes more.
pub fn kernel_within(program: &Program, gives: Gives) -> Result<Option<Kernel>> {
    if program.is_empty() {
        return Ok(None);
    }
    let printed = match &program.body {
        Body::Map { point, stores } => map::map(program, *point, stores)?,
        Body::Lines { line, step, running, stores } => {
            heroes::lines(program, (*line, *step), running.as_ref(), stores)?
        }
        Body::Rows { .. } => rows::rows(program)?,
        Body::Tile { .. } => match transposes::Wide::of(program) {
            Some(wide) => wide.print()?,
            None => heroes::tile(program)?,
        },
        Body::Product { .. } => products::product(program, gives)?,
        Body::Scatter(body) => scatter::scatter(program, body)?,
        Body::Order(order) => scatter::order(program, order)?,
        Body::Recurrent(layer) => heroes::recurrent(program, layer, gives.shared)?,
        Body::Attention(heads) => attention::attention(program, heads, gives)?,
    };
    let label: String =
        program.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(48).collect();
    let name = format!("{label}_{:08x}", xxh3_64(printed.text.as_bytes()) as u32);
    let text = printed.text.replace("KERNEL", &name);
    Ok(Some(Kernel {
        name,
        text,
        template: printed.template,
        launch: printed.launch,
        args: program.args.clone(),
    }))
}

/// A kernel whose name, `KERNEL`, is still to be given.
struct Printed {
    text: String,
    template: Option<Template>,
    launch: Launch,
}

/// The type in memory.
fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        other => other.name(),
    }
}

/// The type that is computed with.
fn compute(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::Bf16 => "float",
        other => storage(other),
    }
}

/// Whether indices need 64 bits: one of them, or a part of one, may not fit 32.
fn index_type(program: &Program) -> &'static str {
    let fits = |range: (i64, i64)| range.0 > -MAX_BLOCKS / 2 && range.1 < MAX_BLOCKS / 2;
    let exprs = &program.exprs;
    let used = program.used();
    let wide = (0..exprs.len()).filter(|&id| used[id]).any(|id| match exprs.get(ExprId(id as u32)) {
        Expr::Sum { constant, terms } => {
            let parts = terms.iter().map(|&(x, factor)| {
                let (low, high) = exprs.range(x);
                low.saturating_abs().max(high.saturating_abs()).saturating_mul(factor.saturating_abs())
            });
            parts.fold(constant.saturating_abs(), i64::saturating_add) >= MAX_BLOCKS / 2
        }
        Expr::Var(_) | Expr::Div(..) | Expr::Mod(..) | Expr::Min(..) => !fits(exprs.range(ExprId(id as u32))),
        _ => false,
    });
    let domain = program.domain().iter().any(|&var| exprs.extent(var) >= MAX_BLOCKS / 2);
    let elements = program.args.iter().any(|arg| arg.elements >= MAX_BLOCKS as u64);
    if wide || domain || elements { "i64" } else { "i32" }
}

/// How many of `size` cover `count`.
fn ceil(count: i64, size: i64) -> i64 {
    count / size + i64::from(count % size != 0)
}

/// As many blocks. Error: a launch may not have so many.
fn blocks(count: i64) -> Result<u32> {
    u32::try_from(count).ok().filter(|&count| i64::from(count) <= MAX_BLOCKS).ok_or_else(|| {
        Error::Unsupported(Report::new(
            "",
            format!("a kernel of {count} blocks; CUDA launches 2^31 - 1 at most"),
        ))
    })
}

/// True where bytes of an argument may be those of another one that is read.
fn may_alias(program: &Program, arg: &Arg) -> bool {
    let in_place = matches!(program.body, Body::Map { .. } | Body::Lines { .. } | Body::Scatter(_));
    in_place || program.args.iter().filter(|other| other.place == arg.place).count() > 1
}

/// The entry's head, and its first line.
fn head(program: &Program, threads: u32) -> String {
    bounded_head(program, &threads.to_string())
}

/// The same with bounds of a launch in full: threads, and how many blocks a multiprocessor must hold.
fn bounded_head(program: &Program, bounds: &str) -> String {
    let mut text = format!("extern \"C\" __global__ void __launch_bounds__({bounds}) KERNEL(");
    for (position, arg) in program.args.iter().enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        let constant = if arg.written { "" } else { "const " };
        let restrict = if may_alias(program, arg) { "" } else { " RESTRICT" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{constant}{}*{restrict} a{position}", storage(arg.dtype));
    }
    text.push_str(") {\n  follow_the_kernel_before();\n");
    text
}

/// A line that says what the kernel is.
fn title(program: &Program, how: &str) -> String {
    let places = |written: bool| {
        let list = program.args.iter().filter(|arg| arg.written == written);
        list.map(|arg| match arg.place {
            Place::Workspace(offset) => {
                format!("{}[{}] at {offset} of the workspace", arg.dtype, arg.elements)
            }
            Place::Read(_) | Place::Write(_) => format!("{}[{}]", arg.dtype, arg.elements),
        })
        .collect::<Vec<_>>()
        .join(", ")
    };
    format!(
        "// {} {}: {} -> {}; {how}\n",
        program.hero(),
        in_comment(&program.name),
        places(false),
        places(true)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_gives_follows_from_its_number() {
        let shared = |architecture: &str| Gives::of(architecture).shared >> 10;
        let all = ["sm_60", "sm_70", "sm_72", "sm_75", "sm_80", "sm_90a", "sm_120", "other"].map(shared);
        assert_eq!(all, [48, 96, 96, 64, 99, 99, 99, 48]);
        let tensor_cores = ["sm_60", "sm_75", "sm_80", "sm_120"].map(|one| Gives::of(one).tensor_cores);
        assert_eq!(tensor_cores, [false, false, true, true]);
    }
}
