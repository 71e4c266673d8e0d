"""The operators' features of the gateway. The command line, the admin API and every worker go through this list."""

from gateway.feature import Feature
from gateway.operate import verify

FEATURES: tuple[Feature, ...] = (verify.FEATURE,)
