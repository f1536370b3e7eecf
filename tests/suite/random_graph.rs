//! Random networks for property tests: small, well-typed, and of every kind of operation.

#![allow(dead_code)]

use partition::unstable::ir::*;

/// A small generator of random numbers (SplitMix64), so that a seed gives the same graph
/// everywhere.
pub(crate) struct Random(u64);

impl Random {
    /// A generator that starts at a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A float in [-1, 1).
    pub(crate) fn float(&mut self) -> f32 {
        (self.below(2048) as f32 - 1024.0) / 1024.0
    }
}

/// A well-typed graph of about `nodes` operations (leaves not counted) with bound sizes: f32
/// values, i64 indices, bools; several inputs and outputs, parameters, constants, operations with
/// several results. Every node that nothing reads is an output or stays unread.
pub(crate) fn random_graph(seed: u64, nodes: usize) -> Graph {
    let mut builder = Builder::new(seed);
    for index in 0..nodes {
        builder.begin(index);
        builder.step();
    }
    builder.finish()
}

struct Builder {
    graph: Graph,
    random: Random,
    source: SourceId,
    /// f32 values to go on from.
    values: Vec<ValueId>,
    params: usize,
}

/// Tensors stay below this number of elements.
const MOST: i64 = 2000;

impl Builder {
    fn new(seed: u64) -> Self {
        let mut graph = Graph::new(format!("random{seed}"));
        let source = graph.add_source(Source::new("inputs", "Input", SourceRole::Data));
        let mut values = Vec::new();
        let shapes: [&[i64]; 3] = [&[2, 3, 8, 8], &[4, 6], &[5, 2, 3]];
        for (index, shape) in shapes.iter().enumerate() {
            let ty = Type::new(DType::F32, Shape::known(shape));
            values.push(graph.add_input(format!("x{index}"), ty, source));
        }
        Self { graph, random: Random::new(seed), source, values, params: 0 }
    }

    fn begin(&mut self, index: usize) {
        if index.is_multiple_of(3) {
            let source = Source::new(format!("layer{index}"), "Layer", SourceRole::Node);
            self.source = self.graph.add_source(source);
        }
    }

    fn dims(&self, value: ValueId) -> Vec<i64> {
        self.graph.ty(value).shape.dims().unwrap()
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        self.graph.apply(op, operands, self.source).unwrap()
    }

    fn keep(&mut self, value: ValueId) {
        assert_eq!(self.graph.ty(value).dtype, DType::F32);
        self.values.push(value);
    }

    /// A recent value most of the time.
    fn value(&mut self) -> ValueId {
        let recent = self.values.len().min(8);
        let from = if self.random.one_in(4) { 0 } else { self.values.len() - recent };
        let at = from + self.random.below(self.values.len() - from);
        self.values[at]
    }

    fn param(&mut self, shape: &[i64]) -> ValueId {
        self.params += 1;
        let ty = Type::new(DType::F32, Shape::known(shape));
        let inits = [
            Init::glorot_uniform(),
            Init::Normal { mean: Real(0.0), deviation: Real(0.05), truncated: true },
            Init::Uniform { low: Real(-0.5), high: Real(0.5) },
            Init::ones(),
        ];
        let init = inits[self.random.below(inits.len())].clone();
        self.graph.add_param(format!("w{}", self.params), ty, init, None, self.source)
    }

    fn constant(&mut self, shape: &[i64]) -> ValueId {
        let count = shape.iter().product::<i64>() as usize;
        let values: Vec<f32> = (0..count).map(|_| self.random.float()).collect();
        let dims = shape.iter().map(|&dim| dim as u64).collect();
        self.graph.add_constant(Tensor::from_f32(dims, &values).unwrap(), self.source)
    }

    fn indices(&mut self, count: usize, below: i64) -> ValueId {
        let values: Vec<i64> = (0..count).map(|_| self.random.below(below as usize) as i64).collect();
        self.graph.add_constant(Tensor::from_i64(vec![count as u64], &values).unwrap(), self.source)
    }

    fn axis(&mut self, dims: &[i64]) -> u32 {
        self.random.below(dims.len()) as u32
    }

    fn step(&mut self) {
        let x = self.value();
        let dims = self.dims(x);
        let elements: i64 = dims.iter().product();
        let grows = elements * 2 <= MOST;
        match self.random.below(24) {
            0..=3 => self.unary(x),
            4..=6 => self.binary(x, &dims),
            7 | 8 if dims.len() >= 2 => self.matmul(x, &dims),
            9 | 10 if dims.len() == 4 => self.conv(x, &dims),
            11 if dims.len() == 4 => self.pool(x, &dims),
            12 if !dims.is_empty() => self.reduce(x, &dims),
            13 if !dims.is_empty() => self.normalisation(x, &dims),
            14 => self.reshape(x, elements),
            15 => self.transpose(x, &dims),
            16 if !dims.is_empty() => self.slice(x, &dims),
            17 if !dims.is_empty() && grows => self.concat(x, &dims),
            18 if !dims.is_empty() => self.gather(x, &dims),
            19 if !dims.is_empty() => self.topk(x, &dims),
            20 if dims.len() == 3 => self.recurrent(x, &dims),
            21 => self.select(x, &dims),
            22 if grows => self.broadcast_or_pad(x, &dims),
            23 => self.integers(x),
            _ => self.unary(x),
        }
    }

