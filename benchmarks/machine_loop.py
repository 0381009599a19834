"""Find the longest loop of a kernel's machine code by nvdisasm: one iteration, on the path of ordinary numbers.

Compilers jump around code for rare numbers (large angles, denormal roots). So a conditional jump is taken if it leads
further down within the loop.
"""

from __future__ import annotations

import re

INSTRUCTION, LABEL = re.compile(r"/\*[0-9a-f]{4,}\*/"), re.compile(r"\s*\.L_x_(\d+):")
JUMP, AWAY = re.compile(r"BRA `\(\.L_x_(\d+)\)"), re.compile(r"@!?U?P\d+ BRA `\(\.L_x_(\d+)\)")
SHORTEST = 30
"""Minimum instructions. Shorter loops only wait, or copy."""


def longest_loop(code: str) -> list[str] | None:
    """Return the instructions of one iteration of the longest loop, or None without loops."""
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
