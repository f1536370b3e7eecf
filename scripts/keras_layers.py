"""Makes tests/keras: small models of Keras 3 with weights, inputs and Keras' own outputs.

    pip install keras jax h5py numpy
    KERAS_BACKEND=jax python scripts/keras_layers.py tests/keras [NAME...]

`functions` is made of functions of keras.ops, `layers` of layers that have weights; `masks` of layers that make, keep and
heed masks, in a `.keras` file; `steps` of recurrent layers that are written out, and of what stock applications use;
`arranged` of functions that repeat, divide and order, in a `.h5` file; `numbered` of functions that are several steps,
spectrograms, and layers that number what they read; `filtered` of images that are resized by filters, of transforms with
weights, and of stacks of cells that run in both directions over a time that is open; `tuned` of layers with additions of low rank; `products`
and `ranks` of functions whose operands are inputs, results and what stands in the call; `bfloat16` and `float16` of a whole network.
"""

import os
import sys
import zipfile

import keras
import numpy as np
from keras import layers, ops

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(1)


def functions():
    x, y = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y")
    outputs = [
        x + y, x - 2, 2 - x, x * y, 1 / ops.exp(x), x**2, ops.maximum(x, 0.5), x // 0.3,
        ops.where(x > y, x, 0.0), ops.where(ops.logical_not(x > 0), x, y),
        ops.clip(x, -0.5, 0.7), ops.cast(ops.cast(x * 5, "int32"), "float32") + 0.5,
        ops.square(x), ops.rsqrt(ops.abs(x) + 1), ops.log1p(ops.abs(x)), ops.sign(x), ops.floor(x * 3),
        ops.relu(x), ops.relu6(x * 9), ops.leaky_relu(x, 0.3), ops.elu(x, 0.7), ops.selu(x), ops.softplus(x),
        ops.gelu(x, approximate=False), ops.gelu(x, approximate=True), ops.hard_sigmoid(x), ops.silu(x),
        ops.softmax(x, axis=1), ops.log_softmax(x),
        ops.sum(x, axis=1), ops.mean(x, axis=(1, 2), keepdims=True), ops.max(x, axis=-1), ops.min(x, axis=1),
        ops.prod(x, axis=2), ops.var(x, axis=1), ops.std(x, axis=(1, 2)), ops.logsumexp(x, axis=2, keepdims=True),
        ops.cast(ops.argmax(x, axis=-1), "float32"), ops.cast(ops.argmin(x, axis=1), "float32"),
        ops.reshape(x, (-1, 24)), ops.reshape(x, (-1, 2, 2, 6)), ops.transpose(x, (0, 2, 1)), ops.swapaxes(x, 1, 2),
        ops.expand_dims(x, 1), ops.squeeze(ops.expand_dims(x, 2), 2), ops.flip(x, axis=1),
        ops.concatenate([x, y], axis=-1), ops.stack([x, y], axis=1), ops.matmul(x, ops.transpose(y, (0, 2, 1))),
        x[:, 0], x[:, 1:3, ::2], x[..., -1], x[:, ::-1], x[:, None, -3:], x[:, 3, 5],
    ]  # fmt: skip
    return keras.Model([x, y], outputs, name="functions")


def adapted(axis, invert=False):
    layer = layers.Normalization(axis=axis, invert=invert)
    layer.adapt(rng.normal(3, 2, (40, 4, 6)).astype("float32"))
    return layer


