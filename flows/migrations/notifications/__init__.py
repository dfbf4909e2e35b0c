"""Messages: notices for owners about rollouts and builds, tables and charts for operators."""
