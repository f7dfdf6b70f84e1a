"""Graphs that are written of steps of PyTorch: the same bytes in each process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import memcfg.torch as mt
from memcfg.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore")

# A network with random ops that can be replayed, of more bytes than their states.
WRITES = """
import sys, torch, memcfg.torch as mt
torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 512), torch.nn.ReLU(), torch.nn.Dropout(0.5),
    torch.nn.Linear(512, 512), torch.nn.Dropout(0.5), torch.nn.Linear(512, 4),
)
x = torch.ones(64, 8)
mt.export(model, (x,), sys.argv[1], loss=lambda out: out.sum(), times="nominal")
"""


def test_graphs_of_two_processes_are_the_same_bytes(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "other.json"]
    for path in paths:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", WRITES, str(path)],
            check=True,
            timeout=300,
        )
    one, other = (path.read_bytes() for path in paths)
    assert one == other
    types = {op.type for op in Graph.from_json(one.decode()).ops}
    assert "memcfg.state_before" in types


class _Twice(torch.nn.Module):
    def forward(self, x):
        return torch.ops.memcfg_tests.twice(x)


def test_types_of_other_ops_are_their_names(tmp_path):
    library = torch.library.Library("memcfg_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", torch.empty_like, "Meta")
    path = tmp_path / "graph.json"
    with torch.no_grad():
        mt.export(_Twice(), (torch.ones(4),), path, times="nominal")
    (op,) = Graph.from_json(path.read_text()).ops
    assert op.type == "memcfg_tests.twice"
