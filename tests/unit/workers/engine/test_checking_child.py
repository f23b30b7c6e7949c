"""The answers of the process that checks models: a sentence for what is wrong, else nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread

from penstock.functions.wire import Wire
from penstock.models import Model
from penstock.workers.engine.checking_child import main


def test_each_record_is_answered_until_nobody_asks_any_more(tmp_path: Path) -> None:
    right = Model(name="m", title="", runner="fake", processor="none", source=str(tmp_path), revision="1")
    ours, theirs = socket.socketpair()
    thread = Thread(target=main, args=(theirs.detach(),))
    thread.start()
    wire, answers = Wire(ours), []
    wire.send("init")
    for model in (right, right.model_copy(update={"runner": "nothing"}), right):
        wire.send("check", model.model_dump(mode="json"))
        answers.append(wire.receive()["value"])
    wire.shut()
    wire.close()
    thread.join()
    assert answers[0] == answers[2] == ""
    assert answers[1].startswith("there is no runner 'nothing'; known runners: ")
