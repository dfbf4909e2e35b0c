"""Nothing works: either something would be lost by a stop, or there is nothing at all."""

from __future__ import annotations

from flows.sessions.model import USER
from tests.support.activity.room import (
    IDLE,
    STATE,
    Row,
    in_tmux,
    log_in_from_outside,
    open_a_tab,
    open_jupyter_terminal,
    ssh,
)

ROWS = (
    # --- Nothing works, and something would be lost
    Row("a file open in an editor", STATE, in_tmux("nano text"), "pgrep nano", "open: nano text", quick=True),
    Row(
        "a history in its pager",
        STATE,
        in_tmux(
            "git init -q . && git -c user.name=x -c user.email=x commit -q --allow-empty -m x",
            "git -c core.pager='less -+F' log",
        ),
        "pgrep less",
        "waits for less: git",
    ),
    Row(
        "a prompt of IPython",
        STATE,
        in_tmux("ipython"),
        "tmux capture-pane -p -t work | grep 'In \\[1'",
        "ipython",
        jupyter=True,
    ),
    Row(
        "a wait for ever at a terminal",
        STATE,
        in_tmux("sleep infinity &"),
        "pgrep -f 'sleep infinity'",
        "for ever: sleep",
    ),
    Row(
        "a tunnel of ssh that nobody uses",
        STATE,
        lambda room: log_in_from_outside(room, "-N", "-L", "/tmp/refit-tunnel:127.0.0.1:9"),
        f"pgrep -fx 'sshd: {USER}'",
        "a tunnel that nobody uses now",
        quiet=900,
    ),
    Row(
        "a program that is suspended",
        STATE,
        in_tmux("sleep 900"),
        "tmux send-keys -t work C-z; ps -o stat= -C sleep | grep -q T",
        "suspended: sleep 900",
    ),
    Row(
        "a loop that asks for lines",
        STATE,
        in_tmux("touch there; while read line; do date; done"),
        "test -e there",
        "asks for a line: bash",
        quick=True,
    ),
    Row("a prompt of Python", STATE, in_tmux("python3"), "pgrep python3 -t pts/0", "open: python3"),
    Row(
        "a pager that is suspended",
        STATE,
        in_tmux("less /etc/passwd"),
        "tmux send-keys -t work C-z; ps -o stat= -C less | grep -q T",
        "suspended: less",
    ),
    Row(
        "a person who looks at tmux",
        STATE,
        lambda room: room.terminal("tmux", "new-session", "bash"),
        "pgrep -f 'tmux new-session' && tmux list-clients | grep -q .",
        "attached: tmux",
    ),
    Row(
        "an ssh login in which nobody has typed for long",
        STATE,
        log_in_from_outside,
        "touch -a -d '-20 minutes' /dev/pts/[0-9]*",
        "nothing typed for 20 min",
        quiet=900,
    ),
    Row("a kernel with variables", STATE, lambda room: room.cell("import sys; answer = 42"), because="answer (int)"),
    # --- Nobody and nothing
    Row("nothing at all", IDLE, "true", quick=True),
    Row(
        "a shell at its prompt",
        IDLE,
        lambda room: room.terminal("bash").wait_for("$"),
        because="at its prompt",
        quick=True,
    ),
    Row("tmux at a prompt", IDLE, in_tmux("true"), "pgrep bash", "at its prompt", quick=True),
    Row("a shell in a shell", IDLE, in_tmux("sh", "bash -i"), "test $(pgrep -c bash) -gt 1", "at its prompt"),
    Row(
        "a terminal in which something has ended",
        IDLE,
        in_tmux("sleep 0.1", "touch ended"),
        "test -e ended",
        "at its prompt",
    ),
    Row(
        "a line that somebody has typed half",
        IDLE,
        in_tmux("true"),
        "tmux send-keys -t work -l rm; tmux capture-pane -p -t work | grep '\\$ rm'",
        "at its prompt",
    ),
    Row("another shell at its prompt", IDLE, in_tmux("dash"), "pgrep -x dash", "at its prompt: dash"),
    Row("an agent for ssh keys", IDLE, "eval $(ssh-agent)", "pgrep ssh-agent", "ssh-agent", quick=True),
    Row("agents of GnuPG", IDLE, "gpg-agent --daemon; dirmngr --daemon", "pgrep dirmngr", "gpg-agent"),
    Row("a message bus", IDLE, "dbus-daemon --session --fork", "pgrep dbus-daemon", "dbus-daemon"),
    Row("a server for ssh", IDLE, ssh("true"), "! tmux ls 2>/dev/null", "sshd"),
    Row(
        "git's memory for passwords",
        IDLE,
        "printf 'host=x\nprotocol=https\nusername=x\npassword=x\n' | git credential-cache store",
        "pgrep -f cache--daemon",
        "credential-cache",
    ),
    Row("a language server", IDLE, "mkfifo ~/asks; setsid pylsp <>~/asks >/dev/null 2>&1 &", "pgrep pylsp", "pylsp"),
    Row("a kernel that nobody has used", IDLE, lambda room: room.post("/api/kernels"), because="was never used"),
    Row("a tab of a browser that stays open", IDLE, open_a_tab, because="connected to the IDE"),
    Row("a terminal of JupyterLab that was closed", IDLE, open_jupyter_terminal, because="at its prompt"),
)
