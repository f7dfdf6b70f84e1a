"""Pictures of models: text of Graphviz, and SVG whose boxes do not overlap."""

from __future__ import annotations

import re
import shutil
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
SVG = "{http://www.w3.org/2000/svg}"


def residual():
    image, row = nn.Input((8, 8, 3), name="image"), nn.Input((4,), name="row")
    x = nn.Conv2D(4, 3, activation="relu", name="first")(image)
    y = nn.Conv2D(4, 3, padding="same", name="second", trainable=False)(x)
    inner = nn.Sequential(
        [nn.Input((4,)), nn.Dense(5, name="a"), nn.Dense(3, name="b")], name="inner"
    )
    both = [nn.Flatten(name="flat")(nn.Add(name="sum")([x, y])), inner(row)]
    return nn.Model([image, row], nn.Concatenate(name="both")(both), name="whole")


def graph_of(text):
    """Labels by number, and arrows between labels' first words."""
    labels = dict(re.findall(r'(n\d+) \[label="(.*)"\];', text))
    arrows = re.findall(r"(n\d+) -> (n\d+);", text)
    words = {
        each: label.split(" ")[0].split("\\n")[0] for each, label in labels.items()
    }
    return labels, {(words[a], words[b]) for a, b in arrows}


def test_boxes_and_arrows_are_layers_and_calls():
    labels, arrows = graph_of(nn.utils.model_to_dot(residual()).to_string())
    assert arrows == {
        ("image", "first"),
        ("first", "second"),
        ("first", "sum"),
        ("second", "sum"),
        ("sum", "flat"),
        ("flat", "both"),
        ("row", "inner"),
        ("inner", "both"),
    }
    assert "inner (Sequential)" in labels.values()


def test_boxes_say_what_is_asked_for():
    options = {f"show_{each}": True for each in ("shapes", "dtype", "trainable")}
    options |= {"show_layer_activations": True, "expand_nested": True, "dpi": 70}
    dot = nn.utils.model_to_dot(residual(), splines="curved", **options)
    text = dot.to_string()
    labels, arrows = graph_of(text)
    assert {("row", "input_layer"), ("a", "b"), ("b", "both")} <= {
        (a, "input_layer" if b.startswith("input_layer") else b) for a, b in arrows
    }
    assert (
        "first (Conv2D)\\nActivation: relu\\nInput shape: (None, 8, 8, 3)\\n"
        "Output shape: (None, 6, 6, 4)\\nOutput dtype: float32\\nTrainable"
    ) in labels.values()
    assert sum("Non-trainable" in each for each in labels.values()) == 1
    assert 'subgraph "cluster_inner" { label="inner"' in text
    assert 'splines="curved"; dpi=70' in text
    framed = nn.utils.model_to_dot(residual(), subgraph=True, show_layer_names=False)
    assert 'label="whole"; style=dashed' in framed.to_string()
    assert "Conv2D" in framed.to_string().replace("first", "")
    stack = nn.Sequential([nn.Input((3,)), nn.Dense(2), nn.ReLU()])
    assert len(graph_of(nn.utils.model_to_dot(stack).to_string())[0]) == 2


def boxes_of(text):
    root = ElementTree.fromstring(text)
    sizes = [
        [float(each.get(key)) for key in ("x", "y", "width", "height")]
        for each in root.iter(f"{SVG}rect")
    ]
    canvas = [float(root.get(key)) for key in ("width", "height")]
    paths = [each.get("d") for each in root.iter(f"{SVG}path") if each.get("fill")]
    return canvas, sizes, paths


def check(text, count):
    """Boxes are on the canvas and apart; arrows begin and end at their borders."""
    (width, height), boxes, paths = boxes_of(text)
    assert len(boxes) == count
    for x, y, w, h in boxes:
        assert min(x, y) >= 0
        assert x + w <= width + 1
        assert y + h <= height + 1
    for (x, y, w, h), (x2, y2, w2, h2) in combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    for path in paths:
        numbers = [float(each) for each in re.findall(r"-?[\d.]+", path)]
        for x, y in (numbers[:2], numbers[-2:]):
            assert any(
                bx - 1 <= x <= bx + bw + 1 and by - 1 <= y <= by + bh + 1
                for bx, by, bw, bh in boxes
            )
    return paths


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), max_size=9),
    st.sampled_from(["TB", "BT", "LR", "RL"]),
)
@settings(max_examples=25, deadline=None)
def test_pictures_of_random_models(joins, direction):
    tensors = [nn.Input((4,)), nn.Input((4,))]
    for chosen in joins:
        several = list(dict.fromkeys(tensors[i % len(tensors)] for i in chosen))
        tensors.append(nn.Add()(several) if len(several) > 1 else nn.ReLU()(several[0]))
    model = nn.Model(tensors[:2], nn.Add()(tensors))
    dot = nn.utils.model_to_dot(model, rankdir=direction, show_shapes=True)
    paths = check(dot.to_svg(), len(tensors) + 1)
    assert len(paths) == len(dot.boxes.arrows)


def test_files(tmp_path):
    model = residual()
    made = nn.utils.plot_model(model, tmp_path / "a.svg", show_layer_names=True)
    check((tmp_path / "a.svg").read_text(), 8)
    assert (tmp_path / "a.svg").read_text() == made._repr_svg_()
    nn.utils.plot_model(model, str(tmp_path / "a.dot"), rankdir="LR")
    assert "rankdir=LR" in (tmp_path / "a.dot").read_text()
    with pytest.raises(ValueError, match="unknown rankdir 'UP'"):
        nn.utils.plot_model(model, tmp_path / "b.svg", rankdir="UP")
    with pytest.raises(ValueError, match="is not built"):
        nn.utils.plot_model(nn.Sequential([nn.Dense(2)]), tmp_path / "b.svg")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.dot", "a.svg"]


def test_pixels_need_graphviz(tmp_path, monkeypatch):
    """A program in its place is given the text, and the format."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ImportError, match=r"needs the program dot .* \.svg, or \.dot"):
        nn.utils.plot_model(residual(), tmp_path / "a.png")
    program = tmp_path / "dot"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -Tpng ] || { echo bad >&2; exit 1; }\ncat\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    nn.utils.plot_model(residual(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text().startswith('digraph "whole"')
    with pytest.raises(ValueError, match="Graphviz: bad"):
        nn.utils.plot_model(residual(), tmp_path / "a.xyz")
