"""Words of Kubernetes' API: kinds that aren't of its core, with the groups that have them, and verbs. Pure."""

BUDGETS, POLICIES, SNAPSHOTS = "poddisruptionbudgets", "networkpolicies", "volumesnapshots"
NOTEBOOKS, JOBS = "notebooks", "jobs"
# Kinds of objects that aren't of the core → the group of the API that has them.
GROUPS = {
    BUDGETS: "policy",
    POLICIES: "networking.k8s.io",
    SNAPSHOTS: "snapshot.storage.k8s.io",
    NOTEBOOKS: "kubeflow.org",
    JOBS: "batch",
}
# The verbs of RBAC for the methods of HTTP.
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
