"""The package's errors.

Every error can be pickled, and can be constructed from a message alone: PyTorch's DataLoader does so to raise a worker's error in
the training process, and turns a class without such a constructor into a bare RuntimeError.
"""

from __future__ import annotations

from typing import Any


class LarderWarning(UserWarning):
    """Something does not work as requested, such as reads that bypass the gateway."""


class LarderError(Exception):
    """Base of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[LarderError], args: tuple[Any, ...], facts: dict[str, Any]) -> LarderError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class GatewayUnavailable(LarderError):
    """The gateway could not be reached, or kept breaking off, in all attempts.

    Args:
        endpoint: address of the gateway.
        attempts: failed attempts since the last progress.
        cause: error of the last attempt.
    """

    def __init__(self, endpoint: str, attempts: int = 0, cause: Exception | None = None) -> None:
        self.endpoint = endpoint
        self.attempts = attempts
        if cause is None:
            super().__init__(endpoint)
            return
        times = "once" if attempts == 1 else f"{attempts} times"
        # Our own errors as causes come from answers: a busy gateway, a failing origin, half a batch.
        what = "did not deliver" if isinstance(cause, LarderError) else "did not answer"
        super().__init__(f"{endpoint} {what}, tried {times}: {str(cause) or type(cause).__name__}")


class UnexpectedAnswer(LarderError):
    """The answer is not a Larder gateway's; the endpoint is probably another server."""

    def __init__(self, endpoint: str, status: int = 0, detail: str = "") -> None:
        self.endpoint = endpoint
        self.status = status
        if not status:
            super().__init__(endpoint)
            return
        super().__init__(f"{endpoint} answered {status}: {detail}; is this the address of a Larder gateway?")


class RequestRefused(LarderError):
    """The gateway refused the request; repeating it will not help.

    Args:
        status: HTTP status.
        code: the gateway's code, such as ``AccessDenied`` (S3's own codes for everything about credentials).
        detail: the gateway's explanation and, if there is one, the remedy.
    """

    def __init__(self, status: int | str, code: str = "", detail: str = "") -> None:
        self.status = status if isinstance(status, int) else 0
        self.code = code
        self.detail = detail
        super().__init__(f"the gateway refused: {code} ({status}): {detail}" if isinstance(status, int) else status)


class UnknownDataset(RequestRefused):
    """The gateway does not know the dataset; registering is soft state, so register it again."""


class CredentialsMissing(LarderError):
    """No access key was found; the message lists the places that were searched."""


class TruncatedBatch(LarderError):
    """A batch's answer ended or became invalid before its end record. Complete items stay valid.

    Args:
        received: complete items.
        remaining: missing items.
        detail: where it broke off.
    """

    def __init__(self, received: int | str, remaining: int = 0, detail: str = "") -> None:
        self.received = received if isinstance(received, int) else 0
        self.remaining = remaining
        super().__init__(
            f"the answer broke off after {received} items, {remaining} are missing: {detail}"
            if isinstance(received, int)
            else received
        )


class ItemError(LarderError):
    """An item of a dataset is unavailable.

    Args:
        index: index in the dataset.
        bucket: bucket of the item, by the digest file.
        key: key of the object that holds it.
        detail: the gateway's explanation.
    """

    problem = "cannot be had"

    def __init__(self, index: int | str, bucket: str = "", key: str = "", detail: str = "") -> None:
        self.index = index if isinstance(index, int) else -1
        self.bucket = bucket
        self.key = key
        self.detail = detail
        if isinstance(index, str):
            super().__init__(index)
            return
        why = f": {detail}" if detail else ""
        super().__init__(f"item {index} ({bucket}/{key!r}) {self.problem}{why}")


class ItemMissing(ItemError):
    """The object does not exist at the origin."""

    problem = "is not at the origin"


class ItemChanged(ItemError):
    """The origin's bytes differ from the digest file; build the digest file again."""

    problem = "is not what the digest file says; if it was changed on purpose, build the digest file again"


class ItemRefused(ItemError):
    """The origin denies the gateway, or this caller, access to the object."""

    problem = "may not be read"


class ItemUnavailable(ItemError):
    """The origin failed each time, or the gateway could not fetch the item."""

    problem = "could not be fetched"


class ItemUntransformable(ItemError):
    """The user's transform raised; its exception is the cause."""

    problem = "could not be transformed"


class StageFailed(ItemError):
    """A function of a pipeline raised, hung, or killed its worker.

    Args:
        index: index of the item in the dataset.
        bucket: bucket of the item; empty if the pipeline does not have ``keys``.
        key: key of the object that holds it.
        detail: the exception or event.
        stage: number and description of the stage, such as ``stage 2, map(augment)``.
    """

    problem = "failed in a pipeline"

    def __init__(self, index: int | str, bucket: str = "", key: str = "", detail: str = "", stage: str = "") -> None:
        super().__init__(index, bucket, key, detail)
        self.stage = stage
        if isinstance(index, int):
            name = f" ({bucket}/{key!r})" if key else ""
            self.args = (f"item {index}{name} failed in {stage or 'a pipeline'}{f': {detail}' if detail else ''}",)


class PipelineError(LarderError):
    """A pipeline cannot run as it was built; the message names the stage and the remedy."""


class ElementUnstorable(LarderError):
    """A stage returned a value of a type that elements cannot have; the message says where in the value."""


class ElementDamaged(LarderError):
    """Bytes are not an element, or one of a later version of the format."""


class S3Error(LarderError):
    """An S3 store refused or failed a request.

    Args:
        status: HTTP status; 0 without an answer.
        code: code of the S3 error document, or the kind of connection error.
        bucket: requested bucket.
        key: requested key; empty for the bucket itself.
        detail: the store's message.
    """

    def __init__(self, status: int | str, code: str = "", bucket: str = "", key: str = "", detail: str = "") -> None:
        self.status = status if isinstance(status, int) else 0
        self.code = code
        self.bucket = bucket
        self.key = key
        self.detail = detail
        if isinstance(status, str):
            super().__init__(status)
            return
        what = f"{bucket}/{key!r}" if key else f"bucket {bucket}"
        super().__init__(f"{what}: {code} ({status or 'no answer'}){f': {detail}' if detail else ''}")


class ObjectMissing(S3Error):
    """The object or bucket does not exist."""


class ObjectChanged(S3Error):
    """The object changed: its ETag is not the requested one."""


class DigestFileError(LarderError):
    """A digest file is unreadable or invalid; the message names column and row."""


class StateError(LarderError):
    """A saved state is damaged, or does not fit; the message names the field."""


class UnevenRanks(LarderError, ValueError):
    """Ranks cannot have equally many batches with these options; the message has the remedy."""
