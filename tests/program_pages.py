"""The pages of docs/programs as programs: their code as a module, their command as words."""

import re
import shlex
from pathlib import Path

from gradlab.cli.arguments import normal

FOLDER = Path(__file__).parents[1] / "docs" / "programs"
NAMES = sorted(page.stem for page in FOLDER.glob("*.md"))
STILL = {"mixture": ("+model.kwargs.router_aux_loss_coef=0.0",)}
"""Without what is of a micro-batch as a whole, by definition."""
LARGE = {
    "speech": (("data.max_tokens=300", "accumulation.steps=99"), ("data.max_tokens=99999", "accumulation.steps=1")),
}
"""An epoch in parts and as a whole, where a micro-batch has no size."""


def written(name: str, folder: Path) -> list[list[str]]:
    """Write the code of a page into a folder; its commands, without `python`."""
    text = (FOLDER / f"{name}.md").read_text()
    code, *_ = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / f"{name}.py").write_text(code)
    bash = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    return [shlex.split(line)[1:] for line in bash.replace("\\\n", " ").splitlines()]


def overrides(name: str, folder: Path) -> tuple[str, ...]:
    """Of the run of a page."""
    return tuple(map(normal, written(name, folder)[-1][2:]))


def parts(name: str, given: tuple[str, ...], times: int = 4) -> list[tuple[str, ...]]:
    """The same updates of small and of large micro-batches, with SGD, which hides no factor."""
    size = next((int(o.partition("=")[2]) for o in given if o.startswith("data.batch_size=")), 32)
    batches = [int(o.partition("=")[2]) for o in given if o.startswith("data.batches=")]
    both = [
        (
            f"data.batch_size={size // times}",
            f"accumulation.steps={times}",
            *(f"data.batches={b * times}" for b in batches),
        ),
        (f"data.batch_size={size}", "accumulation.steps=1"),
    ]
    shared = (
        *[o for o in given if not o.startswith("data.workers")],
        *STILL.get(name, ()),
        "optimizer=sgd",
        "optimizer.lr=0.05",
    )
    return [(*plain(shared), *some) for some in LARGE.get(name, both)]


def plain(given: tuple[str, ...]) -> tuple[str, ...]:
    """For a short run by itself."""
    left = [o for o in given if not o.startswith(("trainer.epochs", "schedule", "data.workers"))]
    return (*left, "trainer.updates=4", "trainer.evaluate_every=0")
