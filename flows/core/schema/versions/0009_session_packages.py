"""System packages that operators have installed in sessions."""

import sqlalchemy as sa
from alembic import op

revision = "session_packages"
down_revision = "own_profiles"


def upgrade() -> None:
    """Make the table."""
    session = sa.ForeignKey("sessions.name", ondelete="CASCADE")
    op.create_table(
        "session_packages",
        sa.Column("session", sa.String, session, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("session_packages")
