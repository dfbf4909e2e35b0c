"""Whose a session is, for those who have several."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column to the table of wishes."""
    op.add_column("wishes", sa.Column("owner", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("wishes", "owner")
