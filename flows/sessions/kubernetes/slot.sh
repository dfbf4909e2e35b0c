#!/bin/sh
# slot [run]: process 1 of a slot. It waits at its gate, runs what was written for it, and ends when that ends by itself.
# slot run-next N start|warm GENERATION NUMBER sure|ask|BORN [wait] | open GENERATION NUMBER | stop SECONDS NUMBER | state | childless |
#     keys VERSION GENERATION NUMBER | sshd VERSION GENERATION NUMBER | hang-up: what Refit calls beside it, as the same user.
set -u
slot=/run/refit/slots/$REFIT_SLOT
home=/run/refit/home/dev
ssh=/run/refit/sshd
umask 077

# When process 1 was started: another time in each container that this slot has, whose files stay.
born() {
    read -r line </proc/1/stat
    # The name of a program stands in brackets, and may have blanks and brackets in it.
    # shellcheck disable=SC2086 # fields
    set -- ${line##*)}
    echo "${20}"
}

# What an earlier container has left means nothing: wait until process 1 of this one has put it away.
awake() {
    mine=$(born) tries=3000
    until [ -s "$slot/awake" ] && [ "$(cat "$slot/awake" 2>/dev/null)" = "$mine" ]; do
        tries=$((tries - 1)); [ $tries -gt 0 ] || { echo "its process 1 does not begin" >&2; exit 75; }
        sleep 0.01
    done
}

# Whether no number of a lease was here that is higher.
is_newest() {
    for lease in "$slot"/leases/*; do
        [ "${lease##*/}" -gt "$1" ] 2>/dev/null && { newer=${lease##*/}; return 1; }
    done
    return 0
}

# A number of a lease that is lower than one that was here before belongs to a Refit that was taken for dead. Each
# number has a file of its own: of two that come at the same time, none can undo the other.
fence() {
    : >"$slot/leases/$1" || exit 75
    is_newest "$1" || { echo "number $1 is out of date; $newer was here" >&2; exit 75; }
    for lease in "$slot"/leases/*; do
        [ "${lease##*/}" -lt "$1" ] 2>/dev/null && rm -f "$lease"
    done
    return 0
}

# Kubelet has put this container in the place of one that ended, and may not have told the API server yet: say which
# container it is, and begin nothing.
check_told() { # sure|ask|BORN
    mine=$(born) up=0
    [ "$1" != sure ] && [ "$1" != "$mine" ] && [ -e "$slot/restarted" ] || return 0
    read -r up _ </proc/uptime
    age=$((${up%.*} - mine / 100))
    [ $age -ge 10 ] || { echo "$mine"; exit 0; }
}

