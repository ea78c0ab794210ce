/*
 * Give a fuzz target files, as they are, cut off, and with a character or two changed: about 500 inputs
 * for each, the same in every run. No text is followed by a zero, so that a sanitizer sees what reads on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void give(const uint8_t *text, size_t size, int changes)
{
	static const char wrong[] = "\"\\{}[]:,0-eun\x7f\x80\xc3\xff\n ";
	static uint32_t random = 1;
	uint8_t *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	for (; size && changes; changes--) {
		random = random * 1664525 + 1013904223;
		copy[(random >> 8) % size] = (uint8_t)wrong[(random >> 3) % sizeof wrong]; /* the zero, too */
	}
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

int main(int argc, char **argv)
{
	static uint8_t text[1 << 20];
	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		size_t size = file ? fread(text, 1, sizeof text, file) : 0;
		if (!size || fclose(file) != 0)
			return 2;
		give(text, size, 0);
		size_t step = size / INPUTS + 1;
		for (size_t end = (size_t)i % step; end < size; end += step)
			give(text, end, 0);
		for (int n = 0; n < INPUTS; n++)
			give(text, size, 1 + n % 2);
	}
	return 0;
}
