"""``python -m gateway`` that prints, at its end, the modules that it imported."""

import sys

from gateway.cli import main

before = set(sys.modules)
try:
    sys.exit(main())
finally:
    print("imported", *sorted(set(sys.modules) - before), flush=True)
