//! Reading a graph.
//!
//! Nothing in the text is trusted: ids are checked as they are met, data against its type, and
//! every node against inference. One line after the other, without recursion.

use super::super::verify::{verify, verify_node};
use super::super::{
    BlockFormat, BoxOf, ConstId, Counted, DType, Data, Distribution, Fan, Graph, Init, LowRank, NodeId,
    Noise, NoiseKind, Op, Param, ParamId, Phase, Piece, Repacked, Shape, Size, Source, SourceId, SourceRole,
    State, Statistic, StatisticKind, Tensor, Type, ValueId,
};
use super::cursor::{Cursor, Dims};
use super::parse_op::op;
use crate::error::{Error, Result};

/// Reads the text form. Linear in the length of the text.
///
/// Errors, with `line:column` as place: text that is not in the form, ids that are not there,
/// data that does not fit its type, types that are not those of inference; and what
/// [`super::super::verify`] finds.
pub fn parse(text: &str) -> Result<Graph> {
    let mut parser = Parser { graph: Graph::default(), dims: Dims::new(), named: false };
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            parser.line(Cursor::new(line, index + 1))?;
        }
    }
    if !parser.named {
        return Err(Error::format("1:1", "expected `graph \"name\"`"));
    }
    verify(&parser.graph)?;
    Ok(parser.graph)
}

/// Reads a type on its own, like `f32[batch, 2*n+1]`, or `f32` for a scalar. Error: text that is
/// not a type, or a dimension that is not in `dims`.
pub(crate) fn parse_type(text: &str, dims: &Dims) -> Result<Type> {
    let mut cursor = Cursor::new(text, 1);
    let dtype = cursor.one_of("an element type", |word| word.parse::<DType>().ok())?;
    let scalar = cursor.rest().trim().is_empty();
    let sizes = if scalar { Vec::new() } else { cursor.list(|cursor| cursor.size(dims))? };
    cursor.end()?;
    Ok(Type::new(dtype, Shape::new(sizes)))
}

/// Reads a size on its own, like `2*n+1`. Error as [`parse_type`].
pub(crate) fn parse_size(text: &str, dims: &Dims) -> Result<Size> {
    let mut cursor = Cursor::new(text, 1);
    let size = cursor.size(dims)?;
    cursor.end()?;
    Ok(size)
}

struct Parser {
    graph: Graph,
    dims: Dims,
    named: bool,
}

impl Parser {
    fn line(&mut self, mut cursor: Cursor<'_>) -> Result<()> {
        if !self.named {
            cursor.expect("graph")?;
            self.graph.name = cursor.string()?;
            self.named = true;
        } else if cursor.eat("%") {
            self.node(&mut cursor)?;
        } else {
            match cursor.word()? {
                "dim" => self.dim(&mut cursor)?,
                "source" => self.source(&mut cursor)?,
                "output" => self.output(&mut cursor)?,
                "control" => self.control(&mut cursor)?,
                other => {
                    let expected = "a node, `dim`, `source`, `output` or `control`";
                    return Err(cursor.fail(format!("expected {expected}, found `{other}`")));
                }
            }
        }
        cursor.end()
    }

    fn dim(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let name = cursor.dim_name()?;
        let id = self.graph.dim(&name);
        if self.dims.insert(name.clone(), id).is_some() {
            return Err(cursor.fail(format!("the dimension {name} is there twice")));
        }
        Ok(())
    }

