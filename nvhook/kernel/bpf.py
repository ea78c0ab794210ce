"""Device programs of cgroup v2 as bytes: rules put in front of a program, and taken out again.

A patched program is *prologue + original*. The prologue allows what its rules say and otherwise
falls through into the untouched original, whose only input, r1, it preserves. In pseudo-code:

    r0 = MAGIC                      the mark: two dead stores that the verifier keeps
    r0 = number of instructions in the prologue
    r2 = ctx->access_type & 0xffff  block or char
    r3 = ctx->access_type >> 16     what is asked: a set of mknod, read, write
    r4 = ctx->major
    r5 = ctx->minor
    for each (type, major) of the rules:
        if r2 != type or r4 != major: goto next pair
        for each minor of the pair:
            if r5 != minor: goto next minor
            r0 = r3 & access
            if r0 != r3: goto original      the rule does not allow all of what is asked
            r0 = 1                          or, without any access, "r0 = 0" twice: denied
            exit
        goto original
    original:
    ...                             byte for byte

Whatever can't match any more jumps to the original at once. With a chain of independent rules the
verifier's work grows with their square, and 2048 of them are too many.

Canonical order makes the prologue a function of the rules: they are read back from its bytes and
must give the same bytes again.

Source: linux/bpf.h (struct bpf_cgroup_dev_ctx), Documentation/bpf/standardization/instruction-set.
"""

from __future__ import annotations

from struct import iter_unpack, pack

from nvhook.errors import FormatError, UnsupportedError
from nvhook.kernel.device_rules import ACCESS, TYPES, DeviceRule, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAGIC = 0x6E766831  # "nvh1": the 1 is the prologue's version
INSN = 8  # bytes: opcode, source and destination register, offset, immediate

LOAD_WORD = 0x61
MOV, MOV_REG, AND, AND_REG, RSH = 0xB7, 0xBF, 0x57, 0x5F, 0x77
JUMP, JNE, JNE_REG, EXIT = 0x05, 0x55, 0x5D, 0x95
HEAD = 8  # instructions before the first rule
BLOCK = 6  # instructions for each minor
MAX_JUMP = (1 << 15) - 1
BLINDED_REGISTER = 11  # only the kernel's constant blinding uses it

CONTEXT = 1 << 40  # where the interpreter places struct bpf_cgroup_dev_ctx
CONTEXT_SIZE = 12
MAX_STEPS = 200_000
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


def prologue(rules: Iterable[DeviceRule]) -> bytes:
    """Return the instructions that allow the rules and else fall through.

    Raises: UnsupportedError.
    """
    ordered = canonical(rules, denials=True)
    groups: dict[tuple[str, int], list[DeviceRule]] = {}
    for rule in ordered:
        groups.setdefault(rule[:2], []).append(rule)
    # The last group needs no jump to the original, and the verifier would take one to the next
    # instruction out.
    size = HEAD + BLOCK * len(ordered) + max(3 * len(groups) - 1, 0)
    if size > MAX_JUMP:
        raise UnsupportedError(f"{len(ordered)} device rules are too many for one program")
    code = [
        _insn(MOV, 0, imm=MAGIC),
        _insn(MOV, 0, imm=size),
        _insn(LOAD_WORD, 2, 1, 0),
        _insn(MOV_REG, 3, 2),
        _insn(AND, 2, imm=0xFFFF),
        _insn(RSH, 3, imm=16),
        _insn(LOAD_WORD, 4, 1, 4),
        _insn(LOAD_WORD, 5, 1, 8),
    ]
    for (kind, major), members in groups.items():
        last = len(code) + 2 + BLOCK * len(members) == size
        length = BLOCK * len(members) + (0 if last else 1)
        code += [_insn(JNE, 2, offset=length + 1, imm=TYPES[kind])]
        code += [_insn(JNE, 4, offset=length, imm=major)]
        for _, _, minor, access in members:
            code += _minor(minor, access, size - len(code))
        if not last:
            code += [_insn(JUMP, offset=size - len(code) - 1)]
    return b"".join(code)


def _minor(minor: int, access: str, to_original: int) -> list[bytes]:
    return [
        _insn(JNE, 5, offset=BLOCK - 1, imm=minor),
        _insn(MOV_REG, 0, 3),
        _insn(AND, 0, imm=_mask(access)),
        _insn(JNE_REG, 0, 3, offset=to_original - 4) if access else _insn(MOV, 0, imm=0),
        _insn(MOV, 0, imm=1 if access else 0),
        _insn(EXIT),
    ]


def split(insns: bytes) -> tuple[tuple[DeviceRule, ...] | None, bytes]:
    """Return a program's rules (None without our mark) and the original program.

    Raises: FormatError if the mark is there and what should follow it is not.
    """
    code = decode(insns)
    if len(code) < HEAD or code[0] != (MOV, 0, 0, MAGIC) or code[1][:3] != (MOV, 0, 0):
        return None, insns
    size = code[1][3]
    if HEAD <= size < len(code):
        rules = _rules(code[HEAD:size])
        try:
            same = prologue(rules) == insns[: size * INSN]
        except UnsupportedError:
            same = False
        if same:
            return rules, insns[size * INSN :]
    raise FormatError(
        "a device program has nvhook's mark, but not its rules", "restart the container"
    )


