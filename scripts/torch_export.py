"""Exports small modules of PyTorch and compares them with the program.

    pip install torch torchvision torchao
    python scripts/torch_export.py store tests/torch [NAME...]     # the stored archives, with inputs and outputs
    python scripts/torch_export.py run target/debug/partition [NAME...]   # every module, as exported and decomposed

`run` also exports each operation of OPERATIONS in three forms: operands that are inputs, parameters, and results of other
nodes.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401 (its operations)
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, save


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


class Padded(nn.Module):
    """Attention whose padding is written over zeros, and seen by views of open sizes afterwards."""

    def forward(self, x, mask):
        batch, length = mask.shape
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(mask, float("-inf"))
        bias = bias.view(batch, 1, 1, length).expand(-1, 2, -1, -1).reshape(batch * 2, 1, length)
        heads = x.view(batch, length, 2, 3).transpose(1, 2).reshape(batch * 2, length, 3)
        return (heads @ heads.transpose(1, 2) + bias).softmax(-1) @ heads


class Steered(nn.Module):
    """Gradients that do not go everywhere, and small parameters that no product reads."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 4)
        self.scale, self.share = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor([1.5]))
        self.gain, self.front = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(1, 4))

    def forward(self, ids):
        x = torch.cat([self.front.expand(ids.shape[0], -1)[:, None], self.table(ids)], 1)
        coded = torch.round(self.inner(x))
        x = x + (coded - x).detach() + self.scale * torch.tanh(self.inner(x))
        return x * self.share + torch.stack([self.gain, self.gain.flip(0)]).sum(0) * x.detach()


class Lengths(nn.Module):
    """Norms of what is 0, and functions whose gradients PyTorch states apart from how they are computed."""

    def __init__(self):
        super().__init__()
        self.rows, self.cube = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(4, 3, 2))
        self.gain, self.gains = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(1, 3, 1))
        self.tails, self.matrix = nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(3, 3))

    def lengths(self, rows):
        found = [F.normalize(rows), F.cosine_similarity(rows, rows.flip(0)), torch.renorm(rows, 2, 0, 0.5)]
        found += [rows.std(1), rows.std(1, correction=0), torch.std_mean(rows, 1)[0], torch.sinc(rows)]
        for order in (0.5, 1, 1.5, 2, 3, math.inf):
            found.append(torch.linalg.vector_norm(rows, order, dim=-1))
            found += [torch.cdist(rows, rows, p=order), torch.pdist(torch.cat([rows, rows]), order)]
            found += [torch.dist(rows, rows, order), F.pairwise_distance(rows, rows, order, eps=0.0)]
        return found

    def forward(self, x):
        hollow = torch.tensor([[1.0], [0], [1]])
        found = [one for rows in (x[0], self.rows, self.rows * hollow) for one in self.lengths(rows)]
        # An axis of -1 is no axis: the norm is that of all.
        found += [torch._weight_norm(v, self.gain, -1) for v in (x[0], self.rows, self.cube * 1.25)]
        found += [torch._weight_norm(self.cube, self.gains, axis) for axis in (1, -2)]
        found.append(torch.special.log_ndtr(self.tails + torch.tensor([-20.0, -9, -6, -1, 0, 5, 9])))
        # One triangle is read, and all gets a gradient.
        matrix = self.matrix + 3 * torch.eye(3)
        for upper in (False, True):
            found += [torch.linalg.cholesky(matrix, upper=upper), torch.cholesky_inverse(matrix, upper=upper)]
        found = torch.cat([one.flatten() for one in found])
        return (found + torch.linspace(0.5, 1.5, len(found)))[None]


class Learned(nn.Module):
    """Attention by queries that are parameters, the same in each sample, and to such keys."""

    def __init__(self):
        super().__init__()
        self.query, self.bias = nn.Parameter(torch.zeros(1, 2, 3, 4)), nn.Parameter(torch.zeros(3, 5))
        self.pair = nn.Linear(8, 16)

    def forward(self, x):
        q, pair = self.query, self.pair(x).view(-1, 5, 2, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = pair[0], pair[1]
        shown = (x[:, None, None, :, 0] > 0) | (torch.arange(5) == 0)
        meets = F.scaled_dot_product_attention
        found = [meets(q, k, v), meets(q[0], k, v), meets(q[0, 0], k, v), meets(k, q, q), meets(k, q[0], q[0])]
        found += [meets(q, k, v, attn_mask=mask) for mask in (self.bias, shown, self.bias * shown)]
        found += [meets(q, k, v, scale=0.0), meets(q * 1.25, k, v, scale=0.3), meets(k, q, q, is_causal=True)]
        found += [meets(q[None], k[:, None], v[:, None]), meets(q[:, :1], k, v), meets(k, v, v[:1, :1])]
        return torch.cat([one.flatten(1) for one in found], 1)


class Opened(nn.Module):
    """What is known of all sizes but the batch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")
        self.second, self.turn, self.head = nn.Conv2d(3, 3, 1), nn.Linear(72, 6), nn.Linear(108, 4)

    def forward(self, x, label):
        pooled, places = F.max_pool2d(self.first(x), 2, return_indices=True)
        apart = F.max_unpool2d(self.second(pooled), places, 2)
        turn = (0.1 * self.turn(x.flatten(1)) + torch.tensor([1.0, 0, 0, 0, 1, 0])).view(-1, 2, 3)
        grid = F.affine_grid(turn, [x.shape[0], 2, 5, 5], align_corners=False)
        scores, each = self.head(apart.flatten(1)), {"reduction": "none"}
        weight = torch.tensor([1.0, 2, 3, 4])
        losses = [F.cross_entropy(scores, label, **each), F.cross_entropy(scores, label, label_smoothing=0.1, **each)]
        losses += [F.cross_entropy(scores, label, weight=weight, **each), F.cross_entropy(scores, label, ignore_index=2, **each)]
        losses.append(F.cross_entropy(scores, scores.softmax(1), **each))
        seen = F.grid_sample(x, grid, align_corners=False)
        return torch.cat([apart.flatten(1), seen.flatten(1), torch.stack(losses, 1)], 1)


class Kinks(nn.Module):
    """Slopes where functions turn, or where what is computed beside them has none; transforms of vectors."""

    def __init__(self):
        super().__init__()
        # All 0: the slopes are those at the inputs.
        self.scale_shift = nn.Parameter(torch.zeros(3, 8))
        self.register_buffer("scale_slope", torch.tensor([0.2]))

    def forward(self, x):
        turn, positive, point = x + self.scale_shift
        bounded = [F.relu6(turn), F.hardtanh(turn), F.hardsigmoid(turn), F.hardswish(turn), turn.clamp(0, 3), turn.clamp(min=0)]
        bounded += [F.leaky_relu(turn, 0.1), F.prelu(turn, self.scale_slope), F.elu(turn), F.celu(turn, 0.5)]
        bounded += [torch.lgamma(positive), torch.digamma(positive), torch.atan2(positive, positive)]
        bounded.append(torch.atan2(point[:4], point[4:]).repeat(2))
        spectrum = torch.fft.rfft(positive)
        bounded += [torch.fft.irfft(spectrum, n=8), torch.fft.fft(turn).real, torch.fft.ifft(turn).imag]
        bounded += [torch.cat([spectrum.real, spectrum.imag[:3]]), torch.erfc(turn), torch.special.erfcx(positive), turn % 0.7]
        return torch.stack(bounded).view(3, -1)


class Overridden(nn.Module):
    """Averages of windows that reach beyond the input, over divisors that are given."""

    def __init__(self):
        super().__init__()
        self.scale_plane = nn.Parameter(torch.zeros(2, 2, 7, 8))
        self.scale_volume = nn.Parameter(torch.zeros(2, 1, 5, 6, 7))

    def forward(self, plane, volume):
        plane, volume = plane + self.scale_plane, volume + self.scale_volume
        pooled = [F.avg_pool2d(plane, *window, True, False, 5) for window in ((3, 2, 1), (2, 3, 0), ((3, 2), (2, 3), (1, 0)))]
        pooled.append(torch.stack([F.avg_pool2d(one, 4, 3, 1, True, True, -2) for one in plane]))
        pooled += [F.avg_pool3d(volume, *window, True, True, 3) for window in ((3, 2, 1), (2, 3, 0), ((4, 2, 3), (3, 4, 2), (2, 1, 0)))]
        return torch.cat([one.flatten(1) for one in pooled], 1)


class Ties(nn.Module):
    """Extremes among many equal elements: some give their gradient to one of them, others let all share it."""

    def __init__(self):
        super().__init__()
        # All 0: the elements are those of the inputs.
        self.scale_shift = nn.Parameter(torch.zeros(2, 4, 6))

    def forward(self, x):
        x = x + self.scale_shift
        chosen = [x.max(1)[0], x.min(2, keepdim=True)[0], x.max(0)[0], x[0, 0, 0].max(0)[0], x.cummax(1)[0], x.cummin(2)[0], x.sort(2)[0]]
        chosen += [F.adaptive_max_pool1d(x, 1), F.adaptive_max_pool1d(x, 4), F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (3, 4))]
        chosen += [F.max_pool1d(x, 3, 2), F.max_pool2d(x, 2, 1, 1), x.gather(1, x.argmax(1, keepdim=True))]
        shared = [x.amax(1), x.amin((0, 2)), x.max(), x.min(), *torch.aminmax(x, dim=1), x.median(), x.nanmedian()]
        values = torch.cat([value.flatten() for value in chosen + shared])
        # No two elements of the results count alike.
        values = values * torch.linspace(1, 2, values.numel())
        return torch.stack([values, values / 2])


class Firsts(nn.Module):
    """Places that count from the first element alone, each an input of its own; the last input counts from the last one, too."""

    def forward(self, x, gathered, scattered, selected, added, classes, either):
        found = x.gather(1, gathered), x.scatter(0, scattered, 2.0), x.index_select(1, selected), x.index_add(0, added, x)
        return *found, F.one_hot(classes, 4), x[either]


class Digits(nn.Module):
    """Quotients and rests that have to be exact, and what is small beside 1; the spectrum of a vector."""

    def forward(self, x, y, n):
        spectrum = torch.fft.rfft(x)
        whole = x // y, torch.remainder(x, y), x // 0.1, torch.remainder(1e10 * x, 3.0), x // torch.zeros(()), -x // math.inf
        missing = F.softshrink((x - 4).sqrt()), F.hardshrink((x - 4).sqrt())
        return *whole, *missing, torch.erfc(x), torch.erfc(-x), spectrum.real, spectrum.imag, n // 100, n // -100


class Doubled(nn.Module):
    """A size that is twice another, beside one that is known."""

    def forward(self, x):
        rows = x.reshape(x.shape[0], x.shape[2], 2) * x.shape[2]
        return rows @ rows.transpose(1, 2), rows.softmax(1)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4)
        self.depth, self.relu = nn.Conv2d(4, 4, 3, groups=4, padding="same", bias=False), nn.ReLU(inplace=True)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4, 2)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        x = x + self.depth(x)
        return self.head(F.adaptive_avg_pool2d(self.pool(x), 1).flatten(1))


class Block(nn.Module):
    """A transformer's block with an embedding, causal attention, and a tied head."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.before, self.behind = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        batch, length = ids.shape
        x = self.table(ids) + self.places(torch.arange(length))
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 8))
        x = x + self.down(F.gelu(self.up(self.behind(x)), approximate="tanh"))
        return self.head(x)


