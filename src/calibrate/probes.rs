//! Small networks that show what a class of operations reaches: one that computes much for each
//! byte, and one that moves much for each operation; and chains that cross between two devices.

use super::observe::{median, observe};
use super::{Source, merged, reports};
use crate::compile::{self, Network};
use crate::cost::{Class, ClassRate, CopyTime, Profile, class_work};
use crate::error::{Error, Result};
use crate::ir::{
    Cell, Conv, ConvTranspose, DType, Direction, Graph, Init, Interpolation, Layout, Op, ParamId, Pool,
    PoolKind, Real, Recurrent, ReduceKind, Resize, ResizeCoordinates, Shape, Source as Origin, SourceId,
    SourceRole, Tensor, TopK, Type, Unary, ValueId, Window,
};
use crate::load::weights::ParamReader;
use crate::load::{Model, fill_param};
use crate::place::{self, DeviceUse, Effort};
use crate::run::{ExecOptions, Program, exec_plan, feed};
use crate::topology::Topology;
use crate::units::{Flops, Nanos, Rate};

/// Rates of every class, ascending, and what passes between launches.
pub(super) fn classes() -> Result<(Vec<ClassRate>, Nanos)> {
    let mut rates = Vec::with_capacity(Class::ALL.len());
    for class in Class::ALL {
        let (flops, _) = rate(class, Size::Computing)?;
        let (_, bandwidth) = rate(class, Size::Moving)?;
        rates.push(ClassRate { class, flops, bandwidth });
    }
    Ok((rates, launch()?))
}

/// What passes between the launches of a chain of small kernels.
fn launch() -> Result<Nanos> {
    let mut drawing = Drawing::new();
    let mut value = drawing.input(&[4, 16]);
    for _ in 0..32 {
        value = drawing.apply(Op::Softmax { axis: 1, log: false }, &[value])?;
    }
    let (plan, network) = planned(drawing.finish(value), &Topology::parse("cpu:cores=1")?)?;
    let mut profile = Profile::default();
    observe(&plan, &run(&plan, &network)?, &mut profile)?;
    Ok(profile.kinds.first().map_or(Nanos::ZERO, |kind| kind.launch_ns))
}

/// Times of copies between two devices, by size.
pub(super) fn copies() -> Result<Vec<CopyTime>> {
    let topology = Topology::parse("2xcpu:cores=1")?;
    let mut times = Vec::new();
    for elements in [1 << 10, 1 << 14, 1 << 18, 1 << 21] {
        let mut drawing = Drawing::new();
        let mut value = drawing.input(&[elements]);
        for hop in 0..6 {
            drawing.pin(&format!("cpu{}", hop % 2));
            value = drawing.apply(Op::Unary(Unary::Abs), &[value])?;
        }
        let (plan, network) = planned(drawing.finish(value), &topology)?;
        let mut profile = Profile::default();
        observe(&plan, &run(&plan, &network)?, &mut profile)?;
        times = merged(&times, profile.kinds.into_iter().flat_map(|kind| kind.copies));
    }
    Ok(times)
}

/// What a probe shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// The rate of operations.
    Computing,
    /// The rate of bytes.
    Moving,
}

/// Operations and bytes in a second that a class's probe reaches.
fn rate(class: Class, size: Size) -> Result<(Flops, Rate)> {
    let mut drawing = Drawing::new();
    let result = draw(&mut drawing, class, size)?;
    let (plan, network) = planned(drawing.finish(result), &Topology::parse("cpu:cores=1")?)?;
    let reports = run(&plan, &network)?;
    let busy = median(reports.iter().map(|report| {
        let spans = report.steps.iter().map(|(start, end)| end.saturating_sub(*start));
        u64::try_from(spans.sum::<std::time::Duration>().as_nanos()).unwrap_or(u64::MAX)
    }));
    let (mut flops, mut bytes) = (0u64, 0u64);
    for group in &network.grouping.groups {
        for work in class_work(&network.graph, &network.grouping.base, group) {
            flops = flops.saturating_add(work.flops.get());
            bytes = bytes.saturating_add(work.bytes.get());
        }
    }
    let bandwidth = per_second(bytes, busy);
    // A class that only moves elements computes as fast as it moves them.
    let flops = if flops == 0 { bandwidth } else { per_second(flops, busy) };
    Ok((Flops(flops), Rate(bandwidth)))
}

/// At least 1.
fn per_second(amount: u64, nanos: u64) -> u64 {
    let rate = u128::from(amount) * 1_000_000_000 / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX - 1).max(1)
}

