/* SHA-256 (FIPS 180-4). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sha256 {
	uint32_t state[8];
	uint64_t size; /* bytes so far */
	uint8_t block[64];
};

void sha256_start(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *data, size_t size);
void sha256_end(struct sha256 *sha, uint8_t digest[32]);
