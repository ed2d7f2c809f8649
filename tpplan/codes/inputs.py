"""Codes 1xx: files and input."""

from __future__ import annotations

from tpplan.codes.code import Code, error

INPUTS: dict[str, Code] = {
    "TPP101": error(
        "file-unreadable",
        "a file cannot be read as text, or cannot be written",
        "The file does not exist, is not a regular file, is larger than a plan or a config can be, or is not UTF-8; "
        "nothing was checked. Or it cannot be written; nothing was changed.",
    ),
    "TPP102": error(
        "yaml-syntax",
        "the plan file is not YAML",
        "The YAML parser stopped at the place shown, and what follows it was not read. Plans are one mapping of "
        "scalars, lists and mappings. Control characters, and the line separators that YAML 1.1 and 1.2 disagree "
        "about, stand in a plan only as escapes inside double quotes.",
    ),
    "TPP103": error(
        "plan-schema",
        "the plan file does not have the shape of a plan",
        "A key is unknown, missing, or not a string, or a value has the wrong type or is outside its range. `tpplan "
        "schema` prints the JSON Schema that plans are checked against. Scalars are read as written: `true`, `null`, "
        "`~` and numbers as JSON writes them are what they look like, all else is a string, so `010` and `no` are not "
        "numbers or booleans. Numbers are finite, and integers have at most 64 digits.",
    ),
    "TPP104": error(
        "duplicate-key",
        "a key stands twice in one mapping",
        "YAML readers keep the later of two equal keys without a word, so one of the two rules would silently vanish. "
        "Keep one of them.",
    ),
    "TPP105": error(
        "yaml-refused",
        "the plan file uses YAML that a plan never needs",
        "Tags, anchors, aliases, merge keys, several documents, and nesting beyond a plan's depth are refused: plans "
        "are data, and such constructs make a small file expensive or its meaning depend on the reader.",
    ),
    "TPP110": error(
        "config-unreadable",
        "no config.json that can be parsed",
        "MODEL must be a directory with a config.json, a config file, or a hub id. The file must hold one JSON object.",
    ),
    "TPP111": error(
        "unknown-model-type",
        "the installed Transformers has no such model_type",
        "The config names a model_type that the installed Transformers does not know. A newer Transformers may know "
        "it; a model with its own code needs --trust-remote-code.",
    ),
    "TPP112": error(
        "config-field-missing",
        "the config lacks a value that decides",
        "Transformers would fill in the default of the model class without a word, and the verdict would be about "
        "another model. Put the value into config.json.",
    ),
    "TPP113": error(
        "config-rejected",
        "Transformers refuses the config",
        "The config class of the installed Transformers raised on these values, as from_pretrained would. Or they "
        "contradict each other: a number of heads that is none, two names of one value that differ, key/value heads that "
        "the query heads cannot share; such a model may load, and runs at no tp_size.",
    ),
    "TPP114": error(
        "remote-code",
        "the model brings its own code",
        "The config names Python files of the model's repository (auto_map). They are run only with "
        "--trust-remote-code; read them first.",
    ),
    "TPP115": error(
        "no-auto-class",
        "no auto class loads this config",
        "None of the auto classes that tpplan tries maps this config class to a model class. Name one with "
        "--auto-class.",
    ),
    "TPP116": error(
        "class-does-not-build",
        "the model's class cannot be built from this config",
        "The constructor of the model class raised, as it would in from_pretrained: a package that it needs is missing, "
        "or values of the config contradict each other.",
    ),
    "TPP120": error(
        "stale-facts",
        "the plan was made for another config",
        "The plan carries the config values that it depends on, and the model's config has others now. What was "
        "proven no longer holds; make the plan anew.",
    ),
    "TPP130": error(
        "bad-usage",
        "the call makes no sense",
        "An option is missing, contradicts the plan file, or has a value outside its range.",
    ),
}
