"""Reading configs: each trap is a diagnostic at its place, none a guess, none a traceback."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import configs
from tests.support.shared import config_files
from tests.support.subjects import model
from tpplan.checks.reading import check_tie_flags
from tpplan.cli import main
from tpplan.config_text import DuplicateKeys, keys_of, parse_json, position_of
from tpplan.model.config import config_value, defaulted, load_spec, text_config_name
from tpplan.model.skeleton import Sharding
from tpplan.source import read_source
from tpplan.subject import Subject


def without(config: configs.Config, *names: str) -> configs.Config:
    return {key: value for key, value in config.items() if key not in names}


def nested(**changes: Any) -> configs.Config:
    """`llava` with these values in its text_config."""
    config = configs.llava()
    return config | {"text_config": config["text_config"] | changes}


def judged(directory: Path, config: configs.Config | str | bytes, depth: str = "static") -> tuple[int, list[dict]]:
    """Exit code and diagnostics of `check --tp-size 2` on this config.json. Nothing but them is printed."""
    directory.mkdir(exist_ok=True)
    text = config if isinstance(config, (str, bytes)) else json.dumps(config, indent=1)
    (directory / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["check", str(directory), "--tp-size", "2", "--depth", depth, "--format", "json"])
    assert err.getvalue() == ""
    return code, json.loads(out.getvalue())["diagnostics"]


def the_one(directory: Path, config: configs.Config | str | bytes) -> dict:
    """The one diagnostic with which a config is refused."""
    code, diagnostics = judged(directory, config)
    assert code == 2, diagnostics
    (diagnostic,) = diagnostics
    return diagnostic


def marked(diagnostic: dict, directory: Path) -> str:
    """What stands in the config file from where a diagnostic points, to the end of the line."""
    where = diagnostic["where"]
    assert where["file"] == str(directory / "config.json")
    line = (directory / "config.json").read_text(encoding="utf-8").split("\n")[where["line"] - 1]
    return line[where["column"] - 1 :]


class TestText:
    def test_a_key_that_stands_twice(self, tmp_path: Path) -> None:
        """Transformers and Python keep the last in silence: 8 heads would have become 4."""
        text = json.dumps(configs.llama(), indent=1)[:-2] + ',\n "num_attention_heads": 4\n}'
        found = the_one(tmp_path, text)
        assert found["code"] == "TPP110" and "num_attention_heads stands twice" in found["message"]
        assert marked(found, tmp_path) == '"num_attention_heads": 4'
        assert found["evidence"] == "first at line 9, column 2"

    def test_every_key_that_stands_twice_wherever(self, tmp_path: Path) -> None:
        text = '{"a": 1, "text_config": {"b": [{"c": 1, "c": 2}]},\n "a": 2, "a": 3}'
        code, found = judged(tmp_path, text)
        assert code == 2 and {diagnostic["code"] for diagnostic in found} == {"TPP110"}
        places = [(diagnostic["where"]["line"], diagnostic["where"]["column"]) for diagnostic in found]
        assert places == [(1, 41), (2, 2), (2, 10)]
        assert "text_config.b.0.c" in found[0]["message"]

    def test_equal_keys_of_different_objects_are_none(self, tmp_path: Path) -> None:
        assert judged(tmp_path, configs.llava())[0] == 0

    @pytest.mark.parametrize(
        ("encoding", "said"), [("utf-8-sig", "byte order mark"), ("utf-16", "UTF-16"), ("latin-1", "not UTF-8")]
    )
    def test_another_encoding(self, tmp_path: Path, encoding: str, said: str) -> None:
        text = json.dumps(configs.llama(name="modèle"), ensure_ascii=False)
        found = the_one(tmp_path, text.encode(encoding))
        assert found["code"] == "TPP110" and said in found["message"]

    def test_a_byte_order_mark_is_one_that_transformers_refuses_too(self, tmp_path: Path) -> None:
        from transformers import AutoConfig

        (tmp_path / "config.json").write_bytes(json.dumps(configs.llama()).encode("utf-8-sig"))
        with pytest.raises(OSError, match="not a valid JSON"):
            AutoConfig.from_pretrained(tmp_path)

    @pytest.mark.parametrize("text", ["", " \n", "{", "[]", "3", '{"a": 1}x', "[" * 10**5, '{"a": ' + "9" * 5000 + "}"])
    def test_no_config(self, tmp_path: Path, text: str) -> None:
        assert the_one(tmp_path, text)["code"] == "TPP110"

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=4),
            lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
        ),
        st.sampled_from([None, 1]),
        st.booleans(),
    )
    @settings(max_examples=200, deadline=None)
    def test_every_key_has_its_place(self, value: Any, indent: int | None, ascii_only: bool) -> None:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert parse_json(text) == value
        assert [keys for keys, _ in keys_of(text)] == list(paths(value))
        for keys in paths(value):
            line, column = position_of(text, keys)
            key = json.dumps(keys[-1], ensure_ascii=ascii_only)
            assert text.split("\n")[line - 1][column - 1 :].startswith(f"{key}:")

    def test_a_place_is_no_place_where_there_is_none(self) -> None:
        assert position_of('{"a": {"b": 1}}', ("b",)) is None
        with pytest.raises(DuplicateKeys):
            parse_json('{"a": {"b": 1, "b": 1}}')

    @pytest.mark.parametrize("rest", ["}}", ', "\\q": 1}', ""])
    def test_equal_keys_before_what_is_no_json(self, rest: str) -> None:
        with pytest.raises(json.JSONDecodeError):
            parse_json('{"a": {"b": 1, "b": 1}' + rest)


def paths(value: Any, path: tuple = ()) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        if isinstance(value, dict):
            yield (*path, key)
        yield from paths(inside, (*path, key))


class TestHeadCounts:
    ODD = ["8", "eight", 0, -8, 8.0, 2.5, True]

    @pytest.mark.parametrize("value", ODD, ids=repr)
    @pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads"])
    def test_is_no_number_of_heads(self, tmp_path: Path, name: str, value: Any) -> None:
        found = the_one(tmp_path, configs.llama(**{name: value}))
        assert found["code"] == "TPP117" and found["message"].startswith(f"{name} is ")
        assert marked(found, tmp_path).startswith(f'"{name}": {json.dumps(value)}')
        assert found["evidence"] == f"{name} = {json.dumps(value)}"

    @pytest.mark.parametrize("value", ODD, ids=repr)
    def test_is_none_in_a_nested_config(self, tmp_path: Path, value: Any) -> None:
        found = the_one(tmp_path, nested(num_key_value_heads=value))
        assert found["code"] == "TPP117"
        assert found["evidence"] == f"text_config.num_key_value_heads = {json.dumps(value)}"
        assert marked(found, tmp_path).startswith('"num_key_value_heads"')

    def test_each_is_told(self, tmp_path: Path) -> None:
        code, found = judged(tmp_path, configs.llama(num_attention_heads="8", num_key_value_heads=0))
        assert code == 2 and [diagnostic["code"] for diagnostic in found] == ["TPP117"] * 2

    def test_under_an_older_name(self, tmp_path: Path) -> None:
        sizes = {"n_embd": 64, "n_head": 8.0, "n_layer": 2, "vocab_size": 160}
        assert the_one(tmp_path, {"model_type": "gpt2"} | sizes)["message"].startswith("n_head is 8.0")

    @pytest.mark.parametrize("value", [None, [8, 8]], ids=repr)
    def test_null_and_lists_are_transformers_to_refuse(self, tmp_path: Path, value: Any) -> None:
        found = the_one(tmp_path, configs.llama(num_attention_heads=value))
        assert found["code"] == "TPP113" and "num_attention_heads" in found["evidence"]
        assert marked(found, tmp_path).startswith('"num_attention_heads"')

    def test_null_key_value_heads_are_as_many_as_query_heads(self, tmp_path: Path) -> None:
        assert judged(tmp_path, configs.llama(num_key_value_heads=None)) == (0, [])

    @pytest.mark.parametrize("heads", [16, 3, 5])
    @pytest.mark.parametrize("config", [configs.llama, lambda **changes: nested(**changes)], ids=["flat", "nested"])
    def test_key_value_heads_that_queries_cannot_share(self, tmp_path: Path, config: Any, heads: int) -> None:
        """More than there are query heads, or not a divisor: it loads, and no forward runs."""
        code, found = judged(tmp_path, config(num_key_value_heads=heads), depth="shapes")
        refused = [diagnostic for diagnostic in found if diagnostic["code"] == "TPP315"]
        assert code == 1 and len(refused) == 1
        assert refused[0]["message"].startswith(f"8 query heads cannot share {heads} key/value heads evenly")

    @pytest.mark.parametrize("heads", [1, 2, 4, 8])
    def test_key_value_heads_that_queries_share(self, tmp_path: Path, heads: int) -> None:
        _, found = judged(tmp_path, configs.llama(num_key_value_heads=heads))
        assert "TPP315" not in [diagnostic["code"] for diagnostic in found]


class TestSpellings:
    """The same number has many names; a class reads its own and silently drops the others."""

    NUMBERS = ["num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num", "num_query_groups"]

    @pytest.mark.parametrize("name", NUMBERS)
    def test_a_name_that_the_class_does_not_read(self, tmp_path: Path, name: str) -> None:
        config = without(configs.llama(), "num_key_value_heads")
        found = the_one(tmp_path, config | {name: 2})
        assert found["code"] == "TPP112" and f"{name} is not read" in found["message"]
        assert found["evidence"] == f"{name} = 2; LlamaConfig does not read it, and its num_key_value_heads is 8"
        assert marked(found, tmp_path).startswith(f'"{name}"')

        assert judged(tmp_path, config | {name: 8}) == (0, []), "the number that counts anyway"
        assert judged(tmp_path, configs.llama(**{name: 8})) == (0, []), "the class reads its own, which is there"
        assert the_one(tmp_path, configs.llama(num_key_value_heads=None, **{name: 2}))["code"] == "TPP112"

    @pytest.mark.parametrize("name", ["multi_query", "multi_query_attention"])
    def test_one_head_by_a_flag(self, tmp_path: Path, name: str) -> None:
        config = without(configs.llama(), "num_key_value_heads")
        found = the_one(tmp_path, config | {name: True})
        assert found["code"] == "TPP112" and name in found["message"]
        assert judged(tmp_path, config | {name: False}) == (0, [])

    def test_in_a_nested_config(self, tmp_path: Path) -> None:
        config = configs.llava()
        text = without(config["text_config"], "num_key_value_heads", "num_attention_heads")
        code, found = judged(tmp_path, config | {"text_config": text | {"n_head": 4, "num_kv_heads": 2}})
        assert code == 2 and [diagnostic["code"] for diagnostic in found] == ["TPP112"] * 2
        assert {diagnostic["fix"].split()[1] for diagnostic in found} == {"num_attention_heads", "num_key_value_heads"}

    def test_a_class_reads_its_own_name(self, tmp_path: Path) -> None:
        """falcon has num_kv_heads and multi_query, gpt_bigcode multi_query, which also makes num_key_value_heads."""
        falcon = {
            "model_type": "falcon",
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_hidden_layers": 2,
            "dtype": "float32",
        }
        heads = {"vocab_size": 160, "num_kv_heads": 2, "multi_query": True, "new_decoder_architecture": True}
        assert [diagnostic["code"] for diagnostic in judged(tmp_path, falcon | heads)[1]] == ["TPP205"]
        sizes = {"n_embd": 64, "n_head": 8, "n_layer": 2, "vocab_size": 160, "multi_query": True, "dtype": "float32"}
        assert [d["code"] for d in judged(tmp_path, {"model_type": "gpt_bigcode"} | sizes)[1]] == ["TPP205"]

    def test_two_names_of_one_value(self, tmp_path: Path) -> None:
        sizes = {"n_embd": 64, "n_head": 8, "num_attention_heads": 4, "n_layer": 2, "vocab_size": 160}
        found = the_one(tmp_path, {"model_type": "gpt2"} | sizes)
        assert found["code"] == "TPP118" and "one is silently dropped" in found["message"]
        assert judged(tmp_path, {"model_type": "gpt2"} | sizes | {"num_attention_heads": 8})[0] == 1, "no plan"


class TestRefusedByTransformers:
    """The reason, and the place of the value where the reason names one."""

    @pytest.mark.parametrize(
        ("config", "key"),
        [
            (configs.llama(hidden_size="64"), "hidden_size"),
            (configs.llama(intermediate_size=96.5), "intermediate_size"),
            (configs.llama(num_hidden_layers=None), "num_hidden_layers"),
            (configs.llama(head_dim="8"), "head_dim"),
            (configs.llama(vocab_size=1e400), "vocab_size"),
            (configs.llama(rope_scaling={"rope_type": "linear"}), "rope_type"),
            (configs.llava(text_config=[1]), "text_config"),
            (configs.llava(text_config="llama"), "text_config"),
            (nested(head_dim=8.5), "head_dim"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_at_its_place(self, tmp_path: Path, config: configs.Config, key: str) -> None:
        found = the_one(tmp_path, config)
        assert found["code"] == "TPP113" and key in found["evidence"]
        assert marked(found, tmp_path).startswith(f'"{key}"')

    @pytest.mark.parametrize("value", [3, "float7", "torch.float7", "nn"], ids=repr)
    @pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
    def test_a_dtype_that_is_none(self, tmp_path: Path, key: str, value: Any) -> None:
        found = the_one(tmp_path, without(configs.llama(), "dtype") | {key: value})
        assert found["code"] == "TPP121" and found["evidence"] == f"{key} = {json.dumps(value)}"
        assert marked(found, tmp_path).startswith(f'"{key}"')

    @pytest.mark.parametrize(
        ("field", "value"), [("num_hidden_layers", 0), ("num_hidden_layers", 10**6), ("vocab_size", 0)]
    )
    def test_a_size_that_no_model_has(self, tmp_path: Path, field: str, value: int) -> None:
        found = the_one(tmp_path, configs.llama(**{field: value}))
        assert found["code"] == "TPP119" and found["message"].startswith(f"{field} is {value}, must be at ")
        assert marked(found, tmp_path).startswith(f'"{field}"')

    @pytest.mark.parametrize("value", [3, "llama", [1], {}, {"hidden_size": 64}], ids=repr)
    def test_a_text_config_that_is_none(self, tmp_path: Path, value: Any) -> None:
        """A flat class keeps it as it stands, and Transformers reads heads and caches from it."""
        found = the_one(tmp_path, configs.llama(text_config=value))
        assert found["code"] == "TPP122" and "takes text_config for the config" in found["message"]
        assert marked(found, tmp_path).startswith('"text_config"')

    def test_without_a_place_where_it_names_none(self, tmp_path: Path) -> None:
        found = the_one(tmp_path, without(configs.llama(hidden_size=60), "head_dim"))
        assert found["code"] == "TPP113" and "(60)" in found["evidence"]
        assert found["where"] == {"file": str(tmp_path / "config.json")}

    def test_a_nested_type_that_it_does_not_know(self, tmp_path: Path) -> None:
        found = the_one(tmp_path, nested(model_type="llama44"))
        assert found["code"] == "TPP113" and "llama44" in found["evidence"]

    def test_its_own_code_is_not_run(self, tmp_path: Path) -> None:
        own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
        (tmp_path / "own.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
        assert the_one(tmp_path, configs.llama(model_type="own", auto_map=own))["code"] == "TPP114"
        assert judged(tmp_path, configs.llama(auto_map=own)) == (0, []), "a known type needs none of it"


class TestPerLayer:
    """Values per layer raise a RuntimeError on the config as a whole, which getattr's default does not catch."""

    PER_LAYER = {"0": {"num_key_value_heads": 4, "intermediate_size": 48}}

    def test_has_no_one_value(self) -> None:
        from transformers import LlamaConfig

        config = LlamaConfig(**configs.llama(), per_layer_config=self.PER_LAYER)
        with pytest.raises(RuntimeError):
            getattr(config, "num_key_value_heads", None)
        assert config_value(config, "num_key_value_heads") is None
        assert config_value(config, "num_attention_heads") == 8

    @pytest.mark.parametrize("name", ["num_key_value_heads", "num_attention_heads", "hidden_size", "intermediate_size"])
    def test_is_refused_where_the_class_takes_none(self, tmp_path: Path, name: str) -> None:
        config = configs.llama()
        found = the_one(tmp_path, config | {"per_layer_config": {"0": {name: config[name] // 2}}})
        assert found["code"] in ("TPP113", "TPP116") and f"'{name}' is a per-layer attribute" in found["evidence"]


class TestTies:
    """The flag stands at the top, in the nested config, or in both; the class decides which it reads."""

    FLAGS = [None, True, False]

    @pytest.mark.parametrize("text", FLAGS)
    @pytest.mark.parametrize("top", FLAGS)
    @pytest.mark.parametrize("config", [configs.llava, configs.qwen3_vl_30b_a3b])
    def test_a_flag_that_is_not_followed_is_told(self, config: Any, top: bool | None, text: bool | None) -> None:
        made = without(config(), "tie_word_embeddings")
        inside = without(made["text_config"], "tie_word_embeddings")
        made["text_config"] = inside | ({} if text is None else {"tie_word_embeddings": text})
        made |= {} if top is None else {"tie_word_embeddings": top}
        spec, skeleton = model(made)
        tied = bool(skeleton.ties)
        found = list(check_tie_flags(Subject(spec=spec, skeleton=skeleton, sharding=Sharding(tp_size=2))))
        places = [("config.json", top), ("text_config", text)]
        told = [
            f"tie_word_embeddings is {str(flag).lower()} in {place}" for place, flag in places if flag is (not tied)
        ]
        assert [diagnostic.message.partition(" and is not followed")[0] for diagnostic in found] == told
        assert all(diagnostic.message.endswith("the head is tied") is tied for diagnostic in found)

    def test_what_is_built_is_what_is_loaded(self, tmp_path: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText

        for top, text in [(True, False), (False, True), (False, False)]:
            made = nested(tie_word_embeddings=text) | {"tie_word_embeddings": top}
            whole = AutoModelForImageTextToText.from_config(
                load_spec(read_source(configs.write(tmp_path, made))).config
            )
            same = whole.lm_head.weight is whole.get_input_embeddings().weight
            assert same is bool(model(made)[1].ties), (top, text)
            assert isinstance(whole.lm_head.weight, torch.nn.Parameter)

    def test_a_flat_config_has_one(self, tmp_path: Path) -> None:
        for tied in (True, False):
            assert judged(tmp_path, configs.llama(tie_word_embeddings=tied)) == (0, [])


class TestArchitectures:
    @pytest.mark.parametrize("named", ["Qwen3ForCausalLM", "LlamaForSequenceClassification", "NoSuchModel"])
    def test_another_class_is_told(self, tmp_path: Path, named: str) -> None:
        code, (found,) = judged(tmp_path, configs.llama(architectures=[named]))
        assert code == 0 and found["code"] == "TPP314"
        assert "does not name LlamaForCausalLM" in found["message"]
        assert found["evidence"].startswith(f"architectures names {named}; AutoModelForCausalLM ")

    @pytest.mark.parametrize("named", [["LlamaForCausalLM"], ["LlamaModel"], [], None, "LlamaForCausalLM"], ids=repr)
    def test_the_class_that_is_loaded_is_not(self, tmp_path: Path, named: Any) -> None:
        assert judged(tmp_path, configs.llama(architectures=named)) == (0, [])


class TestDefaults:
    """TPP307 speaks of what really came from the class."""

    def test_a_value_at_the_top_of_an_older_wrapper_is_no_default(self, tmp_path: Path) -> None:
        """Qwen2-VL's published configs have the language model's values at the top."""
        heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "num_hidden_layers": 2}
        sizes = {"hidden_size": 1536, "intermediate_size": 96, "vocab_size": 160, "tie_word_embeddings": True}
        rope = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
        spec = load_spec(read_source(configs.write(tmp_path, {"model_type": "qwen2_vl"} | heads | sizes | rope)))
        assert config_value(spec.config.get_text_config(), "num_attention_heads") == 12
        assert not defaulted(spec.source, spec.config, "num_attention_heads")

    def test_a_language_model_two_levels_down_has_a_name(self, tmp_path: Path) -> None:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "num_hidden_layers": 1}
        config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": heads}}
        spec = load_spec(read_source(configs.write(tmp_path, config)))
        assert text_config_name(spec.config) == "thinker_config.text_config"
        assert not defaulted(spec.source, spec.config, "num_attention_heads")
        assert defaulted(spec.source, spec.config, "intermediate_size")


@pytest.mark.sweep
@pytest.mark.parametrize("file", config_files())
def test_a_published_config_is_judged_or_refused(file: Path, capsys: pytest.CaptureFixture) -> None:
    code = main(["check", str(file), "--tp-size", "4", "--depth", "static", "--format", "json"])
    printed = capsys.readouterr()
    found = [diagnostic["code"] for diagnostic in json.loads(printed.out)["diagnostics"]]
    assert printed.err == "" and code in (0, 1, 2)
    if code == 2:
        assert found and set(found) <= {"TPP111", "TPP112", "TPP113", "TPP114", "TPP116", "TPP330"}
