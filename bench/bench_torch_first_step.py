"""Measure what comes before the first step of a PyTorch model: trace, costs, plan.

Each model has the size of its paper and random weights. Each measurement is a process
of its own, on one thread, by processor time; others may work on the machine.

* ``trace``: Dynamo and AOTAutograd trace the joint graph, without memcfg.
* ``aot_eager``: a first step compiled by PyTorch's backend, less a second step.
* ``estimate``: `mt.estimate` with empty caches of costs and plans; ``estimate_again``:
  in another process, with those that it left.
* ``first_step``: `mt.budget(..., example=)` within the mean of peak and floor, and the
  first step, less a second step, with the costs that the estimate left; and
  ``first_step_again`` with the plans, too.

``python bench torch_first_step --output bench/results/torch_first_step.json``, in the
environment of ``tox run -e parity``; ``python bench/tables`` makes the table. A result
file that exists is continued. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
import torch
from torch._dynamo.backends.common import aot_autograd

import memcfg.torch as mt

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from torchvision_ops import torchvision

Made = tuple[torch.nn.Module, dict[str, Any]]


def image_model(name: str) -> Made:
    import timm

    return timm.create_model(name), {"x": torch.randn(4, 3, 224, 224)}


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    words = torch.randint(50_000, (1, 256))
    return GPT2LMHeadModel(GPT2Config()), {"input_ids": words}


def bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    words = torch.randint(30_000, (4, 128))
    return BertForSequenceClassification(BertConfig()), {"input_ids": words}


def llama(**sizes: int) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=4096, use_cache=False, **sizes)
    words = torch.randint(4096, (1, 256))
    return LlamaForCausalLM(config), {"input_ids": words}


MODELS: dict[str, Callable[[], Made]] = {
    "resnet50": lambda: image_model("resnet50"),
    "mobilenetv3_large_100": lambda: image_model("mobilenetv3_large_100"),
    "vit_base_patch16_224": lambda: image_model("vit_base_patch16_224"),
    "bert-base": bert,
    "gpt2": gpt2,
    "llama, 16 layers": lambda: llama(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=16
    ),
}


class Traced(Exception):  # noqa: N818 - no error
    """Ends a compilation once the joint graph is traced."""


def _stop(*_: Any, **__: Any) -> Any:
    raise Traced


def traced(module: Any, inputs: Any) -> Any:
    """A backend that ends with the joint graph."""
    return aot_autograd(
        fw_compiler=_stop,
        bw_compiler=_stop,
        inference_compiler=_stop,
        partition_fn=_stop,
    )(module, inputs)


def seconds_of(run: Callable[[], Any]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def step(model: Callable[..., Any], module: torch.nn.Module, inputs: Any) -> None:
    for each in module.parameters():
        each.grad = None
    made = model(**inputs)
    getattr(made, "logits", made).sum().backward()


def trace(module: torch.nn.Module, inputs: Any) -> dict[str, float]:
    compiled = torch.compile(module, backend=traced, fullgraph=True, dynamic=False)

    def run() -> None:
        try:
            compiled(**inputs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, Traced):
                raise

    with torch._dynamo.config.patch(verbose=False):
        return {"trace": seconds_of(run)}


def aot_eager(module: torch.nn.Module, inputs: Any) -> dict[str, float]:
    compiled = torch.compile(module, backend="aot_eager", dynamic=False)
    first = seconds_of(lambda: step(compiled, module, inputs))
    return {"aot_eager": first - seconds_of(lambda: step(compiled, module, inputs))}


def estimate(module: torch.nn.Module, inputs: Any) -> dict[str, float]:
    found = []
    options = {"example_kwargs": inputs}
    spent = seconds_of(lambda: found.append(mt.estimate(module, **options)))
    limit = (found[0].peak_bytes + found[0].floor_bytes) // 2
    return {"estimate": spent, "limit_bytes": limit}


def first_step(module: torch.nn.Module, inputs: Any, limit: int) -> dict[str, float]:
    def first() -> None:
        mt.budget(module, limit, example_kwargs=inputs)
        step(module, module, inputs)

    spent = seconds_of(first)
    return {"first_step": spent - seconds_of(lambda: step(module, module, inputs))}


def _measure(name: str, run: Callable[..., Any], more: Any, pipe: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    module, inputs = MODELS[name]()
    pipe.send(run(module.train(), inputs, *more))


def measured(name: str, run: Callable[..., Any], *more: Any) -> dict[str, float]:
    """Measure a model in a forked process."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=_measure, args=(name, run, more, there)
    )
    child.start()
    there.close()
    try:
        return here.recv()
    finally:
        child.join()


def measure(name: str) -> dict[str, Any]:
    """Measure all of a model."""
    result: dict[str, Any] = {"model": name}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMCFG_TORCH_COSTS"] = os.path.join(folder, "costs")
        os.environ["MEMCFG_TORCH_PLANS"] = os.path.join(folder, "plans")
        result |= measured(name, trace) | measured(name, aot_eager)
        result |= measured(name, estimate)
        result["estimate_again"] = measured(name, estimate)["estimate"]
        limit = result["limit_bytes"]
        for key in ("first_step", "first_step_again"):
            result[key] = measured(name, first_step, limit)["first_step"]
    return result


def warm_up() -> None:
    """Import what PyTorch's compiler imports when it runs, before processes fork."""
    torch.set_num_threads(1)
    torchvision()
    import timm  # noqa: F401
    from transformers import (  # noqa: F401
        BertForSequenceClassification,
        GPT2LMHeadModel,
        LlamaForCausalLM,
    )

    os.environ["MEMCFG_TORCH_PLANS"] = "none"
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    mt.estimate(model, (x,), times="nominal")
    torch.compile(model, backend="aot_eager")(x).sum().backward()
    torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="parts of names (default: all)")
    parser.add_argument("--output", type=Path, help="the file of the results")
    options = parser.parse_args()
    warm_up()
    results: dict[str, Any] = {}
    if options.output is not None and options.output.exists():
        document = json.loads(options.output.read_text(encoding="utf-8"))
        results = {each["model"]: each for each in document["results"]}
    for name in MODELS:
        wanted = not options.models or any(part in name for part in options.models)
        if name in results or not wanted:
            continue
        results[name] = measure(name)
        print(results[name], flush=True)
        if options.output is not None:
            place = machine.facts() | {"torch": torch.__version__, "threads": 1}
            document = {"environment": place, "results": list(results.values())}
            text = json.dumps(document, indent=1) + "\n"
            options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
