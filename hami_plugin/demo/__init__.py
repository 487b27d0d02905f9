"""The demonstration: the real daemon as a process, among a simulated machine, kubelet and API server."""

from hami_plugin.demo.play import play
from hami_plugin.demo.tour import tour

__all__ = ["play", "tour"]
