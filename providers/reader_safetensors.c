/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors, as its README specifies it: u64 length of the header, at most
 * 100 MB; a JSON object that names the tensors; their bytes, one behind the
 * other in some order, without holes, to the end of the file.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_bytes.h"
#include "providers/reader_formats.h"
#include "providers/reader_json.h"

#define HEADER_MAX 100000000
#define HEADER_OFF 8

static const struct dtype {
	const char *name;
	enum tensor_type type;
	unsigned bits;
} dtypes[] = {
	{ "BOOL", TENSOR_BOOL, 8 },
	{ "F4", TENSOR_F4_X2, 4 },
	{ "F6_E2M3", TENSOR_PACKED, 6 },
	{ "F6_E3M2", TENSOR_PACKED, 6 },
	{ "U8", TENSOR_U8, 8 },
	{ "I8", TENSOR_I8, 8 },
	{ "F8_E5M2", TENSOR_F8_E5M2, 8 },
	{ "F8_E4M3", TENSOR_F8_E4M3FN, 8 },
	{ "F8_E8M0", TENSOR_F8_E8M0FNU, 8 },
	{ "F8_E4M3FNUZ", TENSOR_F8_E4M3FNUZ, 8 },
	{ "F8_E5M2FNUZ", TENSOR_F8_E5M2FNUZ, 8 },
	{ "I16", TENSOR_I16, 16 },
	{ "U16", TENSOR_U16, 16 },
	{ "F16", TENSOR_F16, 16 },
	{ "BF16", TENSOR_BF16, 16 },
	{ "I32", TENSOR_I32, 32 },
	{ "U32", TENSOR_U32, 32 },
	{ "F32", TENSOR_F32, 32 },
	{ "C64", TENSOR_C64, 64 },
	{ "F64", TENSOR_F64, 64 },
	{ "I64", TENSOR_I64, 64 },
	{ "U64", TENSOR_U64, 64 },
};

struct range {
	uint64_t begin, end; /* as in the header: behind it */
};

struct scan {
	uint64_t data;     /* where they begin in the file */
	uint64_t data_len; /* to the end of the file */
	tensor_found *found;
	void *arg;
	struct range *ranges; /* of all tensors so far */
	size_t n, room;
	char name[TENSOR_NAME_MAX + 1];
};

/* One tensor's members. */
struct entry {
	const struct dtype *dtype;
	bool has_shape;
	unsigned n_dims;
	uint64_t shape[TENSOR_DIMS_MAX];
	unsigned n_offsets;
	uint64_t offsets[2];
};

static int entry_shape(struct jscan *j, const char *key, void *arg)
{
	struct entry *e = arg;

	(void)key;
	if (e->n_dims == TENSOR_DIMS_MAX)
		return -ENOMSG;
	return jscan_u64(j, &e->shape[e->n_dims++]);
}

static int entry_offset(struct jscan *j, const char *key, void *arg)
{
	struct entry *e = arg;

	(void)key;
	if (e->n_offsets == 2)
		return -ENOMSG;
	return jscan_u64(j, &e->offsets[e->n_offsets++]);
}

static int entry_dtype(struct jscan *j, struct entry *e)
{
	char name[16];
	int rc = jscan_string(j, name, sizeof(name));

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (!strcmp(dtypes[i].name, name))
			e->dtype = &dtypes[i];
	return e->dtype ? 0 : -ENOMSG;
}

static int entry_member(struct jscan *j, const char *key, void *arg)
{
	struct entry *e = arg;

	if (!strcmp(key, "dtype") && !e->dtype)
		return entry_dtype(j, e);
	if (!strcmp(key, "shape") && !e->has_shape) {
		e->has_shape = true;
		return jscan_array(j, entry_shape, e);
	}
	if (!strcmp(key, "data_offsets") && !e->n_offsets)
		return jscan_array(j, entry_offset, e);
	if (!strcmp(key, "dtype") || !strcmp(key, "shape") ||
	    !strcmp(key, "data_offsets"))
		return -ENOMSG; /* twice */
	return jscan_skip(j);
}

