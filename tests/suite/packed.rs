//! Weights of few bits: numbers of blocks beside ggml's own (`tests/data/ggml_blocks.json`, made by its Python package),
//! and products with them beside products with the numbers.

use partition::unstable::compile::{Options, compile};
use partition::unstable::ir::{
    BlockFormat, DType, Data, Graph, Init, LowRank, Op, Packed, PackedRow, ParamId, Real, Shape, Source,
    SourceRole, Tensor, Type, Unary, Zeros, infer,
};
use partition::unstable::load::Model;
use partition::unstable::load::weights::{Arrays, ParamReader, match_params, write_npz};
use partition::unstable::pass::WeightsAs;
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::{ExecOptions, Program, exec_plan};
use partition::unstable::state::write_safetensors;
use partition::unstable::topology::Topology;

use crate::allocations::with_largest;
use crate::reference::Array;
use crate::run_ops::{Random, array, check, run, ty};

/// What four bits stand for in formats of unequal steps (`kvalues_iq4nl` of ggml).
const UNEQUAL: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// The value of an IEEE half in two bytes.
fn half(low: f64, high: f64) -> f64 {
    let (exponent, fraction) = ((high as u32 >> 2 & 31) as i32, (high as u32 & 3) as f64 * 256.0 + low);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if high >= 128.0 { -magnitude } else { magnitude }
}

