"""Actions that people asked for: which go on, and what came of the others."""

import sqlalchemy as sa
from alembic import op

revision = "person_actions"
down_revision = "own_build_results"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "person_actions",
        sa.Column("person", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("service", sa.String, nullable=False),
        sa.Column("verb", sa.String, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True)),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("person_actions")
