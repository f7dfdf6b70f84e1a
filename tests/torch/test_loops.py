"""Loops of others train budgeted models as they train others: the same losses.

transformers' Trainer, Lightning, accelerate and peft with their defaults, and Keras on
its PyTorch backend, with evaluation and checkpoints.
"""

from __future__ import annotations

import gc
import os
import warnings

import numpy as np
import pytest
import torch
from conformance import torchvision
from torch import nn

import memcfg.torch as mt

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of these libraries, and of PyTorch
]
WORDS = 64


def library(name):
    """Import a library of others, or skip the test."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torchvision()
    return pytest.importorskip(name, reason=f"needs {name}: tox run -e parity")


def gpt():
    transformers = library("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_embd=32,
            n_layer=1,
            n_head=2,
            n_positions=32,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, length=12):
        generator = torch.Generator().manual_seed(3)
        self.words = torch.randint(3, WORDS, (count, length), generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, at):
        return {"input_ids": self.words[at], "labels": self.words[at]}


def trainer(model, folder, **more):
    """A Trainer with its defaults, but for what it logs and how often it saves."""
    transformers = library("transformers")
    library("accelerate")
    callbacks = more.pop("callbacks", None)
    settings = {
        "num_train_epochs": 1,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "per_device_train_batch_size": 4,
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        model,
        transformers.TrainingArguments(str(folder), **settings | more),
        train_dataset=Sentences(12),
        eval_dataset=Sentences(4),
        callbacks=callbacks,
    )


def logged(run):
    keys = ("loss", "eval_loss", "grad_norm")
    return [[entry.get(key) for key in keys] for entry in run.state.log_history]


def same_state(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[key], theirs[key]) for key in mine
    )


def test_trainer_of_transformers(tmp_path):
    plain = trainer(gpt(), tmp_path / "plain")
    plain.train()
    model = mt.budget(gpt(), "500KiB")
    run = trainer(model, tmp_path / "own")
    run.train()
    assert mt.get_budget(model).predicted_peak_bytes <= 500 * 1024
    assert logged(run) == logged(plain)
    assert same_state(model, plain.model)
    (checkpoint,) = (tmp_path / "own").iterdir()
    assert [e.name for e in (tmp_path / "plain").iterdir()] == [checkpoint.name]
    assert same_state(type(model).from_pretrained(checkpoint), model)


def test_callback_of_transformers(tmp_path, pool):
    library("transformers")
    from memcfg.torch.integrations.transformers import BudgetCallback

    model = gpt()
    callback = BudgetCallback("500KiB")
    run = trainer(model, tmp_path, save_strategy="no", callbacks=[callback])
    run.train()
    peaks = [
        [entry.get(f"memory/{kind}_peak_bytes") for kind in ("predicted", "measured")]
        for entry in run.state.log_history
        if "loss" in entry
    ]
    assert len(peaks) == 3
    assert all(0 < predicted <= 500 * 1024 for predicted, _ in peaks)
    assert all(measured > 0 for _, measured in peaks)
    assert "forward" not in vars(model)  # the budget is off again


def test_the_error_in_a_trainer_names_the_largest_batch(tmp_path):
    library("transformers")
    from memcfg.torch.integrations.transformers import BudgetCallback

    settings = {"per_device_train_batch_size": 12, "save_strategy": "no"}
    callback = BudgetCallback("520KiB")
    run = trainer(gpt(), tmp_path, **settings, callbacks=[callback])
    with pytest.raises(mt.InfeasibleStepError, match="largest batch that fits") as info:
        run.train()
    batch = info.value.largest_batch
    assert 1 <= batch < 12
    assert f"batch_size={batch}" in str(info.value)


def test_trainer_finds_a_batch_size(tmp_path):
    library("transformers")
    from memcfg.torch.integrations.transformers import BudgetCallback

    settings = {"per_device_train_batch_size": 12, "auto_find_batch_size": True}
    callbacks = [BudgetCallback("520KiB")]
    run = trainer(gpt(), tmp_path, **settings, save_strategy="no", callbacks=callbacks)
    run.train()
    assert run.state.train_batch_size < 12


def test_a_model_is_saved_generates_and_is_exported(tmp_path):
    model, plain = mt.budget(gpt(), "900KiB"), gpt()
    model.save_pretrained(tmp_path)
    assert same_state(type(model).from_pretrained(tmp_path), plain)
    model.eval()
    plain.eval()
    words = Sentences(2, 5)[:]["input_ids"]
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        model.generate(words, **options), plain.generate(words, **options)
    )
    inputs = {"input_ids": words, "use_cache": False}
    exported = torch.export.export(model, (), inputs).module()
    assert torch.equal(exported(**inputs).logits, plain(**inputs).logits)


def test_adapters_of_peft():
    peft = library("peft")

    def losses(limit):
        config = peft.LoraConfig(r=4, target_modules=["c_attn"])
        model = peft.get_peft_model(gpt(), config)
        if limit is not None:
            mt.budget(model, limit)
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer, found = torch.optim.Adam(trained, 1e-2), []
        for seed in range(3):
            torch.manual_seed(seed)
            loss = model(**Sentences(2)[:]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    assert losses("400KiB") == losses(None)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)
    )


def loader():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(24, 16, generator=generator)
    y = torch.randint(4, (24,), generator=generator)
    data = torch.utils.data.TensorDataset(x, y)
    return torch.utils.data.DataLoader(data, 8)


def lit(model):
    lightning = library("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = model, []

        def forward(self, x):
            return self.net(x)

        def _loss(self, batch):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.seen.append(loss.item())
            return loss

        def training_step(self, batch, _):
            return self._loss(batch)

        def validation_step(self, batch, _):
            self.log("validation", self._loss(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    return Module()


def fitted(module, folder, **options):
    lightning = library("lightning")
    torch.manual_seed(1)
    run = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        **{"logger": False} | options,
    )
    run.fit(module, loader(), loader())
    return run


def test_module_of_lightning(tmp_path):
    plain = lit(perceptron())
    fitted(plain, tmp_path / "plain")
    module = mt.budget(lit(perceptron()), "100KiB")
    run = fitted(module, tmp_path / "own")
    assert module.seen == plain.seen
    assert same_state(module, plain)
    run.save_checkpoint(tmp_path / "own.ckpt")
    again = lit(perceptron())
    state = torch.load(tmp_path / "own.ckpt", weights_only=False)["state_dict"]
    again.load_state_dict(state)
    assert same_state(again, plain)


def test_callback_of_lightning(tmp_path, pool):
    lightning = library("lightning")
    from memcfg.torch.integrations.lightning import BudgetCallback

    class Logger(lightning.pytorch.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.found = []

        def log_metrics(self, metrics, step=None):
            self.found.append(metrics)

    plain = lit(perceptron())
    fitted(plain, tmp_path / "plain")
    logger = Logger()
    module = lit(perceptron())
    options = {"logger": logger, "log_every_n_steps": 1}
    callback = BudgetCallback("100KiB")
    fitted(module, tmp_path / "own", callbacks=[callback], **options)
    assert module.seen == plain.seen
    assert "forward" not in vars(module)
    peaks = [e for e in logger.found if "memory/predicted_peak_bytes" in e]
    assert len(peaks) == 3
    assert all(0 < e["memory/predicted_peak_bytes"] <= 100 * 1024 for e in peaks)
    assert all(e["memory/measured_peak_bytes"] > 0 for e in peaks)


def test_callback_of_lightning_names_the_largest_batch(tmp_path):
    library("lightning")
    from memcfg.torch.integrations.lightning import BudgetCallback

    with pytest.raises(mt.InfeasibleStepError) as none:
        fitted(lit(perceptron()), tmp_path, callbacks=[BudgetCallback("1KiB")])
    assert none.value.largest_batch == 0
    limit = none.value.smallest_limit_bytes - 64
    with pytest.raises(mt.InfeasibleStepError) as info:
        fitted(lit(perceptron()), tmp_path, callbacks=[BudgetCallback(limit)])
    assert 1 <= info.value.largest_batch < 8
    assert f"batch_size={info.value.largest_batch}" in str(info.value)


def test_callback_of_lightning_says_that_a_module_is_not_called(tmp_path):
    library("lightning")
    from memcfg.torch.integrations.lightning import BudgetCallback

    module = lit(perceptron())
    module.training_step = lambda batch, batch_idx: module.net(batch[0]).mean()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted(module, tmp_path, callbacks=[BudgetCallback("100KiB")])
    told = [e for e in caught if "does not call the module" in str(e.message)]
    assert len(told) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after prepare"])
def test_accelerate(tmp_path, after):
    accelerate = library("accelerate")

    def losses(limit):
        model = perceptron()
        optimizer = torch.optim.AdamW(model.parameters())
        accelerator = accelerate.Accelerator(cpu=True)
        if limit is not None and not after:
            mt.budget(model, limit)
        model, optimizer, data = accelerator.prepare(model, optimizer, loader())
        if limit is not None and after:
            mt.budget(model, limit)
        found = []
        for x, y in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            found.append(loss.item())
        accelerator.save_state(tmp_path / "state")
        accelerator.load_state(tmp_path / "state")
        accelerator.save_model(model, tmp_path / "model")
        accelerator.free_memory()
        return found

    assert losses("60KiB") == losses(None)


def test_a_helper_of_accelerate_finds_a_batch_size():
    accelerate = library("accelerate")
    sizes = []

    def halved():
        return sizes[-1] // 2

    @accelerate.utils.find_executable_batch_size(
        starting_batch_size=256, reduce_batch_size_fn=halved
    )
    def train(batch_size):
        sizes.append(batch_size)
        gc.collect()
        model = mt.budget(perceptron(), "60KiB")
        model(torch.ones(batch_size, 16)).square().mean().backward()
        return batch_size

    found = train()
    assert sizes[0] == 256
    floors = [
        mt.estimate(perceptron(), (torch.ones(n, 16),)).floor_bytes
        for n in (found, 2 * found)
    ]
    assert floors[0] <= 60 * 1024 < floors[1]


def keras_network(keras):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def test_keras_on_pytorch(tmp_path):
    keras = library("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("needs KERAS_BACKEND=torch: tox run -e parity")
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 12, 12, 3)).astype("f4")
    y = random.integers(0, 4, 20)

    def results(limit):
        model = keras_network(keras)
        if limit is not None:
            mt.budget(model, limit)
        best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
        callbacks = [best, keras.callbacks.EarlyStopping(patience=3)]
        history = model.fit(
            x,
            y,
            batch_size=4,
            epochs=2,
            verbose=0,
            validation_split=0.2,
            callbacks=callbacks,
        )
        evaluated = model.evaluate(x, y, batch_size=4, verbose=0)
        predicted = model.predict(x, batch_size=4, verbose=0)
        again = keras.models.load_model(tmp_path / "best.keras")
        assert np.array_equal(again.predict(x, batch_size=4, verbose=0), predicted)
        if limit is not None:
            assert mt.get_budget(model).predicted_peak_bytes <= 256 * 1024
        return history.history, evaluated, predicted

    one, other = results("256KiB"), results(None)
    assert one[:2] == other[:2]
    assert np.array_equal(one[2], other[2])


def test_options_of_callbacks_are_checked():
    library("transformers")
    from memcfg.torch.integrations.transformers import BudgetCallback

    with pytest.raises(TypeError, match="the optimizer is that of the loop"):
        BudgetCallback("1MiB", optimizer=None)
    with pytest.raises(ValueError, match="cannot read '1 furlong'"):
        BudgetCallback("1 furlong")
