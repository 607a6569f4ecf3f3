"""Which URLs are asked, and which addresses are connected to."""

from __future__ import annotations

import ipaddress
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ToolError
from localagent.toolbox import addresses, fetching
from localagent.toolbox.addresses import is_public, read_url
from localagent.toolbox.web import http_get
from tests.toolbox.calling import call
from tests.toolbox.serving import brief, get, refused, text_of


def test_the_tool_that_ships():
    assert (http_get.name, http_get.side_effects, http_get.kind) == ("http_get", True, "fetch")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "only http"),
        ("example.com", "only http"),
        ("ftp://example.com/x", "only http"),
        ("file:///etc/passwd", "only http"),
        ("gopher://127.0.0.1:6379/_x", "only http"),
        ("javascript:alert(1)", "only http"),
        ("data:text/plain,x", "only http"),
        ("http:///path", "not a host name"),
        ("http://", "not a host name"),
        ("http:/example.com", "not a host name"),
        ("http://user:secret@example.com/", "password"),
        ("http://example.com@127.0.0.1/", "password"),
        ("http://@127.0.0.1/", "password"),
        ("http://exa mple.com/", "a space"),
        ("http://example.com/\r\nHost: x", "control"),
        ("http://example.com\\@127.0.0.1/", "backslash"),
        ("http://example.com/\0", "control"),
        ("http://example.com:0/", "port"),
        ("http://example.com:/", "port"),
        ("http://example.com:99999/", "not a URL"),
        ("http://example.com:8a/", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://[::1%25eth0]/", "not a host name"),
        ("http://[x]/", "not a "),
        ("http://[v1.x]/", "not a host name"),
        ("http://exa%6dple.com/", "not a host name"),
        ("http://-x.com/", "not a host name"),
        ("http://" + "ü" * 70 + ".com/", "not a host name"),
        ("http://a..b/", "not a host name"),
        ("http://.../", "not a host name"),
        ("http://" + "a" * 64 + ".com/", "not a host name"),
        ("http://" + "a." * 200 + "com/", "not a host name"),
        ("http://example.com/" + "a" * 5000, "characters"),
        ("http://2130706433/", "four decimal"),
        ("http://0x7f000001/", "four decimal"),
        ("http://0x7f.0.0.1/", "four decimal|not on the public"),
        ("http://0177.0.0.1/", "four decimal"),
        ("http://017700000001/", "four decimal"),
        ("http://127.1/", "four decimal"),
        ("http://0/", "four decimal"),
        ("http://127.0.0.0x1/", "four decimal"),
        ("http://1.2.3.4.5/", "four decimal"),
        ("http://256.1.1.1/", "four decimal"),
        ("http://127.0.0.1./", "four decimal"),
        ("http://127.0.0.1/", "not on the public"),
        ("http://127.1.2.3:8080/", "not on the public"),
        ("http://0.0.0.0/", "not on the public"),
        ("http://10.0.0.1/", "not on the public"),
        ("http://172.16.0.1/", "not on the public"),
        ("http://192.168.1.1/", "not on the public"),
        ("http://100.64.0.1/", "not on the public"),
        ("http://169.254.169.254/latest/meta-data/", "not on the public"),
        ("http://224.0.0.1/", "not on the public"),
        ("http://255.255.255.255/", "not on the public"),
        ("http://[::]/", "not on the public"),
        ("http://[::1]/", "not on the public"),
        ("http://[::ffff:127.0.0.1]/", "not on the public"),
        ("http://[::ffff:7f00:1]/", "not on the public"),
        ("http://[::127.0.0.1]/", "not on the public"),
        ("http://[64:ff9b::7f00:1]/", "not on the public"),
        ("http://[2002:7f00:1::]/", "not on the public"),
        ("http://[2002:a9fe:a9fe::]/", "not on the public"),
        ("http://[fe80::1]/", "not on the public"),
        ("http://[fc00::1]/", "not on the public"),
        ("http://[fd00:ec2::254]/", "not on the public"),
        ("http://[fec0::1]/", "not on the public"),
        ("http://[ff02::1]/", "not on the public"),
        ("http://\uff11\uff12\uff17.0.0.1/", "not on the public|not a host name|four decimal"),
        ("http://127。0。0。1/", "not on the public|not a URL|not a host name"),
        ("http://localhost/", "not on the public"),
        ("http://LOCALHOST./", "not on the public|looked up"),
        ("https://localhost/", "not on the public"),
    ],
)
def test_what_is_not_asked(url, words, monkeypatch):
    monkeypatch.setattr(fetching.socket, "socket", None)  # nothing is connected to
    message = refused(http_get, url)
    assert any(word in message for word in words.split("|")), message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("1.1.1.1", True),
        ("2606:4700:4700::1111", True),
        ("64:ff9b::808:808", True),
        ("::ffff:8.8.8.8", True),
        ("2002:808:808::1", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::808:808", False),
        ("2001:0:808:808::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("100::1", False),
        ("192.0.0.8", False),
        ("192.88.99.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("240.0.0.1", False),
        ("239.1.1.1", False),
    ],
)
def test_which_addresses_are_public(address, public):
    assert is_public(ipaddress.ip_address(address)) == public


@given(st.text(max_size=60).map(lambda text: "http://" + text) | st.text(max_size=60))
def test_any_text_is_a_target_or_a_tool_error(text):
    try:
        target = read_url(text)
    except ToolError as error:
        assert str(error).isprintable()
    else:
        assert target.url.isascii() and not set(target.url) & set(" \r\n\0\\")
        assert read_url(target.url) == target


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("HTTP://Example.COM", "http://example.com/"),
        ("https://example.com:443/a?b=c#d", "https://example.com/a?b=c"),
        ("https://example.com:8443?q", "https://example.com:8443/?q"),
        ("http://bücher.example/ü?ä=%20 ".strip(), "http://xn--bcher-kva.example/%C3%BC?%C3%A4=%20"),
        ("http://[2606:4700::1]:81/", "http://[2606:4700::1]:81/"),
    ],
)
def test_targets(url, asked):
    assert read_url(url).url == asked


