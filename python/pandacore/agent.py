"""Agents: what a user writes, and the handle the runtime serves.

``@agent(capabilities=[...])`` marks a function or class and leaves it what it was, so it stays testable on
its own; :class:`Agent` wraps one with a key, a queue bound and a concurrency limit.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pandacore.errors import ConfigError, PandacoreError, StateError
from pandacore.names import capability_name, display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pandacore.models.bound import BoundModel
    from pandacore.trust import KeyPair

__all__ = ["Agent", "AgentContext", "agent", "agents_of", "is_agent"]

T = TypeVar("T")

MAX_CAPABILITIES: Final = 64
"""Most capabilities of one agent."""
MAX_SUBSCRIPTION: Final = 4_000
"""Most characters of what an agent subscribes to."""
_MARK: Final = "__pandacore_agent__"


class AgentContext(Protocol):
    """What an agent may use while it works on a subtask; the second argument of a handler."""

    @property
    def model(self) -> BoundModel:
        """The collective's model, called over gRPC and charged to this subtask's token budget.

        Raises
        ------
        StateError
            The collective was started without a model.
        """
        ...

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, or None if there is none."""
        ...

    def progress(self, text: str) -> None:
        """Report a line of progress. At most 64 wait to be sent; then the oldest is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class _Spec:
    capabilities: tuple[str, ...]
    name: str | None
    description: str
    subscription: str
    concurrency: int
    queue_limit: int | None


def agent(
    *,
    capabilities: Sequence[str],
    name: str | None = None,
    description: str = "",
    subscription: str = "",
    concurrency: int = 1,
    queue_limit: int | None = None,
) -> Callable[[T], T]:
    """Mark a function or class as an agent.

    Parameters
    ----------
    capabilities : sequence of str
        What it can do, such as ``["search.web"]``; 1 to 64 distinct names.
    name : str, optional
        Display name; default: the function's or class's name.
    description : str, optional
        One line for planners and people; default: the first line of the docstring.
    subscription : str, optional
        What it wants to be found for, in words, up to 4,000 characters: ``find`` goes by it instead of the
        description. `Collective.resubscribe` changes it.
    concurrency : int
        Subtasks it works on at once.
    queue_limit : int, optional
        Subtasks that may wait; more are refused. Default: max(16, 4 x concurrency).

    Notes
    -----
    A handler is ``async def f(task)`` or ``f(task, ctx)``, or a plain function, which then runs in a worker
    thread. It returns any JSON value. A class is marked the same way and provides the handler as
    ``__call__`` or ``run``.

    Raises
    ------
    ConfigError, InvalidName
        An argument breaks its rule.
    """
    spec = _Spec(
        _capabilities(capabilities), name, description, subscribed(subscription), concurrency, queue_limit
    )
    _check_limits(concurrency, queue_limit)
    if name is not None:
        display_name(name)

    def mark(target: T) -> T:
        if not callable(target):
            raise ConfigError(
                f"@agent marks functions and classes, not {type(target).__name__}", hint="decorate a function"
            )
        setattr(target, _MARK, spec)
        return target

    return mark


class Agent:
    """An addressable worker: a handler with an identity and limits.

    Parameters
    ----------
    handler : callable
        ``f(task)`` or ``f(task, ctx)``, async or not.
    capabilities, name, description, subscription, concurrency, queue_limit
        As for :func:`agent`.
    key : KeyPair, optional
        Its identity; the id is the public key. Default: a fresh key.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        capabilities: Sequence[str],
        name: str | None = None,
        description: str | None = None,
        subscription: str = "",
        concurrency: int = 1,
        queue_limit: int | None = None,
        key: KeyPair | None = None,
    ) -> None:
        from pandacore.trust import KeyPair

        _check_limits(concurrency, queue_limit)
        self.handler = handler
        self.takes_context = _takes_context(handler)
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            type(handler).__call__
        )
        self.capabilities = _capabilities(capabilities)
        self.name = display_name(name if name is not None else _name_of(handler))
        self.description = _first_line(handler) if description is None else description
        self.subscription = subscribed(subscription)
        self.concurrency = concurrency
        self.queue_limit = queue_limit if queue_limit is not None else max(16, 4 * concurrency)
        self.key = key if key is not None else KeyPair.generate()
        self.id: bytes = self.key.public
        """The 32-byte public key."""

    @property
    def did(self) -> str:
        """The id as ``did:key:z6Mk…``."""
        return self.key.did

    def with_limits(self, *, concurrency: int | None = None, queue_limit: int | None = None) -> Agent:
        """The same handler and names under other limits, with a key of its own."""
        return Agent(
            self.handler,
            capabilities=self.capabilities,
            name=self.name,
            description=self.description,
            subscription=self.subscription,
            concurrency=self.concurrency if concurrency is None else concurrency,
            queue_limit=queue_limit,
        )

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} {', '.join(self.capabilities)} {self.did[:20]}…>"

    @classmethod
    def of(cls, target: object) -> Agent:
        """The agent that ``target`` stands for: an :class:`Agent`, or a marked function, class or instance.

        Raises
        ------
        ConfigError
            It is none of these.
        """
        if isinstance(target, Agent):
            return target
        spec = getattr(target, _MARK, None)
        if not isinstance(spec, _Spec):
            raise ConfigError(
                f"{target!r} is not an agent", hint="decorate it with @pandacore.agent(capabilities=[...])"
            )
        label = (
            target.__name__
            if inspect.isclass(target) or inspect.isfunction(target)
            else type(target).__name__
        )
        handler = target() if inspect.isclass(target) else target
        if not (inspect.isfunction(handler) or inspect.ismethod(handler)):
            run = getattr(handler, "run", None)
            handler = run if callable(run) else handler
        if not callable(handler):
            raise ConfigError(f"{label} has neither run nor __call__", hint="add `async def run(self, task)`")
        return cls(
            handler,
            capabilities=spec.capabilities,
            name=spec.name or label,
            description=spec.description or _first_line(target),
            subscription=spec.subscription,
            concurrency=spec.concurrency,
            queue_limit=spec.queue_limit,
        )


