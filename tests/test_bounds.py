"""Sizes that no model has are refused at once, and every size below is judged in its time."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support import configs
from tests.support.shared import config_files
from tests.support.time_limit import cpu_seconds, within
from tpplan.cli import main
from tpplan.diagnostics import Keys
from tpplan.model.bounds import BOUNDS, _numbers, bound_of, refuse_unreal_sizes
from tpplan.source import read_source

SECONDS = 30  # an answer, all stages, on a machine that does other things too
REFUSED_IN = 1.0
FAR = 4  # times the largest known

SMALL = {"llama": configs.llama(num_labels=2, pad_token_id=0), "mixtral": configs.mixtral(), "llava": configs.llava()}


def answered(directory: Path, config: dict[str, Any], *options: str) -> tuple[int, dict]:
    """Exit code and JSON of `check --tp-size 2` on this config.json."""
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(["check", str(directory), "--tp-size", "2", "--format", "json", *options])
    return code, json.loads(out.getvalue())


def integers(value: Any, path: Keys = ()) -> Iterator[Keys]:
    """Keys of every integer in a config."""
    return (keys for keys, _ in _numbers(value, path))


def changed(config: dict[str, Any], keys: Keys, value: Any) -> dict[str, Any]:
    part = whole = copy.deepcopy(config)
    for key in keys[:-1]:
        part = part[key]  # type: ignore[index]
    part[keys[-1]] = value
    return whole


class TestRefused:
    @pytest.mark.parametrize(
        ("config", "keys", "value"),
        [
            ("llama", ("num_hidden_layers",), 1025),
            ("llama", ("num_hidden_layers",), 10**9),
            ("llama", ("num_labels",), 10**7),
            ("llama", ("vocab_size",), 10**12),
            ("llama", ("hidden_size",), 2**20 + 1),
            ("llama", ("intermediate_size",), 10**12),
            ("llama", ("intermediate_size",), [96, 10**7, 10**8]),
            ("llama", ("num_attention_heads",), 10**6),
            ("llama", ("num_key_value_heads",), 10**400),
            ("llama", ("max_position_embeddings",), 2**31),
            ("mixtral", ("num_local_experts",), 10**6),
            ("llava", ("text_config", "num_hidden_layers"), 10**7),
            ("llava", ("vision_config", "num_hidden_layers"), 10**7),
            ("llava", ("vision_config", "image_size"), 10**6),
            ("llava", ("audio_config", "encoder_layers"), 10**7),
        ],
        ids=str,
    )
    def test_by_its_name_at_its_place(self, tmp_path: Path, config: str, keys: Keys, value: Any) -> None:
        raw = copy.deepcopy(SMALL[config])
        raw.setdefault(keys[0], {})
        with cpu_seconds(REFUSED_IN):
            code, answer = answered(tmp_path, changed(raw, keys, value))
        (found,) = answer["diagnostics"]
        bound = bound_of(str(keys[-1]))
        assert code == 2 and found["code"] == "TPP119" and bound
        assert found["message"].startswith(f"{keys[-1]} is ") and f"at most {bound.most}, " in found["message"]
        assert found["evidence"].startswith(f"{'.'.join(map(str, keys))} = ") and bound.what in found["evidence"]
        line = (tmp_path / "config.json").read_text().splitlines()[found["where"]["line"] - 1]
        assert line.lstrip().startswith(f'"{keys[-1]}":')

    def test_all_at_once(self, tmp_path: Path) -> None:
        code, answer = answered(tmp_path, configs.llama(num_hidden_layers=10**6, vocab_size=10**10))
        assert code == 2 and [found["code"] for found in answer["diagnostics"]] == ["TPP119"] * 2

    def test_no_name_of_a_label_or_a_token_is_a_size(self, tmp_path: Path) -> None:
        config = configs.llama(label2id={"layers": 0, "heads": 10**6}, vocabulary_map={"num_hidden_layers": 151_646})
        refuse_unreal_sizes(read_source(configs.write(tmp_path, config)), config)


@pytest.mark.parametrize("file", config_files())
def test_bounds_are_far_above_published_configs(file: Path) -> None:
    assert_far_below(json.loads(file.read_text(encoding="utf-8")))


@pytest.mark.sweep
def test_bounds_are_far_above_the_defaults_of_every_class() -> None:
    from transformers import CONFIG_MAPPING

    read = 0
    for model_type in CONFIG_MAPPING:
        try:
            default = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
        except Exception:  # some need arguments
            continue
        assert_far_below(default)
        read += 1
    assert read > 0.95 * len(CONFIG_MAPPING)


def assert_far_below(config: dict[str, Any]) -> None:
    for keys, value in _numbers(config):
        bound = bound_of(next(str(key) for key in reversed(keys) if isinstance(key, str)))
        assert bound is None or FAR * value <= bound.most, (keys, value)


WILD = st.one_of(
    st.integers(-1, 2**11),
    st.integers(0, 70).map(lambda power: 2**power),
    st.sampled_from([bound.most for bound in BOUNDS]),
)


def check_wild(directory: Path, data: st.DataObject) -> None:
    """An answer comes in its time and is none of our bugs, whatever the value of one integer."""
    config = SMALL[data.draw(st.sampled_from(sorted(SMALL)))]
    keys = data.draw(st.sampled_from(sorted(integers(config), key=str)))
    wild = changed(config, keys, data.draw(WILD))
    with within(SECONDS):
        code, answer = answered(directory, wild)
    assert code in (0, 1, 2), answer
    assert code == 0 or answer["diagnostics"], answer


quick = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@given(st.data())
@quick
def test_wild_values_are_answered_in_time(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_wild(tmp_path_factory.mktemp("wild"), data)


@pytest.mark.sweep
@given(st.data())
@settings(quick, max_examples=300, derandomize=False)
def test_many_wild_values_are_answered_in_time(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_wild(tmp_path_factory.mktemp("wild"), data)