/// Number `k` of the row of an operand that begins at `index`, from the formats' definitions.
pub(crate) fn number(packed: Packed, x: &[Array], index: &[usize], k: usize) -> f64 {
    let read = |of: &Array, at: usize| of.at(&[index, &[at]].concat());
    let byte = |at: usize| read(&x[0], at) as u32;
    let nibble = |byte: u32, upper: bool| if upper { byte >> 4 } else { byte & 15 };
    let signed = |byte: u32| f64::from(byte as u8 as i8);
    let half_at = |at: usize| half(f64::from(byte(at)), f64::from(byte(at + 1)));
    match packed.format {
        BlockFormat::Q8_0 => {
            let start = k / 32 * 34;
            half_at(start) * signed(byte(start + 2 + k % 32))
        }
        BlockFormat::Q4_0 => {
            let start = k / 32 * 18;
            let q = nibble(byte(start + 2 + k % 16), k % 32 >= 16);
            half_at(start) * (f64::from(q) - 8.0)
        }
        BlockFormat::Q4_1 => {
            let start = k / 32 * 20;
            let q = nibble(byte(start + 4 + k % 16), k % 32 >= 16);
            half_at(start) * f64::from(q) + half_at(start + 2)
        }
        BlockFormat::Q5_0 => {
            let start = k / 32 * 22;
            let q = nibble(byte(start + 6 + k % 16), k % 32 >= 16);
            let fifth = byte(start + 2 + k % 32 / 8) >> (k % 8) & 1;
            half_at(start) * (f64::from(q + 16 * fifth) - 16.0)
        }
        BlockFormat::Q5_1 => {
            let start = k / 32 * 24;
            let q = nibble(byte(start + 8 + k % 16), k % 32 >= 16);
            let fifth = byte(start + 4 + k % 32 / 8) >> (k % 8) & 1;
            half_at(start) * f64::from(q + 16 * fifth) + half_at(start + 2)
        }
        BlockFormat::Q2K => {
            let (start, at) = (k / 256 * 84, k % 256);
            let q = byte(start + 16 + at / 128 * 32 + at % 32) >> (2 * (at % 128 / 32)) & 3;
            let scales = byte(start + at / 16);
            half_at(start + 80) * f64::from(scales & 15) * f64::from(q)
                - half_at(start + 82) * f64::from(scales >> 4)
        }
        BlockFormat::Q3K => {
            let (start, at) = (k / 256 * 110, k % 256);
            let q = byte(start + 32 + at / 128 * 32 + at % 32) >> (2 * (at % 128 / 32)) & 3;
            let third = byte(start + at % 32) >> (at / 32) & 1;
            let group = at / 16;
            let low = nibble(byte(start + 96 + group % 8), group >= 8);
            let high = byte(start + 104 + group % 4) >> (2 * (group / 4)) & 3;
            let scale = f64::from(low + 16 * high) - 32.0;
            half_at(start + 108) * scale * (f64::from(q) - if third == 1 { 0.0 } else { 4.0 })
        }
        BlockFormat::Iq4Nl => {
            let start = k / 32 * 18;
            half_at(start) * UNEQUAL[nibble(byte(start + 2 + k % 16), k % 32 >= 16) as usize]
        }
        BlockFormat::Iq4Xs => {
            let (start, at) = (k / 256 * 136, k % 256);
            let group = at / 32;
            let high = (byte(start + 2) + 256 * byte(start + 3)) >> (2 * group) & 3;
            let low = nibble(byte(start + 4 + group / 2), group % 2 == 1);
            let step = UNEQUAL[nibble(byte(start + 8 + group * 16 + at % 16), at % 32 >= 16) as usize];
            half_at(start) * (f64::from(low + 16 * high) - 32.0) * step
        }
        BlockFormat::Mxfp4 => {
            let start = k / 32 * 17;
            let q = nibble(byte(start + 1 + k % 16), k % 32 >= 16);
            let (exponent, fraction) = (q >> 1 & 3, f64::from(q & 1) / 2.0);
            let magnitude =
                if exponent == 0 { fraction } else { (1.0 + fraction) * 2f64.powi(exponent as i32 - 1) };
            let sign = if q >= 8 { -1.0 } else { 1.0 };
            sign * magnitude * 2f64.powi(byte(start) as i32 - 127)
        }
        BlockFormat::Q4K | BlockFormat::Q5K => {
            let five = packed.format == BlockFormat::Q5K;
            let (start, group) = (k / 256 * if five { 176 } else { 144 }, k % 256 / 32);
            let scales = start + 4;
            let (scale, offset) = match group {
                0..4 => (byte(scales + group) & 63, byte(scales + group + 4) & 63),
                _ => {
                    let low = byte(scales + group + 4);
                    let (above_scale, above_offset) =
                        (byte(scales + group - 4) >> 6, byte(scales + group) >> 6);
                    (nibble(low, false) + 16 * above_scale, nibble(low, true) + 16 * above_offset)
                }
            };
            let quants = start + if five { 48 } else { 16 };
            let fifth = if five { byte(start + 16 + k % 32) >> group & 1 } else { 0 };
            let q = nibble(byte(quants + group / 2 * 32 + k % 32), group % 2 == 1) + 16 * fifth;
            half_at(start) * f64::from(scale) * f64::from(q) - half_at(start + 2) * f64::from(offset)
        }
        BlockFormat::Q6K => {
            let (start, at) = (k / 256 * 210, k % 256);
            let (part, line, within) = (at / 128, at % 128 / 32, at % 32);
            let low = byte(start + part * 64 + (line % 2) * 32 + within);
            let high = byte(start + 128 + part * 32 + within) >> (2 * line) & 3;
            let q = nibble(low, line >= 2) + 16 * high;
            let scale = signed(byte(start + 192 + at / 16));
            half_at(start + 208) * scale * (f64::from(q) - 32.0)
        }
        BlockFormat::Groups { bits, size } => {
            let group = k / size as usize;
            let of = |of: &Array, at: usize| match bits {
                8 => read(of, at),
                _ => f64::from(nibble(read(of, at / 2) as u32, at % 2 == 1)),
            };
            let zero = match x.get(2) {
                None => 2f64.powi(i32::from(bits) - 1),
                Some(zeros) if zeros.dtype == DType::F32 => read(zeros, group),
                Some(zeros) => of(zeros, group),
            };
            (of(&x[0], k) - zero) * read(&x[1], group)
        }
    }
}