class Turned(nn.Module):
    """Causal attention of heads that are turned by positions, which are counted in floats."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, ids):
        batch, length = ids.shape
        q, k, v = self.qkv(self.table(ids)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in (q, k, v))
        steps = 1.0 / 10000.0 ** (torch.arange(0, 4, 2, dtype=torch.float32) / 4)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), steps)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        turn = lambda t: t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        scores = self.out(y.transpose(1, 2).reshape(batch, length, 8))
        # Less of tokens that are like this one, so that another follows.
        return 8 * scores - 4 * self.table(ids) @ self.table.weight.T


class Tabled(nn.Module):
    """Causal attention whose positions, turns and mask are rows of tables, as many as there are tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.places = nn.Parameter(torch.zeros(1, 16, 8))
        self.register_buffer("cos", torch.zeros(16, 4))
        self.register_buffer("sin", torch.zeros(16, 4))
        self.register_buffer("seen", torch.ones(1, 1, 16, 16, dtype=torch.bool).tril())

    def forward(self, ids):
        batch, length = ids.shape
        x = self.table(ids) + 3 * self.places[:, :length]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in (q, k, v))
        cos, sin = self.cos[:length], self.sin[:length]
        turn = lambda t: t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin
        scores = (turn(q) @ turn(k).transpose(2, 3)).masked_fill(~self.seen[:, :, :length, :length], float("-inf"))
        y = scores.softmax(-1) @ v
        scores = self.out(y.transpose(1, 2).reshape(batch, length, 8))
        return scores + 9 * (self.places[:, :length] - 0.2) @ (self.table.weight - 0.2).T


class Tallied(nn.Module):
    """Causal attention whose positions are counted by the tokens that are no padding (1), as RoBERTa's are."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.places = nn.Embedding(20, 8)

    def forward(self, ids):
        batch, length = ids.shape
        counts = (ids != 1).int()
        places = self.places((counts.cumsum(1).type_as(counts) * counts).long() + 1)
        x = self.table(ids) + 3 * places
        q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = self.out(y.transpose(1, 2).reshape(batch, length, 8) + x) - 12 * self.table(ids) @ self.table.weight.T
        return scores + 9 * (places - 0.2) @ (self.table.weight - 0.2).T


def masks(length):
    """Masks that leave out what comes later, as people write them: by fractions, turned over, with biases, in windows."""
    inf, here = float("-inf"), torch.arange(length)
    ahead = here[None] - here[:, None]
    turned = (torch.triu(torch.ones(length, length)) == 1).transpose(0, 1)
    return (
        torch.full((length, length), inf).triu(1),
        turned.float().masked_fill(turned == 0, inf).masked_fill(turned == 1, 0.0),
        (1.0 - torch.tril(torch.ones(length, length))) * -10000.0,
        torch.where(ahead.float() > 0, inf, ahead * 0.3),
        torch.where(ahead > 0, torch.finfo(torch.float32).min, 0.0) + (ahead % 3 == 0) * 2.0,
        (ahead <= 0) & (ahead > -3),
        ~((ahead > 0) | (ahead < -4) & (here[None] > 0)),
    )


class Masked(nn.Module):
    """Attention after attention with masks of many kinds, as one operation and as products; biases by distance are looked up."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal
        self.table, self.out, self.distances = nn.Embedding(11, 8), nn.Linear(8, 11), nn.Embedding(9, 2)
        self.qkv = nn.ModuleList([nn.Linear(8, 24) for _ in range(7 if is_causal else 1)])

    def forward(self, ids):
        batch, length = ids.shape
        x = self.table(ids)
        ahead = torch.arange(length)[None] - torch.arange(length)[:, None]
        bias = 3 * self.distances((ahead + 4).clamp(0, 8)).permute(2, 0, 1)
        for at, (qkv, mask) in enumerate(zip(self.qkv, masks(length) if self.is_causal else [ahead > ahead.T])):
            y = F.layer_norm(x, (8,))
            q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in qkv(y).chunk(3, dim=-1))
            if at % 2:
                y = F.scaled_dot_product_attention(q, k, v, mask)
            else:
                scores = q @ k.transpose(2, 3) / 2 + bias
                mask = mask if mask.is_floating_point() else torch.where(mask, 0.0, float("-inf"))
                y = (scores + (mask if self.is_causal else 0)).softmax(-1) @ v
            x = 3 * y.transpose(1, 2).reshape(batch, length, 8) - 0.8 * x
        return self.out(x) - 5 * self.table(ids) @ self.table.weight.T


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


class Thresholded(nn.Module):
    """The end of a detector: of the boxes whose scores are high those that do not overlap better ones, the best of these, classes apart."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(2, 7, 1)

    def forward(self, image):
        from torchvision import ops
        found = self.head(image)[0].flatten(1).t()
        corners = found[:, :2] * 4 + 8
        boxes, scores = torch.cat([corners, corners + found[:, 2:4].abs() * 6 + 1], 1), found[:, 4].sigmoid()
        high = scores > 0.45
        boxes, scores, classes = boxes[high], scores[high], found[high, 5:].argmax(1)
        kept = ops.nms(boxes, scores, 0.3)
        apart = ops.nms(boxes + (classes * (boxes.max() + 1))[:, None], scores, 0.3)[:3]
        ranked, order = scores.sort(descending=True)
        first = ops.nms(boxes[order], ranked, 0.5)
        return boxes[kept], scores[kept], boxes[apart], classes[apart], boxes[order][first], boxes[scores.argmax()]


class Chosen(nn.Module):
    """What works along an axis that is as long as data says: from its end, weights, extremes, products, copies, borders."""

    def forward(self, x, y, holds, ids):
        some, others, own = x[holds], y[holds], ids[holds]
        weights = F.softmax(some, 0), F.log_softmax(some[:, 0], 0), F.softmax(y @ some.t(), -1) @ others
        products = some.t() @ others, y @ some.t(), torch.einsum("nd,ne->de", some, others), torch.einsum("nd,md->nm", some, y)
        best = some[some[:, 0].argmax()], some.argmin(0), some.max(0)[1], others[own.argmax()]
        ends = some[-1], some[-2:], some[:-1], some.flip(0), some[::2], some[1:] - some[:-1]
        order = some.argsort(0)
        ranked = some.gather(0, order), some[order[:, 1]]
        longer = some.repeat(2, 1), F.pad(some, (0, 1, 1, 2), value=0.5), some[:, None].expand(-1, 2, -1), y[0].expand(some.shape[0], -1)
        sums = torch.zeros(5, 4).index_add(0, own, some), torch.zeros(5).scatter_add(0, own, some[:, 1]), some.cumsum(0).flip(0)
        names, which, often = torch.unique(own, return_inverse=True, return_counts=True)
        masks = x[:, y[0] > 0], y[holds, own % 4], F.one_hot(own, 5), torch.arange(some.shape[0]) / some.shape[0]
        return (*weights, *products, *best, *ends, *ranked, *longer, *sums, names, which, often, *masks)


class Regions(nn.Module):
    """Boxes and images of torchvision: what is left of boxes is as long as data says, and is cut, picked and counted."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3)

    def forward(self, x, boxes, scores, moved, mask):
        from torchvision import ops
        kept = ops.nms(boxes, scores, 0.4)
        rois = torch.cat([torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]]), boxes], 1)
        far = torch.tensor([[0.0, -90, -3, 4, 200], [0, 3, 2, 1, 1], [1, 7, 0, 70, 5.5], [1, 0.2, 0.1, 0.3, 0.2]])
        deformed = ops.deform_conv2d(x, moved, self.conv.weight, self.conv.bias, padding=1, mask=mask)
        return (
            boxes[kept[:3]],
            kept[1:],
            kept[:-2],
            scores[kept][kept[2:4] * 0],
            torch.cat([boxes[kept], boxes[:1], boxes[ops.nms(boxes, -scores, 0.2)]]),
            ops.roi_align(x, rois, (3, 2), 0.5, 2, aligned=True),
            ops.roi_align(x, rois, 2, 1.0, 1),
            ops.roi_align(x, rois, (3, 2), 0.7, -1),
            ops.roi_align(x, far, 2, 1.0, 0, aligned=True),
            ops.roi_align(x[:1], far[:2], (1, 4), 1.0, 0),
            ops.roi_pool(x, rois, (2, 3), 0.5),
            deformed,
        )


class Branches(nn.Module):
    """Branches that data decides, one in the other, and what they pass on; tokens counted for each expert that they choose."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        def deeper(x):
            return torch.cond(x.amax() > 1, lambda x: (x.exp(), self.inner(x)), lambda x: (x - 1, x.clone()), (x,))

        first, second = torch.cond(x.sum() > 0, deeper, lambda x: (x * 2, x + 1), (x,))
        _, chosen = self.gate(x).topk(2, -1)
        weights = x.abs().sum(-1, keepdim=True).expand(-1, 2).flatten()
        return first, second, torch.bincount(chosen.flatten(), minlength=3), torch.bincount(chosen.flatten(), weights)


class Steps(nn.Module):
    """Steps that read what the one before gave and a row of two sequences, from the last row on too, and steps in steps."""

    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.randn(4, 4) * 0.4), nn.Linear(3, 4)

    def forward(self, h, x):
        def step(carried, rows):
            new = torch.tanh(carried @ self.weight + rows[0]) * rows[1]
            return new, new * 2

        def outer(carried, row):
            last, all_of_it = scan(lambda c, r: (c * 0.5 + r, c + 0), carried, row.unflatten(-1, (2, 2)).transpose(0, 1).flatten(1), dim=0)
            return last, all_of_it.sum(0)

        rows, gates = self.inner(x), torch.sigmoid(x.sum(-1, keepdim=True))
        last, made = scan(step, h, (rows, gates), dim=0)
        back, turned = scan(step, last, (rows, gates), dim=0, reverse=True)
        return last, made, back + 0, turned, *scan(outer, h, rows.transpose(0, 1).flatten(2).transpose(0, 1), dim=0)


class Rounds(nn.Module):
    """Loops that a counter ends, that data may end before, and one in another."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        counted, y = while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, torch.tanh(self.inner(y)) + i), (torch.tensor(0), x))

        def outer(i, y):
            _, y = while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y * 1.5 - j), (i * 0, y))
            return i + 1, y

        grown = while_loop(lambda i, y: (i < 9) & (y.abs().sum() < 60), lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x))
        never = while_loop(lambda i, y: ~((i > 2) | (y.sum() < 1e9)), lambda i, y: (i + 1, y + 1), (torch.tensor(0), x))
        _, nested = while_loop(lambda i, y: i < 3, outer, (torch.tensor(0), x))
        return counted, y, *grown, *never, nested


