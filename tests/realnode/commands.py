"""The command line of each of a node's servers, for each Kubernetes."""

from collections.abc import Mapping, Sequence

from tests.realnode.ground import ADDRESS, FIRST, KEYS, Place
from tests.realnode.versions import Kubernetes
from tests.runtimes import image

RUNTIME = "unix:///run/containerd/containerd.sock"
CONTROLLERS = (
    *("serviceaccount", "serviceaccount-token", "root-ca-cert-publisher", "namespace", "daemonset"),
    *("garbagecollector", "podgc", "nodelifecycle", "replicaset", "deployment", "endpoint"),
)
NEWER_CONTROLLERS = (
    "endpointslice-controller",  # where the API server looks for a webhook's pods
    "validatingadmissionpolicy-status-controller",  # it checks the types of their expressions
    "taint-eviction-controller",  # a part of nodelifecycle before 1.29
    "resourceclaim-controller",  # claims of templates
    "device-taint-eviction-controller",  # their pods, where a device is tainted NoExecute
)


WORKERS = ("containerd", "kubelet")
"""What runs on the nodes beside the first one."""


def commands(kubernetes: Kubernetes, place: Place = FIRST) -> Mapping[str, Sequence[str]]:
    """The command line of each server, in the order in which they may start; ``WORKERS`` on other nodes."""
    controllers = CONTROLLERS if kubernetes.is_debians else (*CONTROLLERS, *NEWER_CONTROLLERS)
    more = _OLD if kubernetes.is_debians else dict.fromkeys(_OLD, kubernetes.switches)
    taint_rules = ("--runtime-config=resource.k8s.io/v1alpha3=true",) if kubernetes.gates else ()  # others watch them
    return {
        "etcd": ("etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync"),
        "containerd": ("containerd", "--config=/etc/containerd/config.toml"),
        "apiserver": (
            *("/programs/kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--endpoint-reconciler-type=none"),
            *("--bind-address=0.0.0.0", f"--advertise-address={ADDRESS}", "--secure-port=443"),
            *(f"--tls-cert-file={KEYS}/apiserver.crt", f"--tls-private-key-file={KEYS}/apiserver.key"),
            *(f"--client-ca-file={KEYS}/ca.crt", f"--token-auth-file={KEYS}/tokens.csv"),
            *("--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true"),
            *("--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-{use}key-file={KEYS}/accounts.key" for use in ("signing-", "")),
            "--enable-aggregator-routing=true",  # it finds webhooks by their pods' addresses: no kube-proxy runs here
            *(f"--kubelet-client-certificate={KEYS}/client.crt", f"--kubelet-client-key={KEYS}/client.key"),
            *more["apiserver"],
            *taint_rules,
        ),
        "scheduler": (
            *("/programs/kube-scheduler", f"--kubeconfig={KEYS}/scheduler.kubeconfig", "--leader-elect=false"),
            *("--cert-dir=/run/scheduler", *more["scheduler"]),
        ),
        "controllers": (
            *("/programs/kube-controller-manager", f"--kubeconfig={KEYS}/controllers.kubeconfig"),
            *("--leader-elect=false", "--cert-dir=/run/controllers", f"--controllers={','.join(controllers)}"),
            *(f"--service-account-private-key-file={KEYS}/accounts.key", f"--root-ca-file={KEYS}/ca.crt"),
            *more["controllers"],
        ),
        "kubelet": (
            *("/programs/kubelet", f"--config={KEYS}/kubelet.yaml", f"--kubeconfig={KEYS}/kubelet.kubeconfig"),
            *(f"--hostname-override={place.name}", "--v=2", *more["kubelet"]),
        ),
    }


_OLD = {
    "apiserver": ("--insecure-port=0",),
    "scheduler": ("--port=0",),
    "controllers": ("--port=0",),
    "kubelet": (
        *("--container-runtime=remote", f"--container-runtime-endpoint={RUNTIME}"),
        *(f"--image-service-endpoint={RUNTIME}", f"--pod-infra-container-image={image.PLAIN}"),
    ),
}
