//! Tiles of products on tensor cores and of f32, whose sizes leave few where there are many blocks: each on a matrix of a few tiles
//! with ends, through more pieces than are in shared memory at once, beside sums in f64.

use partition::unstable::emit::{Kernel, Template};
use partition::unstable::run::cuda::{Begin, Driver, Launch, Toolchain};

use crate::emulator::{Build, CpuToolchain, Emulator};

/// A template of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `product_mma`.
    Tensor,
    /// `product_groups`.
    Groups,
    /// `product_tiled_large`, of f32.
    Single,
}

/// A tile of a template.
#[derive(Clone, Copy, Debug)]
struct Tile {
    form: Form,
    rows: usize,
    columns: usize,
    threads: u32,
    stages: usize,
    left_along: bool,
    right_along: bool,
    wide: [bool; 2],
    /// Eight neighbours are stored at once.
    beside: bool,
}

impl Tile {
    /// Bytes of shared memory.
    fn shared(self) -> u32 {
        // As `Operand` lays pieces out, and as panels are.
        let halves_of = |along: bool, side: usize| if along { side * 40 } else { 32 * (side + 8) };
        let stage = 2 * (halves_of(self.left_along, self.rows) + halves_of(self.right_along, self.columns));
        let bytes = match self.form {
            Form::Groups => self.stages * 128 * (self.rows + self.columns) + 1024,
            Form::Tensor => self.stages * stage,
            Form::Single => 0,
        };
        bytes as u32
    }

    fn call(self) -> String {
        let Self { rows, columns, threads, stages, left_along, right_along, wide: [left, right], .. } = self;
        match self.form {
            Form::Single => {
                format!("product_tiled_large<Operands, {rows}, {columns}, {left_along}, {right_along}>")
            }
            Form::Groups => {
                format!("product_groups<Operands, bf16, {rows}, {columns}, {stages}, {right_along}>")
            }
            Form::Tensor => format!(
                "product_mma<Operands, bf16, {rows}, {columns}, {threads}, {stages}, {left_along}, {right_along}, {left}, {right}>"
            ),
        }
    }
}

/// Halves between -1 and 1.
fn halves(count: usize, seed: u32) -> Vec<u16> {
    let bits = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed).wrapping_mul(747_796_405);
    (0..count)
        .map(|i| ((bits(i) >> 24) as f32 / 128.0 - 1.0).to_bits())
        .map(|bits| (bits >> 16) as u16)
        .collect()
}

fn wide(half: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(half) << 16))
}

fn text(tile: Tile, [m, n, k]: [usize; 3]) -> String {
    let Tile { threads, left_along, right_along, beside, .. } = tile;
    let call = tile.call();
    let at_left = if left_along { "m * K + k" } else { "k * M + m" };
    let at_right = if right_along { "n * K + k" } else { "k * N + n" };
    format!(
        "struct Operands {{
  typedef float T;
  typedef i32 I;
  static const i64 BATCH = 1, M = {m}, N = {n}, K = {k};
  const bf16 *l, *r;
  float* o;
  DEVICE T left(I b, I m, I k) const {{ return get(l[{at_left}]); }}
  DEVICE T right(I b, I k, I n) const {{ return get(r[{at_right}]); }}
  DEVICE const u16* left_wide(I b, I m, I k, bool& inside) const {{ return (const u16*)(inside ? l + ({at_left}) : l); }}
  DEVICE const u16* right_wide(I b, I k, I n, bool& inside) const {{ return (const u16*)(inside ? r + ({at_right}) : r); }}
  static const bool BESIDE = {beside};
  DEVICE void store_beside(I b, I m, I part, const T (&sums)[8]) const {{
    for (int i = 0; i < 8; ++i) o[m * N + part * 8 + i] = sums[i];
  }}
  DEVICE void store(I b, I m, I n, T sum) const {{ o[m * N + n] = sum; }}
}};
extern \"C\" __global__ void __launch_bounds__({threads}) tile(const bf16* l, const bf16* r, float* o) {{
  follow_the_kernel_before();
  Operands p;
  p.l = l;
  p.r = r;
  p.o = o;
  {call}(p);
}}
"
    )
}

