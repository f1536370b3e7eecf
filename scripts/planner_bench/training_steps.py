"""training_steps.py NAME OUT.fx.json.gz: one training step of a network of torchvision or transformers, or of one below.

The graph of ATen operations that torch records of loss, gradients and the new parameters (SGD, or a plain Adam), with
the shapes of all values and no weights: what `bench/dag/fx2dag.py` of the shared folder reads. Nothing is computed.
"""
import gzip
import json
import sys
import warnings

import torch
import torch.nn.functional as F
import torchvision.models as vision
import transformers
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

warnings.filterwarnings("ignore")


class Cells(nn.Module):
    """Two LSTM cells, step by step."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.cells = nn.ModuleList([nn.LSTMCell(128, 256), nn.LSTMCell(256, 256)])
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens):
        states = [(torch.zeros(len(tokens), 256), torch.zeros(len(tokens), 256)) for _ in self.cells]
        made = []
        for at in range(tokens.shape[1]):
            value = self.embedding(tokens[:, at])
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(value, states[layer])
                value = states[layer][0]
            made.append(self.head(value))
        return torch.stack(made, 1)


class Recommender(nn.Module):
    """Embeddings of ten columns, their products with one another, and two perceptrons."""

    ROWS = (100_000, 5000, 20_000, 300, 77, 40_000, 1000, 12_000, 50, 9000)

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(rows, 64) for rows in self.ROWS])
        self.bottom = perceptron(13, 512, 256, 64)
        self.top = perceptron(64 + 55, 512, 256, 2)

    def forward(self, numbers, columns):
        first = self.bottom(numbers)
        vectors = [first] + [embedding(columns[:, at]) for at, embedding in enumerate(self.embeddings)]
        vectors = torch.stack(vectors, 1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(11, 11, -1)
        return self.top(torch.cat([first, products[:, row, column]], 1))


class UNet(nn.Module):
    """Four levels down and up again, with group norms."""

    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 128, 256]
        self.down = nn.ModuleList([self.block(*pair) for pair in zip(widths, widths[1:])])
        rising = list(zip(widths[:1:-1], widths[-2:0:-1]))
        self.up = nn.ModuleList([nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in rising])
        self.joined = nn.ModuleList([self.block(2 * narrow, narrow) for _, narrow in rising])
        self.head = nn.Conv2d(widths[1], 4, 1)

    @staticmethod
    def block(inputs, outputs):
        layers = []
        for width in (inputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]
        return nn.Sequential(*layers)

    def forward(self, image):
        kept = []
        for level, block in enumerate(self.down):
            image = block(image)
            if level + 1 < len(self.down):
                kept.append(image)
                image = F.max_pool2d(image, 2)
        for up, block in zip(self.up, self.joined):
            image = block(torch.cat([up(image), kept.pop()], 1))
        return self.head(image)


class Mixer(nn.Module):
    """Patches mixed along positions and along channels in turn, ten times."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(192) for _ in range(20)])
        self.positions = nn.ModuleList([perceptron(144, 96, 144) for _ in range(10)])
        self.channels = nn.ModuleList([perceptron(192, 768, 192) for _ in range(10)])
        self.head = nn.Linear(192, 100)

    def forward(self, image):
        value = self.patches(image).flatten(2).transpose(1, 2)
        for at, (positions, channels) in enumerate(zip(self.positions, self.channels)):
            value = value + positions(self.norms[2 * at](value).transpose(1, 2)).transpose(1, 2)
            value = value + channels(self.norms[2 * at + 1](value))
        return self.head(value.mean(1))


class GraphAttention(nn.Module):
    """Twelve layers of attention over a dense adjacency of 256 nodes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 128) for width in [64] + [128] * 11])
        self.scores = nn.ModuleList([nn.Linear(128, 4) for _ in range(12)])
        self.head = nn.Linear(128, 20)

    def forward(self, value, adjacency):
        for layer, scores in zip(self.layers, self.scores):
            made = layer(value)
            score = F.leaky_relu(scores(made).unsqueeze(0) + scores(made).unsqueeze(1)).mean(-1)
            seen = torch.softmax(score + adjacency, -1) @ made
            value = F.elu(seen) + (value if value.shape == made.shape else 0)
        return self.head(value)


class Dilated(nn.Module):
    """Gated convolutions over ever wider steps, as WaveNet's, with what each adds to the result."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 48)
        self.gates = nn.ModuleList([nn.Conv1d(48, 96, 2, dilation=2 ** (at % 8)) for at in range(24)])
        self.outer = nn.ModuleList([nn.Conv1d(48, 48, 1) for _ in range(24)])
        self.skips = nn.ModuleList([nn.Conv1d(48, 64, 1) for _ in range(24)])
        self.head = nn.Conv1d(64, 256, 1)

    def forward(self, tokens):
        value, skipped = self.embedding(tokens).transpose(1, 2), 0
        for at, (gate, outer, skip) in enumerate(zip(self.gates, self.outer, self.skips)):
            left, right = gate(F.pad(value, (2 ** (at % 8), 0))).chunk(2, 1)
            made = torch.tanh(left) * torch.sigmoid(right)
            skipped, value = skipped + skip(made), value + outer(made)
        return self.head(F.relu(skipped)).transpose(1, 2)


