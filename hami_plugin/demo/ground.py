"""What the stage stands on: the daemon's options, its directories, and the vendors as it sees them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.glance import snapshot_of
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.simulation.hardware import SimulatedHardware
from hami_plugin.startup import Plan, plan, settled
from hami_plugin.vendor import Family

READ_ONCE = ("config", "device_config", "node_config", "nvml_library", "simulate", "simulation_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One simulated machine as the daemon serves it: the family of its first device, and that family's devices.

    ``ailing`` are those of them that are not well from the start, such as a card that is set up for another use.
    """

    hardware: SimulatedHardware
    family: Family
    devices: tuple[Device, ...]
    ailing: tuple[Device, ...] = ()


def served(options: Mapping[str, str]) -> tuple[Served, ...]:
    """What a daemon with these options serves, one for each simulated machine."""
    words = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    paths = {name: Path(words[name]) for name in ("config", "simulation_dir")}
    ready = plan({**dict.fromkeys(READ_ONCE), **words, **paths}, {})
    if not ready.simulated:
        raise ConfigError(["no machine is named; `hami-plugin discover --list-profiles` prints the names"])
    return tuple(_served(ready, hardware) for hardware in ready.simulated)


def _served(ready: Plan, hardware: SimulatedHardware) -> Served:
    vendor = hardware.vendor
    if vendor.open is None:
        raise HamiError(f"{vendor.title} have no node side yet", hint="choose another profile")
    settings, _ = settled(ready.configuration.vendors[vendor.name], ready.configuration.settings)
    driver = vendor.open(settings, HostPaths(node=ready.configuration.settings.node_name))
    try:
        found = snapshot_of(driver).devices
    finally:
        driver.close()
    family = next(family for family in vendor.families(settings) if family.word == found[0].family)
    own = [device for device in found if device.family == family.word]
    return Served(
        hardware=hardware,
        family=family,
        devices=tuple(device for device in own if device.health.offered),
        ailing=tuple(device for device in own if not device.health.offered),
    )


def daemon_options(profile: str, node: str, directory: Path, kubeconfig: Path) -> dict[str, str]:
    """The command line of a daemon whose node is all in ``directory``."""
    return {
        "--config": str(directory / "config.yaml"),
        "--simulate": profile,
        "--simulation-dir": str(directory / "machine"),
        "--node-name": node,
        "--kubelet-dir": str(directory / "device-plugins"),
        "--pod-resources-socket": str(directory / "pod-resources" / "kubelet.sock"),
        "--state-dir": str(directory / "state"),
        "--hook-path": str(directory / "hook"),
        "--kubeconfig": str(kubeconfig),
        "--http": f"127.0.0.1:{free_port()}",
        "--log-format": "json",
    }


def install_core(directory: Path) -> None:
    """Stand-ins for the files of HAMi's limiters; nothing here loads them."""
    directory.mkdir(parents=True)
    for name in ("libvgpu.so", "libamvgpu.so"):
        (directory / name).touch()
    (directory / "ld.so.preload").write_text(f"{directory / 'libvgpu.so'}\n", encoding="utf-8")


def free_port() -> int:
    """A port of this host that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def environment() -> dict[str, str]:
    """The daemon must not pick up what happens to be set where the demonstration runs."""
    return {key: value for key, value in os.environ.items() if key not in ("NODE_NAME", "HOOK_PATH", "KUBECONFIG")}