/// Packed rows of these outer sizes, with scales of moderate size.
fn rows(random: &mut Random, packed: Packed, outer: &[usize]) -> Vec<Array> {
    let sized = |last: u64| [outer, &[last as usize]].concat();
    let count: usize = outer.iter().product();
    let mut bytes: Vec<f64> =
        (0..count as u64 * packed.row_bytes()).map(|_| random.size(0, 255) as f64).collect();
    let halves: &[usize] = match packed.format {
        BlockFormat::Q8_0
        | BlockFormat::Q4_0
        | BlockFormat::Q5_0
        | BlockFormat::Iq4Nl
        | BlockFormat::Iq4Xs => &[1],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[1, 3],
        BlockFormat::Q2K => &[81, 83],
        BlockFormat::Q3K => &[109],
        BlockFormat::Q6K => &[209],
        BlockFormat::Mxfp4 | BlockFormat::Groups { .. } => &[],
    };
    for block in bytes.chunks_mut(packed.format.bytes() as usize) {
        // Exponents of -13 to -11, of either sign.
        halves.iter().for_each(|&at| block[at] = (random.size(0, 1) * 128 + random.size(8, 18)) as f64);
        if packed.format == BlockFormat::Mxfp4 {
            block[0] = random.size(112, 122) as f64;
        }
    }
    let mut all = vec![Array::new(DType::U8, &sized(packed.row_bytes()), bytes)];
    if packed.format.has_scales_beside() {
        let scales = (0..count as u64 * packed.blocks()).map(|_| random.size(1, 64) as f64 / 32768.0);
        all.push(Array::new(DType::F32, &sized(packed.blocks()), scales.collect()));
        match random.size(0, 2) {
            0 => {}
            1 => {
                let zeros = (0..count as u64 * packed.zero_bytes()).map(|_| random.size(0, 255) as f64);
                all.push(Array::new(DType::U8, &sized(packed.zero_bytes()), zeros.collect()));
            }
            _ => {
                let zeros = (0..count as u64 * packed.blocks()).map(|_| random.size(0, 60) as f64 / 4.0);
                all.push(Array::new(DType::F32, &sized(packed.blocks()), zeros.collect()));
            }
        }
    }
    all
}

fn format(random: &mut Random, number: usize) -> Packed {
    let groups = BlockFormat::Groups { bits: *random.pick(&[4, 8]), size: *random.pick(&[2, 16, 32, 40]) };
    let format = BlockFormat::WHOLE.get(number % (BlockFormat::WHOLE.len() + 2)).copied().unwrap_or(groups);
    let blocks = if format.elements() == 256 { 1 } else { random.size(1, 3) };
    // A block may be cut off, in its middle or behind a single number.
    let cut = if random.flag() { random.size(0, format.elements() as usize - 1) } else { 0 };
    Packed { format, columns: (blocks * format.elements() as usize - cut) as i64 }
}

#[test]
pub(crate) fn packed_weights() {
    let mut random = Random::new(41);
    for case in 0..60 {
        let packed = format(&mut random, case);
        let (m, n) = (random.size(0, 7), random.size(1, 9));
        let (left, right): (&[usize], &[usize]) =
            *random.pick(&[(&[][..], &[][..]), (&[3], &[]), (&[2], &[2]), (&[], &[2]), (&[2, 1], &[1, 3])]);
        let x = array(&mut random, DType::F32, &[left, &[m, packed.columns as usize]].concat());
        let weights = rows(&mut random, packed, &[right, &[n]].concat());
        check(&Op::PackedMatMul(packed), &[vec![x], weights].concat());
        let outer: &[usize] = random.pick::<&[usize]>(&[&[], &[3], &[2, 2]]);
        let weights = rows(&mut random, packed, outer);
        check(&Op::Unpack(packed), &weights);
    }
}

/// By panels, and by rows where groups have their scales beside: each the bits of the product with the numbers. Few rows meet
/// other blocks as whole numbers, which differ from those by what the digits leave off, and by the order of the sums.
#[test]
fn products_are_those_with_the_numbers() {
    let mut random = Random::new(43);
    for case in 0..45 {
        let packed = Packed { columns: [512, 768, 300, 130][case % 4], ..format(&mut random, case) };
        let (m, n) = (*random.pick(&[1, 3, 5, 16, 17, 40]), *random.pick(&[3, 65, 130]));
        let x = array(&mut random, DType::F32, &[m, packed.columns as usize]);
        let weights = rows(&mut random, packed, &[n]);
        let result = |op: &Op, operands: &[Array]| {
            let types: Vec<_> = operands.iter().map(ty).collect();
            let results = infer(op, &types.iter().collect::<Vec<_>>(), &|_| "n".to_owned()).unwrap();
            run(op, operands, &results).unwrap().remove(0)
        };
        let numbers = result(&Op::Unpack(packed), &weights);
        let found = result(&Op::PackedMatMul(packed), &[vec![x.clone()], weights].concat());
        let about = format!("{packed:?}, {m} rows, {n} columns");
        let few = m <= 4 || m <= 16 && packed.columns >= 256;
        if few && !packed.format.has_scales_beside() {
            are_sums_of_products(&x, &numbers, &found, &about);
            continue;
        }
        let plain = Op::MatMul { transpose_left: false, transpose_right: true, wide: false, rounds: false };
        assert_eq!(found.data, result(&plain, &[x, numbers]).data, "{about}");
    }
}

