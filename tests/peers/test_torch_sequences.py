"""Recurrent, attention, embedding layers and activations beside PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
from beside_torch import MARKS, agree, array, close, dense, nn, torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytestmark = MARKS
F = torch.nn.functional
switch, length = st.booleans(), st.integers(1, 4)


def drawn(count):
    phases = (Phase.explicit, Phase.generate)  # to shrink takes minutes
    return settings(max_examples=count, deadline=None, phases=phases)


class Recurrent(torch.nn.Module):
    """A layer of PyTorch's with the one bias that Keras's has, where it has one."""

    def __init__(self, kind, units, features, bias, sequences, **options):
        super().__init__()
        self.kind, self.sequences = kind, sequences
        self.of = getattr(torch.nn, "RNN" if kind == "SimpleRNN" else kind)(
            features, units, bias=bias, batch_first=True, **options
        )
        if bias and kind != "GRU":
            for name, each in self.of.named_parameters():
                if name.startswith("bias_hh"):  # a second one, added to the first
                    each.requires_grad_(False).zero_()

    def parameters(self, recurse=True):
        return [each for each in super().parameters(recurse) if each.requires_grad]

    def forward(self, x):
        y, _ = self.of(x)
        units = self.of.hidden_size
        if self.sequences:
            return y
        if not self.of.bidirectional:
            return y[:, -1]
        return torch.cat([y[:, -1, :units], y[:, 0, units:]], -1)

    def in_order(self):
        """Kernel, recurrent kernel and bias of each direction; z before r in GRU."""
        found = []
        for suffix in ("", "_reverse") if self.of.bidirectional else ("",):

            def take(name, suffix=suffix):
                value = array(getattr(self.of, f"{name}_l0{suffix}"))
                if self.kind == "GRU":
                    r, z, n = np.split(value, 3)
                    value = np.concatenate([z, r, n])
                return value

            found += [take("weight_ih").T, take("weight_hh").T]
            if self.of.bias:
                biases = [take("bias_ih")]
                if self.kind == "GRU":
                    biases = [np.stack([take("bias_ih"), take("bias_hh")])]
                found += biases
        return found


@st.composite
def recurrent(draw):
    """Ours and PyTorch's, of the same arguments, and a shape."""
    kind = draw(st.sampled_from(["SimpleRNN", "LSTM", "GRU"]))
    units, shape = draw(length), (draw(st.integers(1, 6)), draw(length))
    bias, sequences = draw(switch), draw(switch)
    both = {"use_bias": bias, "return_sequences": sequences, "unroll": draw(switch)}
    options = {}
    if kind == "SimpleRNN":
        both["activation"] = options["nonlinearity"] = draw(
            st.sampled_from(["tanh", "relu"])
        )
    theirs = (kind, units, shape[1], bias, sequences)
    return getattr(nn, kind)(units, **both), theirs, options, shape


@drawn(20)
@given(case=recurrent())
def test_recurrent_layers(case):
    layer, theirs, options, shape = case
    module = Recurrent(*theirs, **options)
    agree(layer, module, Recurrent.in_order, shape)


@drawn(10)
@given(case=recurrent())
def test_both_directions(case):
    layer, theirs, options, shape = case
    module = Recurrent(*theirs, bidirectional=True, **options)
    agree(nn.Bidirectional(layer), module, Recurrent.in_order, shape)


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
@drawn(5)
@given(lengths=st.lists(st.integers(1, 5), min_size=3, max_size=3), units=length)
def test_sequences_of_many_lengths(kind, lengths, units):
    """A mask here, packed sequences there."""
    steps, features = 5, 3
    random = np.random.default_rng(0)
    x = random.normal(size=(3, steps, features)).astype(np.float32)
    for row, count in zip(x, lengths, strict=True):
        row[count:] = 0
    module = Recurrent(kind, units, features, True, False)
    layers = [nn.Input((steps, features)), nn.Masking(), getattr(nn, kind)(units)]
    model = nn.Sequential(layers)
    model.set_weights(module.in_order())
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.from_numpy(x), lengths, batch_first=True, enforce_sorted=False
    )
    _, states = module.of(packed)
    wanted = states[0] if kind == "LSTM" else states
    close(model.predict(x, verbose=0), array(wanted[0]))
    model.close()


class Attention(torch.nn.Module):
    """Self-attention of PyTorch's, whose query, key and value are one product."""

    def __init__(self, heads, wide, bias, causal):
        super().__init__()
        self.of = torch.nn.MultiheadAttention(wide, heads, bias=bias, batch_first=True)
        self.causal = causal

    def forward(self, x):
        steps = x.shape[1]
        mask = None
        if self.causal:
            mask = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        return self.of(x, x, x, attn_mask=mask, need_weights=False)[0]

    def in_order(self):
        heads, wide = self.of.num_heads, self.of.embed_dim
        each = wide // heads
        found = []
        biases = [None] * 3
        if self.of.in_proj_bias is not None:
            biases = np.split(array(self.of.in_proj_bias), 3)
        kernels = np.split(array(self.of.in_proj_weight), 3)
        for weight, bias in zip(kernels, biases, strict=True):
            found.append(weight.T.reshape(wide, heads, each))
            if bias is not None:
                found.append(bias.reshape(heads, each))
        found.append(array(self.of.out_proj.weight).T.reshape(heads, each, wide))
        if self.of.out_proj.bias is not None:
            found.append(array(self.of.out_proj.bias))
        return found