class Counted(nn.Module):
    """Integers that stand for numbers, as PyTorch's and torchao's tools write them."""

    def __init__(self):
        super().__init__()
        import torchao.quantization  # noqa: F401 (its operations)
        self.register_buffer("rows", torch.randint(-100, 100, (4, 8), dtype=torch.int8))
        self.register_buffer("eighths", (torch.randn(4, 8) * 3).to(torch.float8_e4m3fn))
        self.register_buffer("sevenths", (torch.randn(4, 8) * 3).to(torch.float8_e5m2))
        self.register_buffer("scales", torch.rand(4) * 0.1 + 0.01)
        self.register_buffer("zeros", torch.tensor([0, 3, -2, 1]))

    def forward(self, x):
        of, ao = torch.ops.quantized_decomposed, torch.ops.torchao
        rows = of.dequantize_per_channel(self.rows, self.scales, self.zeros, 0, -128, 127, torch.int8)
        fixed = of.quantize_per_tensor(x, 0.02, 7, 0, 255, torch.uint8)
        y = F.linear(of.dequantize_per_tensor(fixed, 0.02, 7, 0, 255, torch.uint8), rows)
        scale, zero = of.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        found = of.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        token, middle = of.choose_qparams_per_token_asymmetric(x, torch.int8)
        tokens = of.quantize_per_token(x, token, middle, -128, 127, torch.int8)
        by_block, none = ao.choose_qparams_affine(x, "SYMMETRIC", [1, 4], torch.int8, -8, 7, None, torch.float32)
        blocks = ao.quantize_affine(x, [1, 4], by_block, none, torch.int8, -8, 7)
        small = self.eighths.t().float() + self.sevenths.to(torch.float32).t()
        return (
            y,
            found,
            of.dequantize_per_tensor.tensor(found, scale, zero, -128, 127, torch.int8),
            of.dequantize_per_token(tokens, token, middle, -128, 127, torch.int8, torch.float32),
            ao.dequantize_affine(blocks, [1, 4], by_block, none, torch.int8, -8, 7),
            torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15),
            torch.fake_quantize_per_channel_affine(x, self.scales[:3], self.zeros[:3].int(), 0, -8, 7),
            torch._int_mm(self.rows.t().repeat(4, 8), self.rows.repeat(8, 1)[:, :8]),
            x @ small * self.scales,
        )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(6, 5)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, last = self.gru(y)
        return z, h, c, last


class Sizes(nn.Module):
    """Shapes that follow from open sizes, views that are written over, constants, two outputs of one value."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0, -1.0, 3.0]))
        self.register_buffer("order", torch.tensor([2, 0, 1, 3]))

    def forward(self, x, mask):
        rows, columns = x.shape
        halves = torch.cat([x * self.scale, x[:, self.order]], dim=0).view(2 * rows, columns // 2, 2)
        hidden = x.masked_fill(mask, -1.5)
        hidden.mul_(2.0)
        total = hidden.sum(dim=1, keepdim=True).expand(rows, columns)
        return halves, total + torch.ones(rows, 1), torch.arange(rows) * 2


class Laid(nn.Module):
    """Arrays that do not lie row by row, losses of smoothed and shared classes, distances, decimals."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(3, 4).t())
        self.moved = nn.Parameter(torch.randn(2, 3, 4).permute(2, 0, 1))
        self.kernel = nn.Parameter(torch.randn(2, 1, 2, 3).to(memory_format=torch.channels_last))
        self.register_buffer("skipped", torch.randn(6, 8)[::2, ::2])
        self.register_buffer("scales", torch.randn(3, 1).expand(3, 4))

    def forward(self, x, classes, shares):
        y = x @ self.turned
        scores = x + self.skipped * self.scales
        losses = [
            F.cross_entropy(scores, classes, self.skipped[0].abs(), ignore_index=1, reduction=reduction, label_smoothing=0.2)
            for reduction in ("mean", "sum", "none")
        ]
        losses += [F.cross_entropy(scores, shares, label_smoothing=0.1), F.cross_entropy(scores, shares, reduction="none")]
        lengths = [torch.dist(x, self.scales, p) for p in (0.0, 1.5, 2.0, math.inf)]
        short = [torch.renorm(x, 2, 0, 1.0), torch.renorm(self.moved, 1, 1, 3.0)]
        image = F.conv2d(x[None, None], self.kernel)
        return y, image, *losses, *lengths, *short, torch.round(x * 9, decimals=1), torch.round(x * 99, decimals=-1), classes.view(torch.int64)


class Margins(nn.Module):
    """Losses of margins and of counts; areas between places of their own."""

    def forward(self, x, y, z, weight):
        classes, several = torch.tensor([1, 0, 4]), torch.tensor([[1, 0, -1, 2, 3], [4, -1, 0, 0, 0], [-1, 1, 2, 3, 4]])
        sign, rows, counts = y.sign(), z[:, 0].sign(), y.abs() * 2
        losses = [F.triplet_margin_loss(x, y, z), F.triplet_margin_loss(x, y, z, 0.4, p=1, swap=True, reduction="none")]
        losses += [F.multi_margin_loss(x, classes, 2, 0.8, weight), F.multi_margin_loss(x[0], classes[0])]
        for reduction in ("none", "mean", "sum"):
            losses += [
                F.cosine_embedding_loss(x, y, rows, 0.2, reduction=reduction),
                F.hinge_embedding_loss(x, sign, 0.7, reduction=reduction),
                F.margin_ranking_loss(x, z, sign, 0.3, reduction=reduction),
                F.soft_margin_loss(x, sign, reduction=reduction),
                F.multi_margin_loss(x, classes, margin=0.5, reduction=reduction),
                F.multilabel_margin_loss(x, several, reduction=reduction),
                F.poisson_nll_loss(x, counts, full=True, reduction=reduction),
            ]
        losses.append(F.poisson_nll_loss(x.abs(), counts, log_input=False, eps=0.1))
        areas = torch.trapezoid(x, y), torch.trapezoid(x, weight), torch.cumulative_trapezoid(x, y, dim=0)
        return *losses, *areas, torch.ger(x[0], y[1]), torch.addr(x, weight[:3], y[0], beta=0.5, alpha=2)


class Factored(nn.Module):
    """Matrices as products, singular values, exponentials; tables whose rows are kept short."""

    def __init__(self):
        super().__init__()
        self.tall, self.square = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3, 3))
        self.table = nn.Embedding(6, 4, max_norm=0.7)

    def forward(self, x, ids):
        definite = x @ x.mT + torch.eye(3)
        root = torch.linalg.cholesky(definite)
        factors = *torch.linalg.qr(x), *torch.linalg.qr(self.tall), *torch.linalg.qr(self.tall, mode="complete")
        values = torch.linalg.svdvals(x), torch.linalg.eigvalsh(definite), torch.linalg.cond(self.tall)
        norms = torch.linalg.norm(self.tall, "nuc"), torch.linalg.norm(self.tall, 2), torch.linalg.matrix_norm(x, -2, keepdim=True)
        low = self.tall @ self.square[:, :2] @ self.square[:2]
        inverses = torch.linalg.pinv(x), torch.linalg.pinv(self.tall.mH), torch.linalg.pinv(low, rtol=1e-4), torch.linalg.matrix_rank(low, rtol=1e-4)
        powers = torch.matrix_exp(self.square * 3), torch.matrix_exp(definite * 0.1), torch.linalg.matrix_power(definite, -2), torch.linalg.matrix_power(definite, 0)
        solved = torch.linalg.solve(definite, x.mT, left=False), torch.cholesky_solve(x, root), torch.cholesky_inverse(root)
        old = torch.triangular_solve(x, definite, upper=False, transpose=True)[0], torch.linalg.solve_triangular(definite, x.mT, upper=True, left=False)
        return *factors, *values, *norms, *inverses, *powers, *solved, *old, torch.linalg.vecdot(x, x + 1), self.table(ids)


class Triangles(nn.Module):
    """Factors of matrices that exchange rows, what is solved by them, and singular values by the older name."""

    def forward(self, x, y):
        square = x[:, :, :3]
        packed, pivots = torch.linalg.lu_factor(square)
        solved = torch.linalg.lu_solve(packed, pivots, y)
        across = torch.linalg.lu_solve(packed, pivots, y.mT, left=False)
        adjoint = torch.linalg.lu_solve(packed, pivots, y, adjoint=True)
        back = torch.linalg.lu_solve(packed, pivots, y.mT, left=False, adjoint=True)
        wide, tall = torch.linalg.lu(x), torch.linalg.lu(x.mT)
        parts = torch.lu_unpack(packed, pivots)
        return packed, pivots, solved, across, adjoint, back, *wide, *tall, *parts, torch.svd(x)[1]


class Copies(nn.Module):
    """What copies where others give a view: what is written over it stays there."""

    def forward(self, x):
        row = torch.view_copy(x, (x.shape[0], 12))
        row.mul_(2)
        part = torch.narrow_copy(x, 1, 1, 2)
        halves = torch.split_copy(x, 2, 2)
        apart = torch.unbind_copy(x, 2)
        return (row, torch.permute_copy(x, (2, 0, 1)), torch.transpose_copy(x, 1, 2), torch.squeeze_copy(part[:, :1], 1),
                torch.unsqueeze_copy(x, 1), torch.expand_copy(x[:, :1], (-1, 3, -1)), torch.slice_copy(x, 2, 1, 3),
                torch.select_copy(x, 1, 2), torch.diagonal_copy(x, 0, 1, 2), torch.alias_copy(x), torch.unfold_copy(x, 2, 2, 1),
                torch.split_with_sizes_copy(x, [1, 3], 2)[1], halves[0] + halves[1], apart[0] - apart[3], x)