def with_weights():
    x = keras.Input((4, 6), name="x")
    image = keras.Input((3, 5, 8), name="image")
    heads = layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")(x)
    fixed = layers.Dense(3)
    fixed.trainable = False
    outputs = [
        adapted(-1)(x), adapted(None)(x), adapted((1, 2), invert=True)(x),
        layers.GroupNormalization(4)(image), layers.GroupNormalization(-1, axis=1, epsilon=1e-4, scale=False)(image),
        layers.UnitNormalization()(x), layers.UnitNormalization(axis=(1, 2))(x),
        layers.EinsumDense("abc,cd->abd", (None, 7), bias_axes="d", activation="tanh")(x),
        layers.EinsumDense("...x,xy->...y", 5, bias_axes="y")(image),
        layers.EinsumDense("abde,dec->abc", (None, 5))(heads),
        layers.Attention(use_scale=True)([x, x]), layers.Attention()([x, x * 2, x + 1], use_causal_mask=True),
        layers.GroupQueryAttention(3, 4, 2)(x, x), layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True),
        fixed(x), layers.AdditiveAttention()([x, x * 2, x + 1]), layers.AdditiveAttention(use_scale=False)([x, x], use_causal_mask=True),
        layers.Attention(score_mode="concat", use_scale=True)([x, x * 2]),
        layers.CenterCrop(2, 3)(image), layers.CenterCrop(3, 2)(image), layers.Resizing(5, 7)(image), layers.Resizing(2, 3)(image),
        layers.Resizing(5, 3, interpolation="nearest")(image), layers.Resizing(7, 12, interpolation="nearest")(image),
    ]  # fmt: skip
    return keras.Model([x, image], outputs, name="layers")


def masks():
    ids, y = keras.Input((5,), dtype="int32", name="ids"), keras.Input((5, 3), name="y")
    e = layers.Embedding(9, 4, mask_zero=True)(ids)
    m = layers.Masking(0.5)(y)
    kept = layers.Dropout(0.1)(layers.LayerNormalization()(layers.Activation("relu")(layers.Dense(4)(e))))
    outputs = [
        layers.LSTM(3)(e), layers.GRU(3, return_sequences=True)(e), layers.SimpleRNN(2, go_backwards=True)(kept),
        layers.GRU(2, reset_after=False, return_sequences=True, go_backwards=True)(m), *layers.LSTM(3, return_state=True)(m),
        layers.Bidirectional(layers.LSTM(2, return_sequences=True))(e), layers.Bidirectional(layers.GRU(2), merge_mode="sum")(m),
        layers.GlobalAveragePooling1D()(e), layers.LSTM(2)(layers.Add()([e, kept])), layers.GRU(2)(layers.Concatenate()([e, kept])),
        m, layers.GRU(2)(layers.TimeDistributed(layers.Dense(3))(m)), layers.RNN(layers.LSTMCell(2))(m),
        layers.LSTM(2, return_sequences=True, zero_output_for_mask=True)(m), layers.LSTM(2)(layers.LSTM(3, return_sequences=True)(e)),
        layers.GlobalMaxPooling1D()(layers.Conv1D(2, 3)(e)),
    ]  # fmt: skip
    return keras.Model([ids, y], outputs, name="masks")


def arranged():
    x, y = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y")
    outputs = [
        ops.pad(x, ((0, 0), (1, 0), (0, 2))), ops.cumsum(x, 1), ops.repeat(x, 2, 1), ops.tile(x, (1, 1, 2)),
        *ops.split(x, 3, 2), *ops.split(x, [1, 4], 2), *ops.top_k(x, 2), ops.sort(x, 1), ops.argsort(x, 2),
        ops.take(x, np.array([[0, 2], [3, 3]]), axis=1), ops.roll(x, 1, 1), ops.one_hot(ops.argmax(x, -1), 6),
        ops.zeros_like(x), ops.ones_like(y), ops.any(x > 2, axis=1), ops.all(x > -2, axis=2, keepdims=True),
        ops.norm(x, axis=-1), ops.moveaxis(x, 1, 2), ops.round(x * 3), x + 1, ops.maximum(x, y), x @ ops.transpose(y, (0, 2, 1)),
        x[:, 1:3], layers.Add()([x, y]), layers.RandomFlip()(ops.expand_dims(x, -1)),
    ]  # fmt: skip
    return keras.Model([x, y], outputs, name="arranged")


