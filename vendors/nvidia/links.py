"""Measure how cards are connected. A pair or a link that cannot be measured never spoils the others."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.links import Links, symmetric
from hami_plugin.sdk.polling import Busy
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.host import pci_address
from vendors.nvidia.library import MAX_NVLINKS, Handle, Nvml
from vendors.nvidia.topology import Port, measured


def measure(nvml: Nvml, handles: Mapping[str, Handle], addresses: Mapping[str, str], busy: Busy) -> Links:
    """Every pair of the cards at ``addresses``, both ways; a card without a handle is a problem in the answer.

    ``NvmlError`` only when the driver as a whole is gone.
    """
    problems = [f"{uuid}: not measured, since it does not answer" for uuid in addresses if uuid not in handles]
    ports = {uuid: _ports(nvml, uuid, handle, busy, problems) for uuid, handle in handles.items()}
    levels = {}
    for a, first in handles.items():
        for b, second in handles.items():
            if a == b:
                continue
            with busy.asking(a):
                try:
                    levels[a, b] = nvml.level(first, second)
                except NvmlError as error:
                    problems.append(_problem(f"{a} to {b}", error))
    return symmetric(measured(levels, ports, addresses), problems)


def _ports(nvml: Nvml, uuid: str, handle: Handle, busy: Busy, problems: list[str]) -> list[Port]:
    """The card's NVLinks that are up and could be read. Above a model's last link NVML answers that there is none."""
    found = []
    with busy.asking(uuid):
        for link in range(MAX_NVLINKS):
            try:
                if nvml.nvlink_up(handle, link):
                    found.append(_port(nvml, handle, link))
            except NvmlError as error:
                problems.append(_problem(f"{uuid} NVLink {link}", error))
                if error.lost:
                    break
    return found


def _port(nvml: Nvml, handle: Handle, link: int) -> Port:
    """A link's other end. In a virtual machine it may be invisible: then the link counts for no pair."""
    try:
        peer = pci_address(nvml.nvlink_peer(handle, link))
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        peer = ""
    try:
        switch = nvml.nvlink_to_switch(handle, link)
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        switch = False
    return Port(peer=peer, switch=switch)


def _problem(what: str, error: NvmlError) -> str:
    if error.driver_gone:
        raise error
    return f"{what}: {error}"
