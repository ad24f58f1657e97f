"""A learner that has never heard of the package: written from docs/protocol.md alone, with numpy.

    ATOLL_TOKEN=... python stranger.py URL NAME

It brings a `Linear(4, 8)` to a `decoupled` run of two fragments and codec f32, seeds the run or takes its
weights, descends towards 1 until the run is over, and says what became of its tokens. It dials only once.
"""

import hashlib
import json
import os
import secrets
import select
import socket
import ssl
import struct
import sys
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import xxhash
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

OPEN, ACCEPTED, MODEL, READY, ATTACH, ATTACHED, PIECE = 1, 2, 3, 4, 6, 7, 15
HELLO, REPORT, HEADER, ABSTAIN, BODY, SEED_BODY, LEAVE = 16, 17, 18, 19, 20, 21, 23
WELCOME, BEAT, SEED_ASK, ASK, PUBLISH, CANCELLED = 32, 36, 37, 38, 39, 40
FRAME, PREFIX, WHOLE = struct.Struct(">4sBBHQIIQII"), struct.Struct(">BHQ"), -2
TENSORS = {"weight": ([8, 4], "rda"), "bias": ([8], "mean")}
STEP_NS, TOKENS = 5_000_000, 16
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


def digest_of(values):
    return hashlib.sha256(values.tobytes()).hexdigest()[:32]


def manifest():  # section 7: the JSON and its digest
    storages = [{"name": n, "shape": s, "dtype": "float32", "aliases": []} for n, (s, _) in TENSORS.items()]
    fragments = [[[name, 0, int(np.prod(shape)), rule]] for name, (shape, rule) in TENSORS.items()]
    named = {"fragments": fragments, "storages": storages}
    text = json.dumps(named, sort_keys=True, separators=(",", ":")).encode()
    whole = json.dumps(named | {"frozen": [], "buffers": []}).encode()
    return whole, hashlib.blake2b(text, digest_size=16).hexdigest()


