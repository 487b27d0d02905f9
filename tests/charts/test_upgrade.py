"""`helm upgrade` over the last release: nothing that cannot change does, and pods are replaced only if they must."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts import sets
from tests.charts.helm import Release, installed, rendered

RELEASED = Path(__file__).parent / "released.yaml"
"""What of the last release's objects an API server lets nobody change; `python -m tests.charts.test_upgrade` writes it
when a version is released.
"""
FIXED = {
    "ClusterRoleBinding": ("roleRef",),
    "DaemonSet": ("spec.selector",),
    "Deployment": ("spec.selector",),
    "RoleBinding": ("roleRef",),
    "Secret": ("type",),
    "Service": ("spec.type", "spec.clusterIP", "spec.selector", "spec.ports"),
}


def at(document: Mapping[str, Any], path: str) -> Any:
    for key in path.split("."):
        document = document.get(key) or {}
    return document


def lasting(release: Release) -> dict[str, dict[str, Any]]:
    """Each object by kind and name, with what of it must not change."""
    return {
        f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": {
            path: value for path in FIXED.get(one["kind"], ()) if (value := at(one, path))
        }
        for one in release.documents
    }


@pytest.mark.parametrize("name", ["defaults", "pools"])
def test_nothing_of_the_last_release_is_renamed_or_changed_that_cannot_change(name):
    values, where = sets.SETS[name]
    before = yaml.safe_load(RELEASED.read_text(encoding="utf-8"))[name]
    now = lasting(rendered(values, **where))

    assert {key: now.get(key) for key in before} == before


@pytest.mark.parametrize("values", [{}, sets.EVERYTHING, sets.POOLS], ids=["defaults", "everything", "pools"])
def test_an_upgrade_with_the_same_values_replaces_no_pod(values):
    first, second = installed(values, values)

    assert second.documents == first.documents


def test_an_upgrade_replaces_the_pods_of_what_has_changed_and_no_others():
    first, second, third = installed(
        {},
        {"scheduler": {"replicas": 2}, "monitoring": {"podMonitor": {"enabled": True}}},
        {"scheduler": {"config": {"answerSeconds": 20}}},
    )

    def templates(release: Release) -> dict[str, Any]:
        return {kind: release.one(kind)["spec"]["template"] for kind in ("DaemonSet", "Deployment")}

    assert templates(second) == templates(first)
    assert templates(third)["DaemonSet"] == templates(first)["DaemonSet"]
    assert templates(third)["Deployment"] != templates(first)["Deployment"]


def test_an_upgrade_updates_objects_in_place_and_leaves_none_behind():
    first, second = installed({}, {"scheduler": {"webhook": {"enabled": False}}})
    gone = lasting(first).keys() - lasting(second).keys()

    assert gone == {"MutatingWebhookConfiguration /hami-plugin-scheduler"}
    assert not [path for path in second.objects if "mutatingwebhookconfigurations" in path]


def written() -> str:
    found = {name: lasting(rendered(sets.SETS[name][0], **sets.SETS[name][1])) for name in ("defaults", "pools")}
    return "# What cannot change in objects of release 0.1.0.\n" + yaml.safe_dump(found)


if __name__ == "__main__":
    RELEASED.write_text(written(), encoding="utf-8")
