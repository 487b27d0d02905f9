"""``daemonset.yaml`` for a test. This module is the whole list of what a test changes in it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.realnode.node import MACHINE

FILE = Path(__file__).parents[2] / "daemonset.yaml"
NAMESPACE, NAME = "hami-system", "hami-plugin"
SIMULATION = "/var/lib/simulation"
QUICK = MappingProxyType({"health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 1.0}})
"""Recovery is a matter of minutes in production; here it is one of seconds."""


def documents(profile: str, machine: Iterable[Path], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifest's objects with these changes:

    - the daemon is told to simulate the machine ``profile``, in a directory that the test reaches too;
    - the image stands on directories of this ``machine``, which are mounted read-only;
    - ``settings`` go over those of its ConfigMap.
    """
    found = [document for document in yaml.safe_load_all(FILE.read_text(encoding="utf-8")) if document]
    for document in found:
        if document["kind"] == "ConfigMap":
            written = {**yaml.safe_load(document["data"]["config.yaml"]), **QUICK, **settings}
            document["data"]["config.yaml"] = json.dumps(written)
        if document["kind"] == "DaemonSet":
            _simulate(document["spec"]["template"]["spec"], profile)
            stand_on(document["spec"]["template"]["spec"], machine)
    return found


def stand_on(pod: dict[str, Any], machine: Iterable[Path]) -> None:
    """Mount these directories of the machine over the image of the pod's only container."""
    for number, directory in enumerate(machine):
        _mount(pod, f"machine-{number}", directory)


def _simulate(pod: dict[str, Any], profile: str) -> None:
    (container,) = pod["containers"]
    container["args"] += [f"--simulate={profile}", f"--simulation-dir={SIMULATION}", "--log-format=json"]
    container["volumeMounts"].append({"name": "simulation", "mountPath": SIMULATION})
    pod["volumes"].append({"name": "simulation", "hostPath": {"path": SIMULATION, "type": "DirectoryOrCreate"}})


def _mount(pod: dict[str, Any], name: str, directory: Path) -> None:
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": name, "mountPath": str(directory), "readOnly": True})
    pod["volumes"].append({"name": name, "hostPath": {"path": f"{MACHINE}{directory}", "type": "Directory"}})
