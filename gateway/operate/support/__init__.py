"""Support: what others need to diagnose a fleet."""

from gateway.feature import Command, Feature

FEATURE = Feature(
    commands=(
        Command(
            107,
            "support",
            "gateway.operate.support.command",
            "one archive of state, configuration and logs, without secrets",
        ),
    ),
)
