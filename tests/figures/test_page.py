"""One page of a results folder: well formed, complete, and without anything from outside."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest

from scripts.report import main
from specbench.figures import page as page_module
from specbench.figures.catalogue import parts
from specbench.figures.page import page
from specbench.results.opening import open_results
from specbench.results.published import load_published
from tests.results.folders import Spec, paper, write_run

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
VOID = {"meta", "link", "img", "br"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Page(HTMLParser):
    """Checks nesting while it reads; keeps attributes, and texts by the tag that they stand in."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open:
            return
        self.texts.setdefault(self.open[-1], []).append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return paper(tmp_path_factory.mktemp("page"))


@contextmanager
def fewer_figures(*modules):
    """Drawing all of them takes most of the time, and they have tests of their own."""
    with patch.object(page_module, "parts", lambda frozen: parts(frozen, modules)):
        yield


@pytest.fixture(scope="module")
def text(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "deep" / "page.html"
    with fewer_figures("acceptance_by_position", "predicted_speedup", "skip_heatmap", "mla_forest"):
        assert main([str(folder), "--html", str(out), "--published", str(PUBLISHED)]) == 0
    return out.read_text(encoding="utf-8")


def test_nothing_comes_from_outside(text):
    parsed = Page(text)
    links = [value for _, attributes in parsed.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"url\(|@import|https?://", text)
    assert parsed.all("script") == []


def test_links_lead_somewhere_and_names_are_unique(text):
    parsed = Page(text)
    names = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(names) == len(set(names))
    assert {link["href"][1:] for link in parsed.all("a")} <= set(names)


def test_figures_are_pictures_with_a_text(text):
    pictures = Page(text).all("img")
    assert len(pictures) >= 3
    for picture in pictures:
        head, _, data = picture["src"].partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert len(picture["alt"]) > 20
        assert int(picture["width"]) > 200


def test_tables_hold_ours_and_published(text):
    parsed = Page(text)
    assert {"Leaderboard: speedup over AR by subset", "Runs"} <= set(parsed.texts["h3"])
    assert any(row[:2] == ["published", "LLaMA-2-13B"] for row in parsed.rows)
    assert any(re.fullmatch(r"1\.\d\d \[1\.\d\d, 1\.\d\d\]", cell) for cell in parsed.texts["strong"])


def test_configuration_and_environment_are_there(text):
    parsed = Page(text)
    terms = dict(zip(parsed.texts["dt"], parsed.texts["dd"], strict=False))
    assert terms["torch"] == "2.13.0"
    assert terms["cpu"] == "test CPU"
    assert terms["sampling.max_new_tokens"] == "96"
    assert "block-3" in parsed.texts["summary"]
    assert "method.controller.block_size" in parsed.texts["dt"]


def test_what_is_missing_is_named(text):
    assert any("mla_forest: no matched cells" in reason for reason in Page(text).texts["li"])


def test_names_are_text_and_not_markup(tmp_path):
    write_run(tmp_path, Spec("run", config={"note": "<b>&amp;</b>"}))
    write_run(tmp_path, Spec("other"))
    with fewer_figures("mla_forest"):
        text = page(open_results(tmp_path), load_published(PUBLISHED), "<script>alert(1)</script>")
    parsed = Page(text)
    assert parsed.all("script") == []
    assert parsed.texts["h1"] == ["<script>alert(1)</script>"]
    assert "<b>&amp;</b>" in parsed.texts["dd"]


@pytest.mark.slow
def test_a_figure_that_breaks_costs_no_other(folder, monkeypatch):
    real = page_module.draw

    def draw(part):
        if part.module == "skip_heatmap":
            raise ZeroDivisionError("by chance")
        return real(part)

    monkeypatch.setattr(page_module, "draw", draw)
    with fewer_figures("skip_heatmap", "acceptance_by_position"):
        parsed = Page(page(open_results(folder), load_published(PUBLISHED), "t"))
    assert any("could not be drawn: ZeroDivisionError: by chance" in reason for reason in parsed.texts["li"])
    assert parsed.all("img")


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path), "--html", str(tmp_path / "p.html"), "--published", str(PUBLISHED)]) == 2
    assert "neither frozen results nor runs" in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


def test_html_takes_one_folder(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["a", "b", "--html", str(tmp_path / "p.html")])
    assert "--html takes one folder" in capsys.readouterr().err


def test_an_empty_folder_still_gives_a_page(folder):
    frozen = open_results(folder)
    nothing = frozen.where(frozen.runs.iloc[:0])
    parsed = Page(page(nothing, load_published(PUBLISHED), "empty"))
    assert any("no finished run" in reason for reason in parsed.texts["li"])


# ---- in a browser

_PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images];
  document.title = JSON.stringify({
    images: images.length,
    broken: images.filter(i => !i.complete || i.naturalWidth === 0).length,
    squashed: images.filter(i => Math.abs(i.width / i.height - i.naturalWidth / i.naturalHeight) > 0.05).length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    details: document.querySelectorAll("details").length,
  });
});</script></body>"""


@pytest.mark.slow
def test_in_a_browser_everything_shows_and_the_console_is_silent(folder, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt-get install chromium)")
    text = page(open_results(folder), load_published(PUBLISHED), "every figure")
    probed = tmp_path / "page.html"
    probed.write_text(text.replace("</body>", _PROBE), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,900"]
    flags += ["--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    home = {**os.environ, "HOME": str(tmp_path)}
    command = [browser, *flags, probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=home, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL).group(1))
    assert seen["images"] == len(Page(text).all("img"))
    assert (seen["broken"], seen["squashed"], seen["overflow"]) == (0, 0, 0)
    assert seen["details"] == len(pd.unique(pd.Series(Page(text).texts["summary"])))
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
