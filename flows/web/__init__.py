"""Pages that people open in a browser beside their IDEs, and how it is known which person opens them.

`hub` runs inside of JupyterHub, the `authorizer` and `my_sessions` beside it; `people` has the questions that all three
ask the Hub.
"""
