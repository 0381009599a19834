"""The longest loop of a kernel's machine code, as nvdisasm writes it: one time around, on the way of ordinary numbers.

Compilers jump around what rare numbers need (large angles, denormal roots): where a conditional jump leads further down
within the loop, it is taken.
"""

from __future__ import annotations

import re

INSTRUCTION, LABEL = re.compile(r"/\*[0-9a-f]{4,}\*/"), re.compile(r"\s*\.L_x_(\d+):")
JUMP, AWAY = re.compile(r"BRA `\(\.L_x_(\d+)\)"), re.compile(r"@!?U?P\d+ BRA `\(\.L_x_(\d+)\)")
SHORTEST = 30
"""Instructions; shorter loops only wait, or copy."""


def longest_loop(code: str) -> list[str] | None:
    """Return the instructions of the longest loop, one time around; None where there is none."""
    lines, labels = [], {}
    for line in code.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(lines)
        elif INSTRUCTION.search(line):
            lines.append(line)
    backwards = [
        (labels[jump[1]], place)
        for place, line in enumerate(lines)
        if (jump := JUMP.search(line)) and labels[jump[1]] < place - SHORTEST
    ]
    if not backwards:
        return None
    place, last = max(backwards, key=lambda ends: ends[1] - ends[0])
    path = []
    while place <= last:
        path.append(lines[place])
        jump = AWAY.search(lines[place])
        place = labels[jump[1]] if jump and place < labels[jump[1]] <= last else place + 1
    return path
