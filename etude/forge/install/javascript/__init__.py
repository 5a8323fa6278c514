"""JavaScript repositories: `npm_settings` (where packages come from), `project_facts`, `installer`."""
