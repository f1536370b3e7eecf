//! Kernels at the sizes of real networks, in inference and in training. Nothing here could run them, and what is small enough
//! to be run does not reach all that large sizes do: sums in parts, larger tiles, other orders. Programs are verified as they are
//! made, and every kernel must be printed.

use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::compile::{Options, prepare};
use partition::unstable::emit::{self, Gives};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{DType, Graph};
use partition::unstable::kernel::program;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::train::{Loss, Recipe, Updates, training_step};

use crate::random_graph::Random;
use crate::{corpus, shared};

/// Prints the kernels of a network for GPUs of two kinds. Error: the first that is not verified or not printed.
fn print_kernels(graph: Graph, precision: Option<Precision>) -> Result<(), String> {
    let network = prepare(graph, &Options { precision, ..Options::default() });
    let network = network.map_err(|error| error.to_string())?;
    for fused in network.grouping.all_fused() {
        for program in program::lower(&network.graph, &fused).map_err(|error| error.to_string())? {
            for architecture in ["sm_80", "sm_90"] {
                emit::kernel_within(&program, Gives::of(architecture)).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

/// A training step; none where the network has nothing to train, or no gradient.
fn trained(graph: &Graph) -> Option<Graph> {
    let recipe = Recipe {
        loss: Loss::MeanSquared,
        updates: Updates::default(),
        freeze: vec![],
        scaling: None,
        outputs: false,
    };
    training_step(graph.clone(), &recipe).ok().map(|step| step.graph)
}

/// A model of the corpus whose open dimensions have sizes as in use.
fn bound(path: &Path, batch: i64) -> Option<Graph> {
    let bytes = std::fs::read(path).unwrap();
    let Ok(Model::Graph(mut graph)) = load(&bytes, Some(path), &LoadOptions::default()) else { return None };
    let size = |name: &str| if name.to_lowercase().contains("batch") { batch } else { 128 };
    let sizes: BTreeMap<String, i64> =
        graph.dims().iter().map(|dim| (dim.name.clone(), size(&dim.name))).collect();
    graph.bind(&sizes).ok()?;
    Some(graph)
}

/// How many of these networks can be trained. None without the corpus.
fn have_kernels(names: &[&str]) -> Option<usize> {
    let mut steps = 0;
    for name in names {
        let path = shared::file(&format!("corpus/{name}"))?;
        let Some(graph) = bound(&path, 128) else { continue };
        let step = trained(&graph);
        steps += usize::from(step.is_some());
        for (graph, params) in [(Some(graph), Params::Rounded), (step, Params::Kept)] {
            let Some(graph) = graph else { continue };
            for precision in [None, Some(Precision { half: DType::Bf16, params })] {
                let printed = print_kernels(graph.clone(), precision);
                printed.unwrap_or_else(|error| panic!("{name}, {precision:?}: {error}"));
            }
        }
    }
    Some(steps)
}

#[test]
fn small_networks_of_the_corpus_have_kernels_in_large_batches() {
    assert!(have_kernels(corpus::SMALL).is_none_or(|steps| steps > 20));
}

long! {
    real_networks_of_the_corpus_have_kernels_in_large_batches;
}

fn real_networks_of_the_corpus_have_kernels_in_large_batches() {
    assert!(have_kernels(corpus::REAL).is_none_or(|steps| steps > 20));
}

/// Two convolutions, the second of which has a gradient of its input, in the sizes of images and batches as in use.
fn convolutions(random: &mut Random) -> String {
    let mut among = |list: &[i64]| list[random.below(list.len())];
    let last = among(&[0, 1]) == 1;
    let (batch, side) = (among(&[1, 7, 16, 32, 96, 128, 256]), among(&[7, 14, 28, 32, 33, 56, 112]));
    let (groups, stride, dilation) = (among(&[1, 1, 1, 2, 16]), among(&[1, 1, 2]), among(&[1, 1, 2]));
    let kernel = [among(&[1, 3, 3, 5]), among(&[1, 3, 3, 7])];
    let channels = [among(&[1, 3, 16, 64, 80]), among(&[8, 64, 96]), among(&[4, 32, 64, 128])]
        .map(|count| count * groups);
    let pads = kernel.map(|size| (size - 1) * dilation / 2);
    let made =
        |side: i64, axis: usize| (side + 2 * pads[axis] - (kernel[axis] - 1) * dilation - 1) / stride + 1;
    let sides = [[side; 2], [made(side, 0), made(side, 1)]];
    let sides = [sides[0], sides[1], [made(sides[1][0], 0), made(sides[1][1], 1)]];
    let image = |at: usize| match last {
        true => format!("f32[{batch}, {}, {}, {}]", sides[at][0], sides[at][1], channels[at]),
        false => format!("f32[{batch}, {}, {}, {}]", channels[at], sides[at][0], sides[at][1]),
    };
    let weights = |at: usize| match last {
        true => format!("f32[{}, {}, {}, {}]", kernel[0], kernel[1], channels[at - 1] / groups, channels[at]),
        false => {
            format!("f32[{}, {}, {}, {}]", channels[at], channels[at - 1] / groups, kernel[0], kernel[1])
        }
    };
    let layout = if last { "layout=channels_last " } else { "" };
    let conv = format!(
        "{layout}strides=[{stride}, {stride}] dilations=[{dilation}, {dilation}] pads_before=[{0}, {1}] pads_after=[{0}, {1}] groups={groups}",
        pads[0], pads[1]
    );
    let [x, y, z] = [0, 1, 2].map(image);
    let [v, w] = [1, 2].map(weights);
    format!(
        "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: {x} = input \"x\" @s0
%1: {v} = param \"v\" init=constant(0.1) @s0
%2: {y} = conv %0, %1 {conv} @s0
%3: {y} = relu %2 @s0
%4: {w} = param \"w\" init=constant(0.1) @s0
%5: {z} = conv %3, %4 {conv} @s0
output \"y\" %5
"
    )
}

#[test]
fn convolutions_of_large_batches_are_trained_by_kernels() {
    let mut random = Random::new(2026);
    for _ in 0..100 {
        let text = convolutions(&mut random);
        let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let step = trained(&graph).unwrap();
        for precision in [None, Some(Precision { half: DType::F16, params: Params::Kept })] {
            let printed = print_kernels(step.clone(), precision);
            printed.unwrap_or_else(|error| panic!("{precision:?}: {error}\n{text}"));
        }
    }
}
