"""One card under examination: its handle, its model, and what the simulation claims of that model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vendors.nvidia.gpu_check.bench import Bench
from vendors.nvidia.gpu_check.binding import ask
from vendors.nvidia.gpu_check.refused import Refused
from vendors.nvidia.gpu_check.verdicts import Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that answers to its index. ``facts`` is empty when the simulation does not know the model."""

    bench: Bench
    index: int
    handle: Any
    model: str
    facts: Mapping[str, Sequence[Any]]

    @property
    def findings(self) -> Findings:
        return self.bench.findings

    @contextmanager
    def about(self, area: str) -> Iterator[Findings]:
        with self.findings.about(area, self.index):
            yield self.findings

    @property
    def mig_on(self) -> bool:
        mode = ask("nvmlDeviceGetMigMode", self.handle)
        return isinstance(mode, list) and mode[0] == 1

    def code(self, name: str) -> int:
        return self.bench.claims.code(name)

    def among(self, name: str, fact: str, observed: object) -> None:
        """Compare with what the simulation claims of the model."""
        if self.facts:
            self.findings.among(name, self.facts[fact], observed)
        else:
            self.findings.not_applicable(name, f"the simulation knows no model named {self.model!r}", observed)

    def supported(self, name: str, fact: str, observed: object) -> None:
        """Whether the card answers at all, where the model decides that: it answers, or says NotSupported."""
        answers = not isinstance(observed, Refused)
        if not self.facts:
            self.among(name, fact, observed)
            return
        expected = {"one of": ["an answer" if claim else "NotSupported" for claim in self.facts[fact]]}
        as_claimed = any(
            answers if claim else isinstance(observed, Refused) and observed.code == self.code("NOT_SUPPORTED")
            for claim in self.facts[fact]
        )
        self.findings.judge(name, expected, "an answer" if answers else observed, same=as_claimed)


def cards(bench: Bench) -> list[Card]:
    """Every card that can be reached. One that cannot is a difference."""
    found = []
    count = ask("nvmlDeviceGetCount")
    for index in range(count if isinstance(count, int) else 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        with bench.findings.about("session", index):
            answers = not isinstance(handle, Refused)
            if not bench.findings.judge("handle", "a handle", "a handle" if answers else handle, same=answers):
                continue
            model = ask("nvmlDeviceGetName", handle)
            if not bench.findings.judge("name", "text", model, same=isinstance(model, str)):
                continue
        found.append(
            Card(bench=bench, index=index, handle=handle, model=model, facts=bench.claims.models.get(model, {}))
        )
    return found
