"""One driver, several families: each is shown its own devices, and metrics see them all again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hami_plugin.aio import Watched
from hami_plugin.model.device import Snapshot
from hami_plugin.model.links import Links


def part(snapshot: Snapshot, word: str) -> Snapshot:
    """What a family sees of ``snapshot``: its devices and the links among them. The rest is the driver's."""
    devices = tuple(device for device in snapshot.devices if device.family == word)
    if len(devices) == len(snapshot.devices):
        return snapshot
    own = {device.uuid for device in devices}
    links = Links(
        pairs={pair: link for pair, link in snapshot.links.pairs.items() if own.issuperset(pair)},
        asymmetric=tuple(pair for pair in snapshot.links.asymmetric if own.issuperset(pair)),
        problems=snapshot.links.problems,
    )
    return replace(snapshot, devices=devices, links=links)


def whole(snapshot: Snapshot, parts: Iterable[Snapshot]) -> Snapshot:
    """``snapshot`` with its devices as they are shown in ``parts``."""
    shown = {device.uuid: device for one in parts for device in one.devices}
    return replace(snapshot, devices=tuple(shown.get(device.uuid, device) for device in snapshot.devices))


class FamilyPart:
    """Follows ``found``, and publishes in ``snapshot`` what is the family's."""

    def __init__(self, word: str, found: Watched[Snapshot]) -> None:
        self.word = word
        self.snapshot = Watched(part(found.value, word))
        self._found = found

    async def run(self) -> None:
        """Until ``found`` is closed."""
        async for snapshot in self._found.follow():
            self.snapshot.set(part(snapshot, self.word))
        self.snapshot.close()
