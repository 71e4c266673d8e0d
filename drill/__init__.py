"""Faults injected into real gateways under verified load: ``make drill``.

Each drill starts gateways, lets clients read and write while one fault lasts, and checks every byte that comes back. It is no
part of ``make test``: it takes minutes, and some faults need root.
"""
