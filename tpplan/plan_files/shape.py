"""The shape of plan files: where what was read differs from plan.schema.json, each mistake once, in our words.

jsonschema finds the differences; the sentences are ours. A misspelt key is to jsonschema an unknown and a missing one:
here it is one mistake, and its value is looked at where it was meant to stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from tpplan.diagnostics import Diagnostic, Keys
from tpplan.plan_files.document import plan_schema
from tpplan.plan_files.text import INTEGER, Document, bare, cut, kind_of, name_of, place_of, shown

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_WANTED = {"string": "a string", "integer": "an integer", "object": "a mapping"}
_KEY_KEYWORDS = "additionalProperties", "required"  # what the schema says of a mapping's keys, not of a value


def all_mistakes(document: Document) -> list[Diagnostic]:
    """The mistakes met in reading `document`, and those of its shape; of another version of plans, that alone.

    document: a complete one.
    """
    if not document.places:
        fix = "tpplan plan MODEL --tp-size N -o FILE writes a plan"
        return [_mistake(document, (), "the file holds no plan, only white space or comments", fix=fix)]
    version = document.value.get("version", 1) if isinstance(document.value, dict) else 1
    if type(version) is not int or version != 1:
        message = "version is not 1, the only version of plan files that this tpplan reads"
        return [_mistake(document, ("version",), message, f"version: {shown(version)}")]
    meant = replace(  # a copy, in which misnamed keys are moved
        document,
        value=deepcopy(document.value),
        places=dict(document.places),
        reported=set(document.reported),
    )
    misnamed = []
    while moved := _move_misnamed(meant):
        misnamed += moved
    errors = _errors(meant)
    return [*document.mistakes, *misnamed, *_key_mistakes(meant, errors), *_value_mistakes(meant, errors)]


@cache
def _validator() -> Draft202012Validator:
    """Validator of the plan's schema, to which 4.0 is no integer."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return extend(Draft202012Validator, type_checker=types)(plan_schema())


@dataclass(frozen=True, kw_only=True)
class _Error:
    """A difference from the schema. keys: of the value, or of the key itself where its name is wrong. keyword: of
    `schema`, whose value is `limit`."""

    keys: Keys
    keyword: str
    value: Any
    limit: Any
    schema: Mapping[str, Any]


def _errors(document: Document) -> list[_Error]:
    found: Iterator[Any] = _validator().iter_errors(document.value)
    return [
        _Error(
            keys=(*error.absolute_path, *([error.instance] if "propertyNames" in error.absolute_schema_path else ())),
            keyword=error.validator,
            value=error.instance,
            limit=error.validator_value,
            schema=error.schema,
        )
        for error in found
    ]


def _mistake(document: Document, keys: Keys, message: str, evidence: str = "", fix: str = "") -> Diagnostic:
    where = place_of(document.file, document.places, keys)
    return Diagnostic(code="TPP103", message=message, where=where, evidence=evidence, fix=fix)


# Keys.


def _mappings(errors: list[_Error]) -> list[_Error]:
    """One error for each mapping with unknown or missing keys."""
    return list({error.keys: error for error in errors if error.keyword in _KEY_KEYWORDS}.values())


def _unknown(error: _Error) -> list[str]:
    known, is_closed = error.schema["properties"], error.schema["additionalProperties"] is False
    return [key for key in error.value if is_closed and key not in known]


def _key_mistakes(document: Document, errors: list[_Error]) -> Iterator[Diagnostic]:
    for error in _mappings(errors):
        for key in _unknown(error):
            yield _unknown_mistake(document, error, key, f"remove {bare(key)}")
        for key in error.schema.get("required", []):
            if key not in error.value:
                evidence = f"{key}: {error.schema['properties'][key]['description']}"
                message = f"missing key {key!r} in {name_of(error.keys)}"
                yield _mistake(document, error.keys, message, evidence, f"add {key}")


def _unknown_mistake(document: Document, error: _Error, key: str, fix: str) -> Diagnostic:
    message = f"unknown key {shown(key)} in {name_of(error.keys)}"
    evidence = f"keys of {name_of(error.keys)}: {', '.join(error.schema['properties'])}"
    return _mistake(document, (*error.keys, key), message, evidence, fix)


