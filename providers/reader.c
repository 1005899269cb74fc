/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of the reading side: which formats there are, and what the element
 * types are called. Formats whose first bytes are a proof come first; those
 * that go by a name come last.
 */
#include <assert.h>
#include <errno.h>

#include "providers/reader.h"
#include "providers/reader_formats.h"
#include "providers/reader_table.h"

const struct reader_ops *const reader_formats[] = {
	&reader_npy,         /* begins with \x93NUMPY */
	&reader_gguf,        /* GGUF */
	&reader_safetensors, /* a length and {" */
	&reader_torch,       /* a zip with ROOT/data.pkl */
	&reader_npz,         /* a zip with *.npy */
	&reader_index,       /* *.index.json */
	&reader_dcp,         /* .metadata, a pickle */
	NULL,
};

static const struct {
	const char *name;
	size_t len;
} types[TENSOR_TYPES] = {
	[TENSOR_PACKED] = { "packed", 0 },
	[TENSOR_BOOL] = { "bool", 1 },
	[TENSOR_U8] = { "uint8", 1 },
	[TENSOR_I8] = { "int8", 1 },
	[TENSOR_U16] = { "uint16", 2 },
	[TENSOR_I16] = { "int16", 2 },
	[TENSOR_U32] = { "uint32", 4 },
	[TENSOR_I32] = { "int32", 4 },
	[TENSOR_U64] = { "uint64", 8 },
	[TENSOR_I64] = { "int64", 8 },
	[TENSOR_F16] = { "float16", 2 },
	[TENSOR_BF16] = { "bfloat16", 2 },
	[TENSOR_F32] = { "float32", 4 },
	[TENSOR_F64] = { "float64", 8 },
	[TENSOR_F8_E4M3FN] = { "float8_e4m3fn", 1 },
	[TENSOR_F8_E5M2] = { "float8_e5m2", 1 },
	[TENSOR_F8_E4M3FNUZ] = { "float8_e4m3fnuz", 1 },
	[TENSOR_F8_E5M2FNUZ] = { "float8_e5m2fnuz", 1 },
	[TENSOR_F8_E8M0FNU] = { "float8_e8m0fnu", 1 },
	[TENSOR_C32] = { "complex32", 4 },
	[TENSOR_C64] = { "complex64", 8 },
	[TENSOR_C128] = { "complex128", 16 },
	[TENSOR_F4_X2] = { "float4_e2m1fn_x2", 1 },
	[TENSOR_UNKNOWN] = { "unknown", 0 },
};

size_t tensor_type_len(enum tensor_type type)
{
	return (unsigned)type < TENSOR_TYPES ? types[type].len : 0;
}

const char *tensor_type_name(enum tensor_type type)
{
	assert((unsigned)type < TENSOR_TYPES);
	return types[type].name;
}

uint64_t tensor_elements(const struct tensor *t)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < t->n_dims; i++)
		n *= t->shape[i];
	return n;
}

const struct reader_ops *reader_find(const uint8_t *head, size_t len,
				     const char *name)
{
	for (size_t i = 0; reader_formats[i]; i++)
		if (reader_formats[i]->knows(head, len, name))
			return reader_formats[i];
	return NULL;
}

int reader_scan(const struct reader_source *source, const char *name,
		const struct reader_ops **format, tensor_found *found,
		void *arg)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	int rc;

	rc = tensor_table_scan(source, name, &table);
	for (size_t i = 0; !rc && i < tensor_table_count(table); i++)
		rc = found(arg, tensor_table_at(table, i));
	if (!rc && format)
		*format = tensor_table_ops(table);
	return rc;
}
