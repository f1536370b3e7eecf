//! Elementary functions, in units of the last place: f32 beside f64 over all bit patterns, f64 beside a table
//! (`scripts/function_table.py`), on the CPU and in the text for CUDA.

// Values have the digits that name an f64.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)]

use std::collections::BTreeMap;

use partition::unstable::emit::{self, Kernel};
use partition::unstable::ir::{DType, Graph, Op, Shape, Source, SourceRole, Type, Unary};
use partition::unstable::pass::{GroupOptions, group};
use partition::unstable::run::cpu::{Team, View, ViewMut, execute};

use crate::cuda::{Call, Library};
use crate::kernels::lowered;
use crate::run_ops::Bytes;

/// Units in the last place that a result may be off.
const MOST: f64 = 2.0;

const FUNCTIONS: [Unary; 19] = [
    Unary::Exp,
    Unary::Expm1,
    Unary::Log,
    Unary::Log1p,
    Unary::Sqrt,
    Unary::Reciprocal,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Erf,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Silu,
    Unary::Softplus,
];

/// In f64, to about 30 bits more than an f32 has.
fn exact(f: Unary, x: f64) -> f64 {
    let cubic = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    match f {
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => libm::erf(x),
        Unary::Gelu => 0.5 * x * libm::erfc(-x / 2f64.sqrt()),
        Unary::GeluTanh => x / (1.0 + (-2.0 * cubic).exp()),
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        other => panic!("{other} is not compared"),
    }
}

