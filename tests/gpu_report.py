"""What a GPU shows: its tests, limits, losses, and times beside PyTorch's, in a table.

Run on a machine that has one, with memcfg, pycuda and pytest, at best PyTorch too::

    python tests/gpu_report.py --output bench/results

Each check runs in a process of its own, so that what one breaks the others are rid of,
and has at most half of the time that is left: one that hangs leaves some to others.
This process never touches the GPU. Writes ``cuda-<gpu>-<date>.json`` after each, and
the same as a Markdown table beside it. A goal of time that is lost is said to be lost;
any other fails the report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import memcfg as mc

sys.path.insert(0, str(Path(__file__).parent / "support"))

import gpu_checks

# The folder of this script has a folder `torch`, which is not PyTorch.
sys.path[:] = [each for each in sys.path if Path(each) != Path(__file__).parent]

PACKAGES = (
    *("memcfg", "numpy", "pycuda", "torch", "nvidia-cudnn-frontend"),
    *("nvidia-cudnn-cu13", "nvidia-cublas"),
)
MACHINE = "machine"
LEAST = 60.0  # seconds that a check has, as long as there are so many


def run_apart(name, limit, script=__file__):
    """Run a check in a process of its own; what it found, or why it failed."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, script, "--check", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            out, told = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {"ok": False, "why": f"more than {limit:.0f} s", "seconds": limit}
        finally:
            with suppress(ProcessLookupError):  # nobody is left of its session
                os.killpg(child.pid, signal.SIGKILL)
    lines = out.strip().splitlines()
    took = round(time.monotonic() - began, 1)
    if child.returncode == 0 and lines:
        with suppress(ValueError):
            return {"ok": True, **json.loads(lines[-1]), "seconds": took}
    why = f"{told.strip()[-1500:]}\nit ended with {child.returncode}".strip()
    return {"ok": False, "why": why, "seconds": took}


def run_here(name):
    """Run a check; what it found, for JSON."""
    found = gpu_checks.CHECKS[name]()
    goals = [
        {**vars(goal), "value": as_number(goal.value), "held": goal.held}
        for goal in found.goals
    ]
    return {"goals": goals, "notes": found.notes}


def as_number(value):
    return None if value is None else float(value)


