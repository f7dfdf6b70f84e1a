"""Models in files whose descriptions are none, lie, or unfold without end."""

from __future__ import annotations

import copy
import json
import random
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import FormatError, WeightsError

nn = mc.nn
load = nn.models.load_model
DOCUMENTED = (FormatError, WeightsError, TypeError, ValueError)

# What a value of a description may be instead.
ODD = (
    *(None, True, False, -1, 0, 1, 3, 10**30, -(10**30), 2**63, 2**64, 1e308, -0.5),
    *(
        "",
        "a/b",
        "\ud800",
        "x" * 300,
        "len",
        "float16",
        "mixed_bfloat16",
        "layers.LSTM",
    ),
    *([], {}, [[]], [None], [10**9, 10**9], {"layer": 0}, {"layer": 10**9}),
    *({"layer": -1}, {"place": 0}, {"place": 99}, {"place": -1}, {"dict": {}}),
    *({"function": "len"}, {"class": "layers.Dense", "config": {"units": 3}}),
)


def shared():
    x = nn.Input((4,))
    inner = nn.Sequential([nn.Input((4,)), nn.Dense(4, name="dense"), nn.Dropout(0.3)])
    return nn.Model(x, nn.Dense(2)(inner(inner(x)) + nn.Dense(4, name="other")(x)))


def recurrent():
    x = nn.Input((5, 3))
    h = nn.Bidirectional(nn.LSTM(2, return_sequences=True, unroll=True))(x)
    h = nn.MultiHeadAttention(2, 2)(h, h)
    return nn.Model(x, nn.TimeDistributed(nn.Dense(2, kernel_regularizer="l2"))(h))


def images():
    return nn.Sequential(
        [
            nn.Input((6, 6, 2)),
            nn.Conv2D(2, 3, activation="relu"),
            nn.BatchNormalization(),
            nn.GlobalAveragePooling2D(),
            nn.Dense(2),
        ]
    )


NETWORKS = {each.__name__: each for each in (shared, recurrent, images)}


def parts_of(path):
    """Return a file's header, its description, and the bytes of its tensors.

    They are without checksums, as in older files, so that damage gets past them.
    """
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    begin, _ = header.pop("checksums")["data_offsets"]
    notes = header["__metadata__"]
    del notes["checksums"]
    return header, json.loads(notes["model"]), data[end : end + begin]


