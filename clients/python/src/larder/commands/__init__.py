"""What the subcommands of ``larder`` do. Each gives the exit status: 0, or 1 when it found what it was to look for."""
