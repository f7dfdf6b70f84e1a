"""NASNet, whose cells were found by a search, for images of ImageNet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn.applications._application import Application, Arguments
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, RemoteFile
from memcfg.nn.applications._shared_layers import head, normalized, padded
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import (
    Activation,
    AveragePooling2D,
    Concatenate,
    Conv2D,
    Cropping2D,
    MaxPooling2D,
    SeparableConv2D,
    ZeroPadding2D,
    add,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["NASNetLarge", "NASNetMobile", "decode_predictions", "preprocess_input"]

_NORMALIZATION: dict[str, Any] = {"momentum": 0.9997, "epsilon": 1e-3}


class _Variant(NamedTuple):
    """One of the networks."""

    word: str  # in names
    size: int  # the height and width of images
    stem: int  # channels of the first convolution
    filters: int  # of the first cells
    cells: int  # between reductions
    skips: bool  # whether the cell after a reduction gets what came before its input
    hashes: tuple[str, str]  # MD5s of the files


def _rectified(x: SymbolicTensor, name: str | None = None) -> SymbolicTensor:
    result: SymbolicTensor = Activation("relu", name=name)(x)
    return result


def _pointwise(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
    """Append a convolution of single pixels."""
    result: SymbolicTensor = Conv2D(
        filters,
        1,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )(x)
    return result


def _separable(
    x: SymbolicTensor, filters: int, size: int, name: str, strides: int = 1
) -> SymbolicTensor:
    """Append two separable convolutions, each after ReLU."""
    for i in (1, 2):
        x = _rectified(x)
        padding = "same"
        if strides > 1 and i == 1:
            x = padded(x, size, f"separable_conv_1_pad_{name}")
            padding = "valid"
        x = SeparableConv2D(
            filters,
            size,
            strides if i == 1 else 1,
            padding,
            use_bias=False,
            name=f"separable_conv_{i}_{name}",
        )(x)
        x = normalized(x, f"separable_conv_{i}_bn_{name}", **_NORMALIZATION)
    return x


def _adjusted(
    before: SymbolicTensor, filters: int, name: str, halves: bool
) -> SymbolicTensor:
    """Append what gives an earlier result the size and channels of the last one."""
    if halves:
        before = _rectified(before, f"adjust_relu_1_{name}")
        moved = ZeroPadding2D(((0, 1), (0, 1)))(before)
        moved = Cropping2D(((1, 0), (1, 0)))(moved)
        halved = []
        for i, each in enumerate((before, moved), 1):
            each = AveragePooling2D(1, 2, name=f"adjust_avg_pool_{i}_{name}")(each)
            halved.append(_pointwise(each, filters // 2, f"adjust_conv_{i}_{name}"))
        before = Concatenate()(halved)
    elif before.sample_shape[-1] != filters:
        before = _rectified(before)
        before = _pointwise(before, filters, f"adjust_conv_projection_{name}")
    else:
        return before
    return normalized(before, f"adjust_bn_{name}", **_NORMALIZATION)


def _begun(x: SymbolicTensor, filters: int, kind: str, name: str) -> SymbolicTensor:
    """Append what the last result goes through in a cell."""
    x = _pointwise(_rectified(x), filters, f"{kind}_conv_1_{name}")
    return normalized(x, f"{kind}_bn_1_{name}", **_NORMALIZATION)


def _average(x: SymbolicTensor, name: str) -> SymbolicTensor:
    result: SymbolicTensor = AveragePooling2D(3, 1, "same", name=name)(x)
    return result


def _normal(
    x: SymbolicTensor, p: SymbolicTensor, filters: int, name: str
) -> SymbolicTensor:
    """Append a cell that keeps the size: figure 4 of the paper."""
    h = _begun(x, filters, "normal", name)
    convolved = partial(_separable, filters=filters)
    parts = [
        (
            convolved(h, size=5, name=f"normal_left1_{name}"),
            convolved(p, size=3, name=f"normal_right1_{name}"),
        ),
        (
            convolved(p, size=5, name=f"normal_left2_{name}"),
            convolved(p, size=3, name=f"normal_right2_{name}"),
        ),
        (_average(h, f"normal_left3_{name}"), p),
        (_average(p, f"normal_left4_{name}"), _average(p, f"normal_right4_{name}")),
        (convolved(h, size=3, name=f"normal_left5_{name}"), h),
    ]
    sums = [
        add([*pair], name=f"normal_add_{i}_{name}") for i, pair in enumerate(parts, 1)
    ]
    result: SymbolicTensor = Concatenate(name=f"normal_concat_{name}")([p, *sums])
    return result


def _reduction(
    x: SymbolicTensor, p: SymbolicTensor, filters: int, name: str
) -> SymbolicTensor:
    """Append a cell that halves the size: figure 4 of the paper."""
    h = _begun(x, filters, "reduction", name)
    wide = padded(h, 3, f"reduction_pad_1_{name}")
    halved = partial(_separable, filters=filters, strides=2)
    first = add(
        [
            halved(h, size=5, name=f"reduction_left1_{name}"),
            halved(p, size=7, name=f"reduction_right1_{name}"),
        ],
        name=f"reduction_add_1_{name}",
    )
    largest = MaxPooling2D(3, 2, name=f"reduction_left2_{name}")(wide)
    right = halved(p, size=7, name=f"reduction_right2_{name}")
    second = add([largest, right], name=f"reduction_add_2_{name}")
    mean = AveragePooling2D(3, 2, name=f"reduction_left3_{name}")(wide)
    right = halved(p, size=5, name=f"reduction_right3_{name}")
    third = add([mean, right], name=f"reduction_add3_{name}")
    fourth = add([second, _average(first, f"reduction_left4_{name}")])
    left = _separable(first, filters, 3, f"reduction_left4_{name}")
    largest = MaxPooling2D(3, 2, name=f"reduction_right5_{name}")(wide)
    fifth = add([left, largest], name=f"reduction_add4_{name}")
    result: SymbolicTensor = Concatenate(name=f"reduction_concat_{name}")(
        [second, third, fourth, fifth]
    )
    return result


def _body(variant: _Variant, x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    x = Conv2D(
        variant.stem,
        3,
        2,
        use_bias=False,
        kernel_initializer="he_normal",
        name="stem_conv1",
    )(x)
    x = normalized(x, "stem_bn1", **_NORMALIZATION)
    filters, count = variant.filters, variant.cells
    before = x, _reduction(x, x, filters // 4, "stem_1")
    before = before[1], _reduced(*before, filters // 2, "stem_2")
    halves = True  # whether the earlier result is twice as large as the last
    for stage in range(3):
        if stage:
            name = f"reduce_{stage * count}"
            made = _reduced(*before, filters << stage, name, halves)
            before = before[0] if variant.skips else before[1], made
            halves = True
        for i in range(count):
            p, x = before
            name = f"{stage * count + i + bool(stage)}"
            p = _adjusted(p, filters << stage, name, halves)
            before, halves = (x, _normal(x, p, filters << stage, name)), False
    return _rectified(before[1])


def _reduced(
    before: SymbolicTensor,
    x: SymbolicTensor,
    filters: int,
    name: str,
    halves: bool = True,
) -> SymbolicTensor:
    """Append a cell that halves the size, with an adjusted earlier result."""
    return _reduction(x, _adjusted(before, filters, name, halves), filters, name)


def _nasnet(
    application: Application,
    input_shape: Sequence[int | None] | None = None,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str | None = None,
) -> Model:
    return classifier(
        application,
        include_top,
        weights,
        input_tensor,
        input_shape,
        pooling,
        classes,
        classifier_activation,
        name,
    )


def _files(variant: _Variant) -> tuple[RemoteFile, RemoteFile]:
    word = variant.word.lower()
    url, name = f"{APPLICATIONS}nasnet/NASNet-{word}", f"nasnet_{word}"
    return (
        RemoteFile(f"{url}.h5", variant.hashes[0], f"{name}.h5"),
        RemoteFile(f"{url}-no-top.h5", variant.hashes[1], f"{name}_no_top.h5"),
    )


_VARIANTS = (
    _Variant(
        *("Mobile", 224, 32, 44, 4, False),
        ("020fb642bf7360b370c678b08e0adf61", "1ed92395b5b598bdda52abe5c0dbfd63"),
    ),
    _Variant(
        *("Large", 331, 96, 168, 6, True),
        ("11577c9a518f0070763c2b964a382f17", "d81d89dc07e6e56530c4e77faddd61b5"),
    ),
)

NASNetMobile, NASNetLarge = (
    constructor(
        __name__,
        _nasnet,
        Application(
            function=f"NASNet{variant.word}",
            about=f"the {variant.word.lower()} NASNet-A, of cells found by a search",
            reference=(
                'Zoph, Vasudevan, Shlens and Le, "Learning transferable architectures '
                'for scalable image recognition", CVPR 2018.'
            ),
            name=f"nasnet_{variant.word.lower()}",
            size=variant.size,
            known_size=True,  # padding differs for odd lengths
            body=partial(_body, variant),
            head=partial(head, top=None),
            files=_files(variant),
        ),
    )
    for variant in _VARIANTS
)
