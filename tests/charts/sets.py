"""Sets of values that the chart is rendered with, and the API server of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Values = Mapping[str, Any]


def _of_hamis_documentation() -> Values:
    values = yaml.safe_load((Path(__file__).parents[1] / "seeds/003_values.yaml").read_text(encoding="utf-8"))
    plugin = values["devicePlugin"]
    plugin["image"]["repository"] = "registry.example.com/hami-plugin"
    del plugin["livenessProbe"]
    return values


SEED = _of_hamis_documentation()
"""The values that HAMi's documentation shows, but for the two that are refused: HAMi's image, and a probe for a socket
that nobody makes here.
"""

EVERYTHING: Values = {
    "namespace": {"create": True},
    "imagePullSecrets": [{"name": "registry"}],
    "devicePlugin": {
        "config": {"registerFormat": "legacy", "httpPort": 9999},
        "nodeConfig": [{"name": "n1", "devicesplitcount": 4}],
        "nvidia": {"cdi": {"enabled": True}, "deviceListStrategy": ["auto"]},
        "runtimeConfigDir": "/etc/containerd",
        "runtimeClassName": "nvidia",
        "kubeletRoot": "/var/data/kubelet",
        "hostPaths": [{"path": "/opt/vendor"}, {"path": "/opt/state", "readOnly": False}],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraArgs": ["--log-level=debug"],
        "podAnnotations": {"a/b": "c"},
        "podLabels": {"team": "x"},
        "affinity": {"nodeAffinity": {}},
        "core": {"install": False},
    },
    "scheduler": {
        "replicas": 2,
        "extraArgs": ["--log-level=debug"],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "podAnnotations": {"a/b": "c"},
        "podLabels": {"team": "x"},
        "kubeScheduler": {"extraArgs": ["--v=4"]},
        "extraResources": ["example.com/card"],
    },
    "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
}
POOLS: Values = {
    "devicePlugin": {
        "nvidia": {"memoryScaling": 1.5},
        "pools": [
            {"name": "small", "nodeSelector": {"size": "small"}, "nvidia": {"splitCount": 4}},
            {"name": "big", "nodeSelector": {"size": "big"}, "runtimeClassName": "nvidia"},
        ],
    }
}
VENDORS: Values = {
    "devicePlugin": {
        "nvidia": {"enabled": False},
        "ascend": {"enabled": True, "deviceListStrategy": ["cdi-annotations"]},
        "amd": {"enabled": True, "splitCount": 4},
        "core": {"install": False},
        "nodeSelector": {"gpu": None, "npu": "on"},
        "hostPaths": [{"path": "/usr/local/Ascend"}],
    },
    "deviceConfig": {"amd": {"resourceCountName": "example.com/gpu"}},
}
CLAIMS: Values = {
    "devicePlugin": {"nvidia": {"frontEnd": "dra"}, "amd": {"frontEnd": "dra"}},
    "scheduler": {"claimVendors": ["nvidia"]},
}
"""Devices of two vendors go by ResourceClaims, of one also where pods ask by limits."""
CERT_MANAGER: Values = {"scheduler": {"tls": {"source": "cert-manager"}}}
ISSUER: Values = {
    "scheduler": {
        "tls": {"source": "cert-manager", "certManager": {"issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}}
    }
}
SECRET: Values = {"scheduler": {"tls": {"source": "secret", "existingSecret": "mine", "caBundle": "Q0E="}}}
NOTHING: Values = {
    "devicePlugin": {"enabled": False},
    "scheduler": {"enabled": False},
    "admissionPolicies": {"enabled": False},
}
DAEMON: Values = {"scheduler": {"enabled": False}}
SCHEDULER: Values = {"devicePlugin": {"enabled": False}, "scheduler": {"webhook": {"enabled": False}}}

OLD: Mapping[str, Any] = {"version": "v1.20.2", "policies": False}

CLAIMING: Mapping[str, Any] = {"version": "v1.36.2"}
"""The API server knows ResourceClaims since 1.34."""

SETS: Mapping[str, tuple[Values, Mapping[str, Any]]] = {
    "defaults": ({}, {}),
    "defaults-old": ({}, OLD),
    "seed": (SEED, {}),
    "everything": (EVERYTHING, {}),
    "everything-old": (EVERYTHING, OLD),
    "pools": (POOLS, {}),
    "vendors": (VENDORS, {}),
    "claims": (CLAIMS, CLAIMING),
    "cert-manager": (CERT_MANAGER, {}),
    "issuer": (ISSUER, {}),
    "secret": (SECRET, {}),
    "daemon": (DAEMON, {}),
    "scheduler": (SCHEDULER, {}),
    "nothing": (NOTHING, {}),
    "other-release": ({}, {"release": "prod"}),
}
