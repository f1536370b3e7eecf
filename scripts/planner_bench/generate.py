"""generate.py FOLDER NAME OUT.npz: one graph of the shared generator, without its text form.

Beyond the generator's own names, NAME may be FAMILY_175k: about 175,000 nodes, made as the family's 100k; or one of
`repeated.py`.
"""
import importlib.util
import os
import sys

import numpy as np

import repeated


def generator(folder):
    spec = importlib.util.spec_from_file_location("gen", os.path.join(folder, "gen.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graphs(gen):
    larger = {
        "tf_175k": lambda: gen.transformer("tf_175k", 60, 32, 14, d=4096),
        "tftrain_175k": lambda: gen.train(gen.transformer("f", 48, 16, 14, d=4096), "tftrain_175k"),
        "cnn_175k": lambda: gen.train(gen.cnn("f", 100, 49), "cnn_175k"),
        "moe_175k": lambda: gen.transformer("moe_175k", 32, 16, 7, d=4096, moe=128, ff=2048),
        "unet_175k": lambda: gen.unet("unet_175k", 455),
        "rand_175k": lambda: gen.layered("rand_175k", 175_000, 250),
    }
    return {**gen.SMALL, **gen.CFG, **larger, **repeated.graphs(gen)}


def main(folder, name, out):
    arrays = graphs(generator(folder))[name]().arrays()
    part = out + ".part.npz"
    np.savez(part, **arrays)
    os.rename(part, out)


main(*sys.argv[1:])
