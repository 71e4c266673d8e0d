"""Endpoints of the run-time configuration (tenants, credentials, origins, rules), and the audit log of changes."""