def steps():
    """Recurrent layers that are written out step by step, pools of windows of several sizes, what applications use."""
    from keras.src.applications.convnext import LayerScale
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    y, images, image = keras.Input((5, 3), name="y"), keras.Input((3, 5, 4, 2), name="images"), keras.Input((7, 5, 3), name="image")
    ids, id = keras.Input((4,), dtype="int32", name="ids"), keras.Input((1,), dtype="int32", name="id")
    m = layers.Masking(0.5)(y)
    places = ops.convert_to_tensor(rng.normal(size=(5, 3)).astype("float32"))
    stack = lambda: [layers.LSTMCell(3), layers.GRUCell(2, activation="relu"), layers.SimpleRNNCell(2)]
    inner = layers.ConvLSTM2D(3, (3, 2), padding="same", return_sequences=True, recurrent_activation="hard_sigmoid")(images)
    outputs = [
        layers.LSTM(3, activation="relu")(y), *layers.LSTM(3, recurrent_activation="hard_sigmoid", return_state=True)(m),
        layers.GRU(3, activation="selu", return_sequences=True)(m), layers.GRU(2, recurrent_activation="hard_sigmoid", reset_after=False, go_backwards=True)(m),
        layers.SimpleRNN(2, activation="relu", return_sequences=True, go_backwards=True)(y), layers.SimpleRNN(2, activation="sigmoid", use_bias=False)(m),
        layers.Bidirectional(layers.LSTM(2, activation="relu", return_sequences=True))(m), layers.RNN(stack(), return_sequences=True)(m), *layers.RNN(stack(), return_state=True)(y),
        inner, layers.ConvLSTM2D(2, 3, strides=2, activation="relu", padding="same")(inner), layers.ConvLSTM1D(2, 3, dilation_rate=2, go_backwards=True, use_bias=False)(images[..., 0]),
        layers.AdaptiveAveragePooling2D((3, 2))(image), layers.AdaptiveMaxPooling2D((7, 4))(image), layers.AdaptiveAveragePooling1D(2)(y), layers.AdaptiveMaxPooling1D(3)(y),
        layers.Normalization(axis=3, mean=[0.1, 0.2, 0.3], variance=[0.5, 2.0, 1.5])(image), layers.Normalization(axis=1, mean=list(range(7)), variance=[2.0] * 7, invert=True)(image),
        LayerScale(0.5, 3)(image), CustomScaleLayer(0.17)([image, image * 2]), y + places, ops.tril(y, 1), ops.triu(y), ops.take_along_axis(y, ops.argsort(y, 1), 1),
        ops.einsum("btf,bsf->bst", y, y * 2), ops.einsum("btf,bsg->tg", y, y), ops.einsum("btf->fb", y),
        layers.CategoryEncoding(6)(ids), layers.CategoryEncoding(6, output_mode="count")(ids), layers.CategoryEncoding(6, output_mode="one_hot")(id),
    ]  # fmt: skip
    return keras.Model([y, images, image, ids, id], outputs, name="steps")