    fn source(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let id = cursor.id("s")?;
        if id as usize != self.graph.sources.len() {
            return Err(cursor.fail(format!("expected source s{}, found s{id}", self.graph.sources.len())));
        }
        let role = cursor.one_of("node or data", |word| match word {
            "node" => Some(SourceRole::Node),
            "data" => Some(SourceRole::Data),
            _ => None,
        })?;
        let mut source = Source::new(cursor.string()?, cursor.string()?, role);
        if cursor.eat("pin=") {
            source.pin = Some(cursor.string()?);
        }
        if cursor.eat("colocate=") {
            source.colocate = Some(cursor.string()?);
        }
        if cursor.eat("consumer=") {
            source.consumer = Some(SourceId(cursor.id("s")?));
        }
        if cursor.eat("forward=") {
            source.forward = Some(SourceId(cursor.id("s")?));
        }
        if cursor.eat("phase=") {
            source.phase = cursor.one_of("backward or update", |word| match word {
                "backward" => Some(Phase::Backward),
                "update" => Some(Phase::Update),
                _ => None,
            })?;
        }
        if cursor.eat("noise=") {
            source.noise = Some(noise(cursor)?);
        }
        self.graph.add_source(source);
        Ok(())
    }

    fn output(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let name = cursor.string()?;
        let value = self.value(cursor)?;
        if let Some(dtype) = supplied(cursor)? {
            self.graph.take_output(&name, dtype);
        }
        if cursor.eat("counted=") {
            let by = cursor.string()?;
            cursor.expect("(")?;
            let axis = cursor.integer()?;
            cursor.expect(")")?;
            self.graph.count_output(&name, Counted { axis, by });
        }
        self.graph.add_output(name, value);
        Ok(())
    }

    fn control(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let before = self.value(cursor)?;
        cursor.expect("->")?;
        let after = self.value(cursor)?;
        let node = |value| self.graph.value(value).node;
        let (before, after) = (node(before), node(after));
        self.graph.add_control(before, after).map_err(|_| cursor.fail("the control does not point forward"))
    }

    /// A value that is there.
    fn value(&self, cursor: &mut Cursor<'_>) -> Result<ValueId> {
        let id = cursor.id("%")?;
        if id as usize >= self.graph.value_count() {
            return Err(cursor.fail(format!("%{id} is not made before this line")));
        }
        Ok(ValueId(id))
    }

    /// `%3: f32[2], %4: i64[2] = op ... @s0`, after the first `%`.
    fn node(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let mut types = Vec::new();
        loop {
            let expected = self.graph.value_count() + types.len();
            let found: usize = cursor.integer()?;
            if found != expected {
                return Err(cursor.fail(format!("expected value %{expected}, found %{found}")));
            }
            cursor.expect(":")?;
            types.push(self.ty(cursor)?);
            if cursor.eat("=") {
                break;
            }
            cursor.expect(",")?;
            cursor.expect("%")?;
        }
        let name = cursor.word()?;
        let mut operands = Vec::new();
        while cursor.rest().trim_start().starts_with('%') || (!operands.is_empty() && cursor.eat(",")) {
            operands.push(self.value(cursor)?);
        }
        let op = self.op(cursor, name, &types)?;
        if op.results() != types.len() {
            let (expected, found) = (op.results(), types.len());
            return Err(cursor.fail(format!("expected {expected} results of {name}, found {found}")));
        }
        cursor.expect("@")?;
        let source = SourceId(cursor.id("s")?);
        if source.index() >= self.graph.sources.len() {
            return Err(cursor.fail(format!("there is no source {source} before this line")));
        }
        let id = self.graph.append(op, &operands, types, source);
        verify_node(&self.graph, id).map_err(|error| cursor.fail(error.to_string()))
    }

    fn ty(&self, cursor: &mut Cursor<'_>) -> Result<Type> {
        let dtype = cursor.one_of("an element type", |word| word.parse::<DType>().ok())?;
        let sizes = cursor.list(|cursor| cursor.size(&self.dims))?;
        Ok(Type::new(dtype, Shape::new(sizes)))
    }