class Pipe:
    """One connection: frames out, frames in (sections 2 and 3)."""

    def __init__(self, url):
        raw = socket.create_connection((url.hostname, url.port or 7700), timeout=30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self.sock = tls.wrap_socket(raw)
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        assert parse_qs(url.query)["key"] == [f"sha256-{shown}"], "not the syncer that the URL names"
        self.run = int.from_bytes(hashlib.blake2b(url.path[1:].encode()).digest()[:8], "big")
        self.num_sent = self.num_heard = 0

    def send(self, kind, body, epoch=0, incarnation=0):
        head = FRAME.pack(b"ATOL", 1, kind, 0, self.run, epoch, incarnation, self.num_sent, len(body), 0)
        self.sock.sendall(head + xxhash.xxh3_64_digest(head + body) + body)
        self.num_sent += 1

    def read(self, size):
        data = b""
        while len(data) < size:
            data += self.sock.recv(size - len(data)) or sys.exit("the syncer closed the connection")
        return data

    def frame(self):
        head, checksum = self.read(40), self.read(8)
        magic, version, kind, _, run, _, _, sequence, length, _ = FRAME.unpack(head)
        body = self.read(length)
        assert (magic, version, run, sequence) == (b"ATOL", 1, self.run, self.num_heard)
        assert checksum == xxhash.xxh3_64_digest(head + body)
        self.num_heard += 1
        return kind, body

    def arrived(self):
        while self.sock.pending() or select.select([self.sock], [], [], 0)[0]:
            yield self.frame()

    def expect(self, kind):
        found, body = self.frame()
        assert found == kind, unpack(body)
        return unpack(body)


class Stranger:
    """The learner of section 11; it trains and listens in turn, so all messages come at a boundary."""

    def __init__(self, url, name, token):
        self.name, self.final, self.arriving = name, [], {}
        self.epoch = self.incarnation = self.clock = self.tokens = self.sequence = self.echo = 0
        self.local = [np.full(32, 0.5, "<f4"), np.zeros(8, "<f4")]
        blank = {"version": -1, "digest": "", "base": 0, "round": None, "header": None, "body": b""}
        blank |= dict.fromkeys(("origin", "steps", "merged", "discarded"), 0)
        self.slots = [SimpleNamespace(**blank) for _ in self.local]
        url, private = urlsplit(url), Ed25519PrivateKey.generate()
        self.control = Pipe(url)
        self.control.send(OPEN, pack([1, url.path[1:], "learner", token, name, "stranger"]))
        _, _, config, challenge, session = self.control.expect(ACCEPTED)
        assert msgspec.toml.decode(config)["codec"].items() >= {"up": "f32", "down": "f32"}.items()
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        proof = private.sign(b"atoll identity" + challenge + name.encode())
        self.control.send(MODEL, pack([*manifest(), public, proof]))
        secret, num_data, self.piece_bytes, _, _ = self.control.expect(READY)
        self.data = [Pipe(url) for _ in range(num_data)]
        for pipe in self.data:
            pipe.send(ATTACH, pack([session, secret]))
            pipe.expect(ATTACHED)
        key, life = hashlib.blake2b(public, digest_size=16).hexdigest(), secrets.randbits(48)
        self.control.send(HELLO, pack([name, key, life, 0, 0]))

    def tell(self, kind, *fields, content=b""):
        body = pack([self.name, self.incarnation, self.epoch, *fields, *([len(content)] if content else [])])
        if not content:
            return self.control.send(kind, body, self.epoch, self.incarnation)
        for number, at in enumerate(range(0, len(content), self.piece_bytes)):
            piece = PREFIX.pack(kind, len(body), at) + body + content[at : at + self.piece_bytes]
            self.data[number % len(self.data)].send(PIECE, piece, self.epoch, self.incarnation)

    def hear(self, kind, fields, content=b""):
        if kind == WELCOME:
            self.epoch, _, self.incarnation, self.clock, *_ = fields
        elif kind == BEAT:
            self.echo, self.final = max(self.echo, fields[3]), fields[6]
        elif kind == SEED_ASK:
            for p in fields[2]:
                if self.slots[p].version < 0:
                    self.adopt(p, 0, digest_of(self.local[p]), self.local[p], 0)
                self.tell(SEED_BODY, p, self.slots[p].digest, content=self.slots[p].base.tobytes())
        elif kind == ASK:
            self.answer(*fields[2:])
        elif kind == PUBLISH:
            _, _, p, _, version, digest, base_version, _, _, _, upto, _ = fields
            values = np.frombuffer(content, "<f4") + (0 if base_version == WHOLE else self.slots[p].base)
            if version > self.slots[p].version and digest_of(values) == digest:
                self.adopt(p, version, digest, values, upto)
        elif kind != CANCELLED:
            sys.exit(f"kind {kind}: {fields}")
        elif self.slots[fields[3]].round == fields[2]:
            self.slots[fields[3]].header = None

    def hear_piece(self, body):
        kind, length, at = PREFIX.unpack_from(body)
        packed = body[11 : 11 + length]
        pieces = self.arriving.setdefault(packed, {})
        pieces[at] = body[11 + length :]
        if sum(map(len, pieces.values())) == unpack(packed)[-1]:
            self.hear(kind, unpack(packed), b"".join(pieces[at] for at in sorted(self.arriving.pop(packed))))

    def answer(self, number, p, _t, version, _contributed, want_body):
        slot = self.slots[p]
        if slot.round != number:  # else the same answer again
            slot.round, slot.header, slot.body = number, None, (slot.base - self.local[p]).tobytes()
            if slot.version == version and slot.steps and not self.final:  # so no offer outlives its base
                interval, bases = (slot.origin, self.tokens, slot.steps), [s.version for s in self.slots]
                slot.header = (number, p, slot.version, slot.digest, *interval, bases)
        if slot.header is None:
            return self.tell(ABSTAIN, number, p, "nothing to offer")
        if not want_body:
            self.tell(HEADER, *slot.header)
        self.tell(BODY, number, p, xxhash.xxh3_128_hexdigest(slot.body), content=slot.body)

    def adopt(self, p, version, digest, values, upto):
        slot = self.slots[p]
        end = slot.header[5] if slot.header and upto >= slot.header[5] else slot.origin
        slot.merged, slot.discarded = slot.merged + end - slot.origin, slot.discarded + self.tokens - end
        slot.version, slot.digest, slot.base = version, digest, values
        slot.origin, slot.steps, slot.header, self.local[p] = self.tokens, 0, None, values.copy()

    def step(self):
        for slot, values in zip(self.slots, self.local, strict=True):
            values -= np.float32(0.05) * (values - 1)
            slot.steps += 1
        self.clock, self.tokens, self.sequence = self.clock + 1, self.tokens + TOKENS, self.sequence + 1
        holdings = [[s.version, s.digest, s.origin, s.steps, s.merged, s.discarded, 0] for s in self.slots]
        self.tell(REPORT, self.sequence, self.clock, self.tokens, STEP_NS, 0, -1, self.echo, holdings)

    def run(self):
        while [slot.version for slot in self.slots] != self.final:
            select.select([self.control.sock], [], [], STEP_NS / 1e9)
            for kind, body in self.control.arrived():
                self.hear(kind, unpack(body))
            for body in [body for pipe in self.data for _, body in pipe.arrived()]:
                self.hear_piece(body)
            if self.incarnation:
                self.step()
        self.tell(LEAVE)
        print(json.dumps({"merged": [slot.merged for slot in self.slots], "versions": self.final}))


if __name__ == "__main__":
    Stranger(sys.argv[1], sys.argv[2], os.environ["ATOLL_TOKEN"]).run()
