"""Versions against each other's ranges, from the metadata of the installed packages and the libraries they ship."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tpplan.doctor.line import Line, failed, not_applicable, passed
from tpplan.doctor.machine import NO_TPU, Machine
from tpplan.model.releases import TIES_LOAD_ON_TPU, dotted
from tpplan.tpu.internals import INSTALL, missing_packages
from tpplan.units import joined

PACKAGES = ("tpplan", "torch", "transformers", "accelerate", "torch_tpu", "libtpu", "kernels", "jax")
ALWAYS = {
    "torch": "nothing runs without it",
    "transformers": "nothing runs without it",
    "accelerate": "from_pretrained(distributed_config=...) raises without it",
}
OPTIONAL = {
    "tpplan": "runs from its source, without metadata of its own",
    "torch_tpu": "not installed, and no TPU is asked for",
    "libtpu": "not installed; torch_tpu brings it",
    "kernels": "not installed: no kernel is taken from the hub",
    "jax": "not installed; hub kernels and `check --depth aot` need it",
}
KERNELS_ON_TPU = Version("0.17")  # the Transformers guide to TPU: hub kernels support TPU from this one
GLUE = re.compile(r"_(\d+)_(\d+)_(\d+)\.so$")  # torch_tpu/_versioned_so_loader.py: <module>_<torch release>.so


def installed(package: str) -> Distribution | None:
    """The distribution that `import package` is likely to be, or None."""
    try:
        return importlib.metadata.distribution(package)
    except PackageNotFoundError:
        return None


def versions_of_all() -> dict[str, str]:
    """Installed versions by package, in the order of PACKAGES."""
    found = ((package, installed(package)) for package in PACKAGES)
    return {package: str(distribution.version) for package, distribution in found if distribution is not None}


def package_lines(machine: Machine) -> Iterator[Line]:
    """A line for Python, each package, torch_tpu's native libraries, and the two rules that hang on versions alone."""
    yield _python()
    for package in PACKAGES:
        yield _package(package, machine)
    yield _native_libraries()
    yield _hub_kernels(machine)
    yield _tied_weights(machine)
    yield _compiler()


def _python() -> Line:
    running = platform.python_version()
    refusing = [
        f"{package} needs {text}"
        for package in PACKAGES
        if (text := _requires_python(package)) and running not in SpecifierSet(text)
    ]
    if refusing:
        return failed("python", f"{running}; {'; '.join(refusing)}", code="TPP920", fix="use a Python in that range")
    return passed("python", f"{running}, which all installed packages accept")


def _requires_python(package: str) -> str:
    """The range of Python that an installed package asks for, empty without one; one that is no range is not read."""
    distribution = installed(package)
    return (distribution.metadata["Requires-Python"] or "") if distribution and not _broken(distribution) else ""


def _package(package: str, machine: Machine) -> Line:
    distribution = installed(package)
    if distribution is None:
        return _missing(package, machine)
    if broken := _broken(distribution):
        found = f"its metadata cannot be read: {broken}"
        return failed(package, found, code="TPP920", fix=f"pip install --force-reinstall {package}")
    requirements = _requirements(distribution)
    unmet = [problem for requirement in requirements if (problem := _unmet(requirement))]
    if unmet:
        found = f"{distribution.version} {'; '.join(found for found, _ in unmet)}"
        return failed(package, found, code="TPP920", fix=_install(*(wanted for _, wanted in unmet)))
    return passed(package, f"{distribution.version}; requirements met: {len(requirements)}")


def _missing(package: str, machine: Machine) -> Line:
    if package in ALWAYS:
        fix = f"pip install -c constraints.txt {package} (tpplan's tested version)"
        return failed(package, f"not installed; {ALWAYS[package]}", code="TPP920", fix=fix)
    if package == "torch_tpu" and machine.wants_tpu:
        found = "not installed: without it torch has no tpu device"
        return failed(package, found, code="TPP910", fix="pip install torch_tpu")
    return not_applicable(package, OPTIONAL[package])


def _install(*wanted: str) -> str:
    """The command that installs these; torch in the tested version, for an open range of it takes a CUDA build."""
    pinned = any(Requirement(text).name == "torch" for text in wanted)
    shown = " ".join(text if text.isidentifier() else repr(text) for text in wanted)
    return f"pip install {'-c constraints.txt ' if pinned else ''}{shown}"


