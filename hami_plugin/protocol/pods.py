"""What a pod's annotations say: which devices a scheduler chose for its containers, and how they are resized.

A decision is ``<uuid>,<device type>,<MiB>,<cores>:`` for each device and ``;`` after each container, init containers
first. The node crosses out what it has handed out.

A resize begins with the pod's user, who writes ``RESIZE``. A scheduler that finds room for it, on the device and in the
namespace's quota, writes the larger of old and new amounts to the decision, and the same words to ``RESIZE_GRANTED``;
or ``RESIZE_REFUSED`` with the reason. The node's daemon does it, and removes both, or says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.grammar import INT32_MAX, MAX_POD_BYTES, bounded, in_range, integer, printable, shown
from hami_plugin.protocol.keys import OWN

Piece = tuple[Grant, ...]
"""One container's devices; empty for a container without any, and for one that has been served."""

_WHAT = "devices of the pod"
SEPARATORS = ",:;"
"""What no name of a device may hold."""


def decode_devices(text: str) -> tuple[Piece, ...]:
    """Every piece, the empty ones too, so that a position names a container.

    A well-formed text ends with ``;``, and what follows it is one more, empty piece: HAMi 2.9 and later read it so.
    """
    printable(bounded(text, _WHAT, MAX_POD_BYTES), _WHAT)
    return tuple(_piece(piece, position) if piece else () for position, piece in enumerate(text.split(";")))


def encode_devices(pieces: Sequence[Piece]) -> str:
    """One ``;`` after each piece. Of the pieces of a decoded text, leave out the last: it stands for the text's end."""
    return "".join("".join(_device(grant) for grant in piece) + ";" for piece in pieces)


def erase(text: str, position: int) -> str:
    """The text without the devices of one container. Everything else stays, character for character.

    HAMi decodes and encodes instead, which adds a ``;`` each time. No reader counts them, and here none is added.
    """
    pieces = bounded(text, _WHAT, MAX_POD_BYTES).split(";")
    if not 0 <= position < len(pieces):
        raise WireError(f"{_WHAT}: no container {position} among {len(pieces)}")
    return ";".join("" if i == position else piece for i, piece in enumerate(pieces))


def _piece(text: str, position: int) -> Piece:
    # A part without a comma is no device. HAMi passes over it, and its own texts have an empty one after each ':'.
    return tuple(_grant(part, position) for part in text.split(":") if "," in part)


def _grant(text: str, position: int) -> Grant:
    fields = text.split(",", 4)
    if len(fields) < 4:
        raise WireError(
            f"container[{position}]: {shown(text)} has {len(fields)} fields instead of UUID, type, memory and cores"
        )
    uuid, device_type, memory, cores = fields[:4]
    return Grant(
        uuid=uuid,
        device_type=device_type,
        memory=_amount(memory, "memory", uuid, position),
        cores=_amount(cores, "cores", uuid, position),
    )


def _amount(text: str, name: str, uuid: str, position: int) -> int:
    # Nearly every amount takes the short way; what an error would say costs more than reading the number.
    if len(text) <= 9 and text.isdecimal() and text.isascii():
        return int(text)
    return integer(text, f"container[{position}]: {name} of {shown(uuid)}", 0, INT32_MAX)


def _device(grant: Grant) -> str:
    where = f"device {shown(grant.uuid)}"
    uuid = printable(grant.uuid, where, without=SEPARATORS)
    device_type = printable(grant.device_type, where, without=SEPARATORS)
    memory = in_range(grant.memory, f"{where}: memory", 0)
    cores = in_range(grant.cores, f"{where}: cores", 0)
    return f"{uuid},{device_type},{memory},{cores}:"


MAX_BYTES = 64 * 1024
"""A decision for a thousand devices is shorter. The pod's author can write more, and every Allocate would read it."""


def one_id(_grant: Grant) -> int:
    return 1


@dataclass(frozen=True, kw_only=True)  # without slots, which would leave no place for what is cached
class Question:
    """What a family's decisions are read by: its resources and the two annotations of a pod.

    Without ``to_allocate`` the decision stands in ``allocated`` alone, where nothing is crossed out. ``also`` are other
    resources whose containers have their shares there too. ``ids`` is how many of the kubelet's ids a grant takes.
    ``lock`` is a node annotation that a scheduler takes the node with, where that names no owner.
    """

    resource: str
    to_allocate: str
    allocated: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    memory_factor: int = 1
    also: tuple[str, ...] = ()
    ids: Callable[[Grant], int] = one_id
    lock: str = ""

    @cached_property
    def decision(self) -> str:
        """The annotation that tells a node of a decision."""
        return self.to_allocate or self.allocated


