from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flows.images.grafting import graft_fit
from flows.images.grafting.graft_fit import DEVICE, FILE, FOLDER, HARDLINK, SYMLINK, Entry, Layer, Tree
from tests.support.examples import several

pytestmark = pytest.mark.slow

ROOT_FOLDER = Entry(FOLDER, 0o755, 0, 0)


def file(content: str = "x", mode: int = 0o644, uid: int = 0) -> Entry:
    return Entry(FILE, mode, uid, 0, content, len(content))


def layer(*members: tuple[str, Entry] | str) -> Layer:
    """Plain names are files; names with `/` at the end are folders."""
    return graft_fit.layer(
        member if isinstance(member, tuple) else (member, ROOT_FOLDER if member.endswith("/") else file())
        for member in members
    )


def problems(old: Layer, new: Layer, *carried: Layer) -> dict[str, str]:
    different = graft_fit.differing(graft_fit.merge([old]), graft_fit.merge([new]))
    return {obstacle.path: obstacle.reason for obstacle in graft_fit.obstacles(carried, different)}


PARENT = layer("etc/", "etc/passwd", "opt/", "opt/app-root/", "usr/", "usr/lib", "etc/ld.so.cache")
PYTHON = layer("opt/", "opt/app-root/", "opt/app-root/six.py")


def changed(*members: tuple[str, Entry] | str) -> Layer:
    return Layer(whole({**PARENT.entries, **layer(*members).entries}))


def whole(entries: Tree) -> Tree:
    """Those that a tree on a disk can have together: nothing stands below what isn't a folder."""
    return {
        path: entry
        for path, entry in entries.items()
        if all(entries.get(above, ROOT_FOLDER).kind == FOLDER for above in graft_fit.ancestors(path))
    }


def without(path: str) -> Layer:
    return Layer({name: entry for name, entry in PARENT.entries.items() if name != path})


class TestTraps:
    def test_a_new_user_of_the_base_is_no_obstacle_for_whom_it_does_not_concern(self) -> None:
        assert problems(PARENT, changed(("etc/passwd", file("new user"))), PYTHON) == {}

    def test_a_new_user_is_one_for_a_layer_that_has_users_of_its_own(self) -> None:
        result = problems(PARENT, changed(("etc/passwd", file("new user"))), PYTHON, layer("etc/", "etc/passwd"))
        assert list(result) == ["etc/passwd"]

    def test_a_library_cache_that_is_carried_would_hide_the_new_one(self) -> None:
        assert "etc/ld.so.cache" in problems(
            PARENT, changed(("etc/ld.so.cache", file("new"))), layer("etc/", "etc/ld.so.cache")
        )

    @pytest.mark.parametrize("entry", [Entry(FOLDER, 0o775, 0, 0), Entry(FOLDER, 0o755, 1, 0)])
    def test_a_carried_layer_would_take_back_the_new_mode_or_owner_of_its_ancestor(self, entry: Entry) -> None:
        result = problems(PARENT, changed(("opt", entry)), PYTHON)
        assert list(result) == ["opt"]
        assert "owner and mode" in result["opt"]

    @pytest.mark.parametrize("member", ["opt/app-root/x", "opt/.wh.app-root"])
    def test_an_ancestor_counts_where_the_layer_does_not_carry_it(self, member: str) -> None:
        assert list(problems(PARENT, changed(("opt", Entry(FOLDER, 0o775, 0, 0))), layer(member))) == ["opt"]

    def test_an_ancestor_that_became_a_symlink(self) -> None:
        assert "opt" in problems(PARENT, changed(("opt", Entry(SYMLINK, 0o777, 0, 0, "usr/opt"))), PYTHON)

    def test_a_whiteout_of_what_changed(self) -> None:
        result = problems(PARENT, changed(("usr/lib", file("new"))), layer("usr/", "usr/.wh.lib"))
        assert "remove" in result["usr/lib"]

    def test_a_whiteout_of_what_is_gone(self) -> None:
        assert list(problems(PARENT, without("usr/lib"), layer("usr/.wh.lib"))) == ["usr/lib"]

    def test_a_whiteout_of_a_folder_with_something_new_in_it(self) -> None:
        result = problems(PARENT, changed("opt/app-root/new"), layer("opt/", "opt/.wh.app-root"))
        assert "hide all below /opt/app-root" in result["opt/app-root/new"]

    def test_an_opaque_folder_with_something_new_in_it(self) -> None:
        result = problems(PARENT, changed("opt/app-root/a/new"), layer("opt/", "opt/app-root/.wh..wh..opq"))
        assert list(result) == ["opt/app-root/a", "opt/app-root/a/new"]

    def test_an_opaque_folder_is_no_obstacle_for_what_is_elsewhere(self) -> None:
        assert problems(PARENT, changed("usr/new"), layer("opt/", "opt/app-root/.wh..wh..opq")) == {}

    def test_an_opaque_folder_counts_itself(self) -> None:
        new_mode = changed(("opt/app-root", Entry(FOLDER, 0o775, 0, 0)))
        assert list(problems(PARENT, new_mode, layer("opt/", "opt/app-root/.wh..wh..opq"))) == ["opt/app-root"]

    def test_the_whole_root_can_be_opaque(self) -> None:
        assert "usr/new" in problems(PARENT, changed("usr/new"), layer(".wh..wh..opq"))
        assert graft_fit.merge([PARENT, layer("new", ".wh..wh..opq")]) == {"new": file()}

    def test_a_file_in_the_place_of_a_folder_with_something_new_in_it(self) -> None:
        assert "opt/app-root/new" in problems(PARENT, changed("opt/app-root/new"), layer("opt/", "opt/app-root"))

    def test_a_hard_link_to_what_changed_in_the_parent(self) -> None:
        link = ("opt/link", Entry(HARDLINK, 0o644, 0, 0, "./usr/lib"))
        assert list(problems(PARENT, changed(("usr/lib", file("new"))), layer("opt/", link))) == ["usr/lib"]
        assert problems(PARENT, changed(("etc/passwd", file("new"))), layer("opt/", link)) == {}

    def test_extended_attributes_and_devices_count(self) -> None:
        assert graft_fit.differing({"a": file()}, {"a": file()._replace(xattrs="security.capability=01")}) == {"a"}
        assert graft_fit.differing({"a": Entry(DEVICE, 0, 0, 0, "c 1:3")}, {"a": Entry(DEVICE, 0, 0, 0, "c 1:5")}) == {
            "a"
        }


