"""Every course that a small system may take: a program asks a world what happens, and is run in each world that there is."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class World:
    """One course of events. What happens at a moment is chosen when it is first asked for, and stays so.

    Args:
        choices: the number of each choice among its options, in the order of the questions; further ones are the first option.
    """

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self._choices = choices
        self._known: dict[Hashable, object] = {}
        self.made: list[tuple[int, int]] = []
        """The choices so far, each with the number of its options."""

    def choose(self, moment: Hashable, options: Sequence[T]) -> T:
        """What happens at a moment."""
        if moment not in self._known:
            place = len(self.made)
            number = self._choices[place] if place < len(self._choices) else 0
            self.made.append((number, len(options)))
            self._known[moment] = options[number]
        chosen: T = self._known[moment]  # type: ignore[assignment]
        return chosen


def worlds() -> Iterator[World]:
    """Each world once; a world must have been used before the next one is asked for."""
    choices: list[int] = []
    while True:
        world = World(choices)
        yield world
        made = world.made
        while made and made[-1][0] == made[-1][1] - 1:
            made.pop()
        if not made:
            return
        choices = [number for number, _ in made]
        choices[-1] += 1
