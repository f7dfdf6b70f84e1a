"""Convolutions, pooling and normalisation beside PyTorch's own modules."""

from __future__ import annotations

import numpy as np
import pytest
from beside_torch import MARKS, agree, array, channels_first, close, nn, torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytestmark = MARKS
F = torch.nn.functional
switch = st.booleans()


def drawn(count):
    phases = (Phase.explicit, Phase.generate)  # to shrink takes minutes
    return settings(max_examples=count, deadline=None, phases=phases)


@st.composite
def shapes(draw, rank, channels=(2, 4)):
    sizes = draw(st.tuples(*[st.integers(5, 8)] * rank))
    return (*sizes, draw(st.sampled_from(channels)))


def kernel(module):
    """Kernel and bias: PyTorch has the channels before the window."""
    weight = np.moveaxis(array(module.weight), (0, 1), (-1, -2))
    return [weight] if module.bias is None else [weight, array(module.bias)]


def padding_layer(rank, sides):
    return getattr(nn, f"ZeroPadding{rank}D")(sides[0] if rank == 1 else sides)


@pytest.mark.parametrize("rank", [1, 2])
@drawn(12)
@given(data=st.data())
def test_convolution(rank, data):
    """PyTorch's padding is the same on both sides: ZeroPadding and `valid` here."""
    shape = data.draw(shapes(rank))
    numbers = st.tuples(*[st.integers(1, 3)] * rank)
    size, sides = data.draw(numbers), data.draw(st.tuples(*[st.integers(0, 2)] * rank))
    dilated, bias = data.draw(switch), data.draw(switch)
    groups = data.draw(st.sampled_from([1, 2]))
    options = {"groups": groups}
    if dilated:
        options["dilation"] = data.draw(st.tuples(*[st.integers(1, 2)] * rank))
    else:
        options["stride"] = data.draw(st.integers(1, 3))
    module = getattr(torch.nn, f"Conv{rank}d")(
        shape[-1], 4, size, padding=sides, bias=bias, **options
    )
    convolution = getattr(nn, f"Conv{rank}D")(
        4,
        size,
        strides=options.get("stride", 1),
        dilation_rate=options.get("dilation", 1),
        groups=groups,
        use_bias=bias,
    )
    agree(
        lambda x: convolution(padding_layer(rank, sides)(x)),
        module,
        kernel,
        shape,
        call=channels_first(module),
    )


@drawn(8)
@given(data=st.data())
def test_convolution_of_the_same_size(data):
    shape, groups = data.draw(shapes(2)), data.draw(st.sampled_from([1, 2]))
    size = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = data.draw(st.integers(1, 2))
    module = torch.nn.Conv2d(
        *(shape[-1], 4, size), padding="same", dilation=dilation, groups=groups
    )
    layer = nn.Conv2D(4, size, padding="same", dilation_rate=dilation, groups=groups)
    agree(layer, module, kernel, shape, call=channels_first(module))


@drawn(6)
@given(data=st.data())
def test_causal_convolution(data):
    shape, size = data.draw(shapes(1)), data.draw(st.integers(1, 4))
    dilation = data.draw(st.integers(1, 2))
    module = torch.nn.Conv1d(shape[-1], 4, size, dilation=dilation)
    first = channels_first(module)
    agree(
        nn.Conv1D(4, size, padding="causal", dilation_rate=dilation),
        module,
        kernel,
        shape,
        call=lambda x: first(F.pad(x, (0, 0, (size - 1) * dilation, 0))),
    )


