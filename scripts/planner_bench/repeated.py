"""Networks of so many layers for the table `layers`: equal ones, and such as are not quite what one would hope for.

Made of the shared generator's blocks: 32 heads of attention and a feed-forward network on five microbatches, about
1,050 nodes a layer.
"""
import numpy as np

LAYERS = [8, 96]
KINDS = ["equal", "train", "perturbed", "turns", "towers"]
HEADS, MICROBATCHES, WIDTH, TOKENS = 32, 5, 2048, 1024
EXPERTS = 24


def graphs(gen):
    """Name -> what makes it."""
    made = dict(equal=equal, train=train, perturbed=perturbed, turns=turns, towers=towers)
    return {f"{kind}_{layers}": (lambda make=make, layers=layers: make(gen, layers))
            for kind, make in made.items() for layers in LAYERS}


def equal(gen, layers):
    return gen.transformer("equal", layers, HEADS, MICROBATCHES, d=WIDTH, S=TOKENS)


def train(gen, layers):
    """Forward and backward, with half the heads on four microbatches: about as many nodes."""
    return gen.train(gen.transformer("train", layers, HEADS // 2, MICROBATCHES - 1, d=WIDTH, S=TOKENS), "train")


def perturbed(gen, layers):
    """No two nodes alike: work and bytes of each within 5 % of what they are in equal layers."""
    graph = equal(gen, layers)
    factor = np.random.default_rng(layers).uniform(0.95, 1.05, (3, len(graph.op)))
    graph.fl = [work * by for work, by in zip(graph.fl, factor[0])]
    graph.tr = [traffic * by for traffic, by in zip(graph.tr, factor[1])]
    graph.out = [int(size * by) for size, by in zip(graph.out, factor[2])]
    graph.w = [int(size * factor[2][of]) for size, of in zip(graph.w, graph.src)]
    return graph


def turns(gen, layers):
    """Layers with a feed-forward network and layers with experts, in turns."""
    graph, draw = gen.G("turns"), np.random.default_rng(1)
    weights = [gen.tf_layer_params(graph, WIDTH, 4 * WIDTH, EXPERTS * (layer % 2)) for layer in range(layers)]
    for _ in range(MICROBATCHES):
        value = graph.add("input", [], TOKENS * WIDTH * gen.BF)
        for layer in range(layers):
            value = attended(gen, graph, value, weights[layer], WIDTH)
            if layer % 2 == 0:
                value = fed(gen, graph, value, weights[layer], WIDTH)
            else:
                value = gen.moe_ffn(graph, value, weights[layer], WIDTH, WIDTH, TOKENS, 1, EXPERTS, draw)
    return graph


def towers(gen, layers):
    """Two stacks side by side, one half as wide, that exchange what they hold after every fourth layer."""
    graph, widths = gen.G("towers"), [WIDTH, WIDTH // 2]
    weights = [[gen.tf_layer_params(graph, width, 4 * width) for width in widths] for _ in range(layers // 2)]
    for _ in range(MICROBATCHES):
        values = [graph.add("input", [], TOKENS * width * gen.BF) for width in widths]
        for layer in range(layers // 2):
            towers = list(zip(values, weights[layer], widths))
            values = [fed(gen, graph, attended(gen, graph, *tower), *tower[1:]) for tower in towers]
            if layer % 4 == 3:
                sizes = [graph.out[value] for value in values]
                values = [graph.add("eltwise", values, size, w=[min(sizes)] * 2) for size in sizes]
    return graph


def attended(gen, graph, value, weights, width):
    return gen.attn(graph, value, weights, width, TOKENS, 1, HEADS, HEADS)


def fed(gen, graph, value, weights, width):
    return gen.ffn(graph, value, weights, width, 4 * width, TOKENS, 1)
