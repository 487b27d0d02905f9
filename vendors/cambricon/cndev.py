"""CNDev, Cambricon's library, as far as sMLU needs it: an MLU's mode, its profiles, and its instances.

A profile is an amount of cores and memory that an MLU may be cut to, an instance is a part that has been cut by it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError

VERSION: Final = 6
"""Of the structures below; CNDev 3.0 and later read it."""
NO_DRIVER, UNINITIALIZED, NO_ROOM, UNSUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE = 1, 4, 9, 10, 13, 14, 15
MAX_CARDS = 256
"""An instance's handle has eight bits for its card."""
MAX_INSTANCES = 1024
USUAL_INSTANCES = 128
MIB = 1024 * 1024
_NAME, _UUID, _PROFILES = 100, 37, 128


class CndevError(HamiError):
    """A call failed with ``code``."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(
            f"{call}: {text} ({code})", hint="the daemon needs root's rights" if code == NO_PERMISSION else ""
        )
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SmluProfile:
    """``cores`` in percent, ``memory`` in MiB; ``left`` is how many instances more may be made of it."""

    id: int
    cores: int
    memory: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmluInstance:
    """``node`` is its own device node. Amounts as of a profile."""

    id: int
    profile: int
    uuid: str
    cores: int
    memory: int
    node: str


class _Cards(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("number", ctypes.c_uint))


class _Mode(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int32), ("on", ctypes.c_int32))


class _Amounts(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int32), ("cores", ctypes.c_uint32), ("memory", ctypes.c_uint64))


class _Ids(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int32), ("count", ctypes.c_int32), ("ids", ctypes.c_int32 * _PROFILES))


class _Profile(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int32),
        ("id", ctypes.c_int32),
        ("name", ctypes.c_char * _NAME),
        ("total", ctypes.c_uint32),
        ("left", ctypes.c_uint32),
        ("cores", ctypes.c_uint32 * 2),
        ("memory", ctypes.c_uint64 * 2),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int32),
        ("profile", ctypes.c_int32),
        ("id", ctypes.c_int32),
        ("uuid", ctypes.c_char * _UUID),
        ("place", ctypes.c_int32 * 4),
        ("profile_name", ctypes.c_char * _NAME),
        ("name", ctypes.c_char * _NAME),
        ("node", ctypes.c_char * _NAME),
        ("cores", ctypes.c_uint32 * 2),
        ("memory", ctypes.c_uint64 * 2),
        ("reserved", ctypes.c_uint32 * 128),
    )


class Cndev:
    """Each call is one or a few of the library's, by the number of an MLU. ``CndevError``, or
    ``DriverUnavailableError`` where nothing can be asked. Any thread may call; the library is loaded with the first.
    """

    def __init__(self, path: Path, *, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._path, self._load = path, load
        self._turn = threading.Lock()
        self._library: Any = None

    def cards(self) -> int:
        """How many MLUs there are, numbered from 0."""
        found = _Cards(version=VERSION)
        self._ask("cndevGetDeviceCount", ctypes.byref(found))
        return min(int(found.number), MAX_CARDS)

    def divisible(self, card: int) -> bool:
        """Whether the MLU is in sMLU mode. One that cannot be never is."""
        return bool(self.mode(card))

    def mode(self, card: int) -> bool | None:
        """Whether the MLU is in sMLU mode; None where it has no such mode."""
        found = _Mode(version=VERSION)
        try:
            self._ask("cndevGetSMLUMode", ctypes.byref(found), self._handle(card))
        except CndevError as error:
            if error.code == UNSUPPORTED:
                return None
            raise
        return bool(found.on)

    def profiles(self, card: int) -> list[SmluProfile]:
        handle, ids = self._handle(card), _Ids(version=VERSION)
        self._ask("cndevGetSMluProfileIdInfo", ctypes.byref(ids), handle)
        found = []
        for number in ids.ids[: max(0, min(ids.count, _PROFILES))]:
            one = _Profile(version=VERSION)
            self._ask("cndevGetSMluProfileInfo", ctypes.byref(one), ctypes.c_int32(number), handle)
            found.append(SmluProfile(id=number, cores=one.cores[0], memory=one.memory[0] // MIB, left=one.left))
        return found

    def instances(self, card: int) -> list[SmluInstance]:
        handle, room = self._handle(card), USUAL_INSTANCES
        while True:
            count, there = ctypes.c_int(room), (_Instance * room)()
            there[0].version = VERSION
            try:
                self._ask("cndevGetAllSMluInstanceInfo", ctypes.byref(count), there, handle)
            except CndevError as error:
                if error.code != NO_ROOM or not room < count.value <= MAX_INSTANCES:
                    raise
                room = count.value
            else:
                return [_instance(one) for one in there[: max(0, min(count.value, room))]]

    def create_profile(self, card: int, cores: int, memory: int) -> int:
        """The new profile's id. ``memory`` in MiB."""
        amounts, made = _Amounts(version=VERSION, cores=cores, memory=memory * MIB), ctypes.c_int(-1)
        self._ask("cndevCreateSMluProfileInfo", ctypes.byref(amounts), ctypes.byref(made), self._handle(card))
        return made.value

    def destroy_profile(self, card: int, profile: int) -> None:
        self._ask("cndevDestroySMluProfileInfo", ctypes.c_int32(profile), self._handle(card))

    def create_instance(self, card: int, profile: int) -> int:
        """The new instance's id, of which its handle consists besides the card's number."""
        made = ctypes.c_int32(-1)
        arguments = (ctypes.byref(made), ctypes.c_uint(profile), self._handle(card), ctypes.c_char_p(b""))
        self._ask("cndevCreateSMluInstanceByProfileId", *arguments)
        return made.value >> 8

    def destroy_instance(self, card: int, instance: int) -> None:
        self._ask("cndevDestroySMluInstanceByHandle", ctypes.c_int32(instance << 8 | card))

    def _handle(self, card: int) -> ctypes.c_int32:
        found = ctypes.c_int32()
        self._ask("cndevGetDeviceHandleByIndex", ctypes.c_int(card), ctypes.byref(found))
        return found

    def _ask(self, call: str, *arguments: object) -> None:
        library = self._opened()
        code = _called(library, call, *arguments)
        if code in (NO_DRIVER, UNINITIALIZED):
            with self._turn:
                self._library = None  # the next call initialises it anew
            raise DriverUnavailableError(
                DriverReason.NO_DRIVER, f"CNDev does not answer: {_failure(library, call, code)}"
            )
        if code:
            raise _failure(library, call, code)

    def _opened(self) -> Any:
        with self._turn:
            if self._library is None:
                try:
                    library = self._load(str(self._path))
                except OSError as error:
                    message = f"Cambricon's library cannot be loaded: {error}"
                    raise DriverUnavailableError(DriverReason.NO_LIBRARY, message, hint="see cndev") from error
                if code := _called(library, "cndevInit", ctypes.c_int(0)):
                    message = f"CNDev cannot be used: {_failure(library, 'cndevInit', code)}"
                    raise DriverUnavailableError(DriverReason.FAILED, message)
                self._library = library
            return self._library


def _called(library: Any, call: str, *arguments: object) -> int:
    """The function's code. An older library that lacks it supports nothing of it."""
    try:
        function = getattr(library, call)
    except AttributeError:
        return UNSUPPORTED
    return int(function(*arguments))


def _failure(library: Any, call: str, code: int) -> CndevError:
    text = ""
    if (describe := getattr(library, "cndevGetErrorString", None)) is not None:
        describe.restype = ctypes.c_char_p
        text = (describe(ctypes.c_int(code)) or b"").decode("utf-8", "replace")
    return CndevError(call, code, text or "it fails")


def _instance(one: _Instance) -> SmluInstance:
    return SmluInstance(
        id=one.id,
        profile=one.profile,
        uuid=f"MLU-{one.uuid.decode('ascii', 'replace')}" if one.uuid else "",
        cores=one.cores[0],
        memory=one.memory[0] // MIB,
        node=one.node.decode("utf-8", "replace"),
    )
