"""The parts of ``kubernetes.aio`` that are used here: configuration, credentials, and the client without models."""

from hami_plugin.cluster.postponed import postpone

postpone("kubernetes", "kubernetes.aio")

from kubernetes.aio.client.api_client import ApiClient  # noqa: E402  # after its packages are postponed
from kubernetes.aio.client.configuration import Configuration  # noqa: E402
from kubernetes.aio.config import ConfigException, load_kube_config  # noqa: E402
from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: E402

__all__ = ["ApiClient", "ConfigException", "Configuration", "InClusterConfigLoader", "load_kube_config"]
