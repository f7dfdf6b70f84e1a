"""The command line, as ``python -m memcfg``."""

from __future__ import annotations

import sys

from memcfg.cli import main

if __name__ == "__main__":
    sys.exit(main())
