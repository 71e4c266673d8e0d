"""What the commands of ``larder-gateway`` do: a module each, whose ``add`` says what it takes.

Each function gives the exit status. Results are on standard output, with ``--json`` as one JSON document; all else that is said,
progress, hints and errors, is on standard error.
"""