def numbered():
    """Functions that are several steps, layers that number what they read, spectrograms, images of another ratio."""
    x, sound, image = keras.Input((4, 6), name="x"), keras.Input((40,), name="sound"), keras.Input((6, 9, 2), name="image")
    table, other = layers.ReversibleEmbedding(5, 6), layers.ReversibleEmbedding(5, 6, tie_weights=False, logit_soft_cap=2.0)
    places = ops.cast(ops.relu(ops.minimum(x[:, 0], 4)), "int32")
    kernel, grouped, depth = (rng.normal(size=size).astype("float32") for size in ((2, 6, 5), (2, 9, 6), (2, 6, 2)))
    mean, scale = (rng.uniform(0.5, 1.5, size).astype("float32") for size in (6, 6))
    outputs = [
        ops.cumprod(x, axis=1), ops.arctan2(x, ops.flip(x, 1)), ops.dot(x, rng.normal(size=(6, 2)).astype("float32")), ops.outer(x[0, 0], x[0, 1]),
        ops.nan_to_num(x / ops.relu(x), posinf=3.0, neginf=-2.0), ops.count_nonzero(ops.relu(x), axis=(1, 2)), ops.digitize(x, np.array([-1.0, 0.0, 0.5])),
        ops.select([x > 1, x > 0], [x, x * 2], -1.0), ops.slice(x, (0, 1, 2), (3, 2, 3)), ops.glu(x), ops.threshold(x, 0.2, 3.0), ops.sparse_plus(x), ops.sparsemax(x), ops.sparsemax(x * 3, axis=1),
        ops.average_pool(x, 2), ops.max_pool(image, (2, 3), 2, "same"), ops.conv(x, kernel, padding="same"), ops.conv(image[..., 0], grouped, 2),
        ops.depthwise_conv(x, depth), ops.batch_normalization(x, mean, scale, -1, mean * 2, scale), ops.layer_normalization(x, mean, scale, axis=-1, epsilon=1e-3),
        ops.dot_product_attention(*(ops.reshape(x * f, (-1, 4, 2, 3)) for f in (1, 2, 3)), is_causal=True), ops.image.resize(image, (4, 5)),
        layers.Discretization([-1.0, 0.0, 1.0])(x), layers.Discretization([-1.0, 0.5], output_mode="multi_hot")(x[:, 0]),
        layers.MelSpectrogram(16, sequence_length=12, sequence_stride=5, num_mel_bins=4, sampling_rate=1000, max_freq=450)(sound),
        layers.MelSpectrogram(15, 4, 11, window="hamming", num_mel_bins=3, sampling_rate=100, min_freq=1.0, max_freq=None, power_to_db=False, mag_exp=1.0)(sound),
        layers.SpectralNormalization(layers.Dense(3))(x), layers.SpectralNormalization(layers.Conv1D(2, 2))(x),
        layers.Resizing(4, 3, crop_to_aspect_ratio=True)(image), layers.Resizing(8, 5, pad_to_aspect_ratio=True, fill_value=0.5)(image), layers.RandomCrop(3, 3)(image),
        table(x + table(places)[:, :4], reverse=True), other(x + other(places)[:, :4], reverse=True), layers.Pipeline([layers.Rescaling(0.5, 1.0), layers.CenterCrop(2, 3)])(image),
        layers.MultiHeadAttention(2, 3, attention_axes=(2,))(image, image), layers.MultiHeadAttention(2, 3, attention_axes=(1, 2))(image, image * 2),
        ops.layer_normalization(x, mean, scale, axis=-1, epsilon=1e-3, rms_scaling=True), layers.LayerNormalization(rms_scaling=True)(x), ops.cumprod(x > 0, axis=1), ops.cumsum(x > 0, axis=1),
        ops.select([x > 1, x > 0], [ops.cast(x, "int32"), x], 0.5), ops.arctan2(x * 0, x), ops.nan_to_num(ops.cast(x * 3, "int32")),
    ]  # fmt: skip
    return keras.Model([x, sound, image], outputs, name="numbered")


def filtered():
    image, sound = keras.Input((5, 4, 2), name="image"), keras.Input((40, 2), name="sound")
    time, frames = keras.Input((None, 3), name="time"), keras.Input((None, 4, 3, 2), name="frames")
    cells = lambda: [layers.LSTMCell(3), layers.GRUCell(2)]
    outputs = [
        layers.Resizing(3, 7, interpolation="bicubic")(image), layers.Resizing(3, 2, interpolation="bicubic", antialias=True)(image),
        layers.Resizing(3, 3, antialias=True)(image), layers.Resizing(7, 3, interpolation="lanczos3", antialias=True)(image),
        layers.UpSampling2D((2, 3), interpolation="bicubic")(image), layers.Resizing(4, 6, interpolation="lanczos5")(image),
        layers.STFTSpectrogram("log", 8, 4)(sound), layers.STFTSpectrogram("stft", 7, 3, 10, window="hamming", padding="same", expand_dims=True)(sound),
        layers.STFTSpectrogram("psd", 8, 5, scaling="spectrum", periodic=True)(sound), layers.STFTSpectrogram("angle", 6, 6, window=None, scaling=None)(sound),
        layers.STFTSpectrogram("real", 6, 4, 8)(sound), layers.STFTSpectrogram("magnitude", 9, 2, expand_dims=True)(sound),
        layers.Bidirectional(layers.RNN(cells(), return_sequences=True))(time), layers.Bidirectional(layers.RNN(cells()), merge_mode="sum")(time),
        layers.Bidirectional(layers.LSTM(2), backward_layer=layers.RNN(layers.GRUCell(2), go_backwards=True))(time),
        layers.ConvLSTM2D(2, 2, padding="same", return_sequences=True)(frames),
    ]  # fmt: skip
    return keras.Model([image, sound, time, frames], outputs, name="filtered")


