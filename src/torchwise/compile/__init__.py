"""Compile a model by a plan, and return a callable with the same signature."""

from torchwise.compile.backends import Backend
from torchwise.compile.backends.shares import tell_shares
from torchwise.compile.compiled_plan import CompiledPlan, compile_plan
from torchwise.compile.recognizer import Recognize, Recognizer, make_recognizer
from torchwise.compile.signature import Signature, is_plain, signature_of

__all__ = [
    "Backend",
    "CompiledPlan",
    "Recognize",
    "Recognizer",
    "Signature",
    "compile_plan",
    "is_plain",
    "make_recognizer",
    "signature_of",
    "tell_shares",
]
