use super::*;
use crate::ir::Window;
use crate::run::cpu::numbers;
use crate::run::cpu::product::blocks::CHAIN;
use crate::run::cpu::vectors::{Lanes, Portable, Task};
use crate::run::cpu::view::bytes_of_mut;

struct Case {
    grid: Grid,
    groups: Groups,
}

/// Input and window, stride, dilation, padding, more at the end, groups with their channels.
type Sizes<'a> = (&'a [usize], &'a [usize], i64, i64, i64, usize, (usize, usize, usize));

impl Case {
    fn new((small, kernel, stride, dilation, pad, more, (count, inner, outer)): Sizes<'_>) -> Self {
        let axes = small.len();
        let reach = |axis: usize| (kernel[axis] - 1) * dilation as usize + 1;
        let size = |axis: usize| (small[axis] - 1) * stride as usize + reach(axis) + more - 2 * pad as usize;
        let large: Vec<usize> = (0..axes).map(size).collect();
        let window = Window {
            strides: vec![stride; axes],
            dilations: vec![dilation; axes],
            pads_before: vec![pad; axes],
            pads_after: vec![pad; axes],
        };
        let grid = Grid::new(&window, small, &large, kernel).unwrap();
        Self { grid, groups: Groups { batch: 2, count, inner, outer } }
    }

    /// Input, weights and bias.
    fn inputs(&self) -> [Vec<f32>; 3] {
        let (positions, window) = (self.grid.positions(), self.grid.kernel.iter().product::<usize>());
        let Groups { batch, count, inner, outer } = self.groups;
        let weights = count * inner * outer * window;
        [numbers(batch * count * inner * positions, 1), numbers(weights, 2), numbers(count * outer, 3)]
    }

    fn size(&self) -> usize {
        self.groups.batch * self.groups.outputs() * self.grid.area()
    }

    /// Each window added up element by element.
    fn expected(&self, bias: Option<&[f32]>) -> Vec<f32> {
        let [x, weights, _] = self.inputs();
        let mut out = vec![0.0; self.size()];
        begin(Layout::ChannelsFirst, &mut out, &self.groups, self.grid.area(), bias);
        let depth = self.groups.outer * self.grid.kernel.iter().product::<usize>();
        let mut memory = vec![0.0; depth * 16];
        let columns = Columns { memory: &mut memory, tile: 16 };
        first(&Team::alone(), &self.grid, &self.groups, &x, &weights, &mut out, columns);
        out
    }

    /// Plane by plane, with so many elements of memory.
    fn found(&self, bias: Option<&[f32]>, memory: usize) -> Option<Vec<f32>> {
        let [x, weights, _] = self.inputs();
        let spread = Spread::new(&self.grid, AREA / 4)?;
        let operands = ConvOperands { x: &x, weights: &weights, bias };
        let (mut out, mut memory) = (numbers(self.size(), 4), vec![0.0; memory]);
        spread_first(&Team::alone(), &spread, &self.groups, operands, &mut out, &mut memory).then_some(out)
    }
}

fn cases() -> Vec<Case> {
    let sizes: [Sizes<'_>; 17] = [
        (&[1, 1], &[4, 4], 1, 1, 0, 0, (1, 5, 7)),
        (&[4, 4], &[4, 4], 2, 1, 1, 0, (1, CHAIN + 9, 5)),
        (&[3, 5], &[2, 2], 2, 1, 0, 0, (1, 3, 4)),
        (&[9, 37], &[2, 2], 2, 1, 0, 0, (1, 3, 4)),
        (&[9, 37], &[2, 2], 2, 1, 0, 1, (2, 3, 2)),
        (&[20, 20], &[3, 3], 1, 1, 1, 0, (1, 3, 6)),
        (&[7, 40], &[3, 3], 2, 1, 1, 1, (1, 2, 3)),
        (&[7, 23], &[3, 3], 3, 1, 1, 0, (1, 2, 3)),
        (&[6, 21], &[3, 3], 1, 2, 2, 0, (3, 1, 1)),
        (&[6, 21], &[3, 3], 2, 3, 2, 0, (1, 2, 2)),
        (&[5, 33], &[1, 2], 4, 1, 0, 0, (1, 2, 3)),
        (&[5, 18], &[4, 4], 4, 1, 0, 0, (1, 2, 3)),
        (&[100], &[16], 8, 1, 4, 0, (1, 6, 3)),
        (&[19], &[8], 8, 1, 0, 0, (1, 6, 3)),
        (&[3, 4, 9], &[3, 3, 3], 2, 1, 1, 1, (1, 3, 2)),
        (&[2, 3, 4], &[2, 3, 2], 1, 1, 0, 0, (2, 2, 2)),
        (&[3, 3], &[2, 2], 7, 1, 0, 2, (1, 2, 2)),
    ];
    sizes.into_iter().map(Case::new).collect()
}

#[test]
fn planes_add_up_to_the_bits_of_windows() {
    for case in cases() {
        let [.., bias] = case.inputs();
        for bias in [None, Some(&bias[..])] {
            let expected = case.expected(bias);
            let row = case.grid.kernel.iter().product::<usize>() * case.grid.small[2];
            let mut tried = 0;
            for memory in [row, 3 * row, 1 << 18] {
                let Some(found) = case.found(bias, memory) else { continue };
                let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{:?} with {memory}", case.grid);
                tried += 1;
            }
            assert_eq!(tried, 3, "{:?}", case.grid);
        }
    }
}

#[test]
fn large_strides_have_no_phases() {
    let case = Case::new((&[5, 9], &[40, 40], 33, 1, 0, 0, (1, 2, 2)));
    assert!(case.found(None, 1 << 18).is_none());
}

fn with<L: Lanes<f32>>(lanes: L, case: &Case) -> Vec<f32> {
    let spread = Spread::new(&case.grid, AREA / 4).unwrap();
    let sums = numbers(spread.window() * case.grid.positions() * case.groups.outer, 5);
    let mut out = vec![0.0; case.groups.outer * case.grid.area()];
    let mut area = vec![0u64; AREA / 8];
    let rows = 0..case.grid.positions() / case.grid.small[2];
    let area = bytes_of_mut(&mut area);
    Planes { spread: &spread, sums: &sums, rows, begin: None, out: &mut out, area }.run(lanes);
    out
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_instruction_set_adds_up_the_same_bits() {
    use crate::run::cpu::vectors::{Avx2, Avx512};
    for case in cases() {
        let expected = with(Portable, &case);
        if let Some(lanes) = Avx2::find() {
            assert_eq!(with(lanes, &case), expected, "{:?}", case.grid);
        }
        if let Some(lanes) = Avx512::find() {
            assert_eq!(with(lanes, &case), expected, "{:?}", case.grid);
        }
    }
}
