/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npy: a magic, a version, and a Python dict as text. Only what NumPy itself
 * writes is taken for one: three keys, a string, a bool, a tuple of integers.
 * The file's only tensor is called "array".
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_bytes.h"
#include "providers/reader_check.h"
#include "providers/reader_formats.h"
#include "providers/reader_npy.h"

static const char magic[6] = "\x93NUMPY";

int npy_header_len(const uint8_t prefix[NPY_PREFIX_LEN], size_t *out)
{
	uint64_t len;

	if (memcmp(prefix, magic, sizeof(magic)) != 0 || prefix[7])
		return -ENOMSG;
	if (prefix[6] == 1)
		len = 10 + get_le(prefix + 8, 2);
	else if (prefix[6] == 2 || prefix[6] == 3)
		len = 12 + get_le(prefix + 8, 4);
	else
		return -ENOMSG;
	if (len < NPY_PREFIX_LEN || len > NPY_HEADER_MAX)
		return -ENOMSG;
	*out = (size_t)len;
	return 0;
}

/* The dict's text. */
struct text {
	const char *p, *end;
};

static void skip_space(struct text *t)
{
	while (t->p < t->end && (*t->p == ' ' || *t->p == '\n'))
		t->p++;
}

/* Is this next, after white space? Then it is taken. */
static bool take(struct text *t, const char *word)
{
	size_t len = strlen(word);

	skip_space(t);
	if ((size_t)(t->end - t->p) < len || memcmp(t->p, word, len) != 0)
		return false;
	t->p += len;
	return true;
}

/* A quoted string without escapes. */
static bool take_string(struct text *t, char *buf, size_t room)
{
	char quote;
	size_t len;

	skip_space(t);
	if (t->p == t->end || (*t->p != '\'' && *t->p != '"'))
		return false;
	quote = *t->p++;
	for (len = 0; t->p < t->end && *t->p != quote; t->p++) {
		if (len + 1 == room || *t->p == '\\' || *t->p < ' ')
			return false;
		buf[len++] = *t->p;
	}
	if (t->p == t->end)
		return false;
	t->p++;
	buf[len] = '\0';
	return true;
}

static bool take_u64(struct text *t, uint64_t *out)
{
	uint64_t v = 0;
	const char *from;

	skip_space(t);
	for (from = t->p; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++)
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*t->p - '0'), &v))
			return false;
	*out = v;
	return t->p > from;
}

/* "(3, 4)", "(3,)", "()". A single one without a comma is no tuple. */
static bool take_shape(struct text *t, struct npy_header *h)
{
	bool comma = false;

	if (!take(t, "("))
		return false;
	while (!take(t, ")")) {
		if ((h->n_dims && !comma) || h->n_dims == TENSOR_DIMS_MAX ||
		    !take_u64(t, &h->shape[h->n_dims]))
			return false;
		take(t, "L"); /* as Python 2 wrote it */
		h->n_dims++;
		comma = take(t, ",");
	}
	return h->n_dims != 1 || comma;
}

static const struct {
	const char *name; /* without the order */
	enum tensor_type type;
} descrs[] = {
	{ "b1", TENSOR_BOOL }, { "u1", TENSOR_U8 },    { "i1", TENSOR_I8 },
	{ "u2", TENSOR_U16 },  { "i2", TENSOR_I16 },   { "u4", TENSOR_U32 },
	{ "i4", TENSOR_I32 },  { "u8", TENSOR_U64 },   { "i8", TENSOR_I64 },
	{ "f2", TENSOR_F16 },  { "f4", TENSOR_F32 },   { "f8", TENSOR_F64 },
	{ "c8", TENSOR_C64 },  { "c16", TENSOR_C128 },
};

static bool take_descr(struct text *t, struct npy_header *h)
{
	char descr[16];

	if (!take_string(t, descr, sizeof(descr)) ||
	    (descr[0] != '<' && descr[0] != '>' && descr[0] != '|'))
		return false;
	for (size_t i = 0; i < sizeof(descrs) / sizeof(*descrs); i++)
		if (!strcmp(descr + 1, descrs[i].name)) {
			h->type = descrs[i].type;
			h->swapped = descr[0] == '>' &&
				     tensor_type_len(h->type) > 1;
			return descr[0] != '|' || tensor_type_len(h->type) == 1;
		}
	return false;
}

