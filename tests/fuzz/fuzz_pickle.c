/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes at all as a pickle: every question about every node, and what the
 * torch and DCP readers make of it. Storages are all there, and large.
 */
#include "fuzz.h"
#include "providers/reader_formats.h"
#include "providers/reader_torch.h"

#define MEMORY (1 << 20)
#define STORAGE_LEN (UINT64_C(1) << 40)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(int err)
{
	if (err && err != -ENOMSG && err != -E2BIG && err != -ENOMEM)
		__builtin_trap();
}

static void in_input(const struct fuzz_input *in, struct pickle_text text)
{
	const uint8_t *at = (const uint8_t *)text.at;

	if (at < in->p || text.len > in->len - (size_t)(at - in->p))
		__builtin_trap();
}

static void ask_texts(const struct fuzz_input *in, const struct pickle *p,
		      uint32_t ref)
{
	struct pickle_text a, b;

	if (pickle_text(p, ref, &a))
		in_input(in, a);
	if (pickle_global(p, ref, &a, &b)) {
		in_input(in, a);
		in_input(in, b);
	}
}

static void ask(const struct fuzz_input *in, const struct pickle *p,
		uint32_t ref)
{
	uint32_t n = pickle_count(p), part[] = {
		pickle_call(p, ref),       pickle_args(p, ref),
		pickle_state(p, ref),      pickle_items(p, ref),
		pickle_at(p, ref, 0),      pickle_at(p, ref, UINT32_MAX),
		pickle_get(p, ref, "key"),
	};
	struct pickle_iter it;
	uint64_t members = 0;
	int64_t value;

	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
		if (part[i] >= n)
			__builtin_trap();
	ask_texts(in, p, ref);
	(void)pickle_int(p, ref, &value);
	pickle_iter_init(&it, p, ref);
	while (pickle_next(&it, &part[0]))
		if (++members > in->len * 2 || !part[0] || part[0] >= n)
			__builtin_trap();
	if (pickle_kind(p, ref) == PICKLE_DICT && members % 2)
		__builtin_trap();
}

static int find_storage(void *arg, struct pickle_text key, uint64_t *off,
			uint64_t *len)
{
	in_input(arg, key);
	*off = key.len ? (uint64_t)(uint8_t)key.at[0] << 40 : 0;
	*len = STORAGE_LEN;
	return 0;
}

static void walk(struct fuzz_input *in, const struct pickle *p)
{
	const struct torch_storages storages = { find_storage, in, false };
	struct tensor_table *table = NULL;
	struct catalog *c = NULL;
	int err = catalog_new(MEMORY, &c);

	if (!err)
		err = torch_walk(p, NULL, &storages, c);
	if (!err)
		err = tensor_table_new(&reader_torch, UINT64_MAX, &table);
	if (!err)
		err = catalog_report(c, tensor_table_add, table);
	if (!err && tensor_table_finish(table))
		__builtin_trap(); /* a name twice */
	check(err);
	tensor_table_free(table);
	catalog_free(c);
}

static void dcp(struct fuzz_input *in)
{
	struct reader_source source = fuzz_source(in);
	struct tensor_table *table = NULL;
	int err = tensor_table_scan_as(&reader_dcp, &source, &table);

	check(err);
	if (!err)
		fuzz_table(in, table);
	tensor_table_free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz_input in = { data, len };
	struct pickle *p = NULL;
	int err = pickle_parse(data, len, MEMORY, &p);

	check(err);
	for (uint32_t ref = 0; !err && ref < pickle_count(p); ref++)
		ask(&in, p, ref);
	if (!err) {
		walk(&in, p);
		dcp(&in);
	}
	pickle_free(p);
	return 0;
}