/// The network of a class. Sizes for [`Size::Computing`] fit a processor's cache, so that arithmetic is what
/// takes time; those for [`Size::Moving`] do not, or do little with each element.
fn draw(drawing: &mut Drawing, class: Class, size: Size) -> Result<ValueId> {
    match class {
        Class::Map => draw_map(drawing, size),
        Class::Reduce => {
            let x = drawing.input(&size.of([64, 1024], [2048, 2048]));
            drawing.apply(Op::Reduce { kind: ReduceKind::Mean, axes: vec![1], keep: true }, &[x])
        }
        Class::Normalize => {
            let x = drawing.input(&size.of([64, 512], [4096, 1024]));
            drawing.apply(Op::Softmax { axis: 1, log: false }, &[x])
        }
        Class::Matmul => {
            let (rows, depth) = size.of((256, 512), (1, 2048));
            let (x, w) = (drawing.input(&[rows, depth]), drawing.param(&[depth, depth]));
            drawing.apply(
                Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false },
                &[x, w],
            )
        }
        Class::Conv => {
            draw_conv(drawing, size.of(Image { channels: 64, side: 28 }, Image { channels: 512, side: 7 }))
        }
        Class::Depthwise => draw_depthwise(
            drawing,
            size.of(Image { channels: 64, side: 28 }, Image { channels: 128, side: 112 }),
        ),
        Class::ConvTranspose => draw_conv_transpose(
            drawing,
            size.of(Image { channels: 64, side: 14 }, Image { channels: 16, side: 56 }),
        ),
        Class::Pool => {
            draw_pool(drawing, size.of(Image { channels: 64, side: 28 }, Image { channels: 64, side: 112 }))
        }
        Class::Resize => draw_resize(drawing, size),
        Class::Recurrent => draw_recurrent(drawing, size),
        Class::Gather => draw_gather(drawing, size.of(1 << 10, 1 << 15)),
        Class::Move => {
            let x = drawing.input(&size.of([64, 8, 64], [1024, 8, 256]));
            drawing.apply(Op::Transpose { perm: vec![1, 0, 2] }, &[x])
        }
        Class::Sort => {
            let x = drawing.input(&size.of([64, 256], [8, 65_536]));
            let topk = Op::TopK(TopK { axis: 1, k: 8, largest: true });
            let node = drawing.graph.push(topk, &[x], drawing.source)?;
            let first = drawing.graph.results(node).next();
            first.ok_or_else(|| Error::Internal("topk without a result".into()))
        }
    }
}

impl Size {
    /// The value for what this size shows.
    fn of<T>(self, computing: T, moving: T) -> T {
        match self {
            Self::Computing => computing,
            Self::Moving => moving,
        }
    }
}

/// A square image of one sample.
#[derive(Clone, Copy)]
struct Image {
    channels: i64,
    side: i64,
}

impl Image {
    fn sizes(self) -> [i64; 4] {
        [1, self.channels, self.side, self.side]
    }
}

/// Eight functions that take long for each element, or one that takes none.
fn draw_map(drawing: &mut Drawing, size: Size) -> Result<ValueId> {
    let (elements, functions, unary) = size.of((1 << 15, 8, Unary::Gelu), (1 << 22, 1, Unary::Relu));
    let mut value = drawing.input(&[elements]);
    for _ in 0..functions {
        value = drawing.apply(Op::Unary(unary), &[value])?;
    }
    Ok(value)
}

fn draw_conv(drawing: &mut Drawing, image: Image) -> Result<ValueId> {
    let (x, w) = (drawing.input(&image.sizes()), drawing.param(&[image.channels, image.channels, 3, 3]));
    let conv = Conv { layout: Layout::ChannelsFirst, window: window(1), groups: 1 };
    drawing.apply(Op::Conv(Box::new(conv)), &[x, w])
}

fn draw_depthwise(drawing: &mut Drawing, image: Image) -> Result<ValueId> {
    let (x, w) = (drawing.input(&image.sizes()), drawing.param(&[image.channels, 1, 3, 3]));
    let conv = Conv { layout: Layout::ChannelsFirst, window: window(1), groups: image.channels };
    drawing.apply(Op::Conv(Box::new(conv)), &[x, w])
}

fn draw_conv_transpose(drawing: &mut Drawing, image: Image) -> Result<ValueId> {
    let (x, w) = (drawing.input(&image.sizes()), drawing.param(&[image.channels, image.channels, 3, 3]));
    let conv = ConvTranspose {
        layout: Layout::ChannelsFirst,
        window: window(1),
        output_padding: vec![0; 2],
        groups: 1,
    };
    drawing.apply(Op::ConvTranspose(Box::new(conv)), &[x, w])
}

fn draw_pool(drawing: &mut Drawing, image: Image) -> Result<ValueId> {
    let x = drawing.input(&image.sizes());
    let pool = Pool {
        kind: PoolKind::Max,
        layout: Layout::ChannelsFirst,
        kernel: vec![3; 2],
        window: window(1),
        extra_after: vec![0; 2],
    };
    drawing.apply(Op::Pool(Box::new(pool)), &[x])
}

