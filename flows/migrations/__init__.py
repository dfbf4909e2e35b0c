"""Moves of sessions onto other images: each a journalled state machine, carried out, rehearsed, on record.

The modules here are one move: `move` decides by the table `move_steps`, `executor` carries out and writes to `journal`,
`recovery` and `orphaned_moves` end what was interrupted. `start_sessions`, `switch_profile` and `drains` begin
moves outside of rollouts; `lost_sessions` starts those whose containers are gone.

* `rollouts`: all sessions of an image, observed, planned and moved wave by wave.
* `planning`: which session moves when. Pure.
* `rehearsals`: an image has to show on a copy of the home that it can start.
* `steps`: the effects of the steps and of what undoes them.
* `snapshots`: states of a home that people go back to, and clones.
* `notifications`: what owners and operators are told.
"""
