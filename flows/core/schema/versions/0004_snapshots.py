"""Snapshots that people and schedules take of sessions."""

import sqlalchemy as sa
from alembic import op

revision = "snapshots"
down_revision = "grants"


def upgrade() -> None:
    """Make the table."""
    texts = ("name", "kind", "by", "note", "image", "profile", "release", "volumes")
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("session", sa.String, sa.ForeignKey("homes.name", ondelete="CASCADE"), nullable=False, index=True),
        *(sa.Column(name, sa.String, nullable=False) for name in texts),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=True),
        sa.Column("complete", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("snapshots")
