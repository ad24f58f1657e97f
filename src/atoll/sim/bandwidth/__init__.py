"""What the links between sites must carry, by method: an event model, closed forms, the papers' tables."""
