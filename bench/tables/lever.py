"""What each lever saves and costs, one measured row a lever, from committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
HEAD = """| lever | measured on | memory | time | result |
| --- | --- | ---: | ---: | --- |
"""
MIDDLE = 1  # 8 GB/s, of the bandwidths of the comparison


def read(name: str) -> dict:
    found: dict = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def row(lever: str, place: str, memory: float, time: str, result: str) -> str:
    return f"| {lever} | {place} | {memory:.0%} | {time} | {result} |\n"


def recomputed(percent: int) -> str:
    """Return ResNet-50 within a part of the peak of `share`."""
    found = read("network_ladder")
    whole = found["share_peak_bytes"]
    limit = whole * percent // 100
    rung = min(found["rungs"], key=lambda each: abs(each["limit_bytes"] - limit))
    work = rung["recompute_seconds"] / (rung["seconds"] - rung["recompute_seconds"])
    place = f"ResNet-50, batch {found['batch']}, beside `share`"
    memory = rung["measured"]["peak_bytes"] / whole
    return row("recompute (`auto`)", place, memory, f"+{work:.1%} of work", "same bits")


def replayed() -> str:
    """Return the networks with cheap ops computed again."""
    results = read("zoo_train_replay_elementwise")["results"]
    key = "memcfg, auto"
    memory = mean([each["memory"]["memcfg"] / each["memory"][key] for each in results])
    time = mean([each["seconds"]["memcfg"] / each["seconds"][key] for each in results])
    place = f"{len(results)} networks, process, beside `auto`"
    return row("`replay_elementwise`", place, memory, f"{time - 1:+.1%}", "same bits")


def in_bfloat16() -> str:
    """Return the same networks and batches in bfloat16 and in float32."""
    plain = {
        (each["network"], each["batch"]): each["memory"]["memcfg"]
        for each in read("zoo")["results"]
    }
    ratios = [
        each["memory"]["memcfg"] / plain[each["network"], each["batch"]]
        for each in read("zoo_train_bfloat16")["results"]
        if (each["network"], each["batch"]) in plain
    ]
    place = f"{len(ratios)} networks, process, beside float32"
    return row("`mixed_bfloat16`", place, mean(ratios), "–", "rounded")


def compared(lever: str, method: str, result: str) -> str:
    """Return the means of a method of the comparison."""
    document = read("compare")
    (each,) = (each for each in document["methods"] if each["method"] == method)
    place = f"6 networks, {each['plans']} of {each['cells']} limits, 8 GB/s"
    time = f"{each['slowdowns'][MIDDLE] - 1:+.1%}"
    return row(lever, place, each["peak"], time, result)


def torch_budget(network: str, setting: str) -> str:
    """Return a PyTorch model within a part of eager's peak."""
    (each,) = (
        each
        for each in read("torch_budget")["results"]
        if [each["network"], each["method"], each["setting"]]
        == [network, "budget", setting]
    )
    memory = each["peak_bytes"] / each["eager_bytes"]
    place = f"PyTorch's `{network}`, beside eager"
    time = f"{each['times_eager'] - 1:+.1%}"
    return row("`memcfg.torch.budget`", place, memory, time, "same bits")


def streamed() -> str:
    """Return VGG-16 that runs from its file, one sample."""
    models = read("streaming")["results"][0]["models"]
    one, other = models["streamed"], models["decoded"]
    memory = one["peak_bytes"] / other["peak_bytes"]
    place = "VGG-16, inference of one sample, beside decoded weights"
    return row(
        "weights in a file", place, memory, f"{one['ratio'] - 1:+.1%}", "same bits"
    )


def integers() -> str:
    """Return products by integers of 8 bits, beside float32."""
    results = read("integers")["results"]
    taken = [
        each["peak_bytes"]["int8"] / each["peak_bytes"]["float32"] for each in results
    ]
    time = [each["seconds"]["int8"] / each["seconds"]["float32"] for each in results]
    place = f"{len(results)} dense layers, inference"
    return row(
        "8-bit integers", place, mean(taken), f"{mean(time) - 1:+.1%}", "rounded"
    )


def sharded() -> str:
    """Return the state of GPT-3 on 64 and on 1,024 ranks."""
    cases = {each["ranks"]: each for each in read("on_paper")["cases"]}
    few, many = (
        next(
            line["state_bytes"]
            for line in cases[ranks]["estimate"]["rows"]
            if line["shard"] == "parameters"
        )
        for ranks in (256, 1024)
    )
    place = "state of GPT-3 on 1,024 ranks, beside 256, on paper"
    return row('`shard="parameters"`', place, many / few, "–", "same bits")


def table() -> str:
    """Return the rows of all levers."""
    return (
        HEAD
        + recomputed(50)
        + recomputed(30)
        + replayed()
        + compared("swap (`out_of_core`)", "out_of_core", "same bits")
        + in_bfloat16()
        + compared("8 bits for waiting maps (`gist_fp8`)", "gist_fp8", "rounded")
        + compared("2 bits for waiting maps (`actnn`)", "actnn", "rounded")
        + torch_budget("gpt", "50 %")
        + torch_budget("densenet121", "50 %")
        + sharded()
        + streamed()
        + integers()
    )
