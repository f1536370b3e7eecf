#!/usr/bin/env python3
"""onnx_caches.py OUT: small decoders with their caches as inputs and outputs, as torch's exporter writes them to ONNX, and one
whose caches are buffers, as torch.export writes it.

Beside keys and values there are states of fixed sizes: what recurrent layers remember, windows of causal convolutions,
sums and numbers of tokens so far. OUT is the folder of the tests' decoders. `caches.json` holds for each file a prompt and
the likeliest tokens after it, computed by PyTorch for the whole sequence at each token. tests/suite/generate.rs compares.
Needs torch and onnx.
"""
import json
import sys

import torch
from torch import nn

from torch_export import save_plain

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


class Recurrent(nn.Module):
    """A GRU, and an LSTM of two layers."""

    names = ["ids", "a", "b", "c"], ["scores", "x", "y", "z"]

    def __init__(self):
        super().__init__()
        self.words, self.gru = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, 12, batch_first=True)
        self.lstm, self.head = nn.LSTM(12, 10, 2, batch_first=True), nn.Linear(10, WORDS)

    def begin(self):
        return torch.zeros(1, 1, 12), torch.zeros(2, 1, 10), torch.zeros(2, 1, 10)

    def forward(self, ids, first, hidden, cell):
        x, first = self.gru(self.words(ids), first)
        x, (hidden, cell) = self.lstm(x, (hidden, cell))
        # Less of tokens that are like this one, so that another follows.
        scores = 50 * x @ self.head.weight.T + 3 * self.head.bias - self.words(ids) @ self.words.weight.T / 4
        return scores, first, hidden, cell


class Windows(nn.Module):
    """Causal convolutions, which read the last rows of the steps before, and attention with its caches."""

    names = ["ids", "w", "long", "keys", "values"], ["scores", "tail", "further", "all_keys", "all_values"]
    grows = {3: 2, 4: 2}

    def __init__(self):
        super().__init__()
        self.words, self.q, self.k, self.v = nn.Embedding(WORDS, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.short, self.wide = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("seen", torch.tril(torch.ones(LONGEST, LONGEST, dtype=torch.bool)))

    def begin(self):
        none = torch.zeros(1, 1, 0, WIDTH)
        return torch.zeros(1, WIDTH, 3), torch.zeros(1, WIDTH, 4), none, none

    def forward(self, ids, short, wide, keys, values):
        x = self.words(ids)
        rows = torch.cat([short, x.transpose(1, 2)], 2)
        x, short = x + torch.tanh(self.short(rows)).transpose(1, 2), rows[:, :, -3:]
        rows = torch.cat([wide, x.transpose(1, 2)], 2)
        x, wide = x + self.wide(rows).transpose(1, 2), rows[:, :, rows.shape[2] - 4:]
        before = keys.shape[2]
        keys, values = torch.cat([keys, self.k(x)[:, None]], 2), torch.cat([values, self.v(x)[:, None]], 2)
        scores = self.q(x)[:, None] @ keys.transpose(2, 3) / 4
        seen = self.seen[before:keys.shape[2], :keys.shape[2]]
        mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
        return self.head(x + mixed[:, 0]), short, wide, keys, values


class Sums(nn.Module):
    """Means of all tokens so far, whose number gives each its place."""

    names = ["ids", "sum_in", "prev_count"], ["scores", "sum_out", "next_count"]

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def begin(self):
        return torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.long)

    def forward(self, ids, total, count):
        places = torch.ones_like(ids).cumsum(1) - 1 + count
        x = self.words(ids) + self.places(places)
        sums = total[:, None] + x.cumsum(1)
        means = sums / (places + 1)[..., None]
        return 2 * self.head(torch.tanh(self.inner(means)) + x), total + x.sum(1), count + ids.shape[1]