static int note_range(struct scan *s, uint64_t begin, uint64_t end)
{
	size_t room = s->room ? s->room * 2 : 256;
	struct range *more;

	if (s->n == READER_TENSORS_MAX)
		return -E2BIG;
	if (s->n == s->room) {
		more = realloc(s->ranges, room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		s->ranges = more;
		s->room = room;
	}
	s->ranges[s->n++] = (struct range){ begin, end };
	return 0;
}

/* Do the elements of e take exactly len bytes? */
static bool len_ok(const struct entry *e, uint64_t len)
{
	uint64_t bits = e->dtype->bits;

	for (unsigned i = 0; i < e->n_dims; i++)
		if (__builtin_mul_overflow(bits, e->shape[i], &bits))
			return false;
	return bits % 8 == 0 && bits / 8 == len;
}

/* The header counts single f4; we count pairs, as PyTorch does. */
static int pair_f4(struct entry *e)
{
	uint64_t *last;

	if (!e->n_dims)
		return -ENOMSG;
	last = &e->shape[e->n_dims - 1];
	if (*last % 2)
		return -ENOMSG;
	*last /= 2;
	return 0;
}

static int tell(struct scan *s, struct entry *e)
{
	struct tensor_piece piece = {
		.off = s->data + e->offsets[0],
		.len = e->offsets[1] - e->offsets[0],
	};
	struct tensor t = {
		.name = s->name,
		.type = e->dtype->type,
		.type_name = e->dtype->name,
		.n_dims = e->n_dims,
		.shape = e->shape,
		.pieces = &piece,
		.n_pieces = 1,
	};
	int rc = t.type == TENSOR_F4_X2 ? pair_f4(e) : 0;

	return rc ? rc : s->found(s->arg, &t);
}

static int metadata_member(struct jscan *j, const char *key, void *arg)
{
	(void)key;
	(void)arg;
	return jscan_string(j, NULL, 0);
}

/* A tensor, or the free text of whoever saved it. */
static int header_member(struct jscan *j, const char *key, void *arg)
{
	struct scan *s = arg;
	struct entry e = { 0 };
	char member[16];
	int rc;

	if (!strcmp(key, "__metadata__"))
		return jscan_object(j, NULL, 0, metadata_member, NULL);
	rc = jscan_object(j, member, sizeof(member), entry_member, &e);
	if (rc)
		return rc;
	if (!e.dtype || !e.has_shape || e.n_offsets != 2 ||
	    e.offsets[0] > e.offsets[1] || e.offsets[1] > s->data_len ||
	    !len_ok(&e, e.offsets[1] - e.offsets[0]))
		return -ENOMSG;
	rc = note_range(s, e.offsets[0], e.offsets[1]);
	return rc ? rc : tell(s, &e);
}

static int by_begin(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

/* One behind the other, from the first byte to the last. */
static int check_ranges(struct scan *s)
{
	uint64_t at = 0;

	if (s->n)
		qsort(s->ranges, s->n, sizeof(*s->ranges), by_begin);
	for (size_t i = 0; i < s->n; i++) {
		if (s->ranges[i].begin != at)
			return -ENOMSG;
		at = s->ranges[i].end;
	}
	return at == s->data_len ? 0 : -ENOMSG;
}

static void scan_fini(struct scan *s)
{
	free(s->ranges);
}

static int scan_header(struct scan *s, struct reader_cursor *c)
{
	struct jscan j = { .c = c };
	uint8_t first;
	int rc = cursor_peek(c, &first);

	if (!rc && first != '{')
		rc = -ENOMSG;
	if (!rc)
		rc = jscan_object(&j, s->name, sizeof(s->name), header_member,
				  s);
	if (!rc)
		rc = jscan_end(&j);
	return rc ? rc : check_ranges(s);
}

static int safetensors_scan(const struct reader_source *source,
			    tensor_found *found, void *arg)
{
	CLEANUP(scan_fini) struct scan s = { .found = found, .arg = arg };
	CLEANUP(cursor_fini) struct reader_cursor c = { 0 };
	uint8_t prefix[HEADER_OFF];
	uint64_t len;
	int rc;

	if (source->size < HEADER_OFF)
		return -ENOMSG;
	rc = source->read(source->arg, prefix, sizeof(prefix), 0);
	if (rc)
		return rc;
	len = get_le(prefix, 8);
	if (len > HEADER_MAX || len > source->size - HEADER_OFF)
		return -ENOMSG;
	s.data = HEADER_OFF + len;
	s.data_len = source->size - s.data;
	rc = cursor_init(&c, source, HEADER_OFF, s.data);
	return rc ? rc : scan_header(&s, &c);
}

static bool safetensors_knows(const uint8_t *head, size_t len, const char *name)
{
	(void)name;
	return len > HEADER_OFF && get_le(head, 8) <= HEADER_MAX &&
	       head[HEADER_OFF] == '{';
}

const struct reader_ops reader_safetensors = {
	.name = "safetensors",
	.knows = safetensors_knows,
	.scan = safetensors_scan,
};
