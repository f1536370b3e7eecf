//! A dense layer whose product is an equation between axes.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, Init, Op, ReduceKind, Size, ValueId};

/// Keras' `EinsumDense`: `activation(einsum(equation, x, kernel) + bias)`.
#[derive(Debug)]
pub(super) struct EinsumDense {
    equation: String,
    axes: Equation,
    /// Sizes of the result without the batch and what `...` stands for; none where the input tells.
    output: Vec<Option<i64>>,
    /// Axes of the result that the bias has.
    bias_axes: Vec<char>,
    kernel: Init,
    bias: Init,
    activation: Activation,
}

/// The axes of input, kernel and result, a letter each. What `...` stands for is before or behind all others of
/// input and result.
#[derive(Debug, Default)]
struct Equation {
    input: Vec<char>,
    kernel: Vec<char>,
    result: Vec<char>,
    ellipsis: Ellipsis,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ellipsis {
    #[default]
    None,
    Before,
    Behind,
}

impl Equation {
    /// None where it is not of the forms that Keras takes.
    fn parse(text: &str) -> Option<Self> {
        let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (operands, result) = text.split_once("->")?;
        let (input, kernel) = operands.split_once(',')?;
        let ellipsis = match (input.strip_prefix("..."), input.strip_suffix("...")) {
            (Some(_), Some(_)) if input == "..." => return None,
            (Some(_), _) => Ellipsis::Before,
            (None, Some(_)) => Ellipsis::Behind,
            (None, None) => Ellipsis::None,
        };
        let letters = |side: &str| {
            let side = match ellipsis {
                Ellipsis::None => side,
                Ellipsis::Before => side.strip_prefix("...")?,
                Ellipsis::Behind => side.strip_suffix("...")?,
            };
            letters(side)
        };
        let found = Self {
            input: letters(input)?,
            kernel: self::letters(kernel)?,
            result: letters(result)?,
            ellipsis,
        };
        let of_operand = |letter: &char| found.input.contains(letter) || found.kernel.contains(letter);
        let kept = |letter: &&char| found.kernel.contains(letter) || found.result.contains(letter);
        (found.result.iter().all(of_operand) && found.input.iter().filter(kept).count() == found.input.len())
            .then_some(found)
    }
}

/// Letters, each once.
fn letters(text: &str) -> Option<Vec<char>> {
    let letters: Vec<char> = text.chars().collect();
    let unique = letters.iter().enumerate().all(|(at, letter)| !letters[..at].contains(letter));
    (unique && letters.iter().all(char::is_ascii_alphabetic)).then_some(letters)
}

impl EinsumDense {
    pub(super) fn read(
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        let equation = config.text("equation")?.ok_or_else(|| config.missing("equation"))?;
        let axes = Equation::parse(equation);
        if axes.is_none() {
            unsupported.add(config.place(), format!("equation {equation}"));
        }
        let output = match config.get("output_shape") {
            Some(serde_json::Value::Array(_)) => config.shape("output_shape")?.unwrap_or_default(),
            _ => config.int_or_ints("output_shape")?.unwrap_or_default().into_iter().map(Some).collect(),
        };
        Ok(Self {
            equation: equation.to_owned(),
            axes: axes.unwrap_or_default(),
            output,
            bias_axes: config.text("bias_axes")?.unwrap_or("").chars().collect(),
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            bias: initialiser(config, "bias_initializer", Init::zeros(), unsupported)?,
            activation: Activation::read(config, "activation", "linear", version, unsupported)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let spread = self.spread(site, x)?;
        let size = |letter: char| self.size(site, x, &spread, letter);
        let kernel_dims = self.axes.kernel.iter().map(|&letter| size(letter));
        let kernel_dims: Vec<i64> = kernel_dims.collect::<Result<_>>()?;
        let bias_dims = self.bias_dims(&size)?;

        let kernel_axes: Vec<Axis> = self.axes.kernel.iter().map(|&letter| Axis::Letter(letter)).collect();
        let kernel = site.weight("kernel", &kernel_dims, &self.kernel)?;
        let (left, right) =
            (Operand { value: x, axes: &spread.input }, Operand { value: kernel, axes: &kernel_axes });
        let value = contracted(site, &left, &right, &self.result(&spread))?;
        let mut value = value.ok_or_else(|| self.wrong(site))?;
        if let Some(dims) = bias_dims {
            let bias = site.weight("bias", &dims, &self.bias)?;
            value = site.binary(Binary::Add, value, bias)?;
        }
        self.activation.lower(site, value)
    }

    fn wrong(&self, site: &Site<'_>) -> crate::error::Error {
        site.error(&format!("equation {} does not fit the input and output_shape", self.equation))
    }

    /// Which axis each of the input's is.
    fn spread(&self, site: &Site<'_>, x: ValueId) -> Result<Spread> {
        let more = site.rank(x).checked_sub(self.axes.input.len()).ok_or_else(|| self.wrong(site))?;
        if more > 0 && self.axes.ellipsis == Ellipsis::None {
            return Err(self.wrong(site));
        }
        let others: Vec<Axis> = (0..more).map(Axis::Other).collect();
        let letters: Vec<Axis> = self.axes.input.iter().map(|&letter| Axis::Letter(letter)).collect();
        Ok(Spread { input: self.place(&others, &letters), others })
    }

    fn place(&self, others: &[Axis], letters: &[Axis]) -> Vec<Axis> {
        match self.axes.ellipsis {
            Ellipsis::None | Ellipsis::Before => [others, letters].concat(),
            Ellipsis::Behind => [letters, others].concat(),
        }
    }

    fn result(&self, spread: &Spread) -> Vec<Axis> {
        let letters: Vec<Axis> = self.axes.result.iter().map(|&letter| Axis::Letter(letter)).collect();
        self.place(&spread.others, &letters)
    }

    /// The size of a letter's axis: the input's, or what the configuration says of the result's.
    fn size(&self, site: &Site<'_>, x: ValueId, spread: &Spread, letter: char) -> Result<i64> {
        if let Some(axis) = spread.input.iter().position(|&axis| axis == Axis::Letter(letter)) {
            return site.known(x, axis);
        }
        let position = self.axes.result.iter().position(|&other| other == letter);
        // The configuration leaves out the batch, which is the first letter unless `...` holds it.
        let before = match self.axes.ellipsis {
            Ellipsis::Before => 0,
            Ellipsis::None | Ellipsis::Behind => 1,
        };
        let stated = position.and_then(|position| position.checked_sub(before));
        stated.and_then(|at| self.output.get(at).copied().flatten()).ok_or_else(|| self.wrong(site))
    }

    /// Sizes of the bias, which broadcasts with the result; none without one.
    fn bias_dims(&self, size: &dyn Fn(char) -> Result<i64>) -> Result<Option<Vec<i64>>> {
        if self.bias_axes.is_empty() {
            return Ok(None);
        }
        let result = self.axes.result.iter();
        let all = result.map(|letter| if self.bias_axes.contains(letter) { size(*letter) } else { Ok(1) });
        let mut dims = all.collect::<Result<Vec<i64>>>()?;
        let first = self.axes.result.iter().position(|letter| self.bias_axes.contains(letter)).unwrap_or(0);
        dims.drain(..first);
        Ok(Some(dims))
    }
}

/// An axis of the input or of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Letter(char),
    /// One of those that `...` stands for.
    Other(usize),
}

struct Spread {
    input: Vec<Axis>,
    others: Vec<Axis>,
}

/// A tensor and what its axes are.
struct Operand<'a> {
    value: ValueId,
    axes: &'a [Axis],
}

/// As one product of matrices for each element of the axes that all three have: the first operand's other axes that stay
/// are its rows, the second's its columns, and what the result lacks is summed. None where an axis of the result is of
/// neither.
fn contracted(
    site: &mut Site<'_>,
    left: &Operand<'_>,
    right: &Operand<'_>,
    result: &[Axis],
) -> Result<Option<ValueId>> {
    let in_right = |axis: &Axis| right.axes.contains(axis);
    let in_result = |axis: &Axis| result.contains(axis);
    let own = |holds: &dyn Fn(&Axis) -> bool| -> Vec<Axis> {
        left.axes.iter().copied().filter(|axis| holds(axis)).collect()
    };
    let shared = own(&|axis| in_right(axis) && in_result(axis));
    let rows = own(&|axis| !in_right(axis));
    let summed = own(&|axis| in_right(axis) && !in_result(axis));
    let columns: Vec<Axis> = right.axes.iter().copied().filter(|axis| !left.axes.contains(axis)).collect();
    let (x, left_sizes) = matrices(site, left.value, left.axes, [&shared, &rows, &summed])?;
    let (y, right_sizes) = matrices(site, right.value, right.axes, [&shared, &summed, &columns])?;
    let product = site.matmul(x, y, false)?;
    let order: Vec<Axis> = [shared.as_slice(), &rows, &columns].concat();
    let sizes: Vec<Size> =
        [&left_sizes[..shared.len() + rows.len()], &right_sizes[shared.len() + summed.len()..]].concat();
    let product = site.reshape(product, sizes)?;
    let perm: Option<Vec<usize>> =
        result.iter().map(|axis| order.iter().position(|other| other == axis)).collect();
    perm.map(|perm| site.transpose(product, &perm)).transpose()
}

/// `keras.ops.einsum` of one or two tensors whose axes have a letter each, none twice.
pub(super) fn einsum(site: &mut Site<'_>, equation: &str, values: &[ValueId]) -> Result<ValueId> {
    let text: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let parsed = text.split_once("->").and_then(|(operands, result)| {
        let operands: Option<Vec<Vec<char>>> = operands.split(',').map(letters).collect();
        Some((operands?, letters(result)?))
    });
    let unfit = |site: &Site<'_>| site.unsupported(&format!("the equation {equation} of such operands"));
    let Some((operands, result)) = parsed.filter(|(operands, _)| operands.len() == values.len()) else {
        return Err(unfit(site));
    };
    let axes = |letters: &[char]| letters.iter().map(|&letter| Axis::Letter(letter)).collect::<Vec<Axis>>();
    let result = axes(&result);
    let mut left: Vec<(ValueId, Vec<Axis>)> = Vec::new();
    for (at, (&value, letters)) in values.iter().zip(&operands).enumerate() {
        if site.rank(value) != letters.len() {
            return Err(unfit(site));
        }
        // Axes that nothing else has are summed first.
        let elsewhere = |letter: &char| {
            let others = operands.iter().enumerate().filter(|(other, _)| *other != at);
            result.contains(&Axis::Letter(*letter))
                || others.flat_map(|(_, letters)| letters).any(|own| own == letter)
        };
        let alone: Vec<u32> =
            (0..).zip(letters).filter(|(_, own)| !elsewhere(own)).map(|(axis, _)| axis).collect();
        let kept: Vec<char> = letters.iter().copied().filter(|letter| elsewhere(letter)).collect();
        let value = match alone.is_empty() {
            true => value,
            false => site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: alone, keep: false }, &[value])?,
        };
        left.push((value, axes(&kept)));
    }
    let value = match left.as_slice() {
        [(x, own)] => {
            let perm: Option<Vec<usize>> =
                result.iter().map(|axis| own.iter().position(|other| other == axis)).collect();
            perm.map(|perm| site.transpose(*x, &perm)).transpose()?
        }
        [(x, own), (y, others)] => {
            let (left, right) = (Operand { value: *x, axes: own }, Operand { value: *y, axes: others });
            contracted(site, &left, &right, &result)?
        }
        _ => None,
    };
    value.ok_or_else(|| unfit(site))
}

/// `x` as matrices: `[shared, product of rows, product of columns]`, and the sizes of its axes in that order.
fn matrices(
    site: &mut Site<'_>,
    x: ValueId,
    axes: &[Axis],
    groups: [&[Axis]; 3],
) -> Result<(ValueId, Vec<Size>)> {
    let perm: Vec<usize> =
        groups.concat().iter().filter_map(|axis| axes.iter().position(|other| other == axis)).collect();
    let value = site.transpose(x, &perm)?;
    let sizes = site.sizes(value);
    let (shared, rest) = sizes.split_at(groups[0].len());
    let (rows, columns) = rest.split_at(groups[1].len());
    let mut matrix = shared.to_vec();
    matrix.extend([site.product(rows)?, site.product(columns)?]);
    Ok((site.reshape(value, matrix)?, sizes))
}
