#!/usr/bin/env python3
"""keras_training.py FOLDER: networks whose training differs from that of their layers alone, and what Keras makes of them.

    KERAS_BACKEND=torch python scripts/keras_training.py tests/keras/training

Writes of each NAME.keras, and NAME.npz: what goes in (one array for each input), y, and of each weight what it is after
three steps. `batches` has normalisations that are called several times, by themselves and within a network that two
branches share, and on each step of a sequence; `masked` has a network that is called with a mask; `counted`, `cleared` and
`attended` have outputs with masks, which their losses and normalisations heed; `turned` has layers
in both directions that are and are not frozen; `factors` a kernel that stays beside its factors; `dropped` has layers that drop
within themselves, and is not trained. `ignored` leaves out the targets of a class, also where a mask leaves out steps
(`ignored_steps`); `signs` has a hinge, whose targets are 0 and 1. tests/suite/keras_weights.rs compares.
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


def lengths(*least):
    """Rows of words, of which some end early, and one is empty where that is asked for."""
    rows = random.integers(1, 6, (BATCH * STEPS, 5))
    rows[::2, 3:] = 0
    rows[1::4, 1:] = 0
    for row in least:
        rows[row] = 0
    return {"i": rows.astype("int32")}


def counted():
    i = keras.Input((5,), dtype="int32", name="i")
    e = L.Embedding(6, 3, mask_zero=True, name="table")(i)
    x = L.BatchNormalization(momentum=0.6, name="norm")(e)
    x = L.LSTM(4, return_sequences=True, name="lstm")(x)
    x = L.BatchNormalization(momentum=0.7, scale=False, name="after")(x)
    return keras.Model(i, L.Dense(2, name="last")(x)), lengths(), (5, 2)


def cleared():
    x = keras.Input((5, 3), name="x")
    y = L.Dense(4, activation="tanh", name="first")(L.Masking(name="masking")(x))
    y = L.Bidirectional(L.GRU(2, return_sequences=True), name="both")(y)
    values = floats(5, 3)
    values[::3, 2:] = 0
    # A step of which nothing counts.
    values[4:8] = 0
    return keras.Model(x, L.Dense(1, name="last")(y)), {"x": values}, (5, 1)


def attended():
    i = keras.Input((5,), dtype="int32", name="i")
    e = L.Embedding(6, 4, mask_zero=True, name="table")(i)
    x = L.MultiHeadAttention(2, 3, name="heads")(e, e)
    # Of a sum with what attention has read the loss would count all steps: that has lost its mask. PyTorch's gradients of
    # steps that attend to nothing are none then.
    x = L.LayerNormalization(name="norm")(x)
    return keras.Model(i, L.Dense(2, activation="softmax", name="last")(x)), lengths(5), (5, 2)


def turned():
    x = keras.Input((5, 3), name="x")
    y = L.Bidirectional(L.LSTM(2, return_sequences=True), trainable=False, name="trained")(x)
    y = L.Bidirectional(L.LSTM(2, trainable=False), name="frozen")(y)
    return keras.Model(x, L.Dense(2, name="last")(y)), {"x": floats(5, 3)}


def factors():
    x = keras.Input((3,), name="x")
    y = L.Dense(4, lora_rank=2, activation="tanh", name="first")(x)
    return keras.Model(x, L.Dense(2, name="last")(y)), {"x": floats(3)}


def dropped():
    x = keras.Input((4, 6), name="x")
    y = L.MultiHeadAttention(2, 3, dropout=0.5, name="heads")(x, x)
    y = y + L.Attention(dropout=0.5, name="dot")([x, x]) + L.AdditiveAttention(dropout=0.5, name="sums")([x, x])
    y = L.LSTM(3, dropout=0.5, recurrent_dropout=0.25, name="lstm")(y)
    return keras.Model(x, L.Dense(2, name="last")(y)), {"x": floats(4, 6)}


SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def ignored():
    x = keras.Input((5, 3), name="x")
    return keras.Model(x, L.Dense(4, name="last")(x)), {"x": floats(5, 3)}, (5,)


def ignored_steps():
    i = keras.Input((5,), dtype="int32", name="i")
    e = L.Embedding(6, 3, mask_zero=True, name="table")(i)
    return keras.Model(i, L.Dense(4, name="last")(e)), lengths(), (5,)


def signs():
    x = keras.Input((3,), name="x")
    return keras.Model(x, L.Dense(2, name="last")(x)), {"x": floats(3)}, (2,)


def loss_of(make):
    return {ignored: SPARSE, ignored_steps: SPARSE, signs: "hinge"}.get(make, "mse")


def targets(make, sizes):
    if make in (ignored, ignored_steps):
        return random.integers(-1, 4, (BATCH * STEPS, *sizes)).astype("int64")
    if make is signs:
        return random.integers(0, 2, (BATCH * STEPS, *sizes)).astype("float32")
    return floats(*sizes)


def main(folder):
    every = (batches, masked, dropped, counted, cleared, attended, turned, factors, ignored, ignored_steps, signs)
    for make in every:
        keras.utils.set_random_seed(3)
        model, inputs, *sizes = make()
        if make in (ignored, ignored_steps):
            # The file then says what its loss leaves out.
            model.compile("sgd", loss_of(make))
        model.save(f"{folder}/{make.__name__}.keras")
        if make is factors:
            # A file holds kernels with the factors' product, and no factors.
            model = keras.models.load_model(f"{folder}/{make.__name__}.keras")
        y = targets(make, sizes[0] if sizes else (2,))
        if make is dropped:
            numpy.savez(f"{folder}/{make.__name__}.npz", **inputs, y=y)
            continue
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss_of(make))
        given = [inputs[one.name] for one in model.inputs]
        model.fit(given, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        after = {f"after.{weight.path}": keras.ops.convert_to_numpy(weight) for weight in model.weights if "lora" not in weight.path}
        numpy.savez(f"{folder}/{make.__name__}.npz", **inputs, y=y, **after)


main(sys.argv[1])
