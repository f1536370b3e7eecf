#!/usr/bin/env python3
"""onnx_caches.py OUT: small decoders with their caches as inputs and outputs, as torch's exporter writes them to ONNX.

OUT is the folder of the tests' decoders. `caches.json` holds for each file a prompt and the likeliest tokens after it,
computed by PyTorch for the whole sequence at each token. tests/suite/generate.rs compares. Needs torch and onnx.
"""
import json
import sys

import torch
from torch import nn

WORDS, WIDTH, HEADS, LONGEST = 40, 16, 2, 32
PROMPT = [3, 17, 4, 9]


class Decoder(nn.Module):
    """One layer of attention. `by_mask`: positions follow from the mask, not from how long the caches are."""

    def __init__(self, by_mask):
        super().__init__()
        self.by_mask = by_mask
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("seen", torch.tril(torch.ones(LONGEST, LONGEST, dtype=torch.bool))[None, None])
        self.register_buffer("numbers", torch.arange(LONGEST))

    def forward(self, ids, *rest):
        mask = rest[0] if self.by_mask else None
        keys, values = rest[-2:]
        batch, count = ids.shape
        before = keys.shape[2]
        total = before + count
        places = (mask.cumsum(1) - 1)[:, -count:] if self.by_mask else self.numbers[before:total]
        x = self.words(ids) + self.places(places)
        heads = lambda layer: layer(x).view(batch, count, HEADS, -1).transpose(1, 2)
        keys, values = torch.cat([keys, heads(self.k)], 2), torch.cat([values, heads(self.v)], 2)
        seen = self.seen[:, :, before:total, :total]
        if self.by_mask:
            seen = seen & (mask[:, None, None, :] > 0)
        scores = heads(self.q) @ keys.transpose(2, 3) / (WIDTH / HEADS) ** 0.5
        mixed = scores.masked_fill(~seen, -1e9).softmax(-1) @ values
        return self.head(x + mixed.transpose(1, 2).reshape(batch, count, WIDTH)), keys, values


def tokens(decoder, count):
    none = torch.zeros(1, HEADS, 0, WIDTH // HEADS)
    found = torch.tensor([PROMPT])
    for _ in range(count):
        masks = [torch.ones_like(found)] if decoder.by_mask else []
        scores = decoder(found, *masks, none, none)[0][:, -1:]
        found = torch.cat([found, scores.argmax(-1)], 1)
    return found[0, len(PROMPT):].tolist()


def export(decoder, path, own_names=False):
    cache = torch.zeros(1, HEADS, 3, WIDTH // HEADS)
    masks = [torch.ones(1, 7, dtype=torch.long)] if decoder.by_mask else []
    names = ["input_ids", *["attention_mask"] * len(masks), "past_key_values.0.key", "past_key_values.0.value"]
    outputs = ["logits", "present.0.key", "present.0.value"]
    if own_names:
        names[-2:], outputs[-2:] = ["k_in", "v_in"], ["k_out", "v_out"]
    axes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "total"}}
    axes.update({name: {0: "batch", 2: "past"} for name in names[-2:]})
    inputs = (torch.zeros(1, 4, dtype=torch.long), *masks, cache, cache)
    torch.onnx.export(decoder, inputs, path, dynamo=False, input_names=names, output_names=outputs,
                      dynamic_axes={name: axes[name] for name in names}, opset_version=17)


def main():
    out = sys.argv[1]
    found = {}
    for number, name in enumerate(["caches_and_mask", "caches_alone", "caches_of_own_names"]):
        torch.manual_seed(number)
        decoder = Decoder(by_mask=name == "caches_and_mask").eval()
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.mul_(1.7)
            export(decoder, f"{out}/{name}.onnx", own_names=name == "caches_of_own_names")
            found[name] = {"prompt": PROMPT, "tokens": tokens(decoder, 16)}
    with open(f"{out}/caches.json", "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
