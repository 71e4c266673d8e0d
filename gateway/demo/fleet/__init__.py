"""``make fleet``: three gateways that form one cache, as processes on one machine, and two jobs that read through them."""
