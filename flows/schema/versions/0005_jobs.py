"""Stages that a run has others build."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table of jobs."""
    op.create_table(
        "jobs",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("stage", sa.String, primary_key=True),
        sa.Column("system", sa.String, nullable=False),
        sa.Column("urgency", sa.Float, nullable=False),
        sa.Column("work", sa.String, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.Column("outcome", sa.String, nullable=True),
    )


def downgrade() -> None:
    """Remove the table of jobs."""
    op.drop_table("jobs")
