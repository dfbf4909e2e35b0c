"""JupyterHub in front of sessions: its spawner, its proxy, its accounts, and what it adds to its pages.

A server of the Hub is a session of Refit. The Hub knows who somebody is; where a session is and whose, Refit knows.
"""
