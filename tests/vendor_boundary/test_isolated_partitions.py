"""Cards that are cut by a library in a process of its own: the same answers and errors, and a reason if it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.sdk import (
    NOWHERE,
    InUseError,
    Mode,
    NoRoomError,
    Partition,
    Placement,
    Profile,
    Step,
    UnlistedCardsError,
)
from hami_plugin.vendor_boundary.guard import CheckedModeDriver, CheckedPartitionDriver, VendorErrors
from hami_plugin.vendor_boundary.isolated_driver import IsolatedModeDriver, IsolatedPartitionDriver

ONE = Partition(card="a", profile="1g", placement=NOWHERE, uuid="u", ids={"instance": 1})
ERRORS = (
    InUseError("it is open", hint="stop it"),
    NoRoomError("full"),
    UnlistedCardsError("b is silent", ["b"], [ONE]),
    HamiError("anything else"),
)


class ToyPartitions:
    """In the other process. ``orders`` has the place of the error in ``ERRORS``, or "die"."""

    def __init__(self, orders: Path) -> None:
        self._orders = orders

    def profiles(self, card: str) -> tuple[Profile, ...]:
        return (Profile(name=f"{card}-{os.getpid()}", memory=1, compute=1, placements=(NOWHERE,), limit=1),)

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        self._obey()
        return (ONE,)

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        step({"instance": 1})
        self._obey()
        return ONE

    def destroy(self, partition: Partition, step: Step) -> None:
        step({})
        self._obey()

    def users(self, partition: Partition) -> Sequence[int]:
        return [7]

    def _obey(self) -> None:
        order = self._orders.read_text() if self._orders.exists() else ""
        if order == "die":
            self._orders.unlink()
            os._exit(3)
        if order:
            raise ERRORS[int(order)]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[IsolatedPartitionDriver]:
    one = IsolatedPartitionDriver(partial(ToyPartitions, tmp_path / "orders"))
    yield one
    one.close()


def test_answers_and_steps_are_the_drivers_own_from_another_process(driver: IsolatedPartitionDriver) -> None:
    steps: list[object] = []

    assert driver.partitions() == (ONE,)
    assert driver.create("a", "1g", NOWHERE, steps.append) == ONE
    driver.destroy(ONE, steps.append)
    assert steps == [{"instance": 1}, {}]
    assert driver.users(ONE) == [7]
    (profile,) = driver.profiles("a")
    assert profile.name not in ("", f"a-{os.getpid()}")


def test_errors_keep_their_kinds_and_steps_are_told_before_them(
    driver: IsolatedPartitionDriver, tmp_path: Path
) -> None:
    for number, error in enumerate(ERRORS):
        (tmp_path / "orders").write_text(str(number))
        steps: list[object] = []
        with pytest.raises(type(error)) as caught:
            driver.create("a", "1g", NOWHERE, steps.append)
        assert (str(caught.value), caught.value.hint, type(caught.value)) == (str(error), error.hint, type(error))
        assert steps == [{"instance": 1}]
        if isinstance(caught.value, UnlistedCardsError):
            assert (caught.value.cards, caught.value.partitions) == (("b",), (ONE,))


def test_a_process_that_ends_is_a_reason_and_the_next_call_has_another(
    driver: IsolatedPartitionDriver, tmp_path: Path
) -> None:
    (tmp_path / "orders").write_text("die")

    with pytest.raises(DriverUnavailableError, match="ended by itself with status 3"):
        driver.partitions()
    assert driver.partitions() == (ONE,)


class ToyModes:
    """In the other process: each call writes down in which."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def mode(self, card: str) -> Mode:
        return Mode(capable=True, problem=f"{card} {os.getpid()}")

    def switch(self, card: str, *, on: bool) -> None:
        self._notes.write_text(f"{card} {on} {os.getpid()}")
        raise InUseError("it is open")


def test_modes_are_switched_in_processes_that_are_gone_afterwards(tmp_path: Path) -> None:
    driver = IsolatedModeDriver(partial(ToyModes, tmp_path / "notes"))

    first = driver.mode("a").problem.split()[1]
    with pytest.raises(InUseError, match="it is open"):
        driver.switch("a", on=True)
    card, on, second = (tmp_path / "notes").read_text().split()
    assert (card, on) == ("a", "True")
    assert len({first, second, str(os.getpid())}) == 3
    assert not any(Path(f"/proc/{number}").exists() for number in (first, second))


@pytest.mark.parametrize("isolated", [True, False])
def test_cards_are_changed_in_a_process_of_their_own_if_the_vendors_driver_has_one(
    tmp_path: Path, isolated: bool
) -> None:
    driver = CheckedPartitionDriver(partial(ToyPartitions, tmp_path / "orders"), VendorErrors("toy"), isolated=isolated)
    modes = CheckedModeDriver(partial(ToyModes, tmp_path / "notes"), VendorErrors("toy"), isolated=isolated)
    try:
        (profile,) = driver.profiles("a")
        elsewhere = {profile.name != f"a-{os.getpid()}", modes.mode("a").problem.split()[1] != str(os.getpid())}
    finally:
        driver.close()
        modes.close()

    assert elsewhere == {isolated}
