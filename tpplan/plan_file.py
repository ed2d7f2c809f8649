"""Reading plan files: the text, its YAML, its shape; every mistake with line and column, nothing executed.

The YAML is PyYAML's stream of events, read by a few rules of our own instead of YAML 1.1's: a plain scalar is what
JSON would read there (`~` and nothing are null too), and else the string that stands there. It is PyYAML's parser in
Python because libyaml's words, marks and limits differ, and not every build of PyYAML has it.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from tpplan.diagnostics import Diagnostic, InputError, Place
from tpplan.plan import MAX_DEPTH, MAX_DIGITS, Plan, plan_schema

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

MAX_BYTES = 1 << 20
MAX_NODES = 50_000

Keys = tuple[str | int, ...]  # keys and list indices, from the plan down to a value
Position = tuple[int, int]  # line and column, 1-based

# No characters of YAML, or line breaks in YAML 1.1 but not in 1.2 (NEL, LS, PS), or a byte order mark inside the text.
_REFUSED_CHARACTER = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_KINDS = {str: "a string", bool: "a boolean", int: "an integer", float: "a float", dict: "a mapping", list: "a list"}
_WANTED = {"string": "a string", "integer": "an integer", "object": "a mapping"}


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, and where each of its parts stands. path: the file as the user gave it. places: keys -> position."""

    path: str
    plan: Plan
    places: Mapping[Keys, Position] = field(repr=False)

    def place_of(self, *keys: str | int) -> Place:
        """Line and column of the last of `keys` in the file, or of the closest enclosing part that stands there."""
        return _place(self.path, self.places, keys)

    def place_of_rule(self, rule: str) -> Place:
        """Line and column of a rule of `overrides`, and its name; the closest enclosing part if it is not there."""
        return replace(self.place_of("overrides", rule), rule=rule)


