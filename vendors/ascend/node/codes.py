"""What DCMI answers instead of a result, as errors with names."""

from __future__ import annotations

from typing import Final

NAMES: Final = {
    -8001: "InvalidParameter",
    -8002: "NotPermitted",
    -8003: "MemoryOperationFailed",
    -8004: "SecureFunctionFailed",
    -8005: "InnerError",
    -8006: "TimeOut",
    -8007: "InvalidDevice",
    -8008: "DeviceDoesNotExist",
    -8009: "IoctlFailed",
    -8010: "SendFailed",
    -8011: "ReceiveFailed",
    -8012: "NotReady",
    -8013: "NotSupportedInContainer",
    -8014: "FileOperationFailed",
    -8015: "ResetFailed",
    -8016: "Aborted",
    -8017: "Upgrading",
    -8020: "Occupied",
    -8255: "NotSupported",
}
NOT_PERMITTED, NO_DEVICE, NOT_SUPPORTED = -8002, -8008, -8255


class DcmiError(Exception):
    """A call that DCMI refused. ``code`` is DCMI's own."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.name = NAMES.get(code, "UnknownError")
        super().__init__(f"{call} answered {self.name} ({code})")


class NoLibraryError(Exception):
    """None of the places has a library that can be loaded."""
