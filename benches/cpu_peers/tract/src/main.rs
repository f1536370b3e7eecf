//! Median milliseconds of a step of an ONNX model in tract, as a peer of `../run.py`:
//! `partition-tract-peer MODEL THREADS SECONDS MOST [NAME=SIZE]...`, at most so many steps in so many
//! seconds, after one that is not counted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::{Factoid, GenericFactoid, InferenceFact};

/// A number in [0, 1) from the last one's state.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

fn made(name: &str, kind: DatumType, shape: &[usize], state: &mut u64) -> TractResult<Tensor> {
    let count = shape.iter().product::<usize>();
    if kind == i64::datum_type() {
        let high = if name.contains("mask") { 1.0 } else { 99.0 };
        let values: Vec<i64> = (0..count).map(|_| 1 + (random(state) * high) as i64).collect();
        return Tensor::from_shape(shape, &values);
    }
    let values: Vec<f32> = (0..count).map(|_| random(state) as f32).collect();
    Ok(Tensor::from_shape(shape, &values)?.cast_to_dt(kind)?.into_owned())
}

fn main() -> TractResult<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [path, threads, seconds, most, sizes @ ..] = given.as_slice() else {
        eprintln!("MODEL THREADS SECONDS MOST [NAME=SIZE]...");
        std::process::exit(2);
    };
    let threads: usize = threads.parse()?;
    let (seconds, most) = (Duration::from_secs_f64(seconds.parse()?), most.parse::<usize>()?);
    let sizes: HashMap<&str, &str> = sizes.iter().filter_map(|s| s.split_once('=')).collect();
    if threads > 1 {
        multithread::set_default_executor(multithread::Executor::multithread(threads));
    }
    // Sizes of what lies between are known by names there.
    let onnx = tract_onnx::onnx().with_ignore_value_info(true).with_ignore_output_shapes(true);
    let mut model = onnx.model_for_path(path)?;
    let (mut inputs, mut state) = (tvec![], 1);
    for (at, outlet) in model.input_outlets()?.to_vec().into_iter().enumerate() {
        let name = model.node(outlet.node).name.clone();
        let fact = model.outlet_fact(outlet)?.clone();
        let kind = fact.datum_type.concretize().unwrap_or_else(f32::datum_type);
        let mut shape = vec![];
        for dim in fact.shape.dims() {
            let written = match dim {
                GenericFactoid::Only(dim) => dim.to_string(),
                GenericFactoid::Any => String::from("1"),
            };
            shape
                .push(sizes.get(written.as_str()).copied().unwrap_or(&written).parse::<usize>().unwrap_or(1));
        }
        model.set_input_fact(at, InferenceFact::dt_shape(kind, &shape))?;
        inputs.push(made(&name, kind, &shape, &mut state)?.into_tvalue());
    }
    let model = model.into_optimized()?.into_runnable()?;
    model.run(inputs.clone())?;
    let (mut times, begin) = (vec![], Instant::now());
    while times.len() < 3 || (begin.elapsed() < seconds && times.len() < most) {
        let start = Instant::now();
        model.run(inputs.clone())?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{}", times[times.len() / 2]);
    Ok(())
}
