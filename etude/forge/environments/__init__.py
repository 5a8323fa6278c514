"""Installed environments and what runs in them: `environment`, `fake_clock` (another date), `suite_run`."""
