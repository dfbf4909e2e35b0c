"""Words of Kubernetes' API: kinds that aren't of its core, with the groups that have them, and verbs. Pure."""

BUDGETS, POLICIES, SNAPSHOTS = "poddisruptionbudgets", "networkpolicies", "volumesnapshots"
NOTEBOOKS, JOBS = "notebooks", "jobs"
TEMPLATES, CLASSES = "resourceclaimtemplates", "deviceclasses"
# Kinds of objects that aren't of the core → the group of the API that has them.
GROUPS = {
    BUDGETS: "policy",
    POLICIES: "networking.k8s.io",
    SNAPSHOTS: "snapshot.storage.k8s.io",
    NOTEBOOKS: "kubeflow.org",
    JOBS: "batch",
    TEMPLATES: "resource.k8s.io",
    CLASSES: "resource.k8s.io",
}
# Groups whose objects are written in another form in each version → the versions that Refit writes, the best one first.
VERSIONS = {GROUPS[TEMPLATES]: ("v1", "v1beta2", "v1beta1")}
# The verbs of RBAC for the methods of HTTP.
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
