//! Printing a graph.

use crate::escape::is_harmless;
use std::fmt::{self, Display, Formatter, Write};

use super::super::{
    BlockFormat, BoxOf, DType, Data, DimId, Distribution, Fan, Graph, Init, LowRank, Node, Op, Param, Phase,
    Real, Repacked, Size, Source, SourceRole, State, StatisticKind, Tensor, Type, each_element, integers,
};
use super::print_op::{attributes, real};
use super::{SHORT, is_identifier};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Printer::new(self, f.alternate()).graph(f)
    }
}

/// What printing one graph needs.
pub(super) struct Printer<'g> {
    graph: &'g Graph,
    /// Names of the dimensions as they appear in sizes.
    dims: Vec<String>,
    /// Leaves long data out.
    elide: bool,
}

impl<'g> Printer<'g> {
    fn new(graph: &'g Graph, elide: bool) -> Self {
        let dim = |name: &str| if is_identifier(name) { name.to_owned() } else { Quoted(name).to_string() };
        let dims = graph.dims().iter().map(|entry| dim(&entry.name)).collect();
        Self { graph, dims, elide }
    }

    fn graph(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let graph = self.graph;
        writeln!(f, "graph {}", Quoted(&graph.name))?;
        section(f, &self.dims, |f, dim| write!(f, "dim {dim}"))?;
        let mut next = 0..;
        section(f, graph.sources(), |f, source| {
            let id: u32 = next.next().unwrap_or_default();
            write!(f, "source s{id} ")?;
            self.source(f, source)
        })?;
        section(f, &graph.nodes, |f, node| self.node(f, node))?;
        section(f, graph.outputs(), |f, (name, value)| {
            write!(f, "output {} {value}", Quoted(name))?;
            supplied(f, graph.ports.outputs.get(name).copied())?;
            match graph.ports.counts.get(name) {
                Some(counted) => write!(f, " counted={}({})", Quoted(&counted.by), counted.axis),
                None => Ok(()),
            }
        })?;
        section(f, graph.controls(), |f, &(before, after)| {
            let value = |node| graph.node(node).first_result;
            write!(f, "control {} -> {}", value(before), value(after))
        })
    }

    fn source(&self, f: &mut Formatter<'_>, source: &Source) -> fmt::Result {
        let role = match source.role {
            SourceRole::Node => "node",
            SourceRole::Data => "data",
        };
        write!(f, "{role} {} {}", Quoted(&source.name), Quoted(&source.op))?;
        if let Some(pin) = &source.pin {
            write!(f, " pin={}", Quoted(pin))?;
        }
        if let Some(mark) = &source.colocate {
            write!(f, " colocate={}", Quoted(mark))?;
        }
        if let Some(consumer) = source.consumer {
            write!(f, " consumer={consumer}")?;
        }
        if let Some(forward) = source.forward {
            write!(f, " forward={forward}")?;
        }
        match source.phase {
            Phase::Forward => {}
            Phase::Backward => f.write_str(" phase=backward")?,
            Phase::Update => f.write_str(" phase=update")?,
        }
        let Some(noise) = &source.noise else { return Ok(()) };
        write!(f, " noise={}({}, shared=[", noise.kind, noise.rate)?;
        for (at, axis) in noise.shared.iter().enumerate() {
            write!(f, "{}{axis}", if at > 0 { ", " } else { "" })?;
        }
        f.write_str("])")
    }

