"""Codes 1xx: files and input."""

from __future__ import annotations

from tpplan.codes.code import Code, error

INPUTS: dict[str, Code] = {
    "TPP101": error(
        "file-unreadable",
        "a file cannot be read as text, or cannot be written",
        meaning="The file does not exist, is not a regular file, is larger than a plan or a config can be, or is not "
        "UTF-8. Or it cannot be written.",
        reason="Nothing was checked, and where a file was to be written, nothing was changed.",
        example="tpplan check missing.yaml",
        action="Correct the path, or save the file as UTF-8 text in a place that you can read and write.",
    ),
    "TPP102": error(
        "yaml-syntax",
        "the plan file is not YAML",
        meaning="The YAML parser stopped at the place shown. A plan is one mapping of scalars, lists and mappings. "
        "Control characters, and the line separators that YAML 1.1 and 1.2 disagree about, are allowed only as escapes "
        "inside double quotes.",
        reason="What follows the place was not read, so nothing is known about the plan.",
        example="tpplan check plan.yaml\nplan.yaml: overrides: {",
        action="Correct the line. `tpplan plan MODEL --tp-size N -o FILE` writes a plan to start from.",
    ),
    "TPP103": error(
        "plan-schema",
        "the plan file does not have the shape of a plan",
        meaning="A key is unknown, missing, or not a string, or a value has the wrong type or is outside its range. "
        "Scalars are read as written: `true`, `null`, `~` and numbers as JSON writes them are what they look like, all "
        "else is a string, so `010` and `no` are neither numbers nor booleans. Numbers are finite, and integers have "
        "at most 64 digits.",
        reason="A misspelt key that is ignored in silence would leave the plan without what it was meant to say.",
        example="tpplan check plan.yaml\nplan.yaml: tp_size: two\nplan.yaml: purpse: training",
        action="Make the edit that the fix names. `tpplan schema` prints the JSON Schema that plans are checked "
        "against.",
    ),
    "TPP104": error(
        "duplicate-key",
        "a key appears twice in one mapping",
        meaning="Two lines of one mapping of the plan have the same key.",
        reason="YAML readers keep the later of two equal keys without a message, so one of the two rules would be "
        "lost.",
        example="tpplan check plan.yaml\n"
        "plan.yaml: model.layers.*.self_attn.q_proj: colwise\n"
        "plan.yaml: model.layers.*.self_attn.q_proj: replicated_with_grad_allreduce",
        action="Remove one of the two lines.",
    ),
    "TPP105": error(
        "yaml-refused",
        "the plan file uses YAML that a plan never needs",
        meaning="The file has a tag, an anchor, an alias, a merge key, several documents, or more nesting than a plan "
        "has.",
        reason="Plans are data. Such constructs make a small file expensive to read, or let its meaning depend on the "
        "reader.",
        example="tpplan check plan.yaml\n"
        "plan.yaml: model.layers.*.self_attn.q_proj: &whole replicated_with_grad_allreduce\n"
        "plan.yaml: model.layers.*.self_attn.k_proj: *whole",
        action="Write each value out where it is needed.",
    ),
    "TPP110": error(
        "config-unreadable",
        "no config.json that can be parsed",
        meaning="MODEL is not a directory with a config.json, a config file, or a hub id; or the file does not hold "
        "one JSON object in UTF-8; or a key appears twice in it.",
        reason="Without its config nothing is known about the model.",
        example='tpplan check config.json --tp-size 2\nconfig.json: {"model_type": "llama",}',
        action="Correct the path or the JSON at the place shown.",
    ),
    "TPP111": error(
        "unknown-model-type",
        "the installed Transformers has no such model_type",
        meaning="The config names a model_type that the installed Transformers does not know.",
        reason="from_pretrained cannot choose a model class and raises.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "model_type": "lama"',
        action="Correct the spelling, or install a Transformers release that has this type. A model with its own code "
        "needs --trust-remote-code.",
    ),
    "TPP112": error(
        "config-field-missing",
        "the config lacks a value that decides",
        meaning="The config has no model_type, or lacks a size that makes it one model, or gives a number of heads "
        "under a name that its class does not read.",
        reason="Transformers would use the default of the class without a message, and the verdict would be about a "
        "different model.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "model_type": "llama"\nconfig.json: '
        '"intermediate_size": 96',
        action="Put the value into config.json, under the name that the fix gives.",
    ),
    "TPP113": error(
        "config-rejected",
        "Transformers refuses the config",
        meaning="The config class of the installed Transformers raised on these values; the evidence is its error.",
        reason="from_pretrained raises on the same values, at every tp_size.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "num_hidden_layers": "two"',
        action="Correct the value that the evidence names.",
    ),
    "TPP114": error(
        "remote-code",
        "the model brings its own code",
        meaning="The config names Python files of the model's repository (auto_map), and the installed Transformers "
        "does not know its model_type.",
        reason="Running these files runs code from the repository on your machine, so it is never done unasked.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "AutoConfig": "configuration_own.OwnConfig"',
        action="Read the files, then give --trust-remote-code.",
    ),
    "TPP115": error(
        "no-auto-class",
        "no auto class loads this config",
        meaning="None of the auto classes that tpplan tries, or not the one that was named, maps this config class to "
        "a model class.",
        reason="Which model would be loaded is unknown, and so are its parameters and its plan.",
        example="tpplan check config.json --tp-size 2 --auto-class AutoModelForSpeechSeq2Seq\n"
        'config.json: "model_type": "llama"',
        action="Name an auto class that loads the model with --auto-class, or leave --auto-class out.",
    ),
    "TPP116": error(
        "class-does-not-build",
        "the model's class cannot be built from this config",
        meaning="The constructor of the model class raised: a package that it needs is missing, or values of the "
        "config contradict each other.",
        reason="from_pretrained builds the class in the same way and raises too.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "hidden_act": "selu_of_another_library"',
        action="Correct the value, or install the package, that the evidence names.",
    ),
    "TPP117": error(
        "head-count-invalid",
        "a number of heads is not a whole number above 0",
        meaning="A number of query or key/value heads is a string, a boolean, a fraction, or below 1.",
        reason="Some config classes accept such a value, and the model fails only when it is built, or is a different "
        "model.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "num_attention_heads": "8"',
        action="Write the number of heads as a whole number.",
    ),
    "TPP118": error(
        "names-contradict",
        "two names of one config value have different values",
        meaning="The config class reads both names as the same value (its attribute_map), and the file gives them "
        "different values.",
        reason="Transformers uses one of the two without a message, and it may be the wrong one.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "n_head": 8\nconfig.json: "num_attention_heads": 4',
        action="Remove the name whose value is wrong.",
    ),
    "TPP119": error(
        "size-out-of-range",
        "a size in the config is outside the range of any model",
        meaning="A size that decides the structure is below 1, or a number of layers, labels, experts, heads, "
        "positions, columns or pixels is far above that of every known model, in a nested config or a list too. The "
        "evidence names the bound.",
        reason="No model can be built from it, or building it would take hours.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "num_hidden_layers": 0',
        action="Correct the size in config.json.",
    ),
    "TPP120": error(
        "stale-facts",
        "the plan was made for a different config",
        meaning="The plan carries the config values that it depends on, and the model's config has others now.",
        reason="What was proven for the plan was proven for a different model.",
        example="tpplan check plan.yaml --depth static\n"
        "plan.yaml: num_key_value_heads: 2\n"
        'model/config.json: "num_key_value_heads": 4',
        action="Make the plan anew with the command of the fix.",
    ),
    "TPP121": error(
        "unknown-dtype",
        "torch has no such dtype",
        meaning="The config names a dtype that torch does not have.",
        reason="from_pretrained takes the dtype of the parameters from the config, and bytes depend on it.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "dtype": "float7"',
        action="Write a dtype of torch into config.json, such as bfloat16.",
    ),
    "TPP122": error(
        "text-config-invalid",
        "a value of a flat config is taken for the config of a language model",
        meaning="The config class has no nested configs, and the file has a key such as text_config, which "
        "Transformers takes for the config of the language model.",
        reason="Transformers then reads heads and cache sizes from that value instead of from the config itself.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "text_config": {',
        action="Remove the key from config.json, or correct the model_type.",
    ),
    "TPP130": error(
        "bad-usage",
        "the call makes no sense",
        meaning="An option is missing or unknown, contradicts the plan file, or has a value outside its range.",
        reason="Nothing was checked.",
        example="tpplan check config.json",
        action="Make the edit that the fix names. `tpplan COMMAND --help` lists the options of a command.",
    ),
}
