"""Who holds which devices, by the kubelet's PodResources socket. ``v1`` is generated from ``proto/``."""

from hami_plugin.kubelet.podresources.client import PodResourcesClient

__all__ = ["PodResourcesClient"]
