"""Announcing a resource to the kubelet, and who else announces things in the same directory."""

from __future__ import annotations

import re
from pathlib import Path

import grpc

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.listener import dial, words
from hami_plugin.kubelet.messages import API_VERSION
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.ports import DevicePlugin

KUBELET_SOCKET = "kubelet.sock"
_RESOURCE = re.compile(r"([a-z0-9][a-z0-9-]*)(?:\.[a-z0-9.-]+)?/([A-Za-z0-9][A-Za-z0-9._-]*)")


class RegistrationError(HamiError):
    """The kubelet does not have us. ``refused`` says that it answered, and will not change its mind quickly."""

    def __init__(self, message: str, *, hint: str = "", refused: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.refused = refused


def socket_name(resource: str) -> str:
    """``hami-<first label of the domain>-<name>.sock``: a base name, as the kubelet wants it."""
    match = _RESOURCE.fullmatch(resource)
    if not match:
        raise HamiError(f"{resource!r} is no resource name", hint="write it as domain/name, such as example.com/gpu")
    return f"hami-{match[1]}-{match[2]}.sock"


async def register(directory: Path, plugin: DevicePlugin, endpoint: str, *, timeout: float) -> None:  # noqa: ASYNC109  # handed to gRPC
    """Announce ``plugin`` as served on the socket named ``endpoint``. ``RegistrationError`` when that fails."""
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=plugin.resource,
        options=pb.DevicePluginOptions(
            pre_start_required=plugin.pre_start_required, get_preferred_allocation_available=True
        ),
    )
    kubelet = directory / KUBELET_SOCKET
    async with dial(kubelet) as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _explained(error, kubelet, plugin.resource, timeout) from error


def _explained(error: grpc.aio.AioRpcError, kubelet: Path, resource: str, timeout: float) -> RegistrationError:
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return RegistrationError(
                f"no kubelet answers on {kubelet}",
                hint="it is starting, or kubeletDir is not the directory it uses; trying again",
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return RegistrationError(
                f"the kubelet took over {timeout:g} s to register {resource}",
                hint="it dials our socket first: the directory must be the same one on the host",
            )
        case _:
            return RegistrationError(
                f"the kubelet refuses to register {resource} ({words(error)})",
                hint=f"this daemon speaks {API_VERSION}; the kubelet's log says more",
                refused=True,
            )
