"""What a pod's annotations say about resizing a container of it that runs.

Its user writes ``RESIZE``. A scheduler that finds room for it, on the device and in the namespace's quota, writes the
larger of old and new amounts to the decision, and the same words to ``RESIZE_GRANTED``; or ``RESIZE_REFUSED`` with the
reason. The node's daemon does it, and removes both, or says why not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.grammar import INT32_MAX, shown
from hami_plugin.protocol.keys import OWN

RESIZE, RESIZE_GRANTED, RESIZE_REFUSED = f"{OWN}resize", f"{OWN}resize-granted", f"{OWN}resize-refused"
MAX_MEMORY, ALL_CORES = INT32_MAX, 100
MAX_TEXT = 200
FORM = "write container=main,memory=8000,cores=50: MiB and percent of each of its devices"
_MOST = {"memory": MAX_MEMORY, "cores": ALL_CORES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What a container is to have of each of its devices: MiB, percent of the cores; None leaves it as it is.

    Without ``container`` it is the only one of the pod that has devices.
    """

    container: str = ""
    memory: int | None = None
    cores: int | None = None

    def of(self, grant: Grant) -> Grant:
        """The grant with these amounts."""
        return replace(
            grant,
            memory=grant.memory if self.memory is None else self.memory,
            cores=grant.cores if self.cores is None else self.cores,
        )


def parse_resize(text: str) -> Amounts:
    """``WireError`` where it cannot be read."""
    found: dict[str, str] = {}
    for part in text.strip()[: MAX_TEXT + 1].split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in {"container", *_MOST} or key in found:
            raise WireError(f"{RESIZE}: {shown(part)} is not known", hint=FORM)
        found[key] = value
    if len(text) > MAX_TEXT or not (found.keys() & _MOST.keys()):
        raise WireError(f"{RESIZE}: {shown(text)} says no amount", hint=FORM)
    amounts = {key: _amount(key, value) for key, value in found.items() if key in _MOST}
    return Amounts(container=found.get("container", ""), **amounts)


def _amount(key: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= _MOST[key]):
        raise WireError(f"{RESIZE}: {key} {shown(text)} is not from 1 to {_MOST[key]}", hint=FORM)
    return int(text)


def larger(old: Grant, new: Grant) -> Grant:
    """What counts until a resize is done. An amount of 0 is no limit, and the largest of all."""
    return replace(old, memory=_most(old.memory, new.memory), cores=_most(old.cores, new.cores))


def _most(old: int, new: int) -> int:
    return max(old, new) if old and new else 0
