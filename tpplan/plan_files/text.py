"""The YAML of plan files: what a text says, where each part of it stands, and the mistakes met on the way.

The YAML is PyYAML's stream of events, read by a few rules of our own instead of YAML 1.1's: a plain scalar is what
JSON would read there (`~` and nothing are null too), and else the string that stands there. Nothing is executed. It is
PyYAML's parser in Python because libyaml's words, marks and limits differ, and not every build of PyYAML has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from tpplan.diagnostics import Diagnostic, InputError, Keys, Place, Position
from tpplan.plan_files.document import MAX_DEPTH, MAX_DIGITS

MAX_NODES = 50_000

INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(INTEGER.pattern + r"(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_KINDS = {str: "a string", bool: "a boolean", int: "an integer", float: "a float", dict: "a mapping", list: "a list"}
_SURROGATE = re.compile("[\ud800-\udfff]")
# No characters of YAML, or line breaks in YAML 1.1 but not in 1.2 (NEL, LS, PS), or a byte order mark inside the text.
_REFUSED_CHARACTER = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a text says, as far as it was read.

    places: keys -> position of each part, none if the text holds no value. mistakes: in the order they were met.
    reported: keys of the values that a mistake tells of already.
    """

    file: str
    value: Any
    places: dict[Keys, Position]
    mistakes: tuple[Diagnostic, ...]
    reported: set[Keys]

    @property
    def is_complete(self) -> bool:
        """Whether all of the text was read and nothing in it was refused, so that its shape can be judged."""
        return all(mistake.code not in ("TPP102", "TPP105") for mistake in self.mistakes)


def read_yaml(text: str, file: str) -> Document:
    """What `text` says; `file` is what diagnostics call it. Mistakes are TPP102 to TPP105."""
    reader = _Reader(file)
    try:
        for event in _events(text.removeprefix("\ufeff"), file):
            reader.take(event)
    except InputError as error:  # what follows is not read, but what was found so far is true
        reader.mistakes += error.diagnostics
    return Document(
        file=file, value=reader.value, places=reader.places, mistakes=tuple(reader.mistakes), reported=reader.reported
    )


# Places and words.


def end_of(text: str) -> Position:
    """Position of the character after `text`."""
    lines = re.split(r"\r\n|\r|\n", text)
    return len(lines), len(lines[-1]) + 1


def place_of(file: str, places: Mapping[Keys, Position], keys: Keys) -> Place:
    """Place of the last of `keys`, or of the closest enclosing part that has one."""
    while keys and keys not in places:
        keys = keys[:-1]
    line, column = places.get(keys, (1, 1))
    return Place(file=file, line=line, column=column)


def cut(text: str, length: int = 60) -> str:
    """`text`, with an ellipsis for what goes beyond `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."


def kind_of(value: Any) -> str:
    """What a value is, with its article: `a mapping`."""
    return "null" if value is None else _KINDS[type(value)]


def shown(value: Any) -> str:
    """A value as evidence shows it: of bounded length, a string quoted, the others as YAML has them."""
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else kind_of(value)


def bare(key: str) -> str:
    """A key without quotes where that reads well."""
    return cut(key) if key.isidentifier() else shown(key)


def name_of(keys: Keys | None) -> str:
    """The keys as a sentence names them: target.tp_size, overrides['lm_head']. None: beneath a refused key."""
    if not keys:
        return "the plan" if keys == () else "a refused key's value"
    rest = (f".{cut(str(key))}" if str(key).isidentifier() else f"[{shown(key)}]" for key in keys[1:])
    return bare(str(keys[0])) + "".join(rest)


def _mistake(code: str, file: str, at: Position, message: str, evidence: str = "", fix: str = "") -> Diagnostic:
    where = Place(file=file, line=at[0], column=at[1])
    return Diagnostic(code=code, message=message, where=where, evidence=evidence, fix=fix)


# Events.


def _events(text: str, file: str) -> Iterator[yaml.Event]:
    """PyYAML's events of `text`. Raises InputError (TPP102) where it is not YAML."""
    if refused := _REFUSED_CHARACTER.search(text):
        message = "a character stands here that YAML refuses or that its readers disagree about"
        found = f"U+{ord(refused[0]):04X}"
        raise InputError(_mistake("TPP102", file, end_of(text[: refused.start()]), message, found, "remove it"))
    position = (1, 1)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            position = _position(event.end_mark)
            yield event
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two: hostile escapes and %YAML versions
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        message = "the text is not YAML from here on, so the rest was not read"
        said = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
        evidence = cut("PyYAML: " + (", ".join(said) or str(error)), 200)
        fix = "indent with spaces instead of tabs" if mark and text[mark.index : mark.index + 1] == "\t" else ""
        where = _position(mark) if mark else position
        raise InputError(_mistake("TPP102", file, where, message, evidence, fix)) from None


