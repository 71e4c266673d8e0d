"""Traffic: requests by tenant and bucket, missed prefixes, and requests followed live.

The counts themselves are the engine's (gateway/engine/operations): the S3 edge adds each answer to them.
"""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(
        Command(
            102, "traffic", "gateway.operate.traffic.command", "requests by tenant and bucket, and missed prefixes"
        ),
        Command(104, "trace", "gateway.operate.traffic.trace_command", "follow requests while they are answered"),
    ),
    endpoints=(Endpoints(100, "gateway.operate.traffic.api"), Endpoints(120, "gateway.operate.traffic.requests_api")),
)
