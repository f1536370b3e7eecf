#!/usr/bin/env python3
"""keras_states.py FOLDER: layers that keep states from batch to batch, and what Keras gives batch after batch.

    KERAS_BACKEND=torch python scripts/keras_states.py tests/keras/states

Writes kept.keras, and kept.N.npz of the N-th call: inputs, and what all calls up to it have made of them.
tests/suite/keras_weights.rs compares.
"""
import sys

import keras
import numpy
from keras import layers as L

BATCH, CALLS = 2, 3
random = numpy.random.default_rng(8)


def model():
    x = keras.Input((4, 3), batch_size=BATCH, name="x")
    i = keras.Input((2, 4, 4, 1), batch_size=BATCH, name="i")
    y = L.LSTM(3, stateful=True, return_sequences=True, name="lstm")(L.Masking(name="masking")(x))
    y = L.GRU(2, stateful=True, activation="relu", return_sequences=True, name="relu")(y)
    y = L.Bidirectional(L.SimpleRNN(2, stateful=True), name="both")(y)
    z = L.ConvLSTM2D(2, 3, stateful=True, name="images")(i)
    return keras.Model([x, i], [y, L.Flatten(name="flat")(z)])


def main(folder):
    keras.utils.set_random_seed(4)
    kept = model()
    kept.save(f"{folder}/kept.keras")
    # Each call has the same inputs: what differs is the state.
    x, i = (random.normal(size=one.shape).astype("float32") for one in kept.inputs)
    x[0, 2:] = 0
    for call in range(1, CALLS + 1):
        y, z = (keras.ops.convert_to_numpy(one) for one in kept([x, i]))
        numpy.savez(f"{folder}/kept.{call}.npz", in_x=x, in_i=i, out_both=y, out_flat=z)


main(sys.argv[1])
