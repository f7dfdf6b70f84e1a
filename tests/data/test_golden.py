"""What TensorFlow's tf.data did, done again: programs whose outcomes are written down.

`tests/support/write_data_golden.py` writes them; `tests/peers/test_tf_data.py` asks
TensorFlow itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_libraries import Memcfg
from data_programs import differences, outcome

FOLDER = Path(__file__).parent / "golden"
PARTS = 10  # tests of a file


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["arguments", "plain", "shared", "shuffles"])
@pytest.mark.filterwarnings("ignore:.* ended before its data did")
def test_programs_do_what_they_do_in_tensorflow(name, part, tmp_path):
    cases = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    library = Memcfg(tmp_path)
    for case in cases[part::PARTS]:
        found = outcome(case["program"], library)
        different = differences(case["program"], case["outcome"], found)
        assert different == [], json.dumps(case["program"])
