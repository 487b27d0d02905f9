"""From the scheduler's command-line options to a checked configuration, and to the families it decides for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hami_plugin.config.load import Configuration, load
from hami_plugin.startup import HAMI_DEVICE_CONFIG
from hami_plugin.vendor import Family, load_vendor, vendor_names

_KEYS = {
    "scheduler_name": "name",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
    "client_ca": "clientCa",
    "webhook_client_ca": "webhookClientCa",
    "extender_peers": "extenderPeers",
    "gpu_scheduler_policy": "gpuSchedulerPolicy",
    "node_scheduler_policy": "nodeSchedulerPolicy",
}
_NODE = {"NODE_NAME": "scheduler"}
"""The same file serves the daemons, which need a node's name. This process has none."""


def configured(options: Mapping[str, Any], environment: Mapping[str, str]) -> Configuration:
    """Read the configuration. ``ConfigError`` holds everything that is wrong with it."""
    section: dict[str, Any] = {key: _text(options.get(option)) for option, key in _KEYS.items()}
    if names := options.get("webhook_client_name"):
        section["webhookClientNames"] = list(names)
    section |= _address(options.get("listen"), "listen") | _address(options.get("http"), "http")
    return load(
        config=options.get("config"),
        device_config=options.get("device_config") or (HAMI_DEVICE_CONFIG if HAMI_DEVICE_CONFIG.exists() else None),
        node_config=None,
        overrides={
            "logLevel": options.get("log_level"),
            "logFormat": options.get("log_format"),
            "scheduler": section,
        },
        environment={**_NODE, **environment},
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=vendor_names(),
    )


def families(configuration: Configuration) -> tuple[Family, ...]:
    """All families of the vendors that are not disabled. Which of them a node has, its annotations tell."""
    return tuple(
        family for name, section in configuration.vendors.items() for family in load_vendor(name).families(section)
    )


def _address(text: str | None, what: str) -> dict[str, str | None]:
    """``HOST:PORT`` as the two keys of the file; their own checks find what is wrong with it."""
    if text is None:
        return {}
    host, _, port = text.rpartition(":")
    return {f"{what}Host": host.strip("[]"), f"{what}Port": port}


def _text(value: object) -> str | None:
    """Paths as they are written in a file, made absolute: a shell's user may be anywhere."""
    return str(value.absolute()) if isinstance(value, Path) else None if value is None else str(value)
