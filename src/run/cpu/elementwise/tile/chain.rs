//! Operations on f32, and on halves as f32, that follow one another, on vectors that stay in registers in between.
//!
//! A [`Chain`] reads one operand, and each of its links makes of what was made before, and of at most one more
//! operand, what the next is given. Eight vectors at a time go through all links: what is between two is never
//! written, and memory that is read and written is asked for evenly.

use crate::ir::{Binary, DType, Unary};

use super::super::super::stored::{Stored, rounded};
use super::super::super::vectors::{Lanes, Stores, Task, fetch};
use super::super::super::view::{Bf16, F16};
use super::super::math;

/// Operands of a chain, at most.
pub(crate) const OPERANDS: usize = 8;

/// Vectors that go through the links together.
const VECTORS: usize = 8;

/// Numbers of a vector, at most.
const WIDEST: usize = 16;

/// Bytes that reading is ahead of what is computed.
const AHEAD: usize = 512;

/// A type whose numbers are computed in f32 and rounded after each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    Bf16,
}

impl Half {
    /// That type, where it is one.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::Bf16 => Some(Self::Bf16),
            _ => None,
        }
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
        }
    }
}

/// One operation of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Unary(Unary),
    /// Of what was made, twice.
    Twice(Binary),
    /// Of what was made and an operand of the chain.
    With(Binary, usize),
    /// Of an operand of the chain and what was made.
    Of(Binary, usize),
    /// The nearest numbers of a type.
    Round(Half),
}

/// True where a link can be such an operation.
pub(crate) fn is_unary_link(unary: Unary) -> bool {
    math::is_elementary(unary)
        || matches!(unary, Unary::Neg | Unary::Abs | Unary::Sqrt | Unary::Reciprocal | Unary::Relu)
}

/// True where a link can be such an operation.
pub(crate) fn is_binary_link(binary: Binary) -> bool {
    matches!(binary, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min)
}

/// A chain on operands that lie somewhere: as many elements of each as are written.
pub(crate) struct Chain<'a> {
    /// The first is what the first link is given as made. One number stands for as many; the last ones may be
    /// empty.
    pub(crate) operands: [&'a [f32]; OPERANDS],
    /// Operands that go on where they end: what is there is fetched.
    pub(crate) ahead: [bool; OPERANDS],
    pub(crate) links: &'a [Link],
    pub(crate) out: &'a mut [f32],
    pub(crate) stores: Stores,
}

impl Task<f32> for Chain<'_> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, l: L) {
        let Self { operands, ahead, links, out, stores } = self;
        let (count, block) = (out.len(), VECTORS * L::WIDTH);
        let operands = operands.map(|operand| if operand.len() > 1 { &operand[..count] } else { operand });
        let (whole, single) = (count - count % block, count - count % L::WIDTH);
        for at in (0..whole).step_by(block) {
            for operand in operands.iter().zip(ahead).filter_map(|(operand, ahead)| ahead.then_some(operand))
            {
                fetch(operand[at..].as_ptr().cast::<u8>().wrapping_add(AHEAD), 4 * block);
            }
            through::<L, VECTORS>(l, &operands, links, at, &mut out[at..at + block], stores);
        }
        for at in (whole..single).step_by(L::WIDTH) {
            through::<L, 1>(l, &operands, links, at, &mut out[at..at + L::WIDTH], stores);
        }
        if single < count {
            let mut padded = [[0.0; WIDEST]; OPERANDS];
            for (padded, operand) in padded.iter_mut().zip(operands).filter(|(_, operand)| operand.len() > 1)
            {
                padded[..count - single].copy_from_slice(&operand[single..]);
            }
            let mut made = [0.0; WIDEST];
            let operands =
                std::array::from_fn(|i| if operands[i].len() > 1 { &padded[i][..] } else { operands[i] });
            through::<L, 1>(l, &operands, links, 0, &mut made[..L::WIDTH], Stores::Cached);
            out[single..].copy_from_slice(&made[..count - single]);
        }
    }
}

