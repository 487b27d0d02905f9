"""Which devices a scheduler chose for a pod's containers, and how the node crosses out what it has handed out.

``<uuid>,<word>,<MiB>,<cores>:`` for each device, ``;`` after each container, init containers first.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.wire.grammar import INT32_MAX, MAX_POD_BYTES, bounded, in_range, integer, printable, shown

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


def pending(pieces: Sequence[Piece]) -> bool:
    """Whether any container still waits for its devices."""
    return any(pieces)


def first_pending(pieces: Sequence[Piece]) -> int | None:
    """The position of the container that is served next."""
    return next((position for position, piece in enumerate(pieces) if piece), None)


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
    uuid, word, memory, cores = fields[:4]
    return Grant(
        uuid=uuid,
        word=word,
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
    word = printable(grant.word, where, without=SEPARATORS)
    memory = in_range(grant.memory, f"{where}: memory", 0)
    cores = in_range(grant.cores, f"{where}: cores", 0)
    return f"{uuid},{word},{memory},{cores}:"
