"""Compile a model by a plan, and return a callable with the same signature."""

from torchwise.compile.backends import Backend
from torchwise.compile.compiled_plan import CompiledPlan, compile_plan
from torchwise.compile.signature import Recognizer, Signature, is_plain, signature_of

__all__ = ["Backend", "CompiledPlan", "Recognizer", "Signature", "compile_plan", "is_plain", "signature_of"]
