"""Rollouts, the hash-chained history, and what a move knows of both."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables of rollouts and of the history; a move gets its wave, its consent and how it ended."""
    op.add_column("moves", sa.Column("consent", sa.String, nullable=False, server_default=""))
    op.add_column("moves", sa.Column("wave", sa.Integer, nullable=True))
    op.add_column("moves", sa.Column("damaged", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("moves", sa.Column("ended", moment, nullable=True))
    op.create_table(
        "rollouts",
        sa.Column("image", sa.String, primary_key=True),
        sa.Column("profile", sa.String, nullable=False),
        sa.Column("release", sa.String, nullable=False),
        sa.Column("begun", moment, nullable=False),
        sa.Column("canary", sa.String, nullable=False),
        sa.Column("way", sa.String, nullable=False),
        sa.Column("approved", sa.Integer, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("image", sa.String, nullable=False, index=True),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    chain = op.create_table(
        "chain",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    op.bulk_insert(chain, [{"id": 1, "number": 0, "digest": ""}])


def downgrade() -> None:
    """Remove the tables, and what moves know of them."""
    for table in ("chain", "events", "rollouts"):
        op.drop_table(table)
    with op.batch_alter_table("moves") as moves:
        for column in ("ended", "damaged", "wave", "consent"):
            moves.drop_column(column)
