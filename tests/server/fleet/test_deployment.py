"""What Ray Serve is told of a plan, and the application that it starts: no cluster runs here."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from localagent.errors import EngineFailed
from localagent.server.access import Access
from localagent.server.bounds import Bounds
from localagent.server.fleet.model import Failed
from localagent.server.fleet.plan import Plan
from parsers import DIALECTS

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
# What Ray means to have in its place is set for a whole cluster, and not by an application.
pytestmark = pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")

LEAST = {"models": {"a": "/weights/a.gguf"}}
ALL: dict[str, Any] = {
    "models": {"a": "/weights/a.gguf", "b": "hf:owner/b"}, "replicas": (1, 4), "lanes": 3, "cpus": 2, "gpus": 0.5,
    "scale_up_after": 20, "scale_down_after": 200, "health_every": 7, "grace": 9, "servers": 2, "host": "0.0.0.0",
    "allow_hosts": ("x.lan",), "origins": ("http://x.example",), "aliases": (("gpt-*", "b"),), "page": False, "share_prefixes": True,
    "max_queue": 5, "deadline": 77, "metrics": True, "buffer_tool_calls": False, "log_prompts": True,
}  # fmt: skip


def told(plan: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Ray is told of the server and of the replicas, as far as it was told anything."""
    from localagent.server.fleet.deployment import application

    server: Any = application(plan)._bound_deployment
    models = server.init_args[1]._bound_deployment
    assert server.init_args[0] == models.init_args[0] == Plan.model_validate(plan)
    found = []
    for each in (server, models):
        given = each._deployment_config.model_dump()
        names = given["user_configured_option_names"] - {"_init_args", "_init_kwargs"}
        options = {name: given[name] for name in names if name in given}
        found.append({**options, "name": each.name, "ray_actor_options": each.ray_actor_options})
    return found[0], found[1]


QUIET = {"encoding": "TEXT", "log_level": "WARNING", "logs_dir": None, "enable_access_log": False}


@pytest.mark.parametrize(
    ("plan", "servers", "grace", "health"), [(LEAST, 1, 60, 5), (ALL, 2, 9, 7)], ids=["least", "all"]
)
def test_what_ray_is_told_of_the_server(plan, servers, grace, health):
    server, _ = told(plan)
    assert server.pop("logging_config").items() >= QUIET.items()
    assert server == {
        "name": "server",
        "num_replicas": servers,
        "max_ongoing_requests": Bounds().connections,
        "ray_actor_options": {"num_cpus": 0},
        "health_check_period_s": health,
        "graceful_shutdown_timeout_s": grace,
    }


@pytest.mark.parametrize(
    ("plan", "scaling", "others"),
    [
        (LEAST, (1, 1, 8, 10, 300, 10, 2), (24, 1, 0, 5, 60, 8)),
        (ALL, (1, 4, 3, 20, 200, 20, 4), (9, 2, 0.5, 7, 9, 3)),
    ],
    ids=["least", "all"],
)
def test_what_ray_is_told_of_the_replicas(plan, scaling, others):
    _, models = told(plan)
    names = (
        *("min_replicas", "max_replicas", "target_ongoing_requests", "upscale_delay_s", "downscale_delay_s"),
        *("look_back_period_s", "metrics_interval_s"),
    )
    scales = models.pop("autoscaling_config")
    assert tuple(scales[name] for name in names) == scaling
    router = models.pop("request_router_config")
    assert router["request_router_class"] == "localagent.server.fleet.router.PrefixRouter"
    ongoing, cpus, gpus, health, grace, lanes = others
    assert router["request_router_kwargs"] == {"lanes": lanes}
    assert models.pop("logging_config").items() >= QUIET.items()
    assert models == {
        "name": "models",
        "max_ongoing_requests": ongoing,
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "health_check_period_s": health,
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": grace,
        "max_constructor_retry_count": 3,
    }


