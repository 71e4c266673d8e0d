"""Faults injected into real gateways under verified load: ``make drill``.

Each drill starts gateways, lets clients read and write while one fault lasts, and checks every returned byte. ``make test``
does not include it, because it takes minutes and some faults need root.
"""
