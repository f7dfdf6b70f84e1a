"""Layers with channels first compute what those with channels last do."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import memcfg as mc
from memcfg.nn import layers

nn = mc.nn
SHAPES = {1: (6, 4), 2: (6, 5, 4), 3: (4, 6, 5, 2)}  # with channels last
FIRST = {
    "Conv": (4, 2),
    "Convolution": (4, 2),
    "DepthwiseConv": (2,),
    "SeparableConv": (4, 2),
    "SpatialDropout": (0.5,),
    "Adaptive": (2,),
    "STFTSpectrogram": ("real", 4),
}
NAMES = sorted(
    name
    for name, kind in vars(layers).items()
    if inspect.isclass(kind)
    and not name.startswith("_")
    and "data_format" in inspect.signature(kind).parameters
    and kind.takes_channels_first
    and name != "MaxUnpooling2D"
)


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def to_first(x):
    return np.moveaxis(x, -1, 1)


def arguments(name):
    return next((FIRST[each] for each in FIRST if name.startswith(each)), ())


def pair(name):
    """A layer of either format, and samples with channels last."""
    rank = int(name[-2]) if name[-1] == "D" or name[-2:] in ("1D", "2D", "3D") else 2
    if name == "STFTSpectrogram":
        rank = 1
    if name.endswith("Transpose"):
        rank = int(name[-11])
    kind = getattr(layers, name)
    made = [
        kind(*arguments(name), data_format=each) for each in (None, "channels_first")
    ]
    return made, samples(3, *SHAPES[rank])


def test_all_layers_of_images_are_tested():
    assert {"Conv3DTranspose", "Flatten", "AvgPool1D", "AdaptiveMaxPooling2D"} <= {
        *NAMES
    }
    assert "ConvLSTM2D" not in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_channels_last(name):
    both, x = pair(name)
    found, weights = [], None
    for layer, given in zip(both, (x, to_first(x)), strict=True):
        start = nn.Input(given.shape[1:])
        y = layer(start, training=True) if "Dropout" in name else layer(start)
        model = nn.Model(start, y)
        if weights is None:
            weights = [
                samples(*w.shape, seed=i) for i, w in enumerate(model.get_weights())
            ]
        model.set_weights(weights)
        found.append(model.predict(given, verbose=0))
        assert found[-1].shape[1:] == y.shape[1:]
        model.close()
    last, first = found
    if "Dropout" in name:
        assert ((first == 0) | (abs(first - 2 * to_first(x)) < 1e-6)).all()
        return
    if name == "Flatten":
        np.testing.assert_array_equal(first, last)
        return
    np.testing.assert_allclose(
        first, to_first(last) if last.ndim > 2 else last, rtol=1e-5, atol=1e-6
    )
    config = both[1].get_config()
    assert config["data_format"] == "channels_first"
    assert both[0].get_config()["data_format"] == "channels_last"
    again = type(both[1]).from_config(config)
    assert again(nn.Input(to_first(x).shape[1:])).shape[1:] == first.shape[1:]


def network(first):
    how = {"data_format": "channels_first"} if first else {}
    nn.set_random_seed(0)
    stack = [
        nn.Conv2D(6, 3, padding="same", activation="relu", **how),
        nn.MaxPooling2D(**how),
        nn.Conv2D(8, 3, **how),
        nn.GlobalAveragePooling2D(**how),
        nn.Dense(3),
    ]
    return nn.Sequential([nn.Input((4, 8, 8) if first else (8, 8, 4)), *stack])


def test_neighbours_share_a_format_and_train_to_the_same_bits(tmp_path):
    x, y = samples(8, 8, 8, 4), samples(8, 3, seed=1)
    found = []
    for first in (False, True):
        model = network(first)
        model.compile("adam", "mse")
        given = np.ascontiguousarray(to_first(x)) if first else x
        for _ in range(3):
            model.train_on_batch(given, y)
        report = model.memory_report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        found.append(model.get_weights())
        turns = [op for op in model.graph(8).ops if op.type == "transpose"]
        assert len(turns) == int(first)  # of the input alone
    assert all(map(np.array_equal, *found))
    model.save(tmp_path / "model.memcfg")
    loaded = nn.models.load_model(tmp_path / "model.memcfg")
    np.testing.assert_array_equal(
        loaded.predict(given, verbose=0), model.predict(given, verbose=0)
    )


def test_maxima_go_back_to_where_they_were():
    x = samples(2, 3, 6, 4)
    start = nn.Input((3, 6, 4))
    how = {"data_format": "channels_first"}
    y, places = nn.MaxPooling2D(return_indices=True, **how)(start)
    found = nn.Model(start, nn.MaxUnpooling2D(**how)([y, places])).predict(x, verbose=0)
    most = x.reshape(2, 3, 3, 2, 2, 2).max((3, 5))
    wide = most.repeat(2, 2).repeat(2, 3)
    np.testing.assert_array_equal(found, np.where(x == wide, x, 0))


def test_positions_and_other_words():
    assert nn.Conv2D(2, 3, 1, "same", "channels_first").data_format == "channels_first"
    layer = nn.Conv2D(2, 3, data_format="channels_first")
    with pytest.raises(ValueError, match="expects images"):
        layer(nn.Input((4, 4)))
    with pytest.raises(ValueError, match="got 'first'"):
        nn.MaxPooling2D(data_format="first")
