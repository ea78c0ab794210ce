"""dockerd's daemon.json.

JSON has no comments to mark lines with, so the runtime's own entry keeps what was there before: its
member KEPT has the old value of each changed key as it was written, null for a key that was absent.
dockerd reads "path" and the like of an entry and passes over the rest (20.10 to 28.5 were tried).
A null that was there before could not be told from that, and is refused.
"""

import json

from nvhook.engines import json_edit
from nvhook.engines.json_edit import Keys, Tree
from nvhook.engines.registration import Registration
from nvhook.errors import ConfigError

DEFAULT_FILE = "/etc/docker/daemon.json"
KEPT = "nvhook-before"
BOM = "\ufeff"
_ABSENT = "null"
_FILE, _RUNTIMES, _RUNTIME = "file", "runtimes", "runtime"
_DEFAULT, _FEATURES, _CDI = "default-runtime", "features", "features.cdi"


def register(text: str | None, wanted: Registration, file: str) -> str:
    """Return the text with the runtime; a text that has it already is returned as it is.

    What an earlier registration has set (default, CDI) stays set.

    Raises: ConfigError.
    """
    if text is not None and (kept := _kept(text, file)) is not None:
        name, before_that = kept
        is_default = _DEFAULT in before_that and _value(text, (_DEFAULT,)) == _quote(name)
        wanted = Registration(
            wanted.runtime_name,
            wanted.runtime_path,
            wanted.set_as_default or is_default,
            wanted.cdi or _FEATURES in before_that or _CDI in before_that,
        )
        text = unregister(text, file)
    document = _document(text, file)
    bom, body = _split(text or "")
    if _is_registered(document, wanted):
        return bom + body
    before: dict[str, str] = {}
    if not body.strip():
        before[_FILE] = _ABSENT if text is None else _quote(body)
        body = "{}\n"
    if wanted.cdi and _value(body, (_FEATURES, "cdi")) != "true":
        body = _put_in(body, before, (_FEATURES, _CDI), ("features", "cdi"), "true")
    if wanted.set_as_default and _value(body, (_DEFAULT,)) != _quote(wanted.runtime_name):
        before[_DEFAULT] = _value(body, (_DEFAULT,)) or _ABSENT
        body = _put(body, before, (_DEFAULT,), _quote(wanted.runtime_name))
    keys = ("runtimes", wanted.runtime_name)
    return bom + _put_in(body, before, (_RUNTIMES, _RUNTIME), keys, None, wanted.runtime_path)


def unregister(text: str, file: str) -> str | None:
    """Return the text from before, None for a file that was not there; the same text if nothing is.

    Raises: ConfigError.
    """
    kept = _kept(text, file)
    if kept is None:
        return text
    name, before = kept
    bom, body = _split(text)
    body = _take_back(body, before, (_RUNTIMES, _RUNTIME), ("runtimes", name))
    if _DEFAULT in before and _value(body, (_DEFAULT,)) == _quote(name):
        body = _restore(body, (_DEFAULT,), before[_DEFAULT])
    if _value(body, (_FEATURES, "cdi")) == "true":
        body = _take_back(body, before, (_FEATURES, _CDI), ("features", "cdi"))
    if _FILE in before and json_edit.members(body) == []:
        original = json_edit.parse(before[_FILE], file)
        if original is None:
            return None
        body = original if isinstance(original, str) else json_edit.replace(body, (), before[_FILE])
    return bom + body


def warnings(text: str | None, file: str) -> list[str]:
    """Return what an operator should know about the file as it is now."""
    if text is None:
        return []
    found = []
    if text.startswith(BOM):
        found.append(f"{file} begins with a byte order mark: docker before 23.0 refuses it")
    document = _document(text, file)
    default = document.get("default-runtime")
    runtimes = document.get("runtimes") or {}
    if isinstance(default, str) and isinstance(runtimes, dict):
        known = {"runc", "io.containerd.runc.v2", *runtimes}
        if default not in known and not default.startswith(("io.containerd.", "/")):
            found.append(f"{file}: the default runtime {default} is not registered there")
    return found


