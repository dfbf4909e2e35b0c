"""Who answers for sessions that are away: a page with the reason, and how long it takes."""
