#!/bin/sh
# slot [run]: process 1 of a slot. It waits at its gate, runs what was written for it, and ends when that ends by itself.
# slot write N | start GENERATION NUMBER | warm GENERATION NUMBER | run-next N start|warm GENERATION NUMBER [wait] | open GENERATION NUMBER | wait | stop SECONDS NUMBER | state | childless:
# what Refit calls beside it, as the same user.
set -u
slot=/run/refit/slots/$REFIT_SLOT
home=/run/refit/home/dev
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
    until [ "$(cat "$slot/awake" 2>/dev/null)" = "$mine" ]; do
        tries=$((tries - 1)); [ $tries -gt 0 ] || { echo "its process 1 does not begin" >&2; exit 75; }
        sleep 0.01
    done
}

# A number of a lease that is lower than one that was here before belongs to a Refit that was taken for dead.
fence() {
    before=$(cat "$slot/number" 2>/dev/null || echo 0)
    [ "$1" -ge "$before" ] || { echo "number $1 is out of date; $before was here" >&2; exit 75; }
    echo "$1" >"$slot/number.new" && mv "$slot/number.new" "$slot/number"
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

lead() { # where /home/dev, which each slot has for itself, leads: nowhere yet, or to the home
    ln -sfn "$1" /home/.dev && mv -fT /home/.dev /home/dev
}

begin() { # generation number late
    fence "$2"
    [ ! -s "$slot/running" ] || { [ "$(cat "$slot/running")" = "$1" ] && return 0; echo "it runs already" >&2; exit 75; }
    rm -f "$slot/stopping" /dev/shm/refit-waits
    echo "$1 $3" >"$slot/gate"
    tries=0
    until [ -s "$slot/running" ]; do
        tries=$((tries + 1)); [ $tries -lt 1000 ] || { echo "it does not begin" >&2; exit 75; }
        sleep 0.01
    done
}

run() {
    mkdir -p "$slot"
    rm -f "$slot/gate" "$slot/running" "$slot/stopping"
    mkfifo "$slot/gate"
    born >"$slot/awake"
    trap 'echo 1 >"$slot/stopping"; kill -TERM -1; wait; exit 0' TERM
    while :; do
        generation='' late=''
        read -r generation late <"$slot/gate" || continue
        if [ "$late" = late ]; then lead /; else mkdir -p $home || exit 73; lead $home; fi
        REFIT_LATE=$late sh "$slot/program" </dev/null &
        child=$!
        # From here on no program, but what the shell does itself: `stop` kills all that process 1 has started.
        echo "$generation" >"$slot/running"
        wait "$child"
        code=$?
        : >"$slot/running"
        [ -s "$slot/stopping" ] || exit "$code"
        : >"$slot/stopping"
    done
}

stop() { # seconds number
    fence "$2"
    [ -s "$slot/running" ] || exit 0
    echo 1 >"$slot/stopping"
    kill -TERM -1 2>/dev/null
    tries=$(($1 * 50))
    while [ -n "$(others)" ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); sleep 0.02; done
    kill -KILL -1 2>/dev/null
    tries=500
    while [ -s "$slot/running" ] || [ -n "$(others)" ]; do
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
    seen=$(others) programs=0
    # shellcheck disable=SC2086 # pairs of a process and its parent
    set -- $seen
    while [ $# -gt 0 ]; do
        [ "$2" -le 1 ] || return 1
        programs=$((programs + $2)); shift 2
    done
    [ $programs -eq 1 ]
}

verb=${1:-run}
[ $# -eq 0 ] || shift
case $verb in
run | write) ;;
*) awake ;;
esac
case $verb in
run) run ;;
write) head -c "$1" >"$slot/program.new" && mv "$slot/program.new" "$slot/program" ;;
start) begin "$1" "$2" now ;;
warm) begin "$1" "$2" late ;;
run-next) # N VERB GENERATION NUMBER: the program, of so many bytes, and what begins it, in one call
    head -c "$1" >"$slot/program.new" && mv "$slot/program.new" "$slot/program" || exit 75
    begin "$3" "$4" "$([ "$2" = warm ] && echo late || echo now)"
    [ "${5:-}" != wait ] || await
    ;;
wait) await ;;
open)
    fence "$2"
    [ "$(cat "$slot/running" 2>/dev/null)" = "$1" ] || { echo "generation $1 does not wait here" >&2; exit 75; }
    mkdir -p $home && lead $home
    ;;
stop) stop "$1" "$2" ;;
state) cat "$slot/running" 2>/dev/null || true ;;
childless) childless ;;
*) echo "slot: unknown: $verb" >&2; exit 64 ;;
esac
