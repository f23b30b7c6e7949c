"""The answers of the process that checks models: a sentence for what is wrong, else nothing."""

from __future__ import annotations

import os
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

from penstock.models import Model
from penstock.workers.engine.checking_child import main


def test_each_record_is_answered_until_nobody_asks_any_more(tmp_path: Path) -> None:
    right = Model(name="m", title="", runner="fake", processor="none", source=str(tmp_path), revision="1")
    ours, theirs = Pipe()
    thread = Thread(target=main, args=(os.dup(theirs.fileno()),))
    theirs.close()
    thread.start()
    answers = []
    with ours:
        for model in (right, right.model_copy(update={"runner": "nothing"}), right):
            ours.send_bytes(model.model_dump_json().encode())
            answers.append(ours.recv_bytes().decode())
    thread.join()
    assert answers[0] == answers[2] == ""
    assert answers[1].startswith("there is no runner 'nothing'; known runners: ")
