"""Does the scorer's evidence say what a real vLLM then loads? scripts/e2e-vllm starts this."""

import argparse
import itertools
import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from prompts import BLOCK, TOKENS, Prompts
from seen import Seen, table
from stage import SHORT_REPLAY, CannotRun, Stage, TimedOut, Used
from wire import ask

CANNOT_RUN = 3
# Reference code of the rules was exact on 299 of 302 requests.
LEAST_EXACT = 299 / 302
# Events trail an answer by milliseconds.
SETTLE_S = 0.15
# The scorer's `evidence`, by pass.
PASSES = {
    "sha256_cbor": {"algorithm": "sha256_cbor", "pythonHashSeed": "0", "blockSize": BLOCK},
    # The default; the block size comes from the engines' own metrics.
    "fnv64a_cbor": {},
}


class Run:
    def __init__(self, stage, seed):
        self.stage, self.seed = stage, seed
        self.random = random.Random(seed)
        self.kv_bytes = stage.kv_bytes_per_token()
        self.sent = 0
        self.passed, self.failed = 0, 0

    def check(self, what, good, detail):
        """`detail` is printed if it failed."""
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(f"    {'ok' if good else 'FAILED'}  {what}", flush=True)
        if not good:
            print(f"        {detail}", flush=True)

    def send(self, mode, engine, body, lengths=(), path="/v1/completions"):
        """Sends one request through Envoy and looks at what became of it."""
        self.sent += 1
        request_id = f"e2e-{self.seed}-{self.sent}"
        headers = {
            "content-type": "application/json",
            "x-request-id": request_id,
            "x-mode": mode,
            "x-engine": engine,
        }
        if isinstance(body, dict):
            body = json.dumps({"model": "tiny", "max_tokens": 1, **body}).encode()
        target = self.stage.engines[engine]
        before = target.used()
        reply = ask(self.stage.envoy, "POST", path, body, headers)
        if reply.status != 200:
            raise CannotRun(f"engine {engine} answered {reply.status}: {reply.body[:300]}")
        evidence = self.stage.evidence(request_id, target)
        time.sleep(SETTLE_S)
        decision = reply.headers["x-kv-decision"]
        details = reply.json()["usage"].get("prompt_tokens_details") or {}
        return Seen(
            request_id=request_id,
            engine=engine,
            lengths=list(lengths),
            decision=dict(part.split("=", 1) for part in decision.split(";")),
            evidence=evidence,
            used=target.used() - before,
            cached_tokens=details.get("cached_tokens") or 0,
            kv_bytes_per_token=self.kv_bytes,
        )

    def prompt(self, mode, engine, tokens, **params):
        body = {"prompt": tokens}
        if params:
            body["kv_transfer_params"] = params
        return self.send(mode, engine, body, [len(tokens)])

    def fresh(self, blocks):
        """A prompt that nobody has, with one token behind its blocks."""
        return self.random.choices(TOKENS, k=blocks * BLOCK + 1)

    def push_out(self, engine):
        """Fills the GPU cache with other prompts and leaves the CPU tier alone."""
        for _ in range(2):
            self.prompt("disable", engine, self.fresh(48), max_offload_tokens=0)

    def warm(self, engine, blocks):
        """A prompt that only the CPU tier holds."""
        tokens = self.fresh(blocks)
        self.prompt("disable", engine, tokens)
        self.push_out(engine)
        return tokens

    def wait_for_evidence(self, partial=()):
        """Until the scorer knows the engines, and says what is expected of them; False if it does
        not. `partial`: names of engines of which it cannot know everything."""
        probe = self.fresh(1)
        for engine in self.stage.engines:
            expected = engine in partial
            last = None

            def there():
                nonlocal last
                last = self.prompt("observe", engine, probe)
                return last.evidence is not None and last.evidence.partial == expected

            try:
                self.stage.wait("evidence", there)
            except TimedOut as error:
                what = f"{'partial' if expected else 'whole'} evidence of engine {engine}"
                self.check(what, False, f"{error}; the last one: {last}")
                return False
        return True

    # The checks.

    def agreement(self, name, count):
        """Random requests, undisturbed: does the engine do what the evidence says?"""
        series = {engine: Prompts(f"{self.seed} {name} {engine}") for engine in self.stage.engines}
        seen = []
        for engine in itertools.islice(itertools.cycle(series), count):
            lists, body = series[engine].request()
            seen.append(self.send("observe", engine, body, map(len, lists)))
            if not seen[-1].exact():
                print(f"    not exact: {seen[-1]}", flush=True)
        found = sum(one.used.gpu_tokens + one.loaded for one in seen if one.exact()) // BLOCK
        mismatch = self.stage.stats("mismatch")
        what = f"the engines' blocks are found by their hashes, all {found}, and none differs"
        self.check(what, found and not mismatch, mismatch)
        return seen

    def decisions(self, engine):
        """A disabled load loads nothing, an admitted one everything."""
        tokens = self.warm(engine, 24)
        one = self.prompt("disable", engine, tokens)
        good = one.decision["load"] == "disable" and one.used == Used(0, 0, 0)
        self.check("a policy that disables loads nothing", good and one.cached_tokens == 0, one)
        self.push_out(engine)
        one = self.prompt("threshold", engine, tokens[: 7 * BLOCK + 1])
        good = one.decision["reason"] == "below_threshold" and one.tokens == 7 * BLOCK
        good = good and one.used == Used(0, 0, 0)
        self.check("what is below the threshold is not loaded", good, one)
        self.push_out(engine)
        one = self.prompt("threshold", engine, tokens, max_load_tokens=0)
        good = one.decision["load"] == "enable" and one.exact() and one.loaded == 24 * BLOCK
        self.check("what is admitted is loaded, whatever the client's cap", good, one)

    def texts(self, engine):
        """Chats and texts, by way of the engine's tokenizer."""
        # A token a character; the chat's template adds 17.
        words = "".join(self.random.choices("abcdefgh ", k=500))
        chat = {"messages": [{"role": "user", "content": words}]}
        for what, path, body, blocks in (
            ("chat", "/v1/chat/completions", chat, 517 // BLOCK),
            ("text", "/v1/completions", {"prompt": words}, 500 // BLOCK),
        ):
            cold = self.send("observe", engine, body, path=path)
            self.push_out(engine)
            warm = self.send("observe", engine, body, path=path)
            good = cold.exact() and warm.exact() and warm.loaded == blocks * BLOCK
            what = f"a {what} is tokenized, and its evidence exact"
            self.check(what, good, f"{cold}\n        {warm}")

    def late_bridge(self):
        """A bridge that starts when the engines have run for long; `b` cannot replay that far."""
        tokens = {engine: self.warm(engine, 24) for engine in self.stage.engines}
        for _ in range(2 * SHORT_REPLAY):
            self.prompt("observe", "b", self.fresh(1))
        self.stage.stop("bridge")
        self.stage.start_bridge()
        if not self.wait_for_evidence(partial="b"):
            return
        one = self.prompt("threshold", "a", tokens["a"])
        good = one.decision["load"] == "enable" and one.exact() and one.loaded == 24 * BLOCK
        self.check("a late bridge with the whole replay: exact evidence", good, one)
        one = self.prompt("threshold", "b", tokens["b"])
        said = one.evidence
        kept = one.decision["reason"] == "partial_evidence"
        good = said and said.partial and kept and said.external_tokens < one.loaded == 24 * BLOCK
        self.check("a late bridge without: partial evidence, no false disable", good, one)


def run(stage, options):
    checks = Run(stage, options.seed)
    passes = {}
    print("Starting vLLM (half a minute to several)", flush=True)
    stage.start_engines()
    stage.start_bridge()
    for name, keys in PASSES.items():
        print(f"{name}", flush=True)
        stage.start_envoy(keys)
        if not checks.wait_for_evidence():
            break
        passes[name] = checks.agreement(name, options.requests)
        checks.decisions("a")
        checks.texts("a")
        if name == list(PASSES)[-1] and options.engines == 2:
            checks.late_bridge()
        stage.stop_envoy()
    seen = [one for seen in passes.values() for one in seen]
    exact = f"{sum(one.exact() for one in seen)} of {len(seen)} random requests exact"
    good = sum(one.exact() for one in seen) >= LEAST_EXACT * len(seen)
    checks.check(f"the engines use what the evidence says: {exact}", good, "listed above")
    print("", *table(passes), "", sep="\n")
    print(
        f"e2e-vllm: {checks.passed} checks passed, {checks.failed} failed; {exact}; "
        f"seed {options.seed}"
    )
    return 1 if checks.failed else 0


def main():
    parser = argparse.ArgumentParser()
    programs = ("serve.sh", "model", "bridge", "envoy", "module", "reader")
    for name in programs:
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--engines", type=int, choices=(1, 2), default=2)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    # As for Ctrl-C: what was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="e2e-vllm-"))
    files = {name: getattr(options, name) for name in programs}
    stage = Stage(files, folder, "ab"[: options.engines])
    try:
        status = run(stage, options)
        if status == 0:
            shutil.rmtree(folder)
        else:
            print(f"logs are in {folder}", file=sys.stderr)
        return status
    except (CannotRun, OSError) as error:
        print(f"e2e-vllm: cannot go on: {error}; logs are in {folder}", file=sys.stderr)
        return CANNOT_RUN
    finally:
        stage.stop_all()
        # The fs tier's files, by far the most of it.
        shutil.rmtree(folder / "fs", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
