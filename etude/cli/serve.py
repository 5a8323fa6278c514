"""Commands that use a trained model: `etude sample` continues a text, `etude serve` answers OpenAI's clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Json, ModelPath, Overrides, answer


def sample(
    model: ModelPath,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    overrides: Overrides = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Longest answer.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 always takes the likeliest.")] = 0.8,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same answer.")] = 0,
    stage: Annotated[
        str, typer.Option("--stage", help="Of a run: whose model (pretrain, sft, rl); else the pretrained one.")
    ] = "",
    json: Json = False,
) -> None:
    """Continue a text with a trained model: of a run, the pretrained one."""

    def work() -> dict[str, Any]:
        from etude.core.errors import EtudeError
        from etude.core.policy import Sampling, Version
        from etude.core.progress import track
        from etude.pipeline.find_model import BASES, find_model, prepare_device, recipe_of

        # Of a run the pretrained model: fine-tuning teaches it to act, and then it continues no text.
        recipe, folder = recipe_of(model, overrides or []), find_model(model, (stage,) if stage else BASES)
        device = prepare_device(recipe)
        from etude.engine.engine import Engine
        from etude.model.checkpoint.directory import load_model
        from etude.tokens.dialect import open_dialect

        engine, dialect = Engine(load_model(folder, device), recipe.engine, Version(0, 0)), open_dialect(folder)
        sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=seed, stop_ids=dialect.stop_ids)
        request = engine.submit(dialect.encode(prompt), sampling)
        with track("sampling", tokens, "tokens") as bar:
            while not request.finished:
                engine.step()
                bar.advance()
        if request.error is not None:
            raise EtudeError(request.error)
        ids = request.sampled
        return {"model": str(folder), "prompt": prompt, "text": dialect.decode(ids), "ids": ids, "stop": request.stop}

    answer(work, lambda found: print(found["prompt"] + found["text"]), json)


def serve(
    model: ModelPath,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="What clients call the model; else its folder.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="File with the API key; else the variable ETUDE_API_KEY.")
    ] = None,
    engine_routes: Annotated[
        bool, typer.Option("--engine-routes", help="Also the training loop's routes; needs an API key.")
    ] = False,
    lend: Annotated[
        Path | None, typer.Option("--lend", help="A run that may use this engine; nobody else is served meanwhile.")
    ] = None,
    access_log: Annotated[
        Path | None, typer.Option("--access-log", help="File for a line of JSON a request; - is standard error.")
    ] = None,
) -> None:
    """Serve a model to OpenAI's clients, or lend it to a training run, until Ctrl-C."""

    def work() -> dict[str, Any]:
        if lend is not None:
            return lend_to(lend)
        from etude.pipeline.find_model import find_model, prepare_device, recipe_of
        from etude.serve.openai.api_key import read_key

        recipe, folder, key = recipe_of(model, overrides or []), find_model(model), read_key(key_file)
        if key is None and host not in ("127.0.0.1", "localhost", "::1"):
            print(f"warning: everybody who can reach {host} can use this model: no API key is set", file=sys.stderr)
        device = prepare_device(recipe)
        from etude.serve.server import ServeAccess, serve

        access = ServeAccess(name or model.resolve().name, key, engine_routes, access_log)
        serve(folder, recipe.engine, device=device, host=host, port=port, access=access)
        return {}

    def lend_to(run: Path) -> dict[str, Any]:
        from etude.core.errors import EtudeError
        from etude.core.run_files import in_use, read_facts
        from etude.pipeline.find_model import find_model, prepare_device, recipe_of

        given = {"--port": port != 8000, "--name": name, "--key-file": key_file, "--engine-routes": engine_routes}
        if unused := ", ".join(option for option, value in (given | {"--access-log": access_log}).items() if value):
            raise EtudeError(f"a lent engine serves its run alone, at an address that it announces: leave out {unused}")
        read_facts(run)  # a folder that is no run has the defaults for a recipe, and would be told of those
        recipe, folder = recipe_of(run, overrides or []), find_model(model)
        if not in_use(run):
            print(f"{run} is not running as far as this machine sees; the engine waits for it", file=sys.stderr)
        device = prepare_device(recipe)
        from etude.serve.lend import lend

        lend(folder, run, recipe, device=device, host=host)
        return {}

    answer(work, lambda _: None, False)
