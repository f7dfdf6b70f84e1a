"""A notebook, run by its kernel: what a user sees below its cells."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.parity
nbclient = pytest.importorskip("nbclient", reason="needs nbclient: tox run -e parity")
nbformat = pytest.importorskip("nbformat")

CELLS = {
    "make": """
import numpy as np
import memcfg as mc
mc.config.set_memory_limit("CPU:0", "16MiB")
layers = [mc.nn.Dense(8, activation="relu"), mc.nn.Dense(3)]
model = mc.nn.Sequential([mc.nn.Input((4,)), *layers])
loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, metrics=["accuracy"])
x, y = np.ones((64, 4), "float32"), np.zeros(64, "int32")
""",
    "auto": "history = model.fit(x, y, batch_size=16, epochs=2)",
    "bar": "history = model.fit(x, y, batch_size=16, epochs=1, verbose=1)",
    "line": "history = model.fit(x, y, batch_size=16, epochs=1, verbose=2)",
    "evaluate": "results = model.evaluate(x, y, batch_size=16)",
    "summary": "model.summary()",
    "report": "model.memory_report()",
    "plan": "model.memory_plan",
    "history": "history",
    "lines": "print({box.line for box in model.memory_timeline().boxes} - {''})",
    "absent": "from memcfg.nn.layers import TorchModuleWrapper",
    "too much": """
mc.config.set_memory_limit("CPU:0", "1KiB")
model.fit(x, y, batch_size=16)
""",
    "close": "model.close()",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    path = str(tmp_path_factory.mktemp("notebook"))
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        allow_errors=True,
        resources={"metadata": {"path": path}},
    )
    client.execute()
    return {
        name: cell.outputs for name, cell in zip(CELLS, client.nb.cells, strict=True)
    }


def texts(outputs):
    """What each output shows as text; an error its last line."""
    for each in outputs:
        if each.output_type == "stream":
            yield each.text
        elif each.output_type == "error":
            yield f"{each.ename}: {each.evalue}"
        else:
            yield each.data["text/plain"]


def test_a_fit_shows_a_line_an_epoch_that_is_replaced(outputs):
    line = r"4/4 - [\d.]+ ms/step - loss: \d\.\d{4} - accuracy: \d\.\d{4}"
    one, two = texts(outputs["auto"])
    assert re.fullmatch(f"Epoch 1/2 - {line}", one)
    assert re.fullmatch(f"Epoch 2/2 - {line}", two)
    (bar,) = texts(outputs["bar"])
    assert re.fullmatch(f"(Epoch 1/1 - )?{line}", bar)
    (evaluated,) = texts(outputs["evaluate"])
    assert re.fullmatch(line, evaluated)
    assert all(each.output_type == "display_data" for each in outputs["auto"])
    (printed,) = texts(outputs["line"])
    assert "loss: " in printed


def test_a_summary_is_one_text_with_its_title_first(outputs):
    (summary,) = texts(outputs["summary"])
    lines = summary.splitlines()
    assert lines[0] == "Model: sequential"
    assert "Layer (type)" in lines[1]
    assert any("dense (Dense)" in line for line in lines)


@pytest.mark.parametrize("name", ["report", "plan", "history"])
def test_reports_are_shown_as_html_and_as_text(outputs, name):
    (shown,) = outputs[name]
    assert "<" in shown.data["text/html"]
    assert shown.data["text/plain"]


def test_a_line_of_the_users_program_is_that_of_a_cell(outputs):
    (lines,) = texts(outputs["lines"])
    assert lines.strip() == "{'In[1]:4'}"


def test_errors_say_what_to_do(outputs):
    (absent,) = texts(outputs["absent"])
    assert absent.startswith("ImportError: cannot import name 'TorchModuleWrapper'")
    assert "write the layer with nn.ops" in absent
    *_, refused = texts(outputs["too much"])
    assert refused.startswith(("ResourceExhaustedError", "InfeasiblePlanError"))


def test_nothing_else_is_shown(outputs):
    for name in ("make", "close"):
        assert outputs[name] == []
    for name, several in outputs.items():
        streams = [each for each in several if each.output_type == "stream"]
        assert all(each.name == "stdout" for each in streams), name
