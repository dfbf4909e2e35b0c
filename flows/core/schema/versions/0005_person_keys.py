"""Public keys of people, with which they come in by ssh."""

import sqlalchemy as sa
from alembic import op

revision = "person_keys"
down_revision = "snapshots"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "person_keys",
        sa.Column("fingerprint", sa.String, primary_key=True),
        sa.Column("person", sa.String, nullable=False, index=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("kind", "body", "title")),
        sa.Column("added", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("person_keys")
