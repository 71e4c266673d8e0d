"""The admin application under ``/-/admin``."""
