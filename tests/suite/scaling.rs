//! Training in halves: the loss falls as in f32, the factor of the loss follows what overflows, and a run
//! goes on to the bit.

use std::collections::BTreeMap;

use partition::unstable::data::Position;
use partition::unstable::ir::{DType, Tensor};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Options, Replicas, Scaling, Trainer, Zero};

use crate::spread::{batch, network, options};

fn halved(half: Option<DType>, scaling: Option<Scaling>, replicas: Option<Replicas>) -> Options {
    let mut options = options(8, "adam", replicas);
    options.compile.precision = half.map(|half| Precision { half, params: Params::Rounded });
    options.recipe.scaling = scaling;
    options
}

fn trainer(devices: &str, options: &Options) -> Trainer {
    Trainer::new(network(), &Topology::parse(devices).unwrap(), options).unwrap()
}

fn train(trainer: &mut Trainer, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|step| trainer.step(&batch(step % 4)).unwrap().loss).collect()
}

fn weights(trainer: &Trainer) -> BTreeMap<String, Tensor> {
    trainer.weights().unwrap().into_iter().collect()
}

#[test]
fn losses_fall_as_in_f32() {
    let mut full = trainer("cpu", &halved(None, None, None));
    let expected = train(&mut full, 0..40);
    assert_eq!(full.loss_scale().unwrap(), None);
    for (half, tolerance) in [(DType::Bf16, 0.05), (DType::F16, 0.02)] {
        let mut trainer = trainer("cpu", &halved(Some(half), None, None));
        let found = train(&mut trainer, 0..40);
        let first = expected[..4].iter().sum::<f64>();
        let ends = |losses: &[f64]| losses[36..].iter().sum::<f64>() / first;
        assert!(ends(&expected) < 0.9, "{expected:?}");
        assert!((ends(&found) - ends(&expected)).abs() < tolerance, "{half}: {found:?} {expected:?}");
        assert_ne!(found, expected, "in earnest");
        // Parameters and what the optimizer keeps are of f32.
        let arrays = trainer.checkpoint(Position::default()).unwrap();
        let floats = |(_, tensor): &&(String, Tensor)| tensor.dtype().is_float();
        let all = arrays.weights.iter().chain(&arrays.optimizer).filter(floats);
        assert!(all.map(|(_, tensor)| tensor.dtype()).all(|dtype| dtype == DType::F32));
        let converts = trainer.plan().buffers.iter().filter(|buffer| buffer.ty.starts_with(half.name()));
        assert!(converts.count() > 2, "products read halves");
    }
}

#[test]
fn a_factor_that_overflows_is_halved_and_the_step_left_out() {
    let scaling = Scaling::Dynamic { start: 1 << 30, every: 3 };
    let mut trainer = trainer("cpu", &halved(Some(DType::F16), Some(scaling), None));
    let before = weights(&trainer);
    train(&mut trainer, 0..1);
    assert_eq!(weights(&trainer), before, "the step changed nothing");
    assert_eq!(trainer.loss_scale().unwrap(), Some((1 << 29, 1)));
    let mut steps = 1;
    while trainer.loss_scale().unwrap().is_some_and(|(_, skipped)| skipped == steps) {
        train(&mut trainer, steps..steps + 1);
        steps += 1;
        assert!(steps < 40, "the factor becomes small enough");
    }
    let (factor, skipped) = trainer.loss_scale().unwrap().unwrap();
    assert_eq!((factor, skipped), (1 << (30 - skipped), steps - 1));
    assert_ne!(weights(&trainer), before);
    // After three good steps it is doubled, or it overflows again and is halved.
    train(&mut trainer, steps..steps + 2);
    let (after, more) = trainer.loss_scale().unwrap().unwrap();
    assert!(if more > skipped { after < factor } else { after == 2 * factor }, "{factor} {after} {more}");
    assert!(weights(&trainer).values().all(|tensor| tensor.to_f64().iter().all(|value| value.is_finite())));
}

#[test]
fn a_run_in_halves_goes_on_to_the_bit() {
    let scaling = Some(Scaling::Dynamic { start: 1 << 26, every: 2 });
    let options = halved(Some(DType::F16), scaling, None);
    let mut whole = trainer("cpu", &options);
    train(&mut whole, 0..12);
    let mut first = trainer("cpu", &options);
    train(&mut first, 0..7);
    let checkpoint = first.checkpoint(Position::default()).unwrap();
    assert!(first.loss_scale().unwrap().is_some_and(|(_, skipped)| skipped > 0));
    let mut second = trainer("cpu[2x100MB]", &options);
    second.restore(&checkpoint).unwrap();
    train(&mut second, 7..12);
    assert_eq!(weights(&second), weights(&whole));
    assert_eq!(second.loss_scale().unwrap(), whole.loss_scale().unwrap());
}

#[test]
fn replicas_in_halves_have_the_bits_of_their_shards() {
    let shards = |count: usize| Some(Replicas { shards: 2, ..Replicas::new(count) });
    for (half, scaling) in [
        (DType::Bf16, None),
        (DType::F16, Some(Scaling::Dynamic { start: 1 << 26, every: 3 })),
        (DType::F16, Some(Scaling::Fixed(128))),
    ] {
        let mut one = trainer("cpu", &halved(Some(half), scaling, shards(1)));
        let mut two = trainer("cpu[2x100MB]", &halved(Some(half), scaling, shards(2)));
        assert_eq!(train(&mut one, 0..6), train(&mut two, 0..6), "{half}");
        assert_eq!(weights(&one), weights(&two), "{half}");
        assert_eq!(one.loss_scale().unwrap(), two.loss_scale().unwrap());
    }
}

#[test]
fn what_cannot_be_scaled_is_said() {
    let refused = |options: &Options| {
        let topology = Topology::parse("cpu[2x100MB]").unwrap();
        Trainer::new(network(), &topology, options).err().expect("it is refused").to_string()
    };
    let parts = Some(Replicas { zero: Zero::Optimizer, ..Replicas::new(2) });
    assert!(refused(&halved(Some(DType::F16), None, parts)).contains("neither with --zero"));
    assert!(refused(&halved(None, Some(Scaling::Fixed(8)), None)).contains("f32 need no scaling"));
    assert!("static".parse::<Scaling>().is_err() && "0".parse::<Scaling>().is_err());
    assert_eq!("dynamic:every=5".parse::<Scaling>().unwrap(), Scaling::Dynamic { start: 65536, every: 5 });
}
