"""`atoll train`: a whole fleet on this machine, watched until its budget is spent, then judged."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer
from rich.console import Console
from rich.text import Text

from atoll.cli import options as opt
from atoll.cli.judge import judge, write_recipe
from atoll.cli.logs import end_on_sigterm
from atoll.cli.settings import Kill, new_run_dir, parse_kill, parse_speeds, run_config
from atoll.cli.watch import Watch
from atoll.observe.live import Live
from atoll.observe.summary import Summary, render_summary
from atoll.recipes import Recipe, load_recipe
from atoll.runtime.processes import SYNCER, Fleet, in_child, learner_names

__all__ = ["train"]

LOOK_S = 0.2
INTERRUPTED = 130


def train(
    recipe: opt.RecipeName = "gemma",
    size: opt.Size = "tiny",
    learners: opt.Learners = None,
    steps: opt.Steps = None,
    speeds: opt.Speeds = None,
    kills: opt.Kills = None,
    algorithm: opt.Algorithm = None,
    seed: opt.Seed = 0,
    run_dir: opt.NewRunDir = None,
    config: opt.ConfigFile = None,
    settings: opt.Settings = None,
    model: opt.Model = None,
    data: opt.Data = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train a model with real processes on this machine: one syncer and several learners.

    The processes are supervised: whoever dies is started again, heals, and
    goes on. Ctrl-C stops them all. At the end the merged model is exported
    and evaluated on held-out data, the tapes of the run are checked against
    every invariant, and a summary is printed. Exit code 0 only if all is
    well.

    [dim]atoll train[/dim]

    [dim]atoll train gemma --learners 4 --speeds 1,1,0.5,1 --kill learner-1@40%[/dim]
    """
    end_on_sigterm()
    chosen = load_recipe(recipe, size, seed=seed, model=model, data=data)
    paces = parse_speeds(speeds, learners)
    planned = [parse_kill(text, [SYNCER, *learner_names(len(paces))]) for text in kills or ()]
    resolved = run_config(
        chosen,
        num_learners=len(paces),
        steps=steps,
        algorithm=algorithm,
        seed=seed,
        config_file=config,
        settings=settings or (),
    )
    place = new_run_dir(run_dir, chosen.name)
    console = Console(stderr=as_json)
    write_recipe(place, chosen.settings())
    training = Training(chosen, Fleet(place, resolved, chosen.settings(), paces), planned, console)
    summary = training.run()
    (place / "summary.json").write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
    console.print()
    console.print(render_summary(summary))
    if as_json:
        typer.echo(json.dumps(summary.to_json()))
    if summary.violations:
        raise typer.Exit(1)


@dataclass(eq=False)
class Training:
    """One run from its first process to its summary."""

    recipe: Recipe
    fleet: Fleet
    kills: Sequence[Kill]
    console: Console
    watch: Watch = field(init=False)

    def run(self) -> Summary:
        """Train until the budget is spent; whatever happens, no process is left behind."""
        began_s = time.time()
        self.watch = Watch(self.fleet, self.recipe.unit, began_s)
        try:
            self._say(self.recipe.describe())
            self._say(f"{_counted(len(self.fleet.speeds))} and a syncer in {self.fleet.run_dir}")
            with self.console.status("importing torch, starting processes ..."):
                self.fleet.start()
            self._train()
            wall_s = time.time() - began_s
            self.fleet.stop()
            self.watch.look(time.time())
            with self.console.status("evaluating on held-out data, checking the tapes ..."):
                found = in_child(
                    self.fleet.log_path("judge"), judge, self.recipe.settings(), str(self.fleet.run_dir)
                )
        except KeyboardInterrupt:
            self._say("stopping: learners say goodbye, the syncer closes ...")
            self.fleet.stop()
            self._say(f"stopped before the end; what was merged is in {self.fleet.run_dir}")
            self._say(f"its model: atoll export {self.fleet.run_dir}")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            self.fleet.stop()
        return Summary(
            status=self.watch.status,
            run_dir=str(self.fleet.run_dir),
            heldout_start=found["start"],
            heldout_end=found["end"],
            wall_s=wall_s,
            violations=tuple(found["violations"]),
            kills=tuple(self.watch.kills()),
        )

    def _train(self) -> None:
        waiting = list(self.kills)
        with Live(self.console) as live:
            while not self.fleet.is_over:
                time.sleep(LOOK_S)
                self.fleet.look_after()
                now_s = time.time()
                self.watch.look(now_s)
                waiting = [kill for kill in waiting if not self._kill(kill, now_s)]
                if self.watch.status:
                    live.update(now_s - self.watch.began_s, self.watch.status)

    def _kill(self, kill: Kill, now_s: float) -> bool:
        """Carry out a kill if it is time and there is somebody; else it waits."""
        watch = self.watch
        if watch.training_s is None:
            return False
        trained_s = now_s - watch.began_s - watch.training_s
        if not kill.is_due(watch.status.get("progress") or 0.0, trained_s):
            return False
        if kill.name != SYNCER and not watch.trains(kill.name):  # it is still starting: nobody would miss it
            return False
        if not self.fleet.kill(kill.name):
            return False
        watch.killed(kill.name, str(kill), now_s)
        return True

    def _say(self, line: str) -> None:
        self.console.print(Text(line), highlight=False, soft_wrap=True)


def _counted(num_learners: int) -> str:
    return "1 learner" if num_learners == 1 else f"{num_learners} learners"
