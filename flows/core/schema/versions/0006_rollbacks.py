"""Moves that bring a home back to a snapshot."""

import sqlalchemy as sa
from alembic import op

revision = "rollbacks"
down_revision = "person_keys"


def upgrade() -> None:
    """Say of each move to which snapshot the home goes back."""
    op.add_column("moves", sa.Column("back_to", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("moves", "back_to")
