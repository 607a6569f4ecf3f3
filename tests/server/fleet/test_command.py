"""`serve --ray` with an imitation of Ray: what Ray is asked for, what is said, and what its failures become."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from ruamel.yaml import YAML

from localagent.cli import fleet
from localagent.cli.options import ServeOptions
from localagent.errors import EngineFailed, ServerUnreachable, UsageError
from localagent.remote.server import Server
from localagent.server.access import Access
from localagent.server.fleet.plan import Plan
from localagent.server.listening import bind

NANO = ServeOptions(models=["lfm2-nano"], ray=True, port=0)
QUIET = SimpleNamespace(model_dump=lambda mode, include: dict.fromkeys(sorted(include), mode))


class RayError(Exception):
    """What Ray raises."""


class Imitation:
    """Ray, Ray Serve and the application: `done` is what was asked of them, `faults` what fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[object] = []
        self.faults: dict[str, BaseException] = {}
        self.applications: dict[str, object] = {}
        deployment = ModuleType("localagent.server.fleet.deployment")
        deployment.__dict__.update(
            NAME="localagent", QUIET=QUIET, IMPORT_PATH="a:b", application=lambda plan: plan
        )
        serve, ray, exceptions = ModuleType("ray.serve"), ModuleType("ray"), ModuleType("ray.exceptions")
        serve.__dict__.update({name: self._step(name) for name in ("start", "run", "delete")})
        serve.shutdown = self._step("serve.shutdown")
        serve.status = lambda: SimpleNamespace(applications=self.applications)
        stopped = SimpleNamespace(result=self._step("stopped"))
        serve.get_app_handle = lambda name: SimpleNamespace(stop=SimpleNamespace(remote=lambda: stopped))
        ray.__dict__.update(
            serve=serve, init=self._step("init"), shutdown=self._step("shutdown"), __path__=[]
        )
        exceptions.RayError = RayError
        for module in (ray, serve, exceptions, deployment):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        for name in fleet._ENVIRONMENT:
            monkeypatch.setenv(name, "to be put back")
            monkeypatch.delenv(name)

    def _step(self, name):
        def step(*given, **named):
            self.done.append((name, *given, named) if named else (name, *given))
            if name in self.faults:
                raise self.faults[name]

        return step


@pytest.fixture
def ray(monkeypatch):
    return Imitation(monkeypatch)


@pytest.fixture
def health(monkeypatch):
    """Asked whether the server answers; what that raises may be changed."""
    asked = SimpleNamespace(urls=[], fault=None)

    @contextmanager
    def send(server, method, path):
        asked.urls.append((method, server.url + path, server.silence))
        if asked.fault is not None:
            raise asked.fault
        yield

    monkeypatch.setattr(Server, "send", send)
    return asked


def started(options=NANO, port=7, **plan):
    """Start and end what runs; returns what was done before the end."""
    running = fleet._running(Plan(models={"m": "m"}, **plan), options, port)
    running.__enter__()
    return running


ENDED = [("stopped", {"timeout_s": 5}), ("serve.shutdown",), ("shutdown",)]


# One machine and clusters


def test_ray_is_started_on_this_machine_alone(ray, health, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(logging.getLogger("ray.serve"), "level", logging.INFO)
    running = started(replicas=(1, 2))
    plan = Plan(models={"m": "m"}, replicas=(1, 2))
    local = {"address": "local", "num_cpus": 4, "include_dashboard": False}
    assert ray.done == [
        ("init", {"logging_level": logging.ERROR, "log_to_driver": True, **local}),
        (
            "start",
            {
                "proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": 7},
                "logging_config": QUIET,
            },
        ),
        ("run", plan, {"name": "localagent", "route_prefix": "/"}),
    ]  # fmt: skip
    assert health.urls == [("GET", "http://127.0.0.1:7/health", 30)]
    assert logging.getLogger("ray.serve").level == logging.WARNING
    ray.done.clear()
    running.__exit__(None, None, None)
    assert ray.done == ENDED


@pytest.mark.parametrize(
    ("cores", "replicas", "cpus", "needed"), [(4, 8, 1, 9), (None, 1, 0.5, 1), (4, 2, 1.9, 4)]
)
def test_replicas_are_counted_for_as_many_cores_as_they_want(
    ray, health, monkeypatch, cores, replicas, cpus, needed
):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    started(replicas=(1, replicas), cpus=cpus)
    assert ray.done[0][1]["num_cpus"] == needed


def test_a_cluster_is_found_before_ray_waits_for_it(ray, health, capsys):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        options = ServeOptions(ray=True, address=address)
        running = started(options)
    assert capsys.readouterr().err == f"looking for the cluster of Ray at {address}\n"
    assert ray.done[0] == (
        "init",
        {"logging_level": logging.ERROR, "log_to_driver": True, "address": address},
    )
    assert ray.done[1][1]["proxy_location"] == "EveryNode"
    assert len(health.urls) == 1
    ray.done.clear()
    running.__exit__(None, None, None)
    assert ray.done == [("stopped", {"timeout_s": 5}), ("delete", "localagent"), ("shutdown",)], (
        "the cluster goes on"
    )


