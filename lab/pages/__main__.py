"""Render pages again from their recorded numbers: ``python -m lab.pages``, or ``python -m lab.pages NAME ...``."""

import sys

from lab.pages.rendering import pages

wanted = set(sys.argv[1:])
if unknown := wanted - {page.name for page in pages()}:
    sys.exit(f"no page has recorded numbers of {', '.join(sorted(unknown))}")
for page in pages():
    if not wanted or page.name in wanted:
        page.write(page.render())
        print(page.template)