def test_one_private_address_among_public_ones_is_enough(monkeypatch):
    def both(host, port, **_):
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", both)
    monkeypatch.setattr(fetching.socket, "socket", None)
    assert "not on the public internet" in refused(http_get, "http://example.com/")


@pytest.mark.parametrize("found", [[], [(socket.AF_UNIX, 1, 0, "", "/tmp/socket")]])
def test_a_host_without_an_address_that_can_be_connected_to(monkeypatch, found):
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(fetching.socket, "socket", None)
    assert refused(get, "http://example.com/") == "example.com has no address"


def test_lengths():
    fits = "http://example.com/" + "a" * (4_000 - len("http://example.com/"))
    assert read_url(fits).url == fits
    with pytest.raises(ToolError, match="the URL has 4,001 characters: at most 4,000 are taken"):
        read_url(fits + "a")
    name = ".".join(["a" * 49] * 5) + ".abcd"
    assert len(name) == 254
    assert read_url(f"http://{name}/").host == name
    with pytest.raises(ToolError, match="is not a host name"):
        read_url(f"http://{name}e/")


def test_a_name_that_changes_its_mind_is_asked_once(monkeypatch, server):
    """The address that was checked is connected to: there is no second look-up."""
    asked = []

    def rebinding(host, port, **_):
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.255.255.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", rebinding)
    server.answer("/x", b"hello")
    assert text_of(f"http://example.com:{server.port}/x") == "hello"
    assert asked == ["example.com"]
    assert server.seen[0][1]["Host"] == f"example.com:{server.port}"


def test_a_look_up_that_hangs(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: go.wait(60) and [])
    try:
        assert "in time" in refused(brief, "http://example.com/")
    finally:
        go.set()


def test_no_such_host(monkeypatch):
    def fails(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", fails)
    assert "could not be looked up: Name or service not known" in refused(get, "http://nowhere.example/")


@pytest.mark.parametrize("error", [OSError(), UnicodeError("label too long")])
def test_a_look_up_that_fails_without_a_reason(monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(addresses.socket, "getaddrinfo", fails)
    message = "nowhere.example: its address could not be looked up: no such host"
    assert refused(get, "http://nowhere.example/") == message


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_offline(monkeypatch, value, server):
    monkeypatch.setenv("LOCALAGENT_OFFLINE", value)
    assert "LOCALAGENT_OFFLINE" in refused(get, server.answer("/x", b"hello"))
    assert server.seen == []


def test_proxies_of_the_environment_are_not_used(monkeypatch, server):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert text_of(server.answer("/x", b"hello")) == "hello"


def test_redirects(server):
    server.answer("/end", b"arrived")
    server.redirect("/middle", "end")
    output = call(get, url=server.redirect("/start", f"{server.url}/middle"))
    assert output.content == f"{server.url}/end\n\narrived"
    assert [path for path, _ in server.seen] == ["/start", "/middle", "/end"]
    server.answer("/a%20b/%C3%BC?x", b"odd")
    assert call(get, url=server.redirect("/odd", "/a b/ü?x")).content.endswith("\n\nodd")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_any_kind_is_followed(server, status):
    server.answer("/end", b"arrived")
    assert text_of(server.redirect("/start", "/end", status)) == "arrived"


def test_a_location_beside_an_answer_is_no_redirect(server):
    assert text_of(server.answer("/start", b"here", Location="/end")) == "here"
    assert [path for path, _ in server.seen] == ["/start"]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://169.254.169.254/latest/", "not on the public"),
        ("//10.0.0.1/", "not on the public"),
        ("http://[::ffff:10.0.0.1]/", "not on the public"),
        ("http://127.1/", "four decimal"),
        ("file:///etc/passwd", "only http"),
        ("http://user:pw@example.com/", "password"),
        ("http://[", "not a URL"),
        ("javascript:x", "only http"),
    ],
)
def test_each_redirect_is_checked(server, monkeypatch, location, words):
    """The first address counts as public here; where it redirects to does not."""
    monkeypatch.setattr(addresses, "is_public", lambda address: str(address) == "127.0.0.1")
    assert words in refused(http_get, server.redirect("/x", location))
    assert len(server.seen) == 1


def test_a_redirect_to_itself(server):
    assert "more than 5 redirects" in refused(get, server.redirect("/x", "/x"))
    assert len(server.seen) == 6
