"""What the admin endpoints have in common: tokens, documents, requests, and the endpoints of a kind of record."""
