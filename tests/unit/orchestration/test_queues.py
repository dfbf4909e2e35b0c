"""Decisions about queues, without a server."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.schemas.objects import WorkPool

from flows.catalog.load import load_catalog
from flows.catalog.load import profile as load_profile
from flows.catalog.model import Base, Catalog, Profile, Release
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.host import tools
from flows.orchestration import admission, queues
from flows.orchestration.admission import Request
from tests.support.machine import ROOT

HERE = platform.machine()


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that can make Debian bases, and no others."""
    (tmp_path / "mmdebstrap").write_text("#!/bin/sh\n")
    (tmp_path / "mmdebstrap").chmod(0o755)
    monkeypatch.setattr(tools, "program", lambda name: tmp_path / name if (tmp_path / name).exists() else None)


def another(base: Base, name: str, family: str) -> Base:
    return replace(base, name=name, config=base.config.model_copy(update={"family": family}))


@pytest.fixture
def catalog() -> Catalog:
    """The catalog, with one more operating system of each family; the release ships two profiles on all of them."""
    own_catalog = load_catalog(ROOT)
    bases = [own_catalog.bases["deb12"], another(own_catalog.bases["deb12"], "deb13", "deb")]
    bases.append(another(own_catalog.bases["deb12"], "c9s", "rpm"))

    def moved(profile: Profile, base: Base) -> Profile:
        return replace(profile, base=base, stem=profile.stem.replace("deb12", base.name))

    chosen = [load_profile(own_catalog, "2026a", f"{ide}-minimal-deb12-py311") for ide in ("jupyter", "runtime")]
    shipped = tuple(moved(profile, base) for profile in chosen for base in bases)
    release = Release("2026a", shipped)
    return replace(own_catalog, bases={base.name: base for base in bases}, releases={"2026a": release})


def pools(catalog: Catalog, *held: str) -> dict[str, WorkPool]:
    return {
        name: WorkPool(
            name=queues.pool_of(name),
            type="process",
            base_job_template=queues.template(base),
            is_paused=name in held,
            default_queue_id="00000000-0000-0000-0000-000000000000",
        )
        for name, base in catalog.bases.items()
    }


@pytest.mark.parametrize(("pool", "system"), [("refit-deb12", "deb12"), ("refit", ""), ("other-deb12", "")])
def test_the_pool_tells_the_system(pool: str, system: str) -> None:
    assert queues.system_of(pool) == system
    assert queues.is_ours(pool) is (pool != "other-deb12")


@pytest.mark.parametrize(
    ("family", "architecture", "only", "why"),
    [
        ("deb", HERE, (), ""),
        ("deb", HERE, ("deb12",), ""),
        ("deb", HERE, ("deb13", "c9s"), "`build_targets` names only deb13, c9s"),
        ("rpm", HERE, (), "dnf is not installed"),
        ("rpm", HERE, ("deb12",), "dnf is not installed"),
        ("deb", "pdp11", (), f"it is for pdp11, and this machine is {HERE}"),
    ],
)
def test_a_machine_builds_what_it_can_and_shall(
    tmp_path: Path, family: str, architecture: str, only: tuple[str, ...], why: str
) -> None:
    template = {"builds": {"family": family, "architecture": architecture}}
    assert queues.obstacle("deb12", template, Settings(home=tmp_path, build_targets=only)) == why


def test_a_base_that_needs_something_is_built_where_that_is_offered(catalog: Catalog, tmp_path: Path) -> None:
    plain = catalog.bases["deb12"]
    needy = replace(plain, config=plain.config.model_copy(update={"needs": ("gpu", "kernel-6.6")}))
    why = queues.obstacle("deb12", queues.template(needy), Settings(home=tmp_path, capabilities=("gpu", "tape")))
    assert why == "it needs kernel-6.6, which this machine's `capabilities` don't name"
    assert (
        queues.obstacle("deb12", queues.template(needy), Settings(home=tmp_path, capabilities=("gpu", "kernel-6.6")))
        == ""
    )


def test_a_worker_serves_the_queues_that_its_machine_can_build_for(catalog: Catalog, tmp_path: Path) -> None:
    all_pools = pools(catalog, "deb13").values()
    # A held queue is served as well: nothing comes from it, and nothing has to be started when it is released.
    assert queues.servable(all_pools, Settings(home=tmp_path)) == ("refit-deb12", "refit-deb13")
    assert queues.servable(all_pools, Settings(home=tmp_path, build_targets=("deb13",))) == ("refit-deb13",)


def test_what_is_paused_or_needs_another_machine_is_left_out_and_the_rest_is_built(
    catalog: Catalog, tmp_path: Path
) -> None:
    bases = catalog.bases.values()
    closed = admission.closed(bases, pools(catalog, "deb13"), Settings(home=tmp_path))
    assert closed == {"deb13": "it is paused", "c9s": "dnf is not installed"}
    share = admission.split(catalog.releases["2026a"].profiles, closed)
    assert {profile.base.name for profile in share.profiles} == {"deb12"}
    assert share.left == closed
    everything = admission.split(catalog.releases["2026a"].profiles, {})
    assert everything.profiles == catalog.releases["2026a"].profiles and not everything.left


def test_what_several_machines_share_needs_one_that_can_build_it_wherever_the_run_is(
    catalog: Catalog, tmp_path: Path
) -> None:
    shares = Settings(home=tmp_path, builders=2, build_targets=("deb13",))
    closed = admission.closed(catalog.bases.values(), pools(catalog, "deb12"), shares, {"c9s": ["host"], "deb13": []})
    assert closed == {"deb12": "it is paused", "deb13": "no machine is there whose worker builds for it"}


def test_jobs_of_a_cluster_build_for_any_system_but_one_that_is_paused(catalog: Catalog, tmp_path: Path) -> None:
    jobs = ClusterSettings(builder_job=tmp_path / "job.yaml")
    shares = Settings(home=tmp_path, builders=2, kubernetes=jobs)
    closed = admission.closed(catalog.bases.values(), pools(catalog, "deb12"), shares)
    assert closed == {"deb12": "it is paused"}


def test_a_system_without_a_queue_is_open(catalog: Catalog, tmp_path: Path) -> None:
    assert admission.closed([catalog.bases["deb12"]], {}, Settings(home=tmp_path)) == {}


def test_profiles_are_chosen_by_system(catalog: Catalog) -> None:
    stems = [profile.stem for profile in admission.select(Request("2026a", systems=["deb13"]), catalog)]
    assert stems == ["jupyter-minimal-deb13-py311", "runtime-minimal-deb13-py311"]
    assert len(admission.select(Request("2026a"), catalog)) == 6


def test_a_system_that_is_not_there_or_has_nothing_is_a_mistake(catalog: Catalog) -> None:
    with pytest.raises(UnknownName, match="no operating system 'deb14'") as unknown:
        admission.select(Request("2026a", systems=["deb14"]), catalog)
    assert "Known: c9s, deb12, deb13." in unknown.value.why
    with pytest.raises(RefitError, match="is for deb13"):
        admission.select(Request("2026a", ["runtime-minimal-deb12-py311"], ["deb13"]), catalog)
