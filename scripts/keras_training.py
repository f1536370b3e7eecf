#!/usr/bin/env python3
"""keras_training.py FOLDER: networks whose training differs from that of their layers alone, and what Keras makes of them.

    KERAS_BACKEND=torch python scripts/keras_training.py tests/keras/training

Writes of each NAME.keras, and NAME.npz: what goes in (one array for each input), y, and of each weight what it is after
three steps. `batches` has normalisations that are called several times, by themselves and within a network that two
branches share, and on each step of a sequence; `masked` has a network that is called with a mask; `dropped` has layers
that drop within themselves, and is not trained. tests/suite/keras.rs compares.
"""
import sys

import keras
import numpy
from keras import layers as L

BATCH, STEPS = 4, 3
random = numpy.random.default_rng(5)


def floats(*sizes):
    return random.normal(size=(BATCH * STEPS, *sizes)).astype("float32")


def batches():
    a, b, t = keras.Input((4,), name="a"), keras.Input((4,), name="b"), keras.Input((3, 2), name="t")
    norm = L.BatchNormalization(momentum=0.7, name="norm")
    branch = keras.Sequential([L.Dense(3, name="inner"), L.BatchNormalization(name="within")], name="branch")
    each = keras.Sequential([L.Dense(2, activation="relu", name="step"), L.BatchNormalization(name="by_step")], name="each")
    x = L.Concatenate()([norm(a), norm(b) * norm(a * 0.5), branch(a) - branch(b), L.Flatten()(L.TimeDistributed(each, name="steps")(t))])
    return keras.Model([a, b, t], L.Dense(2, name="last")(x)), {"a": floats(4), "b": floats(4), "t": floats(3, 2)}


def masked():
    i = keras.Input((5,), dtype="int32", name="i")
    e = L.Embedding(6, 3, mask_zero=True, name="table")(i)
    x = keras.Sequential([L.Dense(3, name="inner"), L.LSTM(4, name="lstm")], name="reader")(e)
    rows = random.integers(1, 6, (BATCH * STEPS, 5))
    rows[::2, 3:] = 0
    return keras.Model(i, L.Dense(2, name="last")(x)), {"i": rows.astype("int32")}


def dropped():
    x = keras.Input((4, 6), name="x")
    y = L.MultiHeadAttention(2, 3, dropout=0.5, name="heads")(x, x)
    y = y + L.Attention(dropout=0.5, name="dot")([x, x]) + L.AdditiveAttention(dropout=0.5, name="sums")([x, x])
    y = L.LSTM(3, dropout=0.5, recurrent_dropout=0.25, name="lstm")(y)
    return keras.Model(x, L.Dense(2, name="last")(y)), {"x": floats(4, 6)}


def main(folder):
    for make in (batches, masked, dropped):
        keras.utils.set_random_seed(3)
        model, inputs = make()
        model.save(f"{folder}/{make.__name__}.keras")
        y = floats(2)
        if make is dropped:
            numpy.savez(f"{folder}/{make.__name__}.npz", **inputs, y=y)
            continue
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        given = [inputs[one.name] for one in model.inputs]
        model.fit(given, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        after = {f"after.{weight.path}": keras.ops.convert_to_numpy(weight) for weight in model.weights}
        numpy.savez(f"{folder}/{make.__name__}.npz", **inputs, y=y, **after)


main(sys.argv[1])
