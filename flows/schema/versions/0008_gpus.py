"""GPUs that sessions and people have taken from the pool."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the table of who has which GPU."""
    op.create_table(
        "gpus",
        sa.Column("machine", sa.String, primary_key=True),
        sa.Column("gpu", sa.String, primary_key=True),
        sa.Column("seat", sa.Integer, primary_key=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
    )


def downgrade() -> None:
    """Remove the table of GPUs."""
    op.drop_table("gpus")
