"""`larder-gateway demo`: a gateway on one machine, with measured numbers."""