/// Some vectors through all links.
#[inline(always)]
fn through<L: Lanes<f32>, const N: usize>(
    l: L,
    operands: &[&[f32]; OPERANDS],
    links: &[Link],
    at: usize,
    out: &mut [f32],
    stores: Stores,
) {
    let piece = |operand: usize| &operands[operand][at..][..N * L::WIDTH];
    // One number, or none.
    let same = |operand: usize| match operands[operand] {
        [number] => Some(l.splat(*number)),
        _ => None,
    };
    let mut made = match same(0) {
        Some(number) => [number; N],
        None => {
            let piece = piece(0);
            let mut made = [l.zero(); N];
            for i in 0..N {
                made[i] = l.load(&piece[i * L::WIDTH..][..L::WIDTH]);
            }
            made
        }
    };
    for link in links {
        match *link {
            Link::Round(Half::F16) => round::<L, F16, N>(l, &mut made),
            Link::Round(Half::Bf16) => round::<L, Bf16, N>(l, &mut made),
            Link::Unary(op) => unary(l, op, &mut made),
            Link::Twice(op) => binary(l, op, &mut made, |made, _| (made, made)),
            Link::With(op, operand) => match same(operand) {
                Some(number) => binary(l, op, &mut made, |made, _| (made, number)),
                None => {
                    let piece = piece(operand);
                    binary(l, op, &mut made, |made, i| (made, l.load(&piece[i * L::WIDTH..][..L::WIDTH])));
                }
            },
            Link::Of(op, operand) => match same(operand) {
                Some(number) => binary(l, op, &mut made, |made, _| (number, made)),
                None => {
                    let piece = piece(operand);
                    binary(l, op, &mut made, |made, i| (l.load(&piece[i * L::WIDTH..][..L::WIDTH]), made));
                }
            },
        }
    }
    let out = &mut out[..N * L::WIDTH];
    for i in 0..N {
        l.write(made[i], &mut out[i * L::WIDTH..][..L::WIDTH], stores);
    }
}

#[inline(always)]
fn round<L: Lanes<f32>, S: Stored, const N: usize>(l: L, made: &mut [L::Vector; N]) {
    for i in 0..N {
        made[i] = rounded::<L, S>(l, made[i]);
    }
}

#[inline(always)]
fn unary<L: Lanes<f32>, const N: usize>(l: L, op: Unary, made: &mut [L::Vector; N]) {
    macro_rules! each {
        ($x:ident => $of:expr) => {
            for i in 0..N {
                let $x = made[i];
                made[i] = $of;
            }
        };
    }
    match op {
        Unary::Neg => each!(x => l.sub(l.splat(-0.0), x)),
        Unary::Abs => each!(x => l.magnitude(x)),
        Unary::Exp => each!(x => math::exp(l, x)),
        Unary::Expm1 => each!(x => math::expm1(l, x)),
        Unary::Sqrt => each!(x => l.sqrt(x)),
        Unary::Reciprocal => each!(x => l.div(l.splat(1.0), x)),
        Unary::Tanh => each!(x => math::tanh(l, x)),
        Unary::Sinh => each!(x => math::sinh(l, x)),
        Unary::Cosh => each!(x => math::cosh(l, x)),
        Unary::Softplus => each!(x => math::softplus(l, x)),
        Unary::Sigmoid => each!(x => math::sigmoid(l, x)),
        Unary::Erf => each!(x => math::erf(l, x)),
        Unary::Relu => each!(x => l.larger(l.zero(), x)),
        Unary::Gelu => each!(x => math::gelu(l, x)),
        Unary::GeluTanh => each!(x => math::gelu_tanh(l, x)),
        Unary::Silu => each!(x => math::silu(l, x)),
        _ => {}
    }
}

