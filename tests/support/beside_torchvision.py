"""Networks of the zoo beside torchvision's, with the same weights."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import save_file
from torchvision_ops import torchvision

import memcfg as mc

torch = pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")
if find_spec("torchvision") is None:
    pytest.skip("needs torchvision: tox run -e parity", allow_module_level=True)

theirs = torchvision().models


def made(name, seed=3, **options):
    """Return torchvision's network with weights that no initialiser would give."""
    torch.manual_seed(seed)
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    network = getattr(theirs, name)(**options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if key.endswith("running_var"):
                value.uniform_(0.5, 1.5, generator=generator)
            elif key.endswith(("running_mean", "bias")):
                value.normal_(0, 0.1, generator=generator)
            elif value.ndim == 1:  # of batch normalisation
                value.uniform_(0.5, 1.5, generator=generator)
    return network


def saved(network, path):
    """Write the weights of a network to a safetensors file."""
    save_file({k: v.numpy() for k, v in network.state_dict().items()}, path)
    return path


def images(samples, shape, seed=5):
    return np.random.default_rng(seed).normal(size=(samples, *shape)).astype("f4")


def channels_first(x):
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def loaded(ours, network, tmp_path):
    mc.models.load_torchvision_weights(ours, saved(network, tmp_path / "w.safetensors"))
    return ours
