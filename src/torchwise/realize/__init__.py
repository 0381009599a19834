"""From a plan and a model to something that can be called."""

from torchwise.realize.backends import Backend
from torchwise.realize.realize import Realized, realize
from torchwise.realize.signature import Recognizer, Signature, is_plain, signature_of

__all__ = ["Backend", "Realized", "Recognizer", "Signature", "is_plain", "realize", "signature_of"]
