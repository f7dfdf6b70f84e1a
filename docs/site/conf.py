"""Settings of Sphinx for the documentation site; `__main__.py` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import memcfg  # noqa: E402

project = "memcfg"
version = release = memcfg.__version__
html_title = f"memcfg {version}"
project_copyright = "The memcfg developers, Apache-2.0"
extensions = ["myst_parser", "objects", "sources"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4


html_use_index = False
html_domain_indices = False
html_theme = "furo"
html_static_path = [str(HERE / "static")]
html_css_files = ["memcfg.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {
        "color-brand-primary": "#1f6fb2",
        "color-brand-content": "#1f6fb2",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db4ea",
        "color-brand-content": "#7db4ea",
    },
}
pygments_style = "friendly"
pygments_dark_style = "native"
