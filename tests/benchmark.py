"""python -m tests.benchmark: what a check costs, as ratios against baselines measured in the same run.

For GLM-4-9B: processor time of `tpplan check`, all stages, over that of a new process that only imports the model's
class and DTensor, with the most that it may be; the runs take turns. For each model: wall time of `tpplan check` in a
new process over the wall time of a new process that only imports torch and Transformers, its peak memory, and the same
at twice the ranks. Then, in one process that has imported both libraries: wall time of the library call, and of running
every layer instead of one of each kind. Last, wall time of `tpplan sizes` of a 70B model, over that of one check of it,
then of what is remembered and of what is sealed.

GLM-4-9B passes at 2 ranks and fails at 4, where a check also looks for a repair and for sizes that work.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 3
MODELS = {
    ("GLM-4-9B-0414", 2): {
        "model_type": "glm4",
        "architectures": ["Glm4ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 151552,
        "attention_bias": True,
        "dtype": "bfloat16",
    },
    ("Llama-3.1-70B", 4): {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "dtype": "bfloat16",
    },
    ("Llama-3.1-405B", 8): {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "dtype": "bfloat16",
    },
    ("DeepSeek-V3", 16): {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "vocab_size": 129280,
        "dtype": "bfloat16",
    },
}
CLASS = "import torch, transformers, torch.distributed.tensor; transformers.Glm4ForCausalLM"
MOST = {2: 1.25, 4: 1.4}  # tp_size -> times CLASS; at 4 with a repair and the sizes that work
IN_PROCESS = """
import json, sys, time
import torch, transformers
from tpplan import check
from tpplan.model.config import load_spec
from tpplan.model.skeleton import Sharding
from tpplan.stages.full_size import run_shapes
from tpplan.source import read_source
path, tp_size = sys.argv[1], int(sys.argv[2])
started = time.perf_counter(); check(path, tp_size); first = time.perf_counter() - started
started = time.perf_counter(); check(path, tp_size); second = time.perf_counter() - started
spec = load_spec(read_source(path))
some = run_shapes(spec, Sharding(tp_size=tp_size))
every = run_shapes(spec, Sharding(tp_size=tp_size), every_layer=True)
same = (some.stop and some.stop.module, some.logits_width) == (every.stop and every.stop.module, every.logits_width)
print(json.dumps([first, second, some.seconds, every.seconds, same]))
"""
FORTY = 40
SHIPPED = Path(__file__).parents[1] / "plans" / "glm-4-9b-0414.tp4.yaml"
SEALED = """
import json, sys, time
import torch, transformers
from transformers.models.glm4 import modeling_glm4
from tpplan import distributed_config
def seconds(**options):
    started = time.perf_counter(); distributed_config(sys.argv[1], **options); return time.perf_counter() - started
print(json.dumps([seconds(), seconds(trust="never")]))
"""


def main() -> None:
    baseline = statistics.median(_run([sys.executable, "-c", "import torch, transformers"])[0] for _ in range(REPEATS))
    print(f"baseline: a process that imports torch and transformers, {baseline:.2f} s (median of {REPEATS})")
    with tempfile.TemporaryDirectory() as directory:
        for (name, tp_size), config in MODELS.items():
            path = Path(directory) / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
            if name.startswith("GLM"):
                _against_class(name, str(path))
            _check(name, str(path), tp_size, baseline)
            _in_process(str(path), tp_size)
        _sizes(str(Path(directory) / "Llama-3.1-70B"))
        _second_time(Path(directory), baseline)


def _check(name: str, path: str, tp_size: int, baseline: float) -> None:
    for size in (tp_size, 2 * tp_size):
        command = [sys.executable, "-m", "tpplan", "check", path, "--tp-size", str(size)]
        runs = [_run(command) for _ in range(REPEATS)]
        seconds = statistics.median(run[0] for run in runs)
        memory = max(run[1] for run in runs)
        ratio = f"{seconds / baseline:.2f} x baseline"
        print(f"{name} tp {size}: check {seconds:.2f} s, {ratio}, peak {memory / 2**20:.2f} GiB")


def _against_class(name: str, path: str) -> None:
    """Print both ratios. Processor time: wall time says more of what else runs on the machine."""
    seconds: dict[int, list[float]] = {0: [], **{size: [] for size in MOST}}
    for _ in range(REPEATS):
        seconds[0].append(_run([sys.executable, "-c", CLASS])[2])
        for size in MOST:
            seconds[size].append(_run([sys.executable, "-m", "tpplan", "check", path, "--tp-size", str(size)])[2])
    median = {size: statistics.median(each) for size, each in seconds.items()}
    for size, most in MOST.items():
        ratio = median[size] / median[0]
        words = f"{ratio:.2f} x importing its class and DTensor ({median[0]:.2f} s), at most {most}"
        print(f"{name} tp {size}: {median[size]:.2f} s of processor time, {words}: {'ok' if ratio <= most else 'MORE'}")


def _in_process(path: str, tp_size: int) -> None:
    command = [sys.executable, "-c", IN_PROCESS, path, str(tp_size)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment("")).stdout
    first, second, some, every, same = json.loads(output)
    print(f"  library call, libraries imported: {first:.2f} s the first time, {second:.2f} s the second")
    print(f"  shapes: {some:.2f} s, every layer {every:.2f} s, {every / some:.1f} x; same outcome: {same}")


def _sizes(path: str) -> None:
    one = _run([sys.executable, "-m", "tpplan", "check", path, "--tp-size", "8"])[0]
    every, memory, _ = _run([sys.executable, "-m", "tpplan", "sizes", path])
    print(f"Llama-3.1-70B: sizes 1 to 16 {every:.2f} s, {every / one:.1f} x one check, peak {memory / 2**20:.2f} GiB")


def _second_time(directory: Path, baseline: float) -> None:
    """What was proven once: a check and forty plans that are remembered, and a plan whose seal holds."""
    plans = directory / "plans"
    plans.mkdir()
    for number in range(FORTY):
        text = SHIPPED.read_text(encoding="utf-8")
        (plans / f"{number}.yaml").write_text(text.replace("vocab_size: 151552", f"vocab_size: {151552 + 4 * number}"))
    command = [sys.executable, "-m", "tpplan", "check"]
    help_seconds = statistics.median(_run([*command, "--help"])[0] for _ in range(REPEATS))
    for what, given in ((f"{FORTY} plans", str(plans)), ("GLM-4-9B tp 4, its shipped plan", str(SHIPPED))):
        cache = str(directory / "cache")
        cold = _run([*command, given], cache)[0]
        again = statistics.median(_run([*command, given], cache)[0] for _ in range(REPEATS))
        print(
            f"{what}: {cold:.2f} s, {cold / baseline:.2f} x baseline; remembered {again:.2f} s, of which --help takes "
            f"{help_seconds:.2f} s"
        )
    output = subprocess.run(
        [sys.executable, "-c", SEALED, str(SHIPPED)], capture_output=True, text=True, check=True, env=_environment("")
    ).stdout
    believed, proven = json.loads(output)
    print(f"distributed_config of it, libraries imported: {believed:.2f} s sealed, {proven:.2f} s proven anew")


def _environment(cache: str) -> dict[str, str]:
    return os.environ | {"TPPLAN_CACHE": cache}


def _run(command: list[str], cache: str = "") -> tuple[float, int, float]:
    """Wall seconds, peak memory in KiB and processor seconds of a child; its exit code is a verdict, not a failure."""
    started = time.perf_counter()
    environment = _environment(cache)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.perf_counter() - started, usage.ru_maxrss, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