    /// An operation with its attributes; leaves bring their entries with them.
    fn op(&mut self, cursor: &mut Cursor<'_>, name: &str, types: &[Type]) -> Result<Op> {
        let Some(ty) = types.first() else { return Err(cursor.fail("expected a result")) };
        match name {
            "input" => {
                let value = ValueId(self.graph.value_count() as u32);
                let name = cursor.string()?;
                if let Some(dtype) = supplied(cursor)? {
                    self.graph.supply_input(&name, dtype);
                }
                if cursor.eat("box=") {
                    self.graph.box_input(&name, box_of(cursor)?);
                }
                self.graph.inputs.push((name, value));
                Ok(Op::Input)
            }
            "param" => {
                let id = ParamId(self.graph.params.len() as u32);
                let param = self.param(cursor, ty)?;
                self.graph.params.push(param);
                Ok(Op::Param(id))
            }
            "constant" => {
                let id = ConstId(self.graph.constants.len() as u32);
                self.graph.constants.push(literal(cursor, ty)?);
                Ok(Op::Constant(id))
            }
            _ => op(cursor, name, &self.dims, ty),
        }
    }

    fn param(&self, cursor: &mut Cursor<'_>, ty: &Type) -> Result<Param> {
        let name = cursor.string()?;
        cursor.attribute("init")?;
        let init = init(cursor)?;
        let supplied = supplied(cursor)?;
        let update = if cursor.eat("update=") { Some(cursor.id("")?) } else { None };
        let statistic = if cursor.eat("statistic=") { Some(statistic(cursor)?) } else { None };
        let slice = if cursor.eat("slice=") { Some(box_of(cursor)?) } else { None };
        let permuted: Option<Vec<u32>> =
            if cursor.eat("permuted=") { Some(cursor.list(Cursor::integer)?) } else { None };
        let repacked = if cursor.eat("repacked=") { Some(repacked(cursor)?) } else { None };
        let state = if cursor.eat("state=") { Some(state(cursor)?) } else { None };
        let node = NodeId(self.graph.node_count() as u32);
        let whole = param_type(ty, supplied, slice.as_ref());
        let whole = match repacked {
            Some(Repacked { columns, turned, .. }) => matrix_type(&whole, columns, turned),
            None => supplied_order(whole, permuted.as_deref()),
        };
        let data = if cursor.eat("data=") { Some(data(cursor, &whole)?) } else { None };
        Ok(Param { name, node, init, data, supplied, update, statistic, slice, permuted, repacked, state })
    }
}

/// `kept`, or `grows(2)`.
fn state(cursor: &mut Cursor<'_>) -> Result<State> {
    if cursor.eat("kept") {
        return Ok(State { grows: None });
    }
    cursor.expect("grows(")?;
    let grows = Some(cursor.integer()?);
    cursor.expect(")")?;
    Ok(State { grows })
}

/// The type of a parameter's data: of what it is given in, before it is cut.
fn param_type(ty: &Type, supplied: Option<DType>, slice: Option<&BoxOf>) -> Type {
    let whole = slice.map_or_else(|| ty.clone(), |slice| slice.whole(ty));
    Type { dtype: supplied.unwrap_or(ty.dtype), ..whole }
}

/// The type of what is supplied, where axes are held in another order.
fn supplied_order(held: Type, order: Option<&[u32]>) -> Type {
    let Some(order) = order else { return held };
    let mut sizes = held.shape.sizes().to_vec();
    for (size, &axis) in held.shape.sizes().iter().zip(order) {
        if let Some(own) = sizes.get_mut(axis as usize) {
            own.clone_from(size);
        }
    }
    Type { shape: Shape::new(sizes), ..held }
}

/// The type of the matrix that packed rows are made of.
fn matrix_type(packed: &Type, columns: i64, turned: bool) -> Type {
    let rows = packed.shape.sizes().first().cloned().unwrap_or(Size::Known(0));
    let columns = Size::Known(columns);
    Type::new(DType::F32, Shape::new(if turned { [columns, rows] } else { [rows, columns] }))
}

fn repacked(cursor: &mut Cursor<'_>) -> Result<Repacked> {
    let whole = |name: &str| BlockFormat::from_name(name).map(Some);
    let named = |name: &str| if name == "groups" { Some(None) } else { whole(name) };
    let format = cursor.one_of("a format of blocks", named)?;
    cursor.expect("(")?;
    let columns = cursor.integer()?;
    cursor.expect(",")?;
    let turned = cursor.bool()?;
    let (format, piece) = match format {
        Some(format) => (format, Piece::Bytes),
        None => groups(cursor)?,
    };
    cursor.expect(")")?;
    Ok(Repacked { format, columns, turned, piece })
}

