"""Draw the pictures of timelines on the pages, as files beside this one.

Each is what a browser shows of the page, 900 pixels wide. Needs chromium, Pillow and
PyTorch: ``python docs/draw_timelines.py``, in the environment of ``tox run -e parity``.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

import memcfg.torch as mt

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, BELOW = 900, 820, 52  # pixels; those below the plot are cut off
RESNET = ("resnet50", "--batch", "32", "--limit")
UNET = ("unet", "--batch", "2", "--set", "input_shape=380,380,1", "--limit", "60%")
SWAPPING = (*UNET, "--spill-to", "host", "--run")
WORDS, LENGTH, FEATURES = 512, 64, 128


class Block(torch.nn.Module):
    """A block of a transformer, with a mask of the future."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (
            torch.nn.LayerNorm(FEATURES),
            torch.nn.LayerNorm(FEATURES),
        )
        self.attend = torch.nn.Linear(FEATURES, 3 * FEATURES)
        self.project = torch.nn.Linear(FEATURES, FEATURES)
        self.wide = torch.nn.Linear(FEATURES, 4 * FEATURES)
        self.narrow = torch.nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.attend(self.norm1(x)).view(batch, length, 3, 4, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(x.shape))
        hidden = torch.nn.functional.gelu(self.wide(self.norm2(x)))
        return x + self.narrow(hidden)


def page_of_network(path: Path, *words: str) -> None:
    """Write the page of a network's step."""
    command = [
        sys.executable,
        "-m",
        "memcfg",
        "timeline",
        *words,
        "--output",
        str(path),
    ]
    subprocess.run(command, check=True)


def page_of_gpt(path: Path) -> None:
    """Write the page of a PyTorch model's step within 60 % of its peak."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, FEATURES),
        *(Block() for _ in range(6)),
        torch.nn.Linear(FEATURES, WORDS),
    )
    tokens = torch.randint(0, WORDS, (32, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = torch.nn.functional.cross_entropy

    def loss(y: torch.Tensor) -> torch.Tensor:
        return loss_of(y[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    found = mt.estimate(model, (tokens,), optimizer=optimizer, loss=loss)
    limit = int(0.6 * found.peak_bytes)
    mt.budget(model, limit, example=(tokens,), optimizer=optimizer, loss=loss)
    loss(model(tokens)).backward()
    optimizer.step()
    mt.get_budget(model).memory_timeline().save(path)


def page_of_program(path: Path) -> None:
    """Write the page of a device's history, which an example records."""
    example = HERE.parent / "examples" / "84_record_a_program.py"
    subprocess.run([sys.executable, str(example), str(path.parent)], check=True)
    path.with_name("program.html").replace(path)


def picture_of(page: Path) -> Image.Image:
    """Return what a browser shows of a page, without what is below the plot."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "page.png")
        size = f"--window-size={WIDTH},{HEIGHT}"
        flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu")
        command = ["chromium", *flags, size, f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    return image.crop((0, 0, WIDTH, HEIGHT - BELOW))


def write(name: str, pictures: list[Image.Image]) -> None:
    """Write pictures below each other, in 128 colours."""
    whole = Image.new("RGB", (WIDTH, sum(each.height for each in pictures)))
    top = 0
    for each in pictures:
        whole.paste(each, (0, top))
        top += each.height
    whole.quantize(128).save(HERE / name, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        pictures = []
        for limit in ("100%", "70%", "50%"):
            page_of_network(page, *RESNET, limit)
            pictures.append(picture_of(page))
        write("timeline-limits.png", pictures)
        page_of_network(page, *SWAPPING)
        write("timeline-swapping.png", [picture_of(page)])
        page_of_gpt(page)
        write("timeline-pytorch.png", [picture_of(page)])
        page_of_program(page)
        write("timeline-program.png", [picture_of(page)])


if __name__ == "__main__":
    main()