# Processes other than process 1, this script and its own children; the dead that nobody has waited for don't count.
others() {
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        pid=${line%% *}
        if [ "$pid" = 1 ] || [ "$pid" = "$$" ]; then continue; fi
        # The name of a program stands in brackets, and may have blanks and brackets in it.
        # shellcheck disable=SC2086 # fields
        set -- ${line##*)}
        [ "$1" = Z ] || [ "$2" = $$ ] || echo "$pid $2"
    done
}

size() { # bytes of a text; images of small systems have no `wc`
    LC_ALL=C
    text=$(cat "$1" && echo .) || text=.
    echo $((${#text} - 1))
}

lead() { # where /home/dev, which each slot has for itself, leads: nowhere yet, or to the home
    ln -sfn "$1" /home/.dev && mv -fT /home/.dev /home/dev
}

begin() { # generation number late program
    again=''
    if [ -s "$slot/running" ]; then
        rm -f "$4"
        [ "$(cat "$slot/running")" = "$1" ] || { echo "it runs already" >&2; exit 75; }
        again=1
    else
        rm -f "$slot/stopping" /dev/shm/refit-waits
        echo "$1 $3 $2 $4" >"$slot/gate"
    fi
    tries=0
    until [ -s "$slot/begun" ]; do
        tries=$((tries + 1)); [ $tries -lt 1000 ] || { echo "it does not begin" >&2; exit 75; }
        if [ ! -e "$4" ] && [ ! -s "$slot/running" ]; then echo "it was stopped, or a later Refit came" >&2; exit 75; fi
        sleep 0.01
    done
    if [ "$again$3" = 1now ]; then let_home_in "$1"; fi # it may wait for it
}

let_home_in() { # generation
    mkdir -p $home && lead $home && serve_beside "$1"
}

# --- sshd -----------------------------------------------------------------------------------------------------------

# The slots of a Pod have one network, so it begins when its slot gets the home: the other one has ended by then.
serve_beside() { # generation
    # All of it: who has called this waits for whatever holds its output.
    { [ ! -s $ssh/authorized_keys ] || serve "$1"; } </dev/null >/proc/1/fd/2 2>&1 &
}

# Whether a generation is in this slot, and is not being stopped. Process 1 forgets the generation before it forgets that
# it was to stop, so they are read the other way round. A FIFO that a program of the session has put there has no size.
is_here() { # generation
    [ ! -s "$slot/stopping" ] && [ -s "$slot/running" ] && [ "$(cat "$slot/running")" = "$1" ]
}

check_has_home() { # generation
    if [ ! -s "$slot/begun" ] || ! is_here "$1" || [ "$(readlink /home/dev)" != $home ]; then
        echo "generation $1 does not run here with its home" >&2
        exit 75
    fi
}

sshds() { # pid and parent of all that are called so: the one that listens, and those that serve connections
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        case $line in *"(sshd)"* | *"(sshd-session)"* | *"(sshd-auth)"*) ;; *) continue ;; esac
        pid=${line%% *}
        # shellcheck disable=SC2086 # fields
        set -- ${line##*)}
        [ "$1" = Z ] || echo "$pid $2"
    done
}

# The one that listens, if it runs. A file could tell of another process: programs of the session can write it.
listener() {
    sockets=$(cat /proc/net/tcp /proc/net/tcp6 | while read -r _ here _ state _ _ _ _ _ inode _; do
        case $here-$state in *:08AE-0A) echo "socket:[$inode] " ;; esac # port 2222, which listens
    done)
    [ -n "$sockets" ] || return 0
    sshds | while read -r pid parent; do
        if [ "$parent" = 1 ] && has_open "$pid" "$sockets"; then echo "$pid"; exit; fi
    done
} 2>/dev/null

has_open() { # pid sockets: whether it has one of them open
    for descriptor in "/proc/$1/fd"/*; do
        link=$(readlink "$descriptor") || continue
        case $2 in *"$link "*) return 0 ;; esac
    done
    return 1
} 2>/dev/null

# The sockets of connections that come from these ends, each of which the kernel writes so, with a blank on both sides.
sockets_from() { # ends
    [ -n "$1" ] || return 0
    cat /proc/net/tcp /proc/net/tcp6 | while read -r _ here there state _ _ _ _ _ inode _; do
        case $here-$state in *:08AE-01) ;; *) continue ;; esac # port 2222, which is connected
        case $1 in *" $there "*) echo "socket:[$inode] " ;; esac
    done
} 2>/dev/null

serve() { # generation; with the variables of the program
    [ -z "$(listener)" ] || return 0
    is_here "$1" || { echo "generation $1 does not run here" >&2; return 75; }
    if [ ! -x /usr/sbin/sshd ] || [ ! -r /etc/ssh/session_config ]; then echo "its image has no sshd for sessions" >&2; return 69; fi
    /bin/sh "$slot/program" enter /bin/sh /run/refit/bin/slot serve || return
    # `stop` looks for what runs here: one of the two sees the other.
    is_here "$1" || { end_sshds >/dev/null; echo "generation $1 was stopped" >&2; return 75; }
}

# Logins get what the session has, which sshd doesn't hand on by itself. It can't be told a value with a line break.
variables() {
    env -0 | sed -z -e '/^\(HOME\|USER\|LOGNAME\|SHELL\|TERM\|PWD\|OLDPWD\|SHLVL\|REFIT_SLOT\|REFIT_LATE\|_\)=/d' \
        -e '/\n/d' -e 's/["\\]/\\&/g' -e 's/=/="/' -e 's/$/"/' | tr '\0' ' '
}

become_sshd() {
    config=$(mktemp "$slot/sshd_config.XXXXXX") || exit 73
    { printf 'SetEnv %s\n' "$(variables)" && sed "s|/run/refit/ssh/|$ssh/|g" /etc/ssh/session_config; } >"$config" || exit 73
    mv -fT "$config" "$slot/sshd_config" || exit 73
    # The folder of a Secret has the modes of one that everybody may write to; its mount is read-only, as sshd can't see.
    set -- -o StrictModes=no
    [ ! -s $ssh/host_key-cert.pub ] || set -- "$@" -o HostCertificate=$ssh/host_key-cert.pub
    exec /usr/sbin/sshd -f "$slot/sshd_config" "$@" -E /proc/1/fd/2
}

await_keys() { # until kubelet has brought this version
    tries=450
    until [ "$(cat $ssh/version 2>/dev/null)" = "$1" ]; do
        tries=$((tries - 1)); [ $tries -gt 0 ] || { echo "its keys do not come" >&2; exit 75; }
        sleep 0.2
    done
}

without() { # sockets: the sshds that have none of them open
    sshds | while read -r pid parent; do
        [ -n "$1" ] && has_open "$pid" "$1" || echo "$pid $parent"
    done
}

end_sshds() { # ends: all but those that serve connections which come from there; how many
    ended=0 tries=500 kept=$(sockets_from "${1:-}")
    while seen=$(without "$kept") && [ -n "$seen" ]; do
        # shellcheck disable=SC2086 # pairs of a process and its parent
        set -- $seen
        while [ $# -gt 0 ]; do
            kill -KILL "$1" 2>/dev/null && ended=$((ended + 1))
            shift 2
        done
        # One that was just about to serve somebody may have come since.
        tries=$((tries - 1)); [ $tries -gt 0 ] || { echo "its connections do not end: $seen" >&2; exit 75; }
        sleep 0.02
    done
    echo $ended
}

# All of its connections, but those that Refit knows by where they come from; how many. Nothing in the session can tell
# of one that is to be spared: which process has which connection is the kernel's word.
hang_up() { # ends
    main=$(listener)
    ended=$(end_sshds "$1") || exit
    [ -z "$main" ] || ended=$((ended - 1))
    echo "$ended"
    [ -s "$slot/running" ] || return 0
    generation=$(cat "$slot/running")
    if (check_has_home "$generation") 2>/dev/null; then serve_beside "$generation"; fi
}

# --- Process 1 ------------------------------------------------------------------------------------------------------

run() {
    mkdir -p "$slot/leases"
    rm -f "$slot/gate" "$slot/running" "$slot/begun" "$slot/stopping" "$slot/restarted" "$slot"/program.* "$slot"/sshd_config*
    # `told`: kubelet was told to replace the last container. On a disk: a node that is started again has it still.
    [ ! -e /home/.begun ] || [ -e /home/.told ] || : >"$slot/restarted"
    rm -f /home/.told
    : >/home/.begun
    mkfifo "$slot/gate"
    born >"$slot/awake"
    # With the exit code of a signal: one whose user ends the program may have 0, and is left as it is.
    trap ': >/home/.told; echo 1 >"$slot/stopping"; kill -TERM -1; wait; exit 143' TERM
    while :; do
        generation='' late='' number='' program=''
        read -r generation late number program <"$slot/gate" || continue
        # It comes before the look at what `stop` writes before it reads this: one of the two sees the other.
        echo "$generation" >"$slot/running"
        if [ -s "$slot/stopping" ] || ! is_newest "$number"; then : >"$slot/running"; rm -f "$program"; continue; fi
        if ! { mv "$program" "$slot/program" && if [ "$late" = late ]; then lead /; else let_home_in "$generation"; fi; }; then
            [ -s "$slot/stopping" ] || exit 73
            : >"$slot/running"; : >"$slot/stopping"; continue # `stop` kills all that process 1 has started
        fi
        REFIT_LATE=$late sh "$slot/program" </dev/null &
        child=$!
        # From here on no program, but what the shell does itself, for the same reason.
        echo 1 >"$slot/begun"
        wait "$child"
        code=$?
        : >"$slot/begun"; : >"$slot/running"
        [ -s "$slot/stopping" ] || exit "$code"
        : >"$slot/stopping"
    done
}

stop() { # seconds number
    fence "$2"
    echo 1 >"$slot/stopping"
    # Also where nothing has begun: a call whose connection was lost may be about to begin something.
    kill -TERM -1 2>/dev/null
    tries=$(($1 * 50))
    while [ -n "$(others)" ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); sleep 0.02; done
    tries=500
    # Such a call may have removed `stopping`. Once none is left, it stays, and process 1 begins nothing more.
    until [ -z "$(others)" ] && echo 1 >"$slot/stopping" && [ ! -s "$slot/running" ]; do
        echo 1 >"$slot/stopping"
        kill -KILL -1 2>/dev/null # also what has come by an exec since
        tries=$((tries - 1)); [ $tries -gt 0 ] || { echo "it does not end: $(cat "$slot/running" 2>/dev/null) $(others)" >&2; exit 75; }
        sleep 0.01
    done
}

await() { # until what begins here waits for nothing but its home
    tries=6000
    until [ -e /dev/shm/refit-waits ]; do
        tries=$((tries - 1))
        if [ ! -s "$slot/running" ] || [ $tries -eq 0 ]; then echo "it does not wait for its home" >&2; exit 75; fi
        sleep 0.01
    done
}

childless() { # whether nothing runs but the program itself, and what was let in beside it
    seen=$(others) programs=0 main=$(listener)
    # shellcheck disable=SC2086 # pairs of a process and its parent
    set -- $seen
    while [ $# -gt 0 ]; do
        if [ "$1" != "$main" ]; then
            [ "$2" -le 1 ] || return 1
            programs=$((programs + $2))
        fi
        shift 2
    done
    [ $programs -eq 1 ]
}

verb=${1:-run}
[ $# -eq 0 ] || shift
[ "$verb" = run ] || awake
case $verb in
run) run ;;
run-next) # the program, of so many bytes, and what begins it, in one call
    fence "$4"
    check_told "$5"
    # A name of its own: of two that come at the same time, the one that is refused has changed nothing.
    next=$slot/program.$4.$$
    head -c "$1" >"$next"
    # A connection that breaks ends its input early, which `head` takes for the end.
    [ "$(size "$next")" -eq "$1" ] || { rm -f "$next"; echo "its program has not come as a whole" >&2; exit 75; }
    begin "$3" "$4" "$([ "$2" = warm ] && echo late || echo now)" "$next"
    [ "${6:-}" != wait ] || await
    ;;
open)
    fence "$2"
    [ -s "$slot/begun" ] && waits=$(cat "$slot/running" 2>/dev/null) || waits=''
    [ "$waits" = "$1" ] || { echo "generation $1 does not wait here" >&2; exit 75; }
    let_home_in "$1"
    ;;
stop) stop "$1" "$2" ;;
state) [ ! -s "$slot/begun" ] || cat "$slot/running" 2>/dev/null || true ;;
childless) childless ;;
keys)
    fence "$3"
    await_keys "$1"
    ;;
sshd)
    fence "$3"
    check_has_home "$2"
    await_keys "$1"
    fence "$3"
    check_has_home "$2"
    [ ! -s $ssh/authorized_keys ] || serve "$2"
    ;;
serve) become_sshd ;;
hang-up) hang_up "$(cat)" ;;
*) echo "slot: unknown: $verb" >&2; exit 64 ;;
esac
