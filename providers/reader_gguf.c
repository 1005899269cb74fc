/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF 2 and 3, either byte order: typed keys and values, which are skipped but
 * for the alignment; then the tensors' names, shapes (innermost first), types
 * and places, counted from where the data begin; the data.
 *
 * Where the data begin is known after the last tensor: they are read twice.
 * Places are checked as ggml does it: one tensor behind the other.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_bytes.h"
#include "providers/reader_cursor.h"
#include "providers/reader_formats.h"

#define HEADER_MAX (UINT64_C(256) << 20)
#define PREFIX_LEN 24 /* magic, version, number of tensors, of keys */
#define KEY_MAX 64    /* longer ones are none that we look for */
#define ARRAY_DEPTH_MAX 8
#define ALIGNMENT 32

/* Quantised blocks: elements in one, bytes of one. Its number is ggml's. */
static const struct ggml_type {
	const char *name;
	enum tensor_type type;
	unsigned n, len;
} ggml_types[] = {
	[0] = { "F32", TENSOR_F32, 1, 4 },
	[1] = { "F16", TENSOR_F16, 1, 2 },
	[2] = { "Q4_0", TENSOR_PACKED, 32, 18 },
	[3] = { "Q4_1", TENSOR_PACKED, 32, 20 },
	[6] = { "Q5_0", TENSOR_PACKED, 32, 22 },
	[7] = { "Q5_1", TENSOR_PACKED, 32, 24 },
	[8] = { "Q8_0", TENSOR_PACKED, 32, 34 },
	[9] = { "Q8_1", TENSOR_PACKED, 32, 40 },
	[10] = { "Q2_K", TENSOR_PACKED, 256, 84 },
	[11] = { "Q3_K", TENSOR_PACKED, 256, 110 },
	[12] = { "Q4_K", TENSOR_PACKED, 256, 144 },
	[13] = { "Q5_K", TENSOR_PACKED, 256, 176 },
	[14] = { "Q6_K", TENSOR_PACKED, 256, 210 },
	[15] = { "Q8_K", TENSOR_PACKED, 256, 292 },
	[16] = { "IQ2_XXS", TENSOR_PACKED, 256, 66 },
	[17] = { "IQ2_XS", TENSOR_PACKED, 256, 74 },
	[18] = { "IQ3_XXS", TENSOR_PACKED, 256, 98 },
	[19] = { "IQ1_S", TENSOR_PACKED, 256, 50 },
	[20] = { "IQ4_NL", TENSOR_PACKED, 32, 18 },
	[21] = { "IQ3_S", TENSOR_PACKED, 256, 110 },
	[22] = { "IQ2_S", TENSOR_PACKED, 256, 82 },
	[23] = { "IQ4_XS", TENSOR_PACKED, 256, 136 },
	[24] = { "I8", TENSOR_I8, 1, 1 },
	[25] = { "I16", TENSOR_I16, 1, 2 },
	[26] = { "I32", TENSOR_I32, 1, 4 },
	[27] = { "I64", TENSOR_I64, 1, 8 },
	[28] = { "F64", TENSOR_F64, 1, 8 },
	[29] = { "IQ1_M", TENSOR_PACKED, 256, 56 },
	[30] = { "BF16", TENSOR_BF16, 1, 2 },
	[31] = { "Q4_0_4_4", TENSOR_PACKED, 32, 18 },
	[32] = { "Q4_0_4_8", TENSOR_PACKED, 32, 18 },
	[33] = { "Q4_0_8_8", TENSOR_PACKED, 32, 18 },
	[34] = { "TQ1_0", TENSOR_PACKED, 256, 54 },
	[35] = { "TQ2_0", TENSOR_PACKED, 256, 66 },
	[36] = { "IQ4_NL_4_4", TENSOR_PACKED, 32, 18 },
	[37] = { "IQ4_NL_4_8", TENSOR_PACKED, 32, 18 },
	[38] = { "IQ4_NL_8_8", TENSOR_PACKED, 32, 18 },
	[39] = { "MXFP4", TENSOR_PACKED, 32, 17 },
	[40] = { "NVFP4", TENSOR_PACKED, 64, 36 },
	[41] = { "Q1_0", TENSOR_PACKED, 128, 18 },
};

enum value_type {
	VALUE_U32 = 4,
	VALUE_STRING = 8,
	VALUE_ARRAY = 9,
	VALUE_TYPES = 13,
};

