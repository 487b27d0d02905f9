"""DCMI with types, and its refusals as errors with names: the only module that calls the driver's library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

NAMES: Final = {
    -8001: "InvalidParameter",
    -8002: "NotPermitted",
    -8003: "MemoryOperationFailed",
    -8004: "SecureFunctionFailed",
    -8005: "InnerError",
    -8006: "TimeOut",
    -8007: "InvalidDevice",
    -8008: "DeviceDoesNotExist",
    -8009: "IoctlFailed",
    -8010: "SendFailed",
    -8011: "ReceiveFailed",
    -8012: "NotReady",
    -8013: "NotSupportedInContainer",
    -8014: "FileOperationFailed",
    -8015: "ResetFailed",
    -8016: "Aborted",
    -8017: "Upgrading",
    -8020: "Occupied",
    -8255: "NotSupported",
}
NOT_PERMITTED, NO_DEVICE, NOT_SUPPORTED = -8002, -8008, -8255


class DcmiError(Exception):
    """A call that DCMI refused. ``code`` is DCMI's own."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.name = NAMES.get(code, "UnknownError")
        super().__init__(f"{call} answered {self.name} ({code})")


class NoDcmiError(Exception):
    """None of the places has a library that can be loaded."""


BARE_NAME: Final = "libdcmi.so"
PLACES: Final = ("usr/local/Ascend/driver/lib64/driver", "usr/local/dcmi")
MAX_CARDS, MAX_ERRORS = 64, 128
_VIRTUAL, _ONE, _ALL = 52, 0, 1
"""DCMI's numbers for questions about virtual NPUs: of one, of all of a chip."""
_ANY = 0xFFFFFFFF
_NPU = 0
_AI_CORES = 2
"""DCMI's number for a question of utilization."""
_VDIE = 1


class _Chip(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char * 32),
        ("name", ctypes.c_char * 32),
        ("version", ctypes.c_char * 32),
        ("ai_cores", ctypes.c_uint),
        ("npu_name", ctypes.c_char * 32),
    ]


class _Pcie(ctypes.Structure):
    _fields_ = [
        ("vendor", ctypes.c_uint),
        ("subvendor", ctypes.c_uint),
        ("model", ctypes.c_uint),
        ("submodel", ctypes.c_uint),
        ("domain", ctypes.c_int),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("function", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * 32),
    ]


class _Hbm(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_ulonglong),
        ("frequency", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("temperature", ctypes.c_int),
        ("bandwidth", ctypes.c_uint),
    ]


class _SocResources(ctypes.Structure):
    """What a chip is cut into: the first part of DCMI's structure of 360 bytes."""

    _fields_ = [("count", ctypes.c_uint), ("ids", ctypes.c_uint * 32), ("rest", ctypes.c_ubyte * 228)]