def tuned():
    """Layers that were adapted with matrices of low rank: what is stored is the sum."""
    ids = keras.Input((5,), dtype="int32", name="ids")
    parts = [layers.Embedding(9, 4), layers.Dense(6, activation="tanh"), layers.EinsumDense("bti,ij->btj", (None, 3))]
    y = ids
    for part, options in zip(parts, [dict(rank=2), dict(rank=1, lora_alpha=3), dict(rank=2)]):
        y = part(y)
        part.enable_lora(**options)
    return keras.Model(ids, y, name="tuned")


def patches():
    """Windows of images and volumes as channels: apart, overlapping, dilated, cut off and filled up."""
    image, volume = keras.Input((7, 9, 2), name="image"), keras.Input((4, 5, 6, 2), name="volume")
    cut = ops.image.extract_patches
    outputs = [
        cut(image, 3), cut(image, (2, 3), strides=(1, 2), padding="same"), cut(image, 2, strides=1, dilation_rate=2, padding="valid"),
        cut(image, (1, 4), padding="same"), cut(volume, (2, 2, 3)), cut(volume, (3, 1, 2), strides=(1, 1, 2), padding="same"),
    ]
    return keras.Model([image, volume], outputs, name="patches")


def divided():
    """Layers whose kernels are divided by their norms: a `.h5` file holds each once."""
    image = keras.Input((5, 6, 3), name="image")
    y = layers.SpectralNormalization(layers.Conv2D(4, 2, activation="relu"))(image)
    return keras.Model(image, layers.SpectralNormalization(layers.Dense(3), power_iterations=2)(layers.Flatten()(y)), name="divided")


def scalars():
    """Functions of each element that are several operations, and of what is only moved."""
    x, n = keras.Input((4, 5), name="x"), keras.Input((4, 5), name="n", dtype="int32")
    small = ops.tanh(x)
    outputs = [
        ops.deg2rad(x), ops.rad2deg(x), ops.exp2(x), ops.log2(ops.abs(x)), ops.log10(ops.abs(x)), ops.cbrt(x), ops.trunc(x * 3), ops.arcsin(small),
        ops.arccos(small), ops.arcsinh(x), ops.arccosh(ops.abs(x) + 1), ops.arctanh(small), ops.isfinite(x / ops.relu(x)), ops.isposinf(x / ops.relu(x)),
        ops.isneginf(x / ops.relu(x)), ops.logaddexp(x, small), ops.hypot(x, small), ops.heaviside(ops.round(x), small),
        ops.fmod(x, small), ops.divide_no_nan(x, ops.relu(small)), ops.bitwise_and(n, n + 5), ops.bitwise_or(n, n * 2), ops.bitwise_xor(n, n + 3),
        ops.fmod(n, n * n + 2), ops.reshape(ops.ravel(x), (-1, 20)), ops.fliplr(x), ops.copy(x), ops.log2(n * n + 1),
    ]
    return keras.Model([x, n], outputs, name="scalars")


def extremes():
    """Functions of elements whose squares are infinite, and of infinities."""
    x, y = keras.Input((2, 4), name="x"), keras.Input((2, 4), name="y")
    return keras.Model([x, y], [ops.arcsinh(x), ops.hypot(x, y), ops.logaddexp(x, y)], name="extremes")


