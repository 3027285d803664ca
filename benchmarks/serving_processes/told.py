"""Processes that do something for as many seconds as they are told to, again and again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any


@contextmanager
def processes(
    count: int, serve: Callable[..., None], *arguments: object
) -> Iterator[list[Connection]]:
    """Start so many processes that run `serve(*arguments, pipe)`; end them afterwards.

    `serve` takes seconds from its pipe, and answers when they are over; at 0 it returns.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as opened:
        pipes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(*arguments, there))
            process.start()
            opened.callback(process.join)
            opened.callback(here.send, 0.0)
            there.close()
            pipes.append(here)
        yield pipes


def tell_all(pipes: list[Connection], seconds: float) -> list[Any]:
    """Let all of them run for so long; return their answers."""
    for pipe in pipes:
        pipe.send(seconds)
    return [pipe.recv() for pipe in pipes]
