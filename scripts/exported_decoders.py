"""Makes tests/generate/exports: small decoders, exported without caches by torch's three exporters as people do, and what a
greedy search over whole sequences writes on.

    pip install torch transformers onnx onnxscript keras tensorflow-cpu
    python scripts/exported_decoders.py tests/generate/exports

Of those of transformers it differs what tells positions apart: with `input_ids` alone the library compares neighbouring ones
(several texts may be packed in a row), with a mask of ones or one that is an input it looks tokens up in that. The others are
layers that remember: windows over the last tokens and recurrent states.
"""

import json
import os
import sys

import onnx
import torch
from torch.export import Dim
from torch_export import save_plain
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = dict(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, vocab_size=31,
             max_position_embeddings=64)
# By name: the family, fields of its configuration, where the mask comes from, and the exporter.
DECODERS = {
    "packed": ("llama", SMALL, None, "program"),
    "packed_onnx": ("mistral", dict(SMALL, sliding_window=4, head_dim=8), None, "dynamo"),
    "mask_of_ones": ("qwen2", SMALL, "ones", "program"),
    "mask_is_input": ("codegen", dict(n_embd=16, n_layer=1, n_head=4, rotary_dim=4, vocab_size=31, n_positions=64), "input", "program"),
    "mask_is_input_onnx": ("llama", SMALL, "input", "dynamo"),
    "mask_traced": ("qwen2", SMALL, "ones", "traced"),
    "batch_is_needed": ("openai-gpt", dict(n_embd=16, n_layer=1, n_head=2, vocab_size=31, n_positions=64), "none", "program"),
    "short_windows": ("lfm2", dict(SMALL, num_hidden_layers=2, layer_types=["conv", "full_attention"], block_ff_dim=16, conv_L_cache=3), None, "program"),
    "short_windows_onnx": ("lfm2", dict(SMALL, num_hidden_layers=2, layer_types=["conv", "full_attention"], block_ff_dim=16, conv_L_cache=3), "input", "dynamo"),
}
PROMPT = [3, 17, 4, 9, 22]


class Decoder(torch.nn.Module):
    def __init__(self, model, mask):
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, input_ids, attention_mask=None):
        options = {} if self.mask == "none" else {"use_cache": False}
        if self.mask == "ones":
            options["attention_mask"] = torch.ones_like(input_ids)
        if self.mask == "input":
            options["attention_mask"] = attention_mask
        return self.model(input_ids=input_ids, **options).logits


class Causal(torch.nn.Module):
    """Convolutions of which each row meets those before: padded on the left, or on both sides and cut."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(31, 12), torch.nn.Linear(12, 31)
        self.padded, self.cut = torch.nn.Conv1d(12, 12, 3, dilation=2), torch.nn.Conv1d(12, 12, 4, padding=3, groups=3)

    def forward(self, input_ids):
        x = self.words(input_ids).transpose(1, 2)
        x = x + self.padded(torch.nn.functional.pad(x, (4, 0)))
        x = torch.tanh(self.cut(x)[:, :, :-3])
        return self.head(x.transpose(1, 2))


class Remembering(torch.nn.Module):
    """An LSTM of two layers and a GRU, which begin with zeros."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(31, 12), torch.nn.Linear(10, 31)
        self.lstm, self.gru = torch.nn.LSTM(12, 12, 2, batch_first=True), torch.nn.GRU(12, 10, batch_first=True)

    def forward(self, input_ids):
        x, _ = self.lstm(self.words(input_ids))
        return self.head(self.gru(x)[0])


# By name: what makes it, and the exporter.
LAYERS = {
    "causal": (Causal, "program"),
    "causal_onnx": (Causal, "dynamo"),
    "remembering_traced": (Remembering, "traced"),
}


def filled(module):
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.9 if module.__class__.__module__ == "__main__" else 0.3)
    return module.eval()


def stored(module, inputs, exporter, path):
    names = ["input_ids", "attention_mask"][: len(inputs)]
    if exporter == "program":
        sizes = {name: {0: Dim("batch"), 1: Dim("tokens", min=2, max=63)} for name in names}
        save_plain(torch.export.export(module, inputs, dynamic_shapes=sizes, strict=False), f"{path}.pt2")
        return
    if exporter == "traced":
        sizes = {name: {0: "batch", 1: "tokens"} for name in names}
        torch.onnx.export(module, inputs, f"{path}.onnx", input_names=names, dynamic_axes=sizes, dynamo=False)
    else:
        sizes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in names}
        torch.onnx.export(module, inputs, f"{path}.onnx", input_names=names, dynamic_shapes=sizes, dynamo=True, external_data=False)
    model = onnx.load(f"{path}.onnx")
    # Where nodes come from holds paths.
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, f"{path}.onnx")


def of_keras(path):
    """Causal convolutions and an LSTM; what they write."""
    import keras
    import numpy as np

    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(31, 12)(ids)
    x = keras.layers.Conv1D(12, 3, padding="causal", activation="tanh", dilation_rate=2)(x)
    x = keras.layers.LSTM(10, return_sequences=True)(x)
    model = keras.Model(ids, keras.layers.Dense(31)(x))
    random = np.random.RandomState(5)
    model.set_weights([random.normal(0, 1, weight.shape).astype("float32") for weight in model.get_weights()])
    model.save(path)
    tokens = list(PROMPT)
    for _ in range(12):
        tokens.append(int(np.argmax(model(np.array([tokens], "int32"))[0, -1])))
    return {"prompt": PROMPT, "tokens": tokens[len(PROMPT) :]}


def main(folder):
    os.makedirs(folder, exist_ok=True)
    cases = {}
    for name, (family, fields, mask, exporter) in DECODERS.items():
        torch.manual_seed(5)
        config = AutoConfig.for_model(family, **dict(dict(eos_token_id=None, bos_token_id=None, pad_token_id=None), **fields))
        model = filled(AutoModelForCausalLM.from_config(config))
        ids = torch.tensor([PROMPT])
        with torch.no_grad():
            written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        cases[name] = {"prompt": PROMPT, "tokens": written[0, len(PROMPT) :].tolist()}
        tokens = torch.randint(0, 31, (2, 6))
        inputs = (tokens, torch.ones_like(tokens)) if mask == "input" else (tokens,)
        stored(Decoder(model, mask), inputs, exporter, f"{folder}/{name}")
    for name, (kind, exporter) in LAYERS.items():
        torch.manual_seed(5)
        model, tokens = filled(kind()), list(PROMPT)
        with torch.no_grad():
            for _ in range(12):
                tokens.append(model(torch.tensor([tokens]))[0, -1].argmax().item())
        cases[name] = {"prompt": PROMPT, "tokens": tokens[len(PROMPT) :]}
        stored(model, (torch.randint(0, 31, (2, 6)),), exporter, f"{folder}/{name}")
    cases["layers_of_keras"] = of_keras(f"{folder}/layers_of_keras.keras")
    with open(f"{folder}/expected.json", "w") as file:
        lines = [f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


main(sys.argv[1])