def write(path, header, document, tensors):
    notes = header["__metadata__"] | {"model": json.dumps(document)}
    text = json.dumps(header | {"__metadata__": notes}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    found = {}
    for name, make in NETWORKS.items():
        model = make()
        model.compile(nn.optimizers.AdamW(0.1, use_ema=True), "mse", metrics=["mae"])
        model.save(folder / "m.memcfg")
        found[name] = parts_of(folder / "m.memcfg")
    return found


def places_in(value, path=()):
    inner = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, each in inner:
        yield (*path, key)
        yield from places_in(each, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutated(document, draws):
    """Change one or two values: to odd ones, to others of the same document."""
    found = copy.deepcopy(document)
    for _ in range(draws.choice((1, 1, 1, 2))):
        places = list(places_in(found))
        *way, key = draws.choice(places)
        parent = at(found, way)
        match draws.randrange(5):
            case 0 | 1:
                parent[key] = copy.deepcopy(draws.choice(ODD))
            case 2:
                parent[key] = copy.deepcopy(at(found, draws.choice(places)))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case _:
                parent[draws.choice(("name", "units", "surprise"))] = draws.choice(ODD)
    return found


@contextmanager
def bounded_memory(nbytes):
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", NETWORKS)
def test_changed_descriptions_end_in_documented_errors(saved, network, count, tmp_path):
    """Or in a model, which can be run."""
    header, document, tensors = saved[network]
    path, draws = tmp_path / "m.memcfg", random.Random(f"{network} {count}")
    loaded = 0
    with bounded_memory(2**31):
        for _ in range(count):
            changed = mutated(document, draws)
            write(path, header, changed, tensors)
            try:
                model = load(path, compile=draws.random() < 0.7)
            except DOCUMENTED:
                continue
            except BaseException:
                print(json.dumps(changed))
                raise
            loaded += 1
            assert all(isinstance(layer.name, str) for layer in model.layers)
            if loaded < 5:
                with suppress(MemoryError):  # a layer may be wide
                    x = np.zeros((2, *model.inputs[0].sample_shape), np.float32)
                    model.predict(x, verbose=0)
    assert 0 < loaded < count


def dense(document, name="dense"):
    return next(each for each in document["layers"] if each.get("name") == name)


NAMES = {
    "a number": 5,
    "another layer's": "other",
    "empty": "",
    "of two parts": "dense/kernel",
    "half a character": "\ud800",
    "null": None,
}


@pytest.mark.parametrize("what", NAMES)
def test_names_of_layers_and_models_that_are_none(saved, what, tmp_path):
    header, document, tensors = saved["shared"]
    for change in (dense, lambda d: d["model"], lambda d: d["layers"][-1]):
        changed = copy.deepcopy(document)
        if what == "another layer's":  # of the same model
            dense(changed, "other")["name"] = dense(
                changed, document["layers"][-1]["name"]
            )["name"]
        else:
            change(changed)["name"] = NAMES[what]
        write(tmp_path / "m.memcfg", header, changed, tensors)
        with pytest.raises((FormatError, TypeError, ValueError)):
            load(tmp_path / "m.memcfg")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("count", [10**30, 2**63, -1, 1.5, "3", None, True])
def test_numbers_of_steps_that_are_none(saved, count, compiled, tmp_path):
    header, document, tensors = saved["images"]
    changed = copy.deepcopy(document)
    changed["compile"]["iterations"] = count
    write(tmp_path / "m.memcfg", header, changed, tensors)
    with pytest.raises(FormatError, match="iterations"):
        load(tmp_path / "m.memcfg", compile=compiled)


@pytest.mark.parametrize("state", [[["a", [2], "five"]], [["a", [-1], "float32"]], [5]])
def test_optimizer_state_that_is_none(saved, state, tmp_path):
    header, document, tensors = saved["images"]
    changed = copy.deepcopy(document)
    changed["compile"]["state"] = state
    write(tmp_path / "m.memcfg", header, changed, tensors)
    with pytest.raises((*DOCUMENTED, FormatError)):
        load(tmp_path / "m.memcfg", compile=False)


def twice(levels):
    """Models inside of models, each called twice: 2 ** levels calls."""
    model = nn.Sequential([nn.Input((4,)), nn.Dense(4)])
    for _ in range(levels):
        x = nn.Input((4,))
        model = nn.Model(x, model(model(x)))
    return model


def test_shared_models_that_unfold_without_end_are_refused_at_load(tmp_path):
    path = tmp_path / "nine kilobytes.memcfg"
    twice(30).save(path)
    assert path.stat().st_size < 2**15
    with pytest.raises(FormatError, match=r"nine kilobytes.*more than 100,000 ops"):
        load(path)
    with pytest.raises(FormatError, match="more than 100,000 ops"):
        load(path, compile=False)


def test_shared_models_that_unfold_to_a_thousand_calls_are_not(tmp_path):
    model = twice(10)
    model.save(tmp_path / "m.memcfg")
    x = np.ones((2, 4), np.float32)
    found = load(tmp_path / "m.memcfg").predict(x, verbose=0)
    assert np.array_equal(found, model.predict(x, verbose=0))


def joined(name, calls):
    """Describe a model of one input: places of layers, and what each reads."""
    return {
        "class": "Model",
        "name": name,
        "kind": None,
        "trainable": True,
        "dtype": None,
        "calls": [[*call, None] for call in calls],
        "inputs": [0],
        "outputs": [len(calls) - 1],
        "takes": [None, ["x"]],
        "gives": [None, ["y"]],
    }


def test_names_of_weights_that_unfold_without_end_are_refused(tmp_path):
    """Two models around each one: a weight has a name for each way to it."""
    path = tmp_path / "m.memcfg"
    x = nn.Input((4,))
    nn.Model(x, nn.Add()([nn.Dense(4)(x), x])).save(path)
    header, document, tensors = parts_of(path)
    layers, own = document["layers"], document["model"]
    start, _, add = layers

    def place(described):
        layers.append(described)
        return len(layers) - 1

    for number in range(40):
        inner = place({"model": own, "seed": 1})
        around = []
        for name in ("a", "b"):
            first = place({**start, "name": f"start_{name}_{number}"})
            model = joined(f"{name}_{number}", [[first, []], [inner, [0]]])
            around.append(place({"model": model, "seed": 1}))
        first = place({**start, "name": f"start_{number}"})
        total = place({**add, "name": f"add_{number}"})
        calls = [[first, []], [around[0], [0]], [around[1], [0]], [total, [1, 2]]]
        own = joined(f"both_{number}", calls)
        document["model"] = own
        if number == 2:  # few are built, and have other names than the file's
            write(path, header, document, tensors)
            with pytest.raises(WeightsError, match=r"both_1.*dense/kernel"):
                load(path)
    write(path, header, document, tensors)
    with pytest.raises(FormatError, match="more than 100,000 ops"):
        load(path)


@pytest.mark.parametrize("steps", [10**6, 10**9, 2**62])
def test_steps_that_unfold_without_end_are_refused(saved, steps, tmp_path):
    header, document, tensors = saved["recurrent"]
    text = json.dumps(document)
    assert "[5, 3]" in text
    changed = json.loads(text.replace("[5, 3]", f"[{steps}, 3]"))
    write(tmp_path / "m.memcfg", header, changed, tensors)
    with pytest.raises(FormatError, match=r"m\.memcfg: .*more than 100,000 ops"):
        load(tmp_path / "m.memcfg")


def test_models_inside_of_thousands_are_refused(tmp_path):
    """Each around the one before: deeper than Python goes."""
    path = tmp_path / "m.memcfg"
    x = nn.Input((4,))
    nn.Model(x, nn.Sequential([nn.Input((4,)), nn.Dense(4)])(x)).save(path)
    header, document, tensors = parts_of(path)
    layers, own = document["layers"], document["model"]
    start = own["calls"][0][0]
    for _ in range(1500):
        layers.append({"model": own, "seed": 1})
        own = copy.deepcopy(own)
        own["calls"][1][0] = len(layers) - 1
        assert own["calls"][0][0] == start
    document["model"] = own
    write(path, header, document, tensors)
    with pytest.raises(FormatError):
        load(path)
