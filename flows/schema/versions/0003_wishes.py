"""What the owners of sessions want of migrations, and who said so."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables of wishes."""
    op.create_table(
        "wishes",
        sa.Column("session", sa.String, sa.ForeignKey("sessions.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("mode", sa.String, nullable=False),
        sa.Column("until", sa.Date, nullable=True),
        sa.Column("snoozed_until", moment, nullable=True),
        sa.Column("time_zone", sa.String, nullable=False),
        sa.Column("quiet", sa.String, nullable=False),
        sa.Column("volunteer", sa.Boolean, nullable=False),
        sa.Column("agreed", sa.String, nullable=False),
    )
    op.create_table(
        "wish_changes",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Remove the tables of wishes."""
    for table in ("wish_changes", "wishes"):
        op.drop_table(table)
