"""Build the documentation site: pages, notebooks, examples and the API reference.

``python docs/site FOLDER`` writes HTML to ``FOLDER/html``. The pages are those of the
repository, which read as well where it is hosted: their links are mapped to the site's
pages, and sources become pages, too. A link that leads nowhere, a page that no other
names and an exported name without documentation are errors. Why Sphinx, and why so, is
docs/decisions/0039-the-site-is-made-by-sphinx.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # also where PYTHONSAFEPATH is set

from pages import stage_pages  # noqa: E402
from reference import stage_reference  # noqa: E402


def main() -> int:
    """Stage the sources of the site, and run Sphinx on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="is replaced")
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    staged, html = folder / "pages", folder / "html"
    stage_pages(staged)
    objects = stage_reference(staged / "api")
    (folder / "objects.json").write_text(json.dumps(objects), encoding="utf-8")
    return build_main(
        [
            "-W",
            "--keep-going",
            "-q",
            "-c",
            str(HERE),
            "-d",
            str(folder / "doctrees"),
            str(staged),
            str(html),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