def products():
    """Functions of vectors and matrices, of parts of tensors, and of places, of whose operands some stand in the calls."""
    x, y, image = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((4, 6, 3), name="image")
    table, row, vectors = (rng.normal(size=size).astype("float32") for size in ((4, 6), (6,), (4, 3)))
    places, starts = ops.cast(ops.relu(x[0, 0, :2] * 2), "int32"), ops.cast(ops.relu(y[0, 0, :2]), "int32")
    segments = np.array([2, 0, 2, -1], "int32")
    outputs = [
        *(ops.norm(x, order, axis=(1, 2)) for order in (None, "fro", 1, -1)), *(ops.norm(y, order, axis=(1,), keepdims=True) for order in (0.5, 3)),
        ops.normalize(x, order=1), ops.normalize(x, axis=1, order=3), ops.cross(x[..., :3], y[..., 3:]), ops.cross(x[..., :3], vectors[None]), ops.cross(x[..., :2], y[..., 3:]),
        ops.diagonal(x, 1, 1, 2), ops.diagonal(x + table, -2, 2, 1), ops.trace(x, axis1=1, axis2=2), ops.diag(x[0]), ops.diag(x[0, 0], -2), ops.diagflat(y[1], 1),
        ops.inner(x, table), ops.inner(row, y), ops.tensordot(x, table.T, 1), ops.tensordot(x, y, [[1, 2], [1, 2]]), ops.tensordot(row, x, [[0], [2]]), ops.vdot(x[0, 0], row),
        ops.kron(x[0], table[:2, :2]), ops.cdist(x, y[:, :3]), ops.dot(x[0], ops.transpose(y, (0, 2, 1))), ops.matmul(x, row), ops.matmul(row[:4], y), ops.outer(row, x[0, 0]),
        ops.hstack([x[0], table]), ops.vstack([row, x[0, 1], y[0, 0]]), ops.dstack([x[0], table, y[1]]), ops.stack([table, x[0]], -1), ops.append(x[0], row), ops.append(table, y[0], axis=0),
        *ops.meshgrid(x[0, 0], row[:3]), *ops.meshgrid(row[:2], y[0, 0], x[0, :, 1], indexing="ij"), *ops.array_split(x, 4, axis=2), *ops.hsplit(x, 2),
        ops.broadcast_to(x[0], (2, 4, 6)), ops.rot90(x, axes=(1, 2)), ops.rot90(y, 3, axes=(2, 1)), ops.roll(x[0], 5), ops.pad(x, 1), ops.pad(x, ((0, 0), (1, 3), (2, 0)), "symmetric"), ops.pad(x, ((0, 0), (1, 0), (0, 2)), constant_values=0.5),
        ops.slice_update(x[0], (1, 2), table[:2, :3]), ops.slice_update(table, starts, x[0, :2, :3]), ops.slice(y[0], starts, (2, 3)), ops.scatter_update(x[0], [[0, 1], [3, 2]], y[0, 0, :2]),
        ops.scatter_update(table, places[:, None], x[0, :2], "add"), ops.scatter_update(x[0], np.array([[1], [2]]), table[:2], "max"), ops.scatter(np.array([[1], [3], [1]]), x[0, :3], (4, 6)),
        ops.segment_sum(x[0], segments, 3), ops.segment_max(y[0], segments, 4), ops.segment_min(y[1], ops.cast(x[0, :, 0] > 0, "int32"), 2), ops.segment_prod(x[0], segments, 3),
        ops.take_along_axis(x[0], np.array([0, 5, 23]), None), ops.repeat(x, 2, axis=1), ops.unfold(ops.transpose(image, (0, 3, 1, 2)), (2, 3), stride=(1, 2), padding=1),
        ops.depth_to_space(image[..., :1] + np.arange(4, dtype="float32"), 2), ops.space_to_depth(ops.transpose(image, (0, 3, 1, 2)), 2, "channels_first"), ops.image.sobel_edges(image), ops.image.rgb_to_grayscale(image),
        ops.image.crop_images(image, 1, 2, target_height=2, target_width=3), ops.image.pad_images(image, 1, 0, target_height=6, target_width=8), ops.adaptive_average_pool(image, (2, 4)),
        ops.separable_conv(image, rng.normal(size=(2, 2, 3, 2)).astype("float32"), rng.normal(size=(1, 1, 6, 2)).astype("float32")),
        *(ops.dot_product_attention(*(ops.reshape(v, (-1, 4, 2, 3)) for v in (x, y, x * y)), **more) for more in (dict(mask=np.tril(np.ones((1, 1, 4, 4), bool))), dict(bias=ops.reshape(x, (-1, 1, 4, 6))[..., :4], scale=0.3))),
        ops.dot_product_attention(ops.reshape(x, (-1, 3, 4, 2)), ops.reshape(y, (-1, 6, 2, 2)), ops.reshape(x, (-1, 6, 2, 2))),
    ]  # fmt: skip
    return keras.Model([x, y, image], outputs, name="products")