fn draw_resize(drawing: &mut Drawing, size: Size) -> Result<ValueId> {
    let (interpolation, side) = size.of((Interpolation::Linear, 16), (Interpolation::Nearest, 56));
    let x = drawing.input(&Image { channels: 32, side }.sizes());
    let resize = Resize {
        shape: Shape::known(&Image { channels: 32, side: 2 * side }.sizes()),
        interpolation,
        coordinates: ResizeCoordinates::HalfPixel,
        scales: None,
    };
    drawing.apply(Op::Resize(Box::new(resize)), &[x])
}

/// An LSTM over sixteen steps.
fn draw_recurrent(drawing: &mut Drawing, size: Size) -> Result<ValueId> {
    let (batch, hidden) = size.of((32, 128), (1, 256));
    let operands = [
        drawing.input(&[16, batch, hidden]),
        drawing.param(&[1, 4 * hidden, hidden]),
        drawing.param(&[1, 4 * hidden, hidden]),
        drawing.param(&[1, 8 * hidden]),
        drawing.param(&[1, batch, hidden]),
        drawing.param(&[1, batch, hidden]),
    ];
    let layer = Recurrent { cell: Cell::Lstm, direction: Direction::Forward, hidden };
    drawing.apply(Op::Recurrent(Box::new(layer)), &operands)
}

/// Half as many rows as the table has, scattered by a prime step.
fn draw_gather(drawing: &mut Drawing, rows: i64) -> Result<ValueId> {
    let table = drawing.param(&[rows, 128]);
    let count = rows / 2;
    let indices: Vec<i64> = (0..count).map(|i| i * 7919 % rows).collect();
    let indices = Tensor::from_i64(vec![count.unsigned_abs()], &indices)?;
    let indices = drawing.graph.add_constant(indices, drawing.source);
    drawing.apply(Op::Gather { axis: 0 }, &[table, indices])
}

/// Windows of three elements along two axes, as many as there are elements.
fn window(stride: i64) -> Window {
    Window {
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_before: vec![1; 2],
        pads_after: vec![1; 2],
    }
}

/// A network in the making.
struct Drawing {
    graph: Graph,
    source: SourceId,
    names: usize,
}

impl Drawing {
    fn new() -> Self {
        let mut graph = Graph::new("probe");
        let source = graph.add_source(Origin::new("probe", "Probe", SourceRole::Node));
        Self { graph, source, names: 0 }
    }

    fn ty(sizes: &[i64]) -> Type {
        Type::new(DType::F32, Shape::known(sizes))
    }

    fn input(&mut self, sizes: &[i64]) -> ValueId {
        self.graph.add_input("x", Self::ty(sizes), self.source)
    }

    fn param(&mut self, sizes: &[i64]) -> ValueId {
        self.names += 1;
        let init = Init::Uniform { low: Real(-0.1), high: Real(0.1) };
        self.graph.add_param(format!("w{}", self.names), Self::ty(sizes), init, None, self.source)
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        self.graph.apply(op, operands, self.source)
    }

    /// What is applied from here on runs on this device.
    fn pin(&mut self, device: &str) {
        self.names += 1;
        let mut source = Origin::new(format!("part{}", self.names), "Probe", SourceRole::Node);
        source.pin = Some(device.to_owned());
        self.source = self.graph.add_source(source);
    }

    fn finish(mut self, result: ValueId) -> Graph {
        self.graph.add_output("y", result);
        self.graph.record_consumers();
        self.graph
    }
}

fn planned(graph: Graph, topology: &Topology) -> Result<(crate::plan::Plan, Network)> {
    let place =
        place::Options { effort: Effort::Fast, devices: DeviceUse::Auto, ..place::Options::default() };
    let options = compile::Options { place, ..compile::Options::default() };
    let compiled = compile::compile(Model::Graph(graph), topology, &options)?;
    let network = compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
    Ok((compiled.plan, network))
}

fn run(plan: &crate::plan::Plan, network: &Network) -> Result<Vec<crate::run::RunReport>> {
    let exec = exec_plan(plan, &network.graph, &network.grouping)?;
    let reader = std::cell::RefCell::new(ParamReader::new());
    let weights = |param: ParamId| MadeUp.weight(network, param, &mut reader.borrow_mut());
    let fused = network.grouping.all_fused();
    let mut program = Program::new(&network.graph, &fused, &exec, &weights, ExecOptions::default())?;
    reports(&mut program, &MadeUp.inputs(network)?, PROBE)
}

/// How long a probe is measured.
const PROBE: std::time::Duration = std::time::Duration::from_millis(50);

/// Made-up data for all.
struct MadeUp;

impl Source for MadeUp {
    fn inputs(&self, network: &Network) -> Result<Vec<(String, Tensor)>> {
        let inputs = network.graph.inputs().iter().enumerate();
        let made_up = |(number, (name, _)): (usize, &(String, _))| {
            Ok((name.clone(), feed::made_up(&network.graph.input_type(number), 0, name)?))
        };
        inputs.map(made_up).collect()
    }

    fn weight(&self, network: &Network, param: ParamId, _: &mut ParamReader) -> Result<Tensor> {
        fill_param(&network.graph, param, 0, network.graph.param(param).whole_name())
    }
}
