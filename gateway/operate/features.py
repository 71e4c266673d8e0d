"""The operators' features of the gateway. The command line, the admin API and every worker go through this list."""

from gateway.feature import Feature
from gateway.operate import browse, explain, purge, status, support, traffic, verify, warm

FEATURES: tuple[Feature, ...] = (
    browse.FEATURE,
    explain.FEATURE,
    purge.FEATURE,
    status.FEATURE,
    support.FEATURE,
    traffic.FEATURE,
    verify.FEATURE,
    warm.FEATURE,
)
