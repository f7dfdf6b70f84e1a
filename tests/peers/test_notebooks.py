"""The notebooks of the documentation run, and show what is committed with them."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.parity
pytest.importorskip("nbclient", reason="needs nbclient: tox run -e parity")
pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")

from run_notebooks import NOTEBOOKS, differences, run  # noqa: E402


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_committed(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    assert len(recorded["cells"]) <= 15
    assert differences(recorded, run(path)) == []


def test_what_differs_is_told():
    (path, *_) = NOTEBOOKS
    recorded = json.loads(path.read_text(encoding="utf-8"))
    changed = json.loads(path.read_text(encoding="utf-8"))
    cell = next(each for each in changed["cells"] if each.get("outputs"))
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["other"]}]
    assert len(differences(recorded, changed)) == 1