static bool take_order(struct text *t, bool *fortran)
{
	*fortran = take(t, "True");
	return *fortran || take(t, "False");
}

/* One key and its value; which is a bit of *seen. */
static bool take_member(struct text *t, struct npy_header *h, bool *fortran,
			unsigned *seen)
{
	static const char *const keys[] = { "descr", "fortran_order", "shape" };
	char key[16];
	unsigned i = 0;

	if (!take_string(t, key, sizeof(key)) || !take(t, ":"))
		return false;
	while (i < 3 && strcmp(keys[i], key) != 0)
		i++;
	if (i == 3 || *seen & 1U << i)
		return false;
	*seen |= 1U << i;
	return i == 0   ? take_descr(t, h)
	       : i == 1 ? take_order(t, fortran)
			: take_shape(t, h);
}

static bool take_dict(struct text *t, struct npy_header *h, bool *fortran)
{
	unsigned seen = 0;
	bool comma = true;

	if (!take(t, "{"))
		return false;
	while (!take(t, "}")) {
		if (!comma || !take_member(t, h, fortran, &seen))
			return false;
		comma = take(t, ",");
	}
	skip_space(t);
	return t->p == t->end && seen == 7;
}

static void f_strides(struct npy_header *h)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < h->n_dims; n *= h->shape[i], i++)
		h->stride[i] = n;
}

/* Bytes and strides, none of which may overflow. */
static int measure(struct npy_header *h, bool fortran)
{
	uint64_t n = tensor_type_len(h->type);
	bool empty = false;

	for (unsigned i = 0; i < h->n_dims; i++) {
		empty |= !h->shape[i];
		if (h->shape[i] && __builtin_mul_overflow(n, h->shape[i], &n))
			return -ENOMSG;
	}
	if (n > INT64_MAX)
		return -ENOMSG;
	h->data_len = empty ? 0 : n;
	if (fortran)
		f_strides(h);
	else if (tensor_c_strides(h->shape, h->n_dims, h->stride))
		return -ENOMSG;
	return 0;
}

int npy_header_parse(const uint8_t *p, size_t len, struct npy_header *out)
{
	struct npy_header h = { .len = len };
	bool fortran = false;
	struct text t;
	size_t want;
	int rc;

	if (len < NPY_PREFIX_LEN)
		return -ENOMSG;
	rc = npy_header_len(p, &want);
	if (rc)
		return rc;
	if (want != len)
		return -ENOMSG;
	t.p = (const char *)p + (p[6] == 1 ? 10 : 12);
	t.end = (const char *)p + len;
	if (!take_dict(&t, &h, &fortran))
		return -ENOMSG;
	rc = measure(&h, fortran);
	if (!rc)
		*out = h;
	return rc;
}

static int tell(const struct npy_header *h, tensor_found *found, void *arg)
{
	struct tensor_piece piece = {
		.swapped = h->swapped,
		.off = h->len,
		.len = h->data_len,
		.stride = h->stride,
	};
	struct tensor t = {
		.name = "array",
		.type = h->type,
		.n_dims = h->n_dims,
		.shape = h->shape,
		.pieces = &piece,
		.n_pieces = 1,
	};

	return found(arg, &t);
}

static int npy_scan(const struct reader_source *source, tensor_found *found,
		    void *arg)
{
	CLEANUP(free_p) uint8_t *text = NULL;
	uint8_t prefix[NPY_PREFIX_LEN];
	struct npy_header h;
	size_t len;
	int rc;

	if (source->size < NPY_PREFIX_LEN)
		return -ENOMSG;
	rc = source->read(source->arg, prefix, sizeof(prefix), 0);
	if (!rc)
		rc = npy_header_len(prefix, &len);
	if (!rc && len > source->size)
		rc = -ENOMSG;
	if (rc)
		return rc;
	text = malloc(len);
	if (!text)
		return -ENOMEM;
	rc = source->read(source->arg, text, len, 0);
	if (!rc)
		rc = npy_header_parse(text, len, &h);
	return rc ? rc : tell(&h, found, arg);
}

static bool npy_knows(const uint8_t *head, size_t len, const char *name)
{
	(void)name;
	return len >= NPY_PREFIX_LEN && !memcmp(head, magic, sizeof(magic));
}

const struct reader_ops reader_npy = {
	.name = "npy",
	.knows = npy_knows,
	.scan = npy_scan,
};