def _move_misnamed(document: Document) -> list[Diagnostic]:
    """Move each value whose key is misspelt or stands in the wrong mapping to where it is meant; returns the mistakes.

    So one wrong key is one mistake, not an unknown key and a missing one, and its value is still looked at.
    """
    mistakes = []
    for error in _mappings(_errors(document)):
        for key in _unknown(error):
            meant = _meant(document.value, error.keys, key, error.schema)
            if meant is None:
                continue
            home = name_of(meant[:-1]) if len(meant) > 1 else "the top level"
            fix = f"write {meant[-1]} instead of {bare(key)}" if meant[:-1] == error.keys else f"move {key} into {home}"
            mistakes.append(_unknown_mistake(document, error, key, fix))
            _move(document, (*error.keys, key), meant)
    return mistakes


def _meant(plan: dict[str, Any], keys: Keys, key: str, schema: Mapping[str, Any]) -> Keys | None:
    """Where the unknown `key` of the mapping at `keys` was meant to stand, None if that is unclear or taken."""
    home = dict(_homes(plan_schema(), ())).get(key)
    if home is not None:
        meant = (*home, key)
    elif close := get_close_matches(key, schema["properties"], n=1):
        meant = (*keys, close[0])
    else:
        return None
    mapping: Any = plan
    for part in meant[:-1]:
        mapping = mapping.get(part, {}) if isinstance(mapping, dict) else None
    return meant if isinstance(mapping, dict) and meant[-1] not in mapping else None


def _homes(schema: dict[str, Any], keys: Keys) -> Iterator[tuple[str, Keys]]:
    """Each key that the schema knows, with the keys of its mapping. No two mappings have one in common."""
    for key, part in schema.get("properties", {}).items():
        yield key, keys
        yield from _homes(part, (*keys, key))


def _move(document: Document, old: Keys, new: Keys) -> None:
    """Move the value at `old`, and with it the places of its parts."""
    source, goal = document.value, document.value
    for key in old[:-1]:
        source = source[key]
    for key in new[:-1]:
        goal = goal.setdefault(key, {})
    goal[new[-1]] = source.pop(old[-1])
    for keys in [keys for keys in document.places if keys[: len(old)] == old]:
        moved = new + keys[len(old) :]
        document.places[moved] = document.places[keys]
        if keys in document.reported:
            document.reported.add(moved)


# Values.


def _value_mistakes(document: Document, errors: list[_Error]) -> Iterator[Diagnostic]:
    """One mistake a value, of the wrong type rather than of what follows from that."""
    done = set(document.reported)
    for error in sorted(errors, key=lambda error: error.keyword != "type"):
        if error.keyword in _KEY_KEYWORDS or error.keys in done:
            continue
        done.add(error.keys)
        said, fix = _value_words(error, name_of(error.keys))
        evidence = "" if isinstance(error.value, dict | list) else f"read: {shown(error.value)}"
        yield _mistake(document, error.keys, f"{name_of(error.keys)} {said}", evidence, fix)


def _value_words(error: _Error, name: str) -> tuple[str, str]:
    """What is wrong with a value, and the fix. Knows each keyword that the schema uses for values."""
    value, limit = error.value, error.limit
    match error.keyword:
        case "type":
            return f"is {kind_of(value)}, must be {_WANTED[limit]}", _type_fix(value, limit, error.schema, name)
        case "const":
            return f"is {shown(value)}, must be {limit}", ""
        case "enum":
            close = get_close_matches(value, limit, n=1)
            fix = f"write {close[0]}" if close else ""
            return f"is {shown(value)}, must be one of {', '.join(limit)}", fix
        case "minimum":
            return f"is {value}, must be at least {limit}", ""
        case "maximum":
            return f"is {value}, must be at most {limit}", ""
        case "minLength":
            return "is empty", ""
    raise NotImplementedError(error.keyword)


def _type_fix(value: Any, wanted: str, schema: Mapping[str, Any], name: str) -> str:
    if wanted == "string" and isinstance(value, bool | int | float):
        return "put quotes around it"
    if wanted == "integer" and isinstance(value, str) and INTEGER.fullmatch(value):
        return f"write {cut(value)} without quotes"
    if wanted == "object" and value is None and "required" not in schema:
        return "write {} for an empty mapping"
    return f"write {name} as {_WANTED[wanted]}"
