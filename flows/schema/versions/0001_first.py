"""Leases, homes, sessions, moves and their steps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "leases",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("until", moment, nullable=False),
    )
    op.create_table(
        "homes",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("uid", sa.Integer, nullable=False, unique=True),
        sa.Column("created", moment, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("name", sa.String, sa.ForeignKey("homes.name"), primary_key=True),
        sa.Column("port", sa.Integer, nullable=True, unique=True),
        sa.Column("spec", sa.String, nullable=False),
        sa.Column("wanted", sa.Boolean, nullable=False),
        sa.Column("created", moment, nullable=False),
    )
    op.create_table(
        "moves",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("before", sa.String, nullable=False),
        sa.Column("after", sa.String, nullable=False),
        sa.Column("packages", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("created", moment, nullable=False),
    )
    op.create_table(
        "steps",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("move", sa.String, sa.ForeignKey("moves.id"), nullable=False, index=True),
        sa.Column("step", sa.String, nullable=False),
        sa.Column("phase", sa.String, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("note", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Remove the first tables."""
    for table in ("steps", "moves", "sessions", "homes", "leases"):
        op.drop_table(table)
