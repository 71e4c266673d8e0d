"""Larder's client: standard library only, so that it can be imported in every data-loading worker at no cost.

S3 traffic needs nothing from here: any S3 client reads through the gateway by its endpoint setting. This package is for
what S3 has no words for, which today is asking a gateway whether it is there and ready.
"""

from larder.client import Client
from larder.errors import GatewayUnavailable, LarderError, UnexpectedAnswer
from larder.retry import Retry

__version__ = "0.1.0"
__all__ = ["Client", "GatewayUnavailable", "LarderError", "Retry", "UnexpectedAnswer"]
