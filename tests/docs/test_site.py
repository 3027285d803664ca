"""The docs as a site: it is built, every page is in its navigation, and no link leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import pages
from tools.docs_site import PAGES
from tools.repository import ROOT


def build(folder: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site, strictly: a warning fails it."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=root,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in pages():
        name = str(page.relative_to(ROOT))
        uri = PAGES.get(name, name.removeprefix("docs/"))
        place = Path(uri).with_suffix("") if Path(uri).stem not in ("index", "README") else ""
        folder = site / (place or Path(uri).parent)
        assert (folder / "index.html").is_file(), name


def test_a_link_to_a_file_of_the_repository_leads_to_a_copy_of_it(site: Path) -> None:
    page = (site / "bootstrap" / "index.html").read_text(encoding="utf-8")
    (link,) = set(re.findall(r'href="([^"]*conf/bootstrap\.toml)"', page))
    copy = (site / "bootstrap" / link).resolve()
    assert copy.read_bytes() == (ROOT / "conf" / "bootstrap.toml").read_bytes()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page)
    assert loaded == []


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "tools", *PAGES):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "new.md").write_text("# New\n\n[away](nowhere.md)\n")
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
