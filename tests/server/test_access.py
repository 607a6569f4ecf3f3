"""Who may ask, decided from the head of a request alone: clients, keys, hosts, pages, and heads that are too large."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.server.access import Access, Client, Head, in_origin_form, keys_for, read_keys
from localagent.server.bounds import Bounds
from localagent.server.exchange import BadRequest

HTML = "text/html,*/*;q=0.8"


def head(method: str = "GET", path: str = "/v1/models", address: str = "10.0.0.7", **headers: str) -> Head:
    given = {"host": "localhost", **headers}
    return Head(method, path, [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()], address)


def refused(access: Access, asked: Head, bounds: Bounds | None = None) -> tuple[int, str | None, str]:
    with pytest.raises(BadRequest) as caught:
        access.admit(asked, bounds or Bounds())
    return caught.value.status, caught.value.code, caught.value.message


# -- clients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "program", "name"),
    [
        ("10.0.0.7", "claude-cli/2.0 (linux)", "10.0.0.7 claude-cli"),
        ("10.0.0.7", "a" * 61, "10.0.0.7 " + "a" * 60),
        ("10.0.0.7", "", "10.0.0.7"),
        ("", "curl/8", "curl"),
        ("", "", ""),
    ],
)
def test_without_keys_a_client_is_a_program_at_an_address(address, program, name):
    assert Access().admit(head(address=address, user_agent=program)) == Client(name, "")


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x_api_key": "one"}, 1),
        ({"x_api_key": "two"}, 2),
        ({"authorization": "BEARER  two "}, 2),
        ({"x_api_key": "two", "authorization": "Bearer one"}, 2),
        ({"x_api_key": "left over", "authorization": "Bearer one"}, 1),
    ],
)
def test_with_keys_a_client_is_the_key_and_reuses_its_own_prompts(headers, key):
    digest = sha256(("one", "two")[key - 1].encode()).hexdigest()
    assert Access(keys=("one", "two")).admit(head(**headers)) == Client(f"key {key}", f"key-{digest[:16]}")
    assert Access(keys=("one", "two"), share=True).admit(head(**headers)) == Client(f"key {key}")


def test_everybody_who_has_the_one_key_reuses_the_same_prompts():
    assert Access(keys=("one",)).admit(head(x_api_key="one")) == Client("key 1", "")


def test_prompts_on_disk_are_those_of_the_only_key():
    owners = [Access(keys=("one",)).owner, Access(keys=("two",)).owner]
    assert len({"", *owners}) == 3
    assert [Access().owner, Access(keys=("one", "two")).owner, Access(keys=("one",), share=True).owner] == [
        ""
    ] * 3


def test_a_key_that_is_missing_and_a_wrong_one_are_told_apart():
    access = Access(keys=("one",))
    missing = "an API key is needed: send Authorization: Bearer KEY"
    assert refused(access, head()) == (401, "invalid_api_key", missing)
    assert refused(access, head(authorization="Basic one")) == (401, "invalid_api_key", missing)
    assert refused(access, head(x_api_key="two")) == (401, "invalid_api_key", "the API key is wrong")


@pytest.mark.parametrize(
    ("asked", "page", "is_open"),
    [
        (head(path="/health"), False, True),
        (head(path="/health", method="OPTIONS"), False, True),
        (head(method="OPTIONS"), False, True),
        (head(path="/", accept=HTML), True, True),
        (head(path="/", accept=HTML, method="HEAD"), True, True),
        (head(path="/", accept=HTML.upper()), True, True),
        (head(path="/", accept=HTML), False, False),
        (head(path="/", accept="*/*"), True, False),
        (head(path="/", accept=HTML, method="PUT"), True, False),
        (head(accept=HTML), True, False),
    ],
)
def test_what_needs_no_key(asked, page, is_open):
    access = Access(keys=("one",), page=page)
    if is_open:
        assert access.admit(asked) == Client("10.0.0.7")
    else:
        assert refused(access, asked)[0] == 401


# -- heads -------------------------------------------------------------------------------------------------


def test_a_head_of_a_request():
    scope: dict[str, Any] = {"method": "GET", "path": "/", "headers": [(b"a", b"b")], "client": ("::1", 5)}
    assert Head.of(scope, "h") == Head("GET", "/", [(b"a", b"b")], "::1", "h")
    assert Head.of({**scope, "client": None}).address == Head.of(scope | {"client": ()}).address == ""


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, False),
        ({"content_length": "0"}, False),
        ({"content_length": "000"}, False),
        ({"content_length": "10"}, True),
        ({"transfer_encoding": "chunked"}, True),
        ({"x": "10"}, False),
    ],
)
def test_whether_a_body_follows(headers, body):
    assert head(**headers).has_body is body


def test_a_header_that_counts_once_may_not_come_twice():
    twice = Head("GET", "/", [(b"host", b"localhost"), (b"origin", b" a "), (b"host", b"evil.example")])
    assert (twice.one(b"origin"), twice.one(b"accept")) == ("a", None)
    assert refused(Access(), twice) == (400, None, "the header host is there 2 times")


@pytest.mark.parametrize(
    ("bounds", "status"),
    [
        (Bounds(headers=3, header_bytes=19), 200),
        (Bounds(headers=2, header_bytes=19), 431),
        (Bounds(headers=3, header_bytes=18), 431),
    ],
)
def test_a_head_may_be_as_large_as_it_may_be(bounds, status):
    asked = head(a="12", b="34")  # three headers of 13, 3 and 3 letters
    if status == 200:
        Access().admit(asked, bounds)
    else:
        assert refused(Access(), asked, bounds) == (431, None, "the headers are too large")


def test_a_body_of_two_lengths_is_refused():
    both = head(content_length="5", transfer_encoding="chunked")
    assert refused(Access(), both)[::2] == (400, "Content-Length and Transfer-Encoding exclude each other")


@pytest.mark.parametrize(
    ("headers", "code", "said"),
    [
        ({"content_encoding": "gzip"}, None, "Content-Encoding is 'gzip': send the body as it is"),
        ({"content_type": "text/plain"}, "unsupported_media_type", "Content-Type is 'text/plain': it must be application/json"),
        ({"content_type": ""}, "unsupported_media_type", "Content-Type is '': it must be application/json"),
    ],
)  # fmt: skip
def test_only_plain_json_is_read_and_only_where_there_is_a_body_to_read(headers, code, said):
    json = {"content_type": "application/json; charset=utf-8", "content_encoding": "Identity"}
    Access().admit(head("POST", **json))
    assert refused(Access(), head("POST", **{**json, **headers})) == (415, code, said)
    Access().admit(head("GET", **headers))


CURL = {"content_type": "application/x-www-form-urlencoded"}
TEXT = {"content_type": "text/plain;charset=UTF-8"}


@pytest.mark.parametrize(
    ("path", "headers", "taken"),
    [
        # A browser sends these elsewhere only after a preflight, whatever the wire.
        ("/v1/chat/completions", {"content_type": "application/octet-stream"}, True),
        ("/v1/messages", {"content_type": "application/vnd.api+json; charset=utf-8"}, True),
        ("/api/chat", {"content_type": "application/x-ndjson"}, True),
        ("/v1/chat/completions", {"content_type": "application"}, False),
        ("/v1/chat/completions", {"content_type": "application/json, text/plain"}, False),
        ("/v1/chat/completions", {"content_type": "application/octet-stream /json"}, False),
        # These it sends at once: they are JSON where Ollama's own clients send them, and no page does.
        ("/api/chat", {}, True),
        ("/api/generate", CURL, True),
        ("/api/show", TEXT, True),
        ("/api/chat", {"content_type": "multipart/form-data; boundary=x"}, True),
        ("//api/chat", CURL, True),
        ("/api/chat", {**CURL, "origin": "http://localhost"}, True),
        ("/api/chat", {**CURL, "sec_fetch_site": "none"}, True),
        ("/api/chat", {**CURL, "sec_fetch_site": "same-origin"}, True),
        ("/api/chat", {**CURL, "sec_fetch_site": "same-site"}, False),
        ("/api/chat", {**CURL, "sec_fetch_site": "cross-site"}, False),
        ("/api/chat", {**TEXT, "sec_fetch_site": ""}, False),
        ("/api/chat", {"sec_fetch_site": "cross-site"}, False),
        ("/api/chat", {**CURL, "origin": "http://a.example"}, False),
        ("/api/chat", {"content_type": "nonsense"}, False),
        ("/v1/chat/completions", CURL, False),
        ("/v1/api/chat", CURL, False),
        ("/apis", CURL, False),
    ],
)
def test_which_types_are_taken_for_json(path, headers, taken):
    access, asked = Access(origins=("http://a.example",)), head("POST", path, **headers)
    if taken:
        access.admit(asked)
    else:
        assert refused(access, asked)[:2] == (415, "unsupported_media_type")


# -- hosts and pages ---------------------------------------------------------------------------------------


def test_a_host_name_is_checked_where_pages_could_reach_nobody_else():
    said = (
        "this server does not answer to the host name 'evil.example': use 127.0.0.1 or localhost, or start it "
        "with --allow-host NAME"
    )
    assert refused(Access(), head(host="evil.example")) == (403, "host_not_allowed", said)
    assert refused(Access(host="LocalHost"), head(host="evil.example"))[0] == 403
    for host in ("localhost.:80", "[::1]", "a.b.localhost", "127.0.0.9:1"):
        Access(host="::1").admit(head(host=host))
    # Other machines call it by whatever names it has there; they need a key.
    Access(host="0.0.0.0", keys=("one",)).admit(head(host="evil.example", x_api_key="one"))


@pytest.mark.parametrize("name", ["host.docker.internal", "host.containers.internal"])
def test_containers_call_this_machine_by_names_of_theirs(name):
    """A name server that lies could make them mean a page elsewhere, so no page counts as ours by them."""
    for host in (name, f"{name}:8080", f"{name.upper()}.:1"):
        assert Access().admit(head("POST", host=host, content_type="application/json"))
        assert refused(Access(), head(host=host, origin=f"http://{host}"))[1] == "origin_not_allowed"
    for host in (f"a.{name}", f"{name}.evil.example", name.removeprefix("host.")):
        assert refused(Access(), head(host=host))[1] == "host_not_allowed"


def test_more_host_names_may_be_allowed():
    access = Access(allow_hosts=("Models.Lan", "192.168.0.7"))
    for host in ("models.lan", "MODELS.LAN.:8080", "192.168.0.7:80"):
        access.admit(head(host=host))
        access.admit(head(host=host, origin=f"http://{host}"))
    for host in (
        "a.models.lan",
        "models.lan.evil.example",
        "192.168.0.70",
        "[models.lan]evil",
        "",
        "models.lan@b",
    ):
        assert refused(access, head(host=host))[1] == "host_not_allowed"


def test_a_page_is_told_what_it_may_ask():
    access = Access(origins=("http://a.example", "http://b.example"))
    told = [
        (b"access-control-allow-origin", b"http://b.example"),
        (b"access-control-expose-headers", b"x-localagent-model, x-localagent-ignored, retry-after"),
        (b"vary", b"origin"),
    ]
    assert access.cors(head(origin="http://b.example")) == told
    asked = head("OPTIONS", origin="http://b.example")
    methods = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-max-age", b"600")]
    assert access.cors(asked) == [
        *told,
        methods[0],
        (b"access-control-allow-headers", b"content-type"),
        methods[1],
    ]
    wanted = head("OPTIONS", origin="http://b.example", access_control_request_headers="x-a, x-b")
    assert (b"access-control-allow-headers", b"x-a, x-b") in access.cors(wanted)
    assert access.cors(head()) == Access().cors(asked) == []


@pytest.mark.parametrize(
    ("origins", "origin", "may"),
    [
        ((), None, True),
        ((), "http://localhost", True),
        ((), "HTTP://LOCALHOST", True),
        ((), "localhost", False),
        ((), "http://a.example", False),
        (("http://a.example",), "http://a.example", True),
        (("*",), "http://a.example", True),
        (("*",), "Null", False),
        (("app://obsidian.md",), "app://obsidian.md", True),
        (("vscode-webview://*",), "vscode-webview://1f9a", True),
        (("moz-extension://*", "tauri://*"), "tauri://localhost", True),
        (("file://*",), "file://", True),
        (("https://*",), "http://a.example", False),
    ],
)
def test_which_pages_may_ask(origins, origin, may):
    asked = head() if origin is None else head(origin=origin)
    access = Access(origins=origins)
    if may:
        assert access.check_origin(asked) == origin
    else:
        said = f"a page of {origin!r} may not use this server (see --origin)"
        assert refused(access, asked) == (403, "origin_not_allowed", said)


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("app://other", "app://*"),
        ("vscode-webview://1f9a", "vscode-webview://*"),
        ("chrome-extension://abc", "chrome-extension://*"),
        ("file://", "file://*"),
    ],
)
def test_desktop_programs_are_told_the_option_that_lets_them_in(origin, hint):
    said = f"a page of {origin!r} may not use this server: start it with --origin '{hint}'"
    for origins in ((), ("app://obsidian.md", "https://*")):
        assert refused(Access(origins=origins), head(origin=origin))[2] == said


def test_a_target_with_a_host_is_a_path_and_that_host():
    asked = {"raw_path": b"http://a.b:80/v%201", "path": "/", "type": "http"}
    assert in_origin_form(asked) == ({"raw_path": b"/v%201", "path": "/v 1", "type": "http"}, "a.b:80")
    assert in_origin_form({"raw_path": b"HTTPS://a.b"}) == ({"raw_path": b"/", "path": "/"}, "a.b")
    for plain in ({"raw_path": b"/http://a.b/"}, {}):
        assert in_origin_form(plain) == (plain, None)


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "::"}, "host is '::', which other machines can reach: give a key with --api-key-file or LOCALAGENT_API_KEYS, or listen on 127.0.0.1"),
        ({"keys": ("a b",)}, "an API key may hold only printable ASCII characters, and no space"),
        ({"keys": ("fine", "a\x7f")}, "an API key may hold only printable ASCII characters, and no space"),
        ({"origins": ("*", "a.example")}, "origin is 'a.example': write it like http://localhost:3000, app://*, or *"),
        ({"origins": ("http://a/",)}, "origin is 'http://a/': write it like http://localhost:3000, app://*, or *"),
        ({"origins": ("app://a*",)}, "origin is 'app://a*': write it like http://localhost:3000, app://*, or *"),
        ({"allow_hosts": ("http://a",)}, "allowed host is 'http://a': write a name like models.lan, without a port"),
        ({"allow_hosts": ("a", "b:80")}, "allowed host is 'b:80': write a name like models.lan, without a port"),
        ({"allow_hosts": ("*",)}, "allowed host is '*': write a name like models.lan, without a port"),
        ({"allow_hosts": ("",)}, "allowed host is '': write a name like models.lan, without a port"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(UsageError) as caught:
        Access(**settings)
    assert str(caught.value) == said


def test_keys_are_not_shown_to_whoever_prints_the_settings():
    assert "secret" not in repr(Access(keys=("secret",)))


def test_keys_come_from_the_environment_and_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "keys"
    file.write_text("# the team\nsecond\n\n third \n", "utf-8")
    monkeypatch.delenv("LOCALAGENT_API_KEYS", raising=False)
    assert keys_for(None) == ()
    assert keys_for(Path("~/keys")) == ("second", "third")
    monkeypatch.setenv("LOCALAGENT_API_KEYS", "first, second,")
    assert keys_for(None) == ("first", "second")
    assert keys_for(file) == ("first", "second", "third")
    assert read_keys("") == ()


def test_a_file_of_keys_that_is_none_is_named(tmp_path):
    file = tmp_path / "keys"
    for content, said in ((b"# nobody\n", " holds no key: write one a line"), (b"\xff", ": 'utf-8' codec")):
        file.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            keys_for(file)
        assert str(caught.value).startswith(f"--api-key-file {file}{said}")
    file.unlink()
    with pytest.raises(UsageError) as caught:
        keys_for(file)
    assert str(caught.value) == f"--api-key-file {file}: No such file or directory"
