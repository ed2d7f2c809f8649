"""Plan files: YAML read with the place of each part, checked, and written."""
