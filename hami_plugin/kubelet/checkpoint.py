"""The kubelet's device checkpoint, beside its socket: for each container its ids and the answer it was given.

The kubelet replaces it after each container's Allocate, and reads it when it starts. Its format is the kubelet's own
(``pkg/kubelet/cm/devicemanager/checkpoint``) and has changed once, in 1.20: ids stand in a list before, by NUMA node
after.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from hami_plugin.errors import HamiError
from hami_plugin.host.threads import StuckError, WorkThread
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.model.delivery import ANSWERED_FOR
from hami_plugin.model.ports import CheckpointEntry

NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 32 << 20
"""A thousand containers with long answers are a third of it."""


class CheckpointFile:
    """``ports.Checkpoint`` over the kubelet's file in ``directory``. ``timeout`` in seconds."""

    def __init__(self, directory: Path, *, timeout: float = 5.0) -> None:
        self.path = directory / NAME
        self._timeout = timeout
        self._thread = WorkThread("kubelet checkpoint")

    async def kept(self, resource: str, ids: frozenset[str] | None = None) -> tuple[CheckpointEntry, ...]:
        """Every container with devices of ``resource``, or with exactly these ``ids``, init containers too.

        ``HamiError`` when it cannot be read.
        """
        try:
            return await self._thread.call(lambda: self._read(resource, ids), self._timeout)
        except StuckError as error:
            raise self._failed(str(error)) from error
        except OSError as error:
            raise self._failed(error.strerror or repr(error)) from error
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, DecodeError) as error:
            raise self._failed(f"it is not in a known format ({error!r:.200})") from error

    def _read(self, resource: str, ids: frozenset[str] | None) -> tuple[CheckpointEntry, ...]:
        """On the thread: a long file takes its time to be read, and to be understood."""
        with self.path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return tuple(kept_in(text, resource, ids))

    def _failed(self, why: str) -> HamiError:
        return HamiError(
            f"the kubelet's device checkpoint {self.path} cannot be read: {why}",
            hint="mount the kubelet's device-plugins directory, or set identityCheck: off to do without this proof",
        )


def kept_in(text: bytes, resource: str, ids: frozenset[str] | None = None) -> Iterator[CheckpointEntry]:
    """What a checkpoint has of ``resource``. Raises for anything else; ``CheckpointFile`` says what.

    Answers are the larger part of it, and only those to exactly these ``ids`` are understood, if they are given.
    """
    for entry in json.loads(text)["Data"]["PodDeviceEntries"] or ():
        if entry["ResourceName"] == resource:
            held = _ids(entry["DeviceIDs"])
            if ids is not None and held != ids:
                continue
            answer = pb.ContainerAllocateResponse.FromString(b64decode(entry["AllocResp"] or ""))
            yield CheckpointEntry(
                uid=_text(entry["PodUID"]),
                container=_text(entry["ContainerName"]),
                ids=held,
                answered_for=answer.annotations.get(ANSWERED_FOR, ""),
            )


def _ids(value: Any) -> frozenset[str]:
    lists = value.values() if isinstance(value, dict) else [value or ()]
    return frozenset(_text(device) for one in lists for device in one or ())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value
