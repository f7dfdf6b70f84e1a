"""An extension of Sphinx: names of the API reference, for search and other sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.domains.python import ObjectEntry

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def note(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Add the names that `__main__.py` has written down to the domain of Python."""
    objects = env.domains.python_domain.objects
    text = (Path(app.srcdir).parent / "objects.json").read_text(encoding="utf-8")
    for module, name, kind in json.loads(text):
        full = f"{module}.{name}"
        objects[full] = ObjectEntry(f"api/{module}", full, kind, aliased=False)
    return []


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("env-updated", note)
    return {"version": "1", "parallel_read_safe": True}
