"""The server: what it shows, and what it refuses to whom."""

from __future__ import annotations

import json
import socket

import pytest
from tests.viewer.conftest import asked, serving

from attnlab.core.errors import SpecError
from attnlab.viewer.guard import MOST_BYTES
from attnlab.viewer.server import serve


def error_of(answer):
    status, _, text = answer
    return status, json.loads(text)["error"]


def test_the_start_page_lists_studies_and_runs_with_state_and_verdict(runs):
    (runs / "alone").mkdir()
    (runs / "alone" / "spec.json").write_text("{}")
    with serving(runs) as port:
        status, headers, text = asked(port, "/")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert 'href="/study/tiny"' in text
    assert "Does a mixer in the middle help?" in text
    assert "4 of 4 runs" in text
    assert '<p class="said">' in text
    assert 'href="/run/alone"' in text
    assert '<span class="state stopped">' in text


def test_a_folder_that_is_a_study_itself_is_shown(runs):
    with serving(runs / "tiny") as port:
        assert 'href="/study/"' in asked(port, "/")[2]
        assert asked(port, "/study/")[0] == 200


def test_an_empty_folder_says_how_a_study_begins(tmp_path):
    with serving(tmp_path) as port:
        assert "attnlab run shapes" in asked(port, "/")[2]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("study.json", '{"hello": 1}', "was changed after it was written"),
        ("study.json", '{"con', "cannot be read"),
        ("rules.json", "[1, 2]", "cannot be read: it must hold a JSON object; got a list"),
        ("study.json", "[" * 100_000, "cannot be read"),
        ("tuning.json", "{", "cannot be read"),
        ("plain/seed-0/result.json", "null", "cannot be read: it must hold a JSON object"),
    ],
)
def test_a_damaged_or_foreign_study_is_listed_with_a_sentence(runs, file, content, sentence):
    (runs / "tiny" / file).write_text(content)
    with serving(runs) as port:
        status, _, text = asked(port, "/")
        assert status == 200
        assert '<span class="state damaged">' in text
        assert sentence in text
        assert error_of(asked(port, "/study/tiny"))[0] == 422
        assert error_of(asked(port, "/events/tiny"))[0] == 422


def test_a_file_of_another_program_is_listed_with_a_sentence(tmp_path):
    (tmp_path / "study.json").write_text('{"hello": 1}')
    with serving(tmp_path) as port:
        assert "study.json is damaged: it has no &#39;content&#39;" in asked(port, "/")[2]


def test_names_of_a_stranger_stay_text(runs):
    study = json.loads((runs / "tiny" / "study.json").read_text())
    hostile = "<img src=x onerror=alert(1)> \"'&"
    (runs / hostile).mkdir()
    (runs / hostile / "study.json").write_text(json.dumps(study | {"content": hostile}))
    with serving(runs) as port:
        text = asked(port, "/")[2]
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


@pytest.mark.parametrize(
    "path",
    [
        "/study/../secret",
        "/study/%2e%2e/secret",
        "/study/..%2fsecret",
        "/study//etc",
        "/study/%00",
        "/study/link",
        "/report/../secret",
        "/report/%2e%2e/secret",
        "/report/link",
        "/report/sly",
        "/events/link",
        "/run/link",
        "/run/%2e%2e/secret",
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/nothing",
    ],
)
def test_no_address_leads_out_of_the_folder(runs, path):
    secret = runs.parent / "secret"
    (runs / "tiny").rename(secret)
    (runs / "link").symlink_to(secret)
    (runs / "sly").mkdir()
    (runs / "sly" / "report.html").symlink_to(secret / "report.html")
    with serving(runs) as port:
        status, sentence = error_of(asked(port, path))
    assert status == 404
    assert sentence


def test_what_a_link_leads_to_outside_is_not_listed(runs):
    (runs.parent / "secret").mkdir()
    (runs / "tiny").rename(runs.parent / "secret" / "tiny")
    (runs / "link").symlink_to(runs.parent / "secret")
    with serving(runs) as port:
        assert "Does a mixer" not in asked(port, "/")[2]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "[::1"])