class Lone(nn.Module):
    """Operations along an axis of a tensor that has none."""

    def forward(self, x):
        one, place = x.sum(), torch.tensor(0)
        most, least = torch.max(one, 0), torch.kthvalue(one, 1)
        return (torch.softmax(one, 0), torch.log_softmax(one, -1), *torch.topk(one, 1), *torch.sort(one), torch.argsort(one),
                torch.cumsum(one, 0), torch.cumprod(one, 0), *torch.cummax(one, 0), torch.logcumsumexp(one, 0), *most, *least,
                torch.argmax(one, 0), torch.gather(one, 0, place), one.scatter(0, place, 2.0),
                one.index_select(0, torch.tensor([0])), one.std(0, correction=0), one.var(0, correction=0, keepdim=True))


class Blocks(nn.Module):
    """Blocks, and places in memory, of as many rows as there are."""

    def forward(self, x, y):
        rows = x.shape[0]
        return torch.block_diag(x, y, x[:, 0]), x.as_strided((rows, 2, 2), (4, 1, 1), 1), x.as_strided((2, rows), (2, 4))


class Degrees(nn.Module):
    """Orthogonal polynomials and sums of logarithms of gamma functions; elements that are put by their places in memory."""

    def forward(self, x):
        s, near = torch.special, x.clamp(-1, 1)
        return (s.chebyshev_polynomial_t(near, 3), s.chebyshev_polynomial_u(near, 4), s.chebyshev_polynomial_v(near, 2),
                s.chebyshev_polynomial_w(near, 1), s.hermite_polynomial_h(x, 4), s.hermite_polynomial_he(x, 3),
                s.laguerre_polynomial_l(x, 4), s.legendre_polynomial_p(near, 5), s.legendre_polynomial_p(near, 0),
                torch.mvlgamma(x.abs() + 3, 3), x.put(torch.tensor([0, -1]), torch.tensor([9.0, 8.0])),
                x.put(torch.tensor([5, 5]), torch.tensor([1.0, 2.0]), accumulate=True),
                x.as_strided_scatter(torch.ones(2, 2), (2, 2), (4, 2), 1))


class Mapped(nn.Module):
    """Functions of single rows, mapped over axes, one in the other too."""

    def forward(self, x, y):
        dots = torch.vmap(torch.dot)(x.flatten(0, 1), x.flip(1).flatten(0, 1))
        products = torch.vmap(lambda a, b: a @ b.T, in_dims=(1, None))(x, y)
        nested = torch.vmap(torch.vmap(lambda a, b: (a * b).softmax(-1), in_dims=(0, None)))(x, x.amax(1))
        return dots, products, nested


class Rows(nn.Module):
    """A function of each row, which reads a table beside."""

    def forward(self, x, table):
        from torch._higher_order_ops.map import map as over_rows

        return over_rows(lambda row, table: (torch.tanh(row @ table), row.sum(0)), x, table)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(6, 1, 1)

    def forward(self, x):
        y = F.silu(self.norm(self.down(x)))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="nearest")
        return torch.sigmoid(self.out(torch.cat([x, self.up(y)], 1)))


class Places(nn.Module):
    """Elements that are replaced, added to, or looked up; windows and images of uneven sizes; in-place writes of views."""

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3))
        self.rnn = nn.RNN(3, 2, nonlinearity="relu", bidirectional=True)

    def forward(self, x, image):
        rows = torch.tensor([[0, 2, 1], [1, 1, 3]])
        y = x.scatter_add(1, rows, x * 2).scatter_reduce(1, rows, x, "amax")
        z = x.clone()
        z[:, 1:3] = y[:, :2]
        z[0] = 0.5
        z[torch.tensor([0, 1]), torch.tensor([3, 0])] += 1.0
        kept = torch.where(x > 0, x, torch.atan2(x, y)).index_add(1, torch.tensor([2, 0]), x[:, :2], alpha=0.5)
        grid = F.affine_grid(torch.tensor([[[0.8, 0.1, 0.0], [-0.2, 1.1, 0.1]]]), [1, 2, 3, 4], align_corners=False)
        seen = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
        pooled, places = F.max_pool2d(image, 2, return_indices=True)
        uneven = F.adaptive_avg_pool2d(image, (3, 2)) + F.adaptive_max_pool2d(image, (3, 2))
        sizes = F.interpolate(image, scale_factor=(1.5, 0.6), mode="bilinear"), F.interpolate(image, (3, 4), mode="bilinear", antialias=True)
        columns = F.fold(F.unfold(image, (2, 3), padding=1, stride=2), (5, 7), (2, 3), padding=1, stride=2)
        windows = x.unfold(1, 2, 1).repeat_interleave(2, 0), torch.diagonal(image, 1, 2, 3), image[torch.tensor([0, 0]), :, torch.tensor([1, 3])]
        turned, _ = self.rnn(self.conv(image.flatten(2))[..., :4].permute(2, 0, 1))
        counts = (x > 0).nonzero().sum(0), x[x > 0.1].sum(), torch.cdist(x, y)
        return y, z, kept, seen, pooled, places, uneven, *sizes, columns, *windows, turned, *counts