/// How far a result is off; infinite where one of the two is not a number.
fn ulps(found: f32, exact: f64) -> f64 {
    if found.is_nan() || exact.is_nan() {
        return if found.is_nan() && exact.is_nan() { 0.0 } else { f64::INFINITY };
    }
    // An infinity is one unit beyond the largest number, and right for all that is beyond.
    let edge = 2f64.powi(128);
    let exact = exact.clamp(-edge, edge);
    let exponent = ((exact.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    (f64::from(found).clamp(-edge, edge) - exact).abs() / 2f64.powi(exponent - 23)
}

/// What the kernels of the CPU make of numbers as bytes.
fn on_cpu(f: Unary, dtype: DType, x: &[u8]) -> Vec<u8> {
    let dims = [(x.len() / dtype.size() as usize) as i64];
    let (mut from, mut to) = (Bytes::new(x.len()), Bytes::new(x.len()));
    from.get_mut().copy_from_slice(x);
    let input = View::new(dtype, &dims, from.get()).unwrap();
    let output = ViewMut::new(dtype, &dims, to.get_mut()).unwrap();
    execute(&Team::alone(), &Op::Unary(f), &[input], &mut [output], &mut []).unwrap();
    to.get().to_vec()
}

fn singles(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
}

/// The result that is farthest off.
struct Worst {
    ulps: f64,
    line: String,
}

impl Worst {
    fn none() -> Self {
        Self { ulps: 0.0, line: String::new() }
    }

    fn see(&mut self, f: Unary, x: &[u8], y: &[u8]) {
        for (x, y) in singles(x).zip(singles(y)) {
            let exact = exact(f, f64::from(x));
            let ulps = ulps(y, exact);
            if ulps > self.ulps {
                *self = Self { ulps, line: format!("{f}({x:e}) is {y:e}, {ulps:.3} units from {exact:e}") };
            }
        }
    }
}

/// Over the bit patterns of f32 with a distance, of functions by vectors and by the rest of one.
fn sweep(step: usize) {
    for f in FUNCTIONS {
        let mut worst = Worst::none();
        let all: Vec<u32> = (0..=u32::MAX).step_by(step).take(1 << 22).collect();
        let last = u64::from(u32::MAX) / step as u64;
        for begin in (0..=last).step_by(1 << 22) {
            let count = (last - begin + 1).min(1 << 22) as usize;
            let start = (begin * step as u64) as u32;
            let x: Vec<u8> = all[..count].iter().flat_map(|bits| (start + bits).to_ne_bytes()).collect();
            worst.see(f, &x, &on_cpu(f, DType::F32, &x));
        }
        println!("{}", worst.line);
        assert!(worst.ulps <= MOST, "{}", worst.line);
    }
}

#[test]
fn functions_of_f32_are_within_two_units() {
    sweep(65_521);
}

/// All of them: some minutes for each function where it is optimised.
#[test]
#[ignore = "an hour: cargo test --release --test suite functions_of_every_f32 -- --ignored"]
fn functions_of_every_f32_are_within_two_units() {
    sweep(1);
}

/// Where functions saturate, underflow, cancel, overflow and are computed in another way, with values by mpmath.
const TAILS: [(Unary, f32, f64); 35] = [
    (Unary::Gelu, -3.0, -4.04969409489028351e-03),
    (Unary::Gelu, -5.0, -1.43325785939596951e-06),
    (Unary::Gelu, -9.5, -9.96978932159447643e-21),
    (Unary::Gelu, -12.8, -1.04928533773522552e-36),
    (Unary::Gelu, -14.0, -1.09109515468699198e-43),
    (Unary::Gelu, -20.0, -5.50724823721246761e-88),
    (Unary::Gelu, 1.000000e-30, 5.00000001585538425e-31),
    (Unary::Gelu, 20.0, 2.00000000000000000e+01),
    (Unary::GeluTanh, -3.0, -3.63739208177301905e-03),
    (Unary::GeluTanh, -6.0, -8.43964670076229702e-11),
    (Unary::GeluTanh, -9.9, -1.16414335641239866e-36),
    (Unary::GeluTanh, -20.0, -3.37545095631096725e-261),
    (Unary::Gelu, -5.19, -5.45712977493543933e-7),
    (Unary::Gelu, -5.21, -4.91929747381829823e-7),
    (Unary::Gelu, 5.21, 5.20999954621722527),
    (Unary::GeluTanh, -5.09, -1.2376184112102736e-7),
    (Unary::GeluTanh, -5.11, -1.07663318302976508e-7),
    (Unary::GeluTanh, 5.11, 5.11000002585108599),
    (Unary::Silu, -20.0, -4.12230723638040731e-08),
    (Unary::Silu, -90.0, -7.37461136159146420e-38),
    (Unary::Silu, -104.0, -7.08609909440711085e-44),
    (Unary::Sigmoid, -20.0, 2.06115361819020374e-09),
    (Unary::Sigmoid, -88.9, 2.46161367635079685e-39),
    (Unary::Sigmoid, -103.0, 1.85211676951797543e-45),
    (Unary::Softplus, -20.0, 2.06115362031438080e-09),
    (Unary::Softplus, -95.0, 5.52108227702853245e-42),
    (Unary::Sinh, 1.000000e-04, 9.99999976404541643e-05),
    (Unary::Sinh, -0.3, -3.04520305908548783e-01),
    (Unary::Sinh, 88.9, 2.03118793498588996e+38),
    (Unary::Sinh, 89.4, 3.34886275320070602e+38),
    (Unary::Cosh, 88.9, 2.03118793498588996e+38),
    (Unary::Cosh, -89.4, 3.34886275320070602e+38),
    (Unary::Tanh, 5.3, 9.99950169241129561e-01),
    (Unary::Erf, 3.5, 9.99999256901627609e-01),
    (Unary::Erf, 1.800000e-38, 2.03108246371601912e-38),
];

#[test]
fn functions_are_right_at_their_tails() {
    for (f, x, exact) in TAILS {
        let y = singles(&on_cpu(f, DType::F32, &x.to_ne_bytes())).next().unwrap();
        assert!(ulps(y, exact) <= MOST, "{f}({x}) is {y:e}, not {exact:e}");
    }
    let at = |f: Unary, x: f32| singles(&on_cpu(f, DType::F32, &x.to_ne_bytes())).next().unwrap();
    for (f, x) in
        [(Unary::Sinh, 89.5), (Unary::Cosh, -89.5), (Unary::Exp, 88.8), (Unary::Softplus, f32::INFINITY)]
    {
        assert_eq!(at(f, x), f32::INFINITY, "{f}({x})");
    }
    for f in [Unary::Sinh, Unary::Tanh, Unary::Erf, Unary::Expm1, Unary::Log1p] {
        assert_eq!(at(f, -0.0).to_bits(), (-0.0f32).to_bits(), "{f}(-0)");
    }
    assert_eq!(at(Unary::Expm1, f32::NEG_INFINITY), -1.0);
    assert_eq!(at(Unary::Tanh, f32::NEG_INFINITY), -1.0);
}

/// Values that are multiples of a unit between the vectors' widths.
#[test]
fn the_rest_of_a_vector_has_the_bits_of_a_whole_one() {
    for f in FUNCTIONS {
        let x: Vec<u8> = (0..67u32).flat_map(|i| (i as f32 * 0.37 - 11.3).to_ne_bytes()).collect();
        let all = on_cpu(f, DType::F32, &x);
        for count in 1..67 {
            assert_eq!(on_cpu(f, DType::F32, &x[..4 * count]), all[..4 * count], "{f}, {count}");
        }
    }
}

/// A function's points in f64: of each, x, the nearest f64 of the value, and what that leaves.
fn table() -> BTreeMap<Unary, Vec<[f64; 3]>> {
    let mut points: BTreeMap<Unary, Vec<[f64; 3]>> = BTreeMap::new();
    for line in include_str!("../functions/f64.txt").lines() {
        let mut words = line.split(' ');
        let f = Unary::from_name(words.next().unwrap()).unwrap();
        let number = |word: &str| f64::from_bits(u64::from_str_radix(word, 16).unwrap());
        let point: Vec<f64> = words.map(number).collect();
        points.entry(f).or_default().push(point.try_into().unwrap());
    }
    points
}

fn check_table(f: Unary, points: &[[f64; 3]], found: &[u8], most: f64) {
    let mut worst = (0.0, String::new());
    for ([x, near, rest], y) in points.iter().zip(found.chunks_exact(8)) {
        let y = f64::from_ne_bytes(y.try_into().unwrap());
        let exponent = ((near.abs().to_bits() >> 52) as i32 - 1023).max(-1022);
        // Two steps: the smallest unit alone is below what `powi` gives.
        let unit = 2f64.powi(exponent + 52) * 2f64.powi(-104);
        let ulps = ((y - near) - rest).abs() / unit;
        if ulps > worst.0 || ulps.is_nan() {
            worst = (ulps, format!("{f}({x:e}) is {y:e}, {ulps:.3} units from {near:e}"));
        }
    }
    println!("{}", worst.1);
    assert!(worst.0 <= most, "{}", worst.1);
}

#[test]
fn functions_of_f64_are_within_two_units() {
    for (f, points) in table() {
        let x: Vec<u8> = points.iter().flat_map(|point| point[0].to_ne_bytes()).collect();
        check_table(f, &points, &on_cpu(f, DType::F64, &x), MOST);
    }
}

/// A kernel that computes a function of so many numbers.
fn kernel(f: Unary, dtype: DType, count: usize) -> Kernel {
    let mut graph = Graph::new("function");
    let source = graph.add_source(Source::new("f".to_owned(), "unary", SourceRole::Node));
    let x = graph.add_input("x".to_owned(), Type::new(dtype, Shape::known(&[count as i64])), source);
    let y = graph.apply(Op::Unary(f), &[x], source).unwrap();
    graph.add_output("y".to_owned(), y);
    let program = lowered(&graph, &group(&graph, &GroupOptions::default())).remove(0);
    emit::kernel(&program).unwrap().unwrap()
}

#[test]
fn functions_in_the_text_for_cuda_are_within_two_units() {
    let table = table();
    let single: Vec<u8> = (0..=u32::MAX).step_by(524_287).flat_map(u32::to_ne_bytes).collect();
    let mut kernels = BTreeMap::new();
    let mut trials = Vec::new();
    let mut add = |f: Unary, dtype: DType, x: Vec<u8>| {
        let kernel = kernel(f, dtype, x.len() / dtype.size() as usize);
        trials.push((f, dtype, kernel.name.clone(), x));
        kernels.insert(kernel.name.clone(), kernel);
    };
    FUNCTIONS.iter().for_each(|&f| add(f, DType::F32, single.clone()));
    for (&f, points) in &table {
        add(f, DType::F64, points.iter().flat_map(|point| point[0].to_ne_bytes()).collect());
    }
    let Some(library) = Library::compile(&kernels) else { return };
    let calls: Vec<Call<'_>> = trials
        .iter()
        .map(|(_, _, name, x)| Call { kernel: &kernels[name], args: vec![x.clone(), vec![0; x.len()]] })
        .collect();
    for ((f, dtype, _, x), found) in trials.iter().zip(library.run(&calls, false)) {
        if *dtype == DType::F64 {
            check_table(*f, &table[f], &found[1], MOST);
            continue;
        }
        let mut worst = Worst::none();
        worst.see(*f, x, &found[1]);
        println!("{}", worst.line);
        assert!(worst.ulps <= MOST, "{}", worst.line);
    }
}
