"""The pip commands that messages name. They hold however Torchwise was installed: checkout, wheel, repository or index.

An extra is named by its requirements, which are on every index. `pip install 'torchwise[redis]'` would need an index
that has Torchwise itself.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

MODELS_PACKAGE = "torchwise-models"
"""The distribution with the models of other libraries and most of the zoo."""
MODELS_FOLDER = "plugins/models"
ELSEWHERE = "in the checkout of Torchwise, or its wheel"
"""The end of the command where nothing records the place: the package is on no index."""
CHECKOUT = Path(__file__).parents[2]
"""The checkout, where Torchwise runs from one."""


def suggest_extra(extra: str, distribution: str = "torchwise") -> str:
    """Return the command that installs the requirements of an extra."""
    from importlib.metadata import PackageNotFoundError, requires

    of_extra = re.compile(rf"""^([^;]+);.*\bextra == ["']{extra}["']""")
    try:
        listed = requires(distribution) or []
    except PackageNotFoundError:  # imported from a checkout that was never installed
        folder = CHECKOUT / MODELS_FOLDER if distribution == MODELS_PACKAGE else CHECKOUT
        return f"pip install {shlex.quote(f'{folder}[{extra}]')}"
    needed = [found[1].strip() for found in map(of_extra.match, listed) if found]
    return f"pip install {shlex.join(needed)}"


def suggest_models_package() -> str:
    """Return the name of `MODELS_PACKAGE`, and the command that installs it from the place of Torchwise itself."""
    place = _locate_models_package()
    way_out = f"pip install {shlex.quote(place)}" if place else f"pip install ./{MODELS_FOLDER} {ELSEWHERE}"
    return f"{MODELS_PACKAGE}, which is not installed: {way_out}"


def _locate_models_package() -> str:
    """Return a requirement that pip can install: a folder, a file or a repository. It is "" if none is recorded."""
    from urllib.parse import unquote, urlparse

    origin = _read_origin()
    url = str(origin.get("url", ""))
    checkout = Path(unquote(urlparse(url).path)) if "dir_info" in origin else CHECKOUT
    if (folder := checkout / MODELS_FOLDER).is_dir():
        return str(folder)
    if "vcs_info" in origin:
        kind, commit = origin["vcs_info"]["vcs"], origin["vcs_info"]["commit_id"]
        return f"{kind}+{url}@{commit}#subdirectory={MODELS_FOLDER}"
    if "archive_info" in origin:  # `scripts/release` puts both into one folder
        folder_url, _, name = url.rpartition("/")
        return f"{folder_url}/{name.replace('torchwise', 'torchwise_models', 1)}"
    return ""


def _read_origin() -> dict[str, dict[str, str]]:
    """Return pip's record of the place that Torchwise was installed from (PEP 610). An index leaves none."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("torchwise").read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    return json.loads(text) if text else {}