def is_agent(target: object) -> bool:
    """True for what :meth:`Agent.of` takes."""
    return isinstance(target, Agent) or isinstance(getattr(target, _MARK, None), _Spec)


def agents_of(place: str) -> list[object]:
    """The agents of a module: marked functions and classes, and :class:`Agent` objects.

    Parameters
    ----------
    place : str
        ``package.module`` or ``path/file.py`` for all that it defines; with ``:name`` behind it for one, or
        a list of them.

    Raises
    ------
    ConfigError
        It cannot be imported, or has none.
    """
    import importlib
    import sys
    import traceback
    from pathlib import Path

    module, colon, name = place.partition(":")
    folder = ""  # as `python -m` does: modules of the current folder
    if module.endswith(".py"):
        folder, module = str(Path(module).resolve().parent), Path(module).stem
    sys.path.insert(0, folder)
    try:
        loaded = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the module cannot be imported: {error}", where=place, hint="check its name and path"
        ) from error
    except PandacoreError:
        raise
    except Exception as error:  # whatever the module does when it is imported
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"the module cannot be imported: {type(error).__name__}: {error}",
            where=place,
            hint=f"see {at.filename}, line {at.lineno}",
        ) from error
    finally:
        sys.path.remove(folder)
    if colon:
        value = getattr(loaded, name, None)
        found = list(value) if isinstance(value, list | tuple) else [value]
        if not found or not all(is_agent(v) for v in found):
            raise ConfigError(
                f"the module has no agent {name!r}", where=place, hint="name what @pandacore.agent marks"
            )
        return found
    found = [v for v in vars(loaded).values() if is_agent(v)]
    if not found:
        raise ConfigError("the module has no agents", where=place, hint="mark some with @pandacore.agent")
    return found


def _capabilities(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(
            "capabilities is one string", where="agent.capabilities", hint="pass a list of names"
        )
    checked = tuple(dict.fromkeys(capability_name(n) for n in names))
    if not 1 <= len(checked) <= MAX_CAPABILITIES:
        raise ConfigError(
            f"an agent has 1 to {MAX_CAPABILITIES} capabilities, not {len(checked)}",
            where="agent.capabilities",
            hint="name what it can do",
        )
    return checked


def subscribed(text: str) -> str:
    """The text of a subscription, checked.

    Raises
    ------
    ConfigError
        It is no text, or too long.
    """
    if not isinstance(text, str) or len(text) > MAX_SUBSCRIPTION:
        what = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ConfigError(
            f"must be a text of up to {MAX_SUBSCRIPTION} characters, not {what}",
            where="agent.subscription",
            hint="say in a few sentences what it is to be found for",
        )
    return " ".join(text.split())


def _check_limits(concurrency: int, queue_limit: int | None) -> None:
    if not 1 <= concurrency <= 10_000:
        raise ConfigError(f"must be 1 to 10000, not {concurrency}", where="agent.concurrency", hint="use 1")
    if queue_limit is not None and not 0 <= queue_limit <= 1_000_000:
        raise ConfigError(
            f"must be 0 to 1000000, not {queue_limit}", where="agent.queue_limit", hint="use 16"
        )


def _takes_context(handler: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature takes the task alone
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(required) > 2 or (not positional and not variadic):
        raise ConfigError(
            f"handler {_name_of(handler)!r} must take (task) or (task, ctx)", hint="change its parameters"
        )
    return len(positional) >= 2 or variadic


def _name_of(handler: object) -> str:
    return getattr(handler, "__name__", None) or type(handler).__name__


def _first_line(target: object) -> str:
    doc = inspect.getdoc(target) if inspect.isroutine(target) or inspect.isclass(target) else None
    return doc.strip().splitlines()[0] if doc and doc.strip() else ""


def no_model() -> StateError:
    """The error for an agent that asks for a model where the collective has none."""
    return StateError(
        "the collective was started without a model",
        hint='start it with Collective.local(model="extractive")',
    )
