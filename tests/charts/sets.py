"""Sets of values that the chart is rendered with, and the API server of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

SEED: Values = {
    "devicePlugin": {
        "enabled": True,
        "nameOverride": "hami-device-plugin",
        "image": {"repository": "projecthami/hami", "tag": "v2.5.0", "pullPolicy": "IfNotPresent"},
        "nvidia": {
            "enabled": True,
            "splitCount": 10,
            "memoryScaling": 1.0,
            "coreScaling": 1.0,
            "migStrategy": "none",
            "computeMode": "Default",
            "driverRoot": "/run/nvidia/driver",
            "cdi": {"enabled": False, "vendor": "hami.io", "class": "gpu"},
        },
        "ascend": {"enabled": False, "splitCount": 1, "memoryScaling": 1.0},
        "cambricon": {"enabled": False, "splitCount": 1, "memoryScaling": 1.0},
        "hygon": {"enabled": False, "splitCount": 4, "memoryScaling": 1.0},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"gpu": "true"},
        "livenessProbe": {
            "exec": {"command": ["/bin/sh", "-c", "test -S /var/lib/kubelet/device-plugins/hami-gpu.sock"]},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
    }
}
"""The values that HAMi's documentation shows, but for numbers of shares that a vendor does not serve."""

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

SETS: Mapping[str, tuple[Values, Mapping[str, Any]]] = {
    "defaults": ({}, {}),
    "defaults-old": ({}, OLD),
    "seed": (SEED, {}),
    "everything": (EVERYTHING, {}),
    "everything-old": (EVERYTHING, OLD),
    "pools": (POOLS, {}),
    "vendors": (VENDORS, {}),
    "cert-manager": (CERT_MANAGER, {}),
    "issuer": (ISSUER, {}),
    "secret": (SECRET, {}),
    "daemon": (DAEMON, {}),
    "scheduler": (SCHEDULER, {}),
    "nothing": (NOTHING, {}),
    "other-release": ({}, {"release": "prod"}),
}
