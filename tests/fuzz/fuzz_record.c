/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes at all as a record of tensors; what it tells is read from a file
 * that does not fit it.
 */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz_input in = { data, len };
	struct tensor_table *table = NULL;
	int rc = tensor_table_decode(data, len, &table);

	if (rc && rc != -EBADMSG && rc != -EOPNOTSUPP && rc != -ENOMEM)
		__builtin_trap();
	if (!rc)
		fuzz_table(&in, table);
	tensor_table_free(table);
	return 0;
}
