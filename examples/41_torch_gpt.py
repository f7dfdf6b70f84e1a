"""Train a small GPT of PyTorch, with dropout, by `torch.compile` and a backend."""

import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional

import memcfg.torch as mt

WIDTH, HEADS, WORDS, LENGTH = 64, 4, 96, 32


class Layer(nn.Module):
    """Attention to what was before, then two dense layers."""

    def __init__(self):
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            each.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for each in self.qkv(self.norm(x)).split(WIDTH, 2)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        inner = functional.gelu(self.wide(self.last_norm(x)))
        return x + self.dropout(self.narrow(inner))


class GPT(nn.Module):
    """Predicts each next word; gives the loss, so that it is planned as well."""

    def __init__(self):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(LENGTH, WIDTH),
        )
        self.layers = nn.Sequential(*(Layer() for _ in range(2)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, following):
        x = self.layers(self.words(words) + self.places.weight)
        return functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


torch.manual_seed(0)
model = GPT()
text = torch.randint(0, WORDS, (16, LENGTH + 1))
words, following = text[:, :-1], text[:, 1:]
told = mt.estimate(model, (words, following))
limit = (told.floor_bytes + told.peak_bytes) // 2

run = torch.compile(model, backend=mt.backend(limit), dynamic=False, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = run(words, following)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
