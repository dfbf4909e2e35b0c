"""What stages were built from, and what came out."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the ledger of stages."""
    op.create_table(
        "stages",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, index=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("inputs", sa.String, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("built", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    """Remove the ledger of stages."""
    op.drop_table("stages")
