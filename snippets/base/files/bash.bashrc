# For interactive shells. A session's user may have no name, so the prompt shows the session's.
[ -z "${PS1-}" ] && return
shopt -s checkwinsize
PS1='\[\e[1;32m\]${REFIT_SESSION:-refit}\[\e[0m\]:\[\e[1;34m\]\w\[\e[0m\]\$ '