def test_another_name_of_the_server_is_refused(port, host):
    status, sentence = error_of(asked(port, "/", headers={"Host": host}))
    assert status == 403
    assert "is not called" in sentence


def test_names_of_this_machine_are_answered(port):
    for host in (f"localhost:{port}", "LOCALHOST", f"[::1]:{port}"):
        assert asked(port, "/", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    ("method", "origin"), [("POST", None), ("POST", "http://evil.example"), ("POST", "null"), ("GET", "https://evil")]
)
def test_a_request_from_another_page_is_refused(port, method, origin):
    headers = {} if origin is None else {"Origin": origin}
    status, sentence = error_of(asked(port, "/", method, headers))
    assert status == 403
    assert f"must come from http://127.0.0.1:{port}" in sentence


def test_a_page_of_its_own_may_ask(port):
    headers = {"Origin": f"http://127.0.0.1:{port}"}
    assert asked(port, "/", headers=headers)[0] == 200
    assert error_of(asked(port, "/", "POST", headers))[0] == 405


def test_a_body_that_is_too_large_is_refused(port):
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    status, sentence = error_of(asked(port, "/run/tiny/look", "POST", headers, b" " * (MOST_BYTES + 1)))
    assert status == 413
    assert str(MOST_BYTES) in sentence


def test_a_body_that_hides_its_size_is_refused(port):
    headers = {"Origin": f"http://127.0.0.1:{port}", "Transfer-Encoding": "chunked"}
    body = b"10000\r\n" + b" " * 0x10000 + b"\r\n1\r\n \r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        lines = [
            "POST /run/tiny/plain/seed-0/look HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            *map(": ".join, headers.items()),
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("length", ["-1", "many"])
def test_a_length_that_is_none_is_no_failure_of_the_server(port, length):
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Length": length}
    assert asked(port, "/", "POST", headers)[0] == 400


def test_without_the_token_nothing_is_shown_and_with_it_once_everything(runs):
    with serving(runs, token="secret") as port:
        for path in ("/", "/study/tiny", "/events/tiny", "/static/base.css", "/?token=wrong", "/?token=%C3%A9"):
            assert error_of(asked(port, path))[0] == 401
        assert error_of(asked(port, "/", headers={"Cookie": f"attnlab-{port}=wrong"}))[0] == 401
        status, headers, _ = asked(port, "/study/tiny?token=secret")
        assert (status, headers["location"]) == (303, f"http://127.0.0.1:{port}/study/tiny")
        assert "HttpOnly" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        assert asked(port, "/study/tiny", headers={"Cookie": cookie})[0] == 200


def test_the_report_of_a_study_has_no_origin_and_asks_nothing(port):
    status, headers, text = asked(port, "/report/tiny")
    assert (status, text) == (200, "<title>the report</title>")
    assert headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")


def test_a_person_gets_an_error_as_a_page(port):
    status, headers, text = asked(port, "/study/nothing", headers={"Accept": "text/html"})
    assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no &#39;nothing&#39; in runs" in text


def test_a_study_that_is_deleted_meanwhile_is_not_there(runs, port):
    assert asked(port, "/study/tiny")[0] == 200
    (runs / "tiny").rename(runs.parent / "gone")
    assert error_of(asked(port, "/study/tiny"))[0] == 404


def test_a_taken_port_names_a_free_one(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(SpecError, match=rf"port {number} is taken; choose another: .* --port \d+"):
            serve(tmp_path, port=number)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"port": 70_000}, "--port must be between 0 and 65535; got 70000"),
        ({"port": -1}, "--port must be between 0 and 65535; got -1"),
        ({"host": "192.0.2.7"}, "cannot listen on 192.0.2.7, port 8765"),
        ({"host": "no such host"}, "cannot listen on no such host"),
    ],
)
def test_where_one_cannot_listen_is_said(tmp_path, how, words):
    with pytest.raises(SpecError, match=words):
        serve(tmp_path, **how)


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(SpecError, match=r"there is no folder .*name that of a run"):
        serve(tmp_path / "runs")
