"""The demonstration: the real daemon as a process, among a simulated machine, kubelet and API server."""

from hami_plugin.demo.board import Board
from hami_plugin.demo.play import play, play_everywhere

__all__ = ["Board", "play", "play_everywhere"]