/// Within a few roundings of f32 of the sums in f64, of terms as large as they are.
fn are_sums_of_products(x: &Array, numbers: &Array, found: &Array, about: &str) {
    let k = *x.dims.last().unwrap();
    let n = numbers.data.len() / k;
    for (at, found) in found.data.iter().enumerate() {
        let (left, right) = (&x.data[at / n * k..][..k], &numbers.data[at % n * k..][..k]);
        let terms = left.iter().zip(right).map(|(x, y)| x * y);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        assert!((found - sum).abs() <= 5e-7 * size, "{about}: {found} for {sum}");
    }
}

#[test]
fn blocks_are_what_ggml_makes_of_them() {
    let text = include_str!("../data/ggml_blocks.json");
    let stored: serde_json::Value = serde_json::from_str(text).unwrap();
    let list = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
    };
    let bytes =
        |value: &serde_json::Value| -> Vec<u8> { list(value).iter().map(|&byte| byte as u8).collect() };
    for format in BlockFormat::WHOLE {
        let case = &stored[format.name()];
        let (from, expected) = (bytes(&case["bytes"]), list(&case["bits"]));
        let row = PackedRow { bytes: &from, scales: &[], zeros: Zeros::Middle };
        let mut found = vec![0.0; expected.len()];
        format.unpack(row, 0, &mut found);
        for (at, (found, bits)) in found.iter().zip(&expected).enumerate() {
            // NumPy multiplies in another order here and there.
            let expected = f32::from_bits(*bits);
            assert!((found - expected).abs() <= expected.abs() * 3e-7, "{format:?} {at}: {found} {expected}");
        }
        if let Some(packed) = stored["packed"].get(format.name()) {
            let numbers: Vec<f32> =
                list(&stored["packed"]["numbers"]).iter().map(|&n| f32::from_bits(n)).collect();
            assert_eq!(format.pack(&numbers).unwrap(), bytes(packed), "{format:?}");
        }
    }
}

/// Two products, one with a matrix that lies transposed: `relu(x a) b^T`.
fn two_products() -> Graph {
    let mut graph = Graph::new("two products");
    let source = |graph: &mut Graph, name: &str, role| graph.add_source(Source::new(name, "Test", role));
    let data = source(&mut graph, "data", SourceRole::Data);
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[3, 96])), data);
    let weights = |graph: &mut Graph, name: &str, dims: [i64; 2]| {
        let ty = Type::new(DType::F32, Shape::known(&dims));
        graph.add_param(name, ty, Init::glorot_uniform(), None, data)
    };
    let (a, b) = (weights(&mut graph, "a", [96, 64]), weights(&mut graph, "b", [80, 64]));
    let product =
        |transpose_right| Op::MatMul { transpose_left: false, transpose_right, wide: false, rounds: false };
    let first = source(&mut graph, "first", SourceRole::Node);
    let y = graph.apply(product(false), &[x, a], first).unwrap();
    let y = graph.apply(Op::Unary(Unary::Relu), &[y], first).unwrap();
    let second = source(&mut graph, "second", SourceRole::Node);
    let y = graph.apply(product(true), &[y, b], second).unwrap();
    graph.add_output("y", y);
    graph.record_consumers();
    graph
}

/// What they come to in f64, of weights as they are or packed and unpacked.
fn in_f64(graph: &Graph, x: &[f32], format: Option<BlockFormat>) -> Vec<f64> {
    let matrix = |at: usize, turned: bool| -> Vec<Vec<f64>> {
        let param = ParamId(at as u32);
        let of = partition::unstable::load::fill_param(graph, param, 7, &graph.param(param).name).unwrap();
        let (numbers, width) = (of.to_f32().unwrap(), of.dims()[1] as usize);
        let rows: Vec<Vec<f32>> = match turned {
            true => (0..width).map(|c| numbers.iter().skip(c).step_by(width).copied().collect()).collect(),
            false => numbers.chunks(width).map(<[f32]>::to_vec).collect(),
        };
        let seen = |row: Vec<f32>| -> Vec<f64> {
            let Some(format) = format else { return row.into_iter().map(f64::from).collect() };
            let bytes = format.pack(&row).unwrap();
            let mut numbers = vec![0.0; row.len()];
            format.unpack(PackedRow { bytes: &bytes, scales: &[], zeros: Zeros::Middle }, 0, &mut numbers);
            numbers.into_iter().map(f64::from).collect()
        };
        rows.into_iter().map(seen).collect()
    };
    let dot = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(x, w)| x * w).sum::<f64>();
    let (a, b) = (matrix(0, true), matrix(1, false));
    x.chunks(96)
        .flat_map(|x| {
            let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
            let inner: Vec<f64> = a.iter().map(|row| dot(&x, row).max(0.0)).collect();
            b.iter().map(|row| dot(&inner, row)).collect::<Vec<f64>>()
        })
        .collect()
}

