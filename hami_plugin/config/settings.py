"""What can be configured, with its defaults and limits. The field descriptions are the reference documentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hami_plugin.config.kinds import AbsolutePath, Address, Seconds, Section
from hami_plugin.config.scheduler import SchedulerSettings


def _folder_of_socket(path: Path) -> Path:
    """HAMi's ``KUBELET_SOCKET`` names the socket, ours the directory that it is in."""
    return path.parent if path.name == "kubelet.sock" else path


def _beside_device_plugins(validated: Mapping[str, Any]) -> Path:
    return Path(validated["kubelet_dir"]).parent / "pod-resources" / "kubelet.sock"


class HealthSettings(Section):
    """How fast a fault is believed, and how slowly a recovery is."""

    suspect_looks: int = Field(
        2, ge=1, le=100, alias="suspectLooks", description="Failed looks before a suspect device is unhealthy."
    )
    probe_seconds: Seconds = Field(
        5.0, alias="probeSeconds", description="Time between looks while any device is not healthy."
    )
    clean_looks: int = Field(
        3, ge=1, le=1000, alias="cleanLooks", description="Clean looks in a row that end probation."
    )
    hold_seconds: Seconds = Field(
        10.0, alias="holdSeconds", description="Least time unhealthy; doubles with each relapse within an hour."
    )
    hold_cap_seconds: Seconds = Field(600.0, alias="holdCapSeconds", description="Longest hold after relapses.")
    forget_seconds: Seconds = Field(
        300.0, alias="forgetSeconds", description="A device that is gone this long is withdrawn."
    )


class Settings(Section):
    """The daemon's own configuration. Flags fill the fields that differ per process; the rest is the file."""

    environment: ClassVar[Mapping[str, str]] = {
        "NODE_NAME": "nodeName",
        "HOOK_PATH": "hookPath",
        "KUBELET_SOCKET": "kubeletDir",
        "ENABLE_TOPOLOGY_SCORE": "topologyScores",
    }

    node_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        alias="nodeName",
        description="This node's name in Kubernetes.",
    )
    kubelet_dir: Annotated[AbsolutePath, AfterValidator(_folder_of_socket)] = Field(
        Path("/var/lib/kubelet/device-plugins"),
        alias="kubeletDir",
        description="Where kubelet.sock is, and our sockets go.",
    )
    pod_resources_socket: AbsolutePath = Field(
        default_factory=_beside_device_plugins,
        alias="podResourcesSocket",
        description="The kubelet's PodResources socket; unless given, the one beside kubeletDir.",
    )
    cdi_dirs: tuple[AbsolutePath, ...] = Field(
        (Path("/etc/cdi"), Path("/var/run/cdi")),
        min_length=1,
        alias="cdiDirs",
        description="Where the container runtime looks for CDI specs; a later one outranks an earlier one. "
        "Ours go to the last.",
    )
    runtime_config: AbsolutePath | None = Field(
        None,
        alias="runtimeConfig",
        description="The container runtime's configuration, for `deviceListStrategy: auto`. Empty: the usual places.",
    )
    state_dir: AbsolutePath = Field(
        Path("/var/lib/hami-plugin"), alias="stateDir", description="The daemon's own files: journal, health, lock."
    )
    hook_path: AbsolutePath = Field(
        Path("/usr/local"),
        alias="hookPath",
        description="HAMi's HOOK_PATH on the host; libvgpu.so is in its vgpu/ folder, and "
        "ld.so.preload beside it names that path.",
    )
    register_format: Literal["json", "legacy"] = Field(
        "json", alias="registerFormat", description="json for HAMi schedulers from v2.8 on, legacy for v2.7."
    )
    unannotated_pods: Literal["refuse", "serve"] = Field(
        "refuse",
        alias="unannotatedPods",
        description="A pod that no HAMi scheduler placed: refuse it, or serve whole devices.",
    )
    identity_check: Literal["required", "off"] = Field(
        "required",
        alias="identityCheck",
        description="Confirm with the kubelet's checkpoint that a container starts with what was answered for it.",
    )
    overcommit_check: Literal["hami", "exact", "off"] = Field(
        "hami",
        alias="overcommitCheck",
        description="Refuse what is more than a device has left: hami counts other pods as little as any of HAMi's "
        "schedulers may, exact as they are (for this project's scheduler), off not at all.",
    )
    decision_wait_seconds: float = Field(
        2.0,
        gt=0,
        le=10,
        alias="decisionWaitSeconds",
        description="How long Allocate waits for the scheduler's decision to arrive.",
    )
    rescan_seconds: Seconds = Field(
        30.0, alias="rescanSeconds", description="Time between looks at a driver when all is well."
    )
    topology_scores: bool = Field(True, alias="topologyScores", description="Write the pair scores to the node.")
    http_host: Address = Field("0.0.0.0", alias="httpHost", description="IP address that probes and metrics listen on.")
    http_port: int = Field(
        9394, ge=0, le=65535, alias="httpPort", description="Port of probes and metrics; 0 takes any free one."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", alias="logLevel", description="The mildest events that are logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", alias="logFormat", description="auto writes for people on a terminal, and JSON lines elsewhere."
    )
    health: HealthSettings = Field(default_factory=HealthSettings, description="Health and recovery.")
    scheduler: SchedulerSettings = Field(
        default_factory=SchedulerSettings, description="`hami-plugin scheduler`; daemons pass it over."
    )
    vendors: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="One section per vendor; see `hami-plugin vendors`."
    )
