/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor names and file names, both ways. A cut name is found by going through
 * the table: such names are rare.
 */
#include "fs/tensor_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SUFFIX_LEN (sizeof(TENSOR_FILE_SUFFIX) - 1)
#define HASH_LEN 18 /* %~ and the digits */
#define WHOLE_MAX (META_NAME_MAX - SUFFIX_LEN)
#define CUT_MAX (WHOLE_MAX - HASH_LEN)

static bool is_escaped(unsigned char c)
{
	return c == '/' || c == '%' || c < ' ' || c == 0x7f;
}

static uint64_t hash_of(const char *name)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return h;
}

static bool continues_character(char c)
{
	return ((unsigned char)c & 0xc0) == 0x80;
}

/* Escapes into out until room is used; *whole: all of it fitted. */
static size_t escape(const char *name, char *out, size_t room, bool *whole)
{
	static const char hex[] = "0123456789ABCDEF";
	size_t n = 0;

	*whole = true;
	for (const char *p = name; *p; p++) {
		unsigned char c = (unsigned char)*p;
		size_t len = is_escaped(c) ? 3 : 1;

		if (n + len > room) {
			*whole = false;
			/* Not in the middle of a character. */
			for (; p > name && continues_character(*p); p--)
				n--;
			return n;
		}
		out[n++] = len == 3 ? '%' : (char)c;
		if (len == 3) {
			out[n++] = hex[c >> 4];
			out[n++] = hex[c & 15];
		}
	}
	return n;
}

void tensor_file_name(const char *name, char out[META_NAME_MAX + 1])
{
	bool whole;
	size_t n = escape(name, out, WHOLE_MAX, &whole);

	if (!whole) {
		n = escape(name, out, CUT_MAX, &whole);
		n += (size_t)snprintf(out + n, HASH_LEN + 1, "%%~%016" PRIx64,
				      hash_of(name));
	}
	memcpy(out + n, TENSOR_FILE_SUFFIX, SUFFIX_LEN + 1);
}

static const struct tensor *find_cut(const struct tensor_table *table,
				     const char *file)
{
	char name[META_NAME_MAX + 1];

	for (size_t i = 0; i < tensor_table_count(table); i++) {
		const struct tensor *t = tensor_table_at(table, i);

		if (strlen(t->name) < CUT_MAX / 3)
			continue;
		tensor_file_name(t->name, name);
		if (!strcmp(name, file))
			return t;
	}
	return NULL;
}

static int digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 55
				      : -1;
}

/* false: not as we escape. */
static bool unescape(const char *file, size_t len, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		int high, low;

		if (file[i] != '%') {
			out[n++] = file[i];
			continue;
		}
		high = len - i > 2 ? digit(file[i + 1]) : -1;
		low = high < 0 ? -1 : digit(file[i + 2]);
		if (low < 0 || !is_escaped((unsigned char)(high << 4 | low)))
			return false;
		out[n++] = (char)(high << 4 | low);
		i += 2;
	}
	out[n] = 0;
	return true;
}

static const struct tensor *find(const struct tensor_table *table,
				 const char *file)
{
	char name[META_NAME_MAX + 1];
	size_t len = strlen(file);

	if (len <= SUFFIX_LEN || len > META_NAME_MAX ||
	    strcmp(file + len - SUFFIX_LEN, TENSOR_FILE_SUFFIX) != 0)
		return NULL;
	len -= SUFFIX_LEN;
	if (len > HASH_LEN && !memcmp(file + len - HASH_LEN, "%~", 2))
		return find_cut(table, file);
	return unescape(file, len, name) ? tensor_table_find(table, name)
					 : NULL;
}

bool tensor_is_shown(const struct tensor *t)
{
	return t->type != TENSOR_UNKNOWN;
}

const struct tensor *tensor_of_file_name(const struct tensor_table *table,
					 const char *file)
{
	const struct tensor *t = find(table, file);

	return t && tensor_is_shown(t) ? t : NULL;
}
