/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of the pipeline: the bytes of all files one after another, repeated for ever, cut into words.
 *
 * A word is a run of the letters A to Z in either case, turned into lower case: what `tr -cs A-Za-z '\n' | tr A-Z a-z` makes of the same
 * bytes in the C locale, the empty line before a text that starts with something else left out.  Who reads a file twice must find the same
 * bytes.
 */
#define _GNU_SOURCE 1
#include "pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
text_is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* FNV-1a, mixed once more: the low bits choose the counter, the high ones the place in its table. */
uint64_t
text_hash(const char *bytes, size_t n_bytes)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < n_bytes; i++)
		h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
	return h ^ h >> 29;
}

static int
text_append(struct text *t, const char *path)
{
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return -errno;
	do {
		char *bytes = realloc(t->bytes, t->n_bytes + 65536);

		if (!bytes) {
			fclose(f);
			return -ENOMEM;
		}
		t->bytes = bytes;
		n = fread(t->bytes + t->n_bytes, 1, 65536, f);
		t->n_bytes += n;
	} while (n > 0);
	n = ferror(f) ? 1 : 0;
	fclose(f);
	return n ? -EIO : 0;
}

int
text_load(struct text *t, char *const *files, size_t n_files)
{
	for (size_t i = 0; i < n_files; i++) {
		int r = text_append(t, files[i]);

		if (r < 0) {
			fprintf(stderr, "pipeline: %s: %s\n", files[i], strerror(-r));
			return r;
		}
	}
	if (t->n_bytes > 0)
		return 0;
	fprintf(stderr, "pipeline: the files are empty\n");
	return -ENODATA;
}

static void
text_step(struct text *t)
{
	if (++t->at < t->n_bytes)
		return;
	t->at = 0;
	t->n_passes++;
}

size_t
text_next(struct text *t, char *word, size_t max_bytes)
{
	size_t n;

	for (n = 0; !text_is_letter(t->bytes[t->at]); n++) {
		if (n == t->n_bytes)
			return 0;
		text_step(t);
	}
	for (n = 0; text_is_letter(t->bytes[t->at]); n++) {
		if (n == t->n_bytes)
			return 0;
		if (n < max_bytes)
			word[n] = (char)(t->bytes[t->at] | 0x20);
		text_step(t);
	}
	return n;
}
