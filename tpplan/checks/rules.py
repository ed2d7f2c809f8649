"""Names and styles: would Transformers accept the rules, and would it ever look them up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.releases import STYLES_SINCE, install
from tpplan.model.skeleton import known_styles, wildcard
from tpplan.subject import Subject


def check_plan_exists(subject: Subject) -> Iterator[Diagnostic]:
    """TPP205: tp_size above 1 and no rule at all."""
    if subject.sharding.tp_size == 1 or subject.plan:
        return
    name = subject.skeleton.class_name
    yield Diagnostic(
        code="TPP205",
        message=f"{name} has no tensor-parallel plan, so from_pretrained raises at tp_size {subject.sharding.tp_size}",
        where=Place(file=subject.spec.source.name),
        evidence=f"{name}.tp_plan is empty in Transformers {versions().get('transformers')}",
        fix=f"{subject.plan_command('--extend')} tries rules and writes those that pass",
    )


def check_rule_names(subject: Subject) -> Iterator[Diagnostic]:
    """TPP201 and TPP202: keys that name nothing, or one layer only."""
    known = _known_rules(subject)
    for rule in sorted(subject.sharding.overrides):
        if rule in known:
            continue
        meant = _meant(rule, known)
        if meant == wildcard(rule):
            yield Diagnostic(
                code="TPP202",
                message="the rule names one layer, and Transformers rejects it: it looks names up with `*` for numbers",
                where=subject.place_of_rule(rule),
                evidence=f"{rule!r}; single layers cannot be overridden",
                fix=f"write {meant!r}, which holds for every layer",
            )
        else:
            yield Diagnostic(
                code="TPP201",
                message="the rule matches no module and no parameter, and Transformers rejects it",
                where=subject.place_of_rule(rule),
                evidence=f"{rule!r}; {subject.spec.auto_class} loads {subject.skeleton.class_name}; keys carry the "
                "path inside it",
                fix=f"write {meant!r}" if meant else "remove it",
            )


def with_names_mended(subject: Subject) -> Subject:
    """The subject after the fixes of TPP201 and TPP202, so that a wrong name has no second diagnostic."""
    known = _known_rules(subject)
    given = subject.sharding.overrides
    right = {rule: style for rule, style in given.items() if rule in known}
    meant = {_meant(rule, known): style for rule, style in given.items() if rule not in known}
    overrides = {rule: style for rule, style in meant.items() if rule} | right
    return replace(subject, sharding=replace(subject.sharding, overrides=overrides))


def _known_rules(subject: Subject) -> frozenset[str]:
    return subject.skeleton.rules | subject.skeleton.default_plan.keys()


def _meant(rule: str, known: frozenset[str]) -> str | None:
    """The key that a rule which names nothing was most likely meant to be."""
    general = wildcard(rule)
    return general if general != rule and general in known else nearest_rule(rule, known)


def nearest_rule(rule: str, known: frozenset[str]) -> str | None:
    """The key that was most likely meant: one that ends in the same words, else the nearest spelling."""
    general = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", rule)
    inside = sorted((name for name in known if name.endswith(f".{general}") or name == general), key=len)
    if inside:
        return inside[0]
    close = difflib.get_close_matches(general, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else None


def check_styles(subject: Subject) -> Iterator[Diagnostic]:
    """TPP203: styles that the installed Transformers does not have."""
    known = known_styles()
    for rule, name in sorted(subject.sharding.overrides.items()):
        if name in known:
            continue
        nearest = difflib.get_close_matches(name, known, n=1)
        yield Diagnostic(
            code="TPP203",
            message="the installed Transformers has no such style, and from_pretrained raises",
            where=subject.place_of_rule(rule),
            evidence=f"{name!r}; Transformers {versions().get('transformers')} has {', '.join(known)}",
            fix=_style_fix(name, nearest[0] if nearest else None),
        )


def _style_fix(name: str, nearest: str | None) -> str:
    if name in STYLES_SINCE:
        return install(STYLES_SINCE[name])
    return f"write {nearest!r}" if nearest else "write one of these styles"
