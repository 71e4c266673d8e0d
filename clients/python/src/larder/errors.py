"""What can go wrong, as the caller needs to tell it apart.

Every error can be pickled, and can also be made from a finished message alone: that is how PyTorch's DataLoader raises again,
in the training process, what was raised in a worker, and a class that cannot be made so arrives as a bare RuntimeError.
"""

from __future__ import annotations

from typing import Any


class LarderWarning(UserWarning):
    """Something works differently from what was asked for, such as reads that go past the gateway."""


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
    """The gateway could not be reached, or kept breaking off, for as long as it was retried.

    Args:
        endpoint: address of the gateway.
        attempts: how many times it was tried since it last delivered something.
        cause: what the last attempt failed with.
    """

    def __init__(self, endpoint: str, attempts: int = 0, cause: Exception | None = None) -> None:
        self.endpoint = endpoint
        self.attempts = attempts
        if cause is None:
            super().__init__(endpoint)
            return
        times = "once" if attempts == 1 else f"{attempts} times"
        # Our own errors are made of answers: that of a busy gateway, of an origin that fails, of half a batch.
        what = "did not deliver" if isinstance(cause, LarderError) else "did not answer"
        super().__init__(f"{endpoint} {what}, tried {times}: {str(cause) or type(cause).__name__}")


class UnexpectedAnswer(LarderError):
    """Something answered, but not as a Larder gateway does; the endpoint is probably another server's."""

    def __init__(self, endpoint: str, status: int = 0, detail: str = "") -> None:
        self.endpoint = endpoint
        self.status = status
        if not status:
            super().__init__(endpoint)
            return
        super().__init__(f"{endpoint} answered {status}: {detail}; is this the address of a Larder gateway?")


class RequestRefused(LarderError):
    """The gateway understood and said no; asking the same again will not help.

    Args:
        status: of HTTP.
        code: the gateway's code, such as ``AccessDenied`` (S3's own codes for everything about credentials).
        detail: the gateway's explanation, and where there is one, the remedy.
    """

    def __init__(self, status: int | str, code: str = "", detail: str = "") -> None:
        self.status = status if isinstance(status, int) else 0
        self.code = code
        self.detail = detail
        super().__init__(f"the gateway refused: {code} ({status}): {detail}" if isinstance(status, int) else status)


class UnknownDataset(RequestRefused):
    """The gateway does not know the dataset; registering is soft state, so register it again."""


class CredentialsMissing(LarderError):
    """No access key was found in any of the places that were looked in; the message names them."""


class TruncatedBatch(LarderError):
    """A batch's answer ended, or stopped making sense, before its end record. What came whole stays valid.

    Args:
        received: items that came whole.
        remaining: items that did not.
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
    """One item of a dataset cannot be had.

    Args:
        index: its place in the dataset.
        bucket: where the digest file says that it lies.
        key: of the object that it is, or is part of.
        detail: what the gateway says of it.
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
    """The origin has no such object (any more)."""

    problem = "is not at the origin"


class ItemChanged(ItemError):
    """The origin's bytes are not those that the digest file names; build the digest file again."""

    problem = "is not what the digest file says; if it was changed on purpose, build the digest file again"


class ItemRefused(ItemError):
    """The origin does not let the gateway, or this caller, read the object."""

    problem = "may not be read"


class ItemUnavailable(ItemError):
    """The origin failed each time, or the gateway could not fetch the item."""

    problem = "could not be fetched"


class ItemUntransformable(ItemError):
    """The user's transform raised; its exception is the cause."""

    problem = "could not be transformed"


class S3Error(LarderError):
    """An S3 store refused or failed a request.

    Args:
        status: of HTTP; 0 when there was no answer.
        code: of the S3 error document, or a word for what happened to the connection.
        bucket: what was asked for.
        key: what was asked for; empty for the bucket itself.
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
    """There is no such object or bucket."""


class ObjectChanged(S3Error):
    """The object is no longer the one that was asked for (its ETag differs)."""


class DigestFileError(LarderError):
    """A digest file cannot be read, or is not one; the message names column and row."""


class StateError(LarderError):
    """A saved state does not fit what it is loaded into, or is damaged; the message names the field."""
