"""`larder-gateway demo`: the gateway at work on one machine, with numbers that were counted while it ran."""