def _rules(code: list[tuple[int, int, int, int]]) -> tuple[DeviceRule, ...]:
    """Read rules where the prologue has them; the caller checks that it is a prologue."""
    kinds = {number: kind for kind, number in TYPES.items()}
    rules: list[DeviceRule] = []
    while len(code) >= 2 + BLOCK:
        kind, major = kinds.get(code[0][3], "c"), code[1][3]
        code = code[2:]
        while len(code) >= BLOCK and code[0][:2] == (JNE, 5):
            access = "".join([letter for letter in "rwm" if code[2][3] & ACCESS[letter]])
            rules.append((kind, major, code[0][3], access))
            code = code[BLOCK:]
        code = code[1:]
    return tuple(rules)


def decode(insns: bytes) -> list[tuple[int, int, int, int]]:
    """Return instructions as (opcode, registers, offset, immediate).

    Raises: FormatError if the length is not that of whole instructions.
    """
    if not insns or len(insns) % INSN:
        raise FormatError(f"a device program of {len(insns)} bytes is not whole instructions")
    return list(iter_unpack("<BBhi", insns))


def blinded(insns: bytes) -> bool:
    """Tell whether the kernel has hidden the program's constants (net.core.bpf_jit_harden)."""
    return any(BLINDED_REGISTER in (byte & 15, byte >> 4) for byte in insns[1::INSN])


def covered(asked: DeviceRule, rules: tuple[DeviceRule, ...]) -> bool:
    """Tell whether one of the rules allows all of what is asked."""
    return any(rule[:3] == asked[:3] and set(asked[3]) <= set(rule[3]) for rule in rules)


def emulate(insns: bytes, kind: str, access: str, major: int, minor: int) -> bool:
    """Say what a device program answers, without the kernel.

    Raises: UnsupportedError for instructions that device programs do not use; FormatError.
    """
    return run(decode(insns), (kind, major, minor, access))


def run(code: list[tuple[int, int, int, int]], asked: DeviceRule) -> bool:
    """Emulate decoded instructions.

    Raises: UnsupportedError.
    """
    kind, major, minor, access = asked
    context = pack("<III", _mask(access) << 16 | TYPES[kind], major, minor)
    registers = [0] * 16
    registers[1] = CONTEXT
    position = 0
    for _ in range(MAX_STEPS):
        if not 0 <= position < len(code):
            break
        opcode, pair, offset, immediate = code[position]
        position += 1
        if opcode == EXIT:
            return registers[0] & U32 != 0
        target, group, action = pair & 15, opcode & 7, opcode & 0xF0
        if group == 1:
            registers[target] = _load(opcode, context, registers[pair >> 4] + offset - CONTEXT)
            continue
        right = registers[pair >> 4] if opcode & 8 else immediate & U64
        if group in {4, 7} and action in COMPUTE and offset == 0:
            bits = 64 if group == 7 else 32
            mask = (1 << bits) - 1
            registers[target] = COMPUTE[action](registers[target] & mask, right & mask, bits) & mask
        elif opcode == JUMP:
            position += offset
        elif group in {5, 6} and action in COMPARE:
            bits = 64 if group == 5 else 32
            mask = (1 << bits) - 1
            if COMPARE[action](registers[target] & mask, right & mask, 1 << bits - 1):
                position += offset
        else:
            raise UnsupportedError(f"device program instruction {opcode:#x} is not understood")
    raise UnsupportedError("the device program does not end")


def _load(opcode: int, context: bytes, at: int) -> int:
    size = {0x61: 4, 0x69: 2, 0x71: 1, 0x79: 8}.get(opcode, 0)
    if not size or not 0 <= at <= CONTEXT_SIZE - size:
        raise UnsupportedError(f"the device program loads ({opcode:#x}) from an unknown place")
    return int.from_bytes(context[at : at + size], "little")


def _signed(value: int, sign: int) -> int:
    return (value ^ sign) - sign


COMPUTE: dict[int, Callable[[int, int, int], int]] = {
    0x00: lambda a, b, _: a + b,
    0x10: lambda a, b, _: a - b,
    0x20: lambda a, b, _: a * b,
    0x30: lambda a, b, _: a // b if b else 0,
    0x40: lambda a, b, _: a | b,
    0x50: lambda a, b, _: a & b,
    0x60: lambda a, b, bits: a << (b & bits - 1),
    0x70: lambda a, b, bits: a >> (b & bits - 1),
    0x80: lambda a, _, __: -a,
    0x90: lambda a, b, _: a % b if b else a,
    0xA0: lambda a, b, _: a ^ b,
    0xB0: lambda _, b, __: b,
    0xC0: lambda a, b, bits: _signed(a, 1 << bits - 1) >> (b & bits - 1),
}

COMPARE: dict[int, Callable[[int, int, int], bool]] = {
    0x10: lambda a, b, _: a == b,
    0x20: lambda a, b, _: a > b,
    0x30: lambda a, b, _: a >= b,
    0x40: lambda a, b, _: a & b != 0,
    0x50: lambda a, b, _: a != b,
    0x60: lambda a, b, sign: _signed(a, sign) > _signed(b, sign),
    0x70: lambda a, b, sign: _signed(a, sign) >= _signed(b, sign),
    0xA0: lambda a, b, _: a < b,
    0xB0: lambda a, b, _: a <= b,
    0xC0: lambda a, b, sign: _signed(a, sign) < _signed(b, sign),
    0xD0: lambda a, b, sign: _signed(a, sign) <= _signed(b, sign),
}


def _mask(access: str) -> int:
    return sum({ACCESS[letter] for letter in access})


def _insn(opcode: int, target: int = 0, source: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return pack("<BBhi", opcode, source << 4 | target, offset, imm)
