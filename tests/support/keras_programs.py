"""Short programs as a user of Keras types them, in ``tests/nn/programs``."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "nn" / "programs"
PROGRAMS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
FILES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("files/*.py"))}
IMPORT = "import keras\n"


def run(name, changes=()):
    """Run a program, after texts in it were replaced by others."""
    text = (PROGRAMS | FILES)[name]
    if name == "tensorboard_logs":  # what writes the files is no requirement
        pytest.importorskip("tensorboardX" if changes else "tensorboard")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    exec(compile(text, f"{name}.py", "exec"), {"__name__": name})
