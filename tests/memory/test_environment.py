"""The environment's limits hold for resources that are made by hand, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from machine import resident_bytes


def run_python(source: str, **variables: str) -> str:
    """Run a program under variables of the environment; returns what it prints."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MEMCFG_MAX_")
    }
    done = subprocess.run(
        [sys.executable, "-c", f"from memcfg import memory\n{source}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment | variables,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rstrip()


ASK = """
for resource in memory.Pool(), memory.Pool(memory.system()), memory.system():
    try:
        resource.allocate(2**30)
        print("granted")
    except MemoryError as error:
        print(error.message)
"""
TELL = """
try:
    memory.{make}
except (MemoryError, ValueError) as error:
    print(type(error).__name__, error)
"""


def test_the_tracked_limit_holds_before_any_device_is_used():
    refused = run_python(ASK, MEMCFG_MAX_BYTES="1MiB").splitlines()
    assert len(refused) == 3
    assert "all pools" in refused[0]
    assert "granted" not in refused
    assert run_python(ASK).splitlines() == ["granted"] * 3


@pytest.mark.skipif(resident_bytes() == 0, reason="nobody tells what is resident")
def test_the_resident_limit_does():
    refused = run_python(ASK, MEMCFG_MAX_RSS_BYTES="512MiB").splitlines()
    assert len(refused) == 3
    assert "resident" in refused[0]
    assert "granted" not in refused


@pytest.mark.strength(1)
@pytest.mark.parametrize("make", ["Pool()", "system()", "Pool(memory.system())"])
@pytest.mark.parametrize("variable", ["MEMCFG_MAX_BYTES", "MEMCFG_MAX_RSS_BYTES"])
@pytest.mark.parametrize("text", ["much", "0", "-1", "0%", f"{2**63}"])
def test_what_cannot_be_read_is_an_error_that_names_the_variable(make, variable, text):
    told = run_python(TELL.format(make=make), **{variable: text})
    assert told.startswith(f"FormatError cannot read {variable}={text!r}")
    assert told.endswith("write a size, such as '2GiB' or '50%'")


def test_a_share_is_of_the_machine():
    source = "memory.Pool(); print(config.set_host_memory_limit().tracked)"
    told = run_python(f"from memcfg import config; {source}", MEMCFG_MAX_BYTES="50%")
    assert 0 < int(told) < 2**50


@pytest.mark.skipif(resident_bytes() == 0, reason="nobody tells what is resident")
def test_less_than_is_resident_already_is_an_error_that_names_the_variable():
    told = run_python(TELL.format(make="Pool()"), MEMCFG_MAX_RSS_BYTES="1MiB")
    assert told.startswith(
        "ResourceExhaustedError MEMCFG_MAX_RSS_BYTES='1MiB' is below"
    )
    assert told.endswith("Raise MEMCFG_MAX_RSS_BYTES, or unset it.")


def test_code_that_was_first_is_not_overruled():
    told = run_python(
        "from memcfg import config\n"
        "config.set_host_memory_limit(tracked='2MiB')\n"
        "memory.Pool()\n"
        "print(config.set_host_memory_limit())",
        MEMCFG_MAX_BYTES="1MiB",
    )
    assert told == "HostLimits(tracked=2097152, rss=None)"


def test_a_device_and_a_pool_read_it_once():
    told = run_python(
        "import os\n"
        "from memcfg import config\n"
        "memory.Pool()\n"
        "os.environ['MEMCFG_MAX_BYTES'] = '2MiB'\n"
        "config.list_logical_devices()\n"
        "print(config.set_host_memory_limit())\n"
        "config.reset()\n"
        "print(config.set_host_memory_limit())",
        MEMCFG_MAX_BYTES="1MiB",
    )
    assert [line.split(",")[0] for line in told.splitlines()] == [
        "HostLimits(tracked=1048576",
        "HostLimits(tracked=2097152",
    ]
