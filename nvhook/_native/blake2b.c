#include "blake2b.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are taken from memory as they are");

#define BLOCK sizeof((struct blake2b *)0)->block

static const uint64_t first[8] = { 0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
				   0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 };

static const uint8_t order[10][16] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }, { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
	{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 }, { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
	{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 }, { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
	{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 }, { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
	{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 }, { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
};

static uint64_t rotate(uint64_t x, int n) { return x >> n | x << (64 - n); }

#define MIX(a, b, c, d, x, y)                              \
	(a += b + x, d = rotate(d ^ a, 32), c += d, b = rotate(b ^ c, 24), \
	 a += b + y, d = rotate(d ^ a, 16), c += d, b = rotate(b ^ c, 63))

static void compress(struct blake2b *hash, uint64_t last)
{
	uint64_t v[16], m[16];
	memcpy(m, hash->block, sizeof m); /* little-endian, as both machines are that nvhook runs on */
	memcpy(v, hash->state, sizeof hash->state);
	memcpy(v + 8, first, sizeof first);
	v[12] ^= hash->size;
	v[14] ^= last;
	for (int round = 0; round < 12; round++) {
		const uint8_t *s = order[round % 10];
		MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
		MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
		MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
		MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
		MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
		MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
		MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
		MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
	}
	for (int i = 0; i < 8; i++)
		hash->state[i] ^= v[i] ^ v[i + 8];
}

void blake2b_start(struct blake2b *hash)
{
	memcpy(hash->state, first, sizeof first);
	hash->state[0] ^= 0x01010000 ^ 32; /* no key, 32 bytes */
	hash->size = hash->have = 0;
}

void blake2b_add(struct blake2b *hash, const void *data, size_t size)
{
	for (const uint8_t *at = data; size;) {
		if (hash->have == BLOCK) { /* only now: the last block is another thing */
			hash->size += BLOCK;
			compress(hash, 0);
			hash->have = 0;
		}
		size_t part = size < BLOCK - hash->have ? size : BLOCK - hash->have;
		memcpy(hash->block + hash->have, at, part);
		at += part, size -= part, hash->have += part;
	}
}

void blake2b_end(struct blake2b *hash, uint8_t digest[32])
{
	hash->size += hash->have;
	memset(hash->block + hash->have, 0, BLOCK - hash->have);
	compress(hash, UINT64_MAX);
	for (int i = 0; i < 32; i++)
		digest[i] = (uint8_t)(hash->state[i / 8] >> (8 * (i % 8)));
}
