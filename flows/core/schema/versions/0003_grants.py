"""Shares with their ends, and the visits of guests."""

import sqlalchemy as sa
from alembic import op

revision = "grants"
down_revision = "owners"

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "grants",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("owner", "server", "kind", "subject", "by")),
        sa.Column("at", moment, nullable=False),
        sa.Column("until", moment, nullable=True),
        sa.Column("ended", moment, nullable=True, index=True),
    )
    op.create_table(
        "visits",
        sa.Column("session", sa.String, primary_key=True),
        sa.Column("person", sa.String, primary_key=True),
        sa.Column("seen", moment, nullable=True),
        sa.Column("told", moment, nullable=True),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("visits")
    op.drop_table("grants")
