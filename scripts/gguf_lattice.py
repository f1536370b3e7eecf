#!/usr/bin/env python3
"""Makes tables/gguf_lattice.bin: which points blocks of GGUF's types of fewer than three bits can name, as `gguf` has them.

    pip install gguf
    python scripts/gguf_lattice.py tables/gguf_lattice.bin

A point is 16 bits: the place of each of its 8 numbers among the three that are possible, in 2 bits, or of its 4 numbers among eight.
"""

import sys

import numpy as np
from gguf import quants

with open(sys.argv[1], "wb") as file:
    for name in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]:
        kind = getattr(quants, name)
        kind.init_grid()
        points = kind.grid.reshape(kind.grid_shape)
        places = np.searchsorted(np.array(kind.grid_map, np.float32), points)
        bits = 16 // points.shape[1] if points.shape[1] == 8 else 3
        file.write((places << (bits * np.arange(points.shape[1]))).sum(axis=1).astype("<u2").tobytes())
