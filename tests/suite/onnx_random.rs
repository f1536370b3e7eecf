//! ONNX operators that draw random numbers: their distributions, and that a step draws the same on any devices.

use std::path::Path;
use std::process::Command;

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::{Arrays, write_npz};

/// `tests/data/random.onnx` of `x`, `[rows, 64]`, on these devices.
fn drawn(devices: &str, x: &[f32]) -> Vec<(String, Vec<f64>)> {
    let folder = tempfile::tempdir().unwrap();
    let (inputs, outputs) = (folder.path().join("in.npz"), folder.path().join("out.npz"));
    let x = Tensor::from_f32(vec![x.len() as u64 / 64, 64], x).unwrap();
    write_npz(&inputs, &[("x".to_owned(), x)]).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/random.onnx");
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg("run")
        .arg(model)
        .args(["-d", devices, "--use", "all", "--inputs"])
        .arg(&inputs)
        .arg("--outputs")
        .arg(&outputs)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let arrays = Arrays::open(&outputs).unwrap();
    let read = |name: &str| (name.to_owned(), arrays.get(name).unwrap().unwrap().to_f64());
    ["u", "g", "gl", "m"].map(read).to_vec()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    mean(&values.iter().map(|value| (value - middle).powi(2)).collect::<Vec<f64>>()).sqrt()
}

fn near(found: f64, expected: f64, within: f64) {
    assert!((found - expected).abs() < within, "{found} in place of {expected}");
}

#[test]
fn draws_have_their_distributions_and_are_the_same_on_any_devices() {
    // One row of equal shares, one whose second half is never 0 and e times as likely.
    let x: Vec<f32> = (0..128).map(|at| if at < 64 { 0.25 } else { (at / 96) as f32 }).collect();
    let all = drawn("cpu", &x);
    assert_eq!(all, drawn("2xcpu:cores=1", &x));
    let of = |name: &str| all.iter().find(|(own, _)| own == name).unwrap().1.as_slice();
    let uniform = of("u");
    assert!(uniform.iter().all(|value| (-2.0..3.0).contains(value)));
    near(mean(uniform), 0.5, 0.03);
    near(deviation(uniform), 5.0 / 12f64.sqrt(), 0.02);
    near(mean(of("g")), 1.0, 0.05);
    near(deviation(of("g")), 2.0, 0.05);
    near(of("g").iter().filter(|value| **value > 3.0).count() as f64 / 30_000.0, 0.1587, 0.01);
    assert_ne!(of("gl")[..64], of("gl")[64..], "rows differ");
    near(deviation(of("gl")), 1.0, 0.2);
    let (even, steep) = of("m").split_at(500);
    assert!(even.iter().all(|class| (0.0..64.0).contains(class)));
    near(mean(even), 31.5, 3.0);
    let late = steep.iter().filter(|class| **class >= 32.0).count() as f64 / 500.0;
    near(late, 1f64.exp() / (1.0 + 1f64.exp()), 0.08);
    // Neighbours have nothing to do with one another.
    let middle = mean(uniform);
    let products: Vec<f64> = uniform.windows(2).map(|pair| (pair[0] - middle) * (pair[1] - middle)).collect();
    near(mean(&products), 0.0, 0.05);
}

#[test]
fn what_is_drawn_for_an_element_is_not_changed_by_a_larger_batch() {
    let of = |rows: usize| drawn("cpu", &vec![0.5; rows * 64])[2].1.clone();
    assert_eq!(of(2), of(4)[..128]);
}
