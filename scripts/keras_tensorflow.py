"""Makes tests/keras/tensorflow.h5: a model of Keras 2 with functions of TensorFlow and masks, and its own outputs.

    pip install tensorflow tf_keras
    python scripts/keras_tensorflow.py tests/keras
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras import layers

rng = np.random.default_rng(1)
x, y = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y")
ids = keras.Input((5,), dtype="int32", name="ids")
e = layers.Embedding(9, 4, mask_zero=True)(ids)
q, k = layers.Dense(4)(x), layers.Dense(4)(x)
scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / tf.math.sqrt(4.0), axis=-1)
outputs = [
    x + y, 1.0 - x, 3.0 * x, x / (y * y + 1.0), x**2.0, -x, x // 0.5, x % 0.7, tf.maximum(x, y), tf.minimum(x, 0.1),
    tf.square(x), tf.math.rsqrt(tf.abs(x) + 1.0), tf.nn.gelu(x), tf.nn.swish(x), tf.nn.leaky_relu(x, 0.3), tf.nn.relu6(x * 8.0),
    tf.clip_by_value(x, -0.5, 0.6), tf.math.squared_difference(x, y), tf.add_n([x, y]), tf.round(x * 3.0),
    tf.reshape(x, (-1, 24)), tf.transpose(x, (0, 2, 1)), tf.expand_dims(x, 1), tf.squeeze(tf.expand_dims(x, -1), -1),
    tf.concat([x, y], axis=-1), tf.stack([x, y], axis=1), *tf.split(x, 3, axis=2), *tf.split(x, [1, 3], axis=1), tf.tile(x, (1, 2, 1)),
    tf.pad(x, [[0, 0], [1, 2], [0, 0]]), tf.gather(x, [0, 2], axis=1), tf.unstack(x, axis=1)[2], tf.reverse(x, [1]),
    tf.where(x > 0.0, x, 0.0 * y), tf.one_hot(tf.argmax(x, -1), 6), tf.repeat(x, 2, axis=1), tf.roll(x, 1, 1), tf.cast(x > 0, "float32"),
    tf.reduce_sum(x, axis=1), tf.reduce_mean(x, axis=[1, 2]), tf.reduce_max(x, axis=-1, keepdims=True), tf.math.reduce_std(x, 1),
    tf.math.reduce_logsumexp(x, -1), tf.norm(x, axis=-1), tf.math.l2_normalize(x, axis=-1), tf.cumsum(x, 1),
    x[:, 0], x[:, 1:3], x[:, ::2, 1:], x[:, ::-1], x[:, tf.newaxis, 2], x[:, -1, :], tf.matmul(scores, q), tf.matmul(x, y, transpose_a=True),
    layers.LSTM(3)(e), layers.Bidirectional(layers.GRU(2, return_sequences=True))(e), layers.GlobalAveragePooling1D()(e),
    layers.Attention()([e, e]), layers.MultiHeadAttention(2, 3)(q, k), layers.RNN(layers.LSTMCell(2))(layers.Masking()(y)),
]  # fmt: skip
model = keras.Model([x, y, ids], outputs, name="tensorflow")
for weight in model.trainable_weights:
    weight.assign(rng.uniform(-1, 1, weight.shape))
inputs = [rng.normal(size=(3, 4, 6)).astype("float32"), rng.normal(size=(3, 4, 6)).astype("float32"),
          np.array([[1, 2, 3, 0, 0], [4, 0, 6, 7, 8], [3, 0, 0, 0, 0]], "int32")]
inputs[1][0, 2:] = 0
model.save(f"{sys.argv[1]}/tensorflow.h5")
arrays = {f"in_{at}": array for at, array in enumerate(inputs)}
arrays |= {f"out_{at}": output.numpy() for at, output in enumerate(model(inputs, training=False))}
np.savez_compressed(f"{sys.argv[1]}/tensorflow.io.npz", **arrays)