#[test]
fn weights_are_packed_when_they_are_loaded() {
    let x: Vec<f32> = (0..288).map(|i| ((i * 31 % 97) as f32 - 48.0) / 40.0).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let inputs = vec![("x".to_owned(), Tensor::new(DType::F32, vec![3, 96], bytes).unwrap())];
    let as_they_are = in_f64(&two_products(), &x, None);
    let largest = as_they_are.iter().fold(0.0f64, |most, y| most.max(y.abs()));
    for (format, most) in [(BlockFormat::Q8_0, 0.01), (BlockFormat::Q4_0, 0.15)] {
        for devices in ["cpu", "2xcpu"] {
            let place = place::Options { devices: DeviceUse::All, ..place::Options::default() };
            let options =
                Options { weights_as: Some(WeightsAs::Blocks(format)), place, ..Options::default() };
            let topology = Topology::parse(devices).unwrap();
            let compiled = compile(Model::Graph(two_products()), &topology, &options).unwrap();
            let network = compiled.network.as_ref().unwrap();
            let text = network.graph.to_string();
            assert_eq!(partition::unstable::ir::text::parse(&text).unwrap().to_string(), text);
            let held: u64 = network
                .graph
                .params()
                .iter()
                .map(|param| {
                    let value = network.graph.node(param.node).first_result;
                    network.graph.ty(value).bytes().unwrap().get()
                })
                .sum();
            assert_eq!(held, (64 * 96 + 80 * 64) / 32 * format.bytes());
            let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping).unwrap();
            let weights = |id: ParamId| {
                partition::unstable::load::fill_param(
                    &network.graph,
                    id,
                    7,
                    network.graph.param(id).whole_name(),
                )
            };
            let groups = network.grouping.all_fused();
            let mut program =
                Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default()).unwrap();
            let found = program.run(&inputs).unwrap().0.remove(0).1.to_f32().unwrap();
            let expected = in_f64(&two_products(), &x, Some(format));
            for ((found, packed), plain) in found.iter().zip(&expected).zip(&as_they_are) {
                let found = f64::from(*found);
                assert!((found - packed).abs() <= 1e-5 * largest, "{format:?}: {found}, expected {packed}");
                assert!((found - plain).abs() <= most * largest, "{format:?}: {found} of {plain}");
            }
        }
    }
}

/// A product with a matrix of `dims`, held in blocks; the matrix is turned where its columns are.
fn one_product(dims: [u64; 2], turned: bool, format: BlockFormat) -> Graph {
    let mut graph = Graph::new("one product");
    let data = graph.add_source(Source::new("data", "Test", SourceRole::Data));
    let node = graph.add_source(Source::new("product", "Test", SourceRole::Node));
    let [height, width] = dims.map(|dim| dim as i64);
    let terms = if turned { height } else { width };
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[1, terms])), data);
    let matrix = Type::new(DType::F32, Shape::known(&[height, width]));
    let matrix = graph.add_param("w", matrix, Init::zeros(), None, data);
    let product = Op::MatMul { transpose_left: false, transpose_right: !turned, wide: false, rounds: false };
    let y = graph.apply(product, &[x, matrix], node).unwrap();
    graph.add_output("y", y);
    graph.record_consumers();
    assert_eq!(
        partition::unstable::pass::pack_weights(&mut graph, Some(WeightsAs::Blocks(format))).unwrap(),
        1
    );
    graph
}

