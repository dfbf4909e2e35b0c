"""Results of builds of people's own profiles, and copies of their logs for other machines."""

import sqlalchemy as sa
from alembic import op

revision = "own_build_results"
down_revision = "own_build_requests"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "own_build_results",
        sa.Column("bundle", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False, index=True),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("seen", sa.Boolean, nullable=False),
    )
    op.create_table(
        "own_build_logs",
        sa.Column("bundle", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("machine", sa.String, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("own_build_logs")
    op.drop_table("own_build_results")
