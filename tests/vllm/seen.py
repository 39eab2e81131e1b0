"""One request: what its evidence said, and what the engine did."""

from dataclasses import dataclass

from evidence import Evidence
from stage import Used


@dataclass(frozen=True)
class Seen:
    request_id: str
    engine: str
    # Tokens of each prompt; empty for text.
    lengths: list
    # The policy's summary, by name.
    decision: dict
    # None: the scorer wrote none.
    evidence: Evidence | None
    used: Used
    # By the answer's `usage`; of a batch it is the last prompt's.
    cached_tokens: int
    kv_bytes_per_token: int

    @property
    def tokens(self):
        """What the policy counted; None without evidence."""
        return int(self.decision["tokens"]) if "tokens" in self.decision else None

    @property
    def loaded(self):
        return self.used.external_tokens

    def exact(self):
        """Evidence, decision, all the engine's counters and its answer agree."""
        said = self.evidence
        if said is None or said.partial:
            return False
        last = said.prompts[-1]
        return (
            said.external_tokens == self.tokens == self.loaded
            and self.used.load_bytes == self.loaded * self.kv_bytes_per_token
            and said.gpu_tokens == self.used.gpu_tokens
            and (last.gpu + last.external) * said.block_size == self.cached_tokens
        )

    def __str__(self):
        decision = ";".join(f"{name}={value}" for name, value in self.decision.items())
        said = "no evidence"
        if self.evidence:
            prompts = self.evidence.prompts
            said = "; ".join(f"gpu {p.gpu} external {p.external} {p.runs}" for p in prompts)
            said = f"{'partial ' if self.evidence.partial else ''}evidence in blocks: {said}"
        return (
            f"{self.request_id} to {self.engine}, prompts of {self.lengths} tokens, {decision}, "
            f"{said}; {self.used}, cached tokens {self.cached_tokens}"
        )


TABLE = (
    ("pass", lambda name, seen: name),
    ("requests", lambda _, seen: len(seen)),
    ("prompts", lambda _, seen: sum(len(one.lengths) for one in seen)),
    ("loading", lambda _, seen: sum(one.loaded > 0 for one in seen)),
    ("exact", lambda _, seen: sum(one.exact() for one in seen)),
    ("too much", lambda _, seen: sum(said(one) > one.loaded for one in seen)),
    ("too little", lambda _, seen: sum(said(one) < one.loaded for one in seen)),
    ("partial", lambda _, seen: sum(one.evidence.partial for one in seen if one.evidence)),
    ("none", lambda _, seen: sum(one.evidence is None for one in seen)),
    ("external said", lambda _, seen: sum(map(said, seen))),
    ("loaded", lambda _, seen: sum(one.loaded for one in seen)),
    ("GPU said", lambda _, seen: sum(one.evidence.gpu_tokens for one in seen if one.evidence)),
    ("GPU used", lambda _, seen: sum(one.used.gpu_tokens for one in seen)),
)


def said(one):
    return one.evidence.external_tokens if one.evidence else 0


def table(passes):
    """Lines; `passes` by name."""
    rows = [[name for name, _ in TABLE]]
    rows += [[str(cell(name, seen)) for _, cell in TABLE] for name, seen in passes.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]