    fn node(&self, f: &mut Formatter<'_>, node: &Node) -> fmt::Result {
        let first = node.first_result.index();
        for (index, value) in self.graph.values[first..first + node.op.results()].iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "%{}: ", first + index)?;
            self.ty(f, &value.ty)?;
        }
        write!(f, " = {}", node.op.name())?;
        for (index, operand) in node.operands.iter().enumerate() {
            write!(f, "{}{operand}", if index == 0 { " " } else { ", " })?;
        }
        match &node.op {
            Op::Input => {
                let inputs = self.graph.inputs();
                let at = inputs.binary_search_by_key(&node.first_result, |input| input.1);
                let name = at.map_or("", |at| inputs[at].0.as_str());
                write!(f, " {}", Quoted(name))?;
                supplied(f, self.graph.ports.inputs.get(name).copied())?;
                if let Some(of) = self.graph.input_box(name) {
                    f.write_str(" box=")?;
                    box_of(f, of)?;
                }
            }
            Op::Param(id) => self.param(f, self.graph.param(*id))?,
            Op::Constant(id) => {
                f.write_str(" ")?;
                self.literal(f, self.graph.constant(*id))?;
            }
            op => attributes(self, f, op, &self.graph.values[first].ty)?,
        }
        write!(f, " @{}", node.source)
    }

    fn param(&self, f: &mut Formatter<'_>, param: &Param) -> fmt::Result {
        write!(f, " {} init=", Quoted(&param.name))?;
        init(f, &param.init)?;
        supplied(f, param.supplied)?;
        if let Some(output) = param.update {
            write!(f, " update={output}")?;
        }
        if let Some(statistic) = param.statistic {
            let kind = match statistic.kind {
                StatisticKind::Mean => "mean",
                StatisticKind::Variance => "variance",
                StatisticKind::SampleVariance => "sample_variance",
            };
            write!(f, " statistic={kind}({})", statistic.momentum)?;
        }
        if let Some(slice) = &param.slice {
            f.write_str(" slice=")?;
            box_of(f, slice)?;
        }
        if let Some(order) = &param.permuted {
            write!(f, " permuted={order:?}")?;
        }
        if let Some(repacked) = param.repacked {
            self::repacked(f, repacked)?;
        }
        match param.state {
            Some(State { grows: Some(axis) }) => write!(f, " state=grows({axis})")?,
            Some(State { grows: None }) => write!(f, " state=kept")?,
            None => {}
        }
        let Some(data) = &param.data else { return Ok(()) };
        f.write_str(" data=")?;
        self.data(f, data)
    }

    fn data(&self, f: &mut Formatter<'_>, data: &Data) -> fmt::Result {
        match data {
            Data::Inline(tensor) => {
                f.write_str("inline(")?;
                self.literal(f, tensor)?;
                f.write_str(")")
            }
            Data::File { path, offset, length } => {
                write!(f, "file({}, {offset}, {length})", Quoted(&path.to_string_lossy()))
            }
            Data::Array { path, name } => {
                write!(f, "array({}, {})", Quoted(&path.to_string_lossy()), Quoted(name))
            }
            Data::Sum { matrix, added } => {
                f.write_str("sum(")?;
                self.data(f, matrix)?;
                let LowRank { path, left, right, factor, turned } = &**added;
                let path = path.to_string_lossy();
                write!(f, ", {}, {}, {}, {factor}, {turned})", Quoted(&path), Quoted(left), Quoted(right))
            }
        }
    }

    pub(super) fn size(&self, f: &mut Formatter<'_>, size: &Size) -> fmt::Result {
        let names = |dim: DimId| self.dims[dim.index()].as_str();
        write!(f, "{}", size.display(&names))
    }

    pub(super) fn sizes(&self, f: &mut Formatter<'_>, sizes: &[Size]) -> fmt::Result {
        list(f, sizes, |f, size| self.size(f, size))
    }

    fn ty(&self, f: &mut Formatter<'_>, ty: &Type) -> fmt::Result {
        f.write_str(ty.dtype.name())?;
        self.sizes(f, ty.shape.sizes())
    }

    fn literal(&self, f: &mut Formatter<'_>, tensor: &Tensor) -> fmt::Result {
        if tensor.elements() <= SHORT && writes_as_numbers(tensor) {
            return numbers(f, tensor);
        }
        if self.elide && tensor.elements() > SHORT {
            return write!(f, "<{} bytes>", tensor.bytes().len());
        }
        hexadecimal(f, tensor.bytes())
    }
}

/// A blank line and the lines, where there are any.
fn section<T>(
    f: &mut Formatter<'_>,
    entries: &[T],
    mut line: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, entry) in entries.iter().enumerate() {
        if index == 0 {
            f.write_str("\n")?;
        }
        line(f, entry)?;
        f.write_str("\n")?;
    }
    Ok(())
}

/// `[a, b, c]`
pub(super) fn list<T>(
    f: &mut Formatter<'_>,
    entries: &[T],
    mut entry: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (index, one) in entries.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        entry(f, one)?;
    }
    f.write_str("]")
}

