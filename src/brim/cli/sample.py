"""`brim sample RUN --prompt TEXT`: write text with a trained model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from brim.cli.arguments import read
from brim.errors import EXIT_DONE
from brim.settings import require


@dataclass(frozen=True)
class Arguments:
    """Write text with the newest checkpoint of a run, token by token, with a key-value cache."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `brim train` wrote."""
    prompt: str = "\n"
    """Text to go on from."""
    tokens: int = 256
    """Tokens to write at most; an end-of-document ends the text sooner."""
    temperature: float = 0.8
    """0 takes the likeliest token always; higher is wilder."""
    top_k: int | None = None
    """Draw from this many likeliest tokens only."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens with this probability together."""
    seed: int = 0
    """The same seed gives the same text."""


def run(arguments: list[str]) -> int:
    """Print the prompt and what the model writes after it."""
    options = read(Arguments, arguments, "sample")
    fits = -(2**63) <= options.seed < 2**63
    require(fits, "--seed", options.seed, "a whole number that 64 bits hold", hint="such as --seed 0")
    # JAX starts with these imports; `--help` and wrong flags have answered before.
    import jax
    import jax.numpy as jnp

    from brim.data import load_tokenizer
    from brim.models.generation import Sampling, generate
    from brim.supervisor.folder import RunFolder
    from brim.supervisor.inspection import newest_state

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    run_file, state, records = newest_state(options.folder)
    tokenizer = load_tokenizer(RunFolder(options.folder).store_of(run_file))
    prompt = tokenizer.encode(options.prompt)
    ids = generate(
        state.trainable,
        prompt,
        new_tokens=options.tokens,
        key=jax.random.key(options.seed),
        sampling=sampling,
        stop_id=tokenizer.end_of_document,
        compute=jnp.dtype(records["recipe"]["techniques"]["precision"]["compute"]),
    )
    # Several ids may make one character: decode what there is, and print what is new and whole.
    written, drawn = options.prompt, list(prompt)
    sys.stdout.write(written)
    for token in ids:
        drawn.append(token)
        text = tokenizer.decode(drawn)
        if not text.endswith("�") and len(text) > len(written):
            sys.stdout.write(text[len(written) :])
            sys.stdout.flush()
            written = text
    print()
    return EXIT_DONE
