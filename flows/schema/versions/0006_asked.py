"""Since when a session ought to run or not."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column to the table of sessions."""
    op.add_column("sessions", sa.Column("asked", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("sessions", "asked")
