"""`atoll train`: a whole fleet on this machine, watched until its budget is spent, then judged."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from atoll.cli import options as opt
from atoll.cli.judge import judge, write_recipe
from atoll.cli.logs import end_on_sigterm
from atoll.cli.resume import SUMMARY, Plan, check_flags, resumed
from atoll.cli.settings import Kill, new_run_dir, parse_kill, parse_speeds, run_config, unusable
from atoll.cli.watch import Watch
from atoll.errors import ConfigError
from atoll.observe.live import Live
from atoll.observe.summary import Summary, render_summary
from atoll.recipes import load_recipe
from atoll.runtime.fleet_file import FleetFile, fleet_lock, wait_for_orphans, write_safely
from atoll.runtime.keeping import LOOK_S
from atoll.runtime.processes import SYNCER, Fleet, in_child, learner_names

__all__ = ["train"]

INTERRUPTED = 130


def train(
    context: typer.Context,
    recipe: opt.RecipeName = "gemma",
    size: opt.Size = "tiny",
    learners: opt.Learners = None,
    steps: opt.Steps = None,
    speeds: opt.Speeds = None,
    kills: opt.Kills = None,
    algorithm: opt.Algorithm = None,
    seed: opt.Seed = 0,
    run_dir: opt.NewRunDir = None,
    resume: opt.Resume = None,
    accept_loss: opt.AcceptLossAtResume = False,
    config: opt.ConfigFile = None,
    settings: opt.Settings = None,
    model: opt.Model = None,
    data: opt.Data = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train a model with real processes on this machine: one syncer and several learners.

    The processes are supervised: whoever dies is started again, heals, and
    goes on. Ctrl-C stops them all; --resume goes on from there, or from
    wherever a power cut has left the run. At the end the merged model is
    exported and evaluated on held-out data, the tapes of the run are checked
    against every invariant, and a summary is printed. Exit code 0 only if
    all is well.

    [dim]atoll train[/dim]

    [dim]atoll train gemma --learners 4 --speeds 1,1,0.5,1 --kill learner-1@40%[/dim]

    [dim]atoll train --resume runs/gemma-1[/dim]
    """
    end_on_sigterm()
    if resume is not None:
        check_flags(context)
        plan = replace(resumed(resume, steps, settings or ()), accepts_loss=accept_loss)
    else:
        _refuse_loss_of_a_new_run(accept_loss)
        chosen = load_recipe(recipe, size, seed=seed, model=model, data=data)
        paces = parse_speeds(speeds, learners)
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
        plan = Plan(place, chosen, resolved, FleetFile(tuple(paces), time.time()))
    names = [SYNCER, *learner_names(len(plan.fleet.speeds))]
    planned = [parse_kill(text, names) for text in kills or ()]
    _carry_out(plan, planned, as_json)


def _refuse_loss_of_a_new_run(accept_loss: bool) -> None:
    if accept_loss:
        raise ConfigError(
            "--accept-loss was given without --resume.",
            "A new run has nothing that it could have lost.",
            "Leave it out, or name the run that is to go on: --resume RUN.",
        )


def _carry_out(plan: Plan, kills: Sequence[Kill], as_json: bool) -> None:
    """Train, and tell how it went."""
    console = Console(stderr=as_json)
    if plan.summary is not None:
        _say(console, f"the run in {plan.run_dir} is finished: there is nothing to go on with")
        _say(console, f"its summary: {plan.run_dir / SUMMARY}; its model: atoll export {plan.run_dir}")
        _answer(plan.summary, as_json)
        return
    if not plan.is_old:
        write_recipe(plan.run_dir, plan.recipe.settings())
        _write_fleet(plan)
    with fleet_lock(plan.run_dir):
        summary = Training(plan, kills, console).run()
    found = summary.to_json()
    write_safely(plan.run_dir / SUMMARY, json.dumps(found, indent=2) + "\n")
    console.print()
    console.print(render_summary(summary))
    _answer(found, as_json)


def _write_fleet(plan: Plan) -> None:
    try:
        plan.fleet.write(plan.run_dir)
    except OSError as error:
        raise unusable(plan.run_dir, error) from error


def _answer(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    if found["violations"]:
        raise typer.Exit(1)


@dataclass(eq=False)
class Training:
    """One run from its first process, or from where it was left, to its summary."""

    plan: Plan
    kills: Sequence[Kill]
    console: Console
    fleet: Fleet = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        recipe, speeds = plan.recipe.settings(), plan.fleet.speeds
        self.fleet = Fleet(plan.run_dir, plan.config, recipe, speeds, accepts_loss=plan.accepts_loss)
        since_s = 0.0 if plan.is_finished else time.time()
        self.watch = Watch(self.fleet, plan.recipe.unit, plan.fleet.began_s, since_s)

    def run(self) -> Summary:
        """Train until the budget is spent; whatever happens, no process is left behind."""
        try:
            self._introduce()
            self._start()
            if not self.plan.is_finished:
                self._train()
            self.fleet.stop()
            self.watch.look(time.time())
            return self._judged()
        except KeyboardInterrupt:
            self._say("stopping: learners say goodbye, the syncer closes ...")
            self.fleet.stop()
            self._say(f"stopped before the end; what was merged is in {self.plan.run_dir}")
            self._say(f"its model: atoll export {self.plan.run_dir}")
            self._say(f"to go on: atoll train --resume {self.plan.run_dir}")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            self.fleet.stop()

    def _introduce(self) -> None:
        num_learners, run_dir = len(self.plan.fleet.speeds), self.plan.run_dir
        self._say(self.plan.recipe.describe())
        if self.plan.is_finished:
            self._say(f"the run in {run_dir} is finished; its summary is missing and is made now")
        else:
            goes_on = "the run goes on: " if self.plan.is_old else ""
            self._say(f"{goes_on}{_counted(num_learners)} and a syncer in {run_dir}")

    def _start(self) -> None:
        with self.console.status("importing torch, starting processes ..."):
            if self.plan.is_finished:
                self.fleet.warm_up()
                return
            if self.plan.is_old:
                wait_for_orphans(self.plan.run_dir)
            self.fleet.start()

    def _judged(self) -> Summary:
        run_dir = self.plan.run_dir
        ended_s = (run_dir / "status.json").stat().st_mtime  # the syncer's last deed
        with self.console.status("evaluating on held-out data, checking the tapes ..."):
            log_path, settings = self.fleet.log_path("judge"), self.plan.recipe.settings()
            found = in_child(log_path, judge, settings, str(run_dir))
        return Summary(
            status=self.watch.status,
            run_dir=str(run_dir),
            heldout_start=found["start"],
            heldout_end=found["end"],
            wall_s=ended_s - self.watch.began_s,
            violations=tuple(found["violations"]),
            kills=tuple(self.watch.kills()),
        )

    def _train(self) -> None:
        waiting = list(self.kills)
        with Live(self.console) as live:
            while not self.fleet.is_over:
                self.fleet.wait(LOOK_S)
                now_s = time.time()
                self.watch.look(now_s)
                waiting = [kill for kill in waiting if not self._kill(kill, now_s)]
                self.fleet.look_after()
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
        if not watch.trains(kill.name):  # it is still starting: nobody would miss it
            return False
        if not self.fleet.kill(kill.name):
            return False
        watch.killed(kill.name, str(kill), now_s)
        return True

    def _say(self, line: str) -> None:
        _say(self.console, line)


def _say(console: Console, line: str) -> None:
    console.print(Text(line), highlight=False, soft_wrap=True)


def _counted(num_learners: int) -> str:
    return "1 learner" if num_learners == 1 else f"{num_learners} learners"