/* Bytes of those of fixed length. */
static const unsigned value_lens[VALUE_TYPES] = { 1, 1, 2, 2, 4, 4, 4,
						  1, 0, 0, 8, 8, 8 };

struct scan {
	struct reader_cursor c;
	bool big;
	uint64_t n_tensors, n_keys;
	uint64_t alignment;
	uint64_t infos, data; /* where they begin */
	uint64_t next;        /* where the next tensor's bytes must begin */
	tensor_found *found;  /* NULL: first pass */
	void *arg;
	char name[TENSOR_NAME_MAX + 1];
};

static int get(struct scan *s, size_t n, uint64_t *out)
{
	uint8_t bytes[8];
	int rc = cursor_read(&s->c, bytes, n);

	if (!rc)
		*out = s->big ? get_be(bytes, n) : get_le(bytes, n);
	return rc;
}

/* A string that fits with its NUL; *fits false: it was too long, skipped. */
static int get_string(struct scan *s, char *buf, size_t room, bool *fits)
{
	uint64_t len;
	int rc = get(s, 8, &len);

	if (rc)
		return rc;
	*fits = len < room;
	if (!*fits)
		return cursor_skip(&s->c, len);
	buf[len] = '\0';
	return cursor_read(&s->c, buf, (size_t)len);
}

static int skip_string(struct scan *s)
{
	uint64_t len;
	int rc = get(s, 8, &len);

	return rc ? rc : cursor_skip(&s->c, len);
}

static int skip_value(struct scan *s, uint64_t type, unsigned depth);

static int skip_array(struct scan *s, unsigned depth)
{
	uint64_t type, n, len;
	int rc;

	if ((rc = get(s, 4, &type)) || (rc = get(s, 8, &n)))
		return rc;
	if (type >= VALUE_TYPES || depth == ARRAY_DEPTH_MAX)
		return -ENOMSG;
	if (value_lens[type]) {
		if (__builtin_mul_overflow(n, (uint64_t)value_lens[type], &len))
			return -ENOMSG;
		return cursor_skip(&s->c, len);
	}
	/* Each takes some bytes at least: the end comes, whatever n is. */
	while (!rc && n--)
		rc = skip_value(s, type, depth + 1);
	return rc;
}

static int skip_value(struct scan *s, uint64_t type, unsigned depth)
{
	if (type >= VALUE_TYPES)
		return -ENOMSG;
	if (type == VALUE_STRING)
		return skip_string(s);
	if (type == VALUE_ARRAY)
		return skip_array(s, depth);
	return cursor_skip(&s->c, value_lens[type]);
}

static int read_key(struct scan *s)
{
	char key[KEY_MAX + 1];
	uint64_t type;
	bool fits;
	int rc;

	if ((rc = get_string(s, key, sizeof(key), &fits)) ||
	    (rc = get(s, 4, &type)))
		return rc;
	if (!fits || strcmp(key, "general.alignment") != 0)
		return skip_value(s, type, 0);
	if (type != VALUE_U32)
		return -ENOMSG;
	rc = get(s, 4, &s->alignment);
	if (!rc && (!s->alignment || s->alignment & (s->alignment - 1)))
		rc = -ENOMSG;
	return rc;
}

/* What one tensor says of itself. */
struct info {
	unsigned n_dims;
	uint64_t shape[TENSOR_DIMS_MAX]; /* outermost first, as elsewhere */
	const struct ggml_type *type;
	uint64_t off, len;
};

static int get_shape(struct scan *s, struct info *in)
{
	uint64_t n;
	int rc = get(s, 4, &n);

	if (rc)
		return rc;
	if (n > TENSOR_DIMS_MAX)
		return -ENOMSG;
	in->n_dims = (unsigned)n;
	for (unsigned i = in->n_dims; !rc && i--;)
		rc = get(s, 8, &in->shape[i]);
	return rc;
}

/* Bytes of its blocks, which do not go over the innermost dimension's end. */
static int measure(struct info *in)
{
	uint64_t inner = in->n_dims ? in->shape[in->n_dims - 1] : 1;
	uint64_t n = in->type->len;

	if (inner % in->type->n)
		return -ENOMSG;
	if (__builtin_mul_overflow(n, inner / in->type->n, &n))
		return -ENOMSG;
	for (unsigned i = 0; i + 1 < in->n_dims; i++)
		if (__builtin_mul_overflow(n, in->shape[i], &n))
			return -ENOMSG;
	in->len = n;
	return 0;
}

