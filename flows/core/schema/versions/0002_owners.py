"""Homes know whose they are, also when their session is gone."""

import sqlalchemy as sa
from alembic import op

revision = "owners"
down_revision = "initial"


def upgrade() -> None:
    """Give homes an owner: the one that their session has."""
    op.add_column("homes", sa.Column("owner", sa.String, nullable=False, server_default=""))
    op.execute(
        "UPDATE homes SET owner = (SELECT owner FROM wishes WHERE wishes.session = homes.name) "
        "WHERE name IN (SELECT session FROM wishes)"
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_column("homes", "owner")