class StateSpace(nn.Module):
    """Three selective state space layers, scanned step by step."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.inner = nn.ModuleList([nn.Linear(64, 256) for _ in range(3)])
        self.selected = nn.ModuleList([nn.Linear(128, 33) for _ in range(3)])
        self.decay = nn.ParameterList([nn.Parameter(torch.zeros(128, 16)) for _ in range(3)])
        self.outer = nn.ModuleList([nn.Linear(128, 64) for _ in range(3)])
        self.head = nn.Linear(64, 1000)

    def forward(self, tokens):
        value = self.embedding(tokens)
        for inner, selected, decay, outer in zip(self.inner, self.selected, self.decay, self.outer):
            own, gate = inner(value).chunk(2, -1)
            chosen = selected(own)
            step, into, out = F.softplus(chosen[..., :1]), chosen[..., 1:17], chosen[..., 17:]
            state, made = torch.zeros(len(tokens), 128, 16), []
            for at in range(tokens.shape[1]):
                fed = (step[:, at] * own[:, at]).unsqueeze(-1) * into[:, at].unsqueeze(1)
                state = torch.exp(step[:, at].unsqueeze(-1) * decay) * state + fed
                made.append((state * out[:, at].unsqueeze(1)).sum(-1))
            value = value + outer(torch.stack(made, 1) * F.silu(gate))
        return self.head(value)


class Translator(nn.Module):
    """T5's encoder and decoder, which reads the same tokens."""

    def __init__(self):
        super().__init__()
        config = transformers.T5Config(num_layers=4, num_decoder_layers=4, d_model=256, d_kv=64, num_heads=4, d_ff=768,
                                       vocab_size=5000, dropout_rate=0, use_cache=False)
        self.model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")

    def forward(self, tokens):
        return self.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits


class Logits(nn.Module):
    """A language model of transformers, without its cache."""

    def __init__(self, model, **options):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, tokens):
        return self.model(input_ids=tokens, **self.options).logits


def perceptron(*widths):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def images(make, batch, side, optimizer, classes=100):
    """A classifier of images, with images and their classes."""
    data = [torch.zeros(batch, 3, side, side), torch.zeros(batch, dtype=torch.int64)]
    return lambda: (make(num_classes=classes), data, optimizer)


def patches(layers, width, size, side, batch, optimizer):
    heads = width // 64
    return images(lambda num_classes: vision.VisionTransformer(
        image_size=side, patch_size=size, num_layers=layers, num_heads=heads, hidden_dim=width, mlp_dim=4 * width,
        num_classes=num_classes), batch, side, optimizer)


def language(architecture, config, batch, length, optimizer, **options):
    """A language model with tokens and those that follow them."""
    def make():
        model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager")
        return Logits(model, **options), [torch.zeros(batch, length, dtype=torch.int64)] * 2, optimizer
    return make


def decoder(kind, layers, width, heads, vocabulary, **more):
    config = getattr(transformers, kind + "Config")
    return config(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=vocabulary, **more)


def tokens(*shape):
    return torch.zeros(*shape, dtype=torch.int64)


