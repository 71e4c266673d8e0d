"""Adds to the OpenAPI document what FastAPI cannot derive: file bodies, and the data paths, which are plain ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.v1.many.entries import MOST_ENTRIES, ManyEntry
from gateway.edge.problems import CONTENT

_BINARY = {"type": "string", "format": "binary"}
_EXAMPLE_ID = "33108813043581e677d5c9eb047b1f7a3bccdeccac3aa28a09be4e528862199d"

REGISTER_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/octet-stream": {
            "schema": {
                **_BINARY,
                "description": "a Parquet file with the columns digest (32 bytes), bucket, key, offset and length; "
                "application/vnd.apache.parquet is accepted too",
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["source"],
                "additionalProperties": False,
                "properties": {"source": {"type": "string", "pattern": "^s3://[^/]+/.+"}},
            },
            "example": {"source": "s3://datasets/imagenet/train.digest.parquet"},
        },
    },
}

_INDICES: dict[str, Any] = {
    "required": True,
    "description": "item indices, unsigned 32-bit little-endian, at most 1,048,576",
    "content": {"application/octet-stream": {"schema": _BINARY}},
}


def _parameter(place: str, name: str, schema: dict[str, Any], description: str, example: Any) -> dict[str, Any]:
    return {
        "in": place,
        "name": name,
        "required": place == "path",
        "schema": schema,
        "description": description,
        "example": example,
    }


def _required(parameter: dict[str, Any]) -> dict[str, Any]:
    return parameter | {"required": True}


_DATASET = _parameter("path", "name", {"type": "string"}, "name or id of the dataset", _EXAMPLE_ID)
_BATCH_QUERY = [
    _parameter(
        "query", "mode", {"type": "string", "enum": ["substitute", "exact", "prefetch"], "default": "exact"},
        "substitute: up to take of the candidates, cached ones first; exact: all of them; prefetch: a count only", "exact",
    ),
    _parameter("query", "take", {"type": "integer", "minimum": 1}, "items to deliver, with mode=substitute", 256),
    _parameter("query", "offers", {"type": "integer", "minimum": 0}, "with mode=substitute: how many of the candidates after the "
        "first take were offered to the job", 64),
    _parameter("query", "ordered", {"type": "integer", "enum": [0, 1]}, "in the order asked for, with mode=exact", 1),
    _parameter("query", "epoch", {"type": "integer", "minimum": 0}, "the reader's epoch", 0),
    _parameter("query", "job", {"type": "string", "maxLength": 128}, "the reader's job", "resnet50-17"),
    _parameter("header", "x-larder-order", {"type": "string", "pattern": "^(sequential|shuffled:-?[0-9]{1,40})$"},
        "with job, epoch and mode=exact: the order that the job follows exactly", "shuffled:7"),
]  # fmt: skip
_OFFERS_QUERY = [
    _required(_parameter("query", "job", {"type": "string", "maxLength": 128}, "the reader's job", "resnet50-17")),
    _required(_parameter("query", "epoch", {"type": "integer", "minimum": 0}, "the reader's epoch", 0)),
    _parameter(
        "query", "most", {"type": "integer", "minimum": 1, "maximum": 65536, "default": 65536}, "items to list", 4096
    ),
]
_DIRECTIVES = {
    name: {"schema": {"type": kind}, "description": description}
    for name, kind, description in (
        ("x-larder-caching", "string", "full, part or none"),
        ("x-larder-chunk", "integer", "for clients of earlier versions: -1"),
        ("x-larder-plan", "integer", "version of the plan"),
        (
            "x-larder-sharing",
            "integer",
            "other active jobs on the dataset, if a part of it is held; 0: there are no offers",
        ),
    )
}
_COUNT = {"type": "integer", "minimum": 0}
_COUNTS = {
    "schema": {"type": "object", "properties": {"resident": _COUNT, "fetching": _COUNT, "refused": _COUNT}},
    "example": {"resident": 1000, "fetching": 24, "refused": 0},
}


def _answers(good: dict[str, Any], *refusals: tuple[str, str]) -> dict[str, Any]:
    return good | {status: {"description": codes, "content": CONTENT} for status, codes in refusals}


_REFUSALS = (
    ("400", "InvalidRequest, IndexOutOfRange (with index), or S3's codes for a malformed signature"),
    ("403", "AccessDenied (with index), SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"),
    ("404", "UnknownDataset: register it again"),
    ("413", "TooLarge"),
    ("503", "SlowDown, ServiceUnavailable; try again after Retry-After seconds"),
)

_BLOB_PARAMETERS = [
    _parameter("path", "digest", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "SHA-256 of the bytes", _EXAMPLE_ID),
    _parameter("header", "range", {"type": "string"}, "one range of bytes", "bytes=0-1023"),
]
_BLOB = {
    "tags": ["blobs"],
    "parameters": _BLOB_PARAMETERS,
    "responses": _answers(
        {
            "200": {"description": "the blob", "content": {"application/octet-stream": {"schema": _BINARY}}},
            "206": {"description": "a range of it", "content": {"application/octet-stream": {"schema": _BINARY}}},
        },
        ("400", "InvalidRequest, or S3's codes for a malformed signature"),
        ("403", "AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"),
        ("404", "NotResident"),
        ("416", "InvalidRange"),
        ("503", "SlowDown, ServiceUnavailable; try again after Retry-After seconds"),
    ),
}

_ENTRIES: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["entries"],
                "additionalProperties": False,
                "properties": {
                    "entries": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MOST_ENTRIES,
                        "items": ManyEntry.model_json_schema(),
                    }
                },
            },
            "example": {
                "entries": [
                    {"bucket": "datasets", "key": "zarr/c/0/17"},
                    {"bucket": "datasets", "key": "table.parquet", "start": 4, "end": 65540},
                    {"bucket": "datasets", "key": "train-000.tar", "member": "000017.jpg"},
                ]
            },
        }
    },
}

_OBJECT = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["bucket", "key"],
                "properties": {name: {"type": "string", "minLength": 1} for name in ("bucket", "key")},
                "additionalProperties": False,
            },
            "example": {"bucket": "models", "key": "llama/model-00001.safetensors"},
        }
    },
}
_PARTS = {
    "schema": {
        "type": "object",
        "properties": {
            "size": _COUNT,
            "etag": {"type": "string"},
            "parts": {"type": "array", "items": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}},
            "reason": {"type": "string", "enum": ["tcp", "user", "many", "in-flight", "refused", "bytes"]},
        },
    },
    "example": {"size": 6291456, "etag": '"5d41402a-2"', "parts": [[0, 4194304], [0, 2097152]]},
}

DATA_PATHS: dict[str, Any] = {
    "/v1/batch": {
        "post": {
            "tags": ["batches"],
            "summary": "Read objects",
            "operationId": "read_keys",
            "description": "Objects of any bucket, ranges of them and members of TAR archives in one answer, each judged as a "
            "GET by the caller. An entry that cannot be read fails alone, with S3's code. An answer without its end record was "
            "truncated.",
            "requestBody": _ENTRIES,
            "responses": _answers(
                {
                    "200": {
                        "description": "the entries, in the order in which they became ready",
                        "content": {"application/x-larder-batch": {"schema": _BINARY}},
                    }
                },
                ("400", "InvalidRequest, naming entry and field, or S3's codes for a malformed signature"),
                ("403", "AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"),
                ("413", "TooLarge"),
                ("503", "SlowDown; try again after Retry-After seconds"),
            ),
        }
    },
    "/v1/open": {
        "post": {
            "tags": ["batches"],
            "summary": "Open an object",
            "operationId": "open_object",
            "description": "A whole object as open files, over the gateway's unix socket: with x-larder-descriptors, the files "
            "come beside the answer, one for each part. Without files the answer has the reason, and the object is read by GET.",
            "requestBody": _OBJECT,
            "responses": _answers(
                {"200": {"description": "the parts, or why there are none", "content": {"application/json": _PARTS}}},
                ("400", "InvalidRequest, naming the field, or S3's codes for a malformed signature"),
                ("403", "SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"),
                ("413", "TooLarge"),
                ("503", "SlowDown; try again after Retry-After seconds"),
            ),
        }
    },
    "/v1/datasets/{name}/batch": {
        "post": {
            "tags": ["batches"],
            "summary": "Read items",
            "operationId": "read_batch",
            "description": "Many items of a dataset in one answer. An answer without its end record was truncated: complete "
            "items count, and only the rest must be requested again.",
            "parameters": [_DATASET, *_BATCH_QUERY],
            "requestBody": _INDICES,
            "responses": _answers(
                {
                    "200": {
                        "description": "the items",
                        "headers": _DIRECTIVES,
                        "content": {
                            "application/x-larder-batch": {"schema": _BINARY},
                            "application/x-tar": {"schema": _BINARY},
                        },
                    },
                    "202": {
                        "description": "with mode=prefetch: how many are here, being fetched, and refused",
                        "headers": _DIRECTIVES,
                        "content": {"application/json": _COUNTS},
                    },
                },
                *_REFUSALS,
            ),
        }
    },
    "/v1/datasets/{name}/lookup": {
        "post": {
            "tags": ["batches"],
            "summary": "Look up cached items",
            "operationId": "look_up_items",
            "description": "Bit i of the answer, least significant first, says whether candidate i is in the cache.",
            "parameters": [_DATASET],
            "requestBody": _INDICES,
            "responses": _answers(
                {
                    "200": {
                        "description": "a bitmap",
                        "headers": _DIRECTIVES,
                        "content": {"application/octet-stream": {"schema": _BINARY}},
                    }
                },
                *_REFUSALS,
            ),
        }
    },
    "/v1/datasets/{name}/offers": {
        "get": {
            "tags": ["batches"],
            "summary": "List offered items",
            "operationId": "list_offers",
            "description": "Cached items of a static dataset that another job has consumed in its current epoch, and this job "
            "has not: they leave soon. A job that takes them shares their reads. Those that will leave first come first.",
            "parameters": [_DATASET, *_OFFERS_QUERY],
            "responses": _answers(
                {
                    "200": {
                        "description": "indices, unsigned 32-bit little-endian",
                        "headers": _DIRECTIVES,
                        "content": {"application/octet-stream": {"schema": _BINARY}},
                    }
                },
                *_REFUSALS,
            ),
        }
    },
    "/v1/blobs/lookup": {
        "post": {
            "tags": ["blobs"],
            "summary": "Look up cached blobs",
            "operationId": "look_up_blobs",
            "description": "Bit i of the answer, least significant first, says whether the fleet has the bytes of digest i in "
            "its cache, in a registered dataset or not.",
            "requestBody": {
                "required": False,
                "description": "SHA-256 digests of 32 bytes each, at most 16,384",
                "content": {"application/octet-stream": {"schema": _BINARY}},
            },
            "responses": _answers(
                {"200": {"description": "a bitmap", "content": {"application/octet-stream": {"schema": _BINARY}}}},
                ("400", "InvalidRequest, or S3's codes for a malformed signature"),
                ("403", "AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed"),
                ("413", "TooLarge"),
                ("503", "SlowDown, ServiceUnavailable; try again after Retry-After seconds"),
            ),
        }
    },
    "/v1/blobs/{digest}": {
        "get": {**_BLOB, "summary": "Read a blob", "operationId": "read_blob"},
        "head": {**_BLOB, "summary": "Get a blob's size", "operationId": "show_blob"},
    },
}


def with_data_paths(document: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAPI document with the data paths."""
    return {**document, "paths": {**document["paths"], **DATA_PATHS}}