def ranks():
    """Functions of elements in order, of several steps and of what is no number; spectra, losses, comparisons."""
    x, n, sound = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="n", dtype="int32"), keras.Input((40,), name="sound")
    table, row = rng.normal(size=(4, 6)).astype("float32"), np.sort(rng.normal(size=6).astype("float32"))
    gaps = ops.where(x > 1, float("nan"), x)
    shares = ops.softmax(x)
    outputs = [
        ops.median(x, axis=1), ops.median(x, axis=(1, 2), keepdims=True), ops.quantile(x[0], ops.sigmoid(x[1, 0, :2])), ops.percentile(x, 35, axis=2, keepdims=True, method="lower"), ops.nanmedian(gaps, axis=2),
        ops.searchsorted(row, x[0, 0]), ops.searchsorted(ops.sort(x[0, 0]), row, side="right"), ops.in_top_k(n[0, :, 0] % 6, x[0], 2), ops.argsort(x[0], axis=None), ops.digitize(n, np.array([-2, 0, 3])),
        *ops.moments(x, axes=[1], keepdims=True), ops.average(x, axis=1, weights=np.array([1, 2, 3, 4], "float32")), ops.average(x, axis=2, weights=ops.abs(x)), ops.ptp(x, axis=1), ops.diff(n, 2, axis=1), ops.diff(x > 0), ops.trapezoid(x, dx=0.5, axis=1), ops.corrcoef(x[0]),
        ops.nansum(gaps, axis=1), ops.nanprod(gaps, axis=1), ops.nanmax(gaps, axis=2, keepdims=True), ops.nanmin(gaps), ops.nanmean(gaps, axis=2), ops.nanvar(gaps), ops.nanstd(gaps, axis=(1, 2)), ops.nanargmax(gaps, axis=2), ops.nancumsum(gaps, axis=1), ops.nancumprod(gaps, axis=2),
        ops.cumsum(x[0]), ops.cumprod(x[0]), ops.rms_normalization(x, row, epsilon=1e-3), ops.rms_normalization(x, table, axis=(-2, -1)), ops.softmax(x, (1, 2)), ops.log_softmax(x, (0, 2)), layers.Softmax((1, 2))(x),
        *ops.fft((x, x + table)), *ops.ifft2((x, x * 2)), *ops.rfft(x, 8), ops.irfft((x, ops.flip(x, 2)), 7), ops.extract_sequences(sound, 8, 3), *ops.stft(sound, 8, 4, 10),
        ops.binary_crossentropy(shares, ops.sigmoid(x)), ops.categorical_crossentropy(shares, x, from_logits=True), ops.categorical_crossentropy(table, ops.abs(x[0])), ops.sparse_categorical_crossentropy(n[..., 0] % 6, shares), ops.psnr(x[0], table, 2.0),
        ops.isclose(x, table, rtol=1.0, atol=0.5), ops.isclose(gaps, gaps, equal_nan=True), ops.isin(n, [1, -2]), ops.isin(n, n[0, 0], invert=True), ops.fmax(gaps, table), ops.fmin(0.5, gaps), ops.ldexp(x, n), ops.left_shift(n, 2), ops.right_shift(n, np.array([1, 2, 3, 1, 2, 3], "int32")),
        ops.bitwise_not(n), ops.angle(x), ops.signbit(x), ops.sinc(x), ops.sparse_sigmoid(x), ops.logaddexp2(x, table), ops.logical_and(x > 0, True), ops.logical_xor(False, n), ops.logical_or(x > 1, table > 0), n // 3, ops.trunc(n), ops.relu(n), ops.clip(n, -1.5, 2),
        ops.linspace(x[0], table, 3, axis=1), ops.linspace(0.0, x[0, 0], 4, endpoint=False), ops.logspace(row, x[0, 0], 3, base=2), ops.full_like(x, 2, "int32"), ops.full((2, 3), x[0, 0, 0]), ops.multi_hot(ops.abs(n) % 6, 6), ops.saturate_cast(x * 200, "int8"), ops.vander(x[0, 0], 3),
        *ops.unravel_index(ops.abs(n), (3, 7)), ops.where(x > 0, 1.0, 0.0), ops.where(table > 0, x, -np.inf), x + np.where(np.tri(4, 6), 0, -np.inf).astype("float32"), ops.select([x > 1, table > 0], [x, table], row),
        ops.layer_normalization(x, gamma=row, beta=row), ops.concatenate([x[0], table, x[1]], axis=0),
    ]  # fmt: skip
    return keras.Model([x, n, sound], outputs, name="ranks")


