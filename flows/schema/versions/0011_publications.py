"""What was published, and what was revoked since."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables of publications and revocations."""
    op.create_table(
        "publications",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("profile", sa.String, nullable=False),
        sa.Column("release", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("at", moment, nullable=False),
    )
    op.create_table(
        "revocations",
        sa.Column("what", sa.String, primary_key=True),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("at", moment, nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("revocations")
    op.drop_table("publications")
