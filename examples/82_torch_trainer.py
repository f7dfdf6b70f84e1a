"""Fine-tune with the Trainer of transformers within a limit, to the losses of none."""

import os
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are random
try:
    import torchvision  # noqa: F401 - which transformers imports where it is there
except (ImportError, RuntimeError):  # it is not, or is built for another PyTorch
    sys.modules["torchvision"] = None
try:
    import accelerate  # noqa: F401 - which the Trainer needs
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except ImportError:
    sys.exit("This example needs: pip install torch transformers accelerate")

import memcfg.torch as mt
from memcfg.torch.integrations.transformers import BudgetCallback
from memcfg.units import format_bytes

WORDS, LENGTH, BATCH = 64, 24, 8


def model():
    """A small GPT-2, the same each time."""
    torch.manual_seed(0)
    size = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 1}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(n_head=2, **size, **ends))


class Sentences(torch.utils.data.Dataset):
    """Words that follow from the word before."""

    def __len__(self):
        return 4 * BATCH

    def __getitem__(self, at):
        words = (torch.arange(LENGTH) * (at % 5 + 1)) % WORDS
        return {"input_ids": words, "labels": words}


def train(callbacks):
    """Train for an epoch with the Trainer's defaults; its log."""
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        data = Sentences()
        run = Trainer(model(), settings, train_dataset=data, callbacks=callbacks)
        run.train()
        return [entry for entry in run.state.log_history if "loss" in entry]


warnings.simplefilter("ignore")
plain = train([])
estimate = mt.estimate(
    model(), example_kwargs=torch.utils.data.default_collate([Sentences()[0]] * BATCH)
)
limit = (estimate.floor_bytes + estimate.eager_bytes) // 2 + 150_000  # for AdamW
budgeted = train([BudgetCallback(limit)])
assert [entry["loss"] for entry in budgeted] == [entry["loss"] for entry in plain]
peak = int(budgeted[-1]["memory/predicted_peak_bytes"])
print(f"the same losses, down to {budgeted[-1]['loss']:.3f}")
print(f"within {format_bytes(limit)}: a step needs {format_bytes(peak)}")
