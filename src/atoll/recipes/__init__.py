"""Ready models on real data, so that a run needs nothing but a name: no hub, no download.

A recipe is everything a learner's loop asks for: the model, its optimizer, the learning-rate
schedule, a learner's own batches, the loss, the held-out score, and the settings of the run that
suit them. The same name, size and seed give the same weights and the same batches on every machine
with the same Python.

    recipe = load_recipe("gemma", "tiny")
    model = recipe.build_model()
    for batch in recipe.batches(Shard(index=0, count=4, seed=0)):
        recipe.loss(model, batch).backward()

`catalogue` names the recipes and their numbers, `recipe` is the object above. Behind it stand `order` (which
example comes when), `text`, `examples` and `variants` (the data), `models`, `networks`, `shapes` and `hub`
(the networks, ours and the user's own), and `learning` (optimizer, schedule, loss). Importing this package
imports neither torch nor transformers.
"""

from __future__ import annotations

from atoll.recipes.catalogue import RECIPES, SIZES, load_recipe, recipe_from
from atoll.recipes.recipe import Batch, Recipe, Shard

__all__ = ["RECIPES", "SIZES", "Batch", "Recipe", "Shard", "load_recipe", "recipe_from"]
