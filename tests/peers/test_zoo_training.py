"""With the same first weights, networks of the zoo have PyTorch's first 50 losses."""

from __future__ import annotations

import numpy as np
import pytest
from beside_torchvision import channels_first, loaded, theirs, torch

import memcfg as mc

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
nn, tn = mc.nn, torch.nn
STEPS, RATE, MOMENTUM = 50, 0.01, 0.9


class LeNet5(tn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = tn.Conv2d(1, 6, 5), tn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = (
            tn.Linear(*each) for each in ((400, 120), (120, 84), (84, 10))
        )

    def forward(self, x):
        for conv in (self.conv1, self.conv2):
            x = torch.nn.functional.max_pool2d(conv(x).relu(), 2)
        x = self.fc2(self.fc1(x.flatten(1)).relu()).relu()
        return self.fc3(x)


NETWORKS = {  # channels, theirs, ours
    "lenet5": (1, LeNet5, mc.models.lenet5),
    # Where blocks begin as the identity, as torchvision offers, roundings stay small.
    "resnet18": (
        *(3, lambda: theirs.resnet18(num_classes=10, zero_init_residual=True)),
        lambda: mc.models.resnet18((32, 32, 3), 10),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_losses_are_pytorchs(name, tmp_path):
    """Of one batch: on others PyTorch itself departs from float64 within ten steps."""
    channels, make, make_ours = NETWORKS[name]
    torch.manual_seed(0)
    network = make().train()
    ours = loaded(make_ours(), network, tmp_path)
    ours.compile(
        nn.SGD(RATE, momentum=MOMENTUM),
        nn.SparseCategoricalCrossentropy(from_logits=True),
    )
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 32, 32, channels)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    found, wanted = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs = network(channels_first(x))
        loss = tn.functional.cross_entropy(outputs, torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
        found.append(ours.train_on_batch(x, y))
    ours.close()
    assert wanted[-1] < 0.99 * wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * wanted[0])
