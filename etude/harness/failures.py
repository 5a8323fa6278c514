"""What can go wrong, and whose it is.

A tool's error is an observation of one of the classes below: the model reads it and goes on. Whatever else a tool
raises is one of them: a model that found such a call could otherwise discard its rollouts at will. Failures with
no call of the model behind them end the rollout without a score: `PolicyFailure`, `HarnessFailure`, and the sandbox's
own `SandboxFailure`, which passes through here untouched but for what there was until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from etude.sandbox.base import SandboxFailure

if TYPE_CHECKING:
    from etude.harness.trajectory import Trajectory

ErrorClass = Literal[
    "InvalidArguments",  # the call itself is wrong: no such tool, a missing or unreadable argument
    "UnexpectedEnvironment",  # the call is right, the files are not as the model thought: no such file, no such text
    "Unavailable",  # there is such a tool, and this environment does not have it, or not what it needs
    "ProviderError",  # a service behind the tool failed
    "UserAborted",  # a person said no
    "Timeout",  # the tool's time was over
    "HarnessBug",  # none of these: ours to mend; the model sees that the call failed, and not how
]


class ToolError(Exception):
    """A tool cannot do what it was asked: becomes an observation. Its text is for the model: short, without times."""

    def __init__(self, error: ErrorClass, text: str) -> None:
        super().__init__(text)
        self.error: ErrorClass = error
        self.text = text


class PolicyFailure(Exception):
    """The policy gave no usable sample in time: nobody's score. `trajectory` is what there was until then.

    Without `retry` it is not tried again: with the same seed it would take as long again, and trying until an answer
    is fast enough would leave out the long ones.
    """

    def __init__(self, message: str, trajectory: Trajectory | None = None, *, retry: bool = True) -> None:
        super().__init__(message)
        self.trajectory = trajectory
        self.retry = retry


class TurnRefused(Exception):
    """The chat template refuses what the model's own turn led to: the model's result, a malformed turn."""


class HarnessFailure(Exception):
    """The rollout could not be set up, or could not go on whatever the model said: a bug or a wrong setting of ours."""

    def __init__(self, message: str, trajectory: Trajectory | None = None) -> None:
        super().__init__(message)
        self.trajectory = trajectory


class SandboxLost(SandboxFailure):
    """The agent's sandbox failed under it. Whose doing that was is for the rollout to find out."""

    def __init__(self, failure: SandboxFailure, trajectory: Trajectory) -> None:
        super().__init__(failure.cause, str(failure))
        self.trajectory = trajectory