class TestMerging:
    def test_whiteouts_concern_the_layers_below_only(self) -> None:
        upper = layer("opt/.wh..wh..opq", "opt/new", "usr/.wh.lib", ("usr/lib", file("again")))
        tree = graft_fit.merge([PARENT, upper])
        assert tree["opt/new"] == file()
        assert tree["usr/lib"] == file("again")
        assert "opt/app-root" not in tree
        assert tree["opt"] == ROOT_FOLDER

    def test_what_is_below_a_removed_or_replaced_folder_is_gone(self) -> None:
        assert not [
            path for path in graft_fit.merge([PARENT, layer(".wh.etc", "opt")]) if path.startswith(("etc", "opt/"))
        ]

    def test_names_are_told_apart_by_whole_parts(self) -> None:
        tree = graft_fit.merge([layer("a/", "a/x", "ab/", "ab/x"), layer(".wh.a")])
        assert list(tree) == ["ab", "ab/x"]

    def test_a_folder_gets_another_mode_and_keeps_what_is_in_it(self) -> None:
        tree = graft_fit.merge([PARENT, layer(("opt", Entry(FOLDER, 0o700, 5, 5)))])
        assert tree["opt"].mode == 0o700
        assert "opt/app-root" in tree

    def test_hard_links_are_what_they_link_to(self) -> None:
        tree = graft_fit.merge([layer("a", ("b", Entry(HARDLINK, 0, 0, 0, "a")))])
        assert tree["b"] == tree["a"] == file()
        with pytest.raises(ValueError, match="/b is a hard link to /gone"):
            graft_fit.merge([layer(("b", Entry(HARDLINK, 0, 0, 0, "gone")))])

    def test_folders_that_a_layer_leaves_out_are_implied(self) -> None:
        tree = graft_fit.merge([layer("a"), layer("a/b/c")])
        assert tree["a"] == tree["a/b"] == ROOT_FOLDER

    def test_of_two_members_with_one_name_the_later_counts(self) -> None:
        assert graft_fit.merge([layer("a", ("./a", file("later")))])["a"] == file("later")

    def test_the_bookkeeping_of_aufs_is_left_out(self) -> None:
        assert layer(".wh..wh.plnk", ".wh..wh.aufs") == Layer()

    def test_no_path_leads_out(self) -> None:
        with pytest.raises(ValueError, match="leads out"):
            layer("a/../../b")