def machine():
    """The facts, in a process that may use the GPU; or why there is none."""
    found = {"gpu": "unknown GPU", "date": date.today().isoformat()}
    gpus = mc.config.list_physical_devices("GPU")
    if not gpus:
        try:
            gpu_checks.device()
        except ValueError as error:
            return {"missing": str(error)}
    details = mc.config.get_device_details(gpus[0])
    found |= {
        "gpu": details["device_name"],
        "compute capability": ".".join(map(str, details["compute_capability"])),
        "memory": f"{details['memory'] // gpu_checks.MIB} MiB",
        "driver's CUDA": told_of(lambda: gpu_checks.device().context.driver.version),
        "pages": told_of(lambda: gpu_checks.device().pool.upstream.page_bytes),
        "kernels": re.sub(  # without folders
            r"\(/\S*/", "(", told_of(lambda: gpu_checks.device().describe_kernels())
        ),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def told_of(ask):
    """An answer as text, or why there is none."""
    try:
        return str(ask())
    except Exception as error:  # whatever is broken, the others are told
        return f"{type(error).__name__}: {error}"


# -- the table -------------------------------------------------------------------------


def is_right(report):
    """Whether nothing failed; a goal of time may be lost."""
    return all(
        check["ok"]
        and all(g["held"] is not False or g["of_time"] for g in check["goals"])
        for check in report["checks"].values()
    )


def table(report):
    """The results as Markdown: the machine, a row for each goal, and the steps."""
    facts = dict(report["machine"])
    lines = [f"# {facts.pop('gpu')}, {facts.pop('date')}", ""]
    lines += [", ".join(f"{key} {value}" for key, value in facts.items()), ""]
    lines += [
        "| check | goal | measured | wanted | |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for name, check in report["checks"].items():
        if not check["ok"]:
            why = clean(check["why"].splitlines()[-1] if check["why"] else "")
            lines.append(f"| {name} | | | | **FAILED**: {why} |")
            continue
        lines += [row(name, goal) for goal in check["goals"]]
    for check, found in report["checks"].items():
        steps = found.get("notes", {}).get("steps", {})
        if not steps:
            continue
        columns = list(dict.fromkeys(key for each in steps.values() for key in each))
        lines += ["", f"| {check} | " + " | ".join(columns) + " |"]
        lines += ["| --- |" + " ---: |" * len(columns)]
        for name, each in steps.items():
            cells = [shown(each.get(column)) for column in columns]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, tables in report["checks"].get("profile", {}).get("notes", {}).items():
        lines += profile_table(name, tables)
    return "\n".join(lines)


def profile_table(name, tables):
    """Milliseconds of a step by what its kernels do, ours beside PyTorch's."""
    both = [tables[who] for who in ("memcfg", "torch")]
    families = dict.fromkeys(family for each in both for family in each["families"])
    lines = ["", f"| {name}, ms | memcfg | torch |", "| --- | ---: | ---: |"]
    rows = [(family, *(e["families"].get(family) for e in both)) for family in families]
    wholes = ("busy", "gaps", "milliseconds", "launches")
    rows += [(what, *(each[what] for each in both)) for what in wholes]
    return lines + [f"| {what} | {shown(a)} | {shown(b)} |" for what, a, b in rows]


def row(check, goal):
    outcome = {True: "held", False: "**FAILED**", None: f"not measured: {goal['why']}"}
    outcome[False] = "**lost**" if goal["of_time"] else outcome[False]
    unit = f" {goal['unit']}" if goal["unit"] else ""
    sign = {"<=": "≤", ">=": "≥"}[goal["relation"]]
    cells = [
        check,
        goal["what"],
        shown(goal["value"]) + (unit if goal["value"] is not None else ""),
        f"{sign} {shown(goal['wanted'])}{unit}",
        outcome[goal["held"]],
    ]
    return "| " + " | ".join(map(clean, cells)) + " |"


def shown(value):
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def clean(text):
    return text.replace("|", "/").replace("\n", " ")[-300:]


def limit_of(left):
    """The seconds of a check that is not the last one."""
    return max(1.0, left / 2, min(left, LEAST))


def write(folder, report):
    """Write it as JSON and as Markdown; gives the paths."""
    card = re.sub(r"\W+", "-", report["machine"]["gpu"]).strip("-").lower()
    path = Path(folder, f"cuda-{card}-{report['machine']['date']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table(report) + "\n", encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="the folder of the files")
    parser.add_argument("--minutes", type=float, default=8, help="for everything")
    choices = list(gpu_checks.CHECKS)
    parser.add_argument("--only", nargs="+", choices=choices, default=choices)
    every = [*choices, MACHINE]
    parser.add_argument("--check", choices=every, help="run one, print what it found")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        found = machine() if chosen.check == MACHINE else run_here(chosen.check)
        print(json.dumps(found))
        return 0
    end = time.monotonic() + 60 * chosen.minutes
    facts = run_apart(MACHINE, limit_of(end - time.monotonic()))
    if "missing" in facts:
        print(facts["missing"])
        return 0
    if not facts.pop("ok"):
        facts |= {"gpu": "unknown GPU", "date": date.today().isoformat()}
    report = {"machine": facts, "checks": {}}
    for number, name in enumerate(chosen.only, 1):
        last = number == len(chosen.only)
        left = max(1.0, end - time.monotonic())
        found = run_apart(name, left if last else limit_of(left))
        report["checks"][name] = found
        took = f"{found['seconds']:.0f} s"
        print(f"{name}: {took}" if found["ok"] else f"{name}: FAILED", flush=True)
        if chosen.output:
            write(chosen.output, report)
    print(table(report))
    return int(not is_right(report))


if __name__ == "__main__":
    sys.exit(main())
