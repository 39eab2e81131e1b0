"""Random requests whose prompts share prefixes, repeat, end with a block, carry salts, or come
several in one request: what makes evidence hard to get right."""

import json
import random

BLOCK = 32
MAX_TOKENS = 1200
# Of one request. A batch that does not fit into the GPU cache beside itself evicts its own blocks.
MAX_BATCH_TOKENS = 1600
TOKENS = range(3, 500)
SALTS = (None, None, None, None, "tenant-a", "tenant-b")
# So many prompts back a prefix is taken from; older ones fall out of the engines' caches.
MEMORY = 24


class Prompts:
    """An endless, repeatable series of completion requests."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.recent = {salt: [] for salt in SALTS}

    def fresh(self, length):
        return self.random.choices(TOKENS, k=length)

    def request(self):
        """The prompts, and the body as bytes."""
        salt = self.random.choice(SALTS)
        prompts = [self.prompt(salt)]
        if self.random.random() < 0.15:
            for _ in range(self.random.randint(1, 3)):
                prompt = self.sibling(prompts[0])
                if sum(map(len, prompts)) + len(prompt) <= MAX_BATCH_TOKENS:
                    prompts.append(prompt)
        recent = self.recent[salt]
        recent.extend(prompts)
        del recent[:-MEMORY]
        return prompts, self.body(prompts, salt)

    def prompt(self, salt):
        recent = self.recent[salt]
        if not recent or self.random.random() < 0.25:
            return self.fresh(self.length())
        old = self.random.choice(recent)
        if self.random.random() < 0.4:
            return old
        return self.sibling(old)

    def sibling(self, old):
        """Begins as another one does."""
        kept = old[: self.random.randint(1, len(old))]
        if self.random.random() < 0.3:
            kept = kept[: max(BLOCK, len(kept) // BLOCK * BLOCK)]
        more = self.random.randint(1, 300)
        tail = self.random.choice((0, 1, BLOCK, more, more, more))
        return (kept + self.fresh(tail))[:MAX_TOKENS]

    def length(self):
        length = self.random.randint(1, MAX_TOKENS)
        if self.random.random() < 0.4:
            length = max(BLOCK, length // BLOCK * BLOCK)
        return length

    def body(self, prompts, salt):
        members = {
            "model": "tiny",
            "prompt": prompts if len(prompts) > 1 else prompts[0],
            "max_tokens": self.random.randint(1, 3),
            "temperature": 0,
        }
        if salt:
            members["cache_salt"] = salt
        # A salt may come before or behind the tokens.
        order = self.random.sample(sorted(members), len(members))
        return json.dumps({name: members[name] for name in order}).encode()
