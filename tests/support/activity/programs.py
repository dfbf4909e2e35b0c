"""Programs, shells and prompts that somebody has started, most of which work."""

from __future__ import annotations

from tests.support.activity.room import (
    BUSY,
    STATE,
    Row,
    in_tmux,
    ssh,
)

ROWS = (
    Row(
        "a silent nohup job",
        BUSY,
        "nohup python3 -c 'import time; time.sleep(900)' >/dev/null 2>&1 &",
        "pgrep -f time.sleep",
        "time.sleep(900)",
        quick=True,
    ),
    Row(
        "sleep in a terminal that nobody looks at",
        BUSY,
        in_tmux("sleep 900"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
        quick=True,
    ),
    Row(
        "a job in the background of a shell at its prompt",
        BUSY,
        in_tmux("sleep 900 &"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
        quick=True,
    ),
    Row("somebody types now and then", BUSY, in_tmux("true"), "pgrep bash", "somebody typed", quick=True, quiet=900),
    Row(
        "a loop in a shell",
        BUSY,
        in_tmux("while :; do :; done"),
        "ps -C bash -o time= | grep -v 00:00:00",
        "bash",
        quick=True,
    ),
    Row("a loop that mostly sleeps", BUSY, in_tmux("while sleep 0.5; do :; done"), "pgrep -fx 'sleep 0.5'"),
    Row("a loop that wakes up each minute", BUSY, in_tmux("while sleep 60; do date; done &"), "pgrep -fx 'sleep 60'"),
    Row(
        "a worker in the background of a shell, which waits for jobs",
        BUSY,
        in_tmux("mkfifo q; while read job <q; do date; done &"),
        "test -p q && test $(pgrep -c bash) -gt 1",
        "executes: bash",
        quick=True,
    ),
    Row(
        "the same worker in the foreground",
        BUSY,
        in_tmux("mkfifo q; while read job <q; do date; done"),
        "test -p q",
        "executes: bash",
        quick=True,
    ),
    Row(
        "a shell that waits for an answer from the network",
        BUSY,
        lambda room: room.run(
            in_tmux(f"exec 3<>/dev/tcp/127.0.0.1/{room.session.access.port}; touch there; read answer <&3")
        ),
        "test -e there",
        "runs: bash",
    ),
    Row(
        "a shell that waits for its job", BUSY, in_tmux("sleep 900 & wait"), "pgrep -fx 'sleep 900'", "runs: sleep 900"
    ),
    Row("a job that its shell has let go", BUSY, in_tmux("sleep 900 & disown"), "pgrep -fx 'sleep 900'", "sleep 900"),
    Row(
        "a shell that has ended before its job",
        BUSY,
        "tmux new-session -d -s work 'setsid sleep 900 & sleep 1'",
        "pgrep -fx 'sleep 900' && ! pgrep tmux",
        "sleep 900",
    ),
    Row("a program with a time limit", BUSY, in_tmux("timeout 1h sleep 900"), "pgrep -fx 'sleep 900'", "timeout 1h"),
    Row("a program that holds a lock", BUSY, in_tmux("flock lock sleep 900"), "pgrep -fx 'sleep 900'", "flock lock"),
    Row(
        "many jobs, one after the other",
        BUSY,
        in_tmux("seq 3 | xargs -n 1 sleep 90"),
        "pgrep -f 'sleep 90'",
        "xargs",
    ),
    Row(
        "a wait for ever without a terminal",
        BUSY,
        "setsid sleep infinity &",
        "pgrep -f 'sleep infinity'",
        "runs: sleep",
    ),
    Row(
        "a prompt of Python that executes",
        BUSY,
        in_tmux("python3", "open('there', 'w'); import time; time.sleep(900)"),
        "test -e there",
        "executes: python3",
        quick=True,
    ),
    Row(
        "a prompt of Python that waits for an answer from the network",
        BUSY,
        in_tmux(
            "python3",
            "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); open('there', 'w'); s.accept()",
        ),
        "test -e there",
        "executes: python3",
    ),
    Row(
        "a prompt of Python with a thread that works now and then",
        BUSY,
        in_tmux(
            "python3",
            "import threading, time; threading.Thread(target=time.sleep, args=(900,)).start(); open('there', 'w')",
        ),
        "test -e there",
        "executes: python3",
    ),
    Row(
        "a script without a terminal",
        BUSY,
        "setsid bash -c 'while :; do sleep 3; done' >/dev/null 2>&1 &",
        "pgrep -fx 'sleep 3'",
        "while :; do sleep 3",
    ),
    Row(
        "a shell that reads its commands from a pipe",
        BUSY,
        in_tmux("sleep 900 | bash"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
    ),
    Row("a pager behind a program that works", BUSY, in_tmux("(sleep 900; echo) | less"), "pgrep less", "sleep 900"),
    Row(
        "a command that a pager was asked to run",
        BUSY,
        in_tmux("less /etc/passwd"),
        "pgrep -fx 'sleep 900' || { pgrep less && tmux send-keys -t work '!sleep 900' Enter; false; }",
        "sleep 900",
    ),
    Row(
        "a commit whose message is being written",
        STATE,
        in_tmux("git init -q . && git -c user.name=x -c user.email=x commit --allow-empty"),
        "pgrep editor",
        "waits for",
    ),
    Row("tail -f of a log", STATE, in_tmux("tail -f /dev/null"), "pgrep tail", "waits for ever: tail -f"),
    Row(
        "a server that somebody has started",
        BUSY,
        in_tmux("python3 -m http.server 8765"),
        "pgrep -f 8765",
        "http.server",
    ),
    Row(
        "a script that asks its user something",
        BUSY,
        in_tmux("echo 'import code; code.interact()' >a.py; python3 a.py"),
        "pgrep -f a.py",
        "a.py",
    ),
    Row(
        "a prompt after a script, with what it has computed",
        STATE,
        in_tmux("echo 'x = 1' >a.py; python3 -i a.py"),
        "pgrep -f a.py",
        "open: python3 -i a.py",
    ),
    Row(
        "a debugger at a breakpoint of Python",
        STATE,
        in_tmux("echo 'x = 1' >a.py; python3 -m pdb a.py"),
        "pgrep -f a.py",
        "open: python3 -m pdb a.py",
    ),
    Row(
        "a debugger at a breakpoint of C",
        BUSY,
        in_tmux(
            "echo 'int main() { return 0; }' >a.c; gcc -g -o a.out a.c; gdb -q -ex 'break main' -ex starti ./a.out"
        ),
        "pgrep -x a.out",
        "stopped by a debugger",
    ),
    Row("an interactive program that nobody knows", BUSY, in_tmux("cat"), "pgrep -x cat", "cat"),
    Row(
        "a program that bears a helper's name, in a terminal",
        BUSY,
        in_tmux("cp /bin/sleep pylsp; ./pylsp 900"),
        "pgrep pylsp",
        "pylsp",
    ),
    Row("a build in tmux", BUSY, in_tmux(r"printf 'all:\n\tsleep 900\n' >Makefile; make"), "pgrep make", "make"),
    Row(
        "a compiler",
        BUSY,
        in_tmux("""python3 -c "print('int a[] = {' + '1,' * 2000000 + '};')" >a.c; while gcc -O2 -c a.c; do :; done"""),
        "pgrep cc1",
        "gcc",
    ),
    Row(
        "a download",
        BUSY,
        """
        cd; head -c 9M /dev/zero >big; python3 -m http.server 8766 & until pgrep -f 8766; do :; done
        curl --retry 9 --retry-connrefused --limit-rate 1k -o x http://127.0.0.1:8766/big &
        """,
        "test -s x",
        "curl",
    ),
    Row(
        "a copy",
        BUSY,
        "cd; head -c 90M /dev/zero >big; setsid rsync --bwlimit=1 big copy >/dev/null &",
        "pgrep rsync",
        "rsync",
    ),
    Row("an ssh login", BUSY, ssh(), "pgrep -f '^sshd: .*pts/'", "an ssh connection", quiet=900),
    Row("a command over ssh", BUSY, ssh("sleep", "900"), "pgrep -fx 'sleep 900'", "notty"),
)
