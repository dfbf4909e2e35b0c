"""All tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "initial"
down_revision = None

moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables, and the rows that others count on."""
    _leases_and_sessions()
    _moves()
    _rollouts()
    _events()
    _images()
    _trust()


def downgrade() -> None:
    """Remove the tables."""
    images = ("revocations", "publications", "tallies", "jobs", "stages")
    migrations = ("chain", "events", "rollouts", "steps", "moves", "wish_changes", "wishes")
    for table in (*images, *migrations, "gpus", "sessions", "homes", "leases"):
        op.drop_table(table)


def _leases_and_sessions() -> None:
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
        sa.Column("spec", sa.String, nullable=False),
        sa.Column("wanted", sa.Boolean, nullable=False),
        sa.Column("created", moment, nullable=False),
        sa.Column("asked", moment, nullable=True),
    )
    op.create_table(
        "gpus",
        sa.Column("machine", sa.String, primary_key=True),
        sa.Column("gpu", sa.String, primary_key=True),
        sa.Column("seat", sa.Integer, primary_key=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("since", moment, nullable=False),
        sa.Column("until", moment, nullable=True),
    )


def _moves() -> None:
    op.create_table(
        "moves",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("before", sa.String, nullable=False),
        sa.Column("after", sa.String, nullable=False),
        sa.Column("packages", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("code", sa.String, nullable=True),
        sa.Column("created", moment, nullable=False),
        sa.Column("consent", sa.String, nullable=True),
        sa.Column("wave", sa.Integer, nullable=True),
        sa.Column("damaged", sa.Boolean, nullable=False),
        sa.Column("ended", moment, nullable=True),
    )
    op.create_table(
        "steps",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("move", sa.String, sa.ForeignKey("moves.id"), nullable=False, index=True),
        sa.Column("step", sa.String, nullable=False),
        sa.Column("phase", sa.String, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.Column("code", sa.String, nullable=True),
        sa.Column("data", sa.String, nullable=False),
    )


def _rollouts() -> None:
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
        sa.Column("replay", sa.Boolean, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
    )
    op.create_table(
        "wish_changes",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
    )
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


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("session", sa.String, nullable=False, index=True),
        sa.Column("image", sa.String, nullable=False, index=True),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
        sa.Column("data", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    chain = op.create_table(
        "chain",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    op.bulk_insert(chain, [{"id": 1, "number": 0, "digest": ""}])


def _images() -> None:
    op.create_table(
        "stages",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, index=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("inputs", sa.String, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("built", moment, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("stage", sa.String, primary_key=True),
        sa.Column("system", sa.String, nullable=False),
        sa.Column("urgency", sa.Float, nullable=False),
        sa.Column("work", sa.String, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.Column("outcome", sa.String, nullable=True),
    )
    tallies = op.create_table(
        "tallies",
        sa.Column("how", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.bulk_insert(tallies, [{"how": how, "number": 0} for how in ("built", "grafted", "reused")])


def _trust() -> None:
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
