"""The way in from people's own machines: an sshd that does nothing but lead them on to the sessions that they may use.

It is OpenSSH's, on a port of its own, and knows one user, `jump`, who has no shell. It asks the keeper, whose child it
is, about each key: the keeper answers with the sessions that the key's person may use just then, and ends connections
when that is over. Without the keeper, there is no sshd.
"""
