"""Bundles of people's own: whose a name is, the recipe, and how its builds went."""

import sqlalchemy as sa
from alembic import op

revision = "own_profiles"
down_revision = "snapshot_rules"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "own_bundles",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False, index=True),
        sa.Column("profile", sa.String, nullable=False, unique=True),
        sa.Column("release", sa.String, nullable=False),
        sa.Column("recipe", sa.Text, nullable=False),
        sa.Column("offered", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "own_builds",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("bundle", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False, index=True),
        sa.Column("began", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("own_builds")
    op.drop_table("own_bundles")
