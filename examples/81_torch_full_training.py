"""Train a GPT in full in less memory than its weights, gradients and AdamW's state.

With the argument full: 124 M parameters within 1 GiB. full plain: PyTorch by itself.
"""

import sys
import tempfile
import time
from hashlib import sha256

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, linear
from torch.nn.functional import scaled_dot_product_attention as attention

import memcfg.torch as mt
from memcfg.units import format_bytes

SIZES = {"small": (128, 2, 2048, 32), "full": (768, 12, 50257, 64)}


class Block(nn.Module):
    """Attention and two dense layers."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).unflatten(2, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        seen = attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2, whose output layer has the weights of its embedding."""

    def __init__(self, width, layers, words):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x, y):
        inner = self.words(x) + self.places(torch.arange(x.shape[1]))
        logits = linear(self.norm(self.blocks(inner)), self.words.weight)
        return cross_entropy(logits.flatten(0, 1), y.flatten())


size = sys.argv[1] if len(sys.argv) > 1 else "small"
width, layers, words, length = SIZES[size]
limit = "8GiB" if "plain" in sys.argv else "1GiB"
process = mt.limit_process(limit, above_now=True, enforce=size == "full")
torch.manual_seed(0)
model = GPT(width, layers, words)
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
tokens = torch.randint(0, words, (1, length + 1))
needs = format_bytes(4 * sum(each.nbytes for each in model.parameters()))
with tempfile.TemporaryDirectory(dir=".") as folder:
    if "plain" not in sys.argv:
        away = ("optimizer_state", "gradients", "weights")
        mt.budget(model, process, optimizer=optimizer, spill_to=folder, offload=away)
    losses, began = [], time.perf_counter()
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - began) / 10
    print(process if "plain" in sys.argv else mt.get_budget(model).memory_report())
    weights = b"".join(sha256(p.detach().numpy()).digest() for p in model.parameters())
print(f"weights, gradients and state: {needs}; {seconds:.2f} s a step")
print("losses", losses, "weights", sha256(weights).hexdigest()[:16])
assert losses[-1] < losses[0]
