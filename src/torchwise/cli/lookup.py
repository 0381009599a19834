"""From what the user types to a study: a number, `latest`, or a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from torchwise.errors import InputError
from torchwise.records import Study
from torchwise.records.study import study_from_dict


def find_study(name: str, store: str | None) -> Study:
    """Return the study that `name` means.

    Raises:
        InputError: there is none; the message says what there is.
    """
    if name.endswith(".json"):
        return read_study(Path(name))
    from torchwise.store import open_storage

    with open_storage(store) as storage:
        if name == "latest":
            summaries = storage.list_studies(limit=1)
            if not summaries:
                raise InputError("the store holds no study yet: torchwise tune TARGET makes one")
            return storage.get_study(summaries[0].id)
        if not name.isdigit():
            raise InputError(f"study is {name!r}, but must be a number, `latest` or a .json file")
        return storage.get_study(int(name))


def read_study(file: Path) -> Study:
    """Read a study from JSON.

    Raises:
        InputError: the file cannot be read, or holds no study.
    """
    try:
        data = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{file} holds no JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{file} holds no study: it is a {type(data).__name__}")
    return study_from_dict(data)
