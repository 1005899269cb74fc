/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors from providers: all places are known at the start, so the header
 * is plain memory before the tensors.
 */
#include "providers/layout_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LEN_MAX 100000000 /* the library's own limit */
#define DIMS_MAX 64

struct entry {
	char *name;
	const char *type;
	size_t n_bits;
	uint64_t *shape;
	size_t n_dims;
	uint64_t size;
	struct ckpt_provider *p; /* until it is handed on */
};

struct pair {
	char *key;
	char *value;
};

struct ckpt_safetensors {
	struct entry *entries;
	size_t n_entries, n_entries_room;
	struct pair *pairs;
	size_t n_pairs, n_pairs_room;
};

static const struct {
	const char *name;
	size_t n_bits;
} types[] = {
	{ "F64", 64 },        { "I64", 64 },    { "U64", 64 },
	{ "C64", 64 },        { "F32", 32 },    { "I32", 32 },
	{ "U32", 32 },        { "F16", 16 },    { "BF16", 16 },
	{ "I16", 16 },        { "U16", 16 },    { "F8_E8M0", 8 },
	{ "F8_E4M3", 8 },     { "F8_E5M2", 8 }, { "F8_E4M3FNUZ", 8 },
	{ "F8_E5M2FNUZ", 8 }, { "I8", 8 },      { "U8", 8 },
	{ "BOOL", 8 },        { "F6_E2M3", 6 }, { "F6_E3M2", 6 },
	{ "F4", 4 },
};

int ckpt_safetensors_new(struct ckpt_safetensors **out)
{
	struct ckpt_safetensors *st = calloc(1, sizeof(*st));

	if (!st)
		return -ENOMEM;
	*out = st;
	return 0;
}

static void entry_fini(struct entry *e)
{
	free(e->name);
	free(e->shape);
	let_go(e->p);
}

void ckpt_safetensors_free(struct ckpt_safetensors *st)
{
	if (!st)
		return;
	for (size_t i = 0; i < st->n_entries; i++)
		entry_fini(&st->entries[i]);
	for (size_t i = 0; i < st->n_pairs; i++) {
		free(st->pairs[i].key);
		free(st->pairs[i].value);
	}
	free(st->entries);
	free(st->pairs);
	free(st);
}

static void safetensors_freep(struct ckpt_safetensors **st)
{
	ckpt_safetensors_free(*st);
}

/* ---- what the format can hold ------------------------------------------- */

/* Length of the UTF-8 sequence at s (RFC 3629), 0: it is none. */
static size_t utf8_len(const unsigned char *s)
{
	size_t len = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	if (s[0] > 0xf4 || (s[0] >= 0x80 && s[0] < 0xc2))
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return len;
}

static bool is_text(const char *s)
{
	while (*s) {
		size_t len = utf8_len((const unsigned char *)s);

		if (!len)
			return false;
		s += len;
	}
	return true;
}

static int find_type(const char *name, const char **out, size_t *n_bits)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(types[i].name, name)) {
			*out = types[i].name;
			*n_bits = types[i].n_bits;
			return 0;
		}
	return -EINVAL;
}

static int bytes_of(const uint64_t *shape, size_t n_dims, size_t n_bits,
		    uint64_t *out)
{
	uint64_t n = n_bits;

	for (size_t i = 0; i < n_dims; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return -EINVAL;
	if (n % 8)
		return -EINVAL;
	*out = n / 8;
	return 0;
}

/* ---- building ----------------------------------------------------------- */

static int entry_init(struct entry *e, const char *name, const uint64_t *shape,
		      size_t n_dims)
{
	e->name = strdup(name);
	e->shape = calloc(n_dims + 1, sizeof(*shape));
	if (!e->name || !e->shape)
		return -ENOMEM;
	if (n_dims)
		memcpy(e->shape, shape, n_dims * sizeof(*shape));
	e->n_dims = n_dims;
	return 0;
}

int ckpt_safetensors_add(struct ckpt_safetensors *st, const char *name,
			 const char *type, const uint64_t *shape, size_t n_dims,
			 struct ckpt_provider *p)
{
	CLEANUP(provider_freep) struct ckpt_provider *own = p;
	struct entry *e;
	int r;

	if (!own)
		return -ENOMEM;
	if (!is_text(name) || !strcmp(name, "__metadata__") ||
	    n_dims > DIMS_MAX)
		return -EINVAL;
	r = reserve(&st->entries, st->n_entries, &st->n_entries_room,
		    sizeof(*e));
	if (r)
		return r;
	e = &st->entries[st->n_entries];
	memset(e, 0, sizeof(*e));
	r = find_type(type, &e->type, &e->n_bits);
	if (!r)
		r = bytes_of(shape, n_dims, e->n_bits, &e->size);
	if (!r && own->ops->size(own) != e->size)
		r = -EINVAL;
	if (!r)
		r = entry_init(e, name, shape, n_dims);
	if (r) {
		entry_fini(e);
		return r;
	}
	e->p = MOVE(own);
	st->n_entries++;
	return 0;
}

int ckpt_safetensors_metadata(struct ckpt_safetensors *st, const char *key,
			      const char *value)
{
	struct pair *pair;
	int r;

	if (!is_text(key) || !is_text(value))
		return -EINVAL;
	for (size_t i = 0; i < st->n_pairs; i++)
		if (!strcmp(st->pairs[i].key, key))
			return -EEXIST;
	r = reserve(&st->pairs, st->n_pairs, &st->n_pairs_room, sizeof(*pair));
	if (r)
		return r;
	pair = &st->pairs[st->n_pairs];
	pair->key = strdup(key);
	pair->value = strdup(value);
	if (!pair->key || !pair->value) {
		free(pair->key);
		free(pair->value);
		return -ENOMEM;
	}
	st->n_pairs++;
	return 0;
}

/* ---- the header --------------------------------------------------------- */

static void write_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", (unsigned)*s);
		else
			fputc(*s, f);
	fputc('"', f);
}