class _Vnpu(ctypes.Structure):
    """One virtual NPU: the first part of DCMI's structure of 264 bytes."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("name", ctypes.c_char * 16),
        ("status", ctypes.c_uint),
        ("used", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 232),
    ]


class _VnpuRequest(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("group", ctypes.c_uint),
        ("template", ctypes.c_char * 32),
        ("reserved", ctypes.c_ubyte * 64),
    ]


class _VnpuAnswer(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("function", ctypes.c_uint),
        ("group", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * 32),
    ]


class Vnpu(NamedTuple):
    """A virtual NPU of a chip. ``used``: a process has it open."""

    id: int
    template: str
    used: bool


class Unit(NamedTuple):
    """A chip as DCMI addresses it: its card, and its place on the card."""

    card: int
    chip: int

    def __str__(self) -> str:
        return f"NPU {self.card}/{self.chip}"


def _load(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)


class Dcmi:
    """One loaded library. Every method is a few DCMI calls, and raises ``DcmiError`` for the first that fails."""

    def __init__(self, places: Sequence[str], *, load: Callable[[str], Any] = _load) -> None:
        self._places = tuple(places)
        self._dlopen = load
        self._library: Any = None
        self.is_open = False

    def open(self) -> None:
        """Load the library, once, and initialise it. ``NoLibraryError`` says what was tried.

        It stays loaded: it may have threads of its own, and would take the process down if it were unloaded.
        """
        if self._library is None:
            self._library = self._found()
        self._call("dcmi_init")
        self.is_open = True

    def close(self) -> None:
        """DCMI has no end of a session; the next ``open`` initialises it anew."""
        self.is_open = False

    @property
    def speaks_only_v2(self) -> bool:
        """Whether this driver has left the calls out that are used here."""
        return hasattr(self._library, "dcmiv2_init") and not hasattr(self._library, "dcmi_init")

    def version(self) -> str:
        text = ctypes.create_string_buffer(64)
        self._call("dcmi_get_driver_version", text, ctypes.c_uint(len(text)))
        return text.value.decode("ascii", "replace")

    def units(self) -> Iterator[Unit]:
        """Every NPU, and what does not say that it is something else, such as the card's controller.

        A card that does not answer is taken for one chip, so that it is asked for, and hides no other.
        """
        count, cards = ctypes.c_int(), (ctypes.c_int * MAX_CARDS)()
        self._call("dcmi_get_card_list", ctypes.byref(count), cards, ctypes.c_int(MAX_CARDS))
        for card in cards[: max(0, min(count.value, MAX_CARDS))]:
            chips = ctypes.c_int(1)
            with suppress(DcmiError):
                self._call("dcmi_get_device_num_in_card", ctypes.c_int(card), ctypes.byref(chips))
            yield from filter(self._is_npu, (Unit(card, chip) for chip in range(chips.value)))

    def chip_name(self, unit: Unit) -> str:
        """As ``910B3``. Older drivers know the first form of the question only, whose answer is shorter."""
        chip = _Chip()
        newest = hasattr(self._library, "dcmi_get_device_chip_info_v2")
        self._call("dcmi_get_device_chip_info_v2" if newest else "dcmi_get_device_chip_info", *unit, ctypes.byref(chip))
        return bytes(chip.name).decode("ascii", "replace")

    def die(self, unit: Unit) -> str:
        """The number that the chip was made with, as five words of eight digits; HAMi calls it the UUID."""
        numbers = (ctypes.c_uint * 5)()
        self._call("dcmi_get_device_die_v2", *unit, ctypes.c_int(_VDIE), numbers)
        return "-".join(f"{number:08X}" for number in numbers)

    def physical_id(self, unit: Unit) -> int:
        """The number in the name of the chip's device node."""
        logical, physical = ctypes.c_int(), ctypes.c_uint()
        self._call("dcmi_get_device_logic_id", ctypes.byref(logical), *unit)
        self._call("dcmi_get_device_phyid_from_logicid", ctypes.c_uint(logical.value), ctypes.byref(physical))
        return physical.value

    def address(self, unit: Unit) -> str:
        """The PCI address as sysfs writes it."""
        pcie = _Pcie()
        self._call("dcmi_get_device_pcie_info_v2", *unit, ctypes.byref(pcie))
        return f"{pcie.domain:04x}:{pcie.bus:02x}:{pcie.device:02x}.{pcie.function:x}"

    def health(self, unit: Unit) -> int:
        """0 is well, 1 to 3 are alarms, and all bits mean that the chip has not started."""
        return self._number("dcmi_get_device_health", unit)

    def errors(self, unit: Unit) -> tuple[int, ...]:
        """The codes of what is wrong at present."""
        count, codes = ctypes.c_int(), (ctypes.c_uint * MAX_ERRORS)()
        self._call("dcmi_get_device_errorcode_v2", *unit, ctypes.byref(count), codes, ctypes.c_uint(MAX_ERRORS))
        return tuple(codes[: max(0, min(count.value, MAX_ERRORS))])

    def memory_used(self, unit: Unit) -> int:
        """MiB of the memory on the chip; of chips without such, DCMI does not tell."""
        found = _Hbm()
        self._call("dcmi_get_device_hbm_info", *unit, ctypes.byref(found))
        return int(found.used)

    def busy(self, unit: Unit) -> int:
        """Percent of the time in which its AI cores work."""
        percent = ctypes.c_uint()
        self._call("dcmi_get_device_utilization_rate", *unit, ctypes.c_int(_AI_CORES), ctypes.byref(percent))
        return percent.value

    def shareable(self, unit: Unit) -> bool:
        """Whether several containers may open the chip at a time."""
        return self._number("dcmi_get_device_share_enable", unit) != 0

    def vnpus(self, unit: Unit) -> tuple[Vnpu, ...]:
        """What a chip is cut into; nothing where it cannot be. What is destroyed meanwhile is left out."""
        found = []
        for number in self._numbers(unit):
            try:
                found.append(self._vnpu(unit, number))
            except DcmiError as error:
                if error.code != NO_DEVICE or number in self._numbers(unit):
                    raise
        return tuple(found)

    def _numbers(self, unit: Unit) -> tuple[int, ...]:
        found = _SocResources()
        try:
            self._ask_virtual(unit, _ALL, found)
        except DcmiError as error:
            if error.code == NOT_SUPPORTED:
                return ()
            raise
        return tuple(found.ids[: min(found.count, len(found.ids))])

    def create(self, unit: Unit, template: str) -> int:
        """Cut a chip, and answer the number of the virtual NPU."""
        made = _VnpuAnswer()
        asked = _VnpuRequest(id=_ANY, group=_ANY, template=template.encode("ascii"))
        self._call("dcmi_create_vdevice", *unit, ctypes.byref(asked), ctypes.byref(made))
        return int(made.id)

    def destroy(self, unit: Unit, number: int) -> None:
        self._call("dcmi_set_destroy_vdevice", *unit, ctypes.c_uint(number))

    def _vnpu(self, unit: Unit, number: int) -> Vnpu:
        found = _Vnpu(id=number)
        self._ask_virtual(unit, _ONE, found)
        return Vnpu(id=number, template=bytes(found.name).decode("ascii", "replace"), used=found.used != 0)

    def _ask_virtual(self, unit: Unit, what: int, answer: ctypes.Structure) -> None:
        size = ctypes.c_uint(ctypes.sizeof(answer))
        self._call(
            "dcmi_get_device_info",
            *unit,
            ctypes.c_int(_VIRTUAL),
            ctypes.c_uint(what),
            ctypes.byref(answer),
            ctypes.byref(size),
        )

    def topology(self, one: Unit, other: Unit) -> int:
        """DCMI's number for how two chips are connected."""
        kind = ctypes.c_int()
        self._call("dcmi_get_topo_info_by_device_id", *one, *other, ctypes.byref(kind))
        return kind.value

    def _is_npu(self, unit: Unit) -> bool:
        try:
            return self._number("dcmi_get_device_type", unit) == _NPU
        except DcmiError:
            return True

    def _number(self, call: str, unit: Unit) -> int:
        number = ctypes.c_uint()
        self._call(call, *unit, ctypes.byref(number))
        return number.value

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DcmiError(name, NOT_SUPPORTED) from None
        code = function(*arguments)
        if code:
            raise DcmiError(name, code)

    def _found(self) -> Any:
        tried = []
        for place in self._places:
            try:
                return self._dlopen(place)
            except OSError as error:
                tried.append(f"{place}: {error}")
        raise NoDcmiError("; ".join(tried))