fn init(f: &mut Formatter<'_>, init: &Init) -> fmt::Result {
    let (name, values): (&str, &[Real]) = match init {
        Init::Constant(value) => ("constant", &[*value]),
        Init::Uniform { low, high } => ("uniform", &[*low, *high]),
        Init::Normal { mean, deviation, truncated: false } => ("normal", &[*mean, *deviation]),
        Init::Normal { mean, deviation, truncated: true } => ("truncated_normal", &[*mean, *deviation]),
        Init::VarianceScaling { scale, .. } => ("variance_scaling", &[*scale]),
        Init::Orthogonal { gain } => ("orthogonal", &[*gain]),
        Init::Identity { gain } => ("identity", &[*gain]),
        Init::UnitForgetBias => return f.write_str("unit_forget_bias"),
    };
    write!(f, "{name}(")?;
    for (index, value) in values.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        real(f, value)?;
    }
    if let Init::VarianceScaling { fan, distribution, .. } = init {
        write!(f, ", {}, {}", fan_name(*fan), distribution_name(*distribution))?;
    }
    f.write_str(")")
}

fn fan_name(fan: Fan) -> &'static str {
    match fan {
        Fan::In => "in",
        Fan::Out => "out",
        Fan::Average => "average",
    }
}

fn distribution_name(distribution: Distribution) -> &'static str {
    match distribution {
        Distribution::TruncatedNormal => "truncated_normal",
        Distribution::Normal => "normal",
        Distribution::Uniform => "uniform",
    }
}

/// Whether numbers read back to the same bytes.
fn writes_as_numbers(tensor: &Tensor) -> bool {
    let bytes = tensor.bytes();
    match tensor.dtype() {
        DType::F32 => f32s(bytes).iter().all(|value| !value.is_nan()),
        DType::F64 => f64s(bytes).iter().all(|value| !value.is_nan()),
        DType::F16 | DType::Bf16 => tensor.elements() == 0,
        DType::Bool => bytes.iter().all(|&byte| byte < 2),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => true,
        DType::U8 | DType::U16 | DType::U32 => true,
        DType::U64 => tensor.to_i64().is_some(),
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    each_element(bytes, f32::from_le_bytes)
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    each_element(bytes, f64::from_le_bytes)
}

fn numbers(f: &mut Formatter<'_>, tensor: &Tensor) -> fmt::Result {
    let texts: Vec<String> = match tensor.dtype() {
        DType::F32 => f32s(tensor.bytes()).iter().map(|value| format!("{value:?}")).collect(),
        DType::F64 => f64s(tensor.bytes()).iter().map(|value| format!("{value:?}")).collect(),
        DType::Bool => tensor.bytes().iter().map(|&byte| (byte != 0).to_string()).collect(),
        DType::F16 | DType::Bf16 | integers!() => {
            tensor.to_i64().unwrap_or_default().iter().map(i64::to_string).collect()
        }
    };
    write!(f, "{{{}}}", texts.join(", "))
}

fn hexadecimal(f: &mut Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    f.write_str("0x")?;
    let mut text = String::with_capacity(512);
    for chunk in bytes.chunks(256) {
        text.clear();
        for byte in chunk {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
        f.write_str(&text)?;
    }
    Ok(())
}

/// A string in quotes, with quotes, backslashes and what is not harmless escaped.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if !is_harmless(c) => write!(f, "\\u{{{:x}}}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// `q4_0(64, false)`, or `groups(64, false, 4, 32, scales)`
fn repacked(f: &mut Formatter<'_>, repacked: Repacked) -> fmt::Result {
    let Repacked { format, columns, turned, piece } = repacked;
    write!(f, " repacked={}({columns}, {turned}", format.name())?;
    if let BlockFormat::Groups { bits, size } = format {
        write!(f, ", {bits}, {size}, {}", piece.name())?;
    }
    f.write_str(")")
}

/// What something is a part of: `"x"(0 of 24, 8 of 16)`.
fn box_of(f: &mut Formatter<'_>, BoxOf { name, axes }: &BoxOf) -> fmt::Result {
    write!(f, "{}(", Quoted(name))?;
    for (at, (start, size)) in axes.iter().enumerate() {
        write!(f, "{}{start} of {size}", if at > 0 { ", " } else { "" })?;
    }
    f.write_str(")")
}

/// The type in which callers hand something over, where it is held in another.
fn supplied(f: &mut Formatter<'_>, dtype: Option<DType>) -> fmt::Result {
    dtype.map_or(Ok(()), |dtype| write!(f, " supplied={dtype}"))
}
