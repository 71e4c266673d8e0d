from collections.abc import Callable

IS: int
ITEM: int
AT: int
MOST: int
UNTIL: int

class Heads:
    def __init__(
        self,
        reads: object,
        shape: bytes,
        slots: tuple[tuple[int, int], ...],
        order: tuple[int, ...],
        date: int,
        signature: int,
        /,
    ) -> None: ...
    @property
    def answer(self) -> Callable[[bytes], bool]: ...
