"""What `serve` makes of its options and says, and how it ends, without a model: tests/server has the server itself."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.cli.options import ServeOptions
from localagent.errors import EngineFailed, UsageError
from localagent.remote.address import Address
from localagent.server.access import Access
from localagent.server.bounds import Bounds

serve = importlib.import_module("localagent.cli.serve")


@pytest.fixture
def server(monkeypatch):
    """Everything that `serve` starts; what is done while it serves may be put into `meanwhile`."""
    seen = SimpleNamespace(meanwhile=lambda: None, handlers={}, exits=[], logs=[], should_exit=False)
    seen.handle_exit = lambda *_: None
    seen.lanes, seen.hangs, seen.names = 3, False, ("one", "two")

    def pool(options, end, owner):
        seen.end, seen.owner = end, owner
        served = {name: SimpleNamespace(name=name, model=None) for name in seen.names}
        served[seen.names[0]].model = SimpleNamespace(lanes=seen.lanes) if seen.lanes else None
        return SimpleNamespace(served=served, hangs=seen.hangs)

    def service(*given, **named):
        seen.service = (*given, named)
        return SimpleNamespace(stop="stop")

    def listener(app, bounds, stop):
        seen.app, seen.bounds, seen.stop = app, bounds, stop

        def run(sockets):
            seen.port = sockets[0].getsockname()[1]
            seen.meanwhile()

        seen.run = run
        return seen

    monkeypatch.setattr(serve, "_pool", pool)
    monkeypatch.setattr("localagent.server.app.all_wires", lambda: "wires")
    monkeypatch.setattr("localagent.server.app.create_app", lambda service, wires: (service.stop, wires))
    monkeypatch.setattr("localagent.server.listening.listener", listener)
    monkeypatch.setattr("localagent.server.service.Service", service)
    monkeypatch.setattr("localagent.server.service.log_to_standard_error", seen.logs.append)
    monkeypatch.setattr(serve.signal, "signal", seen.handlers.__setitem__)
    monkeypatch.setattr(serve, "version", lambda: "1.2")
    monkeypatch.setattr(serve, "os", SimpleNamespace(name=os.name, _exit=seen.exits.append))
    return seen


WELCOME = """\
localagent 1.2 listens on http://127.0.0.1:PORT
  models     one (3 answers at once)
             when they are asked for: two
  page       http://127.0.0.1:PORT
  OpenAI     base URL http://127.0.0.1:PORT/v1
  Anthropic  ANTHROPIC_BASE_URL=http://127.0.0.1:PORT
  Ollama     OLLAMA_HOST=http://127.0.0.1:PORT
  programs   localagent connect NAME --url http://127.0.0.1:PORT
  API key    any: none is checked
