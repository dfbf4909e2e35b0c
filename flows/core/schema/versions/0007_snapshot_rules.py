"""How long the snapshots of single sessions stay, and how often they are taken."""

import sqlalchemy as sa
from alembic import op

revision = "snapshot_rules"
down_revision = "rollbacks"


def upgrade() -> None:
    """Make the table."""
    session = sa.ForeignKey("sessions.name", ondelete="CASCADE")
    op.create_table(
        "snapshot_rules",
        sa.Column("session", sa.String, session, primary_key=True),
        sa.Column("every_hours", sa.Float, nullable=True),
        sa.Column("newest", sa.Integer, nullable=True),
        sa.Column("days", sa.Integer, nullable=True),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("snapshot_rules")
