"""Plan files: what is written reads back, and every mistake is a diagnostic at its place."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.time_limit import cpu_seconds
from tpplan.diagnostics import Diagnostic, InputError, Place
from tpplan.files import write_atomically
from tpplan.plan_files import shape
from tpplan.plan_files.document import ModelFacts, Plan, Proof, Target, plan_schema
from tpplan.plan_files.file import MAX_BYTES, parse_plan, read_plan
from tpplan.plan_files.text import MAX_NODES

VALID = """\
version: 1
model:
  id: org/model
  auto_class: AutoModelForCausalLM
  config:
    model_type: qwen3
    text_config: {num_key_value_heads: 4, eps: 1e-6, kinds: [full, sliding]}
target:
  tp_size: 8
overrides:
  model.layers.*.self_attn.q_proj: replicated_with_grad_allreduce
  model.layers.*.self_attn.k_proj: replicated_with_grad_allreduce
proven:
  stages: {static: passed, numerics: not-run}
  versions: {torch: '2.9'}
"""

NASTY = [
    "010 08 0 -1 +1 1_000 0x1F 0o17 0b1 1e3 1.5 .5 1. -.5e3 12:30 1:2:3.4 1.2.3 5.24 ² ١٢".split(),
    "no No NO yes on off y n Y N true True TRUE false null Null ~ << = .inf -.INF .nan inf nan".split(),
    "2001-01-01 2001-12-14t21:59:43.10-05:00 --- ... - -- ? : # & * ! !!str | > % @ ` [ ] { } , ' \"".split(),
    ["", " ", " a", "a ", "a: b", "a #b", "a:", "- a", "? a", "*a", "&a b", "!a b", "%TAG", "@a", "'a'", '"a"', "\\"],
    ["a\nb", "\n", "\n\n a\n", "a\r\nb", "\t", "a\tb", "\0", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u2029", "\ufeff"],
    ["\u202e", "\xad", "\xa0", "\ufffe", "\U0001f600", "\U0010ffff", "é", "日本", "x" * 200, "a " * 300, "k" * 2000],
]
nasty = st.sampled_from([text for group in NASTY for text in group])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | nasty
names = texts.filter(bool)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**64) + 1, 10**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
optional_dtypes = st.none() | st.sampled_from(["bfloat16", "float16", "float32"])
devices = st.sampled_from(["cpu", "tpu", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7"])


@st.composite
def plans(draw) -> Plan:
    config = draw(st.dictionaries(texts, json_values, max_size=4)) | {"model_type": draw(names)}
    outcomes = st.sampled_from(["passed", "failed", "not-run"])
    proofs = st.builds(
        Proof,
        stages=st.dictionaries(texts, outcomes, max_size=3),
        versions=st.dictionaries(texts, texts, max_size=3),
        strategy=st.none() | texts,
    )
    return Plan(
        model=ModelFacts(id=draw(names), auto_class=draw(names), config=config),
        target=Target(
            tp_size=draw(st.integers(1, 65536)),
            ep_size=draw(st.none() | st.integers(1, 10**20)),
            device=draw(devices),
            purpose=draw(st.sampled_from(["inference", "training"])),
            dtype=draw(optional_dtypes),
        ),
        overrides=draw(st.dictionaries(names, texts, max_size=4)),
        proven=draw(st.none() | proofs),
    )


def plan_of(config: dict) -> Plan:
    return Plan(model=ModelFacts(id="a", auto_class="b", config=config), target=Target(tp_size=1), overrides={})


def exactly(plan: Plan) -> str:
    """All of a plan, types too (1, 1.0 and True are equal)."""
    return repr(plan.to_dict())


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(InputError) as caught:
        parse_plan(text, file="p.yaml")
    assert caught.value.report.exit_code == 2
    assert all(d.message and d.where.file == "p.yaml" for d in caught.value.diagnostics)
    return caught.value.diagnostics


def places(text: str) -> list[tuple[str, int | None, int | None]]:
    return [(d.code, d.where.line, d.where.column) for d in mistakes(text)]


def only(text: str, code: str) -> Diagnostic:
    (mistake,) = mistakes(text)
    assert mistake.code == code
    return mistake


def edited(*edits: tuple[str, str]) -> str:
    text = VALID
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# What is written reads back.


@settings(max_examples=200, deadline=None)
@given(plans())
def test_written_plan_reads_back_equal(plan: Plan) -> None:
    text = plan.to_yaml()
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert exactly(parse_plan(text).plan) == exactly(plan)
    assert parse_plan(text).plan == plan
    assert parse_plan(text).plan.to_yaml() == text


@settings(max_examples=200, deadline=None)
@given(plans())
def test_a_yaml_1_1_reader_reads_the_same(plan: Plan) -> None:
    assert repr(yaml.safe_load(plan.to_yaml())) == repr(plan.to_dict())


@pytest.mark.parametrize("text", [text for group in NASTY for text in group if text])
def test_nasty_strings_stay_strings_everywhere(text: str) -> None:
    plan = Plan(
        model=ModelFacts(id=text, auto_class=text, config={"model_type": text, text: [text, {text: text}]}),
        target=Target(tp_size=1),
        overrides={text: text},
        proven=Proof(stages={text: "passed"}, versions={text: text}, strategy=text),
    )
    assert exactly(parse_plan(plan.to_yaml()).plan) == exactly(plan)


@pytest.mark.parametrize("text", "010 no 1e3 ~ 1_000 12:30 y N On 0o17 08 1.5 5.24 .5 true << = 2001-01-01".split())
def test_what_a_reader_could_misread_is_quoted(text: str) -> None:
    plan = Plan(
        model=ModelFacts(id="a", auto_class="b", config={"model_type": text}),
        target=Target(tp_size=1),
        overrides={text: text},
    )
    assert f"model_type: '{text}'\n" in plan.to_yaml()
    assert f"  '{text}': '{text}'\n" in plan.to_yaml()


def test_written_form() -> None:
    shared = [1, 2.5]
    plan = Plan(
        model=ModelFacts(
            id="01-ai/Yi",
            auto_class="AutoModel",
            config={"model_type": "yi" + " i" * 99, "a": shared, "b": shared},
        ),
        target=Target(tp_size=4, dtype="bfloat16"),
        overrides={"b.*.k_proj": "replicate", "a" * 300: "colwise"},
    )
    assert plan.to_yaml() == (
        "version: 1\nmodel:\n  id: 01-ai/Yi\n  auto_class: AutoModel\n  config:\n"
        f"    model_type: yi{' i' * 99}\n"
        "    a:\n    - 1\n    - 2.5\n    b:\n    - 1\n    - 2.5\n"
        "target:\n  tp_size: 4\n  device: cpu\n  purpose: inference\n  dtype: bfloat16\n"
        f"overrides:\n  ? {'a' * 300}\n  : colwise\n  b.*.k_proj: replicate\n"
    )


def test_nothing_to_override_is_an_empty_mapping() -> None:
    plan = plan_of({"model_type": "c"})
    assert plan.to_yaml().endswith("overrides: {}\n")
    assert parse_plan(plan.to_yaml()).plan == plan


def nested(depth: int) -> dict | list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**64, -(10**64), object(), (1,), {1: 2}, "\ud800", nested(30), b"a"]
)
def test_what_no_plan_file_can_hold_is_not_written(value: object) -> None:
    config = {"model_type": "c", "x": value}
    plan = plan_of(config)
    with pytest.raises(ValueError):
        plan.to_yaml()


def test_the_deepest_plan_that_is_written_can_be_read() -> None:
    config = {"model_type": "c", "x": nested(29)}
    plan = plan_of(config)
    assert parse_plan(plan.to_yaml()).plan == plan


# The schema.


def subschemas(schema: dict) -> list[dict]:
    parts = [*schema.get("properties", {}).values(), schema.get("additionalProperties"), schema.get("propertyNames")]
    return [schema, *(inner for part in parts if isinstance(part, dict) for inner in subschemas(part))]


def test_schema_is_a_schema_and_describes_every_property() -> None:
    Draft202012Validator.check_schema(plan_schema())
    for part in subschemas(plan_schema()):
        if part != {"minLength": 1}:
            assert part["description"].endswith(".")


def test_every_mistake_the_schema_finds_has_words() -> None:
    structure = {"$schema", "$id", "title", "description", "default", "properties", "propertyNames"}
    structure |= {"$defs", "$ref"}
    worded = {"type", "const", "enum", "minimum", "maximum", "minLength", "required", "additionalProperties"}
    assert {keyword for part in subschemas(plan_schema()) for keyword in part} <= structure | worded
    types = {part["type"] for part in subschemas(plan_schema()) if "type" in part}
    assert types == set(shape._WANTED)


def test_no_two_mappings_of_the_schema_share_a_key() -> None:
    homes = [key for key, _ in shape._homes(plan_schema(), ())]
    assert len(homes) == len(set(homes)) == 18


def test_defaults_are_those_of_the_schema() -> None:
    properties = plan_schema()["properties"]["target"]["properties"]
    target = Target(tp_size=1)
    for name, part in properties.items():
        if name != "tp_size":
            assert getattr(target, name) == part.get("default")


@settings(max_examples=100, deadline=None)
@given(plans())
def test_plain_data_of_a_plan_matches_the_schema(plan: Plan) -> None:
    Draft202012Validator(plan_schema()).validate(plan.to_dict())
    assert Plan.from_dict(plan.to_dict()) == plan


# Reading.


def test_reads_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(VALID, encoding="utf-8")
    read = read_plan(path)
    assert read.path == str(path)
    assert read.plan == Plan(
        model=ModelFacts(
            id="org/model",
            auto_class="AutoModelForCausalLM",
            config={
                "model_type": "qwen3",
                "text_config": {"num_key_value_heads": 4, "eps": 1e-6, "kinds": ["full", "sliding"]},
            },
        ),
        target=Target(tp_size=8),
        overrides={
            "model.layers.*.self_attn.q_proj": "replicated_with_grad_allreduce",
            "model.layers.*.self_attn.k_proj": "replicated_with_grad_allreduce",
        },
        proven=Proof(stages={"static": "passed", "numerics": "not-run"}, versions={"torch": "2.9"}),
    )


@pytest.mark.parametrize(
    "keys, line, column",
    [
        ((), 1, 1),
        (("version",), 1, 1),
        (("model", "id"), 3, 3),
        (("model", "config", "text_config"), 7, 5),
        (("model", "config", "text_config", "eps"), 7, 43),
        (("model", "config", "text_config", "kinds", 1), 7, 68),
        (("target", "tp_size"), 9, 3),
        (("target", "device"), 8, 1),
        (("overrides", "model.layers.*.self_attn.k_proj"), 12, 3),
        (("overrides", "lm_head"), 10, 1),
        (("nothing", "like", "it"), 1, 1),
        (("proven", "versions", "torch"), 15, 14),
    ],
)
def test_place_of(keys: tuple, line: int, column: int) -> None:
    assert parse_plan(VALID, file="p.yaml").place_of(*keys) == Place(file="p.yaml", line=line, column=column)


def test_place_of_rule_names_the_rule() -> None:
    read = parse_plan(VALID, file="p.yaml")
    rule = "model.layers.*.self_attn.k_proj"
    assert read.place_of_rule(rule) == Place(file="p.yaml", line=12, column=3, rule=rule)
    assert read.place_of_rule("lm_head") == Place(file="p.yaml", line=10, column=1, rule="lm_head")


@settings(max_examples=100, deadline=None)
@given(plans())
def test_every_rule_stands_where_its_place_says(plan: Plan) -> None:
    read = parse_plan(plan.to_yaml())
    lines = plan.to_yaml().split("\n")
    for rule in plan.overrides:
        place = read.place_of_rule(rule)
        assert place.column in (3, 5)  # 5 behind the question mark of a long key
        rest = "\n".join([lines[place.line - 1][place.column - 1 :], *lines[place.line :]])
        assert next(event.value for event in yaml.parse(rest) if isinstance(event, yaml.ScalarEvent)) == rule


@pytest.mark.parametrize("text", ["\ufeff" + VALID, VALID.replace("\n", "\r\n"), "%YAML 1.2\n---\n" + VALID + "...\n"])
def test_byte_order_mark_line_ends_and_document_marks_change_nothing(text: str) -> None:
    read = parse_plan(text)
    assert read.plan == parse_plan(VALID).plan
    assert read.place_of("target", "tp_size").column == 3
    assert read.place_of("version").column == 1


def test_scalars_are_read_as_written() -> None:
    scalars = "010 no 1_000 12:30 True 0x1F +1 .5 1. 2001-01-01 = inf -1 0 1e3 2.50 true null ~".split()
    config = "".join(f"    k{i}: {scalar}\n" for i, scalar in enumerate(scalars))
    read = parse_plan(edited(("    model_type: qwen3\n", "    model_type: qwen3\n" + config + "    none:\n")))
    values = [read.plan.model.config[f"k{i}"] for i in range(len(scalars))]
    assert values == [*scalars[:12], -1, 0, 1000.0, 2.5, True, None, None]
    assert [type(value) for value in values[12:16]] == [int, int, float, float]
    assert read.plan.model.config["none"] is None


# Files that cannot be read.


def unreadable(path: Path | str) -> Diagnostic:
    with pytest.raises(InputError) as caught:
        read_plan(path)
    (mistake,) = caught.value.diagnostics
    assert mistake.code == "TPP101" and mistake.where.file == str(path)
    return mistake


def test_missing_file(tmp_path: Path) -> None:
    assert unreadable(tmp_path / "none.yaml").message == "there is no such file"


def test_directory(tmp_path: Path) -> None:
    assert unreadable(tmp_path).evidence == "Is a directory"


def test_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert unreadable(tmp_path / "fifo").evidence == "not a regular file"


def test_name_with_nul() -> None:
    assert "null" in unreadable("a\0b").evidence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(VALID)
    (tmp_path / "plan.yaml").chmod(0)
    assert unreadable(tmp_path / "plan.yaml").evidence == "Permission denied"


def test_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(VALID.replace("org/model", "orgé/model").encode("latin-1"))
    mistake = unreadable(path)
    assert mistake.where.line == 3
    assert mistake.evidence == f"byte 0xe9 at offset {VALID.index('/model')}"


def test_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(VALID + "#" * (MAX_BYTES - len(VALID)))
    assert read_plan(path).plan == parse_plan(VALID).plan
    path.write_text(VALID + "#" * (MAX_BYTES - len(VALID) + 1))
    assert unreadable(path).message == "the file is too large for a plan"
    path.write_text(VALID + "#" + "é" * (MAX_BYTES // 2), encoding="utf-8")  # more bytes, fewer characters
    assert unreadable(path).message == "the file is too large for a plan"
    assert only("#" * (MAX_BYTES + 1), "TPP101")


# Text that is not YAML.


@pytest.mark.parametrize("character", "\0 \x07 \x1b \x7f \x85 \u2028 \u2029 \ufeff \ufffe \ud800".split(" "))
def test_refused_characters(character: str) -> None:
    mistake = only(edited(("org/model", f"日{character}x")), "TPP102")
    assert (mistake.where.line, mistake.where.column) == (3, 8)
    assert mistake.evidence == f"U+{ord(character):04X}"


def test_tabs() -> None:
    mistake = only(edited(("  tp_size: 8", "\ttp_size: 8")), "TPP102")
    assert (mistake.where.line, mistake.where.column) == (9, 1)
    assert mistake.fix == "indent with spaces instead of tabs"


@pytest.mark.parametrize("text", ["a: b: c", "[", "'", '"\\UFFFFFFFF"', f"%YAML {'1' * 5000}.1\n--- a", "a\nb: c", "@"])
def test_syntax(text: str) -> None:
    mistake = only(text, "TPP102")
    assert mistake.evidence.startswith("PyYAML: ")
    assert mistake.fix == ""


def test_mistakes_before_the_end_of_the_yaml_are_told_too() -> None:
    assert places("a: 1\na: 2\nb: !x 3\nc: [") == [("TPP104", 2, 1), ("TPP105", 3, 4), ("TPP102", 4, 5)]


# YAML that is refused.


def test_tag_executes_nothing(tmp_path: Path) -> None:
    text = edited(("org/model", f"!!python/object/apply:os.system ['touch {tmp_path}/made']"))
    mistake = only(text, "TPP105")
    assert (mistake.where.line, mistake.where.column) == (3, 7)
    assert "python/object/apply:os.system" in mistake.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "old, new, column",
    [
        ("tp_size: 8", "tp_size: !!int '8'", 12),
        ("tp_size: 8", "tp_size: ! 8", 12),
        ("tp_size: 8", "tp_size: &n 8", 12),
        ("tp_size: 8", "tp_size: *n", 12),
        ("tp_size: 8", "!!str tp_size: 8", 3),
        ("tp_size: 8", "*a : 8", 3),
        ("tp_size: 8", "<<: {tp_size: 8}", 3),
        ("version: 1", "%TAG ! tag:x,2000:\n---\nversion: 1", 1),
        ("version: 1", "---\n---\nversion: 1", 1),
    ],
)
def test_refused_yaml(old: str, new: str, column: int) -> None:
    assert only(edited((old, new)), "TPP105").where.column == column


def test_several_documents() -> None:
    assert places(VALID + "---\n" + VALID) == [("TPP105", 16, 1)]


def test_a_quoted_merge_key_is_a_key() -> None:
    text = edited(("tp_size: 8\noverrides:\n", "tp_size: 8\noverrides:\n  '<<': a\n"))
    assert parse_plan(text).plan.overrides["<<"] == "a"


def test_billion_laughs() -> None:
    lines = ["a0: &a0 [lol, lol]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert places("\n".join(lines)) == [("TPP105", i + 1, 5) for i in range(10)]  # an anchor and its aliases are one


@pytest.mark.parametrize("unit", ["[", "{a: ", "- ", "[{a: ", '{"a":'])
def test_deep_nesting_is_refused_at_once(unit: str) -> None:
    with cpu_seconds(10):  # well under 1 where nothing else runs
        mistake = only(unit * (500 * 1024 // len(unit)), "TPP105")
    assert "deeper than 32" in mistake.message and mistake.where.line == 1


@pytest.mark.parametrize(
    "text",
    [
        "[" + "a," * (MAX_BYTES // 2 - 1),
        "a: b\n" * (MAX_BYTES // 5),
        VALID.replace("org/model", "x" * 1_000_000),
        VALID.replace("org/model", "1e" + "9" * 1_000_000),
        VALID.replace("static: passed", "static: " + "passed" * 160_000),
        VALID.replace("target:", "? " + "target" * 160_000 + "\n: 1\ntarget:"),
        VALID.replace("tp_size: 8", "".join(f"tp_size{i}: 8\n  " for i in range(12_000))),
        VALID.replace("proven:", "".join(f"  k{i}: 1\n" for i in range(12_000)) + "proven:"),
        VALID.replace("overrides:", "".join(f"k{i}: 1\n" for i in range(12_000)) + "overrides:"),
    ],
)
def test_large_files_take_seconds_at_most(text: str) -> None:
    with cpu_seconds(30):  # about 2 where nothing else runs; what grows as the square takes minutes
        try:
            parse_plan(text)
        except InputError as error:
            assert all(len(d.message + d.evidence + d.fix) < 600 for d in error.diagnostics)


def test_depth_limit() -> None:
    kinds = "[" * 28 + "]" * 28  # inside the plan, model, config and text_config
    assert parse_plan(edited(("[full, sliding]", kinds)))
    assert places(edited(("[full, sliding]", f"[{kinds}]"))) == [("TPP105", 7, 61 + 28)]


def test_deep_keys_are_refused_at_once() -> None:
    assert [code for code, _, _ in places("? " * (250 * 1024))][-1] == "TPP105"


def test_node_limit() -> None:
    assert parse_plan(edited(("[full, sliding]", "[" + "1," * (MAX_NODES - 50) + "]")))
    assert "more than 50000" in only(edited(("[full, sliding]", "[" + "1," * MAX_NODES + "]")), "TPP105").message


# Keys.


def test_duplicate_keys_at_any_depth_all_at_once() -> None:
    text = edited(
        ("tp_size: 8", "tp_size: 8\n  tp_size: 4"),
        ("eps: 1e-6", "eps: 1e-6, eps: 1"),
        ("kinds: [full, sliding]", "kinds: [{a: 1, b: 2, a: 3}]"),
        ("self_attn.k_proj:", "self_attn.q_proj:"),
        ("proven:", "proven: {}\nproven:"),
    )
    found = mistakes(text)
    assert [(d.code, d.where.line, d.where.column) for d in found] == [
        ("TPP104", 7, 54),
        ("TPP104", 7, 83),
        ("TPP104", 10, 3),
        ("TPP104", 13, 3),
        ("TPP103", 14, 1),  # proven: {} lacks its keys
        ("TPP103", 14, 1),
        ("TPP104", 15, 1),
    ]
    assert found[2].message == "key 'tp_size' stands twice in target; most readers silently drop the first"
    assert found[2].evidence == "first at line 9, column 3"
    assert "overrides" in found[3].message and found[3].evidence == "first at line 12, column 3"


def test_keys_equal_but_for_quotes_are_duplicates() -> None:
    assert places(edited(("  tp_size: 8", "  tp_size: 8\n  'tp_size': 8"))) == [("TPP104", 10, 3)]


@pytest.mark.parametrize("key, kind", [("1", "an integer"), ("1.5", "a float"), ("true", "a boolean"), ("~", "null")])
def test_keys_that_are_not_strings(key: str, kind: str) -> None:
    mistake = only(edited(("tp_size: 8\noverrides:", f"tp_size: 8\noverrides:\n  {key}: a")), "TPP103")
    assert mistake.message == f"a key is {kind}, must be a string"
    assert (mistake.where.line, mistake.where.column) == (11, 3)
    assert mistake.fix == "put quotes around it"


@pytest.mark.parametrize("key", ["[a]", "{a: b}", "? [a, {b: c}]\n    ", "9" * 100, "1e999", '"\\ud800"'])
def test_keys_that_are_no_scalars_or_unreadable(key: str) -> None:
    text = edited(("kinds: [full, sliding]}", "kinds: 1}\n    " + key + ": [1, {a: 1e999}]"))
    assert [(d.code, d.where.line) for d in mistakes(text)] == [("TPP103", 8), ("TPP103", 8 + key.count("\n"))]


# The shape.


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "\ufeff", "   "])
def test_empty_file(text: str) -> None:
    assert only(text, "TPP103").message == "the file holds no plan, only white space or comments"


@pytest.mark.parametrize("text, kind", [("---", "null"), ("a", "a string"), ("[1]", "a list"), ("1", "an integer")])
def test_not_a_mapping(text: str, kind: str) -> None:
    assert only(text, "TPP103").message == f"the plan is {kind}, must be a mapping"


MISTAKES = [
    # old, new, line, column, message, fix
    ("overrides:", "overide:", 10, 1, "unknown key 'overide' in the plan", "write overrides instead of overide"),
    ("auto_class:", "autoclass:", 4, 3, "unknown key 'autoclass' in model", "write auto_class instead of autoclass"),
    ("  tp_size: 8", "  tp_size: 8\n  tp_sizes: 8", 10, 3, "unknown key 'tp_sizes' in target", "remove tp_sizes"),
    ("  tp_size: 8", "  tp_size: 8\n  a : 8", 10, 3, "unknown key 'a' in target", "remove a"),
    ("overrides:", '"over\\nrides":', 10, 1, r"unknown key 'over\nrides' in the plan",
     r"write overrides instead of 'over\nrides'"),
    ("  tp_size: 8", "  tp_size: 8\n  '': 8", 10, 3, "unknown key '' in target", "remove ''"),
    ("target:\n  tp_size: 8", "tp_size: 8", 8, 1, "unknown key 'tp_size' in the plan", "move tp_size into target"),
    ("  id: org/model\n", "", 2, 1, "missing key 'id' in model", "add id"),
    ("version: 1\n", "", 1, 1, "missing key 'version' in the plan", "add version"),
    ("    model_type: qwen3\n", "", 5, 3, "missing key 'model_type' in model.config", "add model_type"),
    ("tp_size: 8", "tp_size: 010", 9, 3, "target.tp_size is a string, must be an integer",
     "write target.tp_size as an integer"),
    ("tp_size: 8", "tp_size: '8'", 9, 3, "target.tp_size is a string, must be an integer", "write 8 without quotes"),
    ("tp_size: 8", "tp_size: 8.0", 9, 3, "target.tp_size is a float, must be an integer",
     "write target.tp_size as an integer"),
    ("tp_size: 8", "tp_size: true", 9, 3, "target.tp_size is a boolean, must be an integer",
     "write target.tp_size as an integer"),
    ("tp_size: 8", "tp_size: 0", 9, 3, "target.tp_size is 0, must be at least 1", ""),
    ("tp_size: 8", "tp_size: 65537", 9, 3, "target.tp_size is 65537, must be at most 65536", ""),
    ("tp_size: 8", "tp_size: [8]", 9, 3, "target.tp_size is a list, must be an integer",
     "write target.tp_size as an integer"),
    ("tp_size: 8", "tp_size: " + "9" * 10_000, 9, 3,
     "target.tp_size is an integer of 10000 digits, more than the 64 that a plan can hold", ""),
    ("tp_size: 8", "tp_size: 1e999", 9, 3, "target.tp_size is not a finite number", ""),
    ("eps: 1e-6", "eps: -.inf", 7, 43, "model.config.text_config.eps is not a finite number", ""),
    ("sliding]", ".NaN]", 7, 68, "model.config.text_config.kinds[1] is not a finite number", ""),
    ("org/model", '"\\ud800"', 3, 3, "model.id holds half of a surrogate pair, which is not a character", ""),
    ("org/model", "''", 3, 3, "model.id is empty", ""),
    ("org/model", "12", 3, 3, "model.id is an integer, must be a string", "put quotes around it"),
    ("org/model", "", 3, 3, "model.id is null, must be a string", "write model.id as a string"),
    ("tp_size: 8", "tp_size: 8\n  device: tpuv5e", 10, 3,
     "target.device is 'tpuv5e', must be one of cpu, tpu, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu-v7", "write tpu-v5e"),
    ("tp_size: 8", "tp_size: 8\n  dtype: 16", 10, 3, "target.dtype is an integer, must be a string",
     "put quotes around it"),
    ("static: passed", "static: yes", 14, 12,
     "proven.stages.static is 'yes', must be one of passed, failed, not-run", ""),
    ("'2.9'", "2.9", 15, 14, "proven.versions.torch is a float, must be a string", "put quotes around it"),
    ("model.layers.*.self_attn.k_proj", "''", 12, 3, "overrides[''] is empty", ""),
    ("k_proj: replicated_with_grad_allreduce", "k_proj: {a: b}", 12, 3,
     "overrides['model.layers.*.self_attn.k_proj'] is a mapping, must be a string",
     "write overrides['model.layers.*.self_attn.k_proj'] as a string"),
]  # fmt: skip


@pytest.mark.parametrize("old, new, line, column, message, fix", MISTAKES)
def test_one_mistake_is_one_diagnostic(old: str, new: str, line: int, column: int, message: str, fix: str) -> None:
    mistake = only(edited((old, new)), "TPP103")
    assert (mistake.where.line, mistake.where.column) == (line, column)
    assert (mistake.message, mistake.fix) == (message, fix)


def test_overrides_left_empty() -> None:
    mistake = only(VALID[: VALID.index("  model.layers")], "TPP103")
    assert mistake.message == "overrides is null, must be a mapping"
    assert mistake.fix == "write {} for an empty mapping"


@pytest.mark.parametrize("version", ["2", "'1'", "1.0", "true", "~", "[1]", "9" * 100, "2\nversion: 1"])
def test_another_version_is_the_only_mistake(version: str) -> None:
    mistake = only(edited(("version: 1", f"version: {version}"), ("target:", "tarmac:")), "TPP103")
    assert mistake.message == "version is not 1, the only version of plan files that this tpplan reads"
    assert (mistake.where.line, mistake.where.column) == (1, 1)


def test_the_value_of_a_misspelt_key_is_looked_at() -> None:
    text = edited(("target:", "taget:"), ("tp_size: 8", "tpsize: eight\n  device: gpu"))
    assert [(d.where.line, d.message.split(",")[0]) for d in mistakes(text)] == [
        (8, "unknown key 'taget' in the plan"),
        (9, "unknown key 'tpsize' in target"),
        (9, "target.tp_size is a string"),
        (10, "target.device is 'gpu'"),
    ]


def test_the_value_of_a_misspelt_key_is_told_of_once() -> None:
    text = edited(("tp_size: 8", "tpsize: 1e999"))
    assert [d.message for d in mistakes(text)] == [
        "target.tpsize is not a finite number",
        "unknown key 'tpsize' in target",
    ]


def test_all_mistakes_at_once_by_position() -> None:
    text = edited(
        ("auto_class: AutoModelForCausalLM", "auto_class: 3"),
        ("tp_size: 8", "tp_size: 8\n  tp_size: 9\n  ep_size: 0\n  purpose: train"),
        ("static: passed", "static: 1e999"),
        ("proven:", "1: 2\nproven:"),
    )
    assert places(text) == [
        ("TPP103", 4, 3),
        ("TPP104", 10, 3),
        ("TPP103", 11, 3),
        ("TPP103", 12, 3),
        ("TPP103", 16, 1),
        ("TPP103", 18, 12),
    ]
    assert mistakes(text) == mistakes(text)


# No text makes reading raise anything but InputError.


def reads_or_says_why(text: str) -> None:
    try:
        read = parse_plan(text)
    except InputError as error:
        assert error.diagnostics
        lines = [d.where.line for d in error.diagnostics if d.where.line]
        assert lines == sorted(lines)
        str(error)
    else:
        assert exactly(parse_plan(read.plan.to_yaml()).plan) == exactly(read.plan)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text(text: str) -> None:
    reads_or_says_why(text)


FRAGMENTS = """- [ ] { } : ? , # & * ! | > ' " % @ ` \\ ~ << --- ... !!int &a *a %YAML %TAG 0 1e999 -.inf true
null version model target overrides proven config tp_size id a: 1: [a]: {a: 1, ud800 \\x \\U""".split()
FRAGMENTS += [" ", "\n", "\t", "\r", "\0", "\n  ", "\n\n"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30))
def test_any_yaml_like_text(fragments: list[str]) -> None:
    reads_or_says_why("".join(fragments))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), st.sampled_from(FRAGMENTS) | st.text(max_size=3)),
        min_size=1,
        max_size=4,
    )
)
def test_any_damaged_plan(damages: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, put in damages:
        text = text[:start] + put + text[start + length :]
    reads_or_says_why(text)


@settings(max_examples=200, deadline=None)
@given(json_values | st.dictionaries(st.sampled_from(list(plan_schema()["properties"])), json_values))
def test_any_data(data: object) -> None:
    reads_or_says_why(yaml.safe_dump(data, allow_unicode=True))


@settings(max_examples=50, deadline=None)
@given(st.binary())
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_plan(path)


# Writing files.


def refused_write(path: Path | str) -> Diagnostic:
    with pytest.raises(InputError) as caught:
        write_atomically(path, "new")
    (mistake,) = caught.value.diagnostics
    assert mistake.code == "TPP101" and mistake.where.file == str(path)
    return mistake


@pytest.fixture
def umask():
    old = os.umask(0o027)
    yield
    os.umask(old)


def test_new_file_has_the_mode_that_open_gives(tmp_path: Path, umask: None) -> None:
    write_atomically(tmp_path / "p", "é\n")
    assert (tmp_path / "p").read_bytes() == "é\n".encode()
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_existing_file_keeps_its_mode(tmp_path: Path, umask: None) -> None:
    (tmp_path / "p").write_text("old")
    (tmp_path / "p").chmod(0o604)
    write_atomically(tmp_path / "p", "new")
    assert (tmp_path / "p").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o604


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/p")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "p").read_text() == "new"


@pytest.mark.parametrize("step", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    path = tmp_path / "p"
    path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    if isinstance(error, OSError):
        assert refused_write(path).evidence == "No space left on device"
    else:
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["p"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("old")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    assert refused_write(tmp_path / "none" / "p").evidence == "No such file or directory"
    assert refused_write(tmp_path).evidence == "not a regular file"
    assert refused_write(tmp_path / "fifo").evidence == "not a regular file"
    assert refused_write(tmp_path / "file" / "p").evidence == "Not a directory"
    assert refused_write("/dev/null").evidence == "not a regular file"
    refused_write(tmp_path / "loop")
    refused_write(tmp_path / "p\0")
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_write_protection_is_respected(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("old")
    (tmp_path / "p").chmod(0o444)
    assert refused_write(tmp_path / "p").evidence == "the file there is write-protected"
    tmp_path.chmod(0o555)
    assert refused_write(tmp_path / "q").evidence == "Permission denied"
    tmp_path.chmod(0o755)


# Start-up.


def test_import_is_light() -> None:
    heavy = "torch", "transformers", "jsonschema"
    code = f"import sys, tpplan.plan_files.file; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_no_module_hides_a_public_name() -> None:
    code = "import tpplan.api, tpplan.plan_files.file; print(all(callable(getattr(tpplan, n)) for n in tpplan.__all__))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "True\n"