static int get_type(struct scan *s, struct info *in)
{
	uint64_t type;
	int rc = get(s, 4, &type);

	if (rc)
		return rc;
	if (type >= sizeof(ggml_types) / sizeof(*ggml_types) ||
	    !ggml_types[type].name)
		return -ENOMSG;
	in->type = &ggml_types[type];
	return 0;
}

static int tell(struct scan *s, const struct info *in)
{
	struct tensor_piece piece = { .swapped = s->big, .len = in->len };
	struct tensor t = {
		.name = s->name,
		.type = in->type->type,
		.type_name = in->type->name,
		.n_dims = in->n_dims,
		.shape = in->shape,
		.pieces = &piece,
		.n_pieces = 1,
	};

	if (tensor_type_len(t.type) <= 1)
		piece.swapped = false;
	if (__builtin_add_overflow(s->data, in->off, &piece.off))
		return -ENOMSG;
	return s->found(s->arg, &t);
}

static int read_info(struct scan *s)
{
	struct info in;
	bool fits;
	int rc;

	if ((rc = get_string(s, s->name, sizeof(s->name), &fits)) ||
	    (rc = get_shape(s, &in)) || (rc = get_type(s, &in)) ||
	    (rc = get(s, 8, &in.off)) || (rc = measure(&in)))
		return rc;
	if (!fits || in.off != s->next)
		return -ENOMSG;
	if (__builtin_add_overflow(in.off, in.len, &s->next) ||
	    __builtin_add_overflow(s->next, s->alignment - 1, &s->next))
		return -ENOMSG;
	s->next &= ~(s->alignment - 1);
	return s->found ? tell(s, &in) : 0;
}

static int read_infos(struct scan *s)
{
	int rc = 0;

	s->next = 0;
	for (uint64_t i = 0; !rc && i < s->n_tensors; i++)
		rc = read_info(s);
	return rc;
}

static int read_prefix(struct scan *s)
{
	uint8_t magic[4];
	uint64_t version;
	int rc;

	if ((rc = cursor_read(&s->c, magic, 4)) || (rc = get(s, 4, &version)))
		return rc;
	if (memcmp(magic, "GGUF", 4) != 0)
		return -ENOMSG;
	if (!(version & 0xffff)) {
		s->big = true;
		version >>= 24;
	}
	if (version != 2 && version != 3)
		return -ENOMSG;
	rc = get(s, 8, &s->n_tensors);
	if (!rc)
		rc = get(s, 8, &s->n_keys);
	if (!rc && s->n_tensors > READER_TENSORS_MAX)
		rc = -E2BIG;
	return rc;
}

static int read_header(struct scan *s)
{
	int rc = read_prefix(s);

	s->alignment = ALIGNMENT;
	for (uint64_t i = 0; !rc && i < s->n_keys; i++)
		rc = read_key(s);
	s->infos = cursor_at(&s->c);
	if (!rc)
		rc = read_infos(s);
	s->data = (cursor_at(&s->c) + s->alignment - 1) & ~(s->alignment - 1);
	return rc;
}

static void scan_freep(struct scan **s)
{
	if (*s)
		cursor_fini(&(*s)->c);
	free(*s);
}

static int gguf_scan(const struct reader_source *source, tensor_found *found,
		     void *arg)
{
	CLEANUP(scan_freep) struct scan *s = calloc(1, sizeof(*s));
	uint64_t end = source->size < HEADER_MAX ? source->size : HEADER_MAX;
	int rc;

	if (!s)
		return -ENOMEM;
	rc = cursor_init(&s->c, source, 0, end);
	if (!rc)
		rc = read_header(s);
	if (rc)
		return rc;
	s->found = found;
	s->arg = arg;
	cursor_fini(&s->c);
	rc = cursor_init(&s->c, source, s->infos, end);
	return rc ? rc : read_infos(s);
}

static bool gguf_knows(const uint8_t *head, size_t len, const char *name)
{
	(void)name;
	return len >= PREFIX_LEN && !memcmp(head, "GGUF", 4);
}

const struct reader_ops reader_gguf = {
	.name = "gguf",
	.knows = gguf_knows,
	.scan = gguf_scan,
};