@pytest.mark.parametrize("rank", [1, 2])
@drawn(8)
@given(data=st.data())
def test_transposed_convolution(rank, data):
    """Keras keeps what a stride wider than the kernel adds; PyTorch names it."""
    shape, bias = data.draw(shapes(rank)), data.draw(switch)
    size, strides = (
        data.draw(st.tuples(*[st.integers(1, 3)] * rank)) for _ in range(2)
    )
    rest = [max(s - k, 0) for k, s in zip(size, strides, strict=True)]
    kind = f"ConvTranspose{rank}d"
    module = getattr(torch.nn, kind)(
        shape[-1], 3, size, strides, output_padding=rest, bias=bias
    )
    layer = getattr(nn, f"Conv{rank}DTranspose")(3, size, strides, use_bias=bias)

    def weights(module):  # here the inputs' channels come last
        first, *others = kernel(module)
        return [np.moveaxis(first, -1, -2).swapaxes(-1, -2), *others]

    # PyTorch 2.13 breaks its heap by oneDNN where a kernel is narrower than its stride.
    with torch.backends.mkldnn.flags(enabled=False):
        agree(layer, module, weights, shape, call=channels_first(module))


def of_each_channel(module, multiplier):
    weight = array(module.weight)
    channels, window = len(weight) // multiplier, weight.shape[2:]
    weight = weight.reshape(channels, multiplier, *window)
    return [np.moveaxis(weight, (0, 1), (-2, -1)), *(kernel(module)[1:])]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("separable", [False, True])
@drawn(5)
@given(data=st.data())
def test_convolution_of_each_channel(rank, separable, data):
    shape, multiplier = data.draw(shapes(rank)), data.draw(st.integers(1, 2))
    size, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    convolution = getattr(torch.nn, f"Conv{rank}d")
    wide = shape[-1] * multiplier
    depthwise = convolution(
        *(shape[-1], wide, size, stride), groups=shape[-1], bias=not separable
    )
    options = {"strides": stride, "depth_multiplier": multiplier}
    if not separable:
        agree(
            getattr(nn, f"DepthwiseConv{rank}D")(size, **options),
            depthwise,
            lambda module: of_each_channel(module, multiplier),
            shape,
            call=channels_first(depthwise),
        )
        return
    both = torch.nn.Sequential(depthwise, convolution(wide, 5, 1))
    agree(
        getattr(nn, f"SeparableConv{rank}D")(5, size, **options),
        both,
        lambda both: [*of_each_channel(both[0], multiplier), *kernel(both[1])],
        shape,
        call=channels_first(both),
    )


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["Max", "Average"])
@drawn(6)
@given(data=st.data())
def test_pooling(rank, kind, data):
    shape = data.draw(shapes(rank))
    size, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    name = {"Max": "MaxPool", "Average": "AvgPool"}[kind]
    module = getattr(torch.nn, f"{name}{rank}d")(size, stride)
    layer = getattr(nn, f"{kind}Pooling{rank}D")(size, stride)
    agree(layer, module, lambda _: [], shape, call=channels_first(module))


@pytest.mark.parametrize("kind", ["Max", "Average"])
@drawn(6)
@given(data=st.data())
def test_pooling_over_the_borders(kind, data):
    """`same`: one more at the end than before; padding counts in no mean."""
    shape, stride = data.draw(shapes(2)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(stride, 4))
    sides = []
    for length in reversed(shape[:2]):
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        sides += [total // 2, total - total // 2]

    def pool(x):
        if kind == "Max":
            return F.max_pool2d(F.pad(x, sides, value=-torch.inf), size, stride)
        ones = F.pad(torch.ones_like(x), sides)
        sums = F.avg_pool2d(F.pad(x, sides), size, stride)
        return sums / F.avg_pool2d(ones, size, stride)

    layer = getattr(nn, f"{kind}Pooling2D")(size, stride, padding="same")
    nothing = torch.nn.Identity()
    agree(layer, nothing, lambda _: [], shape, call=channels_first(pool))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["Max", "Average"])
def test_global_pooling(rank, kind):
    name = {"Max": "AdaptiveMaxPool", "Average": "AdaptiveAvgPool"}[kind]
    module = getattr(torch.nn, f"{name}{rank}d")(1)
    layer = getattr(nn, f"Global{kind}Pooling{rank}D")(keepdims=True)
    shape = (6, 5, 4)[2 - rank :]
    agree(layer, module, lambda _: [], shape, call=channels_first(module))


