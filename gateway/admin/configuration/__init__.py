"""Endpoints of what operators configure: tenants, credentials, origins, rules; and the audit log of changes."""
