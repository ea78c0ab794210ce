"""What the launcher and Python both say of a config.json, computed by the same code."""

from nvhook._native import ffi, lib

_SIZE = 32  # bytes of a digest


def of_request(config_json: bytes) -> bytes | None:
    """Return the digest of all that a config.json's request is decided from.

    None where it can't stand for that: the text is not understood by the launcher (request.c).
    """
    digest = ffi.new("uint8_t[]", _SIZE)
    is_repeatable = lib.nvh_request_digest(config_json, len(config_json), digest)
    return bytes(ffi.buffer(digest)) if is_repeatable else None
