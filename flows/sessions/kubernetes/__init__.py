"""Sessions as Pods of a Kubernetes cluster (experimental).

A session has one Pod with two containers, its slots. One slot runs the session; the other waits for the next image, so
that a move stops one program and lets another begin, and nothing is scheduled or attached meanwhile. A ConfigMap for
each generation is the record of what it is made from.
"""