@drawn(6)
@given(
    shape=shapes(2),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    interpolation=st.sampled_from(["nearest", "bilinear"]),
)
def test_upsampling(shape, size, interpolation):
    module = torch.nn.Upsample(scale_factor=size, mode=interpolation)
    layer = nn.UpSampling2D(size, interpolation=interpolation)
    agree(layer, module, lambda _: [], shape, call=channels_first(module))


def scale_and_shift(module):
    return [array(e) for e in (module.weight, module.bias) if e is not None]


@drawn(15)
@given(
    shape=shapes(2, channels=(1, 2, 5, 12)),
    radius=st.integers(0, 6),
    bias=st.floats(0.5, 3),
    alpha=st.floats(0, 1),
    beta=st.floats(0.1, 2),
)
def test_local_response_normalization(shape, radius, bias, alpha, beta):
    """TensorFlow's `alpha` is of each neighbour, PyTorch's of all of them."""
    size = 2 * radius + 1
    module = torch.nn.LocalResponseNorm(size, alpha * size, beta, bias)
    layer = nn.LocalResponseNormalization(radius, bias, alpha, beta)
    agree(layer, module, lambda _: [], shape, call=channels_first(module))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_normalization(rank, affine):
    """PyTorch's variance that moves is the unbiased one, n / (n - 1) of Keras's."""
    shape, samples, keep, epsilon = (6, 5, 4)[2 - rank :], 4, 0.8, 1e-3
    kind = getattr(torch.nn, f"BatchNorm{rank}d")
    module = kind(shape[-1], epsilon, 1 - keep, affine=affine)
    layer = nn.BatchNormalization(
        momentum=keep, epsilon=epsilon, center=affine, scale=affine
    )
    n = samples * int(np.prod(shape[:-1]))
    steps = [0]

    def weights(module):
        start = keep ** steps[0]  # what is left of the ones at the beginning
        variance = start + (array(module.running_var) - start) * (n - 1) / n
        return [*scale_and_shift(module), array(module.running_mean), variance]

    first = channels_first(module)

    def call(x):
        if torch.is_grad_enabled():
            steps[0] += 1
            return first(x)
        return x  # only its shape is asked for

    agree(layer, module, weights, shape, call=call, samples=samples)


@drawn(8)
@given(shape=shapes(2), samples=st.integers(1, 3), seed=st.integers(0, 99))
def test_batch_normalization_at_rest(shape, samples, seed):
    module = torch.nn.BatchNorm2d(shape[-1], 1e-3)
    random = np.random.default_rng(seed)
    values = random.uniform(0.5, 2, (4, shape[-1])).astype(np.float32)
    places = (module.weight, module.bias, module.running_mean, module.running_var)
    with torch.no_grad():
        for place, value in zip(places, values, strict=True):
            place.copy_(torch.from_numpy(value))
    model = nn.Sequential([nn.Input(shape), nn.BatchNormalization()])
    model.set_weights(list(values))
    x = random.normal(size=(samples, *shape)).astype(np.float32)
    wanted = channels_first(module.eval())(torch.from_numpy(x))
    close(model.predict(x, verbose=0), array(wanted))
    model.close()


@drawn(8)
@given(shape=shapes(2, channels=(1, 3, 8)), axes=st.integers(1, 3), affine=switch)
def test_layer_normalization(shape, axes, affine):
    module = torch.nn.LayerNorm(shape[-axes:], 1e-3, elementwise_affine=affine)
    axis = list(range(-axes, 0))
    layer = nn.LayerNormalization(axis, center=affine, scale=affine)
    agree(layer, module, scale_and_shift, shape)


@drawn(8)
@given(
    shape=shapes(2, channels=(4, 8)),
    groups=st.sampled_from([1, 2, 4, -1]),
    affine=switch,
)
def test_group_normalization(shape, groups, affine):
    """As many groups as channels is instance normalisation."""
    channels = shape[-1]
    count = channels if groups == -1 else groups
    module = torch.nn.GroupNorm(count, channels, 1e-3, affine=affine)
    layer = nn.GroupNormalization(groups, center=affine, scale=affine)
    agree(layer, module, scale_and_shift, shape, call=channels_first(module))