def _broken(distribution: Distribution) -> str:
    """Why the metadata cannot be read, or an empty string."""
    try:
        Version(str(distribution.version))
        SpecifierSet(distribution.metadata["Requires-Python"] or "")
        for text in distribution.requires or ():
            Requirement(text)
    except (InvalidVersion, InvalidSpecifier, InvalidRequirement) as error:
        return " ".join(str(error).split())
    return ""


def _requirements(distribution: Distribution) -> list[Requirement]:
    """What holds here without extras; of the extras only `x[y]` where y is itself installed: a range on it."""
    found = {}
    for text in distribution.requires or ():
        requirement = Requirement(text)
        name, marker = canonicalize_name(requirement.name), requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always or (marker and marker.evaluate({"extra": name}) and installed(name)):
            found[name, str(requirement.specifier)] = requirement
    return list(found.values())


def _unmet(requirement: Requirement) -> tuple[str, str] | None:
    """(what is wrong, the requirement as pip takes it), or None when an installed package is in the range."""
    wanted = f"{requirement.name}{requirement.specifier}"
    distribution = installed(requirement.name)
    if distribution is None:
        return f"requires {wanted}, which is not installed", wanted
    if _broken(distribution) or requirement.specifier.contains(distribution.version, prereleases=True):
        return None  # a package that cannot be read is a finding of its own
    return f"requires {wanted}, {requirement.name} is {distribution.version}", wanted


def _native_libraries() -> Line:
    """Whether torch_tpu ships native libraries for the installed torch: the newest set not newer than torch serves."""
    name = "torch_tpu-libraries"
    home, torch = _home("torch_tpu"), _version("torch")
    if home is None or torch is None:
        return not_applicable(name, f"{'torch_tpu' if home is None else 'a torch with a version'} is not installed")
    built = {tuple(map(int, match.groups())) for file in home.rglob("*.so") if (match := GLUE.search(file.name))}
    if not built:
        return not_applicable(name, f"{home} has no libraries named for a torch release")
    listed = ", ".join(".".join(map(str, release)) for release in sorted(built))
    serving = max((candidate for candidate in built if candidate <= torch.release), default=None)
    if serving is None:
        found = f"torch is {torch}; torch_tpu has libraries for {listed}"
        return failed(name, found, code="TPP921", fix=_install("torch"))
    return passed(name, f"those for torch {'.'.join(map(str, serving))} serve {torch} (there are {listed})")


def _hub_kernels(machine: Machine) -> Line:
    name, kernels, jax = "hub-kernels", _version("kernels"), _version("jax")
    if not machine.wants_tpu or kernels is None:
        return not_applicable(name, "kernels is not installed" if machine.wants_tpu else NO_TPU)
    missing = []
    if kernels < KERNELS_ON_TPU:
        missing.append(f"kernels {kernels} has none for TPU (they come with {KERNELS_ON_TPU})")
    if jax is None:
        missing.append("jax, which kernels for TPU are written in, is not installed")
    if missing:
        fix = f"pip install 'kernels>={KERNELS_ON_TPU}' jax"
        return failed(name, "; ".join(missing), code="TPP929", fix=fix)
    return passed(name, f"kernels {kernels} and jax {jax}")


def _tied_weights(machine: Machine) -> Line:
    name, transformers = "tied-weights", _version("transformers")
    if not machine.wants_tpu or transformers is None:
        return not_applicable(name, "transformers is not installed" if machine.wants_tpu else NO_TPU)
    if transformers.release < TIES_LOAD_ON_TPU:
        found = f"Transformers {transformers}: checkpoints with both names of a tied pair do not load on TPU"
        return failed(name, found, code="TPP304", fix=f"pip install 'transformers>={dotted(TIES_LOAD_ON_TPU)}'")
    return passed(name, f"Transformers {transformers} compares them in a way that TPU has")


def _compiler() -> Line:
    """Whether `check --depth aot` can ask the TPU's compiler here, which needs no chip."""
    name = "tpu-compiler"
    if missing := missing_packages():
        return not_applicable(name, f"{joined(missing)} not installed: {INSTALL}")
    return passed(name, "torch_tpu, libtpu and jax are installed; check --depth aot asks it, with or without a chip")


def _version(package: str) -> Version | None:
    """The version of a package that is installed with metadata that can be read, else None."""
    distribution = installed(package)
    return Version(distribution.version) if distribution and not _broken(distribution) else None


def _home(package: str) -> Path | None:
    """The directory of a package, found without running it."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
