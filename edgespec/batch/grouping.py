"""Groups the lines of a file by the model that answers them, so that each model is loaded once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from edgespec.batch.answered import Answered, KeySet
from edgespec.batch.lines import BatchRequest, LineError, parse_line, request_key

Lines = Iterator[tuple[int, bytes | None]]


class LineGroups:
    """The group of each line of a file; group 0 needs no model.

    It has the lines that are invalid, repeat a custom_id, were answered by an earlier run, or name
    no usable model.
    """

    def __init__(
        self, lines: Lines, group_of: Callable[[BatchRequest], int], earlier: Answered
    ) -> None:
        """Read all `lines`; `group_of` gives the group of a valid one."""
        self._groups = array("H")
        """Groups by the number of the line."""
        seen = KeySet()
        for number, text in lines:
            self._groups.extend([0] * (number + 1 - len(self._groups)))
            try:
                request = parse_line(text or b"")
            except LineError:
                continue
            is_done = request_key(request.custom_id) in earlier.answered
            if seen.add(request.custom_id) and not is_done:
                self._groups[number] = group_of(request)

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def of(self, group: int, lines: Lines) -> Lines:
        """Those of `lines` that are in `group`; lines that came later are for the next run."""
        for number, text in lines:
            if number < len(self._groups) and self._groups[number] == group:
                yield number, text
