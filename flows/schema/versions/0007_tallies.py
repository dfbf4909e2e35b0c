"""How many stages were built, grafted, reused."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the table of tallies, with all that are counted."""
    table = op.create_table(
        "tallies",
        sa.Column("how", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.bulk_insert(table, [{"how": how, "number": 0} for how in ("built", "grafted", "reused")])


def downgrade() -> None:
    """Remove the table of tallies."""
    op.drop_table("tallies")
