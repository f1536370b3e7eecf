//! A dense layer whose product is an equation between axes.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, Init, Size, ValueId};

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
        if config.get("lora_rank").is_some() {
            unsupported.add(config.place(), "lora_rank");
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

    /// As one product of matrices for each element of the axes that all three have: the input's other axes that stay
    /// are its rows, the kernel's its columns, and what the result lacks is summed.
    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let spread = self.spread(site, x)?;
        let size = |letter: char| self.size(site, x, &spread, letter);
        let kernel_dims = self.axes.kernel.iter().map(|&letter| size(letter));
        let kernel_dims: Vec<i64> = kernel_dims.collect::<Result<_>>()?;
        let bias_dims = self.bias_dims(&size)?;

        let in_kernel = |axis: &Axis| axis.letter().is_some_and(|letter| self.axes.kernel.contains(&letter));
        let in_input = |letter: &char| self.axes.input.contains(letter);
        let result = self.result(&spread);
        let in_result = |axis: &Axis| result.contains(axis);
        let shared: Vec<Axis> =
            spread.input.iter().copied().filter(|axis| in_kernel(axis) && in_result(axis)).collect();
        let rows: Vec<Axis> = spread.input.iter().copied().filter(|axis| !in_kernel(axis)).collect();
        let summed: Vec<Axis> =
            spread.input.iter().copied().filter(|axis| in_kernel(axis) && !in_result(axis)).collect();
        let kernel_axes: Vec<Axis> = self.axes.kernel.iter().map(|&letter| Axis::Letter(letter)).collect();
        let columns: Vec<Axis> =
            self.axes.kernel.iter().filter(|letter| !in_input(letter)).map(|&l| Axis::Letter(l)).collect();

        let kernel = site.weight("kernel", &kernel_dims, &self.kernel)?;
        let (left, left_sizes) = matrices(site, x, &spread.input, [&shared, &rows, &summed])?;
        let (right, right_sizes) = matrices(site, kernel, &kernel_axes, [&shared, &summed, &columns])?;
        let product = site.matmul(left, right, false)?;
        let order: Vec<Axis> = [shared.as_slice(), &rows, &columns].concat();
        let sizes: Vec<Size> =
            [&left_sizes[..shared.len() + rows.len()], &right_sizes[shared.len() + summed.len()..]].concat();
        let product = site.reshape(product, sizes)?;
        let perm: Option<Vec<usize>> =
            result.iter().map(|axis| order.iter().position(|other| other == axis)).collect();
        let perm = perm.ok_or_else(|| self.wrong(site))?;
        let mut value = site.transpose(product, &perm)?;
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

impl Axis {
    fn letter(self) -> Option<char> {
        match self {
            Self::Letter(letter) => Some(letter),
            Self::Other(_) => None,
        }
    }
}

struct Spread {
    input: Vec<Axis>,
    others: Vec<Axis>,
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
