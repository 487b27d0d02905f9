"""All settings with their defaults and limits. The reference documentation is generated from the descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

LOOP_S = 10.0
"""The longest time between two looks of the priority loop."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path, beginning with /")
    return path


def _address(host: str) -> str:
    try:
        ip_address(host)
    except ValueError as error:
        raise ValueError("must be an IP address, such as 0.0.0.0 or ::") from error
    return host


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]
DnsName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]


LabelName = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
    ),
]
VendorName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$", max_length=40)]


class Section(BaseModel):
    """Frozen. An unknown key is an error: a misspelt option must not silently do nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, defer_build=True)


ORDERS = ("spread", "binpack", "topology-aware", "numa", "mutex")


def _orders(text: str) -> str:
    for order in text.split(","):
        if order.strip() not in ORDERS:
            raise ValueError(f"{order.strip()!r} is not an order; choose from: {', '.join(ORDERS)}")
    return text


class SchedulerSettings(Section):
    """What `hami-plugin scheduler` needs beyond the settings of the daemons."""

    name: DnsName = Field("hami-scheduler", description="Name of the scheduler that pods with devices are assigned to.")
    replaces_default: bool = Field(
        True,
        alias="replacesDefault",
        description="Also assign pods that name the cluster's default scheduler, as most do.",
    )
    device_order: Annotated[str, AfterValidator(_orders)] = Field(
        "spread",
        alias="gpuSchedulerPolicy",
        description="Order in which a node's devices are tried, unless the pod sets one: `spread`, `binpack`, "
        "`topology-aware`, `numa`, `mutex`, or several of these, separated by commas.",
    )
    node_order: Literal["binpack", "spread"] = Field(
        "binpack", alias="nodeSchedulerPolicy", description="Which nodes are preferred, unless the pod sets it."
    )
    refuse_impossible: bool = Field(
        True,
        alias="refuseImpossible",
        description="Deny the creation of pods that no present node could ever serve. Turn it off with a cluster "
        "autoscaler.",
    )
    claim_vendors: tuple[VendorName, ...] = Field(
        (),
        max_length=64,
        alias="claimVendors",
        description="Vendors whose devices go by ResourceClaims (`frontEnd: dra`) on all nodes: the webhook gives pods "
        "claims in place of the vendors' limits. See docs/dra.md.",
    )
    listen_host: Address = Field(
        "0.0.0.0", alias="listenHost", description="IP address of the extender and the webhook."
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
        description="CA certificate, in PEM. Its client certificates may filter and bind from other hosts too.",
    )
    webhook_client_ca: AbsolutePath | None = Field(
        None,
        alias="webhookClientCa",
        description="CA certificate, in PEM, of the API server's client certificate. If set, the webhook serves only "
        "its clients.",
    )
    webhook_client_names: tuple[str, ...] = Field(
        (),
        alias="webhookClientNames",
        description="Common names that such a certificate may have. Empty: any.",
    )
    reload_seconds: Seconds = Field(
        2.0, alias="reloadSeconds", description="Interval of checks whether these files have been replaced."
    )
    extender_peers: Literal["loopback", "any"] = Field(
        "loopback",
        alias="extenderPeers",
        description="Who may filter and bind: only a kube-scheduler in the same pod or on the same host, or anyone.",
    )
    http_host: Address = Field("0.0.0.0", alias="httpHost", description="IP address of probes and metrics without TLS.")
    http_port: int = Field(
        9395, ge=0, le=65535, alias="httpPort", description="Port of probes and metrics without TLS."
    )
    status_page: Literal["off", "loopback", "any"] = Field(
        "loopback",
        alias="statusPage",
        description="Who may see the cluster's status page at `/` of httpPort: nobody, the pod itself (`kubectl "
        "port-forward`), or whoever reaches the port. It names nodes and pods, and has no secrets.",
    )
    hami_metrics: bool = Field(
        False,
        alias="hamiMetrics",
        description="Also export devices, what pods have of them, and quotas under the names of HAMi's scheduler "
        "(2.10), for its dashboards. The daemons' key has the names of HAMi's monitor.",
    )
    filter_mebibytes: int = Field(
        128,
        ge=1,
        le=1024,
        alias="filterMebibytes",
        description="Maximum size of a filter request. With `nodeCacheCapable: true` requests hold node names only.",
    )
    request_mebibytes: int = Field(
        160,
        ge=12,
        le=4096,
        alias="requestMebibytes",
        description="Maximum memory for all requests in progress together. The webhook has a quarter of it.",
    )
    read_seconds: Seconds = Field(10.0, alias="readSeconds", description="Timeout for reading a request.")
    answer_seconds: Seconds = Field(
        28.0,
        alias="answerSeconds",
        description="Timeout of filter and bind. Keep it below the extender's `httpTimeout`, so that kube-scheduler "
        "gets the reason.",
    )
    review_seconds: Seconds = Field(
        9.0, alias="reviewSeconds", description="Timeout of the webhook, unless the API server sets a shorter one."
    )
    resize_by_annotation: bool = Field(
        False,
        alias="resizeByAnnotation",
        description="Let pods that run ask for other amounts by the annotation `hami-plugin.io/resize`, within their "
        "namespace's quota. The daemons need the same key.",
    )
    linger_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        3.0,
        alias="lingerSeconds",
        description="How long the process accepts calls after SIGTERM, until its Service has removed it.",
    )
    stop_seconds: Seconds = Field(10.0, alias="stopSeconds", description="Timeout for calls in progress at shutdown.")

    @model_validator(mode="after")
    def _both_files(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tlsCert" if self.tls_cert is None else "tlsKey"
            raise ValueError(f"{missing} is missing; TLS needs a certificate and its key")
        if self.filter_mebibytes > self.request_mebibytes:
            raise ValueError(
                f"filterMebibytes ({self.filter_mebibytes}) exceeds requestMebibytes ({self.request_mebibytes}), "
                "the limit for all requests together"
            )
        for key, authority in (("clientCa", self.client_ca), ("webhookClientCa", self.webhook_client_ca)):
            if authority and self.tls_cert is None:
                raise ValueError(f"{key} needs TLS, and tlsCert is missing")
        if self.webhook_client_names and not self.webhook_client_ca:
            raise ValueError("webhookClientNames needs webhookClientCa, whose certificates have these names")
        return self


def _folder_of_socket(path: Path) -> Path:
    """HAMi's ``KUBELET_SOCKET`` names the socket; our key names its directory."""
    return path.parent if path.name == "kubelet.sock" else path


