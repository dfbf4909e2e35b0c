"""The sshd inside of each session: whose keys it takes, its host key, and the port of this machine that leads to it.

It is the way in by ssh for those who have a key on the session (`refit session ssh`). `jump` is in front of it where
people log in at the Hub.
"""