/// `, 4, 128, scales`: groups of so many bits and numbers, and what of them is held.
fn groups(cursor: &mut Cursor<'_>) -> Result<(BlockFormat, Piece)> {
    cursor.expect(",")?;
    let bits = cursor.integer()?;
    cursor.expect(",")?;
    let size = cursor.integer()?;
    cursor.expect(",")?;
    let piece = cursor.one_of("a piece of blocks", Piece::from_name)?;
    Ok((BlockFormat::Groups { bits, size }, piece))
}

/// `x(0 of 24, 8 of 16)`
fn box_of(cursor: &mut Cursor<'_>) -> Result<BoxOf> {
    let name = cursor.string()?;
    let axes = cursor.entries("(", ")", |cursor| {
        let start = cursor.integer()?;
        cursor.expect("of")?;
        Ok((start, cursor.integer()?))
    })?;
    Ok(BoxOf { name, axes })
}

fn noise(cursor: &mut Cursor<'_>) -> Result<Noise> {
    let kind = cursor.one_of("a kind of noise", NoiseKind::from_name)?;
    cursor.expect("(")?;
    let rate = cursor.real()?;
    let noise = Noise::new(kind, rate.0).ok_or_else(|| cursor.fail(format!("{kind} has no rate {rate}")))?;
    cursor.expect(",")?;
    cursor.attribute("shared")?;
    let shared = cursor.list(Cursor::integer)?;
    cursor.expect(")")?;
    Ok(Noise { shared, ..noise })
}

fn statistic(cursor: &mut Cursor<'_>) -> Result<Statistic> {
    let kind = cursor.one_of("mean, variance or sample_variance", |word| match word {
        "mean" => Some(StatisticKind::Mean),
        "variance" => Some(StatisticKind::Variance),
        "sample_variance" => Some(StatisticKind::SampleVariance),
        _ => None,
    })?;
    cursor.expect("(")?;
    let momentum = cursor.real()?;
    cursor.expect(")")?;
    Ok(Statistic { kind, momentum })
}

fn data(cursor: &mut Cursor<'_>, ty: &Type) -> Result<Data> {
    if !cursor.eat("sum(") {
        return stored(cursor, ty);
    }
    let matrix = Box::new(stored(cursor, ty)?);
    cursor.expect(",")?;
    let added = Box::new(low_rank(cursor)?);
    cursor.expect(")")?;
    Ok(Data::Sum { matrix, added })
}

/// Data that is in one place.
fn stored(cursor: &mut Cursor<'_>, ty: &Type) -> Result<Data> {
    let kind = cursor.word()?;
    cursor.expect("(")?;
    let data = match kind {
        "inline" => Data::Inline(literal(cursor, ty)?),
        "file" => {
            let path = cursor.string()?.into();
            cursor.expect(",")?;
            let offset = cursor.integer()?;
            cursor.expect(",")?;
            Data::File { path, offset, length: cursor.integer()? }
        }
        "array" => {
            let path = cursor.string()?.into();
            cursor.expect(",")?;
            Data::Array { path, name: cursor.string()? }
        }
        other => return Err(cursor.fail(format!("expected inline, file, array or sum, found {other}"))),
    };
    cursor.expect(")")?;
    Ok(data)
}

fn low_rank(cursor: &mut Cursor<'_>) -> Result<LowRank> {
    let path = cursor.string()?.into();
    cursor.expect(",")?;
    let left = cursor.string()?;
    cursor.expect(",")?;
    let right = cursor.string()?;
    cursor.expect(",")?;
    let factor = cursor.real()?;
    cursor.expect(",")?;
    let turned = cursor.one_of("true or false", |word| word.parse().ok())?;
    Ok(LowRank { path, left, right, factor, turned })
}

