"""The errors a user may meet. Each says what happened, and ``hint`` says what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

MAX_RETRY_AFTER_S = 120.0
"""The longest wait that is accepted: a wrong header must not silence a watch for a day."""


class HamiError(Exception):
    """Base of all expected errors. Any other error that escapes is a bug."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(HamiError):
    """An invalid configuration: all problems at once, each with path, value and remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class WireError(HamiError, ValueError):
    """An annotation that does not follow its grammar."""


class UnknownVendorError(HamiError):
    """A vendor name without a module in ``vendors``."""


class DriverReason(StrEnum):
    """Why a driver shows no devices, as in logs, ``/readyz``, metrics and Events."""

    NO_LIBRARY = "NoLibrary"
    NO_DRIVER = "NoDriver"
    VERSION_MISMATCH = "VersionMismatch"
    NO_PERMISSION = "NoPermission"
    NO_DEVICES = "NoDevices"
    MIG_MIXTURE = "MigMixture"
    HUNG = "DriverHung"
    CRASHED = "DriverCrashed"
    FAILED = "DriverFailed"


class DriverUnavailableError(HamiError):
    """The vendor's driver does not answer now. Expected, and retried."""

    def __init__(self, reason: DriverReason, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class VendorError(HamiError):
    """A vendor's code failed unexpectedly. The cause has the traceback, if there is one."""

    def __init__(self, vendor: str, step: str, why: str) -> None:
        super().__init__(f"vendor {vendor} raised an unexpected error, {step}: {why}", hint="the daemon's log has more")
        self.vendor = vendor
        self.step = step


class ClusterError(HamiError):
    """The API server refused, failed, or was not reached. ``status`` is 0 if there was no answer.

    ``retry_after`` is the delay in seconds that it asked for, at most ``MAX_RETRY_AFTER_S``.
    """

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after = None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_S)

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def temporary(self) -> bool:
        """Whether the same call may succeed later, unchanged."""
        return self.status in (0, 401, 403, 408, 409, 429) or self.status >= 500


class RefusalReason(StrEnum):
    """Why an Allocate, a preferred allocation or a container start was refused."""

    INVALID_REQUEST = "InvalidRequest"
    UNKNOWN_DEVICE = "UnknownDevice"
    UNHEALTHY_DEVICE = "UnhealthyDevice"
    NO_PENDING_POD = "NoPendingPod"
    COUNT_MISMATCH = "DeviceCountMismatch"
    DEVICE_MISMATCH = "DeviceMismatch"
    AMBIGUOUS = "AmbiguousPod"
    BAD_ANNOTATION = "BadAnnotation"
    EXCEEDS_REQUEST = "ExceedsRequest"
    OVERCOMMITTED = "DeviceOvercommitted"
    NOT_SCHEDULED = "NotScheduledByHAMi"
    DEVICE_SHARED = "DeviceAlreadyShared"
    NOT_PREPARED = "HostNotPrepared"
    WRONG_HOLDER = "WrongHolder"
    HOLDER_UNKNOWN = "HolderUnknown"


class RefusedError(HamiError):
    """A refused request of the kubelet. ``code`` names a gRPC status."""

    def __init__(
        self, reason: RefusalReason, message: str, *, code: str = "FAILED_PRECONDITION", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.code = code
