"""What can be configured of the scheduler process."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hami_plugin.config.kinds import AbsolutePath, Address, DnsName, Seconds, Section

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
        "`topology-aware`, `numa`, `mutex`, or several of them, parted by commas.",
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