class Buffers(nn.Module):
    """Caches that are buffers, which each call writes over, and the number of tokens in them."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.q, self.k, self.v, self.head = *(nn.Linear(WIDTH, WIDTH) for _ in range(3)), nn.Linear(WIDTH, WORDS)
        self.register_buffer("keys", torch.zeros(1, LONGEST, WIDTH))
        self.register_buffer("values", torch.zeros(1, LONGEST, WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def begin(self):
        for buffer in self.buffers():
            buffer.zero_()

    def forward(self, ids):
        places = torch.arange(ids.shape[1]) + self.count
        x = self.words(ids) + self.places(places)
        self.keys.index_copy_(1, places, self.k(x))
        self.values.index_copy_(1, places, self.v(x))
        self.count.add_(ids.shape[1])
        seen = torch.arange(LONGEST)[None] <= places[:, None]
        mixed = nn.functional.scaled_dot_product_attention(self.q(x), self.keys, self.values, seen[None])
        return self.head(x + mixed)


class Alone(nn.Module):
    """A state, and attention to the tokens of a step alone: no decoder."""

    names = ["ids", "h_in"], ["scores", "h_out"]

    def __init__(self):
        super().__init__()
        self.words, self.gru = nn.Embedding(WORDS, 8), nn.GRU(8, 8, batch_first=True)

    def begin(self):
        return (torch.zeros(1, 1, 8),)

    def forward(self, ids, state):
        x, state = self.gru(self.words(ids), state)
        return (x @ x.transpose(1, 2)).softmax(-1) @ x @ self.words.weight.T, state


class Unclear(nn.Module):
    """A window that may be followed by either of two."""

    names = ["ids", "w"], ["scores", "a", "b"]

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)

    def begin(self):
        return (torch.zeros(1, 2, 8),)

    def forward(self, ids, window):
        rows, others = torch.cat([window, self.words(ids)], 1), torch.cat([window, self.words(ids) * 2], 1)
        return (rows[:, 2:] + rows[:, 1:-1]) @ self.words.weight.T, rows[:, -2:], others[:, -2:]


def whole(decoder, found):
    """Scores of a sequence that is read at once."""
    if isinstance(decoder, Buffers):
        decoder.begin()
        return decoder(found)
    if not isinstance(decoder, Decoder):
        return decoder(found, *decoder.begin())[0]
    none = torch.zeros(1, HEADS, 0, WIDTH // HEADS)
    masks = [torch.ones_like(found)] if decoder.by_mask else []
    return decoder(found, *masks, none, none)[0]


def tokens(decoder, count):
    found = torch.tensor([PROMPT])
    for _ in range(count):
        found = torch.cat([found, whole(decoder, found)[:, -1:].argmax(-1)], 1)
    return found[0, len(PROMPT):].tolist()


def export_states(decoder, path):
    names, outputs = decoder.names
    grows = getattr(decoder, "grows", {})
    states = list(decoder.begin())
    for at, axis in grows.items():
        states[at - 1] = torch.zeros(1, 1, 5, WIDTH)
    axes = {"ids": {1: "sequence"}, **{names[at]: {axis: "past"} for at, axis in grows.items()}}
    torch.onnx.export(decoder, (torch.zeros(1, 4, dtype=torch.long), *states), path, dynamo=False, input_names=names,
                      output_names=outputs, dynamic_axes=axes, opset_version=17)


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
    for name, kind in [("states_of_layers", Recurrent), ("windows_and_caches", Windows), ("sums_and_counts", Sums)]:
        torch.manual_seed(6)
        decoder = kind().eval()
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.mul_(1.7)
            export_states(decoder, f"{out}/{name}.onnx")
            found[name] = {"prompt": PROMPT, "tokens": tokens(decoder, 16)}
    for name, kind in [("refused_alone", Alone), ("refused_unclear", Unclear)]:
        export_states(kind().eval(), f"{out}/{name}.onnx")
    torch.manual_seed(6)
    decoder = Buffers().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.7)
        found["buffers"] = {"prompt": PROMPT, "tokens": tokens(decoder, 16)}
        decoder.begin()
        length = torch.export.Dim("length", min=1, max=LONGEST)
        program = torch.export.export(decoder, (torch.tensor([PROMPT]),), dynamic_shapes={"ids": {1: length}})
    save_plain(program, f"{out}/buffers.pt2")
    with open(f"{out}/caches.json", "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
