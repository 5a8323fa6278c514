"""Programs that try to make their own rollout void: an extra try on demand, or a group that is dropped."""