class Writes(nn.Module):
    """Writes over views of tensors, views of views, inputs, and what a loop fills step by step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x, image):
        rows, columns = x.shape
        z = x.new_zeros(rows, 2, columns)
        z[:, 1] = x
        z[..., 0::2] += 1.0
        z.view(rows, 2 * columns)[:, 1:3].mul_(2.0)
        z.transpose(1, 2)[:, 3].relu_()
        first, second = z.clone().chunk(2, 1)
        first.sub_(second)
        ends = z.flatten(1)
        ends[:, -1:].zero_()
        apart = image.transpose(1, 2).reshape(2, -1)
        apart[:, 0] = 5.0
        matrix = torch.full((4, 4), float("-inf")).triu_(1)
        matrix.diagonal().fill_(0.5)
        matrix.unbind(0)[2].clamp_(min=-3.0)
        hidden, steps = torch.zeros(rows, 4), []
        filled = torch.empty(rows, 3, 4)
        for at in range(3):
            hidden = torch.tanh(self.cell(x) + hidden)
            filled[:, at] = hidden
        kept = torch.zeros(rows, columns)
        kept[x > 0.3] = 7.0
        kept[torch.tensor([True, False, True])] = x[:2]
        kept.index_fill_(1, torch.tensor([2]), -1.0)
        image.add_(1.0)
        return z, first, second, ends, apart, matrix, filled, kept, image * 2


class Pieces(nn.Module):
    """Bags of embeddings, cells, images that come alone, windows with their places, tensors put together."""

    def __init__(self):
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(9, 3, mode="sum"), nn.EmbeddingBag(9, 3, padding_idx=0)
        self.most = nn.EmbeddingBag(9, 3, mode="max", include_last_offset=True)
        self.lstm, self.gru, self.rnn = nn.LSTMCell(4, 3), nn.GRUCell(4, 3), nn.RNNCell(4, 3, nonlinearity="relu")
        self.conv, self.up = nn.Conv2d(2, 3, 3), nn.ConvTranspose1d(4, 2, 3, stride=2)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, ids, offsets, x, image):
        bags = self.sums(ids, per_sample_weights=x[:, :3]), self.means(ids), self.most(ids.flatten(), offsets)
        cells = *self.lstm(x), self.gru(x, self.gru(x)), self.rnn(x)
        alone = self.conv(image), self.up(x.T), F.max_pool2d(image, 2), F.avg_pool2d(image, 3, 2, 1, divisor_override=5), self.norm(x)
        windows = *F.adaptive_max_pool2d(image[None], (2, 3), return_indices=True), F.adaptive_max_pool3d(image[None, None], (1, 2, 3))
        unpooled = F.max_unpool2d(*F.max_pool2d(image[None, :, :4, :6], 2, return_indices=True), 2)
        running = x.cumprod(1), x.cummax(0).values, x.logcumsumexp(1), x.diff(dim=0), torch.trapezoid(x, dim=1)
        joined = torch.hstack([x, x]), torch.dstack([x, x]), torch.column_stack([x[0], x[1]]), torch.block_diag(x, x[:1]), torch.cartesian_prod(x[0], x[1])
        turned = torch.rot90(x), torch.kron(x[:2], x), x.roll(5), torch.diag_embed(x, 1), torch.diagflat(x[0], -1), torch.cross(x[:, :3], x[:, 1:], dim=1)
        ordered = *x.median(1), x.quantile(0.3, dim=0), torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x), torch.isin(ids, torch.tensor([3, 1]))
        products = torch.tensordot(x, x, dims=([0], [0])), torch.matrix_power(x[:3, :3], 3), torch.addr(x[:, :3], x[0, :3], x[1, :3]), torch.var_mean(x, 1)[0]
        single = F.interpolate(image[None], (1, 1), mode="bilinear"), image[None].to(memory_format=torch.channels_last).as_strided((1, 2, 5, 7), (70, 1, 14, 2))
        return *bags, *cells, *alone, *windows, unpooled, *running, *joined, *turned, *ordered, *products, *single


class Edges(nn.Module):
    """Views of every kind written over, infinities, places from the end, bounds and numbers of other types."""

    def forward(self, x, whole):
        z = x * 2
        first, second, third = z.tensor_split([1, 4], 1)
        second.add_(first)
        z.ravel()[3:5] = 7.0
        left, right = z.hsplit(2)
        right.mul_(left)
        upper, lower = z.vsplit(2)
        lower.sub_(upper)
        torch.atleast_3d(z)[0, :, 0] = 0.25
        torch.positive(z)[3].neg_()
        F.alpha_dropout(z, 0.5, False)[:, 2].clamp_(max=0.0)
        apart = z.t().ravel()
        apart[0] = 9.0
        strided = z.view(1, 4, 3, 2)
        copied = strided.to(memory_format=torch.channels_last)
        copied.mul_(3.0)
        held = strided.contiguous(memory_format=torch.channels_last)
        held.sub_(1.0)
        steps = z.unfold(1, 3, 2) + 0
        low = torch.where(x > 0, x, float("-inf"))
        sums = low.logcumsumexp(1), torch.logaddexp(low, low), torch.logaddexp2(low, -low)
        places = torch.tensor([[0, 2, 1], [1, 1, 3]])
        scattered = x.scatter(1, places, x, reduce="add"), x.scatter(1, places, 3.0, reduce="multiply")
        bounds = torch.bucketize(whole, torch.tensor([-1.5, 0.5, 2.0])), torch.searchsorted(torch.tensor([-1, 0, 2]), x), torch.isin(whole, torch.tensor([0.5, 2.0]))
        filled = x.index_fill(1, torch.tensor([-1, 2]), 5.0), torch.take_along_dim(x, torch.tensor([[5], [0]])), torch.take_along_dim(x[:1], places, 1)
        ranges = torch.linspace(0, 10, 7, dtype=torch.int64), torch.linspace(9, -4, 6, dtype=torch.int32), torch.logspace(0, 3, 5, dtype=torch.int64)
        windows = torch.hamming_window(5, True, 0.6, 0.3), torch.hann_window(6, dtype=torch.float64), torch.hamming_window(4, False, 0.5)
        norms = torch.cdist(x, x[:2], 0.0), F.pairwise_distance(x, x.flip(0), p=float("-inf")), F.pairwise_distance(x, x + 1, p=0.0, keepdim=True)
        share = x.quantile(0.3, keepdim=True), torch.as_strided(z, (2, 0, 3), (3, 1, 1))
        return z, third, apart, copied, held, steps, *sums, *scattered, *bounds, *filled, *ranges, *windows, *norms, *share


class Spectra(nn.Module):
    """Complex numbers: rotary embeddings with a table of them, spectrograms and their inverse, transforms, views of parts."""

    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(3.0), 100.0 ** -(torch.arange(0, 4, 2) / 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("window", torch.hann_window(6))
        self.register_buffer("filters", torch.rand(5, 3))

    def forward(self, q, sound):
        pairs = torch.view_as_complex(q.float().reshape(2, 3, 2, 2, 2))
        turned = torch.view_as_real(pairs * self.turns[None, :, None]).flatten(3)
        waves = torch.stft(sound, 8, 2, 6, self.window, center=True, normalized=True, return_complex=True)
        mel = torch.log(waves.abs().pow(2).transpose(1, 2) @ self.filters + 1e-3)
        back = torch.istft(waves * 2, 8, 2, 6, self.window, normalized=True, length=20)
        half = torch.fft.rfft2(q[..., 0, :], norm="ortho")
        whole = torch.fft.fft(torch.complex(q[..., 0, :], q[..., 1, :]), n=6, dim=1)
        shifted = torch.fft.fftshift(whole, dim=(1,))
        inverse = torch.fft.irfftn(half, s=(3, 4), dim=(1, 2), norm="ortho"), torch.fft.ifft(whole).imag, torch.fft.hfft(half), torch.fft.ihfft(sound).real
        parts = torch.view_as_real(whole.clone())
        parts[..., 0] += 1.0
        written = torch.view_as_complex(parts)
        written[:, 1:3] *= 1j
        written.imag.mul_(0.5)
        numbers = (written / (whole + 2)).angle(), written.conj().sum(1).real, (written @ half[:, :2].transpose(1, 2)[:, :3].new_ones(2, 4, 2)).abs()
        others = (written * 0.1).exp().real, torch.where(q[:, :1, 0].mean(1, keepdim=True) > 0, written, 0.5).pow(3).imag * 0.01, torch.linalg.vector_norm(shifted, dim=1), written.sqrt().real
        return turned, mel, back, *inverse, *numbers, *others


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_mm_fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """What transformers registers for its experts."""
    out, start = torch.zeros(input.size(0), weight.size(2)), 0
    for expert, end in enumerate(offs.tolist()):
        out[start:end] = input[start:end] @ weight[expert]
        start = end
    return out


@grouped_mm_fallback.register_fake
def _(input, weight, offs):
    return input.new_empty(input.size(0), weight.size(2))


class Mixture(nn.Module):
    """Tokens sorted by the experts that are chosen for them, as transformers writes it, of which a part stands in a graph of its own, and a bag of embeddings."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 3, bias=False), nn.Parameter(torch.randn(3, 4, 6)), nn.Parameter(torch.randn(3, 3, 4))
        self.bag = nn.EmbeddingBag(9, 3, mode="mean", padding_idx=2)

    def forward(self, x, ids, offsets):
        with torch.no_grad():
            shares, chosen = self.gate(x).softmax(-1).topk(2, -1)
        expert, order = chosen.flatten().sort()
        ends = torch.histc(expert.float(), 3, 0, 2).cumsum(0, dtype=torch.int32)
        gate, up = torch.ops.transformers.grouped_mm_fallback(x[order // 2], self.up, ends).chunk(2, -1)
        y = torch.ops.transformers.grouped_mm_fallback(F.silu(gate) * up, self.down, ends) * shares.flatten()[order, None]
        return y.new_zeros(5, 4).index_add(0, order // 2, y), ends, torch.histc(x, 5), self.bag(ids, offsets)


class Solved(nn.Module):
    """Equations, projected LSTMs, places of running extremes, shifts, counts, parts written over, a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, 2, proj_size=2, bidirectional=True, batch_first=True)
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x, n):
        square = x @ x.mT + torch.eye(3)
        solved = torch.inverse(square), torch.linalg.solve(square, x), torch.linalg.solve(square, x[..., 0]), torch.linalg.cholesky(square)
        triangle = torch.linalg.solve_triangular(square, x, upper=True)
        layered, (hidden, cell) = self.lstm(x)
        running = *x.cummax(1), *x.round().cummin(-1), n.cummax(1).indices
        apart = x.diff(2, dim=1, prepend=x[:, :1]), n.diff(append=n[:, :2])
        shifted = *apart, n << 3, n >> 1, torch.bitwise_right_shift(n, n.abs() + 60), 1 << n.abs()
        reduced = x[0].scatter_reduce(1, n[:, :4].abs() % 4, x[1], "mean", include_self=False), x[0].index_reduce(0, torch.tensor([2, 0]), x[1, :2], "amax")
        self.steps.add_(x.sum())
        wide = torch.zeros(700, 2)
        for row in wide.unbind(0)[::350]:
            row.add_(self.steps[:2])
        pairs = torch.pdist(x[0]), torch.combinations(x[0, 0], 2), torch.vander(x[0, 1], 3), torch.nonzero_static(n > 0, size=9, fill_value=-1)
        return *solved, triangle, layered, hidden, cell, *running, *shifted, *reduced, wide.sum(0), *pairs


class Ends(nn.Module):
    """Where functions are infinite, turn over or have no value, and complex numbers beside others."""

    def forward(self, y, x, far, n):
        angles = torch.atan2(y, x), torch.hypot(y, x), torch.complex(x, y).abs(), torch.complex(x[:6], y[:6]).angle()
        gamma = torch.lgamma(far), torch.digamma(far), torch.special.log_ndtr(far), torch.special.ndtri(torch.cat([far.clamp(-60, 60).sigmoid(), torch.tensor([0.0, 1.0, 1e-6, 2.0])]))
        gamma = *gamma, torch.special.i0e(far / 9), torch.special.i1(far.clamp(-20, 20)), torch.special.i1e(far)
        small = (n + 1) / 7
        written = torch.complex(small, n / 3)
        joined = torch.cat([written, n]), torch.hstack([n, written]), torch.vstack([n > 2, written, small]), torch.column_stack([written, n]), torch.block_diag(n, written)
        divided = written / (written * (1e20 + 1e20j)) * 1e20, written.conj() / (small - 0.5j), 1 / (written + 1j), written * (2 - 1j)
        counted = torch.histc(small, 4, min=2.0, max=2.0), (n * 0 + written.imag * 1j).bool(), (-small.sum()).norm(1), torch.linalg.vector_norm(-small[0]), small.diff(n=0, append=small)
        return *angles, *gamma, *(torch.view_as_real(numbers) for numbers in joined + divided), *counted


class Runs(nn.Module):
    """Runs of equal elements, and elements that are repeated as often as data says."""

    def forward(self, x, n, counts):
        value, place, length = torch.unique_consecutive(n, return_inverse=True, return_counts=True)
        rows = torch.repeat_interleave(x, counts, dim=0, output_size=7)
        columns = torch.repeat_interleave(x, counts, dim=1, output_size=7)
        return value * 2, place, length, torch.unique_consecutive(x > 0), rows, columns, torch.repeat_interleave(counts, output_size=7)


class Ranked(nn.Module):
    """Elements by their rank beside what is not a number, norms of matrices, groups of rows, of columns and of terms, whose ends follow from counts."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 4)), nn.Parameter(torch.randn(4, 4, 8))
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x, n, gaps):
        modes = *torch.mode(n, -1), *torch.mode(n, 0, keepdim=True), torch.mode(x[:1].round(), 1).values
        shares = torch.tensor([0.1, 0.5, 1.0])
        quantiles = x.quantile(shares, dim=1), x.quantile(shares, keepdim=True), gaps.quantile(0.3, dim=1), gaps.nanquantile(shares[:2], dim=0, keepdim=True)
        medians = *gaps.nanmedian(1), gaps.nanmedian(), gaps.median(1).values, gaps.median(), n.median(1, keepdim=True).values
        norms = [torch.linalg.matrix_norm(x.view(2, 2, 8), order, keepdim=order == 1) for order in ("fro", 1, -1, math.inf, -math.inf)]
        others = torch.linalg.norm(x), torch.linalg.norm(x, 1), torch.linalg.norm(x.view(2, 2, 8), math.inf, (2, 0)), torch.linalg.norm(x, dim=0)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=4).cumsum(0).to(torch.int32)
        rows = x.repeat_interleave(2, 0)[order]
        y = torch._grouped_mm(F.silu(torch._grouped_mm(rows, self.up, offs=ends)), self.down, offs=ends)
        mixed = (y[order.argsort()].view(-1, 2, 8) * weights[..., None]).sum(1)
        columns = torch._grouped_mm(self.down, x.repeat(2, 1).mT.contiguous(), offs=ends)
        terms = torch._grouped_mm(rows.mT.contiguous(), rows, offs=ends)
        return *modes, *quantiles, *medians, *norms, *others, mixed, columns, terms, self.norm(x)


class Corners(nn.Module):
    """Arguments at the edge of what they mean: rows counted from the end, operands that repeat along the axis of a norm or are not
    read at all, sides that are wrapped and cut, whole numbers and conditions where floats are usual."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))
        self.register_buffer("nothing", torch.full((4, 5), math.nan))

    def forward(self, x, y, n, small, large):
        bags = F.embedding_bag(n[0], self.table, n[1, :2], mode="sum", padding_idx=-1)
        alike = F.cosine_similarity(x, y[:4, :1], dim=1), F.cosine_similarity(x[None], y[:, None], dim=-1)
        product = torch.addmm(self.nothing[:, :1], x, y.mT, beta=0)
        left = torch.addmm(x[:, :1], self.nothing, self.nothing[:, :1].expand(4, 5).mT, alpha=0)
        wrapped = F.pad(x[None], (2, -1), mode="circular"), F.pad(x[None], (-1, 1), mode="circular")
        hidden = torch.ops.aten._safe_softmax(x.masked_fill(x[:, :1] > 0, -math.inf), -1)
        whole = n.floor(), n.round(), n.isnan(), torch.isinf(n)
        truths = (x > 0) > (y[:4] > 0), torch.maximum(x > 0, y[:4] > 0), torch.minimum(x > 0, y[:4] > 0)
        return bags, *alike, product, left, *wrapped, hidden, *whole, *truths, small < large, large >= small


class Promoted(nn.Module):
    """Operands of two types where one is usual, and attention of more axes than four, also with masks of fewer."""

    def forward(self, x, y, z, q, k, v, mask):
        pairs = torch.outer(x[0], y[0]), torch.outer(z, x[1]), F.cosine_similarity(x, y), F.pairwise_distance(x, y)
        free = F.scaled_dot_product_attention(q, k, v)
        masked = F.scaled_dot_product_attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask[0, 0] > 0)
        return *pairs, free, *masked, F.scaled_dot_product_attention(q[None], k[None], v[None], mask, scale=0.3)


class Counting(nn.Module):
    """A decoder whose keys are shorter the more tokens there are: what is kept of one depends on how many follow."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids):
        x = self.words(ids)[:, None]
        return self.head(F.scaled_dot_product_attention(x, x / ids.shape[1], x, is_causal=True) - x)[:, 0]


class Triangle(nn.Module):
    """A mask whose diagonal is an open size."""

    def forward(self, x, before):
        length, kept = x.shape[1], before.shape[1]
        seen = torch.ones(length, length + kept, dtype=torch.bool).tril(kept)
        keys = torch.cat([before, x], 1)
        biases = torch.stack([seen.float(), seen.float() * 2])
        heads = F.scaled_dot_product_attention(x[:, None].expand(-1, 2, -1, -1), *[keys[:, None].expand(-1, 2, -1, -1)] * 2, attn_mask=biases)
        return F.scaled_dot_product_attention(x, keys, keys, attn_mask=seen), seen.float().triu(kept - 1), heads


class Sized(nn.Module):
    """Operations that have to know sizes, of sizes that are open: what is run has others than what was exported."""

    def forward(self, x):
        columns = x.transpose(1, 2)
        image = columns[..., None]
        whole = F.pad(x, (0, 0, 0, (-x.shape[1]) % 4)).view(x.shape[0], -1, 4, 8).mean(2)
        rolled = x.roll((-1, 2), (0, 1)), x.cummax(1).values, x.cumprod(0), x.logcumsumexp(1), x.median(1).values, x.quantile(0.3, 1)
        pools = F.adaptive_avg_pool1d(columns, 3), F.adaptive_max_pool1d(columns, 2), F.interpolate(columns, scale_factor=1.3, mode="linear")
        windows = x.unfold(1, 3, 2), torch.diagonal(x @ columns, dim1=1, dim2=2), F.unfold(image, (3, 1), padding=(1, 0))
        others = F.channel_shuffle(image, 2), torch.fft.rfft(x, dim=1).abs(), x.sum() * x.shape[0] / x.shape[1]
        return whole, *rolled, *pools, *windows, *others


class Last(nn.Module):
    """Sizes that are counted from the end, and halves of them that are rounded up."""

    def forward(self, x, mask):
        count = x.shape[1]
        half = -(-count // 2)
        return mask[:, -count:] * x, torch.arange(half) * 3, torch.tanh(x).sum(1)


class Typed(nn.Module):
    """Parts in other types, one of them within another and switched off."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(8, 16), nn.Linear(16, 4), nn.LayerNorm(16)
        self.conv = nn.Conv1d(3, 2, 3, padding=1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.norm(torch.relu(self.first(x)))
            shares = torch.softmax(self.last(hidden), -1)
            lines = self.conv(x) + x[:, :2]
            with torch.autocast("cpu", enabled=False):
                sums = hidden.float() @ torch.ones(16, 2)
            joined = torch.cat([shares, x[..., :2]], -1)
        heads = hidden[:, None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attended = F.scaled_dot_product_attention(heads, heads, heads).float()
        return shares.float(), lines, sums, joined.float(), attended, (self.last(hidden.float()) @ torch.ones(4, 3))


# Arrays to run with, where they are not those of the export.
OTHERS = {
    "sized": (torch.linspace(-2, 3, 4 * 13 * 8).sin().view(4, 13, 8),),
    "learned": (torch.linspace(-2, 3, 4 * 5 * 8).sin().view(4, 5, 8),),
    "opened": (torch.linspace(-2, 9, 4 * 72).sin().view(4, 2, 6, 6), torch.tensor([2, 0, 3, 1])),
}

# Whose gradients are stored too, at the inputs that are stored.
STEERED = ("steered", "lengths", "learned", "opened", "kinks", "ties", "overridden")


def modules():
    """Name: module, inputs, open sizes."""
    rows, length, half = Dim("rows", min=2, max=64), Dim("length", min=2, max=16), Dim("half", min=3, max=16)
    ids = torch.arange(14).reshape(2, 7) * 3 % 11
    inf = math.inf
    y = torch.tensor([1, -1, 0.0, -0.0, 0.0, -0.0, inf, inf, -inf, -inf, 3, -3, 1e-30, 2])
    x = torch.tensor([-0.0, -0.0, -1, -1, -0.0, 0.0, inf, -inf, inf, -inf, -2, -4, 1e30, inf])
    far = torch.tensor([0.0, -0.0, 1, -1, -3, inf, -inf, 0.3, -0.3, -5.5, -100.25, 0.6, 3, 6, 12])
    nan = math.nan
    whole = torch.tensor([[3, 1, 3, 1, 2], [0, 0, 2, 2, 5], [7, 6, 5, 4, 3]])
    gaps = torch.tensor([[1.0, nan, -2, 5, 3], [nan, nan, 6, nan, nan], [4, 2, nan, 2, inf], [0, -1, 7, 3, 2]])
    drawn = {
        "margins": (Margins(), (*(torch.randn(3, 5) for _ in range(3)), torch.rand(5)), None),
        "triangles": (Triangles(), (torch.randn(2, 3, 4), torch.randn(2, 3, 2)), {"x": {0: rows}, "y": {0: rows}}),
        "degrees": (Degrees(), (torch.randn(3, 4),), None),
        "copies": (Copies(), (torch.randn(3, 3, 4),), {"x": {0: rows}}),
        "lone": (Lone(), (torch.randn(3, 4),), {"x": {0: rows}}),
        "blocks": (Blocks(), (torch.randn(3, 4), torch.randn(2, 3)), {"x": {0: rows}, "y": {}}),
        "factored": (Factored(), (torch.randn(2, 3, 4), torch.tensor([[1, 5, 0]])), None),
        "mapped": (Mapped(), (torch.randn(2, 3, 4), torch.randn(5, 4)), None),
        "rows": (Rows(), (torch.randn(2, 3, 4), torch.randn(4, 3)), None),
        "ranked": (Ranked(), (torch.randn(4, 8), whole, gaps), None),
        "corners": (Corners(), (torch.randn(4, 5), torch.randn(6, 5), torch.tensor([[1, 4, 2, 4], [0, 2, 3, 3]]),
                                torch.tensor([1, -3, 100], dtype=torch.int8), torch.tensor([200, 3, 90], dtype=torch.uint8)), None),
        "counting": (Counting(), (ids,), ({0: rows, 1: length},)),
        "promoted": (Promoted(), (torch.randn(2, 3), torch.randn(2, 3, dtype=torch.float64), torch.tensor([2, 5]), torch.randn(1, 2, 3, 4, 8),
                                  torch.randn(1, 2, 3, 5, 8), torch.randn(1, 2, 3, 5, 6), torch.randn(2, 1, 4, 5)), None),
        "last": (Last(), (torch.randn(3, 5), torch.randn(3, 10)), ({0: rows, 1: half}, {0: rows, 1: 2 * half})),
        "typed": (Typed(), (torch.randn(2, 3, 8),), None),
        "triangle": (Triangle(), (torch.randn(2, 3, 4), torch.randn(2, 5, 4)), ({1: length}, {1: Dim("kept", min=2, max=64)})),
        "sized": (Sized(), (torch.randn(3, 9, 8),), ({0: rows, 1: Dim.AUTO},)),
        "ends": (Ends(), (y, x, far, torch.arange(5)), None),
        "mlp": (Mlp(), (torch.randn(4, 6),), ({0: rows},)),
        "steered": (Steered(), (torch.tensor([[0, 1, 2], [3, 0, 0], [5, 1, 4]]),), None),
        "conv": (Conv(), (torch.randn(2, 3, 12, 10),), None),
        "padded": (Padded(), (torch.randn(3, 4, 6), torch.arange(4)[None] > torch.tensor([[3], [1], [2]])),
                   ({0: rows, 1: length}, {0: rows, 1: length})),
        "block": (Block(), (ids,), ({0: rows, 1: length},)),
        "turned": (Turned(), (ids.int(),), ({0: rows, 1: length},)),
        "tallied": (Tallied(), (ids,), ({0: rows, 1: Dim("tokens", max=15)},)),
        "tabled": (Tabled(), (ids,), ({0: rows, 1: Dim("tokens", max=15)},)),
        "masked": (Masked(True), (ids,), ({0: rows, 1: length},)),
        "unordered": (Masked(False), (ids,), ({0: rows, 1: length},)),
        "encoder": (Encoder(), (torch.randn(2, 5, 8),), None),
        "recurrent": (Recurrent(), (torch.randn(2, 5, 4),), None),
        "sizes": (Sizes(), (torch.randn(3, 4), torch.rand(3, 4) > 0.5), ({0: rows}, {0: rows})),
        "unet": (Unet(), (torch.randn(2, 2, 8, 12),), None),
        "writes": (Writes(), (torch.randn(3, 4), torch.randn(2, 3, 2)), None),
        "pieces": (Pieces(), (torch.tensor([[1, 0, 2], [3, 8, 0], [5, 5, 1]]), torch.tensor([0, 2, 2, 9]), torch.randn(3, 4), torch.randn(2, 5, 7)), None),
        "places": (Places(), (torch.randn(2, 4), torch.randn(1, 2, 5, 7)), None),
        "spectra": (Spectra(), (torch.randn(2, 3, 2, 4), torch.randn(2, 20)), None),
        "mixture": (Mixture(), (torch.randn(5, 4), torch.tensor([1, 0, 2, 3, 8, 0, 2]), torch.tensor([0, 3, 3, 6])), None),
        "solved": (Solved(), (torch.randn(2, 3, 4), torch.tensor([[3, -4, 1, 0, 7], [-1, 2, -8, 5, 5], [0, 9, -9, 4, 6]])), None),
        "regions": (Regions(), (torch.randn(2, 4, 6, 6), torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 5], [0, 0, 3.5, 4.2], [2, 2, 7, 7], [2.1, 2.2, 7, 9]]), torch.tensor([0.9, 0.8, 0.7, 0.95, 0.5]), torch.randn(2, 18, 6, 6) * 0.5, torch.rand(2, 9, 6, 6)), None),
        "thresholded": (Thresholded(), (torch.randn(1, 2, 4, 4),), None),
        "chosen": (Chosen(), (torch.randn(6, 4), torch.randn(6, 4), torch.tensor([True, False, True, True, False, True]), torch.tensor([3, 0, 1, 3, 4, 0])), None),
        "counted": (Counted(), (torch.randn(3, 8),), None),
        "branches": (Branches(), (torch.randn(3, 4),), None),
        "steps": (Steps(), (torch.randn(2, 4), torch.randn(5, 2, 3)), None),
        "rounds": (Rounds(), (torch.randn(3, 4),), None),
        "runs": (Runs(), (torch.randn(4, 4), torch.tensor([[3, 3, 1], [1, 1, 3]]), torch.tensor([2, 0, 4, 1])), None),
        "edges": (Edges(), (torch.randn(4, 6), torch.tensor([-2, 0, 1, 2])), None),
    }
    # Behind the others, whose draws stay as they were.
    drawn["laid"] = (Laid(), (torch.randn(3, 4), torch.tensor([2, 1, 0]), torch.rand(3, 4)), None)
    drawn["lengths"] = (Lengths(), (torch.tensor([[[1.0, -2, 0], [0, 0, 0], [0.5, 0, -0.7]]]),), None)
    drawn["learned"] = (Learned(), (torch.randn(3, 5, 8),), ({0: rows},))
    turns = torch.tensor([[-3.0, -1, 0, 1, 3, 6, 0.5, -0.25], [0.5, 1, 1.5, 2, 3, 4, 5.5, 10], [0, 0, 1, -1, 1, -1, 0, 0]])
    drawn["kinks"] = (Kinks(), (turns,), None)
    tenths = torch.tensor([0.5, 1.5, 3.0, 88.8, -0.3, 0.7, -7.3, 4.0]), torch.tensor([0.1, 0.3, 0.3, 0.3, 0.1, -0.1, 2.5, -2])
    drawn["digits"] = (Digits(), (*tenths, torch.tensor([-128, -101, 127, 100, -1, 0], dtype=torch.int8)), None)
    drawn["doubled"] = (Doubled(), (torch.randn(3, 2, 8),), ({0: rows, 2: 2 * Dim("half", min=2, max=9)},))
    drawn["ties"] = (Ties(), ((torch.arange(48) * 7 % 11 % 3 + 1.0).view(2, 4, 6),), None)
    places = torch.tensor([[1, 0, 3], [2, 2, 0]]), torch.tensor([[0, 1, 1, 0]]), *(torch.tensor([1, 0]) for _ in range(3)), torch.tensor([-1, 0])
    drawn["firsts"] = (Firsts(), (torch.linspace(-2, 3, 8).view(2, 4), *places), None)
    drawn["opened"] = (Opened(), (torch.randn(3, 2, 6, 6), torch.tensor([1, 2, 0])), ({0: rows}, {0: rows}))
    drawn["overridden"] = (Overridden(), (torch.randn(2, 2, 7, 8), torch.randn(2, 1, 5, 6, 7)), None)
    return drawn


# Each with its operands; those that are floats are tried as inputs, parameters and results.
OPERATIONS = {
    "add": (lambda x, y: torch.add(x, y, alpha=2), (3, 4), (4,)),
    "sub": (lambda x, y: x - y, (3, 4), (3, 1)),
    "rsub": (lambda x: 1.5 - x, (3, 4)),
    "mul": (lambda x, y: x * y, (2, 3, 4), (3, 1)),
    "div": (lambda x, y: x / (y + 2), (3, 4), (4,)),
    "floor_div": (lambda x, y: torch.div(x, y + 2, rounding_mode="floor"), (3, 4), (4,)),
    "remainder": (lambda x: torch.remainder(x * 5, 1.5), (3, 4)),
    "pow": (lambda x: x ** 2 + (x * x + 1) ** 0.5 + (x * x + 1).pow(-1.5), (3, 4)),
    "max2": (lambda x, y: torch.maximum(x, y) + torch.minimum(x, y * 2), (3, 4), (4,)),
    "rsqrt": (lambda x: torch.rsqrt(x * x + 1), (3, 4)),
    "unary": (lambda x: x.sin() + x.cos() * x.tanh() - x.sigmoid() + x.exp() + x.abs().sqrt() + x.erf() + x.neg(), (3, 4)),
    "unary2": (lambda x: x.atan() + x.sinh() + x.cosh() + (x / 3).asin() + x.floor() + x.ceil() + x.round() + x.sign(), (3, 4)),
    "activations": (lambda x: F.silu(x) + F.gelu(x) + F.elu(x, 0.7) + F.leaky_relu(x, 0.2) + F.hardtanh(x) + F.relu6(x * 4), (3, 4)),
    "activations2": (lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.mish(x) + F.selu(x) + F.celu(x, 0.6) + F.softplus(x, 2.0) + F.logsigmoid(x), (3, 4)),
    "glu": (lambda x: F.glu(x, 1), (3, 4, 2)),
    "prelu": (lambda x, w: F.prelu(x, w), (2, 3, 4), (3,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.7) + x.clamp(min=0.1) + x.clamp_max(0.2), (3, 4)),
    "compare": (lambda x, y: ((x > y) & (x <= 1)) | ~(x == y) | (y != 0.5), (3, 4), (4,)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (3, 4), (4,)),
    "sum": (lambda x: x.sum() + x.sum(1) + x.mean((0, 1), keepdim=True).sum(2) + x.amax(1) - x.amin(1), (2, 2, 4)),
    "var": (lambda x: x.var(1) + x.std(1, unbiased=False) + x.var(dim=1, correction=0), (3, 4)),
    "norm": (lambda x: torch.linalg.vector_norm(x, 2, 1) + x.norm(1, 1) + F.normalize(x, dim=1).sum(1), (3, 4)),
    "extreme": (lambda x: (x.max(1).values, x.min(1).indices, x.argmax(0), x.argmin(), x.max()), (3, 4)),
    "logsumexp": (lambda x: x.logsumexp(1) + x.cumsum(0).prod(1), (3, 3)),
    "anyall": (lambda x: ((x > 0).any(1), (x > -1).all(), x.any()), (3, 4)),
    "shapes": (lambda x: x.permute(2, 0, 1).reshape(4, 6).t().unsqueeze(1).squeeze(1).unflatten(0, (2, 3)).transpose(0, -1), (2, 3, 4)),
    "flatten": (lambda x: x.flatten(1, 2) + x.view(2, -1), (2, 3, 4)),
    "slices": (lambda x: x[:, 1:3, ::2] + x[1, -2:, :2] + x.narrow(1, 0, 2).select(2, 3).unsqueeze(-1), (2, 3, 4)),
    "joins": (lambda x, y: (torch.cat([x, y], 1), torch.stack([x, x * 2], -1), torch.cat([y.int(), y.long()], 0)), (3, 4), (3, 2)),
    "splits": (lambda x: x.split(3, 1)[1] + x.chunk(3, 1)[0].sum(1, keepdim=True) + x.split([1, 4, 2], 1)[2].sum() + x.unbind(1)[3].sum(), (2, 7)),
    "repeat": (lambda x: x.repeat(2, 1, 3).flip(0, 2).roll(2, 1), (3, 4)),
    "pads": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5).sum((2, 3)) + F.pad(x, (1, 1, 2, 0), mode="reflect")[..., 0].sum(2) + F.pad(x, (2, 0, 1, 1), mode="replicate").mean((2, 3)), (2, 3, 4, 5)),
    "triangles": (lambda x: x.tril() + x.triu(1) * 2, (4, 5)),
    "shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 8, 3, 3)),
    "cast": (lambda x: (x.to(torch.float64) * 2).float() + x.long().float() + (x > 0).to(x.dtype), (3, 4)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 0], [3, 3]]), w), (4, 5)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 2], [1, 1], [3, 0]])) + x.index_select(1, torch.tensor([3, 1])), (3, 4)),
    "index": (lambda x: x[torch.tensor([2, 0])][:, torch.tensor([1, 3, 3])] + x[torch.tensor([[0], [2]]), torch.tensor([1, 2, 0])], (3, 4)),
    "index_inner": (lambda x: x[:, torch.tensor([0, 2]), torch.tensor([3, 1])], (2, 3, 4, 2)),
    "scatter": (lambda x, y: x.scatter(1, torch.tensor([[0], [2], [1]]), y) + x.scatter(1, torch.tensor([[0], [2], [1]]), 0.5), (3, 4), (3, 1)),
    "topk": (lambda x: (*x.topk(2, 1), x.sort(1, descending=True).values), (3, 4)),
    "fills": (lambda x: torch.zeros_like(x) + torch.full((3, 1), 2.5) + torch.full_like(x, 3) + x.new_ones(4) + torch.arange(0, 2, 0.5), (3, 4)),
    "products": (lambda x, y: x @ y + torch.mm(x, y) * 2, (3, 4), (4, 5)),
    "bmm": (lambda x, y: torch.bmm(x, y), (2, 3, 4), (2, 4, 5)),
    "matmul_row": (lambda x, y: torch.matmul(x, y), (2, 3, 4), (4,)),
    "addmm": (lambda z, x, y: torch.addmm(z, x, y, beta=0.5, alpha=2), (5,), (3, 4), (4, 5)),
    "linear3": (lambda x, w, b: F.linear(x, w, b), (2, 3, 4), (5, 4), (5,)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (2, 3, 4), (2, 5, 4)),
    "outer": (lambda x, y: torch.outer(x, y), (3,), (4,)),
    "softmax": (lambda x: x.softmax(1) + F.log_softmax(x, 0), (3, 4)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3) + F.layer_norm(x, (4,)), (2, 3, 4), (3, 4), (3, 4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-4), (2, 3, 4), (4,)),
    "batch_norm": (lambda x, m, v, w, b: F.batch_norm(x, m, v * v + 0.5, w, b), (2, 3, 4), (3,), (3,), (3,), (3,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b) + F.instance_norm(x), (2, 4, 5), (4,), (4,)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1, dilation=2), (2, 3, 9), (4, 3, 3), (4,)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=(1, 0), groups=2), (2, 4, 5, 6), (6, 2, 3, 2)),
    "conv3d": (lambda x, w: F.conv3d(x, w), (1, 2, 3, 4, 4), (3, 2, 2, 2, 2)),
    "conv_transpose": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2), (1, 4, 3, 4), (4, 2, 3, 3), (4,)),
    "pools": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2, padding=1), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)), (2, 3, 6, 8)),
    "pool1d": (lambda x: (F.max_pool1d(x, 3), F.avg_pool1d(x, 2, 1), F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 1)), (2, 3, 9)),
    "resize": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear") + F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True) + F.interpolate(x, size=(7, 9), mode="nearest"), (1, 2, 4, 5)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "attention_mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3), (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), (3, 5)),
    "attention_groups": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
    "attention3": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (2, 3, 4), (2, 5, 4), (2, 5, 4)),
    "truncated": (lambda x: x.trunc() + x.frac() + F.softshrink(x) + F.hardshrink(x, 0.3) + F.threshold(x, 0.1, -2.0) + torch.log2(x * x + 1), (3, 4)),
    "angles": (lambda x, y: torch.atan2(x, y) + torch.hypot(x, y) + torch.lerp(x, y, 0.3) + torch.logaddexp(x, y), (3, 4), (4,)),
    "special": (lambda x, y: torch.isclose(x, y) | (torch.nan_to_num(x / 0) > 1) | (torch.heaviside(x, y) > 0.5), (3, 4), (3, 4)),
    "scatters": (lambda x, y: x.scatter_add(1, torch.tensor([[0], [2], [1]]), y) + x.scatter_reduce(1, torch.tensor([[0], [2], [1]]), y, "prod"), (3, 4), (3, 2)),
    "index_puts": (lambda x, y: x.index_put((torch.tensor([0, 2]), torch.tensor([1, 3])), y) + x.index_put((torch.tensor([1, 1]),), y[0], accumulate=True), (3, 4), (2,)),
    "index_copies": (lambda x, y: x.index_copy(1, torch.tensor([3, 0]), y) + x.index_add(1, torch.tensor([1, 1]), y, alpha=2) + x.slice_scatter(y, 1, 1, 3) + x.select_scatter(y[:, 0], 1, 2), (3, 4), (3, 2)),
    "grid": (lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", True) + F.grid_sample(x, g, "nearest", "border", False), (2, 3, 5, 4), (2, 3, 3, 2)),
    "columns": (lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), (2, 3, 5, 7)),
    "windows": (lambda x: (x.unfold(1, 3, 2), torch.diagonal(x, -1, 0, 2), x[:, 0, :2].trace()), (3, 7, 4)),
    "interleaved": (lambda x: x.repeat_interleave(3, 1) + x.repeat_interleave(3, -1).sum(), (2, 3, 4)),
    "uneven": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)) + F.adaptive_max_pool2d(x, (3, 4)), (2, 3, 7, 9)),
    "factors": (lambda x: (F.interpolate(x, scale_factor=(1.3, 2.4), mode="bilinear"), F.interpolate(x, scale_factor=0.7, mode="nearest"), F.interpolate(x, scale_factor=1.7, mode="nearest-exact"), F.interpolate(x, scale_factor=1.7, mode="bicubic")), (1, 2, 6, 7)),
    "smooth": (lambda x: (F.interpolate(x, (3, 4), mode="bilinear", antialias=True), F.interpolate(x, (4, 3), mode="bicubic", antialias=True)), (1, 2, 9, 8)),
    "distances": (lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, 1.0) + torch.linalg.vector_norm(x, 3, 1, keepdim=True), (3, 4), (5, 4)),
    "ordered": (lambda x: (x.argsort(1), *x.kthvalue(2, 1), torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), x.take(torch.tensor([3, 0]))), (3, 4)),
    "conditions": (lambda x: (x[x > 0].sum(), torch.masked_select(x, x < 0.5).amax()), (3, 4)),
    "in_place": (lambda x, y: (x * 2).add_(y).relu_().mul_(3), (3, 4), (4,)),
}


class Operation(nn.Module):
    """An operation whose operands are inputs, parameters, or results of other nodes."""

    def __init__(self, operation, shapes, role):
        super().__init__()
        self.operation, self.role = operation, role
        self.stored = nn.ParameterList([nn.Parameter(torch.randn(shape), requires_grad=False) for shape in shapes])

    def forward(self, first, *others):
        if self.role == "inputs":
            return self.operation(first, *others)
        if self.role == "parameters":
            return self.operation(*self.stored), first + 1
        return self.operation(first * 1.25, *(other - 0.125 for other in others))


def filled(module):
    """Buffers and norms that are not 0 and 1."""
    for name, value in list(module.named_parameters()) + list(module.named_buffers()):
        if value.is_floating_point() and value.itemsize > 1 and "scale" not in name:
            with torch.no_grad():
                value.copy_(torch.rand_like(value) - 0.3 + ("var" in name))
    return module.eval()


def arrays(program, inputs, module):
    before = {name: value.clone() for name, value in module.named_buffers()}
    out = module(*(value.clone() for value in inputs))
    out = out if isinstance(out, tuple) else (out,)
    names = program.graph_signature
    found = {f"in_{name}": value.numpy() for name, value in zip(names.user_inputs, inputs)}
    # What a buffer becomes is an output too, by its own name or that of the node that makes it.
    made = {buffer: name for name, buffer in names.buffers_to_mutate.items()}
    for name, value in module.named_buffers():
        if not torch.equal(value, before[name]):
            found[f"out_{made.get(name, 'b_' + name)}"] = value.numpy()
    for index, (name, value) in enumerate(zip(names.user_outputs, out)):
        name = name if name not in names.user_outputs[:index] else f"{name}#{index}"
        found[f"out_{name}"] = value.detach().numpy()
    return found


def without_lines(part):
    """Takes out the lines of source that nodes come from, also of graphs in graphs."""
    if isinstance(part, dict):
        if "metadata" in part:
            part["metadata"] = {}
        part = part.values()
    for inner in part:
        if isinstance(inner, (dict, list)):
            without_lines(inner)


def save_plain(program, path):
    """As torch saves it, without sample inputs and the lines of source that nodes come from; the program is compressed."""
    save(program, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if "sample_inputs" not in name}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            if name.endswith(".json"):
                entry.compress_type = zipfile.ZIP_DEFLATED
            if "/models/" in name:
                document = json.loads(data)
                without_lines(document)
                data = json.dumps(document, separators=(",", ":")).encode()
            archive.writestr(entry, data)


def store(folder, wanted):
    os.makedirs(folder, exist_ok=True)
    for name, (module, inputs, sizes) in modules().items():
        if wanted and name not in wanted:
            continue
        module = filled(module)
        program = export(module, inputs, dynamic_shapes=sizes)
        save_plain(program, f"{folder}/{name}.pt2")
        np.savez_compressed(f"{folder}/{name}.npz", **arrays(program, OTHERS.get(name, inputs), module))
        if name in STEERED:
            store_gradients(f"{folder}/{name}.json", module, OTHERS.get(name, inputs))
        if name in ("block", "conv", "places", "writes", "pieces", "edges", "spectra", "solved", "ends", "regions", "counted", "runs", "branches", "ranked", "steps", "rounds", "laid", "margins", "factored", "mapped", "rows", "lengths", "learned", "opened", "triangles", "lone", "kinks", "ties", "doubled", "digits", "thresholded", "chosen"):
            program = program.run_decompositions()
            save_plain(program, f"{folder}/{name}.core.pt2")
            np.savez_compressed(f"{folder}/{name}.core.npz", **arrays(program, OTHERS.get(name, inputs), module))


def store_gradients(path, module, inputs):
    """Of the mean square of what a module gives."""
    module(*inputs).square().mean().backward()
    gradients = {name: param.grad.flatten().tolist() for name, param in module.named_parameters()}
    with open(path, "w") as file:
        json.dump(gradients, file)


def compare(binary, program, inputs, module, name):
    folder = tempfile.mkdtemp()
    save(program, f"{folder}/m.pt2")
    np.savez(f"{folder}/io.npz", **arrays(program, inputs, module))
    io = f"{folder}/io.npz"
    done = subprocess.run([binary, "run", f"{folder}/m.pt2", "-d", "cpu", "--inputs", io, "--expect", io,
                           "--rtol", "1e-4", "--atol", "1e-5"], capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        print(f"{name}: {lines[:4]}", flush=True)
    return done.returncode == 0


def run(binary, wanted):
    good = bad = 0
    for name, (module, inputs, sizes) in modules().items():
        if wanted and name not in wanted:
            continue
        module = filled(module)
        for form in ("exported", "core"):
            program = export(module, inputs, dynamic_shapes=sizes)
            program = program.run_decompositions() if form == "core" else program
            done = compare(binary, program, inputs, module, f"{name} {form}")
            good, bad = good + done, bad + (not done)
    for name, (operation, *shapes) in OPERATIONS.items():
        if wanted and name not in wanted:
            continue
        for role in ("inputs", "parameters", "results"):
            torch.manual_seed(len(name))
            module = Operation(operation, shapes, role).eval()
            if role == "parameters":
                inputs, shown = (torch.randn(1),), None
                module.forward = lambda first, module=module: (*as_tuple(module.operation(*module.stored)), first + 1)
            else:
                inputs = tuple(torch.randn(shape) for shape in shapes)
            for form in ("exported", "core"):
                program = export(module, inputs)
                program = program.run_decompositions() if form == "core" else program
                done = compare(binary, program, inputs, module, f"{name} {role} {form}")
                good, bad = good + done, bad + (not done)
    print("equal", good, "not", bad)
    return bad


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


if __name__ == "__main__":
    torch.manual_seed(3)
    torch.set_num_threads(1)
    if sys.argv[1] == "store":
        store(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(run(sys.argv[2], sys.argv[3:]) > 0)
