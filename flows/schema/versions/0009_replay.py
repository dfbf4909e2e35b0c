"""Whether packages that were installed by hand come along when a session moves."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column to the table of wishes."""
    op.add_column("wishes", sa.Column("replay", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("wishes", "replay")
