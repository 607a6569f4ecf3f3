"""The agent loop: a model, its tools, and everything between a request and its answer."""

from localagent.agent.agent import Agent
from localagent.agent.approvals import Approvals, Approver
from localagent.agent.builtin import ClipResults, LogMessages, StripImages
from localagent.agent.compaction import Compaction
from localagent.agent.events import (
    AgentEvent,
    ApprovalAsked,
    ApprovalGiven,
    CompactionEnded,
    CompactionStarted,
    HandedOver,
    Retried,
    RunDone,
    RunFailed,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from localagent.agent.handover import HandOver, hand_over_to
from localagent.agent.history import History, ListHistory, SessionHistory
from localagent.agent.middleware import ModelRequest, middleware
from localagent.agent.rules import Allow, ApprovalRequest, Decision, Deny, Edit, Rule
from localagent.agent.run import Run

__all__ = [
    "Agent",
    "AgentEvent",
    "Allow",
    "ApprovalAsked",
    "ApprovalGiven",
    "ApprovalRequest",
    "Approvals",
    "Approver",
    "ClipResults",
    "Compaction",
    "CompactionEnded",
    "CompactionStarted",
    "Decision",
    "Deny",
    "Edit",
    "HandOver",
    "HandedOver",
    "History",
    "ListHistory",
    "LogMessages",
    "ModelRequest",
    "Retried",
    "Rule",
    "Run",
    "RunDone",
    "RunFailed",
    "SessionHistory",
    "StripImages",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "TurnEnded",
    "TurnStarted",
    "hand_over_to",
    "middleware",
]
