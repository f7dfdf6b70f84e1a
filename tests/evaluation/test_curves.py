"""Pictures: SVG that a browser reads, PNG, notebooks, and what they show."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from memcfg.evaluation import (
    ROC,
    ConfusionMatrix,
    Evaluation,
    EvaluationCalibration,
    Figure,
)

SVG = "{http://www.w3.org/2000/svg}"


def figures():
    """Return a figure of each kind, by name."""
    rng = np.random.default_rng(0)
    outputs, labels = rng.dirichlet(np.ones(3), 200), rng.integers(0, 3, 200)
    evaluation = Evaluation(labels=["a & b", "<c>", "d" * 40])
    roc, calibration = ROC(), EvaluationCalibration(labels=["x", "y", "z"])
    evaluation.eval(labels, outputs)
    roc.eval(labels == 1, outputs[:, 1])
    calibration.eval(labels, outputs)
    return {
        "matrix": evaluation.confusion_matrix(),
        "roc": roc.get_roc_curve(),
        "precision": roc.get_precision_recall_curve(),
        "reliability": calibration.get_reliability_diagram(1),
        "residuals": calibration.get_residual_plot_all_classes(),
        "probabilities": calibration.get_probability_histogram(2),
    }


NAMES = ["matrix", "precision", "probabilities", "reliability", "residuals", "roc"]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_one_document_within_its_size(name, tmp_path):
    figure = figures()[name]
    figure.save(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert text == figure.to_svg()
    root = ET.fromstring(text)
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.tag == f"{SVG}svg"
    assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text
    assert {each.tag for each in root.iter()} <= {
        f"{SVG}{tag}"
        for tag in (
            *("svg", "style", "text", "line", "rect", "title", "polyline"),
            *("polygon", "circle"),
        )
    }  # nothing that loads or runs
    for each in root.iter(f"{SVG}rect"):
        x, y = float(each.get("x")), float(each.get("y"))
        assert 0 <= x <= x + float(each.get("width")) <= width
        assert 0 <= y <= y + float(each.get("height")) <= height
    for each in root.iter(f"{SVG}polyline"):
        for point in each.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert isinstance(figure, Figure)
    assert repr(figure).startswith("<")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_it_in_the_colours_of_the_page(name):
    shown = figures()[name]._repr_html_()
    assert "<style" not in shown  # it would apply to the whole page
    assert ET.fromstring(shown).tag == "svg"


def test_the_curve_goes_through_its_points():
    roc = ROC()
    roc.eval([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4])
    root = ET.fromstring(roc.get_roc_curve().to_svg())
    (line,) = [
        each for each in root.iter(f"{SVG}polyline") if each.get("stroke-width") == "2"
    ]
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    x = [62 + 400 * rate for rate in (0, 0, 0.5, 0.5, 1)]
    y = [40 + 300 * (1 - rate) for rate in (0, 0.5, 0.5, 1, 1)]
    assert points == list(zip(x, y, strict=True))


def test_cells_have_their_counts_and_tips():
    matrix = ConfusionMatrix(np.array([[3, 1], [0, 0]]), ["cat", "dog"])
    root = ET.fromstring(matrix.to_svg())
    cells = [each for each in root.iter(f"{SVG}rect") if len(each)]
    tips = [each[0].text for each in cells]
    assert tips == ["cat → cat: 3", "cat → dog: 1", "dog → cat: 0", "dog → dog: 0"]
    shades = [float(each.get("fill-opacity")) for each in cells]
    assert shades == pytest.approx([0.61, 0.23, 0.04, 0.04])  # shares of the row
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts[-4:] == ["3", "1", "0", "0"]
    np.testing.assert_array_equal(np.asarray(matrix), matrix.counts)


def test_many_classes_are_drawn_small_and_too_many_are_refused(tmp_path):
    small = ConfusionMatrix(np.eye(60, dtype=int))
    root = ET.fromstring(small.to_svg())
    assert float(root.get("width")) < 1000
    large = ConfusionMatrix(np.eye(201, dtype=int))
    with pytest.raises(ValueError, match="too large to draw: at most 200"):
        large.save(tmp_path / "matrix.svg")
    assert list(tmp_path.iterdir()) == []
    assert large._repr_html_() == ""


def test_curves_without_an_area_are_drawn_empty():
    roc = ROC()
    roc.eval([1, 1], [0.2, 0.3])
    assert ET.fromstring(roc.get_roc_curve().to_svg()).tag == f"{SVG}svg"
    roc.reset()
    roc.eval([0, 0], [0.2, 0.3])
    curve = roc.get_precision_recall_curve()
    assert np.isnan(curve.recall).all()
    assert ET.fromstring(curve.to_svg()).tag == f"{SVG}svg"


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a picture is \.svg or \.png"):
        figures()["roc"].save(tmp_path / "roc.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_png_is_drawn_by_matplotlib(name, tmp_path):
    pytest.importorskip("matplotlib")
    figures()[name].save(tmp_path / "figure.PNG")
    content = (tmp_path / "figure.PNG").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5000


def test_without_matplotlib_an_error_says_what_to_do(tmp_path):
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import memcfg as mc\n"
        "roc = mc.evaluation.ROC()\n"
        "roc.eval([0, 1], [0.2, 0.6])\n"
        "roc.get_roc_curve().save('roc.svg')\n"
        "try:\n"
        "    roc.get_roc_curve().save('roc.png')\n"
        "except mc.errors.MissingDependencyError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'memcfg[plots]', or save an .svg" in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["roc.svg"]
