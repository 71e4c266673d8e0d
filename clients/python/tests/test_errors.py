"""Errors travel: between processes, and through PyTorch's DataLoader."""

import inspect
import pickle

import pytest

from larder.base import errors

MADE = [
    errors.GatewayUnavailable("http://gateway", 3, OSError("refused")),
    errors.UnexpectedAnswer("http://gateway", 404, "hello"),
    errors.RequestRefused(403, "AccessDenied", "no"),
    errors.UnknownDataset(404, "UnknownDataset", "register it"),
    errors.TruncatedBatch(3, 4, "it ended"),
    errors.ItemMissing(7, "bucket", "a key", "gone"),
    errors.ItemChanged(7, "bucket", "a key"),
    errors.ItemRefused(7, "bucket", "a key"),
    errors.ItemUnavailable(7, "bucket", "a key"),
    errors.S3Error(500, "InternalError", "bucket", "key", "oops"),
    errors.ObjectMissing(404, "NoSuchKey", "bucket", "key"),
    errors.ObjectChanged(412, "PreconditionFailed", "bucket", "key"),
    errors.CredentialsMissing("none"),
    errors.StateError("field"),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error):
    """The other process sees the same type, words and facts."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_every_error_can_be_made_from_words_alone():
    """DataLoader raises a worker's error again by calling its class with one message, which must then be the message."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.LarderError)]
    assert len(kinds) > 15
    for kind in kinds:
        assert str(kind("Caught it in DataLoader worker process 0.")) == "Caught it in DataLoader worker process 0."


def test_items_are_named():
    """The message names index, bucket, key and reason."""
    assert str(MADE[5]) == "item 7 (bucket/'a key') is not at the origin: gone"


def test_kinds():
    """One may catch all of them, all refusals, or all troubles with single items."""
    assert all(isinstance(error, errors.LarderError) for error in MADE)
    assert issubclass(errors.UnknownDataset, errors.RequestRefused)
    for kind in (errors.ItemMissing, errors.ItemChanged, errors.ItemRefused, errors.ItemUnavailable):
        assert issubclass(kind, errors.ItemError)