#[inline(always)]
fn binary<L: Lanes<f32>, const N: usize>(
    l: L,
    op: Binary,
    made: &mut [L::Vector; N],
    sides: impl Fn(L::Vector, usize) -> (L::Vector, L::Vector),
) {
    macro_rules! each {
        (($x:ident, $y:ident) => $of:expr) => {
            for i in 0..N {
                let ($x, $y) = sides(made[i], i);
                made[i] = $of;
            }
        };
    }
    match op {
        Binary::Add => each!((x, y) => l.add(x, y)),
        Binary::Sub => each!((x, y) => l.sub(x, y)),
        Binary::Mul => each!((x, y) => l.mul(x, y)),
        Binary::Div => each!((x, y) => l.div(x, y)),
        // Not a number where either is not, the first where they are equal.
        Binary::Max => each!((x, y) => l.at_least(y, y, l.larger(y, x), y)),
        Binary::Min => each!((x, y) => l.at_least(y, y, l.smaller(y, x), y)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Binary, DType, Op, Unary};
    use crate::run::cpu::elementwise::tile::{Operand, Part, Program, Source, Target};
    use crate::run::cpu::team::Team;
    use crate::run::cpu::view::{bytes_of, bytes_of_mut};

    /// More operands than a chain has, results that are read twice and later, what is made on either side, one
    /// tensor with two shapes, and lengths that are no multiple of a vector.
    #[test]
    fn chains_make_what_their_operations_make_one_by_one() {
        use Operand::{Inside, Outside};
        for (rows, columns) in [(1, 1), (1, 15), (3, 16), (7, 129), (2, 1024), (33, 100)] {
            let count = rows * columns;
            let flat = vec![count];
            let table = vec![rows, columns];
            let mut sources: Vec<Vec<f32>> = (0..10)
                .map(|s| (0..count).map(|i| ((i * 37 + s * 11) % 101) as f32 * 0.01 - 0.4).collect())
                .collect();
            sources.push(vec![0.75]);
            sources.push((0..columns).map(|i| (i % 7) as f32 * 0.1).collect());
            let mut outside: Vec<(DType, Vec<usize>)> = vec![(DType::F32, flat.clone()); 10];
            outside.push((DType::F32, vec![]));
            outside.push((DType::F32, vec![columns]));

            // Operation, operands, and how the result follows from theirs.
            type Made = (Op, Vec<Operand>, fn(f64, f64) -> f64);
            let binary = Op::Binary;
            let mut list: Vec<Made> = vec![
                (binary(Binary::Mul), vec![Outside(0), Outside(10)], |x, y| x * y),
                (binary(Binary::Sub), vec![Outside(1), Inside(0)], |x, y| x - y),
                (binary(Binary::Mul), vec![Inside(1), Inside(1)], |x, y| x * y),
                (Op::Unary(Unary::Tanh), vec![Inside(2)], |x, _| x.tanh()),
                (binary(Binary::Max), vec![Inside(3), Outside(2)], f64::max),
                (Op::Unary(Unary::Exp), vec![Inside(4)], |x, _| x.exp()),
                (binary(Binary::Div), vec![Outside(0), Inside(5)], |x, y| x / y),
                (Op::Unary(Unary::Sigmoid), vec![Inside(4)], |x, _| 1.0 / (1.0 + (-x).exp())),
                (binary(Binary::Add), vec![Inside(7), Inside(6)], |x, y| x + y),
                (binary(Binary::Add), vec![Inside(8), Outside(11)], |x, y| x + y),
            ];
            for s in 3..10 {
                let last = list.len() - 1;
                list.push((binary(Binary::Add), vec![Inside(last), Outside(s)], |x, y| x + y));
            }
            let last = list.len() - 1;
            list.push((binary(Binary::Min), vec![Outside(0), Inside(last)], f64::min));
            let parts: Vec<Part<'_>> = list
                .iter()
                .enumerate()
                .map(|(i, (op, operands, _))| {
                    // The row of factors needs the table's shape; all others are flat, or a table.
                    let dims = if i == 9 { table.clone() } else { flat.clone() };
                    Part { op, operands: operands.clone(), dtype: DType::F32, dims }
                })
                .collect();
            let stores = [(2, 0), (parts.len() - 1, 1)];
            let program = Program::new(count, &outside, &parts, &stores).unwrap();

            let mut exact: Vec<Vec<f64>> = Vec::new();
            for (_, operands, of) in &list {
                let value = |operand: &Operand, i: usize| match *operand {
                    Outside(s) => {
                        f64::from(sources[s][if sources[s].len() == 1 { 0 } else { i % sources[s].len() }])
                    }
                    Inside(p) => exact[p][i],
                };
                let made = (0..count)
                    .map(|i| of(value(&operands[0], i), operands.get(1).map_or(0.0, |y| value(y, i))))
                    .collect();
                exact.push(made);
            }
            let bytes: Vec<Source<'_>> = sources.iter().map(|s| Source::from(bytes_of(s))).collect();
            let (mut one, mut other) = (vec![0.0f32; count], vec![0.0f32; count]);
            let targets = [Target::from(bytes_of_mut(&mut one)), Target::from(bytes_of_mut(&mut other))];
            program.run(&Team::alone(), &bytes, &targets);
            for (found, exact) in [(&one, &exact[2]), (&other, &exact[parts.len() - 1])] {
                for (found, exact) in found.iter().zip(exact) {
                    assert!((f64::from(*found) - exact).abs() < 3e-6, "{rows} x {columns}: {found}, {exact}");
                }
            }
        }
    }
}
