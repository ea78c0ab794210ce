"""Twenty containers at once: each has its own GPUs, and none another's."""

from concurrent.futures import ThreadPoolExecutor

from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches

REQUESTS = [(0,), (1,), (2,), (3,), (0, 3), (1, 2), (), None] * 3


def test_twenty_at_once(each_engine, bundles):
    made = []
    for gpus in REQUESTS[:20]:
        bundle = bundles(each_engine)
        if gpus is not None:
            bundle.ask("NVIDIA_VISIBLE_DEVICES=" + (",".join(map(str, gpus)) or "none"))
        ask_everything(bundle)
        # All of them stay until the last one is there.
        bundle.config["mounts"].append(
            {
                "destination": "/all",
                "type": "bind",
                "source": str(bundle.directory.parent),
                "options": ["bind"],
            }
        )
        everyone = [word for number in range(20) for word in ("wait", f"/all/ready{number}")]
        ready = bundle.directory.parent / f"ready{len(made)}"
        bundle.config["hooks"]["prestart"].append(bundle.shell_hook(f"touch {ready}"))
        bundle.config["process"]["args"] += everyone
        made.append(bundle)

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(each_engine.start, made))

    for gpus, bundle, result in zip(REQUESTS, made, results, strict=False):
        waits = [result.answers.pop(key) for key in list(result.answers) if key.startswith("wait ")]
        assert waits == ["OK"] * 20
        assert_reaches(bundle, result, gpus or (), () if gpus is None else COMPUTE)