def _beside_device_plugins(validated: Mapping[str, Any]) -> Path:
    return Path(validated["kubelet_dir"]).parent / "pod-resources" / "kubelet.sock"


class HealthSettings(Section):
    """When a device becomes unhealthy, and when it recovers."""

    suspect_looks: int = Field(
        2,
        ge=1,
        le=100,
        alias="suspectLooks",
        description="Failed checks in a row that make a suspect device unhealthy.",
    )
    probe_seconds: Seconds = Field(
        5.0, alias="probeSeconds", description="Interval of checks while any device is not healthy."
    )
    clean_looks: int = Field(
        3, ge=1, le=1000, alias="cleanLooks", description="Passed checks in a row that end probation."
    )
    hold_seconds: Seconds = Field(
        10.0, alias="holdSeconds", description="Minimum time unhealthy. It doubles with each relapse within an hour."
    )
    hold_cap_seconds: Seconds = Field(600.0, alias="holdCapSeconds", description="Maximum of that time after relapses.")
    forget_seconds: Seconds = Field(
        300.0, alias="forgetSeconds", description="After this time a missing device is no longer offered."
    )


class Settings(Section):
    """The daemon's own configuration. Command-line flags set what differs per process; the file has the rest."""

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
        description="Directory of kubelet.sock and of the daemon's own sockets.",
    )
    pod_resources_socket: AbsolutePath = Field(
        default_factory=_beside_device_plugins,
        alias="podResourcesSocket",
        description="The kubelet's PodResources socket. Default: the one beside kubeletDir.",
    )
    cdi_dirs: tuple[AbsolutePath, ...] = Field(
        (Path("/etc/cdi"), Path("/var/run/cdi")),
        min_length=1,
        alias="cdiDirs",
        description="Directories in which the container runtime looks for CDI specs, the last with the highest "
        "priority. "
        "The daemon writes its specs to the last.",
    )
    runtime_config: AbsolutePath | None = Field(
        None,
        alias="runtimeConfig",
        description="The container runtime's configuration, for `deviceListStrategy: auto`. Empty: the usual paths.",
    )
    state_dir: AbsolutePath = Field(
        Path("/var/lib/hami-plugin"),
        alias="stateDir",
        description="Directory of the daemon's state: journal, device health, lock.",
    )
    hook_path: AbsolutePath = Field(
        Path("/usr/local"),
        alias="hookPath",
        description="HAMi's HOOK_PATH on the host. Its vgpu/ directory has libvgpu.so and an "
        "ld.so.preload that names it.",
    )
    register_format: Literal["json", "legacy"] = Field(
        "json",
        alias="registerFormat",
        description="Format of the register annotation: json for HAMi schedulers from v2.8 on, legacy for v2.7.",
    )
    unannotated_pods: Literal["refuse", "serve"] = Field(
        "refuse",
        alias="unannotatedPods",
        description="Pods that no HAMi scheduler placed: refuse them, or serve them whole devices.",
    )
    identity_check: Literal["required", "off"] = Field(
        "required",
        alias="identityCheck",
        description="Check with the kubelet's checkpoint that a container starts with the devices that Allocate "
        "answered for it.",
    )
    overcommit_check: Literal["hami", "exact", "off"] = Field(
        "hami",
        alias="overcommitCheck",
        description="Refuse requests that exceed what a device has left. hami counts other pods as leniently as any "
        "HAMi scheduler, exact counts what they really hold (for this project's scheduler), off does not check.",
    )
    decision_wait_seconds: float = Field(
        2.0,
        gt=0,
        le=10,
        alias="decisionWaitSeconds",
        description="How long Allocate waits for the scheduler's decision.",
    )
    rescan_seconds: Seconds = Field(
        30.0, alias="rescanSeconds", description="Interval of device discovery while all devices are healthy."
    )
    usage_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        5.0,
        alias="usageSeconds",
        description="Interval of reading what containers use of their devices. 0: never.",
    )
    priority_loop: bool = Field(
        False,
        alias="priorityLoop",
        description="Hold containers back while one of a higher priority (a smaller number) works on the same device, "
        "and limit cores only where two of one priority do. Off beside HAMi's monitor, which does the same.",
    )
    resize_by_annotation: bool = Field(
        False,
        alias="resizeByAnnotation",
        description="Resize running containers as this project's scheduler grants it in their pods' annotations. It "
        "needs the chart's admission policies, which reserve what the scheduler writes.",
    )
    hami_metrics: bool = Field(
        False,
        alias="hamiMetrics",
        description="Also export containers' usage under the names of HAMi's monitor (2.10), for its dashboards.",
    )
    cost_metrics: bool = Field(
        True,
        alias="costMetrics",
        description="Export what pods, namespaces and labels cost: seconds of cards, and energy where the hardware "
        "counts it.",
    )
    cost_labels: tuple[LabelName, ...] = Field(
        (),
        max_length=8,
        alias="costLabels",
        description="Labels of pods that costs are also added up by, such as `team`.",
    )
    topology_scores: bool = Field(
        True, alias="topologyScores", description="Publish the topology scores of device pairs on the node."
    )
    node_labels: bool = Field(
        False,
        alias="nodeLabels",
        description="Label the node with its devices' product, count and memory, GPUs also as GPU feature "
        "discovery does. Switched off, the labels are removed.",
    )
    node_condition: bool = Field(
        False,
        alias="nodeCondition",
        description="Keep a condition of the node for each kind of device, such as `GPUDegraded`: True while one is "
        "out of service. It needs the right to patch nodes/status, which the chart gives with it.",
    )
    remediation: Literal["off", "dry-run", "on"] = Field(
        "off",
        description="What is done about a device whose fault asks for a reset: nothing, Events that say what would be "
        "done, or cordon it and ask for a reset once nobody has it.",
    )
    http_host: Address = Field("0.0.0.0", alias="httpHost", description="IP address of probes and metrics.")
    http_port: int = Field(
        9394, ge=0, le=65535, alias="httpPort", description="Port of probes and metrics. 0: any free port."
    )
    status_page: Literal["off", "loopback", "any"] = Field(
        "loopback",
        alias="statusPage",
        description="Who may see the status page at `/`: nobody, the pod itself and the host's users (`kubectl "
        "port-forward`), or whoever reaches the port. It names pods, and has no secrets.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", alias="logLevel", description="Minimum level of logged events."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", alias="logFormat", description="auto: console on a terminal, JSON lines elsewhere."
    )
    health: HealthSettings = Field(default_factory=HealthSettings, description="Health and recovery.")
    scheduler: SchedulerSettings = Field(
        default_factory=SchedulerSettings, description="Settings of `hami-plugin scheduler`. Daemons ignore them."
    )
    vendors: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="One section for each vendor; see `hami-plugin vendors`."
    )

    @model_validator(mode="after")
    def _looks_often(self) -> Self:
        if self.priority_loop and not 0 < self.usage_seconds <= LOOP_S:
            raise ValueError(
                f"priorityLoop decides at each look at what containers use, every {self.usage_seconds:g} s; "
                f"set usageSeconds to at most {LOOP_S:g}"
            )
        return self