def halved(dtype):
    """A network of 16 bits through and through."""
    keras.config.set_dtype_policy(dtype)
    x = keras.Input((4, 4, 2), name="x")
    y = layers.BatchNormalization()(layers.Conv2D(3, 2, activation="relu")(x))
    y = layers.Dense(2)(layers.LayerNormalization()(layers.Flatten()(y)))
    keras.config.set_dtype_policy("float32")
    return keras.Model(x, layers.Activation("linear", dtype="float32")(y), name=dtype)


def bfloat16():
    return halved("bfloat16")


def float16():
    return halved("float16")


def compress(path):
    """The same archive, its entries compressed: HDF5 has much room between small arrays."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


MODELS = [functions, with_weights, masks, arranged, steps, numbered, filtered, tuned, patches, divided, scalars, extremes, products, ranks, bfloat16, float16]
ARCHIVES = ("masks", "arranged", "steps", "numbered", "filtered", "tuned", "patches", "divided", "scalars", "extremes", "products", "ranks", "bfloat16", "float16")
keras.utils.set_random_seed(1)
for model in [make() for make in MODELS if not sys.argv[2:] or make.__name__ in sys.argv[2:]]:
    for weight in model.weights:
        if weight.trainable and not weight.path.startswith("normalization"):
            weight.assign(rng.uniform(-1, 1, weight.shape))
    inputs = [rng.normal(size=(3, *(size or 4 for size in tensor.shape[1:]))).astype("float32") for tensor in model.inputs]
    if model.name == "masks":
        # The first sequence is padded, one has a gap, one counts no step.
        inputs[0] = np.array([[1, 2, 3, 0, 0], [4, 0, 6, 7, 8], [0, 0, 0, 0, 0]], "int32")
        inputs[1][0, 3:] = inputs[1][1, 1] = inputs[1][2] = 0.5
    if model.name == "steps":
        inputs[0][0, 3:] = inputs[0][1, 1] = inputs[0][2] = 0.5
        inputs[3:] = [np.array([[1, 2, 2, 0], [4, 4, 4, 4], [0, 5, 1, 3]], "int32"), np.array([[1], [0], [5]], "int32")]
    if model.name in ("scalars", "ranks"):
        inputs[1] = np.round(inputs[1] * 5).astype("int32")
    if model.name == "extremes":
        large = np.array([[1e30, -1e25, 3e10, 1e-20], [np.inf, -np.inf, 1.0, 2e37]], "float32")
        inputs = [np.stack([large * sign for sign in (1, -1, 1)]), np.stack([large, large, large[::-1]])]
    if model.name == "tuned":
        inputs = [np.array([[1, 2, 3, 0, 8], [4, 0, 6, 7, 8], [0, 5, 5, 1, 2]], "int32")]
    outputs = [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(model(inputs, training=False))]
    if model.name in ARCHIVES:
        path = f"{folder}/{model.name}" + (".h5" if model.name in ("arranged", "divided") else ".keras")
        model.save(path)
        if model.name in ARCHIVES[3:] and model.name != "divided":
            compress(path)
        if model.name == "bfloat16":
            model.save(f"{folder}/{model.name}.h5")
        arrays = {f"in_{at}": array for at, array in enumerate(inputs)}
        arrays |= {f"out_{at}": array for at, array in enumerate(outputs)}
        np.savez_compressed(f"{folder}/{model.name}.io.npz", **arrays)
        continue
    with open(f"{folder}/{model.name}.json", "w") as file:
        file.write(model.to_json())
    if model.weights:
        model.save_weights(f"{folder}/{model.name}.weights.h5")
    arrays = {f"in_{at}": array for at, array in enumerate(inputs)}
    arrays |= {f"out_{at}": np.asarray(array) for at, array in enumerate(outputs)}
    np.savez(f"{folder}/{model.name}.io.npz", **arrays)
