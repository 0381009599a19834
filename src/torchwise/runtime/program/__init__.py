"""A whole program: record which modules it calls, tune each on its real inputs, and put the plans in place.

Its names are loaded on first use, so that the command line starts without torch.
"""

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.runtime.program.recorder import CallRecorder
    from torchwise.runtime.program.stored import StoredPlans
    from torchwise.runtime.program.tuned import OptimizedProgram, TunedProgram
    from torchwise.runtime.program.tuning import optimize_program, tune_program

__all__ = ["CallRecorder", "OptimizedProgram", "StoredPlans", "TunedProgram", "optimize_program", "tune_program"]

__getattr__ = load_attributes(
    __name__,
    {
        "CallRecorder": "recorder",
        "OptimizedProgram": "tuned",
        "StoredPlans": "stored",
        "TunedProgram": "tuned",
        "optimize_program": "tuning",
        "tune_program": "tuning",
    },
)
