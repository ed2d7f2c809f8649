"""README's section on TPU, run on CPU as far as it goes.

What stands in for the TPU is said by `on_cpu`: `device_map="tpu"` becomes `"cpu"`, the launch is of gloo ranks
(`--device cpu`), and the models are two narrow checkpoints with a tokenizer of words that the test makes. That the
snippets do the same on a chip is not shown here; `tpplan verify`, which needs one, is not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import checkpoints
from tests.support.readme import HOME, README, shown, snippet
from tests.support.tpu import needs_no_chips, python_with_torch_tpu


def on_cpu(code: str, **models: Path) -> str:
    """The snippet with cpu for tpu, and a checkpoint of the test for each model id."""
    for name, directory in models.items():
        found = re.search(rf"[\w.-]+/{re.escape(name.replace('_', '-'))}", code)
        assert found, f"README does not name {name}"
        code = code.replace(found[0], directory.name)
    return code.replace('device_map="tpu"', 'device_map="cpu"')


def with_tokenizer(directory: Path) -> Path:
    """The checkpoint with a tokenizer that knows the words of the prompt and some more."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", *"The capital of France is".split()]
    vocabulary = {word: number for number, word in enumerate([*words, *(f"word{n}" for n in range(87))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(directory)
    return directory


def run(command: list[str], directory: Path, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join((str(HOME), os.environ.get("PYTHONPATH", "")))
    given = os.environ | {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | environment
    return subprocess.run(command, cwd=directory, env=given, capture_output=True, text=True, timeout=300)


def test_one_chip_generates(tmp_path: Path) -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(**checkpoints.SMALL, num_attention_heads=8, num_key_value_heads=2, head_dim=8)
    model = with_tokenizer(checkpoints.save(config, tmp_path / "qwen3"))
    script = tmp_path / "single.py"
    script.write_text(on_cpu(snippet("single-chip"), Qwen3_8B=model), encoding="utf-8")
    done = run([sys.executable, script.name], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is ")


def test_several_ranks_generate_what_one_does(tmp_path: Path) -> None:
    """The plan for the TPU, then generate.py under `tpplan launch` on four gloo ranks, against the unsharded model."""
    model = with_tokenizer(checkpoints.glm4(tmp_path / "glm4", max_position_embeddings=64))
    commands = [line.split()[1:] for line in on_cpu(snippet("tensor-parallel"), GLM_4_9B_0414=model).splitlines()]
    plan, (name, *options), verify = commands
    assert (plan[0], name, verify[0]) == ("plan", "launch", "verify")
    planned = run([sys.executable, "-m", "tpplan", *plan], tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert verify[1:] == [plan[plan.index("-o") + 1]] and (tmp_path / verify[1]).exists()
    code = on_cpu(snippet("generate.py"), GLM_4_9B_0414=model)
    (tmp_path / "generate.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "tpplan", "launch", "--device", "cpu", "--standalone", *options]
    launched = run(command, tmp_path)  # standalone: at a free port, for the suite may run beside a launch
    assert launched.returncode == 0, launched.stderr
    whole = code.replace(", distributed_config=config", "").replace("torch.distributed.get_rank() == 0", "True")
    (tmp_path / "whole.py").write_text(whole, encoding="utf-8")
    alone = run([sys.executable, "whole.py"], tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert launched.stdout == alone.stdout != "", "rank 0 alone prints, and the same tokens"


def test_several_hosts(tmp_path: Path) -> None:
    """The block in a shell with the real torch_tpu; what would start the ranks is printed in place of it."""
    stand_in = f'case "$*" in *--print-env*) exec {python_with_torch_tpu()} -m tpplan "$@";; *) echo "$@";; esac\n'
    (tmp_path / "tpplan").write_text(f"#!/bin/sh\n{stand_in}", encoding="utf-8")
    (tmp_path / "tpplan").chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    done = run(["bash", "-euo", "pipefail", "-c", snippet("several-hosts")], tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    options = "--nnodes=4 --node_rank=0 --master_addr=host-0 --master_port=29500 --nproc_per_node=4"
    assert done.stdout == f"launch {options} generate.py\n"


def test_what_the_doctor_is_shown_to_say(tmp_path: Path) -> None:
    needs_no_chips()
    [block] = [block for block in shown() if block.command.startswith("tpplan doctor ")]
    command, pipe = block.command.split(" | ")
    assert pipe == "grep -A1 failed"
    done = run([sys.executable, "-m", *command.split()], tmp_path, LD_PRELOAD="")
    assert done.returncode == 1
    said = {line.rstrip() for line in done.stdout.splitlines()}
    wanted = [line.rstrip() for line in block.output.splitlines()]
    assert len(wanted) > 4 and [line for line in wanted[:-1] if line not in said] == []


def test_the_sizes_in_the_text_are_the_table_s() -> None:
    from tpplan.choices import Device
    from tpplan.targets import TARGETS

    text = " ".join(README.read_text(encoding="utf-8").split())
    assert "one host runs 1, 4 or 8 devices on v5e and v6e, also 2 on v4 and v5p, 2, 4 or 8 on v7" in text
    counts = {device: TARGETS[device].host_counts for device in Device}
    assert counts[Device.TPU_V5E] == counts[Device.TPU_V6E] == (1, 4, 8)
    assert counts[Device.TPU_V4] == counts[Device.TPU_V5P] == (1, 2, 4, 8)
    assert counts[Device.TPU_V7] == (2, 4, 8)
    assert (TARGETS[Device.TPU_V5E].topology(16), TARGETS[Device.TPU_V5E].hosts(16)) == ("4,4,1", 4)