static void write_metadata(FILE *f, const struct ckpt_safetensors *st)
{
	fputs("\"__metadata__\":{", f);
	for (size_t i = 0; i < st->n_pairs; i++) {
		if (i)
			fputc(',', f);
		write_string(f, st->pairs[i].key);
		fputc(':', f);
		write_string(f, st->pairs[i].value);
	}
	fputc('}', f);
}

static void write_entry(FILE *f, const struct entry *e, uint64_t off)
{
	write_string(f, e->name);
	fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", e->type);
	for (size_t i = 0; i < e->n_dims; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", e->shape[i]);
	fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", off,
		off + e->size);
}

static void write_json(FILE *f, const struct ckpt_safetensors *st)
{
	uint64_t off = 0;

	fputc('{', f);
	if (st->n_pairs)
		write_metadata(f, st);
	for (size_t i = 0; i < st->n_entries; i++) {
		if (i || st->n_pairs)
			fputc(',', f);
		write_entry(f, &st->entries[i], off);
		off += st->entries[i].size;
	}
	fputc('}', f);
}

/* With its length before it. */
static int write_header(const struct ckpt_safetensors *st, char **out,
			size_t *out_len)
{
	char *bytes = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&bytes, &len);
	bool failed;
	long end;

	if (!f)
		return -ENOMEM;
	fwrite("\0\0\0\0\0\0\0", 1, 8, f);
	write_json(f, st);
	for (end = ftell(f); end % 8; end++)
		fputc(' ', f);
	failed = ferror(f);
	failed |= fclose(f) != 0;
	if (failed || len - 8 > HEADER_LEN_MAX) {
		free(bytes);
		return failed ? -ENOMEM : -EINVAL;
	}
	for (size_t i = 0; i < 8; i++)
		bytes[i] = (char)((uint64_t)(len - 8) >> (8 * i));
	*out = bytes;
	*out_len = len;
	return 0;
}

/* ---- finishing ---------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name,
		      ((const struct entry *)b)->name);
}

/* As the library lays them out: every tensor is aligned to its type then. */
static int by_type(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->n_bits != y->n_bits)
		return x->n_bits > y->n_bits ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int sort(struct ckpt_safetensors *st)
{
	uint64_t sum = 0;

	if (!st->n_entries)
		return 0;
	qsort(st->entries, st->n_entries, sizeof(*st->entries), by_name);
	for (size_t i = 1; i < st->n_entries; i++)
		if (!by_name(&st->entries[i - 1], &st->entries[i]))
			return -EEXIST;
	for (size_t i = 0; i < st->n_entries; i++)
		if (__builtin_add_overflow(sum, st->entries[i].size, &sum))
			return -EINVAL;
	qsort(st->entries, st->n_entries, sizeof(*st->entries), by_type);
	return 0;
}

static int compose(struct ckpt_safetensors *st, struct ckpt_provider *all)
{
	char *header;
	size_t len;
	int r = write_header(st, &header, &len);

	if (r)
		return r;
	/* It is freed already where that is NULL. */
	r = ckpt_composite_add(all,
			       ckpt_memory_owned(header, len, free, header));
	for (size_t i = 0; i < st->n_entries && !r; i++)
		r = ckpt_composite_add(all, MOVE(st->entries[i].p));
	return r;
}

int ckpt_safetensors_finish(struct ckpt_safetensors *st,
			    struct ckpt_provider **out)
{
	CLEANUP(safetensors_freep) struct ckpt_safetensors *own = st;
	CLEANUP(provider_freep) struct ckpt_provider *all = NULL;
	int r = sort(own);

	if (r)
		return r;
	all = ckpt_composite(1);
	if (!all)
		return -ENOMEM;
	r = compose(own, all);
	if (r)
		return r;
	*out = MOVE(all);
	return 0;
}
