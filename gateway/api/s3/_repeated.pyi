IS: int
ITEM: int
AT: int
MOST: int
UNTIL: int
STATE: int

def answer(held: list[object], state: bytearray, head: bytes, /) -> bool: ...
