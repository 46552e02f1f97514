"""The cluster a survey runs on: processes on this machine, or a dask cluster that is there.

What is started here listens on 127.0.0.1 only: scheduler, workers, nannies and dashboards. Whoever
can reach a dask scheduler can run code as its owner; on a cluster of several machines that is what
TLS is for (``tls://``, see docs/survey.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from eigenlens.blas import cores
from eigenlens.errors import MissingDependencyError, OptionError, SourceError
from eigenlens.inert import inert

LOCAL = "127.0.0.1"
MEMORY_SHARE = 0.85
"""Part of the machine's memory that local workers may fill together."""
CONNECT_SECONDS = 10.0
WORKER_SECONDS = 60.0

_LOCAL_CONFIG = {
    # Twice on a worker that dies: then a task runs alone, so that it takes no other with it.
    "distributed.scheduler.allowed-failures": 1,
    "distributed.admin.tick.limit": "10s",  # a busy machine is no reason for a warning
    # A process that takes long to come back is waited for; one that is lost is replaced after it.
    "distributed.deploy.lost-worker-timeout": "60s",
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    },
}


@dataclass(frozen=True)
class Workers:
    """What there is to run on.

    Attributes
    ----------
    client
        The connected `distributed.Client`.
    dashboard
        Address of the dashboard, or None.
    revive
        Starts local workers again that are lost; None for a cluster that others look after.
    """

    client: Any
    dashboard: str | None
    revive: Callable[[], None] | None = None

    def resources(self) -> list[dict[str, float]]:
        """What each worker declares, and its threads as ``threads``."""
        found = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return [{**w.get("resources", {}), "threads": float(w["nthreads"])} for w in found]


@contextmanager
def connected(
    workers: int | None = None, scheduler: str | None = None, *, gpu: bool = False
) -> Iterator[Workers]:
    """A cluster for the length of the block; a local one is gone after it, whatever happens.

    Parameters
    ----------
    workers
        Local processes of one thread each; None for one a core (with `gpu`: one).
    scheduler
        Address of a dask scheduler, ``tcp://host:port`` or ``tls://host:port``, instead.
    gpu
        Local workers declare a GPU.

    Raises
    ------
    MissingDependencyError
        dask.distributed is not installed.
    OptionError
        Both were given, or a number of workers below 1.
    SourceError
        There is no scheduler at the address, or it has no workers.
    """
    if workers is not None and scheduler is not None:
        raise OptionError(
            "--workers and --scheduler were both given: workers are of a local cluster, those of a "
            "scheduler are started with it"
        )
    if workers is not None and workers < 1:
        raise OptionError(f"{workers} workers: at least 1 is needed")
    try:
        import dask
        import distributed  # noqa: F401 - the message is for whoever lacks it
    except ImportError:
        raise MissingDependencyError(
            "a survey needs dask.distributed: pip install 'eigenlens[cluster]'"
        ) from None
    with _quiet():
        if scheduler is not None:
            with _remote(scheduler) as found:
                yield found
            return
        with dask.config.set(_LOCAL_CONFIG), _local(workers, gpu) as found:
            yield found


@contextmanager
def _local(workers: int | None, gpu: bool) -> Iterator[Workers]:
    from distributed import Client, LocalCluster
    from distributed.system import MEMORY_LIMIT

    count = workers or (1 if gpu else cores())
    share = int(MEMORY_SHARE * MEMORY_LIMIT / count)
    resources = {"MEMORY": float(share)} | ({"GPU": 1.0} if gpu else {})
    cluster = LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        processes=True,
        host=LOCAL,
        dashboard_address=f"{LOCAL}:0",
        memory_limit=share,
        resources=resources,
        preload=["eigenlens.surveys.worker"],
        silence_logs=logging.CRITICAL,
    )
    try:

        def revive() -> None:
            # A worker that dies while its nanny is still starting it takes the nanny with it.
            if len(cluster.workers) < count:
                cluster.scale(count)

        with Client(cluster, set_as_default=False) as client:
            yield Workers(client, cluster.dashboard_link, revive)
    finally:
        cluster.close()


@contextmanager
def _remote(scheduler: str) -> Iterator[Workers]:
    from distributed import Client

    shown = inert(scheduler)
    try:
        _knock(scheduler)
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[:150]
        raise SourceError(
            f"no dask scheduler answers at {shown} ({inert(text)}); give an address such as "
            "tcp://host:8786, and for tls:// the certificates in dask's configuration"
        ) from None
    try:
        try:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError:
            raise SourceError(
                f"the dask scheduler at {shown} has no workers after {WORKER_SECONDS:.0f} s; "
                f"start some: dask worker {shown}"
            ) from None
        yield Workers(client, client.dashboard_link)
    finally:
        client.close()


def _knock(scheduler: str) -> None:
    """Connect and hang up: a client that fails to connect takes half a minute to go away.

    In a thread of its own, since the caller's may have a loop already (a notebook).

    Raises
    ------
    OSError, ValueError, TypeError
        Nothing answers, or it is no address; what dask says of it.
    """
    from concurrent.futures import ThreadPoolExecutor

    from distributed.comm import connect
    from distributed.security import Security

    async def attempt() -> None:
        arguments = Security().get_connection_args("client")
        comm = await connect(scheduler, timeout=CONNECT_SECONDS, **arguments)
        await comm.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, attempt()).result()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back dask's own log: what happens to tasks is told by the survey."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