@dataclass(frozen=True, kw_only=True)  # without slots, as above
class DecidedShare:
    """One container's share of a decision. ``piece`` is its position in the to-allocate annotation, if still there."""

    pod: PodView
    container: ContainerView
    grants: tuple[Grant, ...]
    piece: int | None
    ids: Callable[[Grant], int] = one_id

    @cached_property
    def in_order(self) -> tuple[str, ...]:
        """The device behind each id that the kubelet must offer for it, in the decision's order."""
        return tuple(grant.uuid for grant in self.grants for _ in range(self.ids(grant)))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The same, sorted."""
        return tuple(sorted(self.in_order))


def requesting_containers(pod: PodView, *resources: str) -> tuple[ContainerView, ...]:
    """The containers that ask for one of the resources, in the order in which the kubelet allocates."""
    return tuple(container for container in pod.containers if any(container.amount(name) > 0 for name in resources))


def decided_shares(pod: PodView, question: Question) -> tuple[DecidedShare, ...]:
    """All shares of the pod's decision, in order. WireError when the decision does not fit the pod's containers."""
    pending = _pieces(pod, question.decision)
    positions = [position for position, piece in enumerate(pending) if piece]
    whole = [piece for piece in _pieces(pod, question.allocated) if piece]
    left = [pending[position] for position in positions]
    if not whole:
        whole = left
    containers = requesting_containers(pod, question.resource, *question.also)
    if len(whole) != len(containers):
        raise WireError(
            f"{question.allocated} of pod {pod.key} has shares for {len(whole)} containers, "
            f"{len(containers)} ask for {' or '.join((question.resource, *question.also))}"
        )
    if left != whole[len(whole) - len(left) :]:
        raise WireError(f"{question.to_allocate} of pod {pod.key} is not what is left of {question.allocated}")
    _in_place(pod, question, containers)
    consumed = len(whole) - len(left)
    return tuple(
        DecidedShare(
            pod=pod,
            container=container,
            grants=tuple(piece),
            piece=positions[number - consumed] if number >= consumed else None,
            ids=question.ids,
        )
        for number, (container, piece) in enumerate(zip(containers, whole, strict=True))
        if container.amount(question.resource) > 0
    )


def with_grants(pod: PodView, question: Question, container: str, grants: Sequence[Grant]) -> str:
    """What was decided for the pod, with these amounts for one container. Everything else stays as it is.

    ``WireError`` where the decision has no such devices for it.
    """
    text = pod.annotations.get(question.allocated, "")
    names = [one.name for one in requesting_containers(pod, question.resource, *question.also)]
    filled = [at for at, piece in enumerate(_pieces(pod, question.allocated)) if piece]
    if container not in names or len(names) != len(filled):
        raise WireError(f"{question.allocated} of pod {pod.key} has no share for container {container} alone")
    pieces, at = text.split(";"), filled[names.index(container)]
    if sorted(one.uuid for one in _piece(pieces[at], at)) != sorted(one.uuid for one in grants):
        raise WireError(f"{question.allocated} of pod {pod.key} has other devices for container {container}")
    amounts = {grant.uuid: grant for grant in grants}
    piece = (
        replace(one, memory=amounts[one.uuid].memory, cores=amounts[one.uuid].cores) for one in _piece(pieces[at], at)
    )
    pieces[at] = "".join(map(_device, piece))
    return ";".join(pieces)


def _in_place(pod: PodView, question: Question, asking: Sequence[ContainerView]) -> None:
    """A decision that has an entry for each container has none for a container that asks for nothing. Where HAMi leaves
    entries out, there are fewer than containers, and nothing can be checked.
    """
    entries = _pieces(pod, question.allocated)[:-1]
    if len(entries) != len(pod.containers):
        return
    for entry, container in zip(entries, pod.containers, strict=True):
        if entry and container not in asking:
            raise WireError(
                f"{question.allocated} of pod {pod.key} has devices for container {container.name}, "
                f"which asks for no {' or '.join((question.resource, *question.also))}"
            )


def _pieces(pod: PodView, key: str) -> tuple[tuple[Grant, ...], ...]:
    text = pod.annotations.get(key, "")
    if len(text) > MAX_BYTES:
        raise WireError(f"{key} of pod {pod.key} has {len(text)} characters, more than {MAX_BYTES}")
    return decode_devices(text)


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
    amounts = {key: _resized_amount(key, value) for key, value in found.items() if key in _MOST}
    return Amounts(container=found.get("container", ""), **amounts)


def _resized_amount(key: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= _MOST[key]):
        raise WireError(f"{RESIZE}: {key} {shown(text)} is not from 1 to {_MOST[key]}", hint=FORM)
    return int(text)


def larger(old: Grant, new: Grant) -> Grant:
    """What counts until a resize is done. An amount of 0 is no limit, and the largest of all."""
    return replace(old, memory=_most(old.memory, new.memory), cores=_most(old.cores, new.cores))


def _most(old: int, new: int) -> int:
    return max(old, new) if old and new else 0
