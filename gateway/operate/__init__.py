"""Operators' features, one folder each: its work, its addresses, its command. The package of each declares the feature."""
