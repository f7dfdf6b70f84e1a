"""Fine-tune a Llama by LoRA in less memory than its weights, which stay in their file.

With the argument full: 1.1 B parameters in bfloat16 within 1.5 GiB above the imports.
"""

import sys
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, linear, rms_norm, silu
from torch.nn.functional import scaled_dot_product_attention as attention

import memcfg.torch as mt


class Linear(nn.Linear):  # frozen weights, cast for the product, and LoRA beside them
    def __init__(self, n, m):
        super().__init__(n, m, bias=False, device="meta")
        self.lora = nn.Sequential(nn.Linear(n, 8, False), nn.Linear(8, m, False))
        nn.init.zeros_(self.lora[1].weight)

    def forward(self, x):
        return linear(x, self.weight.to(x.dtype)) + self.lora(x)


class Block(nn.Module):
    def __init__(self, w, inner):
        super().__init__()
        sizes = [(w, w), (w, w // 8), (w, w // 8), (w, w), (w, inner), (w, inner)]
        self.parts = nn.ModuleList(Linear(*size) for size in (*sizes, (inner, w)))

    def forward(self, x, cos, sin):
        q, k, v, out, gate, up, down = self.parts
        h = rms_norm(x, x.shape[2:])
        q, k, v = (f(h).unflatten(2, (-1, 64)).transpose(1, 2) for f in (q, k, v))
        q, k = (each * cos + each.roll(32, 3) * sin for each in (q, k))
        seen = attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + out(seen.transpose(1, 2).flatten(2))
        h = rms_norm(x, x.shape[2:])
        return x + down(silu(gate(h)) * up(h))


class Llama(nn.Module):
    def __init__(self, width, layers, inner, words):
        super().__init__()
        self.words = nn.Embedding(words, width, device="meta")
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(layers))
        self.head = Linear(width, words)

    def forward(self, x, y):
        turn = torch.outer(torch.arange(x.shape[1]), 1e4 ** (torch.arange(32) / -32))
        cos, sin = turn.cos().repeat(1, 2), torch.cat((-turn.sin(), turn.sin()), 1)
        h = self.words(x).float()
        for block in self.blocks:
            h = block(h, cos, sin)
        return cross_entropy(self.head(rms_norm(h, h.shape[2:]))[0], y[0])


process = mt.limit_process("1.5GiB", above_now=True, enforce=len(sys.argv) > 1)
model = Llama(*((2048, 22, 5632, 32000) if sys.argv[1:] else (512, 2, 1024, 2048)))
tokens, losses = torch.randint(0, model.words.num_embeddings, (1, 33)), []
optimizer = torch.optim.AdamW([p for p in model.parameters() if not p.is_meta], 1e-3)
with tempfile.TemporaryDirectory(dir=".") as folder:
    names = [name for name, p in model.named_parameters() if p.is_meta]
    for name in names:  # random weights, a file for each
        weight = torch.randn(model.get_parameter(name).shape).mul(0.02).bfloat16()
        save_file({name: weight}, f"{folder}/{name}")
    mt.map_weights(model, [f"{folder}/{name}" for name in names])
    mt.budget(model, process, optimizer=optimizer)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(mt.get_budget(model).memory_report(), losses)
assert losses[-1] < losses[0]