/// The blocks that are held, and what is in memory of a stretch of numbers: never the matrix in f32.
#[test]
fn a_matrix_is_packed_a_stretch_at_a_time_as_it_is_read() {
    const DIMS: [u64; 2] = [1536, 1024];
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<f32> =
        (0..DIMS[0] * DIMS[1]).map(|at| ((at * 7919 % 10_007) as f32 - 5003.0) / 4000.0).collect();
    let path = folder.path().join("w.npz");
    write_npz(&path, &[("w".to_owned(), Tensor::from_f32(DIMS.to_vec(), &numbers).unwrap())]).unwrap();
    for (turned, format) in [(false, BlockFormat::Q8_0), (true, BlockFormat::Q4_0)] {
        let mut graph = one_product(DIMS, turned, format);
        let arrays = Arrays::open(&path).unwrap();
        assert_eq!(match_params(&mut graph, &arrays).unwrap().params, 1);
        let (found, largest) = with_largest(|| ParamReader::new().read(&graph, ParamId(0)).unwrap().unwrap());
        let (width, height) = (DIMS[1] as usize, DIMS[0] as usize);
        let row = |at: usize| -> Vec<f32> {
            match turned {
                true => (0..height).map(|row| numbers[row * width + at]).collect(),
                false => numbers[at * width..][..width].to_vec(),
            }
        };
        let rows = if turned { width } else { height };
        let expected: Vec<u8> = (0..rows).flat_map(|at| format.pack(&row(at)).unwrap()).collect();
        assert!(found.bytes() == expected, "{format:?}");
        let whole = DIMS[0] * DIMS[1] * 4;
        assert!(largest <= whole / 2, "{format:?}: {largest} bytes at once, the matrix in f32 has {whole}");
    }
}

/// Exact in f32 in any order: quarters, and whole numbers times a half.
#[test]
fn a_matrix_is_packed_with_what_an_adapter_adds_to_it() {
    const DIMS: [usize; 2] = [1536, 1024];
    const RANK: usize = 2;
    let folder = tempfile::tempdir().unwrap();
    let (path, adapter) = (folder.path().join("w.npz"), folder.path().join("adapter.safetensors"));
    let made = |count: usize, prime: usize, scale: f32| -> Vec<f32> {
        (0..count).map(|at| ((at * prime % 61) as f32 - 30.0) * scale).collect()
    };
    let numbers = made(DIMS[0] * DIMS[1], 7919, 0.25);
    let (left, right) = (made(DIMS[1] * RANK, 31, 1.0), made(RANK * DIMS[0], 17, 1.0));
    let tensor = |dims: [usize; 2], numbers: &[f32]| {
        Tensor::from_f32(dims.map(|dim| dim as u64).to_vec(), numbers).unwrap()
    };
    write_npz(&path, &[("w".to_owned(), tensor(DIMS, &numbers))]).unwrap();
    let arrays =
        [("b".to_owned(), tensor([DIMS[1], RANK], &left)), ("a".to_owned(), tensor([RANK, DIMS[0]], &right))];
    write_safetensors(&adapter, &arrays).unwrap();
    // The product is [1024, 1536]; the matrix is its transpose's size.
    let sum = |row: usize, column: usize| -> f32 {
        let product: f32 = (0..RANK).map(|k| left[column * RANK + k] * right[k * DIMS[0] + row]).sum();
        numbers[row * DIMS[1] + column] + 0.5 * product
    };
    for turned in [false, true] {
        let format = BlockFormat::Q8_0;
        let mut graph = one_product(DIMS.map(|dim| dim as u64), turned, format);
        let (left, right) = ("b".to_owned(), "a".to_owned());
        let added = LowRank { path: adapter.clone(), left, right, factor: Real(0.5), turned: true };
        let matrix = Box::new(Data::Array { path: path.clone(), name: "w".to_owned() });
        graph.param_mut(ParamId(0)).data = Some(Data::Sum { matrix, added: Box::new(added) });
        let found = ParamReader::new().read(&graph, ParamId(0)).unwrap().unwrap();
        let row = |at: usize| -> Vec<f32> {
            match turned {
                true => (0..DIMS[0]).map(|row| sum(row, at)).collect(),
                false => (0..DIMS[1]).map(|column| sum(at, column)).collect(),
            }
        };
        let rows = if turned { DIMS[1] } else { DIMS[0] };
        let expected: Vec<u8> = (0..rows).flat_map(|at| format.pack(&row(at)).unwrap()).collect();
        assert!(found.bytes() == expected, "turned: {turned}");
    }
}