@pytest.mark.parametrize(
    ("address", "tried"),
    [("auto", None), ("ray://a.b:10", ("a.b", 10)), ("[::1]:3", ("::1", 3)), ("a:b", None), ("7", None)],
)
def test_what_is_an_address_is_tried(monkeypatch, address, tried):
    made = []

    def connect(place, timeout):
        made.append((place, timeout))
        return SimpleNamespace(close=lambda: made.append("closed"))

    monkeypatch.setattr(fleet.socket, "create_connection", connect)
    fleet._require_cluster(address)
    assert made == ([] if tried is None else [(tried, 10), "closed"])


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (OSError("timed out"), "timed out"),
        (OverflowError("port must be 0-65535."), "port must be 0-65535."),
    ],
)
def test_a_cluster_that_is_not_there(monkeypatch, fault, says):
    def refuse(*_, **__):
        raise fault

    monkeypatch.setattr(fleet.socket, "create_connection", refuse)
    with pytest.raises(UsageError) as error:
        fleet._require_cluster("a.b:99999")
    assert str(error.value) == (
        f"no cluster of Ray at a.b:99999: {says}; start one with `ray start --head`, which says its address"
    )


# What goes wrong


@pytest.mark.parametrize("kind", [ConnectionError, RuntimeError, ValueError])
def test_ray_that_does_not_start_is_one_line(ray, kind):
    ray.faults["init"] = kind("Traceback\n  of it\nno room\n\n")
    with pytest.raises(UsageError) as error:
        started()
    assert str(error.value) == "Ray does not start here: no room"
    with pytest.raises(UsageError) as error:
        started(ServeOptions(ray=True, address="auto"))
    assert str(error.value) == (
        "Ray does not start to the cluster at auto (if it asks for a token: RAY_AUTH_MODE=token): no room"
    )


def test_a_cluster_that_serves_already_is_left_alone(ray):
    ray.applications["localagent"] = object()
    with pytest.raises(UsageError) as error:
        started(ServeOptions(ray=True, address="auto"))
    assert str(error.value) == (
        "the cluster at auto serves localagent already: end that first, with `serve shutdown`"
    )
    assert [each[0] for each in ray.done] == ["init", "shutdown"]


@pytest.mark.parametrize("step", ["start", "run"])
@pytest.mark.parametrize("kind", [RuntimeError, RayError])
def test_replicas_that_do_not_start_are_one_line_and_ended(ray, health, step, kind):
    ray.faults[step] = kind("at\n last ")
    with pytest.raises(EngineFailed) as error:
        started()
    assert str(error.value) == "the replicas could not be started: last"
    assert ray.done[-3:] == ENDED
    message = (
        "Traceback:\nray.x: localagent.errors.UsageError: no room\nlocalagent.errors.A: no weights\nmore"
    )
    deployments = {"m": SimpleNamespace(message="nothing"), "n": SimpleNamespace(message=message)}
    ray.applications["localagent"] = SimpleNamespace(deployments=deployments)
    with pytest.raises(EngineFailed, match=r"^the replicas could not be started: no weights$"):
        started()


