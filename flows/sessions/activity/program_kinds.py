"""Kinds of programs: a shell, an editor, a REPL, a helper. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from flows.sessions.activity.evidence import Process

SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})


# They read whole lines at their prompts; the others edit them, and take each key.
PLAIN_SHELLS = frozenset({"ash", "dash", "sh"})


# Those that wait for a person who has something open in them. A REPL is one only without a program to run.
EDITORS = ("editor", "emacs", "emacs-*", "less", "micro", "more", "nano", "nvim", "vi", "vim", "vim.*", "htop", "top")


REPLS = ("R", "ghci", "irb", "julia", "node", "python", "python3*")


# These have a prompt whatever they were begun with.
PROMPTS = ("bpython", "gdb", "ipdb", "ipython", "ipython3*", "pdb", "ptpython", "pudb")


INTERPRETERS = (*SHELLS, "node", "perl", "python", "python3*", "ruby")


# Programs that wait for others to ask them, without a terminal; with work to do they show it by what they use.
HELPERS = (
    *("dbus-daemon", "dbus-launch", "dirmngr", "gpg-agent", "keyboxd", "scdaemon", "ssh-agent"),
    *("git-credential-cache--daemon", "git-fsmonitor--daemon", "watchman"),
    *("*-language-server", "*-language-server.js", "*-langserver", "*-langserver.js", "*-lsp", "clangd", "gopls"),
    *("jdtls", "pylsp", "rust-analyzer", "tsserver.js", "typingsInstaller.js", "multiprocessing.resource_tracker"),
)


# OpenSSH's name for the server of a connection, in its first word; the second name is that of 9.8 and later.
SSHD = ("sshd", "sshd-session")


# How Python starts a helper of its own.
_MODULE = re.compile(r"(?<=^from )multiprocessing\.resource_tracker(?= import main;)")


def takes_commands(process: Process) -> bool:
    """Whether it is a shell into which a person types: no script, no command, no pipe."""
    words = [word for word in process.argv[1:] if not word.startswith("-")]
    rc = [
        after for word, after in zip(process.argv, process.argv[1:], strict=False) if word.endswith(("-file", "rcfile"))
    ]
    return is_shell(process) and "-c" not in process.argv and words == rc and at_terminal(process)


def is_repl(process: Process) -> bool:
    """Whether a person types into it what it is to execute."""
    program, words = program_of(process.argv), process.argv[1:]
    if not at_terminal(process) or any(word.startswith(("--file=", "-f=")) for word in words):
        return False
    if matches(program, PROMPTS):
        return True
    name = PurePosixPath(process.argv[0]).name
    return matches(name, REPLS) and (not operands(process.argv) or "-i" in words)


def is_open(process: Process) -> bool:
    """Whether a person has an editor or pager open in it."""
    return matches(program_of(process.argv), EDITORS) and process.group in process.foregrounds


def waits_for_ever(argv: tuple[str, ...]) -> bool:
    """Whether a program does nothing by itself, and never ends: its person looks at it, or has forgotten it."""
    name, words = PurePosixPath(argv[0]).name, argv[1:]
    follows = any(re.fullmatch(r"-[a-zA-Z]*[fF][a-zA-Z]*|--follow(=.*)?", word) for word in words)
    return (name == "tail" and follows) or (name == "sleep" and words in (("infinity",), ("inf",)))


def is_shell(process: Process) -> bool:
    """Whether it is a shell, whatever it was begun with."""
    return name_of(process) in SHELLS


def name_of(process: Process) -> str:
    """The name of its program, by its first word."""
    return PurePosixPath(process.argv[0].removeprefix("-")).name


def at_terminal(process: Process) -> bool:
    """Whether its input is a terminal."""
    return process.stdin.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def program_of(argv: tuple[str, ...]) -> str:
    """The name of a program; behind an interpreter, that of what it runs, empty for text on its command line."""
    name = PurePosixPath(argv[0].removeprefix("-")).name
    if not (rest := operands(argv)):
        return name
    if name == "git":
        return f"git-{rest[0]}"
    if not matches(name, INTERPRETERS):
        return name
    if rest[0] == "-c":
        return (_MODULE.search(argv[-1]) or [""])[0]
    return PurePosixPath(rest[0]).name


def operands(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The words after the options; `-c` stands for text, and a module of Python for a program."""
    words = iter(argv[1:])
    for word in words:
        if word in ("-c", "-e", "--eval", "-p"):
            return ("-c",)
        if word == "-m":
            return tuple(words)
        if word in ("-W", "-X", "-r", "--require"):
            next(words, "")
        elif not word.startswith("-") or word == "-":
            return (word, *words)
    return ()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these, which may have wildcards."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
