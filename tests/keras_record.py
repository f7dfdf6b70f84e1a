"""Record which of Keras's own tests pass with `memcfg.nn` in the place of Keras.

    python tests/keras_record.py

It needs the environment of ``tox run -e parity``, and takes some two minutes.
``tests/peers/test_keras_suite.py`` compares with what is recorded.
"""

from __future__ import annotations

import collections
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE / "support"))
import keras_suite as suite  # noqa: E402

PAGE = HERE.parent / "bench" / "results" / "keras_suite.md"


def counts(entries):
    """Return the numbers of tests: passed, but for a need, different, absent."""
    result = collections.Counter()
    for entry in entries:
        result["passed"] += len(entry["passed"])
        result["but for"] += sum(map(len, entry["but for"].values()))
        result["different"] += sum(map(len, entry["different"].values()))
        result["absent"] += sum(entry["absent"].values())
    return result


def share(number):
    """Return the share of the tests of what is here that pass."""
    of_what_is_here = number["passed"] + number["but for"] + number["different"]
    good = number["passed"] + number["but for"]
    return f"{good / of_what_is_here:.0%}" if of_what_is_here else "–"


def reasons(modules, kind):
    """Return the reasons of a kind with their numbers of tests, most frequent first."""
    result = collections.Counter()
    for entry in modules.values():
        for reason, tests in entry[kind].items():
            result[reason] += tests if isinstance(tests, int) else len(tests)
    return result.most_common()


def table(head, rows):
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def page(record):
    """Return the page of results."""
    modules = record["modules"]
    folders = collections.defaultdict(list)
    for module, entry in modules.items():
        folders[module.split("/")[0]].append(entry)
    rows = [(name, counts(entries)) for name, entries in sorted(folders.items())]
    rows.append(("all", counts(modules.values())))
    yield from (
        "# Keras's own tests",
        "",
        f"The tests of Keras {record['keras']} that are installed with it, run with",
        "`memcfg.nn` in the place of Keras. `python tests/keras_record.py` writes this",
        "page, and `tests/support/keras_outcomes.json` with the names of the tests.",
        "",
        "*Passed but for* something are tests whose other checks all pass. *Absent*",
        "is what a test needs of what memcfg documents that it does not have. The",
        "share is of the tests of what memcfg has. A module that cannot be collected",
        "counts as one test: `trainers/trainer_test.py`, whose models are made of the",
        "trainer of one of Keras's backends.",
        "",
    )
    numbers = ("passed", "but for", "different", "absent")
    yield from table(
        ("folder", "passed", "passed but for", "different", "absent", "share"),
        [(name, *(n[key] for key in numbers), share(n)) for name, n in rows],
    )
    for title, kind in (
        ("What tests pass but for", "but for"),
        ("Where memcfg does otherwise", "different"),
        ("What is absent", "absent"),
    ):
        yield from ("", f"## {title}", "")
        yield from table(("reason", "tests"), reasons(modules, kind))


def main():
    """Run all tests, and write the record and the page."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = suite.run(Path(folder), suite.FOLDERS)
    modules = {name: suite.by_reason(tests) for name, tests in outcomes.items()}
    record = {"keras": version("keras"), "modules": modules}
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
    suite.RECORD.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text("\n".join(page(record)) + "\n", encoding="utf-8")
    print(*page(record), sep="\n")


if __name__ == "__main__":
    main()
