"""Makes keys and tokens with PyJWT: a set of keys, and a token of each algorithm, as JSON."""

import json
import sys
import time

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm


def short_key():
    """Returns a key with a coordinate of which PyJWT leaves out the first byte, which is 0."""
    while True:
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.public_key().public_numbers()
        if min(numbers.x, numbers.y) < 2**248:
            return key


now = int(time.time())
pairs = {
    "RS256": (rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "ES256": (short_key(), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}
keys, tokens = [], {}
for name, (private, algorithm) in pairs.items():
    key = json.loads(algorithm.to_jwk(private.public_key()))
    keys.append({**key, "kid": name, "use": "sig"})
    claims = {"sub": "ann", "exp": now + 3600, "nbf": now - 1, "iat": now, "aud": ["push"], "iss": "login"}
    tokens[name] = jwt.encode(claims, private, algorithm=name, headers={"kid": name})
    tokens["late " + name] = jwt.encode({**claims, "exp": now - 60}, private, algorithm=name, headers={"kid": name})
    tokens["early " + name] = jwt.encode({**claims, "nbf": now + 60}, private, algorithm=name, headers={"kid": name})
tokens["none"] = jwt.encode({"sub": "ann", "exp": now + 3600, "aud": "push", "iss": "login"}, None, algorithm="none")
json.dump({"keys": {"keys": keys}, "tokens": tokens}, sys.stdout)
