"""``python -m larder`` is the command ``larder``."""

import sys

from larder.cli import main

sys.exit(main())
