"""Try model types and write the page: `python -m tests.what_runs [--try TASK [TYPE ...]]`.

`--try` records in `supported_types.json` what tiny networks of the types of a task show: all that the installed
transformers knows, or the named ones. Without it, only the outcomes of the tests with whole requests and the page are
written anew.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from typing import Any

from penstock.workers.engine.transformers.supported_types import FILE, outcomes
from penstock.workers.engine.transformers.tasks import Task
from tests.what_runs.dedicated import DEDICATED
from tests.what_runs.page import PAGE, page
from tests.what_runs.reasons import reason_of


def main() -> None:
    """Try what the command line names, and write the file and the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.what_runs", description=__doc__)
    parser.add_argument("--try", dest="task", type=Task, choices=list(Task), help="task whose types to try")
    parser.add_argument("types", nargs="*", help="model types to try [all]")
    asked = parser.parse_args()
    tasks: dict[str, dict[str, Any]] = {task: dict(found) for task, found in outcomes().items()} | {
        task: dict(found) for task, found in DEDICATED.items()
    }
    if asked.task is not None:
        _try(asked.task, asked.types, tasks)
    write(tasks)


def write(tasks: dict[str, dict[str, Any]]) -> None:
    """Write the outcomes, and the page from them."""
    data = {
        "versions": {name: version(name).partition("+")[0] for name in ("transformers", "torch")},
        "tasks": {str(task): dict(sorted(tasks[task].items())) for task in sorted(tasks)},
    }
    lines = json.dumps(data, indent=1, ensure_ascii=False).replace('[\n    "', '["').replace('",\n    "', '", "')
    FILE.write_text(lines.replace('"\n   ]', '"]') + "\n", encoding="utf-8")
    outcomes.cache_clear()
    PAGE.write_text(page(), encoding="utf-8")


def _try(task: Task, kinds: list[str], tasks: dict[str, dict[str, Any]]) -> None:
    from penstock.workers.engine.transformers.directory import known_types
    from tests.what_runs.trials import tried

    kinds = kinds or sorted(known_types().by_task[task])
    for kind, found in tried(task, kinds):
        tasks.setdefault(task, {})[kind] = reason_of(task, kind, found) if isinstance(found, str) else found
        print(f"{kind}: {tasks[task][kind]}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