    fn unary(&mut self, x: ValueId) {
        let unary = self.random.pick(&[
            Unary::Neg,
            Unary::Abs,
            Unary::Tanh,
            Unary::Sigmoid,
            Unary::Relu,
            Unary::Gelu,
            Unary::Silu,
            Unary::Erf,
            Unary::Sin,
            Unary::Floor,
        ]);
        let y = self.apply(Op::Unary(unary), &[x]);
        self.keep(y);
    }

    fn binary(&mut self, x: ValueId, dims: &[i64]) {
        let binary = self.random.pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min]);
        let same =
            self.values.iter().rev().copied().find(|&v| v != x && self.graph.ty(v) == self.graph.ty(x));
        let y = match (self.random.below(4), same) {
            (0 | 1, Some(same)) => same,
            (2, _) if !dims.is_empty() => self.param(&dims[dims.len() - 1..]),
            (3, _) => self.constant(&[]),
            _ => self.constant(dims),
        };
        let z = self.apply(Op::Binary(binary), &[x, y]);
        self.keep(z);
    }

    fn matmul(&mut self, x: ValueId, dims: &[i64]) {
        let inner = dims[dims.len() - 1];
        let columns = 1 + self.random.below(6) as i64;
        let transpose_right = self.random.one_in(2);
        let w = self.param(&if transpose_right { [columns, inner] } else { [inner, columns] });
        let y = self.apply(
            Op::MatMul { transpose_left: false, transpose_right, wide: false, rounds: false },
            &[x, w],
        );
        self.keep(y);
    }

    fn window(&mut self, spatial: &[i64]) -> (Vec<i64>, Window) {
        let kernel: Vec<i64> =
            spatial.iter().map(|&size| 1 + self.random.below(3.min(size as usize)) as i64).collect();
        let pads: Vec<i64> = kernel.iter().map(|&size| self.random.below(size as usize) as i64).collect();
        let stride = 1 + self.random.below(2) as i64;
        let window = Window {
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            pads_before: pads.clone(),
            pads_after: pads,
        };
        (kernel, window)
    }

    fn conv(&mut self, x: ValueId, dims: &[i64]) {
        let (kernel, window) = self.window(&dims[2..]);
        let depthwise = self.random.one_in(3);
        let (out, inner, groups) = if depthwise { (dims[1], 1, dims[1]) } else { (3, dims[1], 1) };
        let w = self.param(&[out, inner, kernel[0], kernel[1]]);
        let mut operands = vec![x, w];
        if self.random.one_in(2) {
            operands.push(self.param(&[out]));
        }
        let conv = Conv { layout: Layout::ChannelsFirst, window, groups };
        let y = self.apply(Op::Conv(Box::new(conv)), &operands);
        self.keep(y);
    }

    fn pool(&mut self, x: ValueId, dims: &[i64]) {
        let (kernel, window) = self.window(&dims[2..]);
        let kind = self.random.pick(PoolKind::ALL);
        let pool = Pool { kind, layout: Layout::ChannelsFirst, kernel, window, extra_after: vec![0; 2] };
        let y = self.apply(Op::Pool(Box::new(pool)), &[x]);
        self.keep(y);
    }

    fn reduce(&mut self, x: ValueId, dims: &[i64]) {
        let kind = self.random.pick(&[ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min]);
        let op = Op::Reduce { kind, axes: vec![self.axis(dims)], keep: self.random.one_in(2) };
        let y = self.apply(op, &[x]);
        self.keep(y);
    }

    fn normalisation(&mut self, x: ValueId, dims: &[i64]) {
        let axis = self.axis(dims);
        let op = match self.random.below(3) {
            0 => Op::Softmax { axis, log: self.random.one_in(3) },
            1 => Op::Normalize {
                axes: vec![axis],
                epsilon: Real(1e-5),
                center: self.random.one_in(2),
                moments: false,
            },
            _ => Op::CumSum { axis, exclusive: self.random.one_in(2), reverse: self.random.one_in(2) },
        };
        let y = self.apply(op, &[x]);
        self.keep(y);
    }

    fn reshape(&mut self, x: ValueId, elements: i64) {
        let divisors: Vec<i64> = (1..=elements.min(12)).filter(|d| elements % d == 0).collect();
        let first = self.random.pick(&divisors);
        let y = self.apply(Op::Reshape { shape: Shape::known(&[first, elements / first]) }, &[x]);
        self.keep(y);
    }

    fn transpose(&mut self, x: ValueId, dims: &[i64]) {
        let mut perm: Vec<u32> = (0..dims.len() as u32).collect();
        for at in (1..perm.len()).rev() {
            perm.swap(at, self.random.below(at + 1));
        }
        let y = self.apply(Op::Transpose { perm }, &[x]);
        self.keep(y);
    }

    fn slice(&mut self, x: ValueId, dims: &[i64]) {
        let (mut starts, mut sizes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for &dim in dims {
            let size = 1 + self.random.below(dim as usize) as i64;
            let start = self.random.below((dim - size + 1) as usize) as i64;
            let backwards = self.random.one_in(4);
            starts.push(Size::Known(if backwards { start + size - 1 } else { start }));
            sizes.push(Size::Known(size));
            steps.push(if backwards { -1 } else { 1 });
        }
        let y = self.apply(Op::Slice(Box::new(Slice { starts, sizes, steps })), &[x]);
        self.keep(y);
    }

    fn concat(&mut self, x: ValueId, dims: &[i64]) {
        let other = self.constant(dims);
        let op = Op::Concat { axis: self.axis(dims) };
        let y = self.apply(op, &[x, other]);
        self.keep(y);
    }

    fn gather(&mut self, x: ValueId, dims: &[i64]) {
        let axis = self.axis(dims);
        let count = 1 + self.random.below(3);
        let indices = self.indices(count, dims[axis as usize]);
        let y = self.apply(Op::Gather { axis }, &[x, indices]);
        self.keep(y);
    }

    fn topk(&mut self, x: ValueId, dims: &[i64]) {
        let axis = self.axis(dims);
        let k = 1 + self.random.below(dims[axis as usize] as usize) as i64;
        let op = Op::TopK(TopK { axis, k, largest: self.random.one_in(2) });
        let node = self.graph.push(op, &[x], self.source).unwrap();
        let results: Vec<ValueId> = self.graph.results(node).collect();
        self.keep(results[0]);
        if self.random.one_in(2) {
            let positions = self.apply(Op::Convert { to: DType::F32 }, &[results[1]]);
            self.keep(positions);
        }
    }

    fn recurrent(&mut self, x: ValueId, dims: &[i64]) {
        let cell = self.random.pick(Cell::ALL);
        let direction = self.random.pick(Direction::ALL);
        let directions = if direction == Direction::Bidirectional { 2 } else { 1 };
        let gates = match cell {
            Cell::Rnn => 1,
            Cell::Lstm => 4,
            Cell::Gru | Cell::GruResetAfter => 3,
        };
        let hidden = 2;
        let mut operands = vec![
            x,
            self.param(&[directions, gates * hidden, dims[2]]),
            self.param(&[directions, gates * hidden, hidden]),
            self.param(&[directions, 2 * gates * hidden]),
            self.constant(&[directions, dims[1], hidden]),
        ];
        if cell == Cell::Lstm {
            operands.push(self.constant(&[directions, dims[1], hidden]));
        }
        let op = Op::Recurrent(Box::new(Recurrent { cell, direction, hidden }));
        let node = self.graph.push(op, &operands, self.source).unwrap();
        for result in self.graph.results(node) {
            self.keep(result);
        }
    }

    fn select(&mut self, x: ValueId, dims: &[i64]) {
        let zero = self.constant(&[]);
        let compare = self.random.pick(Compare::ALL);
        let condition = self.apply(Op::Compare(compare), &[x, zero]);
        let other = self.constant(dims);
        let y = self.apply(Op::Select, &[condition, x, other]);
        self.keep(y);
    }

    fn broadcast_or_pad(&mut self, x: ValueId, dims: &[i64]) {
        let op = if self.random.one_in(2) || dims.is_empty() {
            let sizes = std::iter::once(2).chain(dims.iter().copied()).collect::<Vec<i64>>();
            Op::Broadcast { shape: Shape::known(&sizes) }
        } else {
            let mut after = vec![0; dims.len()];
            after[self.random.below(dims.len())] = 1;
            Op::Pad(Box::new(Pad {
                before: vec![0; dims.len()],
                after,
                mode: self.random.pick(&[PadMode::Constant, PadMode::Edge]),
                value: Real(0.5),
            }))
        };
        let y = self.apply(op, &[x]);
        self.keep(y);
    }

    /// Through i64 and back.
    fn integers(&mut self, x: ValueId) {
        let whole = self.apply(Op::Convert { to: DType::I64 }, &[x]);
        let three = self.graph.add_constant(Tensor::from_i64(vec![], &[3]).unwrap(), self.source);
        let binary = self.random.pick(&[Binary::Add, Binary::Mul, Binary::Mod, Binary::Rem, Binary::Div]);
        let changed = self.apply(Op::Binary(binary), &[whole, three]);
        let y = self.apply(Op::Convert { to: DType::F32 }, &[changed]);
        self.keep(y);
    }

    fn finish(mut self) -> Graph {
        let mut outputs = vec![*self.values.last().unwrap()];
        for _ in 0..3 {
            let value = self.value();
            if !outputs.contains(&value) {
                outputs.push(value);
            }
        }
        for (index, value) in outputs.into_iter().enumerate() {
            self.graph.add_output(format!("y{index}"), value);
        }
        self.graph.record_consumers();
        self.graph
    }
}