def test_whatever_else_goes_wrong_ends_what_runs(ray, health):
    ray.faults["run"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        started()
    assert ray.done[-3:] == ENDED
    ray.faults = {"stopped": RuntimeError("there is none"), "run": ray.faults["run"]}
    with pytest.raises(KeyboardInterrupt):
        started()
    assert ray.done[-3:] == ENDED


def test_ray_that_says_nothing():
    assert fleet._line("\n \n") == "Ray does not say why"
    assert fleet._line("a\n b \n\n") == "b"


def test_ray_may_listen_elsewhere(ray, health):
    health.fault = ServerUnreachable("refused")
    with pytest.raises(EngineFailed) as error:
        started(ServeOptions(ray=True, host="0.0.0.0"))
    assert str(error.value) == (
        "Ray Serve does not listen on http://127.0.0.1:7: where it runs already, give the --host and --port "
        "that it was started with"
    )
    assert ray.done[-3:] == ENDED
    health.fault = None
    started()  # it answers, whatever it says
    health.urls.clear()
    health.fault = ServerUnreachable("refused")
    with socket.create_server(("127.0.0.1", 0)) as head:
        started(ServeOptions(ray=True, address=f"ray://127.0.0.1:{head.getsockname()[1]}"))
    assert health.urls == [], "this machine is no part of that cluster"


# The command


@pytest.mark.parametrize(
    ("replicas", "told"), [(None, "1 replica"), ("2", "2 replicas"), ("0:3", "0 to 3 replicas")]
)
def test_it_serves_until_a_signal_comes(ray, health, monkeypatch, capsys, replicas, told):
    handlers = {}

    class Event:
        came = False

        def set(self):
            self.came = True

        def wait(self):
            assert capsys.readouterr().err.startswith("localagent "), "it says where it listens"
            assert {*handlers} == {signal.SIGINT, signal.SIGTERM}
            for handler in handlers.values():
                self.came = False
                handler(0, None)
                assert self.came

    said = []
    monkeypatch.setattr(fleet, "threading", SimpleNamespace(Event=Event))
    monkeypatch.setattr(fleet.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(
        fleet, "welcome", lambda *given: said.append(given) or fleet.say("localagent listens")
    )
    options = ServeOptions(models=["lfm2-nano"], ray=True, port=0, replicas=replicas, lanes=2)
    fleet.serve_fleet(options)
    [(url, models, access, given)] = said
    port = ray.done[1][1]["http_options"]["port"]
    assert (url, models, given) == (f"http://127.0.0.1:{port}", [f"lfm2-nano ({told})"], options)
    assert access == Access("127.0.0.1", page=True)
    assert ray.done[-3:] == ENDED
    assert capsys.readouterr().err == "stopping\nstopped\n"
    assert {name: os.environ[name] for name in fleet._ENVIRONMENT} == fleet._ENVIRONMENT


def test_what_the_user_has_set_for_ray_stays(ray, health, monkeypatch, capsys):
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")
    fleet.serve_fleet(ServeOptions(models=["lfm2-nano"], ray=True, print_config=True))
    assert os.environ["RAY_DEDUP_LOGS"] == "1"
    written = YAML(typ="safe").load(capsys.readouterr().out)
    assert written["http_options"] == {"host": "127.0.0.1", "port": 8080}
    assert written["proxy_location"] == "EveryNode"
    assert written["logging_config"] == {"enable_access_log": "json", "log_level": "json"}
    [application] = written["applications"]
    weights = application["args"]["models"]["lfm2-nano"]
    assert application == {
        "name": "localagent", "route_prefix": "/", "import_path": "a:b", "args": {"models": {"lfm2-nano": weights}},
    }  # fmt: skip
    assert ray.done == [], "nothing is started"


def test_every_option_is_a_part_of_the_plan(monkeypatch, tmp_path):
    monkeypatch.setattr(
        fleet,
        "fetched",
        lambda asked, options: (asked[:1], {"b": Path("b.gguf")}.get(asked, asked), None, None),
    )
    monkeypatch.setattr(fleet, "wanted", lambda options: ["a1", "b"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options = ServeOptions(
        aliases=["x*=a", "y=b"], replicas="1:3", models_per_replica=1, lanes=2, gpus=0.5, backend="mlx", dialect="lfm2",
        context=9, threads=3, host="::1", api_key_file=Path("~/keys"), origins=["http://a"], no_page=True,
        allow_hosts=["x.lan"],
        share_prefixes=True, max_queue=5, deadline=6, metrics=True, buffer_tool_calls=False, log_prompts=True,
    )  # fmt: skip
    assert fleet._plan(options, Access(keys=("k",))) == Plan(
        models={"a": "a1", "b": str(tmp_path / "b.gguf")}, replicas=(1, 3), models_per_replica=1, lanes=2, gpus=0.5,
        backend="mlx", dialect="lfm2", context=9, threads=3, host="::1", needs_key=True,
        api_key_file=tmp_path / "home" / "keys", origins=("http://a",), allow_hosts=("x.lan",), aliases=(("x*", "a"), ("y", "b")), page=False,
        share_prefixes=True, max_queue=5, deadline=6, metrics=True, buffer_tool_calls=False, log_prompts=True,
    )  # fmt: skip
    assert fleet._plan(ServeOptions(), Access()) == Plan(models={"a": "a1", "b": str(tmp_path / "b.gguf")})
    for more, says in (
        (["c=z"], "--alias c=z: 'z' is not served; served are a, b"),
        (["c"], "--alias is 'c': write it like 'claude-*=NAME'"),
    ):
        with pytest.raises(UsageError) as error:
            fleet._plan(ServeOptions(aliases=more), Access())
        assert str(error.value) == says
    for asked, says in (
        (["a1", "a2"], "--model a is given twice"),
        (["vllm://a/b"], "vllm://a/b runs on a server already, and not in replicas: serve it without --ray"),
    ):
        monkeypatch.setattr(fleet, "wanted", lambda options, asked=asked: asked)
        with pytest.raises(UsageError) as error:
            fleet._plan(ServeOptions(), Access())
        assert str(error.value) == says


def test_a_port_must_be_free_here_and_may_be_taken_on_a_cluster():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is taken"):
            fleet._free_port(ServeOptions(port=port))
        assert fleet._free_port(ServeOptions(port=port, address="auto")) == port
    assert fleet._free_port(ServeOptions(port=0, address="auto")) > 0
    assert fleet._free_port(ServeOptions(port=0)) > 0
    assert fleet._free_port(ServeOptions(port=port)) == port
