/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors as file names: each leads back to its tensor and to no
 * other, and all of them can be names of files. */
#include "fs/tensor_name.h"
#include "providers/reader_build.h"
#include "tests/unit/check.h"

static struct tensor_table *table;

static void add(const char *name)
{
	const uint64_t shape = 1;
	const struct tensor_piece piece = { .len = 1 };
	const struct tensor t = { .name = name,
				  .type = TENSOR_U8,
				  .n_dims = 1,
				  .shape = &shape,
				  .pieces = &piece,
				  .n_pieces = 1 };

	CHECK_EQ(tensor_table_add(table, &t), 0);
}

static void add_long(const char *part, int n, const char *end)
{
	char name[TENSOR_NAME_MAX + 1] = "";
	size_t len = 0;

	while (n--)
		len += (size_t)snprintf(name + len, sizeof(name) - len, "%s",
					part);
	snprintf(name + len, sizeof(name) - len, "%s", end);
	add(name);
}

static void fill(void)
{
	static const char *const names[] = {
		"a",    "a.b", "a/b", "a%2Fb", "%",    "%%", "/",
		".",    "..",  "~",   "%~",    "\n\t", "a ", "a.npy",
		"\x7f", "%2f", "ü",   "%25",   "%2",   "2F", "%7E",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		add(names[i]);
	for (int n = 225; n <= 260; n++) {
		add_long("x", n, "");
		add_long("x", n, "y");
	}
	for (int n = 75; n <= 90; n++)
		add_long("%", n, ""); /* three bytes each */
	for (int n = 110; n <= 130; n++)
		add_long("ü", n, "");
	add_long("long.", 800, "");
	CHECK_EQ(tensor_table_finish(table), 0);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void leads_back(void)
{
	size_t n = tensor_table_count(table);
	char(*files)[META_NAME_MAX + 1] = calloc(n, sizeof(*files));

	CHECK(files);
	for (size_t i = 0; i < n; i++) {
		const struct tensor *t = tensor_table_at(table, i);

		tensor_file_name(t->name, files[i]);
		CHECK(strlen(files[i]) <= META_NAME_MAX);
		CHECK(!strchr(files[i], '/'));
		CHECK(tensor_of_file_name(table, files[i]) == t);
		/* Cut only what has to be. */
		CHECK(!strstr(files[i], "%~") || strlen(files[i]) > 245);
	}
	qsort(files, n, sizeof(*files), by_text);
	for (size_t i = 1; i < n; i++)
		CHECK(strcmp(files[i - 1], files[i]) != 0);
	free(files);
}

static void knows_no_others(void)
{
	static const char *const files[] = {
		"",        ".npy",      "a",
		"b.npy",   "%2f.npy",   "%.npy",
		"%2.npy",  "a%",        "%61.npy",
		"a.NPY",   "%~.npy",    "%zz.npy",
		"%00.npy", "a.npy.npz", "%~0123456789abcdef.npy",
		"%2",
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		CHECK(!tensor_of_file_name(table, files[i]));
}

int main(void)
{
	CHECK_EQ(tensor_table_new(reader_find((const uint8_t *)"\x93NUMPY\1", 8,
					      "x.npy"),
				  UINT64_MAX, &table),
		 0);
	fill();
	leads_back();
	knows_no_others();
	tensor_table_free(table);
	return 0;
}
