"""A run as one static HTML file that can be mailed: no script, nothing loaded from anywhere, light and dark.

In reading order: `page` (the whole), `tables`, `figures` (which curves), `trajectories` (which rollouts, and how they
read), `charts` (SVG), `html` (everything escaped), `style.css`.
"""
