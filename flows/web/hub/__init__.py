"""JupyterHub in front of sessions: its spawner, its proxy, its accounts, and the authorizer of the gateway.

A server of the Hub is a session of Refit. The Hub knows who somebody is; where a session is and whose, Refit knows.
"""
