"""Makes tests/generate/exports: small decoders of transformers, exported without caches by torch's three exporters as people
do, and what the library's greedy search writes on.

    pip install torch transformers onnx onnxscript
    python scripts/transformers_exports.py tests/generate/exports

What tells positions apart differs: with `input_ids` alone the library compares neighbouring ones (several texts may be
packed in a row), with a mask of ones or one that is an input it looks tokens up in that.
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


def stored(module, inputs, exporter, path):
    names = ["input_ids", "attention_mask"][: len(inputs)]
    if exporter == "program":
        sizes = {name: {0: Dim("batch"), 1: Dim("tokens", max=63)} for name in names}
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


def main(folder):
    os.makedirs(folder, exist_ok=True)
    cases = {}
    for name, (family, fields, mask, exporter) in DECODERS.items():
        torch.manual_seed(5)
        config = AutoConfig.for_model(family, **dict(dict(eos_token_id=None, bos_token_id=None, pad_token_id=None), **fields))
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.3)
        ids = torch.tensor([PROMPT])
        with torch.no_grad():
            written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        cases[name] = {"prompt": PROMPT, "tokens": written[0, len(PROMPT) :].tolist()}
        tokens = torch.randint(0, 31, (2, 6))
        inputs = (tokens, torch.ones_like(tokens)) if mask == "input" else (tokens,)
        stored(Decoder(model, mask), inputs, exporter, f"{folder}/{name}")
    with open(f"{folder}/expected.json", "w") as file:
        lines = [f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


main(sys.argv[1])
