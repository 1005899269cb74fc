/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's words in pickles: dtypes, classes of storages, sizes. A dtype is
 * pickled as the global that it is in the module torch; classes of storages are
 * frozen since 2.1 (newer types come as an untyped storage and a dtype).
 */
#include <errno.h>

#include "providers/reader_torch.h"

bool torch_dtype(const struct pickle *p, uint32_t ref, enum tensor_type *out)
{
	struct pickle_text module, name;

	if (!pickle_global(p, ref, &module, &name) ||
	    !pickle_text_is(module, "torch"))
		return false;
	for (enum tensor_type t = TENSOR_PACKED; t < TENSOR_TYPES; t++)
		if (tensor_type_len(t) &&
		    pickle_text_is(name, tensor_type_name(t))) {
			*out = t;
			return true;
		}
	return false;
}

bool torch_storage_class(const struct pickle *p, uint32_t ref,
			 enum tensor_type *out)
{
	static const struct {
		const char *name;
		enum tensor_type type;
	} classes[] = {
		{ "FloatStorage", TENSOR_F32 },
		{ "BFloat16Storage", TENSOR_BF16 },
		{ "HalfStorage", TENSOR_F16 },
		{ "LongStorage", TENSOR_I64 },
		{ "UntypedStorage", TENSOR_U8 },
		{ "DoubleStorage", TENSOR_F64 },
		{ "IntStorage", TENSOR_I32 },
		{ "ShortStorage", TENSOR_I16 },
		{ "CharStorage", TENSOR_I8 },
		{ "ByteStorage", TENSOR_U8 },
		{ "BoolStorage", TENSOR_BOOL },
		{ "ComplexDoubleStorage", TENSOR_C128 },
		{ "ComplexFloatStorage", TENSOR_C64 },
	};
	struct pickle_text module, name;

	if (!pickle_global(p, ref, &module, &name) ||
	    (!pickle_text_is(module, "torch") &&
	     !pickle_text_is(module, "torch.cuda") &&
	     !pickle_text_is(module, "torch.storage")))
		return false;
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (pickle_text_is(name, classes[i].name)) {
			*out = classes[i].type;
			return true;
		}
	return false;
}

uint32_t torch_size(const struct pickle *p, uint32_t ref)
{
	if (pickle_kind(p, ref) == PICKLE_REDUCE &&
	    pickle_is_global(p, pickle_call(p, ref), "torch", "Size"))
		ref = pickle_at(p, pickle_args(p, ref), 0);
	return pickle_kind(p, ref) == PICKLE_TUPLE ? ref : 0;
}

int torch_dims(const struct pickle *p, uint32_t ref, uint64_t *out, unsigned *n)
{
	uint32_t tuple = torch_size(p, ref), len = pickle_tuple_len(p, tuple);

	if (!tuple)
		return -ENOMSG;
	if (len > TENSOR_DIMS_MAX)
		return -ERANGE;
	for (uint32_t i = 0; i < len; i++)
		if (!pickle_size_at(p, tuple, i, &out[i]))
			return -ENOMSG;
	*n = len;
	return 0;
}