def test_a_plan_stays_as_it_was_checked():
    plan = Plan.model_validate(LEAST)
    with pytest.raises(ValidationError):
        plan.lanes = 2
    assert plan.model_dump() == {
        "models": LEAST["models"], "replicas": (1, 1), "models_per_replica": None, "lanes": None, "cpus": 1, "gpus": 0,
        "scale_up_after": 10, "scale_down_after": 300, "health_every": 5, "grace": 60, "backend": None, "dialect": None,
        "context": None, "threads": None, "offline": None, "servers": 1, "host": "127.0.0.1", "api_key_file": None,
        "needs_key": False, "allow_hosts": (), "origins": (), "aliases": (), "page": True, "share_prefixes": False, "max_queue": 64,
        "deadline": 3600, "metrics": False, "buffer_tool_calls": True, "log_prompts": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "least", "wrong"),
    [
        ("models_per_replica", 1, 0),
        ("lanes", 1, 0),
        ("cpus", 0, -1),
        ("gpus", 0, -0.5),
        ("scale_up_after", 0.1, 0),
        ("grace", 0.1, 0),
        ("servers", 1, 0),
        ("max_queue", 0, -1),
        ("replicas", (0, 1), (-1, 1)),
        ("replicas", (2, 2), (2, 1)),
    ],
)
def test_the_least_that_a_plan_may_ask_for(field, least, wrong):
    assert getattr(Plan.model_validate(LEAST | {field: least}), field) == least
    with pytest.raises(ValidationError, match=field):
        Plan.model_validate(LEAST | {field: wrong})


class Handle:
    """Of replicas that answer what a test wrote down."""

    def __init__(self, *replies: Any) -> None:
        self.replies = [*replies]
        self.options_given: list[dict[str, Any]] = []
        self.asked: list[Any] = []

    def options(self, **given: Any) -> Handle:
        self.options_given.append(given)
        return self

    def remote(self, *given: Any) -> Any:
        self.asked.append(given)
        return SimpleNamespace(result=lambda: self.replies.pop(0))


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Builds the application of a plan; what it said of the log is kept."""
    from localagent.server.fleet import deployment

    logs: list[Any] = []
    monkeypatch.setattr(deployment, "log_to_standard_error", lambda *given: logs.append(given))
    monkeypatch.setenv("LOCALAGENT_API_KEYS", "first")
    (tmp_path / "keys").write_text("second\n")

    def made(plan: dict[str, Any], handle: Any = None) -> tuple[Any, Any, list[Any]]:
        given = {"api_key_file": tmp_path / "keys"} if plan is ALL else {}
        server = deployment.Server(Plan.model_validate(plan | given), handle or Handle())
        return server, server.__serve_build_asgi_app__(), logs

    return made


def test_the_application_is_that_of_one_process(build):
    server, app, logs = build(ALL)
    service = server._service
    assert logs == [(True, sys.__stderr__)]
    assert service.access == Access(
        "0.0.0.0", ("first", "second"), ("http://x.example",), page=False, share=True, allow_hosts=("x.lan",)
    )
    assert service.bounds == Bounds(queue=5, deadline=77)
    assert (service.offers_metrics, service.log_prompts, service.buffer_tool_calls) == (True, True, False)
    assert [*service.pool.served] == ["a", "b"]
    assert service.pool.find("gpt-5").name == "b"
    assert service.pool.served["a"].queue._most == 5
    assert "/v1/chat/completions" in {route.path for route in app.routes}
    least, _, _ = build(LEAST)
    assert least._service.access == Access("127.0.0.1", ("first",), page=True)
    assert not (least._service.offers_metrics or least._service.log_prompts)


def test_a_model_is_loaded_by_a_replica(build):
    described = {
        "context": 4096, "architecture": "lfm2", "engine": "llama.cpp", "template_source": None,
        "lanes": 3, "dialect": DIALECTS["lfm2"],
    }  # fmt: skip
    handle = Handle(described, Failed(EngineFailed("no room")))
    server, _, _ = build(ALL, handle)
    pool = server._service.pool
    pool.begin_with("b")
    model: Any = pool.served["b"].model
    assert handle.options_given[-1] == {"method_name": "described", "multiplexed_model_id": "b"}
    assert handle.asked == [("b",)]
    assert (model.name, model.lanes, model.dialect.name, model.handle) == ("b", 12, "lfm2", handle)
    assert (model.host.context, model.host.engine, model.host.architecture) == (4096, "llama.cpp", "lfm2")
    with pytest.raises(EngineFailed, match=r"^no room$"):
        pool.begin_with("a")


def test_nothing_is_unloaded_from_here_and_the_end_is_that_of_the_service(build):
    server, _, _ = build(LEAST)
    assert not server._service.pool._unloads
    asyncio.run(server.stop())
    assert server._service.stopping
