"""Builds of people's own profiles that were asked for through the API, and wait for their turn."""

import sqlalchemy as sa
from alembic import op

revision = "own_build_requests"
down_revision = "session_packages"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "own_build_requests",
        sa.Column("bundle", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("begun", sa.DateTime(timezone=True), nullable=True),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("own_build_requests")
