"""The jump host, the way in by ssh for people who log in at the Hub: one address for all sessions that they may use.

An sshd of OpenSSH on a port of its own knows one user, `jump`, who has no shell, and forwards connections to sessions.
It asks the monitor, whose child it is, about each key (AuthorizedKeysCommand): the monitor answers with the sessions
that the key's person may use just then, and ends connections when that is over. Without the monitor, there is no sshd.

`sessions.ssh` is the sshd inside of each session, and its port on this machine; `gateway` is the way in by a browser.
"""
