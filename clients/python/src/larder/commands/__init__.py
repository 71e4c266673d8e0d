"""The subcommands of ``larder``. Each returns the exit status: 0, or 1 for a finding or failure."""