def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """The plan in the file at `path`.

    Raises InputError with every mistake in the file (TPP101 to TPP105), sorted by position.
    """
    name = os.fspath(path)
    data = _read_bytes(name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, _ = _end_of(data[: error.start].decode("utf-8"))
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise _unreadable(Place(file=name, line=line), "the file is not UTF-8 text", found) from None
    return parse_plan(text, file=name)


def parse_plan(text: str, file: str = "<string>") -> PlanFile:
    """The plan that `text` describes; `file` is what diagnostics call it.

    Raises InputError with every mistake in the text (TPP101 to TPP105), sorted by position.
    """
    if len(text) > MAX_BYTES:
        raise _unreadable(Place(file=file), *_TOO_LARGE)
    tree = _Tree(file)
    try:
        for event in _events(text.removeprefix("\ufeff"), file):
            tree.take(event)
    except InputError as error:  # what follows was not read, but what was found so far is true
        raise _sorted([*tree.mistakes, *error.diagnostics]) from None
    if any(mistake.code == "TPP105" for mistake in tree.mistakes):  # values that no shape can be judged of
        raise _sorted(tree.mistakes)
    if mistakes := _shape_mistakes(tree):
        raise _sorted(mistakes)
    return PlanFile(path=file, plan=Plan.from_dict(tree.value), places=tree.places)


# The text.

_TOO_LARGE = "the file is too large for a plan", f"a plan has at most {MAX_BYTES} bytes"


def _read_bytes(name: str) -> bytes:
    """Content of the regular file `name`: bounded, and without waiting for the other end of a pipe."""

    def open_at_once(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        with open(name, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(None, "not a regular file")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that holds NUL
        said = "there is no such file" if isinstance(error, FileNotFoundError) else "the file cannot be read"
        raise _unreadable(Place(file=name), said, getattr(error, "strerror", None) or str(error)) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(Place(file=name), *_TOO_LARGE)
    return data


def _unreadable(where: Place, message: str, evidence: str) -> InputError:
    return InputError(Diagnostic(code="TPP101", message=message, where=where, evidence=evidence))


def _sorted(mistakes: list[Diagnostic]) -> InputError:
    """The error that holds `mistakes` by position; at one position a misnamed key stays before its value."""
    return InputError(*sorted(mistakes, key=lambda mistake: (mistake.where.line or 0, mistake.where.column or 0)))


def _end_of(text: str) -> Position:
    """Position of the character after `text`."""
    lines = re.split(r"\r\n|\r|\n", text)
    return len(lines), len(lines[-1]) + 1


def _place(file: str, places: Mapping[Keys, Position], keys: Keys) -> Place:
    while keys and keys not in places:
        keys = keys[:-1]
    line, column = places.get(keys, (1, 1))
    return Place(file=file, line=line, column=column)


def _mistake(
    code: str, file: str, position: Position, message: str, evidence: str = "", fix: str = ""
) -> Diagnostic:
    where = Place(file=file, line=position[0], column=position[1])
    return Diagnostic(code=code, message=message, where=where, evidence=evidence, fix=fix)


def _cut(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _shown(value: Any) -> str:
    """A value as evidence shows it: of bounded length, a string quoted, the others as YAML has them."""
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else _kind(value)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value)]


def _name(keys: Keys | None) -> str:
    """The keys as a sentence names them: target.tp_size, overrides['lm_head']."""
    if not keys:
        return "the plan" if keys == () else "a refused key's value"
    rest = (f".{_cut(key)}" if str(key).isidentifier() else f"[{_shown(key)}]" for key in keys[1:])
    return _bare(str(keys[0])) + "".join(rest)


def _bare(key: str) -> str:
    """A key without quotes where that reads well."""
    return _cut(key) if key.isidentifier() else _shown(key)


# The YAML.


def _events(text: str, file: str) -> Iterator[yaml.Event]:
    """PyYAML's events of `text`. Raises InputError (TPP102) where it is not YAML."""
    position = (1, 1)
    if refused := _REFUSED_CHARACTER.search(text):
        message = "a character stands here that YAML refuses or that its readers disagree about"
        found = f"U+{ord(refused[0]):04X}"
        raise InputError(_mistake("TPP102", file, _end_of(text[: refused.start()]), message, found, "remove it"))
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            position = _position(event.end_mark)
            yield event
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two: hostile escapes and %YAML versions
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        message = "the text is not YAML from here on, so the rest was not read"
        said = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
        evidence = _cut("PyYAML: " + (", ".join(said) or str(error)), 200)
        fix = "indent with spaces instead of tabs" if mark and text[mark.index : mark.index + 1] == "\t" else ""
        where = _position(mark) if mark else position
        raise InputError(_mistake("TPP102", file, where, message, evidence, fix)) from None


def _position(mark: yaml.Mark) -> Position:
    return mark.line + 1, mark.column + 1


def _scalar(event: yaml.ScalarEvent) -> tuple[Any, str]:
    """The value of a scalar, and what is wrong with it or nothing."""
    text, plain = event.value, event.implicit[0]
    if _SURROGATE.search(text):
        return "", "holds half of a surrogate pair, which is not a character"
    if not plain:
        return text, ""
    if text in _WORDS:
        return _WORDS[text], ""
    if _INTEGER.fullmatch(text):
        digits = len(text.removeprefix("-"))
        if digits > MAX_DIGITS:
            return text, f"is an integer of {digits} digits, more than the {MAX_DIGITS} that a plan can hold"
        return int(text), ""
    if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
        return text, "is not a finite number"
    return (float(text) if _FLOAT.fullmatch(text) else text), ""


@dataclass(kw_only=True)
class _Open:
    """A list or mapping whose end was not met yet.

    keys: None beneath a key that was refused. first: where each key stood first. key: that of the value to come.
    """

    value: Any
    keys: Keys | None
    first: dict[str, Position] = field(default_factory=dict)
    key: str | None = None
    key_was_met: bool = False


class _Tree:
    """What a stream of events says: the value, the place of each of its parts, and the mistakes met on the way.

    reported: keys of the values that a mistake tells of already.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.value: Any = None
        self.places: dict[Keys, Position] = {}
        self.mistakes: list[Diagnostic] = []
        self.reported: set[Keys] = set()
        self._open: list[_Open] = []
        self._anchors: set[str] = set()
        self._nodes = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Read the next event. Raises InputError (TPP105) where a limit is passed."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._take_document(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._take_node(event)

    def _take_document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            self._stop(event, "a second document starts here, and a plan file is one document")
        if event.tags:
            self._refuse(event, "a %TAG directive gives values types of their own", "remove it")

    def _take_node(self, event: yaml.NodeEvent) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._stop(event, f"the file has more than {MAX_NODES} keys and values, which no plan needs")
        self._refuse_properties(event)
        value, wrong = None, ""
        if isinstance(event, yaml.ScalarEvent):
            value, wrong = _scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        parent = self._open[-1] if self._open else None
        if parent and isinstance(parent.value, dict) and not parent.key_was_met:
            self._take_key(parent, event, value, wrong)
            keys = None
        else:
            keys = self._take_value(parent, event, value, wrong)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) == MAX_DEPTH:
                self._stop(event, f"values are nested deeper than {MAX_DEPTH} here, which no plan needs")
            self._open.append(_Open(value=value, keys=keys))

    def _take_key(self, parent: _Open, event: yaml.NodeEvent, key: Any, wrong: str) -> None:
        parent.key, parent.key_was_met = None, True  # None: the value to come belongs to nothing
        if isinstance(event, yaml.AliasEvent):
            return
        position = _position(event.start_mark)
        if isinstance(key, str) and event.implicit[0] and key == "<<":
            self._refuse(event, "a merge key puts in keys that stand elsewhere", "write those keys out here")
        elif wrong or not isinstance(key, str):
            read = _shown(event.value if wrong else key)
            said = f"a key {wrong}" if wrong else f"a key is {_kind(key)}, must be a string"
            fix = "put quotes around it" if isinstance(event, yaml.ScalarEvent) and event.implicit[0] else ""
            self.mistakes.append(_mistake("TPP103", self.file, position, said, f"read: {read}", fix))
        elif key in parent.first:
            message = f"key {_shown(key)} stands twice in {_name(parent.keys)}; most readers silently drop the first"
            line, column = parent.first[key]
            evidence = f"first at line {line}, column {column}"
            self.mistakes.append(_mistake("TPP104", self.file, position, message, evidence, "keep one of the two"))
        else:
            parent.key = key
            parent.first[key] = position
            if parent.keys is not None:
                self.places[(*parent.keys, key)] = position

    def _take_value(self, parent: _Open | None, event: yaml.NodeEvent, value: Any, wrong: str) -> Keys | None:
        """Put `value` where it belongs; returns its keys, None if it belongs to nothing."""
        position, keys = _position(event.start_mark), None
        if parent is None:
            self.value, keys = value, ()
            self.places[keys] = position
        elif isinstance(parent.value, list):
            if parent.keys is not None:
                keys = (*parent.keys, len(parent.value))
                self.places[keys] = position
            parent.value.append(value)
        else:
            parent.key_was_met = False
            if parent.key is not None:
                parent.value[parent.key] = value
                keys = None if parent.keys is None else (*parent.keys, parent.key)
        if wrong:
            where = position if keys is None else self.places[keys]
            evidence = f"read: {_shown(event.value)}"
            self.mistakes.append(_mistake("TPP103", self.file, where, f"{_name(keys)} {wrong}", evidence))
            if keys is not None:
                self.reported.add(keys)
        return keys

    def _refuse_properties(self, event: yaml.NodeEvent) -> None:
        out = "write the value out in each place"
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                self._refuse(event, f"an alias, *{_cut(event.anchor, 60)}, stands for a value that stands nowhere", out)
            return
        if event.anchor is not None:
            self._anchors.add(event.anchor)
            self._refuse(event, f"an anchor, &{_cut(event.anchor, 60)}, lets one value stand in many places", out)
        if event.tag is not None:
            self._refuse(event, f"a tag, {_shown(event.tag)}, gives a value a type of its own", "remove it")

    def _refuse(self, event: yaml.Event, message: str, fix: str = "") -> None:
        said = f"{message}, which a plan never needs"
        self.mistakes.append(_mistake("TPP105", self.file, _position(event.start_mark), said, fix=fix))

    def _stop(self, event: yaml.Event, message: str) -> NoReturn:
        raise InputError(_mistake("TPP105", self.file, _position(event.start_mark), message))


# The shape.


@cache
def _validator() -> Draft202012Validator:
    """Validator of the plan's schema, to which 4.0 is no integer."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return extend(Draft202012Validator, type_checker=types)(plan_schema())


def _shape_mistakes(tree: _Tree) -> list[Diagnostic]:
    """Every mistake of the tree: those it has met, and where it differs from the schema. Moves misnamed keys."""
    if not tree.places:
        fix = "tpplan plan MODEL --tp-size N -o FILE writes a plan"
        return [_mistake("TPP103", tree.file, (1, 1), "the file holds no plan, only white space or comments", fix=fix)]
    version = tree.value.get("version", 1) if isinstance(tree.value, dict) else 1
    if type(version) is not int or version != 1:
        return [_version_mistake(tree, version)]
    misnamed = []
    errors = list(_validator().iter_errors(tree.value))
    while moved := _move_misnamed(tree, errors):
        misnamed += moved
        errors = list(_validator().iter_errors(tree.value))
    return [*tree.mistakes, *misnamed, *_key_mistakes(tree, errors), *_value_mistakes(tree, errors)]


def _version_mistake(tree: _Tree, version: Any) -> Diagnostic:
    message = "version is not 1, the only version of plan files that this tpplan reads"
    return _mistake("TPP103", tree.file, tree.places[("version",)], message, f"version: {_shown(version)}")


def _mappings(errors: list[ValidationError]) -> Iterator[tuple[Keys, dict[str, Any], dict[str, Any]]]:
    """Keys, value and schema of each mapping with unknown or missing keys, once."""
    found = {
        tuple(error.absolute_path): (error.instance, error.schema)
        for error in errors
        if error.validator in ("additionalProperties", "required")
    }
    for keys, (value, schema) in found.items():
        yield keys, value, schema


def _unknown(value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    return [key for key in value if schema["additionalProperties"] is False and key not in schema["properties"]]


def _move_misnamed(tree: _Tree, errors: list[ValidationError]) -> list[Diagnostic]:
    """Move each value whose key is misspelt or stands in the wrong mapping to where it is meant; returns the mistakes.

    So one wrong key is one mistake, not an unknown key and a missing one, and its value is still looked at.
    """
    mistakes = []
    for keys, value, schema in _mappings(errors):
        for key in _unknown(value, schema):
            meant = _meant(tree.value, keys, key, schema)
            if meant is None:
                continue
            home = _name(meant[:-1]) if len(meant) > 1 else "the top level"
            fix = f"write {meant[-1]} instead of {_bare(key)}" if meant[:-1] == keys else f"move {key} into {home}"
            mistakes.append(_unknown_mistake(tree, keys, key, schema, fix))
            _move(tree, (*keys, key), meant)
    return mistakes


def _meant(plan: dict[str, Any], keys: Keys, key: str, schema: dict[str, Any]) -> Keys | None:
    """Where the unknown `key` of the mapping at `keys` was meant to stand, None if that is unclear or taken."""
    home = dict(_homes(plan_schema(), ())).get(key)
    if home is not None:
        meant = (*home, key)
    else:
        close = get_close_matches(key, schema["properties"], n=1)
        if not close:
            return None
        meant = (*keys, close[0])
    mapping: Any = plan
    for part in meant[:-1]:
        mapping = mapping.get(part, {}) if isinstance(mapping, dict) else None
    return meant if isinstance(mapping, dict) and meant[-1] not in mapping else None


def _homes(schema: dict[str, Any], keys: Keys) -> Iterator[tuple[str, Keys]]:
    """Each key that the schema knows, with the keys of its mapping. No two mappings have one in common."""
    for key, part in schema.get("properties", {}).items():
        yield key, keys
        yield from _homes(part, (*keys, key))


def _move(tree: _Tree, old: Keys, new: Keys) -> None:
    source, goal = tree.value, tree.value
    for key in old[:-1]:
        source = source[key]
    for key in new[:-1]:
        goal = goal.setdefault(key, {})
    goal[new[-1]] = source.pop(old[-1])
    for keys in [keys for keys in tree.places if keys[: len(old)] == old]:
        moved = new + keys[len(old) :]
        tree.places[moved] = tree.places[keys]
        if keys in tree.reported:
            tree.reported.add(moved)


def _unknown_mistake(tree: _Tree, keys: Keys, key: str, schema: dict[str, Any], fix: str) -> Diagnostic:
    message = f"unknown key {_shown(key)} in {_name(keys)}"
    evidence = f"keys of {_name(keys)}: {', '.join(schema['properties'])}"
    return _mistake("TPP103", tree.file, tree.places[(*keys, key)], message, evidence, fix)


def _key_mistakes(tree: _Tree, errors: list[ValidationError]) -> Iterator[Diagnostic]:
    for keys, value, schema in _mappings(errors):
        for key in _unknown(value, schema):
            yield _unknown_mistake(tree, keys, key, schema, f"remove {_bare(key)}")
        for key in schema.get("required", []):
            if key not in value:
                where = _place(tree.file, tree.places, keys)
                message = f"missing key {key!r} in {_name(keys)}"
                evidence = f"{key}: {schema['properties'][key]['description']}"
                yield Diagnostic(code="TPP103", message=message, where=where, evidence=evidence, fix=f"add {key}")


def _value_mistakes(tree: _Tree, errors: list[ValidationError]) -> Iterator[Diagnostic]:
    """One mistake a value, of the wrong type rather than of what follows from that."""
    done = set(tree.reported)
    for error in sorted(errors, key=lambda error: error.validator != "type"):
        keys = tuple(error.absolute_path)
        if "propertyNames" in error.absolute_schema_path:
            keys = (*keys, error.instance)
        if error.validator in ("additionalProperties", "required") or keys in done:
            continue
        done.add(keys)
        said, fix = _value_words(error, _name(keys))
        evidence = "" if isinstance(error.instance, dict | list) else f"read: {_shown(error.instance)}"
        where = _place(tree.file, tree.places, keys)
        yield Diagnostic(code="TPP103", message=f"{_name(keys)} {said}", where=where, evidence=evidence, fix=fix)


def _value_words(error: ValidationError, name: str) -> tuple[str, str]:
    """What is wrong with a value, and the fix. Knows each keyword that the schema uses for values."""
    value, limit = error.instance, error.validator_value
    match error.validator:
        case "type":
            return f"is {_kind(value)}, must be {_WANTED[limit]}", _type_fix(value, limit, error.schema, name)
        case "const":
            return f"is {_shown(value)}, must be {limit}", ""
        case "enum":
            close = get_close_matches(value, limit, n=1)
            fix = f"write {close[0]}" if close else ""
            return f"is {_shown(value)}, must be one of {', '.join(limit)}", fix
        case "minimum":
            return f"is {value}, must be at least {limit}", ""
        case "maximum":
            return f"is {value}, must be at most {limit}", ""
        case "minLength":
            return "is empty", ""
    raise NotImplementedError(error.validator)


def _type_fix(value: Any, wanted: str, schema: dict[str, Any], name: str) -> str:
    if wanted == "string" and isinstance(value, bool | int | float):
        return "put quotes around it"
    if wanted == "integer" and isinstance(value, str) and _INTEGER.fullmatch(value):
        return f"write {_cut(value)} without quotes"
    if wanted == "object" and value is None and "required" not in schema:
        return "write {} for an empty mapping"
    return f"write {name} as {_WANTED[wanted]}"