/// The largest difference of an element from its sum in f64. None without a C++ compiler.
fn difference(tile: Tile, sizes @ [m, n, k]: [usize; 3]) -> Option<f64> {
    let toolchain = CpuToolchain::shared()?;
    let (left, right) = (halves(m * k, 1), halves(k * n, 7));
    let blocks = m.div_ceil(tile.rows) * n.div_ceil(tile.columns);
    let launch = Launch { grid: blocks as u32, block: [tile.threads, 1], shared: tile.shared() };
    let kernel = Kernel {
        name: "tile".to_owned(),
        text: text(tile, sizes),
        template: Some(if tile.form == Form::Groups { Template::ProductGroups } else { Template::Product }),
        launch,
        args: vec![],
    };
    let emulator = Emulator::new(Build { capability: (9, 0), ..Build::default() });
    emulator.open(0).unwrap();
    let image = toolchain.compile(&[&kernel], "sm_90", &|_, _| {}).unwrap().remove(0);
    let module = emulator.load(0, &image).unwrap();
    let function = emulator.function(module, "tile", launch).unwrap();
    let stream = emulator.stream(0).unwrap();
    let memory = [2 * m * k, 2 * k * n, 4 * m * n].map(|bytes| emulator.allocate(0, bytes as u64).unwrap());
    // SAFETY: memory of the emulated GPU is this process's, and as long as is written to and read from it.
    let found = unsafe {
        std::ptr::copy_nonoverlapping(left.as_ptr(), memory[0].0 as *mut u16, m * k);
        std::ptr::copy_nonoverlapping(right.as_ptr(), memory[1].0 as *mut u16, k * n);
        emulator.launch(stream, function, launch, &memory, Begin::Behind).unwrap();
        emulator.finish(stream).unwrap();
        std::slice::from_raw_parts(memory[2].0 as *const f32, m * n)
    };
    let x = |row: usize, inner: usize| left[if tile.left_along { row * k + inner } else { inner * m + row }];
    let y = |inner: usize, column: usize| {
        right[if tile.right_along { column * k + inner } else { inner * n + column }]
    };
    let sum = |row: usize, column: usize| -> f64 {
        let term = |inner: usize| wide(x(row, inner)) * wide(y(inner, column));
        (0..k).map(term).sum()
    };
    let all = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
    let far = all.map(|(row, column)| (f64::from(found[row * n + column]) - sum(row, column)).abs());
    // A sum that is not a number is infinitely far.
    Some(far.fold(0.0, |most, far| if far.is_nan() { f64::INFINITY } else { most.max(far) }))
}

long! {
    tiles_of_every_size_multiply_as_f64_does;
    tiles_by_groups_multiply_as_f64_does;
    tiles_of_f32_multiply_as_f64_does;
}

fn tiles_of_every_size_multiply_as_f64_does() {
    let wide = [true; 2];
    for (rows, columns, threads, stages, left_along, right_along, wide) in [
        (64, 64, 128, 4, true, true, wide),
        (128, 128, 128, 4, true, false, wide),
        (128, 64, 128, 3, false, true, wide),
        (128, 128, 128, 2, true, true, [true, false]),
        (128, 256, 256, 3, true, true, wide),
        (256, 128, 256, 3, false, false, wide),
        (192, 256, 384, 3, true, false, wide),
        (256, 192, 384, 3, false, false, wide),
    ] {
        let beside = rows > 128;
        let form = Form::Tensor;
        let tile = Tile { form, rows, columns, threads, stages, left_along, right_along, wide, beside };
        // Ends of both sides, and more pieces than stages; a fiber for each thread takes its time.
        let sizes = [rows + 8, columns + 8, 136];
        let Some(far) = difference(tile, sizes) else { return };
        // Sums of 136 terms below one, in f32.
        assert!(far < 1e-4, "{tile:?} {sizes:?}: {far}");
    }
}

fn tiles_by_groups_multiply_as_f64_does() {
    for (rows, columns, stages, right_along, beside) in [
        (128, 64, 4, true, true),
        (64, 256, 3, false, true),
        (128, 128, 3, false, false),
        (64, 256, 4, true, false),
    ] {
        let threads = 2 * rows as u32;
        let tile = Tile {
            form: Form::Groups,
            rows,
            columns,
            threads,
            stages,
            left_along: true,
            right_along,
            wide: [true; 2],
            beside,
        };
        // Fewer pieces than stages, as many as are multiplied at once, and more, each with ends.
        for inner in [40, 136, 400] {
            let sizes = [rows + 8, columns + 8, inner];
            let Some(far) = difference(tile, sizes) else { return };
            assert!(far < 3e-4, "{tile:?} {sizes:?}: {far}");
        }
    }
}

fn tiles_of_f32_multiply_as_f64_does() {
    for (rows, columns) in [(128, 128), (128, 64), (64, 128)] {
        for along in 0..4 {
            let (left_along, right_along) = (along % 2 == 0, along / 2 == 0);
            let threads = (rows * columns / 64) as u32;
            let (form, wide) = (Form::Single, [false; 2]);
            let tile = Tile {
                form,
                rows,
                columns,
                threads,
                stages: 1,
                left_along,
                right_along,
                wide,
                beside: false,
            };
            // Ends of all sides, and more terms than one chain adds up.
            let sizes = [rows + 9, columns + 5, 133 + 16 * along];
            let Some(far) = difference(tile, sizes) else { return };
            assert!(far < 1e-4, "{tile:?} {sizes:?}: {far}");
        }
    }
}
