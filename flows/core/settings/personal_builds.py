"""Limits for builds of recipes that nobody vouches for, as people write them: `personal_builds:` in settings.yaml."""

from __future__ import annotations

from pydantic import Field

from flows.core.documents import Document

# Label of the images of people's own, with the person. Refit writes it, so no recipe can leave it out.
OWNER_LABEL = "io.refit.owner"


class PersonalBuilds(Document):
    """Limits of the builds of people's own profiles: of each stage, and of each person."""

    at_once: int = Field(1, ge=0, description="Builds of people's own profiles that run at once; 0: there are none.")
    hours_a_day: float = Field(2.0, ge=0, description="Hours that the builds of one person may take in 24 hours.")
    builds_a_day: int = Field(20, ge=0, description="Builds of one person's profiles that begin in 24 hours.")
    profiles: int = Field(5, ge=0, description="Bundles of their own that one person may have.")
    image_gb: float = Field(8.0, gt=0, description="GB (compressed) that an image of a person's own may have.")
    images_gb: float = Field(40.0, gt=0, description="GB (compressed) that all images of one person may have together.")
    minutes: float = Field(60.0, gt=0, description="Minutes that one step of a recipe may take.")
    memory_gb: float = Field(4.0, gt=0, description="GB of memory, swap included, that one step may take.")
    processes: int = Field(1024, ge=16, description="Processes and threads that one step may have.")
    disk_gb: float = Field(20.0, ge=1, description="GB of disk that a stage and all that it stands on may take.")
    first_uid: int = Field(
        1_000_000, ge=65_536, description="First of the 65,536 uids of this machine that such builds run with."
    )
