"""The order of cuDNN's plans, against what they took on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memcfg.devices.cuda._convolution_ranks import ranked, workspace_limit
from memcfg.devices.cuda._convolution_spec import ConvolutionSpec

RESULTS = Path(__file__).parents[3] / "bench/results"
SAME = ((1, 1), (1, 1))
MIB = 1 << 20


def spec_of(op, images, side, channels, units):
    x, y = (images, side, side, channels), (images, side, side, units)
    return ConvolutionSpec(op, x, (3, 3, channels, units), y, (1, 1), (1, 1), SAME)


SMALL = spec_of("conv2d", 32, 16, 64, 128)


def measured():
    """Yield convolutions that an H100 timed: with all plans, and their milliseconds."""
    (path,) = RESULTS.glob("cudnn-nvidia-h100-*.json")
    for row in json.loads(path.read_text())["times"]:
        if row["workspace"] != "4 GiB":
            continue
        spec = spec_of(*(row[k] for k in ("op", "images", "side", "channels", "units")))
        times = {each["plan"]: each["milliseconds"] for each in row["plans"]}
        del times["cuda"]
        times = {name: ms for name, ms in times.items() if name != "eng0"}
        yield spec, times


def test_the_first_plan_is_about_the_fastest_that_was_measured():
    first, own, best = 0.0, 0.0, 0.0
    for spec, times in measured():
        order = ranked(times, spec, 90, tf32=False)
        assert sorted(order) == sorted(times)
        if spec.x[3] < 64:
            assert order == list(times)
            continue
        took, least = times[order[0]], min(times.values())
        assert took <= 1.35 * least, (spec, order[0])
        first, own, best = first + took, own + times[next(iter(times))], best + least
    assert first < 1.03 * best
    assert own > 1.3 * best


@pytest.mark.parametrize(
    "spec",
    [
        replace(SMALL, kernel=(1, 1, 64, 128)),
        replace(SMALL, strides=(2, 2)),
        replace(SMALL, dilation=(2, 2)),
        replace(SMALL, padding=((0, 1), (0, 1))),
        replace(SMALL, kernel=(3, 3, 1, 128)),  # groups
        replace(SMALL, op_type="conv2d_bias"),
    ],
)
def test_what_was_not_measured_is_as_cudnn_ranks_it(spec):
    names = ["eng28", "eng70_k2=2_k18=0", "eng50", "eng70_k2=4_k18=0", "eng17_k25=0"]
    assert ranked(names, spec, 90, tf32=False) == names
    for capability, tf32 in ((80, False), (120, False), (90, True)):
        assert ranked(names, SMALL, capability, tf32=tf32) == names


def test_a_number_of_a_plan_is_read_to_its_end():
    names = ["eng70_k2=40_k18=0", "eng505", "eng70_k2=2_k18=0", "eng28"]
    assert ranked(names, SMALL, 90, tf32=False) == [
        *("eng70_k2=2_k18=0", "eng70_k2=40_k18=0", "eng505", "eng28")
    ]
    gradient = replace(SMALL, op_type="conv2d_gradient_input")
    assert ranked(["eng505", "eng50"], gradient, 90, tf32=False) == ["eng50", "eng505"]


@pytest.mark.parametrize("op", ["conv2d", "conv2d_bias", "conv2d_gradient_input"])
def test_workspace_grows_with_the_images_between_two_bounds(op):
    limits = [
        workspace_limit(spec_of(op, images, 16, 128, 128)) / MIB
        for images in (1, 170, 256, 512, 4096)
    ]
    assert limits == [64, 64, 96, 192, 256]
