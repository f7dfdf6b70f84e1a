"""Record what the networks of Keras's applications consist of.

    KERAS_BACKEND=torch python tests/record_keras_networks.py

It needs the environment of ``tox run -e parity``, and takes about a minute.
``tests/nn/test_applications.py`` compares `memcfg.nn` with what is recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
from keras_networks import CONSTRUCTORS, theirs
from network_layers import RECORD, record


def main():
    found = {name: record(theirs(name, weights=None)) for name in CONSTRUCTORS}
    rows = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
