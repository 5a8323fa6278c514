"""Files of sandboxes on disk, named by their content.

Reading order:

- `layers.py`              the store: read-only trees and snapshots; `importing.py` refuses hostile trees
- `overlay_changes.py`     what an overlay's upper folder says was changed
- `packed_changes.py`      those changes in one file, and back
- `copied_tree.py`         layers and changes where there is no overlay
- `frozen_sandboxes.py`    changes beside the memory of programs, sealed
"""
