"""Warm-ups: the fleet loads objects or datasets before they are needed; profiles record a job's reads, to load them again."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(
        Command(
            301,
            "warm",
            "gateway.operate.warm.command",
            "read a prefix, object or dataset into the cache before it is needed",
        ),
        Command(
            205,
            "profiles",
            "gateway.operate.warm.profiles_command",
            "record the reads of a job, and replay them as a warm-up",
            "list",
        ),
    ),
    endpoints=(Endpoints(190, "gateway.operate.warm.api"), Endpoints(200, "gateway.operate.warm.profiles_api")),
    wiring="gateway.operate.warm.wiring",
    follows=True,
)
