/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other direction of reader_npy.c: the header that makes a tensor's image a
 * .npy file, as NumPy would write it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "providers/reader_bytes.h"
#include "providers/reader_gather.h"

#define ALIGNMENT 64
/* 32 dimensions of 20 digits and ", ", and what stands around them. */
#define TEXT_MAX (TENSOR_DIMS_MAX * 22 + 128)

static const char *descr(enum tensor_type type)
{
	static const char *const names[TENSOR_TYPES] = {
		[TENSOR_BOOL] = "|b1",  [TENSOR_I8] = "|i1",
		[TENSOR_U16] = "<u2",   [TENSOR_I16] = "<i2",
		[TENSOR_U32] = "<u4",   [TENSOR_I32] = "<i4",
		[TENSOR_U64] = "<u8",   [TENSOR_I64] = "<i8",
		[TENSOR_F16] = "<f2",   [TENSOR_BF16] = "<u2",
		[TENSOR_F32] = "<f4",   [TENSOR_F64] = "<f8",
		[TENSOR_C32] = "<u4",   [TENSOR_C64] = "<c8",
		[TENSOR_C128] = "<c16",
	};

	return names[type] ? names[type] : "|u1";
}

static size_t add(char *text, size_t at, const char *s)
{
	size_t len = strlen(s);

	memcpy(text + at, s, len);
	return at + len;
}

static size_t add_shape(char *text, size_t at, const uint64_t *shape,
			unsigned n_dims)
{
	for (unsigned i = 0; i < n_dims; i++)
		at += (size_t)snprintf(text + at, TEXT_MAX - at, "%s%" PRIu64,
				       i ? ", " : "", shape[i]);
	return n_dims == 1 ? add(text, at, ",") : at;
}

/* The dict, without padding. */
static size_t write_text(const struct tensor *t, char *text)
{
	uint64_t bytes = tensor_len(t);
	bool as_bytes = !tensor_type_len(t->type);
	size_t at = add(text, 0, "{'descr': '");

	at = add(text, at, descr(t->type));
	at = add(text, at, "', 'fortran_order': False, 'shape': (");
	at = as_bytes ? add_shape(text, at, &bytes, 1)
		      : add_shape(text, at, t->shape, t->n_dims);
	return add(text, at, "), }");
}

size_t tensor_npy_header(const struct tensor *t, void *buf, size_t room)
{
	static const uint8_t prefix[8] = "\x93NUMPY\x01";
	char text[TEXT_MAX];
	size_t text_len = write_text(t, text);
	size_t len =
		(10 + text_len + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	uint8_t *p = buf;

	if (len > room)
		return len;
	memcpy(p, prefix, 8);
	put_le(p + 8, len - 10, 2);
	memcpy(p + 10, text, text_len);
	memset(p + 10 + text_len, ' ', len - 10 - text_len - 1);
	p[len - 1] = '\n';
	return len;
}
