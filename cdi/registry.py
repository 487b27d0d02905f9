"""The devices that a runtime finds in the spec directories, their conflicts, and what each adds to a container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cdi.documents import YamlReader, read
from cdi.errors import InvalidNameError, InvalidSpecError, Problem, UnresolvableError
from cdi.names import QualifiedName
from cdi.spec import ContainerEdits, Spec, SpecDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """A file by its path and precedence (higher wins), with its text, or with the reason why there is none."""

    path: str
    priority: int
    text: str = ""
    unreadable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSpec:
    """A spec, and the file it came from. Of two files the one with the higher priority wins."""

    file: str
    priority: int
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One device in one file."""

    source: LoadedSpec
    device: SpecDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All specs of the directories at one moment.

    ``definitions`` has every file's definition of a name; which of them counts is for ``definition`` to say.
    """

    specs: tuple[LoadedSpec, ...]
    problems: tuple[Problem, ...]
    definitions: Mapping[QualifiedName, tuple[Definition, ...]] = field(repr=False)

    @property
    def names(self) -> tuple[QualifiedName, ...]:
        """The devices that resolve."""
        return tuple(name for name in self.definitions if self.definition(name) is not None)

    @property
    def conflicts(self) -> Mapping[QualifiedName, tuple[str, ...]]:
        """The devices that do not resolve because files of one priority define them, with those files."""
        return {name: files for name in self.definitions if (files := self.conflicting_files(name))}

    def files(self, name: QualifiedName) -> tuple[str, ...]:
        """All files that define ``name``, the one that wins last."""
        return tuple(definition.source.file for definition in self.definitions.get(name, ()))

    def conflicting_files(self, name: QualifiedName) -> tuple[str, ...]:
        """The files of one priority that all define ``name``. None of them counts then, nor does any other."""
        sources = [definition.source for definition in self.definitions.get(name, ())]
        priorities = [source.priority for source in sources]
        # A runtime refuses the name even if a higher directory defines it once more, without a conflict.
        return tuple(source.file for source in sources if priorities.count(source.priority) > 1)

    def definition(self, name: QualifiedName) -> Definition | None:
        """The definition that a runtime takes. None: the device does not resolve."""
        if self.conflicting_files(name):
            return None
        return max(self.definitions.get(name, ()), key=lambda found: found.source.priority, default=None)

    def resolve(self, names: Iterable[str | QualifiedName]) -> ContainerEdits:
        """What a container receives that asks for ``names``: each spec's own edits once, then its devices', in order.

        ``UnresolvableError`` names all that do not resolve, with the message of containerd.
        """
        found: list[Definition] = []
        reasons: dict[str, str] = {}
        for name in names:
            answer = self._find(name)
            if isinstance(answer, Definition):
                found.append(answer)
            else:
                reasons[str(name)] = answer
        if reasons:
            raise UnresolvableError(reasons)
        return ContainerEdits().merged(*_in_order(found))

    def _find(self, name: str | QualifiedName) -> Definition | str:
        """The definition of ``name``, or why there is none."""
        try:
            qualified = QualifiedName.parse(name) if isinstance(name, str) else name
        except InvalidNameError as error:
            return str(error)
        if files := self.conflicting_files(qualified):
            return f"defined by {' and '.join(files)}; a runtime takes neither"
        if (definition := self.definition(qualified)) is not None:
            return definition
        bad = sorted({problem.file for problem in self.problems if problem.file})
        return "no spec defines it" + (f"; not usable: {', '.join(bad)}" if bad else "")


def registry(files: Iterable[SpecFile], *, yaml: YamlReader | None = None) -> Registry:
    """The view over ``files``. A file with problems defines nothing, and hides nothing of the others."""
    specs: list[LoadedSpec] = []
    problems: list[Problem] = []
    for file in files:
        if file.unreadable:
            problems.append(Problem(file=file.path, message=file.unreadable))
            continue
        try:
            spec = read(file.text, file.path, yaml=yaml)
        except InvalidSpecError as error:
            problems += error.problems
        else:
            specs.append(LoadedSpec(file=file.path, priority=file.priority, spec=spec))
    return Registry(specs=tuple(specs), problems=tuple(problems), definitions=_definitions(specs))


def _definitions(specs: Iterable[LoadedSpec]) -> dict[QualifiedName, tuple[Definition, ...]]:
    found: dict[QualifiedName, tuple[Definition, ...]] = {}
    for source in specs:
        for name, device in zip(source.spec.names, source.spec.devices, strict=True):
            found[name] = (*found.get(name, ()), Definition(source=source, device=device))
    return found


def _in_order(definitions: Iterable[Definition]) -> Iterable[ContainerEdits]:
    applied: set[str] = set()
    for definition in definitions:
        if definition.source.file not in applied:
            applied.add(definition.source.file)
            yield definition.source.spec.edits
        yield definition.device.edits
