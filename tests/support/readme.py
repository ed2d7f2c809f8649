"""README.md as the tests read it: its commands with the output that it shows for them, its snippets, its excerpts.

The published models that it names are in a cache of the hub that holds their config.json alone, see `hub_cache`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import configs

HOME = Path(__file__).parents[2]
README = HOME / "README.md"
REVISION = "0" * 40
PUBLISHED = {
    "Qwen/Qwen3-0.6B": configs.qwen3_06b,
    "Qwen/Qwen3-4B": configs.qwen3_4b,
    "Qwen/Qwen3-8B": configs.qwen3_8b,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": configs.qwen3_vl_30b_a3b,
    "microsoft/phi-4": configs.phi_4,
    "openai-community/gpt2-xl": configs.gpt2_xl,
    "openai/gpt-oss-20b": configs.gpt_oss_20b,
    "zai-org/GLM-4-9B-0414": configs.glm4_9b,
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A command of a console block, as it stands after `$ `, and the lines that follow it."""

    command: str
    output: str


def shown() -> list[Shown]:
    """Every command of the console blocks with its output, in the order of the text."""
    found = []
    for block in _blocks(r"console"):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = part.partition("\n")
            found.append(Shown(command=command, output=output))
    return found


def rewrite(old: Shown, output: str) -> None:
    """Put `output` in the place of what README shows for a command."""
    text = README.read_text(encoding="utf-8")
    before = f"$ {old.command}\n{old.output}"
    assert text.count(before) == 1
    README.write_text(text.replace(before, f"$ {old.command}\n{output}"), encoding="utf-8")


def snippet(name: str) -> str:
    """The code block with this name after its language."""
    [block] = _blocks(rf"\w+ {re.escape(name)}")
    return block


def blocks(language: str) -> list[str]:
    """The code blocks of this language that have no name."""
    return list(_blocks(re.escape(language)))


def hub_cache(directory: Path) -> Path:
    """A cache of the hub, made in `directory` as huggingface_hub keeps it, with the config of each published model."""
    for model_id, config in PUBLISHED.items():
        repository = directory / f"models--{model_id.replace('/', '--')}"
        configs.write(repository / "snapshots" / REVISION, config())
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(REVISION, encoding="utf-8")
    return directory


def _blocks(head: str) -> Iterator[str]:
    yield from re.findall(rf"^```{head}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