STEPS = {
    "bert4": language("BertForMaskedLM", decoder("Bert", 4, 256, 4, 30_522, intermediate_size=1024,
                      hidden_dropout_prob=0, attention_probs_dropout_prob=0), 4, 64, "adam"),
    "convnext": images(vision.convnext_tiny, 4, 96, "sgd"),
    "densenet": images(vision.densenet121, 4, 128, "sgd"),
    "densenet201": images(vision.densenet201, 2, 64, "adam"),
    "dilated": lambda: (Dilated(), [tokens(4, 256)] * 2, "adam"),
    "dlrm": lambda: (Recommender(), [torch.zeros(512, 13), tokens(512, 10), tokens(512)], "adam"),
    "efficientnet": images(vision.efficientnet_b0, 4, 128, "adam"),
    "efficientnet_b3": images(vision.efficientnet_b3, 2, 96, "adam"),
    "googlenet": images(lambda num_classes: vision.googlenet(num_classes=num_classes, aux_logits=False,
                        init_weights=False), 4, 128, "sgd"),
    "gpt2": language("GPT2LMHeadModel", transformers.GPT2Config(n_layer=3, n_embd=256, n_head=4, resid_pdrop=0,
                     embd_pdrop=0, attn_pdrop=0), 2, 64, "adam", use_cache=False),
    "graph_attention": lambda: (GraphAttention(), [torch.zeros(256, 64), torch.zeros(256, 256), tokens(256)], "adam"),
    "llama8": language("LlamaForCausalLM", decoder("Llama", 8, 256, 8, 6000, intermediate_size=688), 2, 80, "sgd",
                       use_cache=False),
    "lstm": lambda: (Cells(), [tokens(16, 20)] * 2, "adam"),
    "lstm_long": lambda: (Cells(), [tokens(16, 90)] * 2, "adam"),
    "mixer": lambda: (Mixer(), [torch.zeros(8, 3, 96, 96), tokens(8)], "adam"),
    "mobilenet": images(vision.mobilenet_v2, 8, 128, "sgd"),
    "neox": language("GPTNeoXForCausalLM", decoder("GPTNeoX", 6, 192, 6, 8000, intermediate_size=768), 2, 128, "adam",
                     use_cache=False),
    "neox24": language("GPTNeoXForCausalLM", decoder("GPTNeoX", 24, 128, 4, 4000, intermediate_size=512), 2, 64,
                       "adam", use_cache=False),
    "qwen3": language("Qwen3ForCausalLM", decoder("Qwen3", 5, 320, 5, 5000, num_key_value_heads=1, head_dim=64,
                      intermediate_size=900), 2, 96, "sgd", use_cache=False),
    "resnet18": images(vision.resnet18, 8, 96, "adam"),
    "shufflenet": images(vision.shufflenet_v2_x1_0, 8, 96, "sgd"),
    "state_space": lambda: (StateSpace(), [tokens(4, 40)] * 2, "sgd"),
    "swin": images(vision.swin_t, 4, 112, "sgd"),
    "swin_b": images(vision.swin_b, 2, 112, "adam"),
    "translator": lambda: (Translator(), [tokens(4, 48)] * 2, "adam"),
    "unet": lambda: (UNet(), [torch.zeros(4, 3, 96, 96), tokens(4, 96, 96)], "adam"),
    "vit": patches(6, 256, 8, 64, 8, "sgd"),
    "vit_12": patches(12, 384, 16, 96, 4, "adam"),
}


def loss_of(made, expected):
    """Cross entropy; classes are the last axis of sequences, the second elsewhere."""
    if made.dim() == 3:
        made, expected = made.flatten(0, -2), expected.flatten()
    return F.cross_entropy(made, expected)


def updated(parameters, gradients, state, optimizer):
    """New parameters and what the optimizer keeps."""
    made = []
    for at, (value, gradient) in enumerate(zip(parameters, gradients)):
        if gradient is None:
            made.append(value)
        elif optimizer == "sgd":
            made.append(value - 0.01 * gradient)
        else:
            mean, square = 0.9 * state[2 * at] + 0.1 * gradient, 0.99 * state[2 * at + 1] + 0.01 * gradient * gradient
            made += [value - 0.001 * mean / (square.sqrt() + 1e-8), mean, square]
    return made


def recorded(model, data, optimizer):
    model.train()
    names = [name for name, _ in model.named_parameters()]
    parameters = [value.detach() for value in model.parameters()]
    buffers = dict(model.named_buffers())
    state = [torch.zeros_like(value) for value in parameters for _ in range(2)] if optimizer == "adam" else []

    def step(parameters, buffers_now, state, data):
        values = [value.requires_grad_(True) for value in parameters]
        named = {**dict(zip(names, values)), **dict(zip(buffers, buffers_now))}
        loss = loss_of(functional_call(model, named, tuple(data[:-1])), data[-1])
        gradients = torch.autograd.grad(loss, values, allow_unused=True)
        return [loss, *updated(values, gradients, state, optimizer)]

    trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
    graph = trace(parameters, list(buffers.values()), state, data)
    graph.graph.eliminate_dead_code()
    return graph


def value(of):
    if isinstance(of, torch.Tensor):
        return {"shape": list(of.shape), "dtype": str(of.dtype).removeprefix("torch.")}
    if isinstance(of, (list, tuple)):
        return [value(one) for one in of]
    return None if of is None else {"value": str(of)}


def argument(of):
    if isinstance(of, torch.fx.Node):
        return {"node": of.name}
    if isinstance(of, (list, tuple)):
        return [argument(one) for one in of]
    if isinstance(of, dict):
        return {key: argument(one) for key, one in of.items()}
    return of if of is None or isinstance(of, (int, float, bool, str)) else str(of)


def node(graph, of):
    if of.op == "get_attr":
        return {"name": of.name, "op": "placeholder", "val": value(getattr(graph, of.target))}
    told = {"name": of.name, "op": of.op, "val": value(of.meta.get("val"))}
    if of.op != "placeholder":
        target = "getitem" if "getitem" in str(of.target) else str(of.target)
        told.update(target=target, args=argument(of.args), kwargs=argument(of.kwargs))
    return told


def main(name, out):
    graph = recorded(*STEPS[name]())
    with gzip.open(out, "wt") as file:
        json.dump({"nodes": [node(graph, of) for of in graph.graph.nodes]}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