stopped
"""


def test_it_listens_says_how_to_connect_and_ends(server, capsys):
    serve.serve(ServeOptions(port=0))
    assert capsys.readouterr().err == WELCOME.replace("PORT", str(server.port))
    bounds = Bounds(queue=64, deadline=3600)
    pool, access, given, named = server.service
    assert [*pool.served] == ["one", "two"]
    assert (access, given) == (Access(page=True), bounds)
    assert named == {"metrics": False, "log_prompts": False, "buffer_tool_calls": True, "pulling": None}
    assert (server.app, server.bounds, server.stop) == (("stop", "wires"), bounds, "stop")
    assert (server.logs, server.exits) == ([False], [])
    assert server.handlers == dict.fromkeys((signal.SIGINT, signal.SIGTERM), server.handle_exit)


def test_options_reach_the_server(server, capsys):
    server.lanes, server.names = 0, ("one",)
    serve.serve(
        ServeOptions(
            port=0, host="localhost", max_queue=5, deadline=6, drain=0.5, metrics=True, log_prompts=True, buffer_tool_calls=False,
            no_page=True, share_prefixes=True, origins=["http://a"], allow_hosts=["x.lan"],
        )
    )  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"localagent 1.2 listens on http://localhost:{server.port}"
    assert said[1] == "  models     one (0 answers at once)"
    assert said[2].startswith("  OpenAI "), "there is no page, and no other model"
    assert said[-2:] == ["  what is asked and answered is logged here", "stopped"]
    _, access, bounds, named = server.service
    assert access == Access("localhost", origins=("http://a",), share=True, allow_hosts=("x.lan",))
    assert bounds == Bounds(queue=5, deadline=6, drain=0.5)
    assert named == {"metrics": True, "log_prompts": True, "buffer_tool_calls": False, "pulling": None}
    assert server.logs == [True]


def test_an_engine_that_is_given_up_ends_it(server, capsys):
    server.meanwhile = lambda: server.end("no memory for it")
    with pytest.raises(EngineFailed, match=r"^no memory for it$"):
        serve.serve(ServeOptions(port=0))
    assert server.should_exit
    assert "stopped" not in capsys.readouterr().err


def test_an_engine_that_hangs_does_not_keep_the_process(server, capsys):
    server.hangs = True
    serve.serve(ServeOptions(port=0))
    assert server.exits == [False]
    server.meanwhile = lambda: server.end("it hangs")
    serve.serve(ServeOptions(port=0))
    assert server.exits == [False, True]
    assert capsys.readouterr().err.splitlines()[-1] == "stopped: it hangs"


def test_other_machines_are_told_of_and_need_a_key(tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    for mode, warned in ((0o600, False), (0o640, True), (0o604, True)):
        keys.chmod(mode)
        access = serve.access_for(ServeOptions(host="0.0.0.0", api_key_file=keys))
        assert access == Access("0.0.0.0", ("secret",), page=True)
        expected = (
            f"warning: other users of this machine can read {keys}: chmod 600 {keys}\n" if warned else ""
        )
        assert capsys.readouterr().err == expected
    serve.welcome("http://a:1", ["m", "n", "o"], access, ServeOptions(no_page=True))
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(" listens on http://a:1, for other machines, too")
    assert said[2] == "             when they are asked for: n, o"
    assert said[-1] == "  API key    one of yours"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7"), ("0.0.0.0", "http://127.0.0.1:7"), ("::", "http://[::1]:7"),
        ("::1", "http://[::1]:7"), ("fe80::2", "http://[fe80::2]:7"), ("a.b", "http://a.b:7"),
    ],
)  # fmt: skip
def test_where_programs_on_this_machine_reach_it(host, url):
    assert serve.url_of(host, 7) == url


@pytest.mark.parametrize(("text", "found"), [("a*=b", ("a*", "b")), ("a=b=c", ("a", "b=c"))])
def test_an_alias_is_a_pattern_and_a_name(text, found):
    assert serve.alias_of(text) == found


@pytest.mark.parametrize("text", ["a", "=b", "a=", "=", ""])
def test_what_is_no_alias(text):
    with pytest.raises(UsageError) as error:
        serve.alias_of(text)
    assert str(error.value) == f"--alias is {text!r}: write it like 'claude-*=NAME'"


# Models


@pytest.fixture
def loaded(monkeypatch):
    """What is loaded and pulled instead of weights."""

    seen = SimpleNamespace(loads=[], pulls=[], answer=SimpleNamespace(name="there"))

    def load(*given, **named):
        seen.loads.append((*given, named))
        return seen.answer

    def locate(asked, backend):
        if asked.startswith("/"):
            return Path(asked), backend
        return SimpleNamespace(name=asked.upper(), dialect="hermes"), backend or "llamacpp"

    def pull(_, spec, engine, report):
        seen.pulls.append((spec.name, engine))
        return Path("/store", spec.name)

    monkeypatch.setattr("localagent.model.load_weights", load)
    monkeypatch.setattr("localagent.model.load_served", load)
    monkeypatch.setattr("localagent.model.locate", locate)
    monkeypatch.setattr("localagent.store.WeightStore.pull", pull)
    monkeypatch.setattr("localagent.server.weights.read_weights", lambda *given: ("header", *given))
    return seen


def test_a_model_is_loaded_from_weights_that_were_fetched(loaded):
    options = ServeOptions(backend="mlx", context=9, threads=2, lanes=3, no_snapshots=True)
    name, loader, header, stored = serve._prepared("m", options)
    assert (name, stored, loaded.pulls, loaded.loads) == ("M", True, [("M", "mlx")], [])
    assert loader() is loaded.answer
    assert loaded.loads == [
        (
            "M",
            {
                "backend": "mlx", "dialect": None, "context": 9, "threads": 2, "lanes": 3, "snapshots": False,
                "offline": True,
            },
        )
    ]  # fmt: skip
    assert header() == ("header", Path("/store/M"), "hermes", 9)
    assert serve._prepared("m", ServeOptions(dialect="lfm2"))[2]() == (
        "header",
        Path("/store/M"),
        "lfm2",
        None,
    )


def test_a_file_is_served_under_its_name(loaded):
    path = Path("/x/some.gguf")
    name, loader, header, stored = serve._prepared(str(path), ServeOptions(), "somebody")
    loader()
    assert (name, stored, loaded.pulls) == ("some", False, [])
    [(what, given)] = loaded.loads
    assert (what, given["snapshots"].owner, given["dialect"]) == (path, "somebody", None)
    assert header() == ("header", path, None, None)


def test_a_model_on_another_server_is_looked_for_at_once(loaded):
    asked = "vllm://a:1/m"
    name, loader, header, stored = serve._prepared(asked, ServeOptions(dialect="lfm2", context=5))
    assert (name, header, stored) == ("there", None, False)
    assert loader() is loaded.answer
    assert loaded.loads == [(Address("vllm", "https://a:1", "m"), "lfm2", 5, {})] * 2
    asked = "openai://a:1/m"
    with pytest.raises(UsageError) as error:
        serve._prepared(asked, ServeOptions())
    assert str(error.value) == f"{asked} parses calls itself: give that address to the clients, not to serve"


def test_models_are_those_that_are_named_or_the_default_one(monkeypatch):
    monkeypatch.setattr(serve, "default_model", lambda backend: f"default of {backend}")
    assert serve.wanted(ServeOptions(models=["lfm2-na", "lfm2-350m"])) == ["lfm2-nano", "lfm2-350m"]
    assert serve.wanted(ServeOptions(backend="mlx")) == ["default of mlx"]


@pytest.mark.parametrize(
    ("options", "idle", "stall"),
    [
        ({"models": ["a"]}, None, 300.0), ({"models": ["a", "b"]}, 600.0, 300.0),
        ({"models": ["a", "b"], "idle": 7.0, "stall_limit": 0.0}, 7.0, 0.0),
        ({"models": ["a"], "idle": 8.0, "stall_limit": 90.0}, 8.0, 90.0),
    ],
)  # fmt: skip
def test_models_share_a_pool(monkeypatch, options, idle, stall):
    made = []

    class Pool:
        def __init__(self, loaders, **named):
            made.append((loaders, named))

        def begin_with(self, name):
            made.append(name)

    def end(why: str) -> None:
        """Called by the pool alone."""

    monkeypatch.setattr("localagent.server.models.ModelPool", Pool)
    monkeypatch.setattr(serve, "resolve", lambda name: name)
    headers = {"a": "header of a"}
    monkeypatch.setattr(
        serve, "_prepared", lambda asked, *_: (asked, f"loads {asked}", headers.get(asked), asked == "b")
    )
    given = ServeOptions(**options, aliases=["x*=a"], restart=True, max_queue=5)
    assert isinstance(serve._pool(given, end), Pool)
    names = options["models"]
    assert made == [
        (
            {name: f"loads {name}" for name in names},
            {
                "headers": headers, "stored": [name for name in names if name == "b"], "aliases": [("x*", "a")], "idle": idle, "restart": True, "stall": stall, "queue": 5,
                "end": end,
            },
        ),
        "a",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"^--model a is given twice$"):
        serve._pool(ServeOptions(models=["a", "a"]), end)