class TestClosedLayers:
    def test_a_layer_within_its_folder(self) -> None:
        assert graft_fit.strays(PYTHON, ["/opt/app-root"]) == ()

    def test_whatever_is_outside_is_found(self) -> None:
        upper = layer("opt/", "opt/app-root/x", "opt/app-rooted", "usr/bin/y", "opt/.wh.z", "opt/.wh..wh..opq")
        assert graft_fit.strays(upper, ["/opt/app-root"]) == ("opt", "opt/app-rooted", "opt/z", "usr/bin/y")

    def test_ancestors_that_stay_as_they_are(self) -> None:
        assert graft_fit.changed_ancestors(PYTHON, graft_fit.merge([PARENT])) == ()

    @pytest.mark.parametrize(
        ("upper", "parent", "what"),
        [
            (layer(("opt", Entry(FOLDER, 0o775, 0, 0))), PARENT, "0:0, mode 0775"),
            (layer("opt/"), changed(("opt", Entry(SYMLINK, 0o777, 0, 0, "usr"))), "the parent has a symlink"),
            (layer("opt/app-root/x"), PARENT, "not the folder itself"),
        ],
    )
    def test_a_changed_ancestor_is_named(self, upper: Layer, parent: Layer, what: str) -> None:
        result = graft_fit.changed_ancestors(upper, graft_fit.merge([parent]))
        assert result[0].path == "opt"
        assert what in str(result[0])


NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "b/a/a"])
ENTRIES = st.builds(
    Entry,
    st.sampled_from([FILE, FOLDER, FOLDER, SYMLINK]),
    st.sampled_from([0o755, 0o700]),
    st.sampled_from([0, 1]),
    st.just(0),
    st.sampled_from(["1", "2"]),
)
LINKS = st.builds(Entry, st.just(HARDLINK), st.just(0), st.just(0), st.just(0), NAMES)
PARENTS = st.dictionaries(NAMES, ENTRIES, max_size=6).map(whole).map(Layer)
CHANGES = st.tuples(st.dictionaries(NAMES, ENTRIES, max_size=2), st.sets(NAMES, max_size=2))
CARRIED = st.builds(
    Layer,
    st.dictionaries(NAMES, ENTRIES | LINKS, max_size=3).map(whole),
    st.frozensets(NAMES, max_size=1),
    st.frozensets(NAMES | st.just(""), max_size=1),
)


def _merged(parent: Layer, carried: list[Layer]) -> Tree | None:
    try:
        return graft_fit.merge([parent, *carried])
    except ValueError:  # a hard link to nothing: no build makes one
        return None


# Most changes of a parent are obstacles here, where all paths are near each other.
@settings(suppress_health_check=[HealthCheck.filter_too_much], max_examples=several(200))
@given(PARENTS, CHANGES, st.lists(CARRIED, min_size=1, max_size=2))
def test_without_obstacles_a_graft_has_what_was_carried_and_all_else_of_its_new_parent(
    old: Layer, changes: tuple[dict[str, Entry], set[str]], carried: list[Layer]
) -> None:
    created, removed = changes
    new = Layer(whole({path: e for path, e in {**old.entries, **created}.items() if path not in removed}))
    built = _merged(old, carried)
    assume(built is not None and not problems(old, new, *carried))
    assert built is not None
    grafted = _merged(new, carried)
    assert grafted is not None
    before, after = graft_fit.merge([old]), graft_fit.merge([new])
    for path in {*built, *grafted, *before, *after}:
        same = before.get(path) == after.get(path)
        assert grafted.get(path) == (built.get(path) if same else after.get(path)), path
    for upper in carried:
        assert all(grafted.get(path) == built.get(path) for path in upper.entries)


@given(CARRIED, st.frozensets(NAMES | st.sampled_from(["", "c", "c/a"]), max_size=3))
def test_where_a_layer_does_not_reach_it_has_no_obstacles(upper: Layer, different: frozenset[str]) -> None:
    assume(not graft_fit.may_meet(graft_fit.reach(upper), different))
    assert graft_fit.obstacles([upper], different) == ()


def test_most_changes_of_a_parent_are_out_of_reach() -> None:
    regions = graft_fit.reach(PYTHON)
    assert regions == {"opt", "opt/app-root"}
    assert not graft_fit.may_meet(regions, frozenset({"etc/passwd", "usr/lib", "opt/other/x", "usr"}))
    assert graft_fit.may_meet(regions, frozenset({"opt/app-root/bin/python"}))
    assert graft_fit.may_meet(regions, frozenset({"opt"}))


@given(PARENTS, st.lists(CARRIED, min_size=1, max_size=2))
def test_on_an_equal_parent_everything_can_be_carried(parent: Layer, carried: list[Layer]) -> None:
    assert problems(parent, parent, *carried) == {}
