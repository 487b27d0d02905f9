"""What can be configured, with its defaults and limits. The field descriptions are the reference documentation."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path, beginning with /")
    return path


def _address(host: str) -> str:
    try:
        ip_address(host)
    except ValueError as error:
        raise ValueError("must be an IP address, as 0.0.0.0 or ::") from error
    return host


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]
DnsName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]


class Section(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt option must not silently do nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, defer_build=True)


ORDERS = ("spread", "binpack", "topology-aware", "numa", "mutex")


def _orders(text: str) -> str:
    for word in text.split(","):
        if word.strip() not in ORDERS:
            raise ValueError(f"{word.strip()!r} is no order; choose from: {', '.join(ORDERS)}")
    return text


class SchedulerSettings(Section):
    """What `hami-plugin scheduler` needs beside what the daemons on the nodes are told."""

    name: DnsName = Field("hami-scheduler", description="The scheduler that pods with devices go to.")
    replaces_default: bool = Field(
        True,
        alias="replacesDefault",
        description="Also take pods that go to the cluster's default scheduler, as nearly all do.",
    )
    device_order: Annotated[str, AfterValidator(_orders)] = Field(
        "spread",
        alias="gpuSchedulerPolicy",
        description="In which order a node's devices are tried, where a pod does not say: `spread`, `binpack`, "
        "`topology-aware`, `numa`, `mutex`, or several of them, separated by commas.",
    )
    node_order: Literal["binpack", "spread"] = Field(
        "binpack", alias="nodeSchedulerPolicy", description="Which node is preferred, where a pod does not say."
    )
    refuse_impossible: bool = Field(
        True,
        alias="refuseImpossible",
        description="Refuse pods at creation that no node of today could ever serve. Off where nodes come on demand.",
    )
    listen_host: Address = Field(
        "0.0.0.0", alias="listenHost", description="IP address on which the extender and the webhook listen."
    )
    listen_port: int = Field(
        9398, ge=0, le=65535, alias="listenPort", description="Port of the extender and the webhook."
    )
    tls_cert: AbsolutePath | None = Field(
        None, alias="tlsCert", description="Certificate of that port, with its chain, in PEM. Empty: no TLS."
    )
    tls_key: AbsolutePath | None = Field(None, alias="tlsKey", description="Key of that certificate, in PEM.")
    client_ca: AbsolutePath | None = Field(
        None,
        alias="clientCa",
        description="Authority, in PEM, whose client certificates may filter and bind from other hosts too.",
    )
    webhook_client_ca: AbsolutePath | None = Field(
        None,
        alias="webhookClientCa",
        description="Authority, in PEM, of the API server's client certificate: then the webhook answers nobody else.",
    )
    webhook_client_names: tuple[str, ...] = Field(
        (),
        alias="webhookClientNames",
        description="Common names that such a certificate may have; empty: any that the authority has signed.",
    )
    reload_seconds: Seconds = Field(
        2.0, alias="reloadSeconds", description="Time between looks at these files, which may be replaced."
    )
    extender_peers: Literal["loopback", "any"] = Field(
        "loopback",
        alias="extenderPeers",
        description="Who may filter and bind: a kube-scheduler in the same pod or on the same host only, or anyone.",
    )
    http_host: Address = Field(
        "0.0.0.0", alias="httpHost", description="IP address on which probes and metrics listen without TLS."
    )
    http_port: int = Field(
        9395, ge=0, le=65535, alias="httpPort", description="Port of probes and metrics without TLS."
    )
    filter_mebibytes: int = Field(
        128,
        ge=1,
        le=1024,
        alias="filterMebibytes",
        description="The largest filter request. With `nodeCacheCapable: true` it has names of nodes only.",
    )
    request_mebibytes: int = Field(
        160,
        ge=12,
        le=4096,
        alias="requestMebibytes",
        description="Room for all requests together that are read or answered. The webhook's have a quarter of it.",
    )
    read_seconds: Seconds = Field(10.0, alias="readSeconds", description="How long a request may take to arrive.")
    answer_seconds: Seconds = Field(
        28.0,
        alias="answerSeconds",
        description="How long filter and bind may take; less than the extender's `httpTimeout`, so that it reads why.",
    )
    review_seconds: Seconds = Field(
        9.0, alias="reviewSeconds", description="How long the webhook may take, if the API server does not say less."
    )
    linger_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        3.0,
        alias="lingerSeconds",
        description="How long a process that was told to stop still takes calls, until its Service has left it out.",
    )
    stop_seconds: Seconds = Field(
        10.0, alias="stopSeconds", description="How long calls that run at the end may take to finish."
    )

    @model_validator(mode="after")
    def _both_files(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tlsCert" if self.tls_cert is None else "tlsKey"
            raise ValueError(f"{missing} is missing; TLS needs a certificate and its key")
        if self.filter_mebibytes > self.request_mebibytes:
            raise ValueError(
                f"filterMebibytes ({self.filter_mebibytes}) is more than requestMebibytes ({self.request_mebibytes}), "
                "the room for all requests together"
            )
        for key, authority in (("clientCa", self.client_ca), ("webhookClientCa", self.webhook_client_ca)):
            if authority and self.tls_cert is None:
                raise ValueError(f"{key} needs TLS, and tlsCert is missing")
        if self.webhook_client_names and not self.webhook_client_ca:
            raise ValueError("webhookClientNames needs webhookClientCa, whose certificates have these names")
        return self


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
