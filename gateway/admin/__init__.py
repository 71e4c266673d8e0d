"""The admin application: what operators may ask and change, under ``/-/admin``."""
