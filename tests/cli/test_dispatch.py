from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import pytest

import brim
from brim.cli import main
from brim.cli.dispatch import COMMANDS
from brim.errors import CheckpointError, NoPlanFits


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Puts a function in the place of `brim plan`."""

    def replace(run) -> None:
        module = types.ModuleType("brim.cli.plan")
        module.run = run
        monkeypatch.setitem(sys.modules, "brim.cli.plan", module)

    return replace


def failing(error: BaseException):
    def run(arguments: list[str]) -> int:
        raise error

    return run


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"brim {brim.__version__}\n"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command(word, capsys):
    assert main([word]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and summary in shown for name, (_, summary) in COMMANDS.items())


def test_no_command_is_a_usage_error(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert (shown.out, "usage: brim" in shown.err) == ("", True)


def test_an_unknown_command_gets_the_nearest_one(capsys):
    assert main(["trian"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "brim: no command `trian`\n\nhint: did you mean `train`?\n"


def test_a_command_gets_its_arguments_and_gives_the_exit_code(command):
    got = []
    command(lambda arguments: got.append(arguments) or 75)
    assert main(["plan", "a b.toml", "--help"]) == 75
    assert got == [["a b.toml", "--help"]]


@pytest.mark.parametrize(("error", "code"), [(CheckpointError("it is gone"), 1), (NoPlanFits("too large"), 3)])
def test_an_error_is_a_message_and_its_own_exit_code(command, capsys, error, code):
    error.hint = "look there"
    command(failing(error))
    assert main(["plan"]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"brim: {error.message}\n\nhint: look there\n")


def test_a_bug_is_not_hidden(command):
    command(failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["plan"])


def test_ctrl_c_ends_with_130(command, capsys):
    command(failing(KeyboardInterrupt()))
    assert main(["plan"]) == 130
    assert capsys.readouterr().err == "brim: interrupted\n"


def test_sigterm_ends_with_130_too_and_its_handler_is_put_back(command, capsys):
    before = signal.getsignal(signal.SIGTERM)
    command(lambda arguments: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["plan"]) == 130
    assert capsys.readouterr().err == "brim: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_goes_away_is_no_traceback():
    loud = (
        "import sys, types; m = types.ModuleType('m'); m.run = lambda a: [print('x' * 99) for _ in range(9999)] and 0; "
    )
    program = loud + "sys.modules['brim.cli.plan'] = m; from brim.cli import main; raise SystemExit(main(['plan']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 1


def test_the_module_is_the_command_too():
    command = [sys.executable, "-m", "brim", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, f"brim {brim.__version__}\n")
