"""JavaScript repositories: `npm` (where packages come from), `project_facts`, `installer`."""