def _document(text: str | None, file: str) -> dict[str, object]:
    _, body = _split(text or "")
    if not body.strip():
        return {}
    document = json_edit.parse(body, file)
    if not isinstance(document, dict):
        raise ConfigError(f"{file} line 1: not a JSON object")
    for key, kind, what in (("runtimes", dict, "an object"), ("features", bool, "true or false")):
        inner = document.get(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{file}: {key} is not an object")
        for name, value in inner.items():
            if not isinstance(value, kind):
                raise ConfigError(f"{file}: {name} in {key} is not {what}")
    if not isinstance(document.get("default-runtime", ""), str):
        raise ConfigError(f"{file}: default-runtime is not a string")
    return document


def _is_registered(document: dict[str, object], wanted: Registration) -> bool:
    runtimes, features = document.get("runtimes", {}), document.get("features", {})
    assert isinstance(runtimes, dict)
    assert isinstance(features, dict)
    entry = runtimes.get(wanted.runtime_name)
    return (
        isinstance(entry, dict)
        and {key: value for key, value in entry.items() if value} == {"path": wanted.runtime_path}
        and (not wanted.cdi or features.get("cdi") is True)
        and (not wanted.set_as_default or document.get("default-runtime") == wanted.runtime_name)
    )


def _kept(text: str, file: str) -> tuple[str, dict[str, str]] | None:
    """Return the name of nvhook's runtime and the old values as they were written."""
    runtimes = _document(text, file).get("runtimes", {})
    assert isinstance(runtimes, dict)
    _, body = _split(text)
    for name, entry in runtimes.items():
        if isinstance(entry, dict) and isinstance(entry.get(KEPT), dict):
            keys = ("runtimes", name, KEPT)
            return name, {key: _value(body, (*keys, key)) or _ABSENT for key in entry[KEPT]}
    return None


def _put(body: str, before: dict[str, str], keys: Keys, tree: Tree) -> str:
    """Set a member of an object that is there."""
    found = json_edit.members(body, keys[:-1])
    if found == []:  # only the root: other objects are rendered whole
        before.setdefault(_FILE, json_edit.raw(body) or _ABSENT)
        return json_edit.replace(body, (), json_edit.render({keys[-1]: tree}, body, ""))
    if json_edit.raw(body, keys) is None:
        return json_edit.insert(body, keys, tree)
    value = json_edit.render(tree, body, json_edit.indent_of(body, keys))
    return json_edit.replace(body, keys, value)


def _put_in(
    body: str,
    before: dict[str, str],
    names: tuple[str, str],
    keys: tuple[str, str],
    value: str | None,
    runtime_path: str = "",
) -> str:
    """Set a member of an object that may be absent or empty; note the old values by names."""
    outer = keys[:1]
    whole = not json_edit.members(body, outer)
    changed, at = (names[0], outer) if whole else (names[1], keys)
    before[changed] = _value(body, at) or _ABSENT
    member: Tree = value or {"path": _quote(runtime_path), KEPT: before}
    return _put(body, before, at, {keys[1]: member} if whole else member)


def _take_back(
    body: str, before: dict[str, str], names: tuple[str, str], keys: tuple[str, str]
) -> str:
    """Undo _put_in."""
    if names[1] in before:
        return _restore(body, keys, before[names[1]])
    if names[0] not in before:
        return body
    body = json_edit.remove(body, keys)
    return body if json_edit.members(body, keys[:1]) else _restore(body, keys[:1], before[names[0]])


def _restore(body: str, keys: Keys, old: str) -> str:
    return json_edit.remove(body, keys) if old == _ABSENT else json_edit.replace(body, keys, old)


def _value(body: str, keys: Keys) -> str | None:
    return json_edit.raw(body, keys) if body.strip() else None


def _split(text: str) -> tuple[str, str]:
    return (BOM, text[1:]) if text.startswith(BOM) else ("", text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
