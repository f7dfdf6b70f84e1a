"""Reports and plans whose names are longer than a line."""

from __future__ import annotations

from dataclasses import replace

from training_graphs import chain

from memcfg.plan import Group, sqrt_checkpoint
from memcfg.runtime import MemoryReport, TimelineEntry

LONG = "encoder_" * 12 + "layer_7_kernel"


def a_report(name):
    entry = TimelineEntry(name, "backward", 2**43 - 1, 2**43, 99.99999)
    return MemoryReport(
        program=name,
        device=f"/device:{name}",
        limit_bytes=2**43,
        predicted_peak_bytes=2**43 - 1,
        measured_peak_bytes=2**43 - 1,
        changed_peak_bytes=2**43 - 64,
        verified=True,
        arena_bytes=2**43 - 1,
        by_role={"activation_gradient": 2**43 - 1, "optimizer_state": 1},
        timeline=(entry,) * 40,
        mode="separate",
    )


def a_plan(name):
    plan = sqrt_checkpoint()(chain(20))
    group = Group(12, 2**40 - 1, (name, name + "1", name + "2"))
    facts = replace(
        plan.summary,
        kept=group,
        in_place=group,
        recomputed=group,
        peak_op=name,
        chosen_by="auto",
        unproven=True,
    )
    return replace(plan, graph=name, summary=facts)
