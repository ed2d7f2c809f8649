"""The seal of a plan: a digest that says for what it was proven, so that it need not be proven again where that holds.

It guards against accident: a rule edited, a package updated. It is no signature, anybody can compute it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tpplan import __version__
from tpplan.diagnostics import Diagnostic, InputError, Place, Report, Stage, Status
from tpplan.files import write_atomically
from tpplan.plan_files.document import Plan, Proof
from tpplan.plan_files.file import PlanFile, parse_plan, read_text


def sealed(plan: Plan) -> Plan:
    """The plan with the seal of what it is proven for. It must have a proof."""
    assert plan.proven is not None
    return replace(plan, proven=replace(plan.proven, seal=_digest(plan)))


def broken(plan: Plan, installed: Mapping[str, str], stages: Iterable[str]) -> str:
    """Why the plan's seal does not hold, with these packages and for these stages; empty where it does."""
    proof = plan.proven
    if proof is None or proof.seal is None:
        return "it has no seal"
    if proof.seal != _digest(plan):
        return "it was edited since it was proven"
    if missing := [stage for stage in stages if proof.stages.get(stage) != Status.PASSED]:
        return f"{missing[0]} was not proven"
    for package, now in _deciding(installed).items():
        then = proof.versions.get(package)
        if _release(then) != _release(now):
            return f"it was proven with {package} {then}, installed is {now}"
    return ""


def unproven(path: str) -> Plan | None:
    """The plan in a file, without what was proven; None where the file cannot be read."""
    plan = _plan_in(path)
    return plan and replace(plan, proven=None)


def update(path: str, report: Report, judged: Plan | None) -> None:
    """Write what a report proves into the plan file that it is about; all else in the file stays as it is.

    judged: what `unproven` said of the file before it was judged. Raises InputError where the file cannot be written,
    or says something else by now.
    """
    text = read_text(path)
    file = parse_plan(text, path)
    if replace(file.plan, proven=None) != judged:
        raise _not_updated(path, "the plan was edited while it was checked; it was not sealed", "check it again")
    strategy = file.plan.proven.strategy if file.plan.proven else None
    wanted = sealed(replace(file.plan, proven=proof_of(report.stages, report.versions, strategy)))
    made = _with_proof(text, file, wanted.proven_yaml())
    if _plan_in(path, made) != wanted:
        said = "the proof cannot be written into this file's layout; nothing was changed"
        raise _not_updated(path, said, "put the part `proven` on lines of its own, not in braces")
    write_atomically(path, made)


def proof_of(stages: Mapping[str, Stage], installed: Mapping[str, str], strategy: str | None) -> Proof:
    """The proof by these stages, with these packages."""
    return Proof(
        stages={name: str(stage.status) for name, stage in stages.items()},
        versions={package: version for package, version in _deciding(installed).items() if version},
        strategy=strategy,
    )


def _digest(plan: Plan) -> str:
    """Over all but the model's name, which may be that of a copy."""
    said = plan.to_dict()
    said["proven"] = {key: value for key, value in said["proven"].items() if key != "seal"}
    said["model"] = {key: value for key, value in said["model"].items() if key != "id"}
    text = json.dumps(said, sort_keys=True, ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _with_proof(text: str, file: PlanFile, proof: str) -> str:
    """The text of a plan file with `proof` in place of its part `proven`, or after all else."""
    lines = text.splitlines(keepends=True)
    if "\r\n" in text:
        proof = proof.replace("\n", "\r\n")
    tops = sorted(line for keys, (line, _) in file.places.items() if len(keys) == 1)
    first = file.places[("proven",)][0] - 1 if ("proven",) in file.places else len(lines)
    end = next((line - 1 for line in tops if line - 1 > first), len(lines))
    while end - 1 > first and not lines[end - 1].startswith((" ", "\t")):  # comments and blanks before the next part
        end -= 1
    if first == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join((*lines[:first], proof, *lines[end:]))


def _plan_in(path: str, text: str | None = None) -> Plan | None:
    try:
        return parse_plan(read_text(path) if text is None else text, path).plan
    except InputError:
        return None


def _deciding(installed: Mapping[str, str]) -> dict[str, str | None]:
    """The versions that a proof holds for."""
    return {"torch": installed.get("torch"), "tpplan": __version__, "transformers": installed.get("transformers")}


def _release(version: str | None) -> str | None:
    """A version without its build: 2.13.0+cpu is 2.13.0."""
    return version and version.partition("+")[0]


def _not_updated(path: str, said: str, fix: str) -> InputError:
    return InputError(Diagnostic(code="TPP101", message=said, where=Place(file=path), fix=fix))