@drawn(15)
@given(
    steps=st.integers(1, 6), heads=st.integers(1, 3), each=length, bias=switch,
    causal=switch,
)  # fmt: skip
def test_attention_of_many_heads(steps, heads, each, bias, causal):
    module = Attention(heads, heads * each, bias, causal)
    layer = nn.MultiHeadAttention(heads, each, use_bias=bias)
    agree(
        lambda x: layer(x, x, use_causal_mask=causal),
        module,
        Attention.in_order,
        (steps, heads * each),
    )


@drawn(10)
@given(steps=st.integers(1, 6), features=length, causal=switch)
def test_attention_of_products(steps, features, causal):
    layer = nn.Attention()
    agree(
        lambda x: layer([x, x], use_causal_mask=causal),
        torch.nn.Identity(),
        lambda _: [],
        (steps, features),
        call=lambda x: F.scaled_dot_product_attention(
            x, x, x, is_causal=causal, scale=1.0
        ),
    )


@drawn(8)
@given(rows=st.integers(1, 9), columns=length, steps=length, dtype=st.sampled_from(
    ["int32", "float32"]
))  # fmt: skip
def test_embedding(rows, columns, steps, dtype):
    random = np.random.default_rng(rows)
    x, labels = random.integers(0, rows, (4, steps)), random.integers(0, 3, 4)
    table = torch.nn.Embedding(rows, columns)
    head = torch.nn.Linear(steps * columns, 3)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.1)
    loss = torch.nn.CrossEntropyLoss()
    layers = [nn.Input((steps,), dtype=dtype), nn.Embedding(rows, columns)]
    model = nn.Sequential([*layers, nn.Flatten(), nn.Dense(3)])

    def theirs():
        return [array(table.weight), *dense(head)]

    model.set_weights([each.copy() for each in theirs()])
    model.compile(nn.SGD(0.1), nn.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(10):
        optimizer.zero_grad()
        wanted = loss(head(table(torch.from_numpy(x)).flatten(1)), torch.tensor(labels))
        wanted.backward()
        optimizer.step()
        close(model.train_on_batch(x.astype(dtype), labels), wanted.item())
        for a, b in zip(model.get_weights(), theirs(), strict=True):
            close(a, b)
    model.close()


ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "hard_sigmoid": F.hardsigmoid,
    "hard_silu": F.hardswish,
    "tanh": torch.tanh,
    "hard_tanh": F.hardtanh,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "exponential": torch.exp,
    "linear": lambda x: x,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "log_sigmoid": F.logsigmoid,
    "tanh_shrink": F.tanhshrink,
    "soft_shrink": F.softshrink,
    "hard_shrink": F.hardshrink,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@drawn(3)
@given(shape=st.lists(length, min_size=1, max_size=3).map(tuple))
def test_activation(name, shape):
    nothing = torch.nn.Identity()
    layer = nn.Activation(name)
    agree(layer, nothing, lambda _: [], shape, call=ACTIVATIONS[name])


def test_gelu_by_tanh():
    nothing, shape = torch.nn.Identity(), (4, 6)

    def layer(x):
        return nn.activations.gelu(x, approximate=True)

    def call(x):
        return F.gelu(x, approximate="tanh")

    agree(layer, nothing, lambda _: [], shape, call=call)


LAYERS = {
    "leaky": (lambda: nn.LeakyReLU(0.25), lambda x: F.leaky_relu(x, 0.25)),
    "elu": (lambda: nn.ELU(0.7), lambda x: F.elu(x, 0.7)),
    "softmax": (lambda: nn.Softmax(axis=1), lambda x: F.softmax(x, 1)),
    "relu of bounds": (lambda: nn.ReLU(1.5), lambda x: x.clamp(0, 1.5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_activation_layer(name):
    make, call = LAYERS[name]
    agree(make(), torch.nn.Identity(), lambda _: [], (4, 6), call=call)


@drawn(4)
@given(steps=length, channels=length)
def test_relu_with_slopes(steps, channels):
    module = torch.nn.PReLU(channels)

    def call(x):
        return module(x.movedim(-1, 1)).movedim(1, -1)

    def weights(module):
        return [array(module.weight)[None]]

    layer = nn.PReLU(shared_axes=[1])
    agree(layer, module, weights, (steps, channels), call=call)
