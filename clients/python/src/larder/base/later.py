"""Names of ``typing`` that Python 3.10 does not have. There they are placeholders at run time: annotations are not evaluated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    from typing import Required, Self, Unpack
elif TYPE_CHECKING:
    from typing_extensions import Required, Self, Unpack
else:
    Required = Self = Unpack = list  # any subscriptable name

__all__ = ["Required", "Self", "Unpack"]
