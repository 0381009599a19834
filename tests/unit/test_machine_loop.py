"""Counting machine instructions: those of one time around the longest loop, without the ones jumped over."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E R2, desc[UR4][R8.64] ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   FMUL R3, R2, R2 ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0050*/                   FADD R4, R4, R3 ;
        /*0060*/               @P2 BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
"""


def test_what_is_jumped_over_and_what_is_no_part_of_the_loop_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("machine_loop")
    assert script.longest_loop(CODE) is None, "it is too short to be meant"
    monkeypatch.setattr(script, "SHORTEST", 2)
    path = script.longest_loop(CODE)
    assert [line.split("*/")[1].split(";")[0].split("`")[0].strip() for line in path] == [
        "LDG.E R2, desc[UR4][R8.64]",
        "@!P0 BRA",
        "FADD R4, R4, R3",
        "@P2 BRA",
    ]
