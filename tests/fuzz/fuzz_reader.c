/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any file at all, given to every format whether it knows the file or not; what
 * they find is read, kept and resolved.
 */
#include "fuzz.h"
#include "providers/reader_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz_input in = { data, len };
	struct reader_source source = fuzz_source(&in);
	size_t head = len < READER_HEAD_LEN ? len : READER_HEAD_LEN;

	for (size_t i = 0; reader_formats[i]; i++) {
		struct tensor_table *table = NULL;
		int rc;

		(void)reader_formats[i]->knows(data, head, "a.index.json");
		rc = tensor_table_scan_as(reader_formats[i], &source, &table);
		if (rc && rc != -ENOMSG && rc != -E2BIG && rc != -ENOMEM)
			__builtin_trap();
		if (!rc)
			fuzz_table(&in, table);
		tensor_table_free(table);
	}
	return 0;
}
