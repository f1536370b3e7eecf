"""Makes tests/weights: small files of weights as Keras and h5py write them, and what is in them.

    pip install keras h5py numpy tensorflow-cpu
    python scripts/keras_weights.py tests/weights

The two models are the same but for the names of their layers, so that weights of one can only be
given to the other by the order of layers.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import h5py
import keras
import numpy as np

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)


def model(prefix):
    layers = keras.layers
    inner = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4, name=prefix + "first"), layers.BatchNormalization(name=prefix + "norm")],
        name=prefix + "inner",
    )
    x = keras.Input((5,), name="x")
    y = layers.Dense(5, activation="tanh", name=prefix + "a")(x)
    y = inner(y)
    y = layers.Dense(4, activation="relu", name=prefix + "b")(y)
    y = layers.Dense(3, name=prefix + "c")(y)
    return keras.Model(x, y, name=prefix + "net")


keras.utils.set_random_seed(1)
one, other = model("p_"), model("q_")
rng = np.random.default_rng(1)
for weight in one.weights:
    weight.assign(rng.uniform(0.1, 1, weight.shape))
x = rng.uniform(-1, 1, (2, 5)).astype(np.float32)
one.save(f"{folder}/net.keras")
one.save(f"{folder}/net.h5")
one.save_weights(f"{folder}/net.weights.h5")
for name, made in [("net", one), ("renamed", other)]:
    with open(f"{folder}/{name}.json", "w") as file:
        file.write(made.to_json())
np.savez(f"{folder}/net.io.npz", in_0=x, out_0=one.predict(x, verbose=0))

# Everything else that h5py does when asked.
values = np.arange(35, dtype=np.float32).reshape(5, 7) / 4
for name, options in [("plain", {}), ("latest", {"libver": "latest"})]:
    with h5py.File(f"{folder}/{name}.h5", "w", **options) as file:
        group = file.create_group("deep/er")
        group["f32"] = values
        group["big"] = values.astype(">f4")
        group["f16"] = values.astype(np.float16)
        group["i64"] = values.astype(np.int64)
        group["bool"] = values > 4
        group["scalar"] = np.float32(1.5)
        group["empty"] = np.zeros((0, 3), np.float32)
        group["text"] = "not a number"  # the eighth: with more, "latest" puts links into a heap
        if name == "plain":
            group.create_dataset("chunked", data=values, chunks=(2, 3))
            group.create_dataset(
                "packed", data=values, chunks=(3, 2), compression="gzip", shuffle=True, fletcher32=True
            )
            group.create_dataset("unwritten", (3, 2), dtype="f4")
            group["f64"] = values.astype(np.float64)
            group["u8"] = values.astype(np.uint8)
            for at in range(40):
                group[f"many/{at}"] = np.float32(at)