def _position(mark: yaml.error.Mark | yaml._yaml.Mark | None) -> Position:
    assert mark is not None, "PyYAML's parser marks all events"
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
    if INTEGER.fullmatch(text):
        digits = len(text.removeprefix("-"))
        if digits > MAX_DIGITS:
            return text, f"is an integer of {digits} digits, more than the {MAX_DIGITS} that a plan can hold"
        return int(text), ""
    is_float = _FLOAT.fullmatch(text)
    if is_float and math.isfinite(float(text)):
        return float(text), ""
    return text, "is not a finite number" if is_float or _NOT_FINITE.fullmatch(text) else ""


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


class _Reader:
    """Makes the parts of a Document out of a stream of events."""

    def __init__(self, file: str) -> None:
        self.value: Any = None
        self.places: dict[Keys, Position] = {}
        self.mistakes: list[Diagnostic] = []
        self.reported: set[Keys] = set()
        self._file = file
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
        keys: Keys | None = None
        if isinstance(event, yaml.ScalarEvent):
            value, wrong = _scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        parent = self._open[-1] if self._open else None
        if parent and isinstance(parent.value, dict) and not parent.key_was_met:
            self._take_key(parent, event, value, wrong)
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
        plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
        if plain and key == "<<":
            self._refuse(event, "a merge key puts in keys that stand elsewhere", "write those keys out here")
        elif wrong or not isinstance(key, str):
            read = event.value if wrong and isinstance(event, yaml.ScalarEvent) else key
            said = f"a key {wrong}" if wrong else f"a key is {kind_of(key)}, must be a string"
            fix = "put quotes around it" if plain else ""
            self.mistakes.append(_mistake("TPP103", self._file, position, said, f"read: {shown(read)}", fix))
        elif key in parent.first:
            message = f"key {shown(key)} stands twice in {name_of(parent.keys)}; most readers silently drop the first"
            evidence = "first at line {}, column {}".format(*parent.first[key])
            self.mistakes.append(_mistake("TPP104", self._file, position, message, evidence, "keep one of the two"))
        else:
            parent.key = key
            parent.first[key] = position
            if parent.keys is not None:
                self.places[(*parent.keys, key)] = position

    def _take_value(self, parent: _Open | None, event: yaml.NodeEvent, value: Any, wrong: str) -> Keys | None:
        """Put `value` where it belongs; returns its keys, None if it belongs to nothing."""
        position = _position(event.start_mark)
        keys: Keys | None = None
        if parent is None:
            self.value, keys = value, ()
        elif isinstance(parent.value, list):
            if parent.keys is not None:
                keys = (*parent.keys, len(parent.value))
            parent.value.append(value)
        else:
            parent.key_was_met = False
            if parent.key is not None:
                parent.value[parent.key] = value
                keys = None if parent.keys is None else (*parent.keys, parent.key)
        if keys is not None:
            position = self.places.setdefault(keys, position)  # a value with a key stands where its key does
        if wrong and isinstance(event, yaml.ScalarEvent):
            message, evidence = f"{name_of(keys)} {wrong}", f"read: {shown(event.value)}"
            self.mistakes.append(_mistake("TPP103", self._file, position, message, evidence))
            if keys is not None:
                self.reported.add(keys)
        return keys

    def _refuse_properties(self, event: yaml.NodeEvent) -> None:
        out = "write the value out in each place"
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._anchors:
                self._refuse(event, f"an alias, *{cut(anchor or '')}, stands for a value that stands nowhere", out)
            return
        if anchor is not None:
            self._anchors.add(anchor)
            self._refuse(event, f"an anchor, &{cut(anchor)}, lets one value stand in many places", out)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            self._refuse(event, f"a tag, {shown(event.tag)}, gives a value a type of its own", "remove it")

    def _refuse(self, event: yaml.Event, message: str, fix: str) -> None:
        said = f"{message}, which a plan never needs"
        self.mistakes.append(_mistake("TPP105", self._file, _position(event.start_mark), said, fix=fix))

    def _stop(self, event: yaml.Event, message: str) -> NoReturn:
        raise InputError(_mistake("TPP105", self._file, _position(event.start_mark), message))
