"""``make fleet``: three gateways that are one cache, as processes of one machine, and two jobs that read through them."""
