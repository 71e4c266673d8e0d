"""The commands of ``larder-gateway``, one module each; its ``add`` defines the arguments.

A command returns the exit status. Results go to standard output, with ``--json`` as one JSON document; progress, hints and errors
go to standard error.
"""