fn init(cursor: &mut Cursor<'_>) -> Result<Init> {
    let kind = cursor.word()?;
    if kind == "unit_forget_bias" {
        return Ok(Init::UnitForgetBias);
    }
    cursor.expect("(")?;
    let first = cursor.real()?;
    let init = match kind {
        "constant" => Init::Constant(first),
        "orthogonal" => Init::Orthogonal { gain: first },
        "identity" => Init::Identity { gain: first },
        "uniform" => {
            cursor.expect(",")?;
            Init::Uniform { low: first, high: cursor.real()? }
        }
        "normal" | "truncated_normal" => {
            cursor.expect(",")?;
            Init::Normal { mean: first, deviation: cursor.real()?, truncated: kind == "truncated_normal" }
        }
        "variance_scaling" => {
            cursor.expect(",")?;
            let fan = cursor.one_of("in, out or average", fan)?;
            cursor.expect(",")?;
            let distribution = cursor.one_of("a distribution", distribution)?;
            Init::VarianceScaling { scale: first, fan, distribution }
        }
        other => return Err(cursor.fail(format!("expected an initialiser, found {other}"))),
    };
    cursor.expect(")")?;
    Ok(init)
}

fn fan(word: &str) -> Option<Fan> {
    match word {
        "in" => Some(Fan::In),
        "out" => Some(Fan::Out),
        "average" => Some(Fan::Average),
        _ => None,
    }
}

fn distribution(word: &str) -> Option<Distribution> {
    match word {
        "truncated_normal" => Some(Distribution::TruncatedNormal),
        "normal" => Some(Distribution::Normal),
        "uniform" => Some(Distribution::Uniform),
        _ => None,
    }
}

/// The data of a tensor of this type: `{1, 2}` or `0x0102`.
fn literal(cursor: &mut Cursor<'_>, ty: &Type) -> Result<Tensor> {
    let dims: Option<Vec<u64>> =
        ty.shape.sizes().iter().map(|size| size.known().and_then(|size| u64::try_from(size).ok())).collect();
    let dims = dims.ok_or_else(|| cursor.fail("expected known sizes of data"))?;
    let bytes = if cursor.eat("0x") { hexadecimal(cursor)? } else { numbers(cursor, ty.dtype)? };
    Tensor::new(ty.dtype, dims, bytes).map_err(|error| cursor.fail(error.to_string()))
}

fn numbers(cursor: &mut Cursor<'_>, dtype: DType) -> Result<Vec<u8>> {
    let parts = cursor.entries("{", "}", |cursor| {
        Ok(match dtype {
            DType::F32 => cursor.number::<f32>()?.to_le_bytes().to_vec(),
            DType::F64 => cursor.number::<f64>()?.to_le_bytes().to_vec(),
            DType::I8 => cursor.integer::<i8>()?.to_le_bytes().to_vec(),
            DType::I16 => cursor.integer::<i16>()?.to_le_bytes().to_vec(),
            DType::I32 => cursor.integer::<i32>()?.to_le_bytes().to_vec(),
            DType::I64 => cursor.integer::<i64>()?.to_le_bytes().to_vec(),
            DType::U8 => vec![cursor.integer::<u8>()?],
            DType::U16 => cursor.integer::<u16>()?.to_le_bytes().to_vec(),
            DType::U32 => cursor.integer::<u32>()?.to_le_bytes().to_vec(),
            DType::U64 => cursor.integer::<u64>()?.to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(cursor.bool()?)],
            DType::F16 | DType::Bf16 => {
                return Err(cursor.fail(format!("expected 0x... for data of {dtype}")));
            }
        })
    })?;
    Ok(parts.concat())
}

fn hexadecimal(cursor: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let digits = cursor.hexadecimal();
    if !digits.len().is_multiple_of(2) {
        return Err(cursor.fail("expected two digits for each byte"));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    Ok(digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

/// The type in which callers hand something over, where it is held in another.
fn supplied(cursor: &mut Cursor<'_>) -> Result<Option<DType>> {
    match cursor.eat("supplied=") {
        true => cursor.one_of("a type", |word| word.parse().ok()).map(Some),
        false => Ok(None),
    }
}
