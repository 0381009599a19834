"""The loop: ask for a plan, launch a trial, store it, and in the end decide."""

from torchwise.study.listener import Listener, Silent
from torchwise.study.request import Request
from torchwise.study.run import run_study

__all__ = ["Listener", "Request", "Silent", "run_study"]
